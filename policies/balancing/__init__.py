"""Policies that answer: which replica takes the attempt?"""

from policies.balancing.card import Card
from policies.balancing.join_idle_queue import JoinIdleQueue
from policies.balancing.least_cost import LeastCost
from policies.balancing.least_delay import LeastDelay
from policies.balancing.least_work_left import LeastWorkLeft
from policies.balancing.lmetric import Lmetric
from policies.balancing.longest_prefix import LongestPrefix
from policies.balancing.peak_ewma import PeakEwma
from policies.balancing.power_of_two import PowerOfTwo
from policies.balancing.power_of_two_by_work import PowerOfTwoByWork
from policies.balancing.prefix_affinity import PrefixAffinity
from policies.balancing.random_choice import RandomChoice
from policies.balancing.round_robin import RoundRobin
from policies.balancing.scored import Scored
from policies.balancing.session_affinity import SessionAffinity

__all__ = [
    "Card",
    "JoinIdleQueue",
    "LeastCost",
    "LeastDelay",
    "LeastWorkLeft",
    "Lmetric",
    "LongestPrefix",
    "PeakEwma",
    "PowerOfTwo",
    "PowerOfTwoByWork",
    "PrefixAffinity",
    "RandomChoice",
    "RoundRobin",
    "Scored",
    "SessionAffinity",
]
