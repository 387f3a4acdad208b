"""What an emulated model answers, and how its tokens become text."""

import itertools
import math
import statistics
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from engines.contract import EngineRequest, StructuredOutput
from engines.emulated.answers import Answer, Answerer
from engines.emulated.text import BROKEN, TextStream, Vocabulary, content_of
from policies.errors import ConfigError, RequestInvalid
from tests.engines.emulated_engines import MODEL, ask, ensure_tokenizer
from tests.tables import for_each

MEAN_TOKENS = 50.0
EOS = 0
THE = 292


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    ensure_tokenizer()
    return Vocabulary.load(MODEL)


@pytest.fixture
def answerer(vocabulary: Vocabulary) -> Answerer:
    return Answerer(vocabulary, context_tokens=8192, mean_output_tokens=MEAN_TOKENS, seed=1)


def written(vocabulary: Vocabulary, answer: Answer) -> str:
    text = TextStream(vocabulary, [5, 6, 7, 8], True).feed(answer.token_ids[: answer.num_text_tokens])
    return text if answer.text_end is None else text[: answer.text_end]


# -- which tokens -----------------------------------------------------------------------------------------------------


def test_a_greedy_answer_is_the_prompts_own_in_every_process_and_version(answerer: Answerer) -> None:
    assert answerer.answer(ask(max_tokens=6)).token_ids == [471, 305, 1011, 1008, 494, 882]


def test_a_longer_answer_begins_with_the_shorter_one(answerer: Answerer) -> None:
    short, long = (answerer.answer(ask(max_tokens=size)).token_ids for size in (10, 500))

    assert long[:10] == short


def test_answers_that_go_on_after_a_prefills_first_token_are_as_long_as_others(answerer: Answerer) -> None:
    """Most end with the first token here, so that one that was drawn twice would show: 0.6 of them, not 0.36."""
    asked = ask(temperature=1.0, ignore_eos=False, max_tokens=2000, logit_bias={EOS: math.log(MEAN_TOKENS / 2)})
    whole = [len(answerer.answer(asked).token_ids) for _ in range(2000)]
    handed_over = [_handed_over_tokens(answerer, asked) for _ in range(2000)]

    ends_at_once = statistics.mean(each == 1 for each in whole)
    assert 0.4 < ends_at_once < 0.8
    assert statistics.mean(each == 1 for each in handed_over) == pytest.approx(ends_at_once, abs=0.06)
    assert statistics.mean(handed_over) == pytest.approx(statistics.mean(whole), rel=0.15)


def _handed_over_tokens(answerer: Answerer, asked: EngineRequest) -> int:
    first = answerer.first_token(asked)
    if first.finish_reason == "stop":
        return 1
    return 1 + len(answerer.answer(asked.after(first.token_ids, 0)).token_ids)


def test_another_prompt_has_another_answer(answerer: Answerer) -> None:
    assert answerer.answer(ask()).token_ids != answerer.answer(ask(prompt=[5, 6, 7, 9])).token_ids


def test_a_seed_counts_when_tokens_are_sampled(answerer: Answerer) -> None:
    def sample(**sampling: Any) -> list[int]:
        return answerer.answer(ask(**{"temperature": 1.0, **sampling})).token_ids

    assert sample(seed=1) == sample(seed=1) != sample(seed=2)
    assert sample(seed=1, temperature=0.0) == sample(seed=2, temperature=0.0) == sample(seed=3, top_k=1)


def test_sampling_without_a_seed_gives_another_answer_each_time_and_the_same_ones_to_an_engine_of_the_same_seed(
    vocabulary: Vocabulary,
) -> None:
    engines = [Answerer(vocabulary, 8192, MEAN_TOKENS, seed=4) for _ in range(2)]

    first, second = ([engine.answer(ask(temperature=1.0)).token_ids for _ in range(3)] for engine in engines)

    assert first == second
    assert len({tuple(each) for each in first}) == 3


def test_answers_are_words(vocabulary: Vocabulary, answerer: Answerer) -> None:
    text = written(vocabulary, answerer.answer(ask(max_tokens=200)))

    assert len(text.split()) == 200
    assert text.replace(" ", "").isalpha()
    assert text.isascii()


def test_a_bias_moves_the_odds_as_it_does_in_a_real_model(answerer: Answerer) -> None:
    """e^5 against some 300 words of weight 1 each, and 0 for a token that is no word; within 4 standard errors."""
    draws = answerer.answer(ask(max_tokens=4000, logit_bias={THE: 5.0, 40: 5.0})).token_ids
    num_words = len(answerer._vocabulary.words)
    expected = math.exp(5) / (math.exp(5) + num_words - 1)

    assert draws.count(THE) / 4000 == pytest.approx(expected, abs=4 * math.sqrt(expected * (1 - expected) / 4000))
    assert 40 not in draws


def test_a_bias_of_a_hundred_forces_a_token_and_one_of_minus_a_hundred_bans_it(answerer: Answerer) -> None:
    assert set(answerer.answer(ask(max_tokens=50, logit_bias={40: 100.0})).token_ids) == {40}
    assert THE not in answerer.answer(ask(max_tokens=4000, logit_bias={THE: -100.0})).token_ids


def test_only_allowed_tokens_come_and_words_before_others(answerer: Answerer) -> None:
    """As in a real model, whose odds for what is no word are small."""
    asked = ask(max_tokens=4000, allowed_token_ids=(THE, 40, 41, EOS))

    assert set(answerer.answer(asked).token_ids) == {THE}
    assert set(answerer.answer(ask(max_tokens=400, allowed_token_ids=(40, 41))).token_ids) == {40, 41}
    biased = ask(max_tokens=400, allowed_token_ids=(THE, 40), logit_bias={40: 100.0, 41: 100.0})
    assert set(answerer.answer(biased).token_ids) == {40}


def test_an_answer_ends_by_itself_where_end_of_text_is_allowed(answerer: Answerer) -> None:
    def end_of(*allowed: int) -> tuple[str, int]:
        answer = answerer.answer(ask(max_tokens=4000, ignore_eos=False, allowed_token_ids=allowed))
        return answer.finish_reason, answer.token_ids[-1]

    assert end_of(THE) == ("length", THE)
    assert end_of(THE, EOS) == ("stop", EOS)
    only_end = answerer.answer(ask(max_tokens=40, ignore_eos=False, allowed_token_ids=(EOS,)))
    assert (only_end.token_ids, only_end.finish_reason) == ([EOS], "stop")


@for_each(
    ("param", "value", "why"),
    [
        ("structured_output", StructuredOutput("json_object"), "knows no grammars"),
        ("bad_words", ("no",), "logit_bias may do"),
        ("prompt_logprobs", 0, "computes no prompt"),
    ],
)
def test_what_an_emulated_engine_cant_honour_is_refused_by_name(
    answerer: Answerer, param: str, value: Any, why: str
) -> None:
    with pytest.raises(RequestInvalid, match=why) as refused:
        answerer.answer(ask(**{param: value}))
    assert refused.value.param == param


# -- how many ---------------------------------------------------------------------------------------------------------


def test_answers_that_end_by_themselves_have_the_mean_length(answerer: Answerer) -> None:
    """The standard deviation is the mean, so the mean of 2,000 is off by 2% as a rule and by 9% never."""
    answers = [
        answerer.answer(ask(prompt=[5 + n % 200, 5 + n // 200], max_tokens=8000, ignore_eos=False)) for n in range(2000)
    ]

    assert statistics.mean(len(each.token_ids) for each in answers) == pytest.approx(MEAN_TOKENS, rel=0.09)
    assert {each.finish_reason for each in answers} == {"stop"}
    assert {each.token_ids[-1] for each in answers} == {EOS}
    assert all(EOS not in each.token_ids[:-1] for each in answers)
    assert {each.stop_reason for each in answers} == {None}


@given(
    prompt=st.lists(st.integers(5, 900), min_size=1, max_size=4),
    max_tokens=st.integers(1, 300),
    min_fraction=st.floats(0, 1),
    end=st.sampled_from([None, -100.0, 0.0, 100.0]),
)
def test_an_answer_keeps_to_its_bounds(
    vocabulary: Vocabulary, prompt: list[int], max_tokens: int, min_fraction: float, end: float | None
) -> None:
    """``end`` is the bias on end-of-text; ``None`` ignores it."""
    answerer = Answerer(vocabulary, 200, MEAN_TOKENS, seed=1)
    min_tokens = int(max_tokens * min_fraction)
    limit = min(max_tokens, 200 - len(prompt))

    answer = answerer.answer(
        ask(
            prompt=prompt,
            max_tokens=max_tokens,
            min_tokens=min_tokens,
            ignore_eos=end is None,
            logit_bias={EOS: end or 0.0},
        )
    )

    if answer.finish_reason == "length":
        assert len(answer.token_ids) == limit
        assert EOS not in answer.token_ids
    else:
        assert end is not None
        assert min_tokens < len(answer.token_ids) <= limit
    if end:
        assert (answer.finish_reason == "stop") == (end > 0 and min_tokens < limit)


# -- where it stops ---------------------------------------------------------------------------------------------------


@for_each(("include", "hidden"), [(False, 1), (True, 0)])
def test_a_stop_token_is_counted_and_not_written_unless_it_is_wanted(
    answerer: Answerer, include: bool, hidden: int
) -> None:
    free = answerer.answer(ask()).token_ids

    answer = answerer.answer(ask(stop_token_ids=(free[7],), include_stop_str_in_output=include))

    assert answer == Answer(free[:8], "stop", free[7], 8 - hidden, None)


@for_each("include", [False, True])
def test_a_stop_string_ends_the_text_before_or_after_it(
    vocabulary: Vocabulary, answerer: Answerer, include: bool
) -> None:
    free = answerer.answer(ask())
    text = written(vocabulary, free)
    stop = text[30:36]

    answer = answerer.answer(ask(stop=(stop, "no such text"), include_stop_str_in_output=include))

    assert written(vocabulary, answer) == text[: text.index(stop) + (len(stop) if include else 0)]
    assert (answer.finish_reason, answer.stop_reason) == ("stop", stop)
    assert len(answer.token_ids) < len(free.token_ids)
    assert answer.token_ids == free.token_ids[: len(answer.token_ids)]


def test_nothing_stops_an_answer_before_its_least_length(vocabulary: Vocabulary, answerer: Answerer) -> None:
    free = answerer.answer(ask(logit_bias={THE: 100.0}))

    by_token = answerer.answer(ask(logit_bias={THE: 100.0}, stop_token_ids=(THE,), min_tokens=10))
    by_text = answerer.answer(ask(logit_bias={THE: 100.0}, stop=(" the",), min_tokens=10))

    assert len(free.token_ids) == 40
    assert len(by_token.token_ids) == 11
    assert len(by_text.token_ids) == 11
    assert written(vocabulary, by_text) == " the" * 10


# -- what is refused --------------------------------------------------------------------------------------------------


WRONG: dict[str, list[Any]] = yaml.safe_load("""
{max_tokens: [0], min_tokens: [41, -1], temperature: [-0.1, .nan, 2.1], top_p: [0.0, 1.1], top_k: [-2],
  min_p: [1.1], presence_penalty: [2.1], frequency_penalty: [-2.1], repetition_penalty: [0.0, .inf],
  logprobs: [21, -1], allowed_token_ids: [[], [1024]], stop: [['']], stop_token_ids: [[1024], [-1]],
  logit_bias: [{1024: 1.0}], prompt: [[1024]]}
""")
WRONG["prompt"].append([5] * 8192)


@for_each(("param", "values"), WRONG.items())
def test_a_parameter_out_of_range_is_refused_by_name(answerer: Answerer, param: str, values: list[Any]) -> None:
    for value, ask_for in itertools.product(values, (answerer.answer, answerer.first_token)):
        fields: dict[str, Any] = {param: tuple(value) if isinstance(value, list) else value}
        with pytest.raises(RequestInvalid) as caught:
            ask_for(ask(**fields))

        assert caught.value.param == param


def test_a_prompt_without_tokens_is_refused(answerer: Answerer) -> None:
    with pytest.raises(RequestInvalid) as caught:
        answerer.answer(msgspec.structs.replace(ask(), prompt_token_ids=[]))

    assert caught.value.param == "prompt"


def test_log_probabilities_fall_and_add_up_to_less_than_one(answerer: Answerer) -> None:
    for num_top in (0, 1, 20):
        entry = answerer.logprobs(THE, num_top)

        assert entry.chosen == entry.top[0]
        assert (entry.chosen.token_id, entry.chosen.token) == (THE, " the")
        assert len({each.token_id for each in entry.top}) == len(entry.top) == max(1, num_top)
        assert [each.logprob for each in entry.top] == sorted((each.logprob for each in entry.top), reverse=True)
        assert sum(math.exp(each.logprob) for each in entry.top) <= 1


# -- text -------------------------------------------------------------------------------------------------------------


@given(text=st.text(st.characters(codec="utf-8", exclude_characters=BROKEN), max_size=30))
def test_text_that_comes_token_by_token_is_whole_in_the_end_and_never_broken(vocabulary: Vocabulary, text: str) -> None:
    stream = TextStream(vocabulary, [THE], skip_special_tokens=False)

    pieces = [stream.feed([token]) for token in vocabulary.tokenizer.encode(text).ids]

    assert "".join(pieces) == text
    assert not any(BROKEN in piece for piece in pieces)


def test_text_lags_behind_in_the_middle_of_a_character(vocabulary: Vocabulary) -> None:
    stream = TextStream(vocabulary, [THE], skip_special_tokens=True)

    pieces = [stream.feed([token]) for token in vocabulary.tokenizer.encode("\u00e9\U0001f600").ids]

    assert pieces == ["", "\u00e9", "", "", "", "\U0001f600"]


@given(token_ids=st.lists(st.integers(0, 1023), max_size=40), prompt=st.lists(st.integers(0, 1023), max_size=9))
def test_tokens_that_make_no_sense_are_no_error(
    vocabulary: Vocabulary, token_ids: list[int], prompt: list[int]
) -> None:
    stream = TextStream(vocabulary, prompt, skip_special_tokens=True)

    assert isinstance("".join(stream.feed([token]) for token in token_ids), str)


def test_a_vocabulary_without_enough_words_answers_with_what_it_has() -> None:
    """Byte-sized tokens are still readable; a vocabulary of nothing but odd bytes is used as it is."""
    alphabet = {chr(code): code - 33 for code in range(33, 127)}
    tokenizer = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    odd = Tokenizer(models.BPE(vocab={chr(0x4E00 + n): n for n in range(50)}, merges=[]))
    tokenizer.decoder = odd.decoder = decoders.Fuse()

    assert len(Vocabulary(tokenizer, 0).words) == 93
    assert len(Vocabulary(odd, 0).words) == 49


@pytest.mark.parametrize("name", ["generation_config.json", "config.json", "tokenizer_config.json"])
def test_the_end_of_text_token_is_found_where_checkpoints_name_it(
    vocabulary: Vocabulary, tmp_path: Path, name: str
) -> None:
    vocabulary.tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ConfigError, match="end-of-text"):
        Vocabulary.load(str(tmp_path))

    named = {"eos_token": "<|im_end|>"} if name == "tokenizer_config.json" else {"eos_token_id": [2, 0]}
    (tmp_path / name).write_bytes(msgspec.json.encode(named))

    assert Vocabulary.load(str(tmp_path)).eos_token_id == 2


# -- identity of a text -----------------------------------------------------------------------------------------------


@given(
    text=st.lists(st.integers(0, 1023), max_size=100),
    other=st.lists(st.integers(0, 1023), max_size=100),
    unit_tokens=st.sampled_from([1, 4, 16]),
)
def test_texts_share_the_units_of_their_common_beginning_and_no_others(
    text: list[int], other: list[int], unit_tokens: int
) -> None:
    num_common = next((n for n, pair in enumerate(zip(text, other, strict=False)) if pair[0] != pair[1]), None)
    num_common = min(len(text), len(other)) if num_common is None else num_common

    one, two = content_of(text, unit_tokens), content_of(other, unit_tokens)

    assert len(one) == len(text) // unit_tokens
    assert one[: num_common // unit_tokens] == two[: num_common // unit_tokens]
    assert not set(one[num_common // unit_tokens :]) & set(two[num_common // unit_tokens :])
    assert all(0 <= unit < 1 << 60 for unit in one)


def test_the_identity_of_a_text_is_the_same_in_every_process() -> None:
    assert content_of([5, 6, 7, 8, 9], 2) == (384151810925808369, 720821710472272266)
