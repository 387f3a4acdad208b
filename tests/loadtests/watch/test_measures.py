"""What is read of a deployment's own metrics, and of its client's."""

from loadtests.watch.gateway_page import MetricsPage
from loadtests.watch.measures import binding, of_client, of_gateways
from policies.capacity.bounds import Bound, Verdict
from tests.loadtests.live_scenarios import health
from tests.loadtests.run_tables import RequestRow, run_table
from tests.tables import for_each

COUNTED = """
# TYPE spillway_requests counter
spillway_requests_total{outcome="completed",reason=""} 3.0
# TYPE spillway_attempts counter
spillway_attempts_total{hedge="false",replica="a"} 2.0
spillway_attempts_total{hedge="false",replica="b"} 1.0
spillway_attempts_total{hedge="true",replica="b"} 1.0
# TYPE spillway_replica_attempts counter
spillway_replica_attempts_total{pool="unified",replica="a"} 2.0
spillway_replica_attempts_total{pool="unified",replica="b"} 2.0
# TYPE spillway_replica_prompt_tokens counter
spillway_replica_prompt_tokens_total{pool="unified",replica="a"} 200.0
spillway_replica_prompt_tokens_total{pool="unified",replica="b"} 115.0
# TYPE spillway_hedge_races counter
spillway_hedge_races_total{hedge_won="true"} 1.0
# TYPE spillway_superseded_prompt_tokens counter
spillway_superseded_prompt_tokens_total 30.0
# TYPE spillway_cancel_seconds histogram
spillway_cancel_seconds_bucket{le="0.005"} 0.0
spillway_cancel_seconds_bucket{le="0.01"} 1.0
spillway_cancel_seconds_bucket{le="+Inf"} 1.0
spillway_cancel_seconds_count 1.0
spillway_cancel_seconds_sum 0.008
"""
TAKEN = 'attempts_total{pool="unified",replica="%s"}'
ONE_FEWER = f"{TAKEN % 'b'} 2.0", f"{TAKEN % 'b'} 1.0"
NOBODY_STOPPED = COUNTED.replace("seconds_count 1.0", "seconds_count 0.0")
ALL_COMPLETED = ("completed", "completed", "completed")


def measured(
    text: str = COUNTED, outcomes: tuple[str, ...] = ALL_COMPLETED, wrong_lengths: int = 0
) -> dict[str, float]:
    rows = [RequestRow(logical_request=number, outcome=outcome) for number, outcome in enumerate(outcomes)]
    found = of_gateways(run_table(*rows), wrong_lengths, MetricsPage(), MetricsPage.parse(text), ["b"])
    return {name: each.value for name, each in found.items()}


def test_second_attempts_and_what_they_cost_are_what_gateways_count() -> None:
    found = measured()

    assert [found[name] for name in ("hedges", "hedges_to_slowed", "hedges_won", "hedges_lost")] == [1, 1, 1, 0]
    assert round(found["superseded_prompt_fraction"], 6) == 0.1
    assert round(found["recomputed_prompt_fraction"], 6) == 0.05
    assert [found[name] for name in ("cancelled_attempts", "cancel_mean_s", "cancel_max_s")] == [1, 0.008, 0.01]
    assert [found[name] for name in ("misplaced_attempts", "untaken_attempts", "unanswered_requests")] == [0, 0, 0]


def test_only_what_has_been_counted_since_the_run_began_is_the_runs() -> None:
    page = MetricsPage.parse(COUNTED)
    found = of_gateways(run_table(), 0, page, page, ["b"])

    assert found["hedges"].value == found["cancelled_attempts"].value == 0


@for_each(
    ("text", "outcomes", "wrong_lengths"),
    [
        (COUNTED.replace('reason=""} 3.0', 'reason=""} 2.0'), ("completed", "completed", "cancelled"), 0),
        (COUNTED, ALL_COMPLETED, 1),
        (COUNTED.replace('reason=""} 3.0', 'reason=""} 4.0'), ALL_COMPLETED, 0),
    ],
    ids=["given up", "too long", "answered twice"],
)
def test_a_request_is_answered_once_and_with_all_its_tokens_or_counts_as_unanswered(
    text: str, outcomes: tuple[str, ...], wrong_lengths: int
) -> None:
    assert measured(text, outcomes, wrong_lengths)["unanswered_requests"] == 1


@for_each(
    ("text", "misplaced", "untaken"),
    [
        (NOBODY_STOPPED.replace(f"{TAKEN % 'a'} 2.0", f"{TAKEN % 'a'} 3.0").replace(*ONE_FEWER), 2, 0),
        (COUNTED.replace(*ONE_FEWER), 0, 1),
        (NOBODY_STOPPED.replace(*ONE_FEWER), 1, 1),
    ],
    ids=["one too few and one too many", "stopped at once", "lost"],
)
def test_an_attempt_runs_where_it_was_sent_or_was_stopped_before(text: str, misplaced: int, untaken: int) -> None:
    found = measured(text)

    assert (found["misplaced_attempts"], found["untaken_attempts"]) == (misplaced, untaken)


def lost_to(**seconds: float) -> MetricsPage:
    lines = (
        f'spillway_request_bound_seconds_total{{bound="{bound}",lane="{lane}"}} {each_s / 2}'
        for bound, each_s in seconds.items()
        for lane in "ab"
    )
    return MetricsPage.parse("\n".join(("# TYPE spillway_request_bound_seconds counter", *lines)) + "\n")


def test_what_requests_lose_is_what_they_took_beyond_an_idle_fleet_since_the_run_began() -> None:
    before, after = lost_to(engine=1.0, queue=9.0), lost_to(engine=5.0, queue=10.0, memory=3.0)
    found = of_gateways(run_table(), 0, before, after, [])

    assert found["lost_fraction"].value == 1.0
    assert (found["lost_to_queue_fraction"].value, found["lost_to_memory_fraction"].value) == (0.25, 0.75)
    assert binding(before, after) == [str(Verdict(Bound.MEMORY, 0.75))]
    assert binding(after, after) == []


def test_what_is_left_behind_is_what_metrics_show_in_the_end() -> None:
    found = measured('spillway_requests_open 2.0\nspillway_replica_kv_cache_usage{replica="a"} 0.25\n')

    assert (found["left_open_requests"], found["left_kv_fraction"]) == (2, 0.25)


def test_errors_that_overload_explains_are_not_held_against_anybody() -> None:
    stated = {"HTTP 429 deadline_unreachable": 5, "HTTP 503 no_replica_available": 1, "HTTP 504 deadline_exceeded": 1}

    assert of_client(run_table(), health(errors=stated))["unstated_errors"].value == 0
    assert of_client(run_table(), health(errors=stated | {"HTTP 500": 2}))["unstated_errors"].value == 2
