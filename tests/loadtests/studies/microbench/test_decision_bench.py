"""How the benchmark measures, not what: no test here depends on how fast this machine is."""

import pytest

from loadtests.studies.microbench.busy_dispatcher import OPEN_PER_REPLICA, BusyDispatcher, DecisionCase
from loadtests.studies.microbench.decision_bench import LANES, TURNS, measure
from policies import CATALOG
from tests.tables import for_each

BALANCERS = sorted(CATALOG["balancing"])


class TickingClock:
    """A microsecond later whenever somebody looks, and ten in the first turn."""

    def __init__(self, slow_looks: int) -> None:
        self._now_us = 0
        self._slow_looks = slow_looks

    def now_s(self) -> float:
        self._slow_looks -= 1
        self._now_us += 10 if self._slow_looks >= 0 else 1
        return self._now_us / 1e6


@for_each("lanes", LANES)
@for_each("balancer", BALANCERS)
def test_whatever_arrives_every_balancer_is_measured_under_the_same_load(balancer: str, lanes: int) -> None:
    busy = BusyDispatcher(DecisionCase(balancer, 8, lanes))

    for _ in range(200):
        busy.handle(*busy.next_arrival())
        assert busy.num_open_requests == 8 * OPEN_PER_REPLICA


def test_the_lowest_of_the_turns_is_shown_as_other_work_only_adds_to_it() -> None:
    case, turns = DecisionCase("random", 8, 1), []

    medians_us = measure([case], TickingClock(slow_looks=20), 10, lambda: turns.append(1))

    assert medians_us == {case: pytest.approx(1.0)}
    assert len(turns) == TURNS
