"""What a gateway reads when somebody asks: its replicas' reports, and its dispatcher's lanes, pools and queues."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from deployments.telemetry.work.replica_estimates import ESTIMATES, Estimate
from deployments.wire.fleet_registry import SeenReplica

REPLICA_GAUGES = {
    "num_requests_running": "Requests in the engine's batch.",
    "num_requests_waiting": "Requests that wait inside the engine.",
    "kv_cache_usage": "Fraction of KV blocks in use, 0 to 1.",
    "prefill_tokens": "Prompt tokens that open attempts still have to compute.",
    "kv_tokens": "KV tokens that open attempts are expected to hold at their longest.",
    "is_warm": "1 while it takes no requests until it is needed, else 0.",
    "is_canary": "1 while its engine tries other arguments than its pool's, else 0.",
    "attempts_total": "Attempts that the replica has taken since it started.",
    "prompt_tokens_total": "Prompt tokens taken in since the engine started.",
    "output_tokens_total": "Tokens emitted since the engine started.",
    "kv_tokens_received_total": "Prompt tokens whose KV came from a prefill replica.",
    "kv_bytes_received_total": "Bytes of KV that came from a prefill replica.",
    "kv_transfer_failures_total": "KV transfers that failed; the others are in request_stage_seconds, kv_transfer.",
    "draft_tokens_total": "Tokens that drafts have proposed, with speculative decoding.",
    "accepted_tokens_total": "Those of them that the model agreed with.",
    "adapter_loads_total": "LoRA adapters that the engine has loaded.",
}
LANE_GAUGES = {
    "lane_requests_total": "Requests that were put in the lane.",
    "lane_demotions_total": "Requests whose answers exceeded the lane's length.",
    "lane_border_tokens": "Shortest prompt of the lane, where borders adapt.",
    "shed_fraction": "Part of the work that is shed now, 0 to 1.",
    "followers": "Requests that wait, in no queue, until another one with their prompt has got further.",
    "lanes_on": "1 unless the guard has turned lanes off where prompts are computed, else 0.",
    "prompt_drift": "Jensen-Shannon distance of the last prompts' lengths to those that borders were set for, 0 to 1.",
}
QUEUE_GAUGES = {
    "queue_requests": "Requests of a class that wait in a queue.",
    "queue_work_seconds": "Their work, service-seconds of one replica; 0 without an engine profile.",
    "queue_oldest_age_seconds": "How long ago the oldest of them arrived; 0 where none waits.",
}
LENGTH_GAUGES = {
    "length_changes_total": "Times that answers were noticed to be no longer what they were: all, or one group's own.",
}
POOL_GAUGES = {
    "ejected_replicas": "Replicas that the gateway has ejected now.",
    "target_replicas": "Replicas that a pool has or will have, where policies.scaling changes its size.",
    "starting_replicas": "Those of them that start.",
    "changing_replicas": "Those of these that had the role of the pool's other side, and finish what they have of it.",
    "draining_replicas": "Replicas that were taken away and finish what they have, besides.",
    "warm_replicas": "Replicas that have started and take no requests until they are needed, besides.",
}
ReplicasByPool = Mapping[str, tuple[SeenReplica, ...]]


class FleetCollector(Collector):
    """Which replicas there are and what a gateway can say of them, when somebody asks.

    Args:
        replicas: What they report.
        estimate: What else can be said of each.
    """

    def __init__(self, replicas: Callable[[], ReplicasByPool], estimate: Estimate) -> None:
        self._replicas = replicas
        self._estimate = estimate

    def collect(self) -> Iterator[Metric]:
        pools = self._replicas()
        up = GaugeMetricFamily(
            "spillway_replicas", "Replicas that are up, but for those that are warm.", labels=["pool"]
        )
        for pool, replicas in pools.items():
            up.add_metric([pool], sum(not each.is_warm for each in replicas))
        yield up
        yield _info(pools)
        said = [(pool, each, self._estimate(each)) for pool, replicas in pools.items() for each in replicas]
        yield from _of_replicas(ESTIMATES, said)


class ReportCollector(Collector):
    """What replicas say of themselves, when somebody asks.

    Args:
        replicas: What they report.
    """

    def __init__(self, replicas: Callable[[], ReplicasByPool]) -> None:
        self._replicas = replicas

    def collect(self) -> Iterator[Metric]:
        said = [(pool, each, each.stats) for pool, replicas in self._replicas().items() for each in replicas]
        yield from _of_replicas(REPLICA_GAUGES, said)


def reported(pool: str, replica: SeenReplica) -> Iterator[Metric]:
    """What a replica reports, for its own process to export."""
    yield from _of_replicas(REPLICA_GAUGES, [(pool, replica, replica.stats)])


def _of_replicas(
    texts: Mapping[str, str], said: Sequence[tuple[str, SeenReplica, Mapping[str, Any]]]
) -> Iterator[Metric]:
    """What is known of each replica of each pool; the rest is left out."""
    for name, text in texts.items():
        kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
        family = kind(f"spillway_replica_{name}", text, labels=["pool", "replica"])
        for pool, replica, values in said:
            if name in values:
                family.add_metric([pool, replica.replica_id], float(values[name]))
        yield family


class LaneCollector(Collector):
    """Turns what a dispatcher says of lanes, pools and queues into metrics when somebody asks; the rest is left out."""

    def __init__(self, gauges: Callable[[], Mapping[str, float]]) -> None:
        self._gauges = gauges

    def collect(self) -> Iterator[Metric]:
        said = [(*key.partition(":")[::2], value) for key, value in self._gauges().items()]
        for name, text in LANE_GAUGES.items():
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            found = [(lane, value) for its_name, lane, value in said if its_name == name]
            if found:
                has_lanes = any(lane for lane, _ in found)
                family = kind(f"spillway_{name}", text, labels=["lane"] if has_lanes else [])
                for lane, value in found:
                    family.add_metric([lane] if has_lanes else [], value)
                yield family
        for label, texts in (("pool", POOL_GAUGES), ("of", LENGTH_GAUGES)):
            for name, text in texts.items():
                yield _by(label, name, text, [(its, value) for its_name, its, value in said if its_name == name])
        for name, text in QUEUE_GAUGES.items():
            yield _by_class_and_queue(
                name, text, [(place, value) for its_name, place, value in said if its_name == name]
            )


def _by(label: str, name: str, text: str, said: Iterable[tuple[str, float]]) -> Metric:
    """One thing that is known of each of several, told apart by a label."""
    kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
    family = kind(f"spillway_{name}", text, labels=[label])
    for its, value in said:
        family.add_metric([its], value)
    return family


def _by_class_and_queue(name: str, text: str, said: Iterable[tuple[str, float]]) -> Metric:
    """One thing that is known of every class in every queue, as ``(class:queue, value)``.

    ``line`` is the label's name until 0.1, and says the same.
    """
    family = GaugeMetricFamily(f"spillway_{name}", text, labels=["class", "queue", "line"])
    for place, value in said:
        priority, _, queue = place.partition(":")
        family.add_metric([priority, queue, queue], value)
    return family


def _info(pools: ReplicasByPool) -> Metric:
    """What does not change in a replica's life, as labels of a constant."""
    family = GaugeMetricFamily(
        "spillway_replica_info",
        "Always 1; the labels are what does not change while a replica lives.",
        labels=["pool", "replica", "role", "node", "pid", "kv_capacity_tokens"],
    )
    for pool, replicas in pools.items():
        for replica in replicas:
            said = replica.metadata
            labels = [pool, replica.replica_id, said.get("role", ""), replica.node_id]
            family.add_metric([*labels, str(said.get("pid", "")), str(said.get("kv_capacity_tokens", ""))], 1.0)
    return family
