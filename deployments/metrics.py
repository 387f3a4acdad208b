"""What a gateway counts, for Prometheus at ``/metrics``.

Names and units follow vLLM and Ray: seconds, tokens, fractions. Nothing is counted per token. Each gateway replica
counts its own requests; what replicas report about themselves is the same whichever gateway answers.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from deployments.client_retries import ToldBy
from deployments.degradation import kinds_of
from deployments.fleet_registry import SeenReplica
from policies.views import RequestView
from routing.effects import (
    Degraded,
    Ejection,
    Outcome,
    OutcomeKind,
    Placement,
    Preemption,
    Race,
    Resumption,
    Retry,
)
from routing.lanes import Lane

LATENCY_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
TOKEN_BUCKETS = (1, 8, 32, 128, 512, 2048, 8192, 32768, 131072)

REPLICA_GAUGES = {
    "num_requests_running": "Requests in the engine's batch.",
    "num_requests_waiting": "Requests that wait inside the engine.",
    "kv_cache_usage": "Fraction of KV blocks in use, 0 to 1.",
    "prefill_tokens": "Prompt tokens that open attempts still have to compute.",
    "kv_tokens": "KV tokens that open attempts are expected to hold at their longest.",
    "attempts_total": "Attempts that the replica has taken since it started.",
    "prompt_tokens_total": "Prompt tokens taken in since the engine started.",
    "output_tokens_total": "Tokens given out since the engine started.",
    "kv_tokens_received_total": "Prompt tokens whose KV came from a prefill replica.",
    "kv_bytes_received_total": "Bytes of KV that came from a prefill replica.",
    "kv_transfer_failures_total": "KV transfers that failed.",
}
LANE_GAUGES = {
    "lane_requests_total": "Requests that were put in the lane.",
    "lane_demotions_total": "Requests whose answers outgrew the lane.",
    "lane_cutoff_tokens": "Shortest prompt of the lane, where cutoffs adapt.",
    "shed_fraction": "Part of the work that is given up now, 0 to 1.",
    "lanes_on": "1 unless the guard has turned lanes off where prompts are computed, else 0.",
    "prompt_drift": "Jensen-Shannon distance of the last prompts' lengths to those that cutoffs were set for, 0 to 1.",
}
QUEUE_GAUGES = {
    "queue_requests": "Requests that wait in the line.",
    "queue_work_seconds": "Their work, as if one replica did nothing else; 0 without an engine profile.",
    "queue_oldest_age_seconds": "How long ago the oldest of them arrived; 0 where nobody waits.",
}
POOL_GAUGES = {"ejected_replicas": "Replicas that this gateway has taken out for a while."}
ReplicasByPool = Mapping[str, tuple[SeenReplica, ...]]


class GatewayMetrics:
    """The counters of one gateway replica."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            "spillway_requests_total", "Requests answered.", ["outcome", "reason"], registry=registry
        )
        self._ttft = Histogram(
            "spillway_time_to_first_token_seconds",
            "From arrival to the first token at the gateway.",
            buckets=LATENCY_BUCKETS_S,
            registry=registry,
        )
        self._e2e = Histogram(
            "spillway_e2e_request_latency_seconds",
            "From arrival to the last token at the gateway, of completed requests.",
            buckets=LATENCY_BUCKETS_S,
            registry=registry,
        )
        self._prompt_tokens = Histogram(
            "spillway_request_prompt_tokens", "Prompt length.", buckets=TOKEN_BUCKETS, registry=registry
        )
        self._attempts = Counter(
            "spillway_attempts_total", "Attempts sent to replicas.", ["replica", "hedge"], registry=registry
        )
        self._preemptions = Counter(
            "spillway_preemptions_total",
            "Attempts of sheddable requests that gave their place to a request that matters more.",
            registry=registry,
        )
        self._races = Counter(
            "spillway_hedge_races_total",
            "Hedged attempts that have a winner, by whether it was the hedge.",
            ["hedge_won"],
            registry=registry,
        )
        self._superseded_tokens = Counter(
            "spillway_superseded_prompt_tokens_total",
            "Prompt tokens of attempts that were beaten by one they were not tied to: computed twice, at the most.",
            registry=registry,
        )
        self._cancel_s = Histogram(
            "spillway_cancel_seconds",
            "From asking for an attempt's end to its end.",
            buckets=LATENCY_BUCKETS_S,
            registry=registry,
        )
        self._retries = Counter(
            "spillway_retries_total",
            "Requests whose attempt was lost before their first token and that are tried again, by what happened.",
            ["reason"],
            registry=registry,
        )
        self._client_retries = Counter(
            "spillway_client_retries_total",
            "Requests that are another try of their client's, by what gave it away.",
            ["told_by"],
            registry=registry,
        )
        self._resumptions = Counter(
            "spillway_resumptions_total",
            "Answers whose replica was lost and that went on from what had been given out.",
            registry=registry,
        )
        self._ejections = Counter(
            "spillway_ejections_total",
            "Times that this gateway took a replica out for a while.",
            ["pool", "reason"],
            registry=registry,
        )
        self._promises = Counter(
            "spillway_lane_promises_total",
            "Answered requests by what their lane promises; refused and failed ones count as broken promises.",
            ["lane", "promise", "kept"],
            registry=registry,
        )
        self._degraded = Counter(
            "spillway_degraded_total",
            "Requests answered more cheaply than they asked for, once for each way.",
            ["kind", "class"],
            registry=registry,
        )
        self._cache_lookups = Counter(
            "spillway_response_cache_lookups_total",
            "Greedy requests, by whether their answers were in the response cache.",
            ["result"],
            registry=registry,
        )
        self._errors = Counter(
            "spillway_http_errors_total",
            "Error responses; a stream that breaks is none.",
            ["status", "code"],
            registry=registry,
        )
        self._reloads = Counter(
            "spillway_reloads_total",
            "Changes of user_config that came while the gateway ran; a refused one changed nothing.",
            ["result"],
            registry=registry,
        )
        self._exchanges = Counter(
            "spillway_ledger_exchanges_total",
            "Reports of this gateway's load, by whether the ledger answered in time.",
            ["result"],
            registry=registry,
        )
        self._open = Gauge(
            "spillway_requests_open", "Requests not answered, or whose attempts have not all ended.", registry=registry
        )
        self._waiting = Gauge("spillway_requests_waiting", "Requests that wait for a replica.", registry=registry)

    def watch(
        self, replicas: Callable[[], ReplicasByPool], num_open: Callable[[], int], num_waiting: Callable[[], int]
    ) -> None:
        """Reads these at every scrape."""
        self._open.set_function(num_open)
        self._waiting.set_function(num_waiting)
        self._registry.register(_ReplicaCollector(replicas))

    def watch_lanes(self, lanes: Iterable[Lane], gauges: Callable[[], Mapping[str, float]]) -> None:
        """Reads :meth:`routing.dispatcher.Dispatcher.gauges` at every scrape, and begins to count what lanes promise.

        Every count begins at 0: a rate needs the sample before the first request, and so does who asks how many
        promises were broken when none was.
        """
        self._registry.register(_LaneCollector(gauges))
        self.begin_promises(lanes)

    def begin_promises(self, lanes: Iterable[Lane]) -> None:
        """Begins to count what lanes promise that are not counted yet."""
        for lane in lanes:
            for promise, _ in _promises(lane):
                for kept in ("true", "false"):
                    self._promises.labels(lane.name, promise, kept)

    def count_outcome(
        self, request: RequestView, outcome: Outcome, first_token_at_s: float | None, now_s: float
    ) -> None:
        """One request was answered."""
        self._requests.labels(outcome.kind.value, outcome.reason.value if outcome.reason else "").inc()
        self._prompt_tokens.observe(request.prompt_tokens)
        if first_token_at_s is not None:
            self._ttft.observe(first_token_at_s - request.arrival_s)
        if outcome.kind is OutcomeKind.COMPLETED:
            self._e2e.observe(now_s - request.arrival_s)

    def count_promises(self, lane: Lane, ttft_s: float, tpot_s: float) -> None:
        """One request of a lane was answered; latencies are endless for one that got no whole answer.

        It is the lane that the request came into: who is demoted was still promised what that lane promises.
        """
        took_s = {"ttft": ttft_s, "tpot": tpot_s}
        for promise, slo_s in _promises(lane):
            self._promises.labels(lane.name, promise, str(took_s[promise] <= slo_s).lower()).inc()

    def count_error(self, status: int, code: str) -> None:
        """One request got an error response."""
        self._errors.labels(str(status), code).inc()

    def count_degraded(self, decision: Degraded) -> None:
        """One request was let in and degraded."""
        for kind in kinds_of(decision):
            self._degraded.labels(kind, decision.priority.value).inc()

    def watch_cache(self, num_bytes: Callable[[], float]) -> None:
        """Reads the response cache's size at every scrape, and begins to count its hits and misses."""
        Gauge(
            "spillway_response_cache_bytes", "What the answers that are kept take.", registry=self._registry
        ).set_function(num_bytes)
        for result in ("hit", "miss"):
            self._cache_lookups.labels(result)

    def count_cache_lookup(self, is_hit: bool) -> None:
        """One request came in that could be answered from the response cache."""
        self._cache_lookups.labels("hit" if is_hit else "miss").inc()

    def count_reload(self, *, is_applied: bool) -> None:
        """The configuration was to change while this gateway runs."""
        self._reloads.labels("applied" if is_applied else "refused").inc()

    def count_exchange(self, *, is_answered: bool) -> None:
        """One report went to the ledger."""
        self._exchanges.labels("answered" if is_answered else "lost").inc()

    def count_placement(self, placement: Placement) -> None:
        """One attempt was sent."""
        self._attempts.labels(placement.replica_id, str(placement.is_hedge).lower()).inc()

    def count_race(self, race: Race) -> None:
        """One of several attempts was the quickest."""
        self._races.labels(str(race.is_hedge).lower()).inc()
        self._superseded_tokens.inc(race.superseded_tokens)

    def observe_cancel(self, took_s: float) -> None:
        """An attempt that was to end has ended."""
        self._cancel_s.observe(took_s)

    def count_going_on(self, decision: Preemption | Resumption) -> None:
        """One attempt gave its place to another request, or was lost in the middle of its answer."""
        (self._preemptions if isinstance(decision, Preemption) else self._resumptions).inc()

    def count_retry(self, retry: Retry) -> None:
        """One request is tried again."""
        self._retries.labels(retry.reason.value).inc()

    def count_client_retry(self, told_by: ToldBy) -> None:
        """One request is another try of its client's."""
        self._client_retries.labels(told_by.value).inc()

    def count_ejection(self, ejection: Ejection) -> None:
        """One replica gets nothing for a while."""
        self._ejections.labels(ejection.pool, ejection.reason.value).inc()

    def exposition(self) -> bytes:
        """The page that Prometheus reads."""
        return generate_latest(self._registry)


def _promises(lane: Lane) -> list[tuple[str, float]]:
    """What a lane promises, and within how many seconds; nothing that has no bound."""
    promises = (("ttft", lane.ttft_slo_s), ("tpot", lane.tpot_slo_s))
    return [(promise, slo_s) for promise, slo_s in promises if math.isfinite(slo_s)]


class _ReplicaCollector(Collector):
    """Turns the replicas' reports into metrics when somebody asks."""

    def __init__(self, replicas: Callable[[], ReplicasByPool]) -> None:
        self._replicas = replicas

    def collect(self) -> Iterator[Metric]:
        pools = self._replicas()
        up = GaugeMetricFamily("spillway_replicas", "Replicas that are up.", labels=["pool"])
        for pool, replicas in pools.items():
            up.add_metric([pool], len(replicas))
        yield up
        yield _info(pools)
        for name, text in REPLICA_GAUGES.items():
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            family = kind(f"spillway_replica_{name}", text, labels=["pool", "replica"])
            for pool, replicas in pools.items():
                for replica in replicas:
                    if name in replica.stats:
                        family.add_metric([pool, replica.replica_id], float(replica.stats[name]))
            yield family


class _LaneCollector(Collector):
    """Turns what a dispatcher says of lanes, pools and lines into metrics when somebody asks; the rest is left out."""

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
        for name, text in POOL_GAUGES.items():
            yield _by_pool(name, text, [(pool, value) for its_name, pool, value in said if its_name == name])
        for name, text in QUEUE_GAUGES.items():
            yield _by_class_and_line(
                name, text, [(place, value) for its_name, place, value in said if its_name == name]
            )


def _by_pool(name: str, text: str, said: Iterable[tuple[str, float]]) -> Metric:
    """One thing that is known of every pool."""
    family = GaugeMetricFamily(f"spillway_{name}", text, labels=["pool"])
    for pool, value in said:
        family.add_metric([pool], value)
    return family


def _by_class_and_line(name: str, text: str, said: Iterable[tuple[str, float]]) -> Metric:
    """One thing that is known of every class in every line, as ``(class:line, value)``."""
    family = GaugeMetricFamily(f"spillway_{name}", text, labels=["class", "line"])
    for place, value in said:
        priority, _, line = place.partition(":")
        family.add_metric([priority, line], value)
    return family


def _info(pools: ReplicasByPool) -> Metric:
    """What does not change in a replica's life, as labels of a constant."""
    family = GaugeMetricFamily(
        "spillway_replica_info", "Always 1.", labels=["pool", "replica", "role", "node", "pid", "kv_capacity_tokens"]
    )
    for pool, replicas in pools.items():
        for replica in replicas:
            said = replica.metadata
            labels = [pool, replica.replica_id, said.get("role", ""), replica.node_id]
            family.add_metric([*labels, str(said.get("pid", "")), str(said.get("kv_capacity_tokens", ""))], 1.0)
    return family
