"""Both live drivers send the same plan, and measure what the server is known to take."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cluster.sim.run_table import OUTCOMES, REASONS
from loadtests.results.run_folder import ASYNCIO, LOCUST, SavedRun, read
from tests.loadtests.live_drivers import http_command, locust_command, run
from tests.loadtests.live_scenarios import write_scenario
from tests.loadtests.timed_server import AGAIN, ITL_S, REFUSED, RETRY_AFTER_S, TIMED, TTFT_S, timed_server
from tests.tables import for_each

THINK_S = 0.1
TOLERANCE = 0.05
MOST_ATTEMPTS, MOST_LAG_S = 5, 0.03
"""A client that is later than this measures itself, not even medians; on a busy machine the run is repeated."""


def traffic_class(name: str, output_tokens: int, rate_per_s: float, **fields: Any) -> dict[str, Any]:
    arrivals = {"poisson": {"rate_per_s": rate_per_s}}
    return {
        "name": name,
        "arrivals": arrivals,
        "prompt_tokens": 20,
        "output_tokens": output_tokens,
        "timeout_s": 30,
        **fields,
    }


CLASSES = [
    traffic_class("timed", TIMED, 12.0),
    traffic_class("refused", REFUSED, 2.0),
    traffic_class("again", AGAIN, 2.0),
    traffic_class(
        "talk",
        TIMED,
        2.0,
        for_s=1.5,
        sessions={"turns": {"constant": {"num_turns": 2}}, "think": {"constant": {"duration_s": THINK_S}}},
    ),
]
NAMES = [each["name"] for each in CLASSES]
PLAN: dict[str, Any] = {
    "workload": {"classes": CLASSES},
    "duration_s": 3.0,
    "slos": {name: {"ttft_s": 60.0} for name in NAMES},
    "clients": {"max_requests": 2, "backoff_s": 0.01},
    "checks": [{"metric": "ok_fraction", "class": "timed", "at_least": 0.99}],
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, SavedRun]]:
    folder = tmp_path_factory.mktemp("agree")
    scenario = write_scenario(folder, name="agree", **PLAN)
    with timed_server() as url:
        http = http_command(scenario, url, "--save", str(folder / ASYNCIO))
        locust = locust_command(scenario, url, "--headless", "--save", str(folder / LOCUST))
        yield {ASYNCIO: usable_run(http, folder / ASYNCIO), LOCUST: usable_run(locust, folder / LOCUST)}


def usable_run(command: list[str], folder: Path) -> SavedRun:
    lags_s = []
    for _ in range(MOST_ATTEMPTS):
        process = run(command)
        assert (folder / "run.json").exists(), process.stderr
        saved = read(folder)
        assert process.returncode == {"PASS": 0, "FAIL": 1, "INVALID": 2}[saved.record.verdict], process.stderr
        assert saved.record.health is not None
        lags_s.append(saved.record.health.send_lag_p99_s)
        if lags_s[-1] < MOST_LAG_S:
            return saved
    late = ", ".join(f"{1e3 * lag_s:.0f} ms" for lag_s in lags_s)
    pytest.fail(f"{folder.name} was late in each of {MOST_ATTEMPTS} runs (p99 of the send lag: {late}): a busy machine")


def rows_of(saved: SavedRun, name: str) -> NDArray[np.bool_]:
    mask: NDArray[np.bool_] = saved.table.traffic_class == NAMES.index(name)
    return mask


def median_s(saved: SavedRun, latency: str) -> float:
    table, mask = saved.table, rows_of(saved, "timed")
    if latency == "ttft":
        return float(np.median((table.first_token_s - table.scheduled_s)[mask]))
    return float(np.median(((table.end_s - table.first_token_s) / (table.output_tokens - 1))[mask]))


def first_requests(saved: SavedRun) -> dict[int, tuple[float, int]]:
    """When each logical request of the plan was due and how long its prompt is; later turns follow from the answers."""
    table = saved.table
    opens = (table.retry_index == 0) & ((table.session < 0) | (table.session == table.logical_request))
    columns = (table.logical_request[opens], table.scheduled_s[opens], table.prompt_tokens[opens])
    return {
        logical_request: (due_s, tokens)
        for logical_request, due_s, tokens in zip(*(each.tolist() for each in columns), strict=True)
    }


def test_both_send_the_same_logical_requests_at_the_same_times(runs: dict[str, SavedRun]) -> None:
    assert first_requests(runs[ASYNCIO]) == first_requests(runs[LOCUST])
    assert len(first_requests(runs[LOCUST])) > 30


@for_each(("latency", "truth_s"), [("ttft", TTFT_S), ("tpot", ITL_S)])
def test_both_measure_what_the_server_takes(runs: dict[str, SavedRun], latency: str, truth_s: float) -> None:
    """Within 5% of the truth, and of each other."""
    asyncio_s, locust_s = median_s(runs[ASYNCIO], latency), median_s(runs[LOCUST], latency)

    assert asyncio_s == pytest.approx(truth_s, rel=TOLERANCE, abs=0.0)
    assert locust_s == pytest.approx(truth_s, rel=TOLERANCE, abs=0.0)
    assert asyncio_s == pytest.approx(locust_s, rel=TOLERANCE, abs=0.0)


@for_each("driver", [ASYNCIO, LOCUST])
def test_gaps_between_tokens_are_seen_one_by_one(runs: dict[str, SavedRun], driver: str) -> None:
    """A reader that waits for blocks would see none of them and one that is long."""
    saved = runs[driver]
    timed = np.flatnonzero(rows_of(saved, "timed"))

    assert 0.75 * ITL_S < np.median([saved.details[row].longest_gap_s for row in timed]) < TIMED * ITL_S / 2
    assert {saved.details[row].lane for row in timed} == {"fast"}
    assert set(saved.table.output_tokens[timed].tolist()) == {TIMED}


@for_each("driver", [ASYNCIO, LOCUST])
def test_a_refusal_has_its_reason_and_is_final_where_the_service_says_so(
    runs: dict[str, SavedRun], driver: str
) -> None:
    table, mask = runs[driver].table, rows_of(runs[driver], "refused")

    assert mask.any()
    assert {OUTCOMES[number] for number in table.outcome[mask]} == {"refused"}
    assert {REASONS[number] for number in table.reason[mask]} == {"shed"}
    assert set(table.retry_index[mask].tolist()) == {0}


@for_each("driver", [ASYNCIO, LOCUST])
def test_a_retry_comes_after_retry_after(runs: dict[str, SavedRun], driver: str) -> None:
    table, mask = runs[driver].table, rows_of(runs[driver], "again")
    first, second = (mask & (table.retry_index == number) for number in (0, 1))
    ended_s = dict(zip(table.logical_request[first].tolist(), table.end_s[first].tolist(), strict=True))
    sent_s = dict(zip(table.logical_request[second].tolist(), table.sent_s[second].tolist(), strict=True))

    assert ended_s.keys() == sent_s.keys() != set()
    assert all(sent_s[logical_request] >= ended_s[logical_request] + RETRY_AFTER_S for logical_request in ended_s)
    assert {OUTCOMES[number] for number in table.outcome[second]} == {"completed"}


@for_each("driver", [ASYNCIO, LOCUST])
def test_the_second_turn_waits_for_the_first_answer(runs: dict[str, SavedRun], driver: str) -> None:
    table, mask = runs[driver].table, rows_of(runs[driver], "talk")
    end_s = dict(zip(table.logical_request[mask].tolist(), table.end_s[mask].tolist(), strict=True))
    sent_s = dict(zip(table.logical_request[mask].tolist(), table.sent_s[mask].tolist(), strict=True))
    begun = [int(each) for each in table.session[mask] if int(each) in end_s]

    assert len(begun) == mask.sum() > 2
    assert all(sent_s[session + 1] >= end_s[session] + THINK_S for session in begun if session + 1 in sent_s)
