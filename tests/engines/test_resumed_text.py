"""The text of an answer that vLLM goes on with, against vLLM's own text of the answer without an interruption."""

import itertools
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from engines import EngineRequest
from engines.resumed_text import ResumedText, resumed
from policies.errors import RequestInvalid
from tests.engines.emulated_engines import MODEL, ask, ensure_tokenizer
from tests.engines.vllm.test_resumed_answers import rest_of

pytestmark = pytest.mark.vllm

STOP_TOKEN = 7


@dataclass(slots=True)
class Said:
    """What vLLM says of a request in one output, as far as it is looked at; a token is its own log probability."""

    token_ids: Sequence[int]
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: list[int] | None = None
    text: str = "vLLM's own, of a text that begins here"


@dataclass(slots=True)
class Stepped:
    """An output of vLLM."""

    outputs: list[Said] = field(default_factory=list)


class Whole(NamedTuple):
    """An answer, and how much of its text was out after each token."""

    token_ids: list[int]
    text: str
    finish_reason: str
    stop_reason: int | str | None
    num_given: list[int]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    ensure_tokenizer()
    return AutoTokenizer.from_pretrained(MODEL)


def vllms_detokenizer(tokenizer: Any, request: EngineRequest) -> Any:
    """As the engine makes it, for whole requests and for the rest of one."""
    from engines.vllm.engine import _detokenizer, _sampling_params

    return _detokenizer(tokenizer, request, _sampling_params(request, None, tokenizer))


def written_by_vllm(tokenizer: Any, request: EngineRequest, tokens: Sequence[int]) -> Whole:
    """The answer as vLLM's output processor makes it, token by token."""
    detokenizer = vllms_detokenizer(tokenizer, request)
    text, num_given = "", []
    for place, token in enumerate(tokens):
        finish_reason, stop_reason = _verdict(tokens, place)
        stop = detokenizer.update([token], finish_reason == "stop")
        if stop is not None:
            finish_reason, stop_reason = "stop", stop
        text += detokenizer.get_next_output_text(finish_reason is not None, True)
        num_given.append(len(text))
        if finish_reason is not None:
            return Whole(list(tokens[: place + 1]), text, finish_reason, stop_reason, num_given)
    raise AssertionError("the last token has a verdict")


def _verdict(tokens: Sequence[int], place: int) -> tuple[str | None, int | None]:
    """What the engine core, which knows stop tokens and limits, says after a token."""
    if place < len(tokens) - 1:
        return None, None
    return ("stop", STOP_TOKEN) if tokens[-1] == STOP_TOKEN else ("length", None)


def outputs_of(tokens: Sequence[int], ends: Sequence[int]) -> list[Said]:
    """The tokens in pieces that end there; the last has the engine core's verdict."""
    bounds = [0, *ends, len(tokens)]
    pieces = [list(tokens[start:end]) for start, end in itertools.pairwise(bounds)]
    said = [Said(piece, logprobs=list(piece)) for piece in pieces]
    said[-1].finish_reason, said[-1].stop_reason = _verdict(tokens, len(tokens) - 1)
    return said


def put_right(text: ResumedText, outputs: list[Said]) -> list[Said]:
    """What is given out, up to the output in which the engine is stopped."""
    given_out = []
    for output in outputs:
        given_out.append(output)
        if text.put_right(output):
            break
    return given_out


@st.composite
def answers(draw: st.DrawFn, tokenizer: Any) -> list[int]:
    """Sense or none, special tokens and broken characters included; a stop token may come last."""
    sense = st.text(st.sampled_from("ab \u00e9\u20ac\U0001f600"), max_size=12).map(
        lambda text: list(tokenizer.encode(text))
    )
    tokens = draw(st.lists(st.integers(0, 1023), max_size=12)) + draw(sense) + draw(sense)
    tokens = [token for token in tokens if token != STOP_TOKEN] + [STOP_TOKEN] * draw(st.booleans())
    assume(len(tokens) > 1)
    return tokens


@given(data=st.data())
def test_text_before_and_after_are_the_text_without_an_interruption(tokenizer: Any, data: st.DataObject) -> None:
    """Wherever it was interrupted, however the tokens come and whatever stops the answer."""
    tokens = data.draw(answers(tokenizer))
    sampling: dict[str, Any] = {
        "max_tokens": len(tokens),
        "min_tokens": data.draw(st.integers(0, len(tokens))),
        "stop_token_ids": (STOP_TOKEN,),
        "include_stop_str_in_output": data.draw(st.booleans()),
        "skip_special_tokens": data.draw(st.booleans()),
    }
    prompt = data.draw(st.lists(st.integers(0, 1023), min_size=1, max_size=10))
    free = written_by_vllm(tokenizer, ask(prompt=prompt, **sampling), tokens).text
    if free and data.draw(st.booleans()):
        starts = data.draw(st.lists(st.integers(0, len(free) - 1), min_size=1, max_size=3))
        sampling["stop"] = tuple(free[start : start + data.draw(st.integers(1, 6))] for start in starts)
    request = ask(prompt=prompt, **sampling)
    whole = written_by_vllm(tokenizer, request, tokens)
    assume(len(whole.token_ids) > 1)
    cut = data.draw(st.integers(1, len(whole.token_ids) - 1))
    num_given = whole.num_given[cut - 1]

    rest = rest_of(request, tokens[:cut], num_given)
    ends = sorted(data.draw(st.sets(st.integers(0, len(tokens) - cut - 1))))
    text = ResumedText(vllms_detokenizer(tokenizer, rest), rest)
    said = put_right(text, outputs_of(tokens[cut:], ends))

    assert [token for each in said for token in each.token_ids] == whole.token_ids[cut:]
    assert whole.text[:num_given] + "".join(each.text for each in said) == whole.text
    assert (said[-1].finish_reason, said[-1].stop_reason) == (whole.finish_reason, whole.stop_reason)
    assert [each.finish_reason for each in said[:-1]] == [None] * (len(said) - 1)
    assert [each.logprobs for each in said] == [each.token_ids for each in said]


def resumed_text(tokenizer: Any, out: str = " the", **sampling: Any) -> ResumedText:
    """After " the th", of which " the" is out."""
    answered = tokenizer.encode(" the th")
    request = rest_of(ask(**sampling), answered, len(out))
    return ResumedText(vllms_detokenizer(tokenizer, request), request)


def test_what_was_held_back_comes_with_the_first_token(tokenizer: Any) -> None:
    said = Said(tokenizer.encode(" of"))

    assert not resumed_text(tokenizer).put_right(said)

    assert said.text == " th of"


def test_a_stop_string_that_began_before_the_interruption_ends_the_answer(tokenizer: Any) -> None:
    said = Said(tokenizer.encode(" of it"), logprobs=[1, 2])

    assert resumed_text(tokenizer, stop=("th of",)).put_right(said)

    assert (said.text, said.finish_reason, said.stop_reason) == (" ", "stop", "th of")
    assert (said.token_ids, said.logprobs) == (tokenizer.encode(" of"), [1])


def test_what_may_become_a_stop_string_is_held_back(tokenizer: Any) -> None:
    first, last = Said(tokenizer.encode(" of")), Said(tokenizer.encode(" it"), "length")
    text = resumed_text(tokenizer, stop=("of that",))

    for each in (first, last):
        assert not text.put_right(each)

    assert first.text == ""
    assert last.text == " th of it"


def test_nothing_comes_twice_where_more_is_out_than_this_engine_would_have_given(tokenizer: Any) -> None:
    """Another one need not hold as much back, and an abort gives out all there is."""
    first, last = Said(tokenizer.encode(" of")), Said(tokenizer.encode(" it"), "length")
    text = resumed_text(tokenizer, out=" the th", stop=("of that",))

    for each in (first, last):
        assert not text.put_right(each)

    assert (first.text, last.text) == ("", " of it")


def test_an_abort_gives_out_what_was_held_back(tokenizer: Any) -> None:
    said = Said([], "abort")

    assert not resumed_text(tokenizer, stop=("th of",)).put_right(said)

    assert (said.text, said.finish_reason) == (" th", "abort")


def test_more_characters_than_the_answer_has_are_refused(tokenizer: Any) -> None:
    request = rest_of(ask(), tokenizer.encode(" the"), len(" the") + 1)

    with pytest.raises(RequestInvalid) as caught:
        ResumedText(vllms_detokenizer(tokenizer, request), request)

    assert caught.value.param == "answered_chars"


class Core:
    """An engine's stream, and how it ended."""

    def __init__(self, said: list[Said]) -> None:
        self._said = said
        self.end = "open"

    async def stream(self) -> AsyncGenerator[Stepped, None]:
        try:
            for each in self._said:
                yield Stepped([each])
            self.end = "by itself"
        except GeneratorExit:
            self.end = "closed"
            raise


async def test_a_stop_string_stops_the_engine(tokenizer: Any) -> None:
    core = Core([Said(tokenizer.encode(" of")), Said(tokenizer.encode(" it")), Said([5], "length")])

    given_out = [each async for each in resumed(core.stream(), resumed_text(tokenizer, stop=("th of",)))]

    assert [each.outputs[0].finish_reason for each in given_out] == ["stop"]
    assert core.end == "closed"


async def test_an_engine_that_ends_by_itself_is_not_stopped(tokenizer: Any) -> None:
    core = Core([Said(tokenizer.encode(" of")), Said(tokenizer.encode(" it"), "length")])

    given_out = [each async for each in resumed(core.stream(), resumed_text(tokenizer))]

    assert [each.outputs[0].finish_reason for each in given_out] == [None, "length"]
    assert core.end == "by itself"


def test_vllm_makes_the_text_of_a_whole_answer_in_the_end(tokenizer: Any) -> None:
    """The reference of these tests is sound: without stops it is what the tokens decode to."""
    tokens = tokenizer.encode("the of \u00e9\U0001f600 and")

    whole = written_by_vllm(tokenizer, msgspec.structs.replace(ask(max_tokens=99)), tokens)

    assert whole.text == "the of \u00e9\U0001f600 and"
