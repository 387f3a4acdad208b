"""Policies that answer: which of the waiting requests goes next?"""

from policies.queueing.fcfs import Fcfs

__all__ = ["Fcfs"]
