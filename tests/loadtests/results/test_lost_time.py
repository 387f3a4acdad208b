"""What requests lose their time to, by the tables and the metrics of runs."""

import math

import pytest

from loadtests.results.analysis import analyse
from loadtests.results.lost_time import binding, lost_metrics
from loadtests.results.metrics import ALL, RunMetrics, Window
from loadtests.results.slo import ClassSlo
from policies.capacity.bounds import Bound
from tests.loadtests.run_tables import RequestRow, run_table

WINDOW = Window(from_s=0, until_s=100)
SLOS = {"chat": ClassSlo(ttft_s=1.0), "batch": ClassSlo(e2e_s=30)}


def run(*spent_s: dict[Bound, float]) -> RunMetrics:
    """Metrics of a run whose requests, of two classes in turn, spent this."""
    rows = [RequestRow(logical_request=n, traffic_class=n % 2, spent_s=each) for n, each in enumerate(spent_s)]
    return analyse(run_table(*rows, classes=("chat", "batch")), SLOS, WINDOW)


def test_what_is_lost_is_a_share_of_what_an_idle_fleet_takes_and_its_parts_are_shares_of_that() -> None:
    found = lost_metrics({Bound.ENGINE: 10.0, Bound.QUEUE: 3.0, Bound.MEMORY: 1.0}, 5)
    assert found["lost_fraction"].value == pytest.approx(0.4)
    assert found["lost_to_queue_fraction"].value == pytest.approx(0.75)
    assert found["lost_to_memory_fraction"].value == pytest.approx(0.25)
    assert sum(each.value for name, each in found.items() if name.startswith("lost_to")) == pytest.approx(1.0)


def test_a_table_that_does_not_say_loses_nobody_knows_how_much() -> None:
    metrics = analyse(run_table(RequestRow(logical_request=0)), {"chat": SLOS["chat"]}, WINDOW)
    assert math.isnan(metrics[ALL]["lost_fraction"].value)
    assert binding([metrics], [ALL]) == ""


def test_each_class_has_its_own_and_is_named_where_something_else_binds_it() -> None:
    chat, batch = {Bound.ENGINE: 1.0, Bound.QUEUE: 9.0}, {Bound.ENGINE: 1.0, Bound.PREFILL: 2.0}
    metrics = run(chat, batch)
    assert metrics["chat"]["lost_to_queue_fraction"].value == pytest.approx(1.0)
    assert metrics["batch"]["lost_fraction"].value == pytest.approx(2.0)
    said = binding([metrics], (ALL, "chat", "batch"))
    assert said.startswith("what binds: queue, 82% of the time that requests lose; more replicas of the pool")
    assert said.endswith("(batch: prefill)")


def test_a_verdict_is_by_the_mean_of_all_seeds() -> None:
    a_little, much = {Bound.ENGINE: 1.0, Bound.QUEUE: 0.2}, {Bound.ENGINE: 1.0, Bound.MEMORY: 0.5}
    assert binding([run(a_little, a_little)], [ALL]).startswith("what binds: engine itself")
    assert binding([run(a_little, a_little), run(much, much)], [ALL]).startswith("what binds: memory, 71%")
