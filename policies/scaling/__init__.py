"""How many replicas is each pool to have?"""

from policies.scaling.fixed import Fixed
from policies.scaling.joint_by_work import JointByWork
from policies.scaling.mean_lengths import MeanLengths
from policies.scaling.queue_depth import QueueDepth
from policies.scaling.ratio import Ratio
from policies.scaling.scheduled import Scheduled
from policies.scaling.target_utilization import TargetUtilization

__all__ = ["Fixed", "JointByWork", "MeanLengths", "QueueDepth", "Ratio", "Scheduled", "TargetUtilization"]
