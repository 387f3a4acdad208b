"""Policies that answer: how long to wait for an attempt's first token before a second one is sent?"""

from policies.hedging.no_hedge import NoHedge

__all__ = ["NoHedge"]
