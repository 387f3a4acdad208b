"""As many as there are."""

from collections.abc import Mapping
from typing import ClassVar

from policies.contracts import Need
from policies.pool_views import ScalingView
from policies.signals import Signal


class Fixed:
    """How many replicas is each pool to have? As many as it was started with.

    Rule: no pool is named, so none changes.
    State: none.
    Consumes: nothing.
    Complexity: O(1).
    Failure mode: it is too few at the peak, or too many all night.
    """

    requires: ClassVar[frozenset[Need]] = frozenset()
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset()

    def targets(self, view: ScalingView, now_s: float) -> Mapping[str, int]:
        return {}
