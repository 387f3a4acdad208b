"""Policies that answer: which sheddable requests in flight are preempted for those that wait?"""

from policies.preemption.never_preempt import NeverPreempt
from policies.preemption.newest_sheddable import NewestSheddable

__all__ = ["NeverPreempt", "NewestSheddable"]
