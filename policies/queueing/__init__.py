"""Policies that answer: which of the waiting requests goes next?"""

from policies.queueing.drr import Drr
from policies.queueing.edf import Edf
from policies.queueing.fcfs import Fcfs
from policies.queueing.priority_aged import PriorityAged
from policies.queueing.sjf_aged import SjfAged
from policies.queueing.vtc import Vtc

__all__ = ["Drr", "Edf", "Fcfs", "PriorityAged", "SjfAged", "Vtc"]
