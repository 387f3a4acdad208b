"""Speculative decoding: what is drafted, verified and accepted, in the model of an engine."""

import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.service_rates import service_rates
from engines.model.batching import BatchLimits
from engines.model.messages import Happening, StepOutput
from engines.model.profile import EngineProfile, load_profile
from engines.model.sequences import Sequence
from engines.model.speculation import NO_SPECULATION, Drafts, Speculation
from engines.model.step_model import StepModel
from policies.errors import ConfigError
from tests.tables import for_each

PROFILE = load_profile("h100-llama3-8b")
SPECULATIONS = st.builds(
    Speculation,
    num_speculative_tokens=st.integers(1, 8),
    drafts=st.builds(Drafts, accepted_fraction=st.floats(0.01, 0.99), step_s=st.floats(0, 1e-3), token_s=st.just(0.0)),
)


def one_that_decodes(profile: EngineProfile, num_drafts: int, output_tokens: int, beside: int = 0) -> float:
    """Seconds from the first token to the last of an answer, with so many others as long beside it."""
    steps = StepModel(profile.step_model(profile.limits(), speculation=profile.speculation(num_drafts)))
    for number in range(1 + beside):
        steps.submit(Sequence(f"request-{number}", 16, output_tokens), 0.0)
    at_s: dict[Happening, float] = {each.happening: each.at_s for each in _outputs(steps)}
    return at_s[Happening.FINISHED] - at_s[Happening.FIRST_TOKEN]


def _outputs(steps: StepModel) -> Iterator[StepOutput]:
    while steps.next_event_s < float("inf"):
        yield from steps.advance(steps.next_event_s)


@given(SPECULATIONS)
def test_tokens_a_step_are_those_of_the_formula(speculation: Speculation) -> None:
    accepted, drafts = speculation.drafts.accepted_fraction, speculation.num_speculative_tokens

    assert speculation.tokens_a_step == pytest.approx((1 - accepted ** (drafts + 1)) / (1 - accepted))


def test_tokens_a_step_are_those_that_come_before_the_first_rejected_one_and_one_more() -> None:
    rng, speculation = random.Random(5), PROFILE.speculation(3)

    def step() -> int:
        return 1 + next((number for number in range(3) if rng.random() > PROFILE.drafts.accepted_fraction), 3)

    assert sum(step() for _ in range(100_000)) / 100_000 == pytest.approx(speculation.tokens_a_step, rel=0.01)


@given(SPECULATIONS, st.integers(1, 400), st.integers(1, 4))
def test_everybody_gets_all_tokens_and_no_more_in_as_many_steps_as_the_mean_says(
    speculation: Speculation, output_tokens: int, num_sequences: int
) -> None:
    steps = StepModel(PROFILE.step_model(PROFILE.limits(), speculation=speculation))
    sequences = [Sequence(f"request-{number}", 16, output_tokens) for number in range(num_sequences)]
    for sequence in sequences:
        steps.submit(sequence, 0.0)
    finished = [each.sequence for each in _outputs(steps) if each.happening is Happening.FINISHED]

    assert sorted(finished, key=lambda each: each.number) == sequences
    assert [each.num_generated for each in sequences] == [output_tokens] * num_sequences
    assert steps.batch.num_output_tokens == output_tokens * num_sequences
    decode_steps = steps.num_steps - 1
    assert decode_steps == pytest.approx((output_tokens - 1) / speculation.tokens_a_step, rel=0.01, abs=1.01)
    assert steps.batch.num_draft_tokens == decode_steps * num_sequences * speculation.num_speculative_tokens
    assert steps.batch.blocks.num_used == 0


def test_drafts_make_a_lone_answer_faster_and_a_full_batch_slower() -> None:
    alone_s, beside_others_s = (one_that_decodes(PROFILE, 0, 200, beside) for beside in (0, 255))

    assert one_that_decodes(PROFILE, 3, 200) < 0.7 * alone_s
    assert one_that_decodes(PROFILE, 3, 200, beside=255) > 1.1 * beside_others_s


def test_a_step_costs_its_drafts_and_their_verification() -> None:
    drafts, step = PROFILE.drafts, PROFILE.step
    tokens, context = 100, 2  # of which the last one has a step of its own, whatever the others accept
    plain_s = one_that_decodes(PROFILE, 0, context, beside=tokens - 1)

    more_s = 2 * (drafts.step_s + tokens * (drafts.token_s + step.new_token_s))
    assert one_that_decodes(PROFILE, 2, context, beside=tokens - 1) == pytest.approx(plain_s + more_s)


def test_an_answer_that_ends_in_the_middle_of_a_step_leaves_its_blocks_and_its_text_as_they_are() -> None:
    steps = StepModel(PROFILE.step_model(PROFILE.limits(), speculation=PROFILE.speculation(7)))
    first = Sequence("first", 16, 3, content=(1,), content_unit_tokens=16)
    steps.submit(first, 0.0)
    list(_outputs(steps))
    assert (first.num_generated, first.num_computed) == (3, 18)  # nobody computes the last token

    second = Sequence("second", 40, 2, content=(1, 2), content_unit_tokens=16)
    steps.submit(second, 10.0)
    list(_outputs(steps))
    assert second.cached_tokens == 16


@for_each("num_drafts", [1, 3, 15])
def test_one_that_just_fits_into_the_kv_cache_ends(num_drafts: int) -> None:
    speculation = PROFILE.speculation(num_drafts)
    steps = StepModel(PROFILE.step_model(PROFILE.limits(), kv_capacity_tokens=160, speculation=speculation))
    most = max(tokens for tokens in range(1, 160) if steps.fits(32, tokens))
    steps.submit(Sequence("request", 32, most), 0.0)

    assert [each.happening for each in _outputs(steps)] == [Happening.FIRST_TOKEN, Happening.FINISHED]
    assert steps.batch.num_preemptions == 0


@for_each(
    ("num_drafts", "limits", "field"),
    [
        (16, {}, "num_speculative_tokens"),
        (-1, {}, "num_speculative_tokens"),
        (3, {"max_num_seqs": 256, "max_num_batched_tokens": 1000}, "max_num_batched_tokens"),
    ],
)
def test_drafts_that_a_step_has_no_room_for_are_refused(num_drafts: int, limits: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        PROFILE.step_model(PROFILE.limits(**limits), speculation=PROFILE.speculation(num_drafts))

    assert caught.value.field == field


def test_drafts_that_the_profile_knows_nothing_of_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="vllm-cpu-tiny does not say what fraction of draft tokens is accepted"):
        load_profile("vllm-cpu-tiny").speculation(2)


def test_a_step_that_verifies_drafts_leaves_less_of_its_budget_to_prompts() -> None:
    limits = BatchLimits(max_num_seqs=8, max_num_batched_tokens=64)
    steps = StepModel(PROFILE.step_model(limits, speculation=PROFILE.speculation(3)))
    for number in range(4):
        steps.submit(Sequence(f"request-{number}", 4, 50), 0.0)
    steps.advance(steps.next_event_s)
    steps.submit(Sequence("long", 200, 5), 0.0)
    steps.advance(steps.next_event_s)

    assert steps.batch.scheduled_tokens()["long"] == 64 - 4 * (1 + 3)


@for_each("num_drafts", [0, 1, 4])
def test_the_router_and_the_engine_agree_on_the_time_per_token(num_drafts: int) -> None:
    limits = PROFILE.limits()
    rates = service_rates(PROFILE, limits, limits.max_num_seqs, PROFILE.speculation(num_drafts))
    output_tokens, num_sequences = 400, 24
    kv_tokens = num_sequences * (16 + output_tokens // 2)

    took_s = one_that_decodes(PROFILE, num_drafts, output_tokens, beside=num_sequences - 1)
    assert took_s / (output_tokens - 1) == pytest.approx(rates.token_s(num_sequences, kv_tokens), rel=0.01)


def test_an_answer_costs_the_router_as_many_steps_as_it_takes() -> None:
    limits, speculation = PROFILE.limits(), PROFILE.speculation(3)
    plain, drafted = (service_rates(PROFILE, limits, 256, each) for each in (NO_SPECULATION, speculation))
    more_s = speculation.sequence_s(PROFILE.step.new_token_s)

    assert drafted.token_step_s == pytest.approx((plain.step_s + speculation.step_s) / speculation.tokens_a_step)
    assert drafted.answer_s(100, 200) == pytest.approx(
        (plain.answer_s(100, 200) + 200 * more_s) / speculation.tokens_a_step
    )
    assert drafted.prefill_s(5000, 4000) == plain.prefill_s(5000, 4000)
