"""Lanes that lose are turned off until they would win again."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from policies.errors import ConfigError
from policies.views import RequestView, Role
from routing.fleet.fleet import Fleet
from routing.lanes.lanes import Lane
from routing.request.stages import PoolNames


class LaneGuard(Protocol):
    """Answers: do lanes help now, or is everybody better off without them?"""

    def look(self, request: RequestView, stage: Role, lanes: Sequence[Lane], fleet: Fleet, now_s: float) -> None:
        """Called when a request has arrived.

        Args:
            request: The request, in its lane and with its cost estimate, let in or not.
            stage: The first of its plan.
            lanes: Those that requests are put in for what they are.
            fleet: All replicas.
            now_s: Now.
        """

    def are_on(self, role: Role) -> bool:
        """Whether lanes are kept apart on the replicas of a role; if not, every lane uses all of them."""


class AlwaysOn:
    """Lanes stay as they are configured, whatever happens."""

    def look(self, request: RequestView, stage: Role, lanes: Sequence[Lane], fleet: Fleet, now_s: float) -> None:
        """Nothing to see."""

    def are_on(self, role: Role) -> bool:
        return True


@dataclass(slots=True)
class _Watch:
    """What the guard keeps of one role.

    Args:
        retry_s: For how long lanes stay off the next time.
        own_tokens: Smoothed backlog of a replica of the shortest lane.
        own_busy: Smoothed fraction of those replicas that have one at all, times ``seen``.
        seen: Weight of all that went into the averages, near 1 after a while.
        all_tokens: The same of all replicas.
        is_on: Whether lanes are on.
        switched_s: When they were last turned on or off.
        losing_since_s: From when on they have been losing; infinite while they don't.
    """

    retry_s: float
    own_tokens: float = 0.0
    own_busy: float = 0.0
    seen: float = 0.0
    all_tokens: float = 0.0
    is_on: bool = True
    switched_s: float = -math.inf
    losing_since_s: float = math.inf

    def switch(self, now_s: float) -> None:
        """Turns lanes on or off; what was seen until now says nothing about what comes."""
        self.is_on, self.switched_s, self.losing_since_s = not self.is_on, now_s, math.inf
        self.own_tokens = self.own_busy = self.seen = self.all_tokens = 0.0


class BacklogGuard:
    """Do lanes help now? Not when there is nearly as much work before a short request as before any other.

    Rule: the backlog of a replica is its prompt tokens without a first token. Every ``period_s`` the mean backlog of
        the shortest lane's replicas is held against the mean of all; both are smoothed over ``smooth_s``. Lanes go off
        when the first has been above ``off_ratio`` times the second for ``hold_s``, and stay on while less than
        ``min_busy_fraction`` of the shortest lane's replicas have any: short requests find an idle one then, and a
        ratio of next to nothing says nothing. In the crowd a request goes to the
        replica with the least work, and that has far less than the mean: hence a ratio well below 1. While lanes are
        off the two are the same, and what lanes would be like can't be seen: they get a trial after ``retry_s``, and
        after each trial that fails, another one only after twice the time, up to ``retry_max_s``. Lanes that last for
        ``retry_s`` have passed.
    State: three averages and three times for each role.
    Complexity: O(replicas) once in ``period_s``, else O(1).
    Failure mode: it sees the replicas' work, not what waits in the gateway where replicas have few slots. A burst of
        short requests looks like a lane that is too small, until it is over. At half load and less, backlogs are too
        small to tell, and lanes that lose stay on. Decode has no backlog of this kind: its lanes stay on.

    Args:
        period_s: Between two looks.
        smooth_s: Time constant of the averages.
        off_ratio: Of the shortest lane's backlog to that of all, above which lanes lose.
        hold_s: How long it must have been so.
        min_busy_fraction: Of the shortest lane's replicas, that have a backlog; with fewer there is nothing to judge.
        retry_s: For how long lanes stay off the first time.
        retry_max_s: For how long they stay off at most.

    Raises:
        ConfigError: A number that is not above 0, or ``retry_max_s`` below ``retry_s``.
    """

    def __init__(
        self,
        *,
        period_s: float = 0.1,
        smooth_s: float = 10.0,
        off_ratio: float = 0.4,
        hold_s: float = 5.0,
        min_busy_fraction: float = 0.25,
        retry_s: float = 60.0,
        retry_max_s: float = 960.0,
    ) -> None:
        given = {"period_s": period_s, "smooth_s": smooth_s, "off_ratio": off_ratio, "hold_s": hold_s}
        for name, value in {**given, "retry_s": retry_s}.items():
            if not 0 < value < math.inf:
                raise ConfigError(f"policies.lanes.guard.params.{name}", value, "more than 0")
        if not 0 <= min_busy_fraction < 1:
            field = "policies.lanes.guard.params.min_busy_fraction"
            raise ConfigError(field, min_busy_fraction, "from 0 to less than 1")
        if retry_max_s < retry_s:
            allowed = f"at least retry_s, which is {retry_s:g}"
            raise ConfigError("policies.lanes.guard.params.retry_max_s", retry_max_s, allowed)
        self._period_s = period_s
        self._smooth_s = smooth_s
        self._off_ratio = off_ratio
        self._hold_s = hold_s
        self._min_busy_fraction = min_busy_fraction
        self._retry_s = retry_s
        self._retry_max_s = retry_max_s
        self._watches = {role: _Watch(retry_s) for role in (Role.UNIFIED, Role.PREFILL)}
        self._looked_s = -math.inf

    def look(self, request: RequestView, stage: Role, lanes: Sequence[Lane], fleet: Fleet, now_s: float) -> None:
        """Called when a request has arrived; does nothing more than once in ``period_s``."""
        passed_s = now_s - self._looked_s
        if passed_s < self._period_s:
            return
        self._looked_s = now_s
        weight = 1.0 - math.exp(-passed_s / self._smooth_s) if passed_s < math.inf else 0.0
        shortest = min(lanes, key=lambda lane: (lane.prompt_tokens.at_least, lane.output_tokens.at_least))
        for role, watch in self._watches.items():
            of_role = fleet.pools(role)
            own = tuple(name for name in of_role if name in shortest.pools)
            if own and own != of_role:
                (own_tokens, own_busy), (all_tokens, _) = (_backlog(fleet, pools, now_s) for pools in (own, of_role))
                watch.own_tokens += weight * (own_tokens - watch.own_tokens)
                watch.own_busy += weight * (own_busy - watch.own_busy)
                watch.seen += weight * (1.0 - watch.seen)
                watch.all_tokens += weight * (all_tokens - watch.all_tokens)
                self._judge(watch, now_s)

    def are_on(self, role: Role) -> bool:
        return role is Role.DECODE or self._watches[role].is_on

    def gauges(self) -> Mapping[str, float]:
        """``lanes_on``: 1 unless lanes are off where prompts are computed."""
        return {"lanes_on": float(all(watch.is_on for watch in self._watches.values()))}

    def _judge(self, watch: _Watch, now_s: float) -> None:
        since_switch_s = now_s - watch.switched_s
        if not watch.is_on:
            if since_switch_s >= watch.retry_s:
                watch.retry_s = min(2 * watch.retry_s, self._retry_max_s)
                watch.switch(now_s)
            return
        if since_switch_s >= self._retry_s:
            watch.retry_s = self._retry_s
        is_idle = watch.own_busy < self._min_busy_fraction * watch.seen
        if is_idle or watch.own_tokens <= self._off_ratio * watch.all_tokens:
            watch.losing_since_s = math.inf
        else:
            watch.losing_since_s = min(watch.losing_since_s, now_s)
            if now_s - watch.losing_since_s >= self._hold_s:
                watch.switch(now_s)


def _backlog(fleet: Fleet, pools: PoolNames, now_s: float) -> tuple[float, float]:
    """The mean backlog of a replica of these pools in tokens, and how many of them have any; 0 when none is up."""
    backlogs = [each.prefill_tokens for each in fleet.live_in(pools, now_s)]
    if not backlogs:
        return 0.0, 0.0
    return sum(backlogs) / len(backlogs), sum(each > 0 for each in backlogs) / len(backlogs)
