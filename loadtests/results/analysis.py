"""From a run's table of requests to its metrics, for each traffic class and for all together.

A logical request counts by when it was wanted, so the warm-up is cut off by that time and an answer that comes after
the window still counts for the logical request in it. Its last request speaks for it. The arithmetic is numpy
throughout: a million rows take a fraction of a second.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cluster.sim.run_table import NUM_BOUNDS, OUTCOMES, UNKNOWN, ReplicaTotals, RunTable
from loadtests.results.lost_time import by_bound, lost_metrics
from loadtests.results.metrics import ALL, QUANTILES, MetricValue, RunMetrics, Window, quantile_name
from loadtests.results.replica_counts import direction_changes
from loadtests.results.shedding_metrics import session_goodput, shedding_metrics
from loadtests.results.slo import ClassSlo
from policies.errors import ConfigError

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

COMPLETED = OUTCOMES.index("completed")
FAILED = OUTCOMES.index("failed")
OUTPUT_WEIGHT = 2.0
"""What an output token counts beside a prompt token in ``service_tokens_per_s``."""
ABANDONED, REFUSED = OUTCOMES.index("abandoned"), OUTCOMES.index("refused")
NUM_TENTHS = 10
NOBODY_KNOWS = MetricValue(value=math.nan, samples=0)
_SHARES = {
    "ok_fraction": "completed",
    "refused_fraction": "refused",
    "failed_fraction": "failed",
    "cancelled_fraction": "cancelled",
    "abandoned_fraction": "abandoned",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Rows of a table with what follows from each, all columns of the same length.

    Args:
        is_measured: The logical request was wanted in the window.
        logical request: Number of the logical request.
        session: Number of its conversation; -1 without one.
        is_last: No try of the logical request follows.
        is_good: The request completed within the SLO.
        traffic_class: Index of the class.
        outcome: Index into ``OUTCOMES``.
        reason: Index into ``REASONS``.
        retry_index: 0 for the first request.
        gateway: Where it came to; -1 where nobody knows.
        output_tokens: Tokens that reached the client.
        prompt_tokens: Length of the prompt.
        cached_tokens: Tokens of it that were found in a prefix cache.
        full_output_tokens: Length of the answer that the model had.
        tokens_in_window: Those of them that reached it in the window.
        service_in_window: What of the request was served in the window: each of those twice, and the prompt if the
            first token was among them.
        attempts: Dispatches; ``UNKNOWN`` where nobody knows.
        hedges: Those beside another one; likewise.
        computed_prompt_tokens: What replicas computed of the prompt, in all attempts; ``UNKNOWN`` where nobody knows.
        wasted_prompt_tokens: Those of them that did not lead to the first token.
        ttft_s: NaN without a token.
        tpot_s: NaN without two tokens or without completion.
        e2e_s: NaN without completion.
        send_ttft_s: From the request's sending; NaN without a token.
        spent_s: What its time was spent on, a column for each bound; 0 where nobody knows.
        refusal_s: Likewise until it was refused; NaN where it was not.
    """

    is_measured: Mask
    logical_request: NDArray[np.int64]
    session: NDArray[np.int64]
    is_last: Mask
    is_good: Mask
    traffic_class: NDArray[np.int16]
    outcome: NDArray[np.int8]
    reason: NDArray[np.int8]
    retry_index: NDArray[np.int16]
    gateway: NDArray[np.int16]
    output_tokens: NDArray[np.int32]
    prompt_tokens: NDArray[np.int32]
    cached_tokens: NDArray[np.int32]
    full_output_tokens: NDArray[np.int32]
    tokens_in_window: Floats
    service_in_window: Floats
    attempts: NDArray[np.int16]
    hedges: NDArray[np.int16]
    computed_prompt_tokens: NDArray[np.int32]
    wasted_prompt_tokens: NDArray[np.int32]
    ttft_s: Floats
    tpot_s: Floats
    e2e_s: Floats
    send_ttft_s: Floats
    spent_s: NDArray[np.float32]
    refusal_s: Floats

    @property
    def are_logical_requests(self) -> Mask:
        """Where a row speaks for a logical request of the measured window: its last request."""
        return self.is_measured & self.is_last

    def only(self, mask: Mask) -> "Rows":
        """The rows where the mask is true."""
        return Rows(**{name: getattr(self, name)[mask] for name in self.__slots__})


def analyse(
    table: RunTable, slos: Mapping[str, ClassSlo], window: Window, ideal_hit_fraction: float = math.nan
) -> RunMetrics:
    """Every metric of a run.

    Args:
        table: What the run left behind.
        slos: What each traffic class was promised.
        window: Which logical requests count.
        ideal_hit_fraction: What :func:`loadtests.simulation.ideal_cache.ideal_hit_fraction` says of the run; NaN:
            nothing.

    Raises:
        ConfigError: A traffic class of the table has no SLO.
    """
    missing = [name for name in table.traffic_classes if name not in slos]
    if missing:
        raise ConfigError("slos", sorted(slos), f"one for each traffic class (missing: {missing})")
    rows = derive(table, slos, window)
    classes = {
        name: _per_class(rows.only(rows.traffic_class == index), window)
        for index, name in enumerate(table.traffic_classes)
    }
    everything = _per_class(rows, window) if len(classes) > 1 else next(iter(classes.values()), {})
    offered = [metrics for metrics in classes.values() if metrics["offered_requests"].value > 0]
    worst = min((metrics["goodput_fraction"].value for metrics in offered), default=np.nan)
    return {
        ALL: {
            **everything,
            "longest_tenth_goodput_fraction": prompt_tenths(rows)[-1].metrics["goodput_fraction"],
            "worst_class_goodput_fraction": MetricValue(value=float(worst), samples=len(offered)),
            "service_max_over_min": _max_over_min([each["service_tokens_per_s"].value for each in offered]),
            **_replica_metrics(table.replicas, rows, ideal_hit_fraction),
            **_ejection_metrics(table),
            **_cancel_metrics(table.cancels_s),
        },
        **classes,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptTenth:
    """Logical requests with prompts of like length: about a tenth of them, and all of the same length together.

    Args:
        least_tokens: The shortest prompt.
        most_tokens: The longest one.
        metrics: Of these requests; those that know no window.
    """

    least_tokens: int
    most_tokens: int
    metrics: Mapping[str, MetricValue]


def prompt_tenths(rows: Rows) -> list[PromptTenth]:
    """The measured logical requests by the length of their prompts, shortest first; tenths without any are left out."""
    asked = rows.only(rows.are_logical_requests)
    if not len(asked.is_good):
        return [PromptTenth(least_tokens=0, most_tokens=0, metrics={"goodput_fraction": NOBODY_KNOWS})]
    borders = np.quantile(asked.prompt_tokens, np.arange(1, NUM_TENTHS) / NUM_TENTHS, method="lower")
    tenth = np.searchsorted(borders, asked.prompt_tokens, side="left")
    return [_tenth(asked.only(tenth == index)) for index in np.unique(tenth)]


def _tenth(asked: Rows) -> PromptTenth:
    offered = len(asked.is_good)
    metrics = {
        "offered_requests": MetricValue(value=float(offered), samples=offered),
        "goodput_fraction": _ratio(int(np.count_nonzero(asked.is_good)), offered),
        "ok_fraction": _ratio(int(np.count_nonzero(asked.outcome == COMPLETED)), offered),
        "refused_fraction": _ratio(int(np.count_nonzero(asked.outcome == REFUSED)), offered),
    }
    metrics |= _quantiles("ttft", QUANTILES["ttft"], asked.ttft_s)
    least_tokens, most_tokens = int(asked.prompt_tokens.min()), int(asked.prompt_tokens.max())
    return PromptTenth(least_tokens=least_tokens, most_tokens=most_tokens, metrics=metrics)


def completions_per_s(table: RunTable, from_s: float, until_s: float) -> float:
    """Requests completed per second between two moments."""
    completed = table.outcome == COMPLETED
    inside = (table.end_s >= from_s) & (table.end_s < until_s)
    return float((completed & inside).sum() / (until_s - from_s))


def derive(table: RunTable, slos: Mapping[str, ClassSlo], window: Window) -> Rows:
    """What follows from each row of a table, in the same order.

    Args:
        table: What the run left behind.
        slos: What each traffic class was promised; every class needs one.
        window: Which logical requests count.
    """
    is_completed: Mask = table.outcome == COMPLETED
    ttft_s = table.first_token_s - table.scheduled_s
    e2e_s = np.where(is_completed, table.end_s - table.scheduled_s, np.nan)
    tpot_s, tokens_in_window = _tpot_s(table, is_completed), _tokens_in(window, table)
    return Rows(
        is_measured=(table.scheduled_s >= window.from_s) & (table.scheduled_s < window.until_s),
        logical_request=table.logical_request,
        session=table.session,
        is_last=table.is_last,
        is_good=is_completed & _is_within_slo(table, slos, ttft_s, tpot_s, e2e_s),
        traffic_class=table.traffic_class,
        outcome=table.outcome,
        reason=table.reason,
        retry_index=table.retry_index,
        gateway=table.gateway,
        output_tokens=table.output_tokens,
        prompt_tokens=table.prompt_tokens,
        cached_tokens=table.cached_tokens,
        full_output_tokens=table.full_output_tokens,
        tokens_in_window=tokens_in_window,
        service_in_window=OUTPUT_WEIGHT * tokens_in_window + _prefilled_in(window, table),
        attempts=table.attempts,
        hedges=table.hedges,
        computed_prompt_tokens=table.computed_prompt_tokens,
        wasted_prompt_tokens=_wasted_tokens(table),
        ttft_s=ttft_s,
        tpot_s=tpot_s,
        e2e_s=e2e_s,
        send_ttft_s=table.first_token_s - table.sent_s,
        spent_s=table.spent_s if len(table.spent_s) else np.zeros((len(table), NUM_BOUNDS), dtype=np.float32),
        refusal_s=np.where(table.outcome == REFUSED, table.end_s - table.sent_s, np.nan),
    )


def _is_within_slo(
    table: RunTable, slos: Mapping[str, ClassSlo], ttft_s: Floats, tpot_s: Floats, e2e_s: Floats
) -> Mask:
    """By the SLO of each row's class."""
    is_within: Mask = np.ones(len(table), dtype=np.bool_)
    for index, name in enumerate(table.traffic_classes):
        of_class = np.flatnonzero(table.traffic_class == index)
        prompts = table.prompt_tokens[of_class]
        is_within[of_class] = _meets(slos[name], prompts, ttft_s[of_class], tpot_s[of_class], e2e_s[of_class])
    return is_within


def _wasted_tokens(table: RunTable) -> NDArray[np.int32]:
    """What replicas computed of prompts beside what led to first tokens."""
    needed = np.where(np.isfinite(table.first_token_s), table.prompt_tokens - table.cached_tokens, 0)
    return table.computed_prompt_tokens - needed.astype(np.int32)


def _tpot_s(table: RunTable, is_completed: Mask) -> Floats:
    """Of completed requests with two tokens and more."""
    tpot_s: Floats = np.full(len(table), np.nan)
    has_two_tokens = is_completed & (table.output_tokens > 1)
    np.divide(table.end_s - table.first_token_s, table.output_tokens - 1, out=tpot_s, where=has_two_tokens)
    return tpot_s


def _meets(slo: ClassSlo, prompt_tokens: NDArray[np.int32], ttft_s: Floats, tpot_s: Floats, e2e_s: Floats) -> Mask:
    """Where a completed request is within its SLO. A limit is met up to and including its value."""
    met = np.ones(len(ttft_s), dtype=np.bool_)
    if slo.ttft_s is not None or slo.ttft_s_per_1k_prompt_tokens is not None:
        limit_s = np.maximum(slo.ttft_s or 0.0, (slo.ttft_s_per_1k_prompt_tokens or 0.0) * prompt_tokens / 1000)
        met &= ttft_s <= limit_s
    if slo.tpot_s is not None:
        met &= ~(tpot_s > slo.tpot_s)  # NaN, an answer of one token, is no miss
    if slo.e2e_s is not None:
        met &= e2e_s <= slo.e2e_s
    return met


def _tokens_in(window: Window, table: RunTable) -> Floats:
    """Tokens that reached clients in the window, each answer's taken as evenly spaced from its first to its last."""
    first_s, tokens = table.first_token_s, table.output_tokens
    streamed_s = table.end_s - first_s
    inside_s = np.minimum(table.end_s, window.until_s) - np.maximum(first_s, window.from_s)
    at_once = (first_s >= window.from_s) & (first_s < window.until_s)
    share = np.where(at_once, 1.0, 0.0)
    np.divide(np.maximum(inside_s, 0.0), streamed_s, out=share, where=streamed_s > 0)
    return np.where(np.isfinite(first_s), share * tokens, 0.0)


def _prefilled_in(window: Window, table: RunTable) -> NDArray[np.int32]:
    """Prompt tokens of requests whose first token came in the window."""
    is_in_it = (table.first_token_s >= window.from_s) & (table.first_token_s < window.until_s)
    return np.where(is_in_it, table.prompt_tokens, 0)


def _by_first_token(requests: Rows) -> dict[str, int]:
    """How many got none, and how many failed after it."""
    has_none = np.isnan(requests.ttft_s)
    is_cut = (requests.outcome == FAILED) & ~has_none
    return {"cut_fraction": int(np.count_nonzero(is_cut)), "no_token_fraction": int(np.count_nonzero(has_none))}


def _per_class(rows: Rows, window: Window) -> dict[str, MetricValue]:
    tokens_per_s = float(rows.tokens_in_window.sum()) / window.length_s
    service_per_s = float(rows.service_in_window.sum()) / window.length_s
    requests = rows.only(rows.is_measured)
    logical_requests = requests.only(requests.is_last)
    offered, good = len(logical_requests.is_last), int(np.count_nonzero(logical_requests.is_good))
    counts = np.bincount(logical_requests.outcome, minlength=len(OUTCOMES))
    sent_tokens = int(requests.output_tokens.sum(dtype=np.int64))
    good_tokens = int(logical_requests.output_tokens[logical_requests.is_good].sum(dtype=np.int64))
    num_requests = int(np.count_nonzero(requests.outcome != ABANDONED))
    shares = {
        **{name: int(counts[OUTCOMES.index(outcome)]) for name, outcome in _SHARES.items()},
        "goodput_fraction": good,
        "late_fraction": int(np.count_nonzero((logical_requests.outcome == COMPLETED) & ~logical_requests.is_good)),
        **_by_first_token(logical_requests),
        "sends_per_request": num_requests,
    }
    metrics = {name: _ratio(part, offered) for name, part in shares.items()}
    metrics["offered_requests"] = MetricValue(value=float(offered), samples=offered)
    metrics["offered_rps"] = MetricValue(value=offered / window.length_s, samples=offered)
    metrics["goodput_rps"] = MetricValue(value=good / window.length_s, samples=offered)
    metrics["service_tokens_per_s"] = MetricValue(value=service_per_s, samples=offered)
    metrics["throughput_tokens_per_s"] = MetricValue(value=tokens_per_s, samples=offered)
    completed = logical_requests.only(logical_requests.outcome == COMPLETED)
    metrics["cached_prompt_fraction"] = _ratio(
        int(completed.cached_tokens.sum(dtype=np.int64)), int(completed.prompt_tokens.sum(dtype=np.int64))
    )
    metrics["wasted_tokens_fraction"] = _ratio(sent_tokens - good_tokens, sent_tokens)
    good_prompt_tokens = int(logical_requests.prompt_tokens[logical_requests.is_good].sum(dtype=np.int64))
    metrics["goodput_tokens_per_s"] = MetricValue(
        value=(good_tokens + good_prompt_tokens) / window.length_s, samples=offered
    )
    metrics |= _amplification(requests, offered)
    metrics["wasted_prefill_fraction"] = _wasted_prefill(requests)
    metrics |= _given_up(completed, offered)
    metrics |= shedding_metrics(requests)
    metrics |= lost_metrics(by_bound(requests.spent_s), num_requests)
    metrics["session_goodput_fraction"] = session_goodput(rows)
    metrics["on_time_fraction"] = _ratio(good, len(completed.is_good))
    return metrics | _latencies(requests, logical_requests)


def _latencies(requests: Rows, logical_requests: Rows) -> dict[str, MetricValue]:
    """Percentiles of what users waited for, and of what single requests took."""
    found = _quantiles("send_ttft", (0.5, 0.99), requests.send_ttft_s)
    found |= _quantiles("refusal", (0.5, 0.99), requests.refusal_s)
    for latency, quantiles in QUANTILES.items():
        found |= _quantiles(latency, quantiles, getattr(logical_requests, f"{latency}_s"))
    return found


def _amplification(requests: Rows, offered: int) -> dict[str, MetricValue]:
    """What gateways made of the requests; NaN where nobody knows."""
    if np.any(requests.attempts == UNKNOWN):
        return dict.fromkeys(("attempts_per_request", "hedges_per_request", "wasted_prompt_fraction"), NOBODY_KNOWS)
    sent = requests.attempts > 0
    in_vain, all_sent = (
        int(requests.prompt_tokens[mask].sum(dtype=np.int64)) for mask in (sent & ~requests.is_good, sent)
    )
    return {
        "attempts_per_request": _ratio(int(requests.attempts.sum(dtype=np.int64)), offered),
        "hedges_per_request": _ratio(int(requests.hedges.sum(dtype=np.int64)), offered),
        "wasted_prompt_fraction": _ratio(in_vain, all_sent),
    }


def _wasted_prefill(requests: Rows) -> MetricValue:
    """What the replicas computed of prompts besides what first tokens took; NaN where nobody knows."""
    if np.any(requests.computed_prompt_tokens == UNKNOWN):
        return NOBODY_KNOWS
    wasted, computed = (
        each.sum(dtype=np.int64) for each in (requests.wasted_prompt_tokens, requests.computed_prompt_tokens)
    )
    return _ratio(int(wasted), int(computed))


def _given_up(completed: Rows, offered: int) -> dict[str, MetricValue]:
    """What became of answers that were cut short."""
    missing = np.maximum(completed.full_output_tokens - completed.output_tokens, 0)
    given_up, given = (int(each.sum(dtype=np.int64)) for each in (missing, completed.output_tokens))
    return {
        "degraded_fraction": _ratio(int(np.count_nonzero(missing)), offered),
        "given_up_tokens": MetricValue(value=float(given_up), samples=offered),
        "given_up_tokens_fraction": _ratio(given_up, given_up + given),
    }


def _ratio(part: float, whole: float) -> MetricValue:
    return MetricValue(value=part / whole if whole else math.nan, samples=int(whole))


def _max_over_min(values: Sequence[float]) -> MetricValue:
    least = min(values, default=math.nan)
    return MetricValue(value=max(values) / least if least > 0 else math.nan, samples=len(values))


def _quantiles(latency: str, quantiles: Sequence[float], values_s: Floats) -> dict[str, MetricValue]:
    known_s = values_s[~np.isnan(values_s)]
    if not known_s.size:
        return {quantile_name(latency, quantile): NOBODY_KNOWS for quantile in quantiles}
    return {
        quantile_name(latency, quantile): MetricValue(value=float(value), samples=int(known_s.size))
        for quantile, value in zip(quantiles, np.quantile(known_s, quantiles), strict=True)
    }


def _replica_metrics(
    replicas: Sequence[ReplicaTotals], rows: Rows, ideal_hit_fraction: float
) -> dict[str, MetricValue]:
    """What the replicas did, over the whole run: their totals know no window."""
    cached = sum(replica.cached_tokens for replica in replicas)
    computed = sum(replica.prompt_tokens for replica in replicas)
    generated = sum(replica.output_tokens for replica in replicas)
    preemptions = sum(replica.preemptions for replica in replicas)
    adapter_loads = sum(replica.adapter_loads for replica in replicas)
    num_logical_requests = int(np.count_nonzero(rows.is_last))
    metrics: dict[str, MetricValue] = {
        "prefix_hit_fraction": _ratio(cached, cached + computed),
        "preemptions_per_request": _ratio(preemptions, num_logical_requests),
        "adapter_loads_per_request": _ratio(adapter_loads, num_logical_requests),
        "computed_tokens_per_request": _ratio(computed + generated, num_logical_requests),
    }
    hit_fraction = metrics["prefix_hit_fraction"].value
    of_ideal = hit_fraction / ideal_hit_fraction if ideal_hit_fraction else math.nan
    metrics["prefix_hit_of_ideal"] = MetricValue(value=of_ideal, samples=len(replicas))
    metrics["replica_s"] = MetricValue(value=sum(each.held_s for each in replicas), samples=len(replicas))
    metrics["dollars"] = MetricValue(value=sum(each.dollars for each in replicas), samples=len(replicas))
    metrics["warm_s"] = MetricValue(value=sum(each.warm_s for each in replicas), samples=len(replicas))
    metrics["scale_direction_changes"] = MetricValue(value=float(direction_changes(replicas)), samples=len(replicas))
    metrics["load_max_over_mean"] = MetricValue(value=_load_max_over_mean(replicas), samples=len(replicas))
    imbalances: list[float] = []
    for role in sorted({replica.role for replica in replicas}):
        of_role = [replica for replica in replicas if replica.role == role and replica.up_s]
        up_s = sum(replica.up_s for replica in of_role)
        utilisation = sum(replica.busy_s for replica in of_role) / up_s if up_s else float("nan")
        busiest = max((replica.busy_s / replica.up_s for replica in of_role), default=float("nan"))
        imbalances.append(busiest / utilisation if utilisation else float("nan"))
        metrics[f"imbalance_{role}"] = MetricValue(value=imbalances[-1], samples=len(of_role))
        metrics[f"utilisation_{role}"] = MetricValue(value=utilisation, samples=len(of_role))
    known = [each for each in imbalances if not math.isnan(each)]
    metrics["imbalance"] = MetricValue(value=max(known, default=float("nan")), samples=len(replicas))
    return metrics


def _ejection_metrics(table: RunTable) -> dict[str, MetricValue]:
    """Replicas that gateways took out, over the whole run."""
    samples = len(table.replicas)
    times_s = [each.at_s for each in table.ejections]
    return {
        "ejections": MetricValue(value=float(len(times_s)), samples=samples),
        "ejected_replicas": MetricValue(
            value=float(len({each.replica_id for each in table.ejections})), samples=samples
        ),
        "first_ejection_s": MetricValue(value=min(times_s, default=math.nan), samples=samples),
    }


def _cancel_metrics(took_s: Sequence[float]) -> dict[str, MetricValue]:
    """Attempts that were stopped, over the whole run."""
    mean_s = sum(took_s) / len(took_s) if took_s else math.nan
    return {
        "cancel_mean_s": MetricValue(value=mean_s, samples=len(took_s)),
        "cancel_max_s": MetricValue(value=max(took_s, default=math.nan), samples=len(took_s)),
    }


def _load_max_over_mean(replicas: Sequence[ReplicaTotals]) -> float:
    """Tokens that the hardest-working replica passes through its model in a second, against the mean of its role."""
    found = []
    for role in sorted({replica.role for replica in replicas}):
        of_role = [replica for replica in replicas if replica.role == role and replica.up_s]
        tokens = [replica.prompt_tokens + replica.output_tokens for replica in of_role]
        rates = [num_tokens / replica.up_s for num_tokens, replica in zip(tokens, of_role, strict=True)]
        if any(tokens):
            found.append(max(rates) * sum(replica.up_s for replica in of_role) / sum(tokens))
    return max(found, default=math.nan)
