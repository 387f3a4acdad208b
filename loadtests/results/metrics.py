"""What is measured in a run: the names, what each means, and what a percentile needs before it may be quoted.

Everything counts logical requests that were *offered* in the measured window: a request that was refused, shed, given
up or never sent because an earlier turn of its session failed is a miss like one that came late. Latencies start when
the user wanted the answer, not when a retry of it was sent.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from policies.capacity.bounds import Bound
from policies.errors import ConfigError
from policies.views import Role

ALL = "all"
"""Stands for every traffic class together."""
SAMPLES_BEYOND_A_QUANTILE = 10
"""A quantile is quoted only where so many samples are expected beyond it: p99 takes 1,000, p99.9 takes 10,000."""


def min_samples_of(quantile: float) -> int:
    """Samples without which a quantile means nothing."""
    return round(SAMPLES_BEYOND_A_QUANTILE / (1 - quantile))


class Better(StrEnum):
    """Which way a metric improves."""

    LOWER = "lower"
    HIGHER = "higher"
    NEITHER = "neither"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric of a run.

    Args:
        name: As checks and tables name it, unit included.
        meaning: The formula, in words.
        better: Which way it improves.
        per_class: Whether each traffic class has its own; otherwise only the run as a whole has one.
        quantile: For a percentile of a latency, which one, 0 to 1.
        is_live: Whether only runs of deployments have it: clients or gateways count it.
    """

    name: str
    meaning: str
    better: Better
    per_class: bool = True
    quantile: float | None = None
    is_live: bool = False

    @property
    def min_samples(self) -> int:
        """Samples without which the metric means nothing."""
        return 1 if self.quantile is None else min_samples_of(self.quantile)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricValue:
    """A metric's value in one run.

    Args:
        value: In the metric's unit; NaN where it is not defined.
        samples: How many logical requests, answers or replicas it was taken over.
    """

    value: float
    samples: int


RunMetrics = Mapping[str, Mapping[str, MetricValue]]
"""Traffic class or ``ALL``, in a named window if need be (see :func:`windowed`), then metric."""


def windowed(group: str, window: str | None) -> str:
    """A traffic class, or ``ALL``, in a named window: ``all@before``; in the measured one without a name."""
    return group if window is None else f"{group}@{window}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Which logical requests are measured: those wanted from ``from_s`` on and before ``until_s``.

    Raises:
        ConfigError: It ends before it begins, or begins before 0.
    """

    from_s: float
    until_s: float

    def __post_init__(self) -> None:
        if not 0 <= self.from_s < self.until_s:
            raise ConfigError("from_s", self.from_s, f"at least 0 and less than until_s, which is {self.until_s:g}")

    @property
    def length_s(self) -> float:
        """How long it is, seconds."""
        return self.until_s - self.from_s


def quantile_name(latency: str, quantile: float) -> str:
    """``ttft`` and 0.999 are ``ttft_p999_s``."""
    digits = f"{quantile:.10f}".rstrip("0").removeprefix("0.")
    return f"{latency}_p{digits.ljust(2, '0')}_s"


QUANTILES: Mapping[str, tuple[float, ...]] = {
    "ttft": (0.5, 0.9, 0.99, 0.999),
    "tpot": (0.5, 0.99),
    "e2e": (0.5, 0.99),
}
"""Which percentiles are taken of which latency."""
_LATENCY_MEANINGS = {
    "ttft": "first content minus when the user wanted it, over logical requests that got any",
    "tpot": "(last token minus first) / (output tokens - 1), over completed logical requests of two tokens and more",
    "e2e": "last token minus when the user wanted it, over completed logical requests",
}


def _metric(name: str, meaning: str, better: Better = Better.LOWER, *, per_class: bool = True) -> Metric:
    return Metric(name=name, meaning=meaning, better=better, per_class=per_class)


_HIGHER, _NEITHER = Better.HIGHER, Better.NEITHER
_LATENCIES = tuple(
    Metric(
        name=quantile_name(latency, quantile),
        meaning=_LATENCY_MEANINGS[latency],
        better=Better.LOWER,
        quantile=quantile,
    )
    for latency, quantiles in QUANTILES.items()
    for quantile in quantiles
)
_VERDICTS = (
    _metric("offered_requests", "logical requests wanted in the window", _NEITHER),
    _metric("goodput_fraction", "logical requests within their SLO / offered", _HIGHER),
    _metric("ok_fraction", "completed logical requests, late or not / offered", _HIGHER),
    _metric("late_fraction", "completed logical requests outside their SLO / offered"),
    _metric("refused_fraction", "logical requests whose last request was refused before its first token / offered"),
    _metric(
        "failed_fraction",
        "logical requests whose last request failed after its first token, or was not answered or refused / offered",
    ),
    _metric("cut_fraction", "logical requests whose last stream failed after its first token / offered"),
    _metric("cancelled_fraction", "logical requests that their client gave up / offered"),
    _metric("abandoned_fraction", "logical requests never sent, because an earlier turn failed / offered"),
    _metric("no_token_fraction", "logical requests whose last request got no token / offered"),
    _metric("degraded_fraction", "completed logical requests whose answer is shorter than the model had it / offered"),
    _metric("given_up_tokens", "output tokens that completed logical requests lack of their whole answers"),
    _metric("given_up_tokens_fraction", "given_up_tokens / output tokens of their whole answers"),
    _metric("goodput_rps", "logical requests within their SLO / length of the window", _HIGHER),
    _metric(
        "goodput_tokens_per_s",
        "prompt and output tokens of logical requests in their SLO / length of the window",
        _HIGHER,
    ),
    _metric("offered_rps", "logical requests offered / length of the window", _NEITHER),
)
_WORK = (
    _metric("throughput_tokens_per_s", "output tokens that reached clients in the window / its length", _HIGHER),
    _metric(
        "service_tokens_per_s",
        "prompt tokens + 2 * output tokens served in the window / its length: prompts by their first token",
        _HIGHER,
    ),
    _metric("service_max_over_min", "the most service_tokens_per_s of a class / the least of one", per_class=False),
    _metric(
        "cached_prompt_fraction",
        "prompt tokens found in a prefix cache / all, over completed logical requests",
        _HIGHER,
    ),
    _metric("attempts_per_request", "dispatches of all requests, hedges and stages included / logical requests"),
    _metric("hedges_per_request", "dispatches beside another one that was slow / logical requests"),
    _metric("sends_per_request", "requests sent / logical requests"),
    _metric("sends_per_sent_request", "requests sent / logical requests of which one was"),
    _metric(
        "session_goodput_fraction",
        "conversations all of whose logical requests are within their SLO / offered",
        _HIGHER,
    ),
    _metric("shed_fraction", "requests that were shed / requests", _NEITHER),
    _metric("shed_spread", "largest shed_fraction of a gateway less the smallest"),
    _metric(
        "same_answer_fraction",
        "of two requests in a row at different gateways of which one was shed, those where both were",
        _HIGHER,
    ),
    _metric("wasted_tokens_fraction", "output tokens sent to requests that missed / all output tokens sent"),
    _metric(
        "wasted_prompt_fraction",
        "prompt tokens of requests that went to a replica and missed / of all requests that went to one",
    ),
    _metric(
        "wasted_prefill_fraction",
        "prompt tokens that replicas computed beside those that led to first tokens / all that they computed",
    ),
)
_FLEET = (
    _metric(
        "longest_tenth_goodput_fraction",
        "goodput_fraction of logical requests whose prompts are longer than nine tenths of those offered",
        _HIGHER,
        per_class=False,
    ),
    _metric("worst_class_goodput_fraction", "the lowest goodput_fraction of a class", _HIGHER, per_class=False),
    _metric("prefix_hit_fraction", "prompt tokens found in a prefix cache / all", _HIGHER, per_class=False),
    _metric(
        "prefix_hit_of_ideal",
        "prefix_hit_fraction / the same of one least-recently-used cache of all replicas' size together",
        _HIGHER,
        per_class=False,
    ),
    _metric(
        "load_max_over_mean",
        "most tokens that a replica computed and generated in a second / the mean, of the worst role",
        per_class=False,
    ),
    _metric("ejections", "times that a gateway ejected a replica", _NEITHER, per_class=False),
    _metric("ejected_replicas", "replicas that a gateway ejected at least once", _NEITHER, per_class=False),
    _metric("first_ejection_s", "when a gateway first ejected a replica, from the start", per_class=False),
    _metric(
        "cancel_mean_s", "mean time from asking for an attempt's end until its engine has stopped", per_class=False
    ),
    _metric("cancel_max_s", "the longest such time", per_class=False),
    _metric("preemptions_per_request", "sequences thrown out of a batch / logical requests", per_class=False),
    _metric("adapter_loads_per_request", "LoRA adapters that engines loaded / logical requests", per_class=False),
    _metric(
        "computed_tokens_per_request", "tokens that replicas computed and generated / logical requests", per_class=False
    ),
    _metric("replica_s", "seconds for which replicas were held, those included that start or drain", per_class=False),
    _metric("dollars", "what that costs, by dollars_per_h of each pool, 1 where it does not say", per_class=False),
    _metric(
        "warm_s",
        "seconds of replica_s for which replicas slept, or were idle, until they were needed",
        per_class=False,
    ),
    _metric(
        "scale_direction_changes",
        "how often a pool's size turned from growing to shrinking or back, in the worst ten minutes of the worst pool",
        per_class=False,
    ),
    _metric("imbalance", "the largest imbalance of a role", per_class=False),
)
_OVER_HTTP = (
    _metric("refusal_p50_s", "median time from sending a request to its refusal"),
    _metric("refusal_p99_s", "99th percentile of that; of fewer than a hundred refusals nearly the slowest"),
    _metric("on_time_fraction", "logical requests within their SLO / completed", _HIGHER),
    Metric(
        name="send_ttft_p50_s",
        meaning="first content minus when the request was sent, over requests that got any",
        better=Better.LOWER,
        quantile=0.5,
    ),
    Metric(
        name="send_ttft_p99_s",
        meaning="first content minus when the request was sent, over requests that got any",
        better=Better.LOWER,
        quantile=0.99,
    ),
)
_LOST = (
    _metric("lost_fraction", "time that requests take beyond that on an idle fleet / that"),
    *(
        _metric(f"lost_to_{bound.value}_fraction", f"time that requests lose to {bound.value} / all that they lose")
        for bound in Bound
        if bound is not Bound.ENGINE
    ),
)
_LIVE = tuple(
    Metric(name=name, meaning=meaning, better=better, per_class=False, is_live=True)
    for name, meaning, better in (
        ("send_lag_p99_s", "99th percentile of when a request was sent minus when it was due", Better.LOWER),
        (
            "foreign_fraction",
            "processor time of processes beside deployment and client / all cores' time",
            Better.LOWER,
        ),
        ("unstated_errors", "errors that clients saw and that neither overload nor a refusal explains", Better.LOWER),
        (
            "unanswered_requests",
            "requests not completed + answers of a wrong length + |completed as gateways count - as the client does|",
            Better.LOWER,
        ),
        ("wrong_lengths", "whole answers with another number of tokens than was asked for", Better.LOWER),
        ("reconnections", "times that a client came back for the rest of a stream that had broken", _NEITHER),
        (
            "recovered_after_s",
            "after a study's first action: from then on ttft_p99_s of all that comes is at most 1.5 times that before",
            Better.LOWER,
        ),
        ("left_open_requests", "requests that gateways held when nothing was sent any more", Better.LOWER),
        ("left_kv_fraction", "KV blocks held then / all of a replica, the sum over replicas", Better.LOWER),
        *(
            (f"{whose}_{what}_growth{end}{unit}", f"how much {name} of {whose} processes grow, {most}", Better.LOWER)
            for whose in ("gateway", "replica")
            for what, unit, name in (("rss", "_mib_per_h", "memory"), ("fds", "_per_h", "file descriptors"))
            for end, most in (("", "from minute to minute"), ("_high", "at the most (95%)"))
        ),
        ("actions_done", "kills, faults and slow times of the study that took effect", _NEITHER),
        (
            "reported_divergence",
            "largest mean of the shed fraction that a gateway reports less the smallest",
            Better.LOWER,
        ),
        ("shed_spread_least", "the smallest shed_spread that chance leaves room for (95% bootstrap)", Better.LOWER),
        ("hedges", "second attempts, as gateways count them", _NEITHER),
        ("hedges_to_slowed", "hedges that went to a replica that the study slows down", Better.LOWER),
        ("hedges_won", "hedges whose second attempt had the first token", _NEITHER),
        ("hedges_lost", "hedges whose first attempt had the first token", _NEITHER),
        ("superseded_prompt_fraction", "prompt tokens of attempts that were beaten / of requests", Better.LOWER),
        ("recomputed_prompt_fraction", "prompt tokens computed to a first token / of requests, less 1", Better.LOWER),
        ("cancelled_attempts", "attempts that gateways stopped", _NEITHER),
        ("untaken_attempts", "attempts that no replica took, because they were stopped before", _NEITHER),
        ("misplaced_attempts", "attempts that ran elsewhere than they were sent, or nowhere unasked", Better.LOWER),
    )
)
"""What a client and a deployment's own metrics know over HTTP, for the run as a whole."""
_ROLES = tuple(
    metric
    for role in Role
    for metric in (
        _metric(f"imbalance_{role}", f"largest busy time of a {role} replica / the mean", per_class=False),
        _metric(f"utilisation_{role}", f"mean busy time of {role} replicas / the run", _NEITHER, per_class=False),
    )
)
METRICS: Mapping[str, Metric] = {
    metric.name: metric for metric in (*_VERDICTS, *_LATENCIES, *_WORK, *_FLEET, *_ROLES, *_OVER_HTTP, *_LOST, *_LIVE)
}
"""Every metric by name."""
