"""What became of requests, by the lane that they came into and their class of priority, for Prometheus.

Everything is told once, when a request has been answered. Histograms have vLLM's buckets, so that panels line up.
"""

import math
from collections import Counter as TallyOf
from collections.abc import Iterator, Mapping

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from deployments.telemetry.bucket_counts import BucketCounts
from deployments.telemetry.work.work_meter import NO_WORK, Work, WorkMeter
from routing.request.effects import Outcome, OutcomeKind

TTFT_BUCKETS_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKEN_GAP_BUCKETS_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
LATENCY_BUCKETS_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
WAIT_BUCKETS_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
TOKEN_BUCKETS = (1, 8, 32, 128, 512, 2048, 8192, 32768, 131072)
SLOWDOWN_BUCKETS = (1.0, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0, 100.0)
LABELS = ("lane", "class")
Key = tuple[str, str]
"""A lane and a class."""
HISTOGRAMS: Mapping[str, tuple[str, tuple[float, ...]]] = {
    "time_to_first_token_seconds": ("From arrival to the first token at the gateway.", TTFT_BUCKETS_S),
    "request_time_per_output_token_seconds": (
        "(Last token - first token) / (output tokens - 1) of completed requests with two tokens and more.",
        TOKEN_GAP_BUCKETS_S,
    ),
    "request_longest_gap_seconds": (
        "Longest time between two tokens at the gateway, of requests with two tokens and more.",
        TOKEN_GAP_BUCKETS_S,
    ),
    "e2e_request_latency_seconds": (
        "From arrival to the last token at the gateway, of completed requests.",
        LATENCY_BUCKETS_S,
    ),
    "request_queue_time_seconds": (
        "From arrival to the first dispatch; to the verdict for a request that was never dispatched.",
        WAIT_BUCKETS_S,
    ),
    "request_decode_time_seconds": ("From the first token to the last, of completed requests.", LATENCY_BUCKETS_S),
    "request_prompt_tokens": ("Prompt length.", TOKEN_BUCKETS),
    "request_generation_tokens": ("Length of the answer, of completed requests.", TOKEN_BUCKETS),
    "request_slowdown": (
        "Latency for each second of work: from arrival to the last token / the request's service time alone on a "
        "replica, of completed requests. Needs an engine profile.",
        SLOWDOWN_BUCKETS,
    ),
}
COUNTERS: Mapping[str, str] = {
    "prompt_tokens_total": "Prompt tokens of requests that got a first token.",
    "cached_prompt_tokens_total": "Prompt tokens that the replica of the first token found in its prefix cache.",
    "expected_cached_prompt_tokens_total": (
        "Those that its gateway expected to be there, by policies.prefixes. Above cached_prompt_tokens_total: engines "
        "have thrown out what gateways take to be cached; below: they have what no gateway knows of."
    ),
    "request_decode_time_seconds_squared_total": (
        "Squares of request_decode_time_seconds: with its sum and count, the variance of decode times."
    ),
    "work_done_seconds_total": (
        "Service-seconds of all attempts, by the engine profile: prompts without what engines say was cached, and "
        "tokens. The prompt of an attempt that ends before its engine says so counts as expected."
    ),
    "work_needed_seconds_total": (
        "Service-seconds of the answers themselves: each prompt once without what was cached, and the tokens emitted. "
        "Done / needed is the work amplification."
    ),
}


class Answered(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One request that has been answered.

    Args:
        lane: The lane that it came into; empty where there are none.
        priority: Its class.
        outcome: How it ended.
        prompt_tokens: Length of its prompt.
        cached_tokens: Those that were cached where its first token came from.
        expected_cached_tokens: Those that its gateway expected to be cached there.
        output_tokens: Tokens that it was given.
        waited_s: From arrival to its first dispatch, or to its end without one.
        ttft_s: From arrival to its first token; endless without one.
        longest_gap_s: Between two events with tokens; 0 without two.
        e2e_s: From arrival to its end.
        is_computed: Whether its first token came from a replica; answers that were known before do not.
    """

    lane: str
    priority: str
    outcome: Outcome
    prompt_tokens: int
    cached_tokens: int
    expected_cached_tokens: int
    output_tokens: int
    waited_s: float
    ttft_s: float
    longest_gap_s: float
    e2e_s: float
    is_computed: bool


class AnswerMetrics(Collector):
    """Counts requests that have been answered.

    Samples are made when somebody asks; until then there are the numbers alone.

    Args:
        registry: Where the metrics are to be found.
        meter: Turns tokens into work.
    """

    def __init__(self, registry: CollectorRegistry, meter: WorkMeter) -> None:
        self._meter = meter
        self._requests: TallyOf[tuple[str, str, str, str]] = TallyOf()
        self._groups: dict[Key, _Group] = {}
        registry.register(self)

    def count(self, answered: Answered) -> None:
        """One request was answered."""
        lane, priority, outcome = answered.lane, answered.priority, answered.outcome
        self._requests[lane, priority, outcome.kind.value, outcome.reason.value if outcome.reason else ""] += 1
        work = NO_WORK
        if answered.is_computed:
            work = self._meter.answer(answered.prompt_tokens, answered.cached_tokens, answered.output_tokens)
        self._group(lane, priority).count(answered, work)

    def count_attempt(self, lane: str, priority: str, attempt_s: float) -> None:
        """An attempt of a request has ended, perhaps after the request has; it was so much work."""
        self._group(lane, priority).sums["work_done_seconds_total"] += attempt_s

    def _group(self, lane: str, priority: str) -> "_Group":
        group = self._groups.get((lane, priority))
        if group is None:
            group = self._groups[lane, priority] = _Group()
        return group

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "spillway_requests_total",
            "Requests answered, by outcome: completed, refused, failed, cancelled; and by reason, where there is one.",
            labels=[*LABELS, "outcome", "reason"],
        )
        for labels, number in self._requests.items():
            requests.add_metric(labels, number)
        yield requests
        groups = list(self._groups.items())
        for name, (text, _) in HISTOGRAMS.items():
            histogram = HistogramMetricFamily(f"spillway_{name}", text, labels=LABELS)
            for key, group in groups:
                spread = group.spreads[name]
                histogram.add_metric(key, spread.buckets(), spread.sum)
            yield histogram
        for name, text in COUNTERS.items():
            counter = CounterMetricFamily(f"spillway_{name}", text, labels=LABELS)
            for key, group in groups:
                counter.add_metric(key, group.sums[name])
            yield counter


class _Group:
    """One class in one lane."""

    def __init__(self) -> None:
        self.spreads = {name: BucketCounts(bounds) for name, (_, bounds) in HISTOGRAMS.items()}
        self.sums = dict.fromkeys(COUNTERS, 0.0)

    def count(self, answered: Answered, work: Work) -> None:
        spreads, sums = self.spreads, self.sums
        spreads["request_prompt_tokens"].add(answered.prompt_tokens)
        spreads["request_queue_time_seconds"].add(answered.waited_s)
        sums["work_needed_seconds_total"] += work.needed_s
        if math.isfinite(answered.ttft_s):
            spreads["time_to_first_token_seconds"].add(answered.ttft_s)
            sums["prompt_tokens_total"] += answered.prompt_tokens
            sums["cached_prompt_tokens_total"] += answered.cached_tokens
            sums["expected_cached_prompt_tokens_total"] += answered.expected_cached_tokens
        if answered.longest_gap_s:
            spreads["request_longest_gap_seconds"].add(answered.longest_gap_s)
        if answered.outcome.kind is OutcomeKind.COMPLETED:
            self._count_completed(answered, work)

    def _count_completed(self, answered: Answered, work: Work) -> None:
        decode_s = answered.e2e_s - answered.ttft_s
        self.spreads["e2e_request_latency_seconds"].add(answered.e2e_s)
        self.spreads["request_generation_tokens"].add(answered.output_tokens)
        self.spreads["request_decode_time_seconds"].add(decode_s)
        self.sums["request_decode_time_seconds_squared_total"] += decode_s * decode_s
        if answered.output_tokens > 1:
            self.spreads["request_time_per_output_token_seconds"].add(decode_s / (answered.output_tokens - 1))
        if work.alone_s:
            self.spreads["request_slowdown"].add(answered.e2e_s / work.alone_s)
