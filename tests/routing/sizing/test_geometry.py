from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.service_rates import service_rates
from engines.model.batching import BatchLimits
from engines.model.cost_model import StepWork, attention_pairs
from engines.model.profile import load_profile
from policies import RequestView
from routing.prefixes.prefix_tracking import NoPrefixTracker
from routing.sizing.geometry import GeometryEstimator, ServiceRates
from routing.sizing.length_prediction import MaxTokens, OutputEstimate
from tests.policy_doubles import a_request

PROFILE = load_profile("vllm-cpu-tiny")
LIMITS = PROFILE.limits()
RATES = service_rates(PROFILE, LIMITS, LIMITS.max_num_seqs)


def test_the_router_reckons_a_decode_step_and_a_handoff_as_the_engine_does() -> None:
    assert RATES.decode_step_s(40, 9_000) == pytest.approx(PROFILE.step.seconds(StepWork(40, 0, 40, 9_000)))
    transfer_s = PROFILE.kv.transfer_overhead_s + 1000 * PROFILE.kv.bytes_per_token / PROFILE.kv.bandwidth_bytes_per_s
    assert RATES.handoff_s + 1000 * RATES.handoff_token_s == pytest.approx(transfer_s)


def test_the_prompt_lengthens_the_steps_that_it_shares_by_its_time_without_their_own() -> None:
    shared = PROFILE.step.seconds(StepWork(500 + 40, attention_pairs(500, 100), 41, 9_000))
    alone = PROFILE.step.seconds(StepWork(40, 0, 41, 9_000))

    assert RATES.compute_s(600, 500) == pytest.approx(shared - alone)


def test_prompts_that_wait_take_at_least_their_share_of_full_steps() -> None:
    assert RATES.queue_s(0) == 0.0
    assert RATES.queue_s(2 * RATES.step_tokens) == pytest.approx(
        2 * PROFILE.step.seconds(StepWork(RATES.step_tokens, 0, 0, 0))
    )


class Cached(NoPrefixTracker):
    """These replicas have these many tokens of every prompt."""

    def __init__(self, tokens_by_replica: Mapping[str, int]) -> None:
        self._tokens_by_replica = tokens_by_replica

    def cached_tokens(self, request: RequestView) -> Mapping[str, int]:
        return self._tokens_by_replica


class AlwaysTen:
    """Every answer has ten tokens, twelve at most."""

    wants_ngrams = None

    def predict(self, request: RequestView) -> OutputEstimate:
        return OutputEstimate(10, 12)

    def observe(self, request: RequestView, output_tokens: int) -> None: ...


def with_prefix(prompt_tokens: int) -> RequestView:
    return a_request(prompt_tokens=prompt_tokens, prefix_blocks=(1, 2, 3), prefix_block_tokens=16)


def prefill_step_s(prompt_tokens: int, cached_tokens: int, limits: BatchLimits) -> float:
    """What the engine's own cost model says of the prompt, chunk by chunk."""
    total_s, done = 0.0, cached_tokens
    while done < prompt_tokens:
        chunk = min(limits.max_num_batched_tokens, prompt_tokens - done)
        total_s += PROFILE.step.seconds(StepWork(chunk, attention_pairs(chunk, done), 1, 0, int(total_s == 0)))
        done += chunk
    return total_s


@given(uncached_tokens=st.integers(1, 20_000), cached_tokens=st.integers(0, 20_000))
def test_prefill_seconds_are_those_of_the_engines_own_model(uncached_tokens: int, cached_tokens: int) -> None:
    prompt_tokens = uncached_tokens + cached_tokens

    found = RATES.prefill_s(prompt_tokens, uncached_tokens)

    assert found == pytest.approx(prefill_step_s(prompt_tokens, cached_tokens, LIMITS), rel=1e-9)


@given(prompt_tokens=st.integers(1, 8000), output_tokens=st.integers(1, 2000))
def test_decode_seconds_are_a_full_batchs_divided_by_its_sequences(prompt_tokens: int, output_tokens: int) -> None:
    """Requests alike that decode side by side share the steps equally."""
    batch = RATES.decode_batch
    contexts = (prompt_tokens + step for step in range(1, output_tokens + 1))
    together_s = sum(PROFILE.step.seconds(StepWork(batch, 0, batch, batch * context)) for context in contexts)

    found = RATES.decode_s(prompt_tokens, output_tokens)

    half_a_token_s = output_tokens * RATES.context_token_s  # of context, in each step
    assert found == pytest.approx(together_s / batch, rel=1e-9, abs=half_a_token_s)


def test_the_uncached_part_is_what_the_best_replica_would_have_to_compute() -> None:
    estimator = GeometryEstimator(MaxTokens(), Cached({"a": 16, "b": 48}), RATES)

    geometry = estimator.estimate(with_prefix(100))

    assert geometry.uncached_tokens == 52
    assert geometry.prefill_s == RATES.prefill_s(100, 52)


def test_a_prompt_that_is_cached_as_a_whole_still_computes_one_token() -> None:
    assert GeometryEstimator(MaxTokens(), Cached({"a": 48}), RATES).estimate(with_prefix(48)).uncached_tokens == 1


def test_without_blocks_nobody_asks_what_is_cached() -> None:
    estimator = GeometryEstimator(MaxTokens(), Cached({"a": 48}), RATES)

    assert estimator.estimate(a_request(prompt_tokens=100)).uncached_tokens == 100


def test_the_answer_is_as_long_as_the_predictor_says() -> None:
    geometry = GeometryEstimator(AlwaysTen(), NoPrefixTracker(), RATES).estimate(a_request(max_output_tokens=500))

    assert (geometry.output_tokens, geometry.output_tokens_high) == (10, 12)
    assert geometry.decode_s == RATES.decode_s(100, 10)


def test_without_a_profile_a_request_takes_no_seconds() -> None:
    geometry = GeometryEstimator(MaxTokens(), NoPrefixTracker(), ServiceRates()).estimate(a_request())

    assert (geometry.prefill_s, geometry.decode_s) == (0.0, 0.0)
