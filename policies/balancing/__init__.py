"""Policies that answer: which replica takes the attempt?"""

from policies.balancing.join_idle_queue import JoinIdleQueue
from policies.balancing.least_work_left import LeastWorkLeft
from policies.balancing.peak_ewma import PeakEwma
from policies.balancing.power_of_two import PowerOfTwo
from policies.balancing.power_of_two_by_work import PowerOfTwoByWork
from policies.balancing.random_choice import RandomChoice
from policies.balancing.round_robin import RoundRobin

__all__ = [
    "JoinIdleQueue",
    "LeastWorkLeft",
    "PeakEwma",
    "PowerOfTwo",
    "PowerOfTwoByWork",
    "RandomChoice",
    "RoundRobin",
]
