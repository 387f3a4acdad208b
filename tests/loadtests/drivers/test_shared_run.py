"""A run that several workers drive: the plan is split, the reports come together, and nobody's share is forgotten."""

import hashlib
from pathlib import Path

import pytest

from cluster.sim.traffic import PlannedRequest
from loadtests.drivers.answer_stream import AnswerStream
from loadtests.drivers.client_log import ClientLog
from loadtests.drivers.endings import COMPLETED, Ending
from loadtests.drivers.shared_run import RunOrder, SharedRun, WorkerReport
from loadtests.results.run_folder import LOCUST
from policies.errors import ConfigError
from tests.loadtests.completion_server import event, token
from tests.loadtests.live_scenarios import write_scenario


def order(folder: Path, rate_fraction: float = 1.0) -> RunOrder:
    return RunOrder(
        run_id=hashlib.sha256(str(folder).encode()).hexdigest(),
        scenario=str(write_scenario(folder)),
        seed=1,
        rate_fraction=rate_fraction,
        duration_s=None,
        classes=(),
        base_url="http://host",
        model="m",
        asks_token_ids=True,
        max_in_flight=10,
        begins_at=1_000_000_000.0,
    )


def report(
    run: SharedRun, worker: str, *, is_over: bool = True, num_unanswered: int = 0, failure: str = ""
) -> WorkerReport:
    """A worker has sent all of its share and got it answered at once."""
    mine = run.orders()[worker]
    log = ClientLog(run.plan.scenario.workload.class_names)
    for arrival in mine.plan().clients(mine.share).arrivals():
        answered(log, arrival.request)
    return WorkerReport(
        run_id=run.order.run_id, taken=log.take(), is_over=is_over, num_unanswered=num_unanswered, failure=failure
    )


def answered(log: ClientLog, request: PlannedRequest) -> None:
    stream, at_s = AnswerStream(), request.scheduled_s
    stream.feed(5 * token() + event({"choices": [], "usage": {"completion_tokens": 5}}), at_s + 0.1)
    log.add_sent(at_s, at_s)
    log.add_ended(request, stream, Ending(outcome=COMPLETED), sent_s=at_s, ended_s=at_s + 0.1, is_last=True)


def is_there(worker: str) -> bool:
    return True


def test_shares_come_together_as_the_whole_plan(tmp_path: Path) -> None:
    run = SharedRun(order(tmp_path), ["a", "b", "c"])
    for worker in ("c", "a", "b"):
        assert not run.is_over(is_there)
        run.absorb(worker, report(run, worker))

    assert run.is_over(is_there)
    saved = run.judged(LOCUST, ("numpy",))
    planned = [arrival.request.logical_request for arrival in run.plan.clients().arrivals()]
    assert sorted(saved.table.logical_request.tolist()) == planned
    assert (saved.record.verdict, saved.record.started_at) == ("PASS", "2001-09-09T01:46:40.000+00:00")
    assert {"python", "numpy"} <= set(saved.record.versions)


def test_a_worker_that_is_gone_is_not_waited_for_and_makes_the_run_invalid(tmp_path: Path) -> None:
    run = SharedRun(order(tmp_path), ["a", "b"])
    run.absorb("a", report(run, "a"))

    assert run.is_over(lambda worker: worker != "b")
    record = run.judged(LOCUST, (), lost=["b"]).record
    assert (record.verdict, record.problems) == (
        "INVALID",
        ("1 of 2 workers were lost, with their shares of the plan",),
    )


def test_a_run_that_was_stopped_is_invalid_and_has_what_there_is(tmp_path: Path) -> None:
    run = SharedRun(order(tmp_path), ["a"])
    run.absorb("a", report(run, "a", is_over=False))

    saved = run.judged(LOCUST, ())
    assert saved.record.verdict == "INVALID"
    assert "interrupted" in saved.record.problems[0]
    assert len(saved.table) > 0


def test_requests_without_an_answer_and_workers_that_fail_make_the_run_invalid(tmp_path: Path) -> None:
    run = SharedRun(order(tmp_path), ["a", "b"])
    run.absorb("a", report(run, "a", num_unanswered=3))
    run.absorb("b", report(run, "b", failure="RuntimeError: a bug"))

    problems = run.judged(LOCUST, ()).record.problems
    assert problems == (
        "a worker failed: RuntimeError: a bug",
        "3 requests had no answer 3600 s after the last was due",
    )


def test_reports_of_another_run_and_of_strangers_are_left_alone(tmp_path: Path) -> None:
    """A worker may report late, after the next run has begun."""
    run = SharedRun(order(tmp_path), ["a"])
    other = WorkerReport(run_id="another", taken=report(run, "a").taken, is_over=True)
    run.absorb("a", other)
    run.absorb("b", report(run, "a"))

    assert not run.is_over(is_there)
    assert run.log.health().sent == 0


def test_an_order_that_can_not_be_carried_out_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="above 0 and at most 1"):
        SharedRun(order(tmp_path, rate_fraction=0.0), ["a"])
