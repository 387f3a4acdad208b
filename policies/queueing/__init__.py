"""Policies that answer: which of the waiting requests goes next?"""

from policies.queueing.fcfs import Fcfs
from policies.queueing.sjf_aged import SjfAged

__all__ = ["Fcfs", "SjfAged"]
