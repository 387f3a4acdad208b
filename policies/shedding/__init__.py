"""Policies that answer: is this request among those that the whole fleet gives up now?"""

from policies.shedding.never_shed import NeverShed

__all__ = ["NeverShed"]
