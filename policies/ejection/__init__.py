"""Policies that answer: which replicas get nothing for a while, and how much do those get that come back?"""

from policies.ejection.never_eject import NeverEject
from policies.ejection.outlier import Outlier

__all__ = ["NeverEject", "Outlier"]
