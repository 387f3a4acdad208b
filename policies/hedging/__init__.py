"""Policies that answer: how long to wait for an attempt's first token before a second one is sent?"""

from policies.hedging.dual_path import DualPath
from policies.hedging.fixed_delay import FixedDelay
from policies.hedging.no_hedge import NoHedge
from policies.hedging.percentile import Percentile
from policies.hedging.slowdown import Slowdown
from policies.hedging.tied import Tied

__all__ = ["DualPath", "FixedDelay", "NoHedge", "Percentile", "Slowdown", "Tied"]
