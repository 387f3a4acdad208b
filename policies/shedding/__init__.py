"""Is this request among those that the whole fleet gives up now? One policy per file.

``never_shed`` keeps everything; ``shared_fraction`` has all gateways give up the same sessions.
"""

from policies.shedding.adaptive_throttle import AdaptiveThrottle
from policies.shedding.never_shed import NeverShed
from policies.shedding.pid import Pid
from policies.shedding.priority_threshold import PriorityThreshold
from policies.shedding.shared_fraction import SharedFraction

__all__ = ["AdaptiveThrottle", "NeverShed", "Pid", "PriorityThreshold", "SharedFraction"]
