"""How the benchmark measures, not what: no test here depends on how fast this machine is."""

from io import StringIO

import pytest
from rich.console import Console

from loadtests.studies.microbench.busy_dispatcher import OPEN_PER_REPLICA, BusyDispatcher, Case
from loadtests.studies.microbench.decision_bench import LANES, REPLICAS, TURNS, main, measure, table_of
from policies import CATALOG
from routing.config.catalog import TRACKERS

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


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("balancer", BALANCERS)
def test_whatever_arrives_every_balancer_is_measured_under_the_same_load(balancer: str, lanes: int) -> None:
    busy = BusyDispatcher(Case(balancer, 8, lanes))

    for _ in range(200):
        busy.handle(*busy.next_arrival())
        assert busy.num_open_requests == 8 * OPEN_PER_REPLICA


def test_the_index_that_prefixes_are_measured_with_exists_as_soon_as_a_balancer_needs_one() -> None:
    needed = any(Case(balancer, 8, 1).needs_prefixes for balancer in BALANCERS)

    assert not needed or "block_hash" in TRACKERS


def test_the_lowest_of_the_turns_is_shown_as_other_work_only_adds_to_it() -> None:
    case, turns = Case("random", 8, 1), []

    medians_us = measure([case], TickingClock(slow_looks=20), 10, lambda: turns.append(1))

    assert medians_us == {case: pytest.approx(1.0)}
    assert len(turns) == TURNS


def test_a_line_says_whether_64_replicas_are_within_the_goal() -> None:
    fast = {Case("random", replicas, 1): 20.0 for replicas in REPLICAS}
    slow = {Case("round_robin", replicas, 2): {8: 20.0, 64: 50.5, 512: 90.0}[replicas] for replicas in REPLICAS}
    out = StringIO()

    Console(file=out, width=100).print(table_of(fast | slow))

    lines = out.getvalue().splitlines()
    assert any(line.split() == ["random", "none", *["20.0"] * 3, "<=", "50", "met"] for line in lines)
    assert any(line.split() == ["round_robin", "2", "20.0", "50.5", "90.0", "<=", "50", "missed"] for line in lines)


def test_the_command_measures_the_balancers_that_it_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    main(["random", "--rounds", "1"])

    shown = capsys.readouterr().out
    assert "random" in shown
    assert "round_robin" not in shown


def test_a_balancer_that_does_not_exist_is_an_error_that_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["least_work"])

    assert "least_work" in capsys.readouterr().err
