"""Work done for each second of work needed: what engines found cached was computed by nobody, whoever expected it."""

import pytest
from ray.exceptions import ActorDiedError

from deployments.gateway.open_request import ServeOpenRequest
from engines.contract import Chunk, EngineRequest, KvHandle, Sampling
from policies import RequestView, Role
from tests.deployments.host_dialogue import RATES, Call, HostDialogue
from tests.routing.dialogue import completed

PROMPT, CACHED, OUTPUT = 4_000, 3_600, 60
TOKENS = tuple(range(1, OUTPUT + 1))


async def arrives(talk: HostDialogue) -> tuple[ServeOpenRequest, Call]:
    """A request ``q`` comes in, and its first attempt is sent."""
    view = RequestView(request_id="q", prompt_tokens=PROMPT, max_output_tokens=100, arrival_s=0.0, deadline_s=60.0)
    request = EngineRequest(request_id="q", prompt_token_ids=[7] * PROMPT, sampling=Sampling(max_tokens=100))
    await talk.turn()
    return talk.host.submit(view, request), await talk.call("q.0")


def work(talk: HostDialogue) -> tuple[float, float]:
    """Done and needed."""
    sums = {sample.name: sample.value for metric in talk.metrics.own() for sample in metric.samples}
    return sums["spillway_work_done_seconds_total"], sums["spillway_work_needed_seconds_total"]


def prefill_s(computed_tokens: int) -> float:
    return RATES.prefill_s(PROMPT, computed_tokens)


async def test_a_whole_request_of_which_most_was_cached_makes_no_debt() -> None:
    talk = HostDialogue().replicas(Role.UNIFIED, "a")
    opened, call = await arrives(talk)
    assert call.work[0] == PROMPT, "nobody knew of it beforehand"
    call.gives(Chunk("x", TOKENS[:1], cached_tokens=CACHED), Chunk("y", TOKENS[1:], "stop", cached_tokens=CACHED))
    assert (await talk.answer(opened))[1] == completed()

    done_s, needed_s = work(talk)

    assert done_s == pytest.approx(needed_s)
    assert done_s == pytest.approx(prefill_s(PROMPT - CACHED) + RATES.decode_s(PROMPT, OUTPUT))


async def handed_over(said: int | None) -> tuple[float, float]:
    """What there is of a handoff, by what the prefill engine says of its cache."""
    talk = HostDialogue(planner="always_disaggregated").replicas(Role.PREFILL, "p").replicas(Role.DECODE, "d")
    opened, prefill = await arrives(talk)
    talk.host.on_accepted("q.0", "p")
    await talk.turn()
    prefill.gives(KvHandle({}, PROMPT, cached_tokens=said))
    (await talk.call("q.1")).gives(Chunk("x", TOKENS, "stop", cached_tokens=CACHED))
    assert (await talk.answer(opened))[1] == completed()
    return work(talk)


async def test_a_handoff_of_which_most_was_cached_makes_no_debt() -> None:
    done_s, needed_s = await handed_over(CACHED)
    assert done_s == pytest.approx(needed_s)
    assert done_s == pytest.approx(prefill_s(PROMPT - CACHED) + RATES.decode_s(PROMPT, OUTPUT))


async def test_a_prefill_engine_that_does_not_say_is_taken_to_have_done_what_was_expected() -> None:
    done_s, _ = await handed_over(None)
    assert done_s == pytest.approx(prefill_s(PROMPT) + RATES.decode_s(PROMPT, OUTPUT))


async def test_an_attempt_that_ends_before_its_first_token_has_done_what_was_expected() -> None:
    talk = HostDialogue().replicas(Role.UNIFIED, "a")
    await arrives(talk)
    talk.host.on_accepted("q.0", "a")
    await talk.turn()
    talk.host.abandon("q")
    await talk.turn()
    done_s, needed_s = work(talk)

    assert done_s == pytest.approx(prefill_s(PROMPT))
    assert needed_s == 0


async def test_an_answer_that_goes_on_elsewhere_computes_its_beginning_once_more_but_for_what_is_cached() -> None:
    talk = HostDialogue().replicas(Role.UNIFIED, "a", "b")
    opened, first = await arrives(talk)
    first.gives(Chunk("x", TOKENS[:40], cached_tokens=CACHED))
    await talk.turn()
    first.breaks(ActorDiedError())
    (await talk.call("q.1")).gives(Chunk("y", TOKENS[40:], "stop", cached_tokens=1_000))
    assert (await talk.answer(opened))[1] == completed()

    done_s, needed_s = work(talk)

    assert needed_s == pytest.approx(prefill_s(PROMPT - CACHED) + RATES.decode_s(PROMPT, OUTPUT))
    again_s = RATES.prefill_s(PROMPT + 40, PROMPT + 40 - 1_000)
    decoded_s = RATES.decode_s(PROMPT, 40) + RATES.decode_s(PROMPT + 40, OUTPUT - 40)
    assert done_s == pytest.approx(prefill_s(PROMPT - CACHED) + again_s + decoded_s)


BLOCK_TOKENS = 1_000
PREFIX = (1, 2, 3)


async def shares_a_prefix(talk: HostDialogue, name: str) -> ServeOpenRequest:
    view = RequestView(
        request_id=name,
        prompt_tokens=PROMPT,
        max_output_tokens=100,
        arrival_s=0.0,
        deadline_s=60.0,
        prefix_blocks=PREFIX,
        prefix_block_tokens=BLOCK_TOKENS,
    )
    request = EngineRequest(request_id=name, prompt_token_ids=[7] * PROMPT, sampling=Sampling(max_tokens=100))
    await talk.turn()
    return talk.host.submit(view, request)


def expected_and_found(talk: HostDialogue) -> tuple[float, float]:
    """Prompt tokens that gateways took to be cached, and that engines found there."""
    sums = {sample.name: sample.value for metric in talk.metrics.own() for sample in metric.samples}
    names = "expected_cached_prompt_tokens_total", "cached_prompt_tokens_total"
    expected, found = (sums[f"spillway_{name}"] for name in names)
    return expected, found


async def test_what_a_gateway_expected_in_a_cache_is_counted_beside_what_was_there() -> None:
    talk = HostDialogue().replicas(Role.UNIFIED, "a")
    for name in ("first", "second"):
        opened = await shares_a_prefix(talk, name)
        (await talk.call(f"{name}.0")).gives(Chunk("x", TOKENS, "stop", cached_tokens=BLOCK_TOKENS))
        await talk.answer(opened)

    assert expected_and_found(talk) == (len(PREFIX) * BLOCK_TOKENS, 2 * BLOCK_TOKENS)


async def test_a_handoffs_prompt_was_expected_in_the_cache_of_its_prefill_replica() -> None:
    talk = HostDialogue(planner="always_disaggregated").replicas(Role.PREFILL, "p").replicas(Role.DECODE, "d")
    for name in ("first", "second"):
        opened = await shares_a_prefix(talk, name)
        (await talk.call(f"{name}.0")).gives(KvHandle({}, PROMPT, cached_tokens=BLOCK_TOKENS))
        (await talk.call(f"{name}.1")).gives(Chunk("x", TOKENS, "stop", cached_tokens=BLOCK_TOKENS))
        await talk.answer(opened)

    assert expected_and_found(talk) == (len(PREFIX) * BLOCK_TOKENS, 2 * BLOCK_TOKENS)
