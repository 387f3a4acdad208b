from prometheus_client.parser import text_string_to_metric_families

from deployments.telemetry.collectors import REPLICA_GAUGES
from deployments.telemetry.metrics import GatewayMetrics
from deployments.telemetry.service_metrics import ServiceMetrics
from deployments.wire.fleet_registry import SeenReplica
from policies import EjectionReason, Reason
from routing import Ejection, Outcome, OutcomeKind, Placement
from routing.intake.slos import NO_SLOS, of_lane
from routing.lanes.lanes import Lane
from tests.deployments.metrics_text import text_of

COMPLETED = Outcome(kind=OutcomeKind.COMPLETED)
SHED = Outcome(kind=OutcomeKind.REFUSED, reason=Reason.SHED)


def samples(metrics: GatewayMetrics) -> dict[str, float]:
    """Every sample of the page, by name and label values in order of label name."""
    page = text_of(metrics)
    return {
        " ".join([sample.name, *(value for _, value in sorted(sample.labels.items()))]): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def a_replica(replica_id: str, **stats: float) -> SeenReplica:
    return SeenReplica(
        replica_id=replica_id,
        node_id="node-1",
        max_ongoing_requests=8,
        metadata={"role": "decode", "pid": 42, "kv_capacity_tokens": 1000},
        stats=stats,
    )


def watching(**pools: tuple[SeenReplica, ...]) -> dict[str, float]:
    """The page of a gateway that knows these replicas."""
    metrics = GatewayMetrics()
    metrics.watch(lambda: pools, lambda: 3, lambda: 2)
    return samples(metrics)


def saying(gauges: dict[str, float]) -> dict[str, float]:
    """The page of a gateway whose dispatcher says this."""
    metrics = GatewayMetrics()
    metrics.watch_lanes((), NO_SLOS, lambda: gauges)
    return samples(metrics)


def test_a_page_without_requests_can_be_read() -> None:
    assert samples(GatewayMetrics())["spillway_requests_open"] == 0


def test_attempts_are_counted_by_replica_and_hedge() -> None:
    metrics = GatewayMetrics()
    for is_hedge in (False, False, True):
        metrics.count_placement(
            Placement(request_id="q", attempt_id="q.0", replica_id="a", num_candidates=2, is_hedge=is_hedge)
        )
    page = samples(metrics)

    assert page["spillway_attempts_total false a"] == 2
    assert page["spillway_attempts_total true a"] == 1


def test_error_responses_are_counted_by_status_and_code() -> None:
    metrics = ServiceMetrics()
    for _ in range(2):
        metrics.count_error(429, "shed")
    found = {(*sample.labels.values(), sample.name): sample.value for each in metrics.own() for sample in each.samples}
    assert found["429", "shed", "spillway_http_errors_total"] == 2


def test_open_and_waiting_requests_are_read_when_somebody_asks() -> None:
    page = watching()
    assert (page["spillway_requests_open"], page["spillway_requests_waiting"]) == (3, 2)


def test_replicas_are_counted_by_pool() -> None:
    page = watching(decode=(a_replica("a"), a_replica("b")), prefill=())
    assert (page["spillway_replicas decode"], page["spillway_replicas prefill"]) == (2, 0)


def test_what_does_not_change_in_a_replicas_life_is_in_its_labels() -> None:
    page = watching(decode=(a_replica("a"),))
    assert page["spillway_replica_info 1000 node-1 42 decode a decode"] == 1


def test_a_replica_that_has_said_nothing_yet_is_there_all_the_same() -> None:
    silent = SeenReplica(replica_id="a", node_id="", max_ongoing_requests=8)
    page = watching(decode=(silent,))
    assert page["spillway_replica_info    decode a "] == 1
    assert not [name for name in page if name.startswith("spillway_replica_kv_tokens")]


def test_everything_that_a_replica_reports_is_on_the_page() -> None:
    stats = {name: float(n) for n, name in enumerate(REPLICA_GAUGES)}
    page = watching(decode=(a_replica("a", **stats),))
    assert {name: page[f"spillway_replica_{name} decode a"] for name in REPLICA_GAUGES} == stats


def test_lanes_are_counted_and_their_borders_shown() -> None:
    lanes = {"lane_requests_total:short": 7, "lane_requests_total:long": 2, "lane_border_tokens:long": 1024.0}
    page = saying({**lanes, "prompt_drift": 0.25, "lanes_on": 1.0, "nobody_knows:long": 3.0})

    assert page["spillway_lane_requests_total short"] == 7
    assert page["spillway_lane_requests_total long"] == 2
    assert page["spillway_lane_border_tokens long"] == 1024
    assert page["spillway_prompt_drift"] == 0.25
    assert page["spillway_lanes_on"] == 1
    assert not [name for name in page if "nobody_knows" in name]


def test_changes_of_lengths_are_counted() -> None:
    page = saying({"length_changes_total:all": 2.0})
    assert page["spillway_length_changes_total all"] == 2


def test_who_waits_is_shown_by_class_and_queue() -> None:
    page = saying(
        {
            "queue_requests:critical:unified:short<long": 2.0,
            "queue_work_seconds:critical:unified:short<long": 0.5,
            "queue_oldest_age_seconds:critical:unified:short<long": 1.5,
            "queue_requests:standard:prefill": 0.0,
        }
    )

    assert {name: value for name, value in page.items() if name.startswith("spillway_queue")} == {
        "spillway_queue_requests critical unified:short<long unified:short<long": 2.0,
        "spillway_queue_work_seconds critical unified:short<long unified:short<long": 0.5,
        "spillway_queue_oldest_age_seconds critical unified:short<long unified:short<long": 1.5,
        "spillway_queue_requests standard prefill prefill": 0.0,
    }


def test_a_dispatcher_without_lanes_has_no_borders() -> None:
    assert not [name for name in saying({"lane_requests_total:all": 3}) if "border" in name or "drift" in name]


def test_kept_and_broken_promises_begin_at_0_for_every_lane_that_makes_them() -> None:
    lanes = (
        Lane(name="quick", pools=("a",), ttft_slo_s=1.0, tpot_slo_s=0.5),
        Lane(name="slow", pools=("a",), ttft_slo_s=9.0),
        Lane(name="any", pools=("a",)),
    )
    metrics = GatewayMetrics()
    metrics.watch_lanes(lanes, NO_SLOS, dict)

    page = samples(metrics)

    promised = {
        name.removeprefix("spillway_lane_slo_total "): page[name] for name in page if "spillway_lane_slo_t" in name
    }
    made = (("quick", "ttft"), ("quick", "tpot"), ("slow", "ttft"))
    assert promised == {f"{lane} {met} {slo}": 0 for lane, slo in made for met in ("true", "false")}


def test_a_promise_that_was_kept_is_counted_beside_the_0_of_those_that_were_not() -> None:
    lane = Lane(name="quick", pools=("a",), ttft_slo_s=1.0)
    metrics = GatewayMetrics()
    metrics.watch_lanes((lane,), NO_SLOS, dict)
    metrics.count_slos(lane.name, of_lane(lane).limits_s(1), ttft_s=0.5, tpot_s=9.0)
    page = samples(metrics)

    assert page["spillway_lane_slo_total quick true ttft"] == 1
    assert page["spillway_lane_slo_total quick false ttft"] == 0


def test_ejections_are_counted_by_pool_and_reason() -> None:
    metrics = GatewayMetrics()
    for reason in (EjectionReason.TOKENS, EjectionReason.FAILURES, EjectionReason.FAILURES):
        metrics.count_ejection(Ejection(replica_id="a", pool="decode", reason=reason, until_s=30.0))
    page = samples(metrics)

    assert page["spillway_ejections_total decode tokens"] == 1
    assert page["spillway_ejections_total decode failures"] == 2


def test_a_gauge_says_how_many_replicas_of_a_pool_are_out() -> None:
    page = saying({"ejected_replicas:prefill": 0.0, "ejected_replicas:decode": 2.0})
    assert (page["spillway_ejected_replicas prefill"], page["spillway_ejected_replicas decode"]) == (0, 2)
