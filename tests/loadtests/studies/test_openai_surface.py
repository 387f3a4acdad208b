"""How answers are compared, without a server."""

from typing import Any

from engines.vllm.scripted_model import SCRIPTS
from loadtests.studies.openai_surface.cases import cases, embedding_cases, score_cases
from loadtests.studies.openai_surface.comparison import difference, events, joined, without_chance
from tests.tables import for_each


def test_ids_times_and_nulls_are_no_differences() -> None:
    ours = {"id": "a", "created": 1, "choices": [{"text": "x", "logprob": -0.5041}]}
    theirs = {
        "id": "b",
        "created": 2,
        "choices": [{"text": "x", "logprob": -0.5039, "stop_reason": None}],
        "usage": None,
    }

    assert difference(without_chance(theirs), without_chance(ours)) == ""


@for_each(
    ("wanted", "got", "said"),
    [
        ({"a": [{"b": 1}]}, {"a": [{"b": 2}]}, ".a[].b: 2 and not 1"),
        ({"a": 1}, {}, ".a: null and not 1"),
        ({}, {"a": 1}, ".a: 1 and not null"),
        ([1, 2], [1], ": 1 and not 2"),
        ({"a": 1}, {"status": 400}, ".a: null and not 1"),
        ("x", "y", ': "y" and not "x"'),
    ],
)
def test_the_first_difference_is_told_with_its_place(wanted: Any, got: Any, said: str) -> None:
    assert difference(wanted, got) == said


def test_a_stream_is_its_events() -> None:
    assert events('event: x\ndata: {"a": 1}\n\ndata: [DONE]\n\n') == [{"a": 1}, "[DONE]"]


def chat(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return without_chance({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})  # type: ignore[no-any-return]


def test_how_many_tokens_come_in_an_event_is_no_difference() -> None:
    by_one = [chat(role="assistant", content=""), chat(content="a "), chat(content="b"), chat("stop", content="")]
    by_two = [chat(role="assistant", content=""), chat(content="a b"), chat("stop")]

    assert difference(joined(by_one), joined(by_two)) == ""
    assert len(joined(by_one)) == 2


def test_what_comes_to_another_place_or_in_another_order_is_one() -> None:
    call = [{"index": 0, "function": {"name": "f"}}]
    one = [chat(content="a"), chat(tool_calls=call), chat(content="b")]

    assert difference(joined(one), joined([chat(content="ab"), chat(tool_calls=call)]))
    assert difference(joined(one), joined([chat(reasoning="a"), chat(tool_calls=call), chat(content="b")]))
    assert difference(joined([chat(content="a")]), joined([chat("stop", content="a")]))


def test_every_script_is_asked_for_in_three_apis() -> None:
    asked = list(cases())

    for script in SCRIPTS:
        assert sum(case.feature == f"script: {script.name}" for case in asked) == 3
    for each in (asked, list(embedding_cases()), list(score_cases())):
        assert len({(case.path, case.feature) for case in each}) == len(each)
