"""A calendar."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from policies.contracts import Need
from policies.errors import ConfigError
from policies.params import SCALING
from policies.pool_views import ScalingView
from policies.signals import Signal

DAY_S = 86_400.0


class Scheduled:
    """How many replicas is each pool to have? As many as the calendar says for this time of the day.

    Rule: the last entry whose ``at_s`` has passed since ``period_s`` began anew; before the first entry the last one of
        the period before. ``ahead_s`` is added to the time, so that replicas are ready when the entry begins.
    State: none.
    Consumes: nothing.
    Complexity: O(entries).
    Failure mode: a crowd that is not in the calendar. Oracles are written with it.

    Args:
        entries: ``{at_s: seconds after the period's beginning, replicas: {pool: number}}`` each, in order of time.
        period_s: After so long the calendar begins anew.
        ahead_s: How long before an entry its replicas are asked for.

    Raises:
        ConfigError: An entry is none, or out of order, or a number out of range.
    """

    requires: ClassVar[frozenset[Need]] = frozenset()
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset()

    def __init__(self, *, entries: Sequence[Mapping[str, Any]], period_s: float = DAY_S, ahead_s: float = 0.0) -> None:
        SCALING.check_positive("period_s", period_s)
        SCALING.check_number("ahead_s", ahead_s, 0.0, period_s)
        self._entries = [_entry(each, period_s) for each in entries]
        times_s = [at_s for at_s, _ in self._entries]
        if not times_s or times_s != sorted(set(times_s)):
            raise ConfigError("policies.scaling.params.entries", list(entries), "one or more, in order of at_s")
        self._period_s, self._ahead_s = period_s, ahead_s

    def targets(self, view: ScalingView, now_s: float) -> Mapping[str, int]:
        into_s = (now_s + self._ahead_s) % self._period_s
        found = self._entries[-1][1]
        for at_s, replicas in self._entries:
            if at_s <= into_s:
                found = replicas
        return found


def _entry(entry: Mapping[str, Any], period_s: float) -> tuple[float, Mapping[str, int]]:
    is_one = isinstance(entry, Mapping) and set(entry) == {"at_s", "replicas"}
    if not is_one or not isinstance(entry["replicas"], Mapping):
        raise ConfigError("policies.scaling.params.entries", entry, "{at_s: SECONDS, replicas: {POOL: NUMBER}}")
    SCALING.check_number("entries.at_s", entry["at_s"], 0.0, period_s)
    for pool, number in entry["replicas"].items():
        SCALING.check_number(f"entries.replicas.{pool}", number, 0)
    return float(entry["at_s"]), {pool: int(number) for pool, number in entry["replicas"].items()}
