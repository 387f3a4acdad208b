"""What a gateway counts of a model's requests, for Prometheus at ``/metrics``.

Names and units follow vLLM and Ray: seconds, tokens, fractions. Nothing is counted per token. Each gateway replica
counts its own requests, and :mod:`deployments.export.exports` brings the counts of all together; what replicas report
about themselves is the same whichever gateway answers.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import Metric

from cluster.clock import Clock, MonotonicClock
from cluster.latency_budget import Timeline
from deployments.telemetry.answer_metrics import Answered, AnswerMetrics
from deployments.telemetry.collectors import FleetCollector, LaneCollector, ReplicasByPool, ReportCollector
from deployments.telemetry.renamed_metrics import with_old_names
from deployments.telemetry.stage_metrics import StageMetrics
from deployments.telemetry.what_binds import LaneBounds
from deployments.telemetry.work.replica_estimates import estimates_by
from deployments.telemetry.work.work_meter import AttemptWork, WorkMeter
from deployments.telemetry.work.work_spread import WorkSpread
from deployments.wire.degradation import kinds_of
from policies.views import Priority
from routing.breakers.breaker import PolicyFailure
from routing.intake.slos import Slos
from routing.lanes.lanes import Lane
from routing.request.effects import (
    ClientRetry,
    Degraded,
    Ejection,
    OutcomeKind,
    Placement,
    Preemption,
    Race,
    Replan,
    Resumption,
    Retry,
)
from routing.sizing.geometry import ServiceRates

CANCEL_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)

_COUNTERS: Mapping[str, tuple[str, ...]] = {
    "attempts": (
        "Attempts sent to replicas, by whether it was a hedge.",
        "replica",
        "hedge",
    ),
    "adapter_placements": (
        "Attempts with a LoRA adapter, by whether their replica was taken to have it loaded.",
        "adapter",
        "loaded",
    ),
    "preemptions": ("Attempts of sheddable requests that gave their slot to a request of a higher class.",),
    "hedge_races": (
        "Hedged attempts that have a winner, by whether it was the hedge.",
        "hedge_won",
    ),
    "superseded_prompt_tokens": (
        "Prompt tokens of attempts that were beaten, tied ones left out: computed twice, at the most.",
    ),
    "retries": (
        "Requests whose attempt was lost before the first token and that are retried, by what happened.",
        "reason",
    ),
    "client_retries": (
        "Requests that are a retry of their client's, told by a header or by an idempotency key, and by what their "
        "first arrival was found: key, body, or none.",
        "told_by",
        "link",
    ),
    "reconnections": (
        "Clients that came back for the rest of an answer whose gateway was gone, by what has come of it: resumed, "
        "finished (all of it was there), or not_found.",
        "outcome",
    ),
    "resumptions": (
        "Answers whose replica was lost and that were resumed elsewhere from the tokens that had been emitted.",
    ),
    "replans": (
        "Requests that go by another plan because a stage of theirs has no replica: unified, or prefill+decode.",
        "plan",
    ),
    "policy_failures": (
        "Times that a policy of somebody's own raised, answered nonsense, was slow or stuck.",
        "question",
        "kind",
    ),
    "ejections": (
        "Times that the gateway ejected a replica: for failures in a row, or for slow first tokens or tokens.",
        "pool",
        "reason",
    ),
    "probes": (
        "Small requests of the gateway's own to replicas whose engines had failed: well, failed, or cancelled, because "
        "they took too long or nobody else was left.",
        "pool",
        "result",
    ),
    "lane_slo": (
        "Requests by whether they came within their lane's SLO, ttft or tpot; refused and failed ones did not.",
        "lane",
        "slo",
        "met",
    ),
    "canary_slo": (
        "The same of requests that a canary had an attempt of.",
        "slo",
        "met",
    ),
    "canary_attempts": (
        "Attempts of canaries by what has come of them: finished, failed, or beaten by a hedge elsewhere.",
        "result",
    ),
    "canary_ejections": (
        "Times that the gateway ejected a canary, by why.",
        "reason",
    ),
    "degraded": (
        "Requests answered more cheaply than asked, once for each way: max_tokens, output_time_limit, lane, cache.",
        "kind",
        "class",
    ),
    "response_cache_lookups": (
        "Greedy requests by whether their answer was cached: hit, miss; with gateway.response_cache alone.",
        "result",
    ),
    "load_coordinator_exchanges": (
        "Reports of this gateway's load, by whether the load coordinator answered in time: answered, lost.",
        "result",
    ),
}
"""Names between ``spillway_`` and ``_total``, what is counted, and by which labels."""


class ProbeResult(StrEnum):
    """What has come of a probe; closed, because the value is a metric label."""

    WELL = "well"
    FAILED = "failed"
    CANCELLED = "cancelled"


class CanaryResult(StrEnum):
    """What has come of an attempt of a canary's, where that says something of it."""

    FINISHED = "finished"
    FAILED = "failed"
    BEATEN = "beaten"


UNKNOWN_RATES = ServiceRates()
CLOCK = MonotonicClock()


class GatewayMetrics:
    """The counters of one model in one gateway replica.

    Args:
        rates: How fast engines are, as their profile says; what is estimated from it is left out without one.
        clock: The gateway's.

    Attributes:
        bounds: What requests spend their time on.
    """

    def __init__(self, rates: ServiceRates = UNKNOWN_RATES, clock: Clock = CLOCK) -> None:
        self._registry = registry = CollectorRegistry()
        self._fleet, self._reports = CollectorRegistry(), CollectorRegistry()
        self._estimate = estimates_by(rates)
        self._meter = WorkMeter(rates)
        self._answers = AnswerMetrics(registry, self._meter)
        self._spread = WorkSpread()
        registry.register(self._spread)
        self._stages = StageMetrics(registry)
        self.bounds = LaneBounds(registry, clock.now_s)
        counters = {
            name: Counter(f"spillway_{name}_total", counted, labels, registry=registry)
            for name, (counted, *labels) in _COUNTERS.items()
        }
        self._attempts, self._adapter_placements = counters["attempts"], counters["adapter_placements"]
        self._probes, self._preemptions = counters["probes"], counters["preemptions"]
        self._races = counters["hedge_races"]
        self._superseded_tokens = counters["superseded_prompt_tokens"]
        self._retries = counters["retries"]
        self._client_retries = counters["client_retries"]
        self._reconnections = counters["reconnections"]
        self._resumptions = counters["resumptions"]
        self._replans, self._ejections = counters["replans"], counters["ejections"]
        self._slos, self._canary_slos = counters["lane_slo"], counters["canary_slo"]
        self._canary_attempts, self._canary_ejections = counters["canary_attempts"], counters["canary_ejections"]
        self._degraded, self._policy_failures = counters["degraded"], counters["policy_failures"]
        self._cache_lookups = counters["response_cache_lookups"]
        self._exchanges = counters["load_coordinator_exchanges"]
        self._cancel_s = Histogram(
            "spillway_cancel_seconds",
            "From cancelling an attempt to its end on the replica.",
            buckets=CANCEL_BUCKETS_S,
            registry=registry,
        )
        self._open = Gauge(
            "spillway_requests_open", "Requests not answered, or whose attempts have not all ended.", registry=registry
        )
        self._waiting = Gauge(
            "spillway_requests_waiting", "Requests that wait in the gateway for a replica with room.", registry=registry
        )

    def watch(
        self, replicas: Callable[[], ReplicasByPool], num_open: Callable[[], int], num_waiting: Callable[[], int]
    ) -> None:
        """Reads these at every scrape."""
        self._open.set_function(num_open)
        self._waiting.set_function(num_waiting)
        self._fleet.register(FleetCollector(replicas, self._estimate))
        self._reports.register(ReportCollector(replicas))

    def watch_lanes(self, lanes: Iterable[Lane], slos: Slos, gauges: Callable[[], Mapping[str, float]]) -> None:
        """Reads :meth:`routing.dispatcher.Dispatcher.gauges` at every scrape, and begins to count the SLOs of lanes.

        Every count begins at 0: a rate needs the sample before the first request, and so does who asks how many
        SLOs were missed when none was.
        """
        self._registry.register(LaneCollector(gauges))
        self.begin_slos(lanes, slos)

    def begin_slos(self, lanes: Iterable[Lane], slos: Slos) -> None:
        """Begins to count the SLOs of requests in lanes that are not counted yet."""
        for lane in lanes:
            for slo in sorted(slos.names_in(lane)):
                for met in ("true", "false"):
                    self._slos.labels(lane.name, slo, met)

    def count_arrival(self, prompt_tokens: int, now_s: float) -> None:
        """One request has come in."""
        self._spread.arrived(prompt_tokens, now_s)

    def count_answer(self, answered: Answered) -> None:
        """One request was answered."""
        self._answers.count(answered)
        if answered.outcome.kind is OutcomeKind.COMPLETED:
            self._spread.answered(answered.output_tokens)

    def count_times(
        self, lane: str, timeline: Timeline, *, prompt_tokens: int, cached_tokens: int, output_tokens: int
    ) -> None:
        """One request is over, and its answer of so many tokens has left."""
        self._stages.observe(timeline)
        self.bounds.observe(lane, timeline, self._meter.alone(prompt_tokens, cached_tokens, output_tokens))

    def count_attempt(self, lane: str, priority: Priority, work: AttemptWork) -> None:
        """One attempt has ended that a replica had taken; that was its work."""
        self._answers.count_attempt(lane, priority.value, self._meter.attempt_s(work))

    def count_slos(
        self, lane: str, limits_s: Mapping[str, float], ttft_s: float, tpot_s: float, *, has_canary: bool = False
    ) -> None:
        """One request of a lane was answered; latencies are endless for one that got no whole answer.

        It is the lane that the request came into; ``limits_s`` are what it was promised, by name: ``ttft``, ``tpot``.
        """
        took_s = {"ttft": ttft_s, "tpot": tpot_s}
        for slo, limit_s in limits_s.items():
            is_met = str(took_s[slo] <= limit_s).lower()
            self._slos.labels(lane, slo, is_met).inc()
            if has_canary:
                self._canary_slos.labels(slo, is_met).inc()

    def count_degraded(self, decision: Degraded) -> None:
        """One request was let in and degraded."""
        for kind in kinds_of(decision):
            self._degraded.labels(kind, decision.priority.value).inc()

    def watch_cache(self, num_bytes: Callable[[], float]) -> None:
        """Reads the response cache's size at every scrape, and begins to count its hits and misses."""
        Gauge(
            "spillway_response_cache_bytes",
            "Bytes that cached answers take; with gateway.response_cache alone.",
            registry=self._registry,
        ).set_function(num_bytes)
        for result in ("hit", "miss"):
            self._cache_lookups.labels(result)

    def count_cache_lookup(self, is_hit: bool) -> None:
        """One request came in that could be answered from the response cache."""
        self._cache_lookups.labels("hit" if is_hit else "miss").inc()

    def count_exchange(self, *, is_answered: bool) -> None:
        """One report went to the load coordinator."""
        self._exchanges.labels("answered" if is_answered else "lost").inc()

    def count_placement(self, placement: Placement) -> None:
        """One attempt was sent."""
        self._attempts.labels(placement.replica_id, str(placement.is_hedge).lower()).inc()
        if placement.adapter:
            self._adapter_placements.labels(placement.adapter, str(placement.has_adapter).lower()).inc()

    def count_race(self, race: Race) -> None:
        """One of several attempts was the quickest."""
        self._races.labels(str(race.is_hedge).lower()).inc()
        self._superseded_tokens.inc(race.superseded_tokens)

    def observe_cancel(self, took_s: float) -> None:
        """An attempt that was to end has ended."""
        self._cancel_s.observe(took_s)

    def count_going_on(self, decision: Preemption | Resumption) -> None:
        """One attempt was preempted by another request, or was lost in the middle of its answer."""
        (self._preemptions if isinstance(decision, Preemption) else self._resumptions).inc()

    def count_retry(self, retry: Retry) -> None:
        """One request is tried again."""
        self._retries.labels(retry.reason.value).inc()

    def count_replan(self, replan: Replan) -> None:
        """One request has another plan."""
        self._replans.labels("+".join(replan.plan)).inc()

    def count_policy_failure(self, failure: PolicyFailure) -> None:
        """A policy of somebody's own has failed."""
        self._policy_failures.labels(failure.question, failure.kind.value).inc()

    def count_client_retry(self, retry: ClientRetry) -> None:
        """One request is a retry of its client's."""
        self._client_retries.labels(retry.told_by.value, retry.link.value).inc()

    def count_reconnection(self, outcome: str) -> None:
        """One client has come back for the rest of its answer."""
        self._reconnections.labels(outcome).inc()

    def count_ejection(self, ejection: Ejection) -> None:
        """One replica gets nothing for a while."""
        self._ejections.labels(ejection.pool, ejection.reason.value).inc()

    def count_probe(self, pool: str, result: ProbeResult) -> None:
        """One probe is over."""
        self._probes.labels(pool, result.value).inc()

    def count_canary_attempt(self, result: CanaryResult) -> None:
        """One attempt of a canary's has ended, or was beaten."""
        self._canary_attempts.labels(result.value).inc()

    def count_canary_ejection(self, ejection: Ejection) -> None:
        """One canary gets nothing for a while."""
        self._canary_ejections.labels(ejection.reason.value).inc()

    def own(self) -> Sequence[Metric]:
        """Everything that is counted here, as it is now, under old names too where there are some."""
        return tuple(with_old_names(self._registry.collect()))

    def fleet(self) -> Sequence[Metric]:
        """What only a gateway can tell of the replicas that it sees: that they are there, and what is estimated."""
        return tuple(self._fleet.collect())

    def reports(self) -> Sequence[Metric]:
        """What replicas say of themselves."""
        return tuple(self._reports.collect())
