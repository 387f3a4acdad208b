"""An emulated answer that was interrupted goes on as if it had not been: tokens, text, verdict, and what is cached."""

import statistics
from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple

import msgspec
import pytest
import pytest_asyncio
from hypothesis import assume, given
from hypothesis import strategies as st

from engines import Chunk, EngineRequest
from engines.emulated.answers import Answer, Answerer
from engines.emulated.engine import EmulatedEngine
from engines.emulated.run import EmulatedRun
from engines.emulated.text import Vocabulary
from policies.errors import RequestInvalid
from policies.views import Role
from tests.engines.emulated_engines import MODEL, ask, ensure_tokenizer, is_idle, read, running, text, tokens
from tests.tables import for_each
from tests.waiting import until

EOS, THE = 0, 292
PROMPT = list(range(5, 5 + 100))


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    ensure_tokenizer()
    return Vocabulary.load(MODEL)


@pytest_asyncio.fixture
async def engine() -> AsyncIterator[EmulatedEngine]:
    ensure_tokenizer()
    async with running() as unified:
        yield unified


def rest_of(request: EngineRequest, answered: Sequence[int], answered_chars: int) -> EngineRequest:
    """What a gateway asks for when so much of the answer is out."""
    sampling, num_answered = request.sampling, len(answered)
    left = msgspec.structs.replace(
        sampling,
        max_tokens=sampling.max_tokens - num_answered,
        min_tokens=max(0, sampling.min_tokens - num_answered),
    )
    return msgspec.structs.replace(
        request,
        request_id=f"{request.request_id}-again",
        prompt_token_ids=[*request.prompt_token_ids, *answered],
        sampling=left,
        answered_tokens=num_answered,
        answered_chars=answered_chars,
    )


def write(run: EmulatedRun, answerer: Answerer, num_tokens: Sequence[int], *, is_whole: bool) -> list[Chunk]:
    """The chunks of someone who looks when there are so many tokens, and if it is the whole answer at its end."""
    run.cached_tokens = 0
    chunks = [run.read(each, answerer) for each in num_tokens]
    if is_whole:
        run.end(run.answer.finish_reason, len(run.answer.token_ids))
        chunks.append(run.read(run.final_tokens, answerer))
    return chunks


class Case(NamedTuple):
    """An answer of which something is left after ``cut`` tokens."""

    request: EngineRequest
    answer: Answer
    cut: int


@st.composite
def cases(draw: st.DrawFn, answerer: Answerer, odd_tokens: list[int]) -> Case:
    """Answers of words or of broken characters, that end by themselves, at a stop token, a stop string or a limit."""
    max_tokens = draw(st.integers(2, 60))
    few = draw(st.lists(st.sampled_from(odd_tokens), min_size=1, max_size=6, unique=True))
    sampling: dict[str, Any] = {
        "max_tokens": max_tokens,
        "min_tokens": draw(st.integers(0, max_tokens)),
        "temperature": draw(st.sampled_from([0.0, 1.0])),
        "seed": draw(st.integers(0, 3)),
        "ignore_eos": draw(st.booleans()),
        "logit_bias": draw(st.sampled_from([None, dict.fromkeys(few, 50.0), {EOS: 3.0}])),
        "include_stop_str_in_output": draw(st.booleans()),
        "skip_special_tokens": draw(st.booleans()),
        "logprobs": 1,
    }
    prompt = draw(st.lists(st.integers(0, 1023), min_size=1, max_size=4))
    free = answerer.answer(ask(prompt=prompt, **sampling))
    if draw(st.booleans()):
        sampling["stop_token_ids"] = (draw(st.sampled_from(free.token_ids)),)
    if draw(st.booleans()):
        whole = text(
            write(EmulatedRun(ask(prompt=prompt, **sampling), free, answerer._vocabulary), answerer, [], is_whole=True)
        )
        assume(whole)
        start = draw(st.integers(0, len(whole) - 1))
        sampling["stop"] = (whole[start : start + draw(st.integers(1, 6))],)
    request = ask(prompt=prompt, **sampling)
    answer = answerer.answer(request)
    assume(len(answer.token_ids) > 1)
    return Case(request, answer, draw(st.integers(1, len(answer.token_ids) - 1)))


@given(data=st.data())
def test_the_rest_is_what_would_have_come(vocabulary: Vocabulary, data: st.DataObject) -> None:
    """However the tokens were read before and after, and whatever of the text was held back."""
    answerer = Answerer(vocabulary, context_tokens=200, mean_output_tokens=20.0, seed=1)
    request, answer, cut = data.draw(cases(answerer, vocabulary.tokenizer.encode("\u00e9\U0001f600 \u20ac").ids))
    whole = write(EmulatedRun(request, answer, vocabulary), answerer, [], is_whole=True)
    before = text(write(EmulatedRun(request, answer, vocabulary), answerer, [cut], is_whole=False))
    before = before[: data.draw(st.integers(0, len(before)))]

    again = rest_of(request, answer.token_ids[:cut], len(before))
    rest = answerer.answer(again)
    looks = sorted(data.draw(st.sets(st.integers(0, len(rest.token_ids)))))
    chunks = write(EmulatedRun(again, rest, vocabulary), answerer, looks, is_whole=True)

    assert tokens(chunks) == tokens(whole)[cut:]
    assert before + text(chunks) == text(whole)
    assert (chunks[-1].finish_reason, chunks[-1].stop_reason) == (whole[-1].finish_reason, whole[-1].stop_reason)
    assert [entry for chunk in chunks for entry in chunk.logprobs or ()] == list(whole[-1].logprobs or ())[cut:]


def test_sampling_without_a_seed_goes_on_as_long_as_answers_do_that_have_come_as_far(vocabulary: Vocabulary) -> None:
    """The rest is drawn anew. Of 2,000 lengths the mean is off by 2% as a rule: ending at once would cost 40%."""
    answerer = Answerer(vocabulary, context_tokens=8192, mean_output_tokens=20.0, seed=1)
    asked = ask(temperature=1.0, max_tokens=8000, ignore_eos=False)
    fresh = [len(answerer.answer(asked).token_ids) for _ in range(8000)]
    longer = [length for length in fresh if length > 20]

    rests = [answerer.answer(rest_of(asked, [THE] * 20, 0)) for _ in range(2000)]

    assert {rest.finish_reason for rest in rests} == {"stop"}
    assert min(len(rest.token_ids) for rest in rests) == 1
    mean = statistics.mean(20 + len(rest.token_ids) for rest in rests)
    assert mean == pytest.approx(statistics.mean(longer), rel=0.09)


def test_an_answer_that_is_longer_than_any_ends_with_the_next_token(vocabulary: Vocabulary) -> None:
    answerer = Answerer(vocabulary, context_tokens=8192, mean_output_tokens=2.0, seed=1)

    rest = answerer.answer(rest_of(ask(temperature=1.0, max_tokens=8000, ignore_eos=False), [THE] * 7000, 0))

    assert (rest.token_ids, rest.finish_reason) == ([EOS], "stop")


def test_the_tokens_that_are_out_count_whoever_drew_them(vocabulary: Vocabulary) -> None:
    """Any word that comes next completes a stop string that begins with the tokens from elsewhere."""
    answerer = Answerer(vocabulary, context_tokens=8192, mean_output_tokens=20.0, seed=1)
    request = rest_of(ask(temperature=1.0, stop=("the the the ",)), [THE] * 3, len(" "))

    rest = answerer.answer(request)
    chunks = write(EmulatedRun(request, rest, vocabulary), answerer, [], is_whole=True)

    assert (len(rest.token_ids), rest.finish_reason, rest.stop_reason) == (1, "stop", "the the the ")
    assert text(chunks) == ""


async def test_the_answer_so_far_is_computed_like_a_prompt_where_it_is_not_cached(engine: EmulatedEngine) -> None:
    request = ask(prompt=PROMPT, max_tokens=200)
    async with running() as other:
        answer = tokens(await read(other.generate(request)))

    chunks = await read(engine.generate(rest_of(request, answer[:60], 0)))

    assert tokens(chunks) == answer[60:]
    assert {chunk.cached_tokens for chunk in chunks} == {0}
    assert engine.stats().prompt_tokens_total == 160
    assert engine.stats().output_tokens_total == 140


async def test_what_was_computed_before_the_interruption_is_found_in_the_cache(engine: EmulatedEngine) -> None:
    request = ask(prompt=PROMPT, max_tokens=200)
    answer = tokens(await read(engine.generate(request)))

    chunks = await read(engine.generate(rest_of(request, answer[:60], 0)))

    assert {chunk.cached_tokens for chunk in chunks} == {144}


async def test_the_next_turn_finds_an_answer_that_was_interrupted(engine: EmulatedEngine) -> None:
    """The text that a resumed request leaves in the cache is that of the whole answer."""
    request = ask(prompt=PROMPT, max_tokens=60)
    async with running() as other:
        answer = tokens(await read(other.generate(request)))
    await read(engine.generate(rest_of(request, answer[:20], 0)))

    following = await read(engine.generate(ask(prompt=[*PROMPT, *answer, 9, 9, 9])))

    assert following[0].cached_tokens == 144


@for_each(
    ("answered_tokens", "answered_chars", "param"),
    [
        (100, 0, "answered_tokens"),
        (-1, 0, "answered_tokens"),
        (0, 1, "answered_chars"),
        (3, -1, "answered_chars"),
        (3, 1000, "answered_chars"),
    ],
)
async def test_what_can_not_be_out_is_refused_and_nothing_runs(
    answered_tokens: int, answered_chars: int, param: str
) -> None:
    asked = msgspec.structs.replace(ask(prompt=PROMPT), answered_tokens=answered_tokens, answered_chars=answered_chars)
    async with running(Role.PREFILL) as prefill, running(Role.DECODE) as decode:
        handle = await prefill.prefill(ask("held", prompt=PROMPT))
        for run in (decode.generate(asked), decode.decode(asked, handle)):
            with pytest.raises(RequestInvalid) as caught:
                await read(run)
            assert caught.value.param == param
        if answered_chars != 1000:  # a prefill writes no text
            with pytest.raises(RequestInvalid):
                await prefill.prefill(asked)
        assert is_idle(decode)
        await read(decode.decode(ask("held", prompt=PROMPT), handle))
        await until(lambda: is_idle(prefill), "the handle was not used up by those who were refused")
