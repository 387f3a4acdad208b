"""What one run against a deployment comes to: metrics, checks, and whether it proves anything."""

import io
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.console import Console

from cluster.sim.run_table import UNKNOWN, RunTable
from loadtests.drivers.lane_stats import lane_stats
from loadtests.drivers.live_run import LivePlan, LiveResult, discover_model, judged, plan_of
from loadtests.drivers.live_table import show
from loadtests.results.run_folder import LOCUST, SavedRun
from loadtests.results.run_record import RequestDetails
from loadtests.simulation.junit import write_junit
from loadtests.workloads.clients import AbandonedRequest
from policies.errors import ConfigError
from tests.loadtests.completion_server import CompletionServer
from tests.loadtests.live_scenarios import health, write_scenario
from tests.loadtests.run_tables import RequestRow, run_table, served

OK = served(0, 0.1, 0.2, 0.6, 5)
REFUSED = RequestRow(logical_request=1, at_s=0.2, e2e_s=0.1, outcome="refused", reason="shed")


def table_of(*requests: RequestRow) -> RunTable:
    return run_table(*requests, classes=("short", "long"))


def run_of(path: Path, *requests: RequestRow, **measured: Any) -> SavedRun:
    plan = plan_of(str(path), seed=1, rate_fraction=1.0, salt="test")
    values: dict[str, Any] = {"driver": LOCUST, "target": "http://host", "started_at": "", "health": health()}
    return judged(
        plan,
        LiveResult(**values | {"table": table_of(*requests), "details": [RequestDetails()] * len(requests)} | measured),
    )


def test_a_valid_run_whose_checks_are_met_passes(tmp_path: Path) -> None:
    record = run_of(write_scenario(tmp_path), OK).record

    assert (record.verdict, record.problems) == ("PASS", ())
    assert [(check.text, check.verdict, check.value) for check in record.checks] == [
        ("ok_fraction of all >= 0.99", "met", 1.0)
    ]


def test_a_missed_check_fails_the_run(tmp_path: Path) -> None:
    record = run_of(write_scenario(tmp_path), OK, REFUSED).record

    assert (record.verdict, record.checks[0].verdict, record.checks[0].value) == ("FAIL", "missed", 0.5)
    assert "not served: shed 1" in record.notes


def test_a_check_on_hedges_is_left_open_because_http_does_not_tell(tmp_path: Path) -> None:
    """Hedges that nobody counted would meet any limit."""
    scenario = write_scenario(tmp_path, checks=[{"metric": "hedges_per_request", "at_most": 0.05}])
    record = run_of(scenario, replace(OK, attempts=UNKNOWN, hedges=UNKNOWN)).record

    assert (record.verdict, record.checks[0].verdict) == ("INVALID", "not judged")
    assert "hedges_per_request" not in record.metrics["all"]


def test_what_a_reader_has_to_know_of_the_measuring_is_in_the_notes(tmp_path: Path) -> None:
    assert run_of(write_scenario(tmp_path), OK, notes=["3 looks were lost"]).record.notes[-1] == "3 looks were lost"


def test_an_unhealthy_client_makes_the_run_invalid_and_not_slow(tmp_path: Path) -> None:
    """Even where a check is missed, because nobody knows by whose fault."""
    record = run_of(write_scenario(tmp_path), OK, REFUSED, health=health(send_lag_p99_s=1.0)).record

    assert record.verdict == "INVALID"
    assert "sent 1000.0 ms late" in record.problems[0]


def test_what_the_driver_found_wrong_makes_the_run_invalid(tmp_path: Path) -> None:
    assert run_of(write_scenario(tmp_path), OK, problems=["it was interrupted"]).record.verdict == "INVALID"


def test_a_run_without_requests_proves_nothing(tmp_path: Path) -> None:
    record = run_of(write_scenario(tmp_path)).record

    assert record.verdict == "INVALID"
    assert "nothing was wanted from 0 s to 1 s" in record.problems[0]


BASELINE = {"metric": "ttft_p50_s", "against": "random", "at_most": 0.5}
RARE = {"metric": "ttft_p99_s", "at_most": 1.0}


def test_checks_that_one_run_can_not_judge_are_left_open_beside_one_that_is_judged(tmp_path: Path) -> None:
    """A baseline takes another run; a p99 takes a thousand samples. Neither makes the run invalid."""
    checks = [BASELINE, RARE, {"metric": "ok_fraction", "at_least": 0.99}]
    record = run_of(write_scenario(tmp_path, checks=checks), OK).record

    assert record.verdict == "PASS"
    assert [check.verdict for check in record.checks] == ["not judged", "not judged", "met"]
    assert record.checks[0].text == "ttft_p50_s of all / random's <= 0.5"
    assert record.checks[0].problem == "needs a run of random to compare with"
    assert "1 samples, and it takes 1,000" in record.checks[1].problem


def test_a_run_none_of_whose_checks_can_be_judged_does_not_pass(tmp_path: Path) -> None:
    """However well it went: nobody has said what well would be."""
    record = run_of(write_scenario(tmp_path, checks=[BASELINE, RARE]), OK).record

    assert record.verdict == "INVALID"
    assert "none of the 2 checks could be judged by this run alone" in record.problems[0]


def test_a_scenario_without_checks_passes_when_anything_is_answered(tmp_path: Path) -> None:
    path = write_scenario(tmp_path, checks=[])

    assert run_of(path, OK).record.verdict == "PASS"
    assert run_of(path, REFUSED).record.problems == ("no request was answered, and no check says what that means",)


def test_percentiles_of_few_requests_are_not_printed(tmp_path: Path) -> None:
    details = [RequestDetails(lane="fast", longest_gap_s=0.1)] * 30
    requests = [served(each, 0.1, 0.2, 0.6, 5) for each in range(30)]
    out = io.StringIO()
    show(run_of(write_scenario(tmp_path), *requests, details=details), Console(file=out, width=160))

    (line,) = (each for each in out.getvalue().splitlines() if "fast" in each)
    assert line.count("too few") == 2  # of the p99 of two metrics
    assert "100.0" in line
    assert "nan" not in out.getvalue()


def test_answers_that_are_nearly_all_too_short_prove_nothing(tmp_path: Path) -> None:
    """A server that cuts everything short would look fast."""
    record = run_of(write_scenario(tmp_path), OK, health=health(wrong_lengths=11)).record

    assert record.verdict == "INVALID"
    assert "11 answers had another number of tokens than was asked for" in record.problems[0]


def test_what_waits_for_a_retry_was_wanted_all_the_same(tmp_path: Path) -> None:
    waiting = RequestRow(logical_request=1, at_s=0.2, e2e_s=0.1, outcome="refused", reason="shed", is_last=False)
    record = run_of(write_scenario(tmp_path), waiting, problems=["1 requests had no answer"]).record

    assert not any("nothing was wanted" in problem for problem in record.problems)


@pytest.mark.parametrize("duration_s", [float("inf"), float("nan"), 0.0, -5.0])
def test_a_duration_is_a_time_that_ends(duration_s: float, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="duration"):
        plan_of(str(write_scenario(tmp_path)), seed=1, rate_fraction=1.0, salt="", duration_s=duration_s)


def test_names_with_markup_are_printed_as_they_are(tmp_path: Path) -> None:
    out = io.StringIO()
    show(run_of(write_scenario(tmp_path), OK, details=[RequestDetails(lane="[/bold]")]), Console(file=out, width=160))

    assert "[/bold]" in out.getvalue()


def test_turns_that_were_never_sent_are_misses(tmp_path: Path) -> None:
    lost = AbandonedRequest(
        logical_request=9, session=8, traffic_class=0, scheduled_s=0.3, abandoned_s=0.2, prompt_tokens=9
    )
    saved = run_of(write_scenario(tmp_path), OK, abandoned=[lost])

    assert saved.record.metrics["all"]["ok_fraction"].value == 0.5
    assert len(saved.details) == len(saved.table) == 2


def test_answers_of_another_length_and_faults_that_did_not_happen_are_noted(tmp_path: Path) -> None:
    fault = {"kind": "crash", "role": "unified", "replica": 0, "at_s": 0.5, "for_s": 0.2}
    record = run_of(write_scenario(tmp_path, faults=[fault]), OK, health=health(wrong_lengths=2)).record

    assert "2 answers had another number of tokens than was asked for" in record.notes
    assert any("nothing went wrong that nobody switched on" in note for note in record.notes)


def test_junit_has_a_case_for_validity_and_one_for_each_check(tmp_path: Path) -> None:
    checks = [{"metric": "ok_fraction", "at_least": 0.99}, {"metric": "ttft_p99_s", "at_most": 1.0}]
    saved = run_of(write_scenario(tmp_path, checks=checks), OK, REFUSED, problems=["it was interrupted"])
    write_junit(tmp_path / "junit.xml", saved.record)

    suite = ElementTree.parse(tmp_path / "junit.xml").getroot()
    assert [suite.get(name) for name in ("tests", "failures", "errors", "skipped")] == ["3", "1", "1", "1"]
    validity, missed, open_one = suite
    assert [each.get("message") for each in validity] == ["it was interrupted"]
    assert [each.tag for each in (*missed, *open_one)] == ["failure", "skipped"]


def test_each_lane_and_class_has_a_line() -> None:
    table = table_of(OK, served(2, 0.1, 0.4, 0.8, 5), served(3, 0.1, 0.3, 0.5, 5, traffic_class=1), REFUSED)
    details = [
        RequestDetails(lane="a", longest_gap_s=0.1),
        RequestDetails(lane="a"),
        RequestDetails(lane="b"),
        RequestDetails(),
    ]
    lines = lane_stats(table, details)

    assert [(line.lane, line.traffic_class, line.requests, line.completed) for line in lines] == [
        ("", "short", 1, 0),
        ("a", "short", 2, 2),
        ("b", "long", 1, 1),
    ]
    assert lines[1].ttft_p50_ms == pytest.approx(300)
    assert lines[1].tpot_p50_ms == pytest.approx(100)
    assert lines[1].longest_gap_p99_ms == pytest.approx(100)


async def test_the_model_is_the_first_that_the_endpoint_serves() -> None:
    async with CompletionServer() as server:
        assert await server.in_a_thread(discover_model, server.url) == "served-model"


def test_a_host_that_does_not_answer_is_named() -> None:
    with pytest.raises(ConfigError, match=r"--host: got 'http://127.0.0.1:9'; allowed: the base URL"):
        discover_model("http://127.0.0.1:9")


@pytest.mark.parametrize(
    ("models", "why"),
    [
        pytest.param(b'{"data": []}', "serves no model", id="no-model"),
        pytest.param(b"<html>hello</html>", "no list of models", id="html"),
        pytest.param(b'{"data": [{"name": "m"}]}', "no list of models", id="no-id"),
    ],
)
async def test_a_host_that_is_no_openai_endpoint_says_what_is_wrong(models: bytes, why: str) -> None:
    async with CompletionServer(models=models) as server:
        with pytest.raises(ConfigError, match=why):
            await server.in_a_thread(discover_model, server.url)


def test_a_duration_of_ones_own_replaces_the_scenarios(tmp_path: Path) -> None:
    plan = plan_of(str(write_scenario(tmp_path)), seed=1, rate_fraction=1.0, salt="", duration_s=0.5)

    assert isinstance(plan, LivePlan)
    assert plan.scenario.duration_s == 0.5
    assert plan.part().duration_s == 0.5
