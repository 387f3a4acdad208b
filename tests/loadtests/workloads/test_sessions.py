from collections.abc import Callable
from dataclasses import replace
from itertools import islice, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster import Seeds
from loadtests.workloads.content import key_of, uniform_of, unit_ids
from loadtests.workloads.lengths import Constant
from loadtests.workloads.sessions import Session, Sessions
from loadtests.workloads.turns import ConstantThink, ConstantTurns, ExponentialThink, GeometricTurns, LogNormalThink
from loadtests.workloads.workload import TrafficClass, Workload
from policies import ConfigError
from tests.loadtests.sample_workloads import dialogue
from tests.tables import for_each

LIMIT = Constant(num_tokens=500)
DRAWS = np.random.Generator(np.random.PCG64(7)).random(200_000)


def sessions_of(traffic: TrafficClass, count: int = 20) -> list[Session]:
    plan = Workload(classes=(traffic,), duration_s=float("inf")).plan(Seeds(7))
    return [planned.session for planned in islice(plan, count) if isinstance(planned.session, Session)]


@given(
    turns=st.integers(1, 6),
    unit_tokens=st.sampled_from([1, 16, 64, 100]),
    system_tokens=st.integers(0, 500),
)
def test_a_turn_begins_with_the_whole_units_of_the_turns_before(
    turns: int, unit_tokens: int, system_tokens: int
) -> None:
    traffic = dialogue(
        ConstantTurns(num_turns=turns), content_unit_tokens=unit_tokens, system_prompt_tokens=system_tokens
    )

    for session in sessions_of(traffic, 3):
        assert len(session.turns) == turns
        assert session.turns[0].prompt_tokens >= system_tokens + 20
        for index, turn in enumerate(session.turns):
            text_tokens = turn.prompt_tokens + turn.output_tokens
            assert len(session.content_of(index)) == text_tokens // unit_tokens
        for index, (earlier, later) in enumerate(pairwise(session.turns)):
            shared = session.content_of(index)
            assert session.content_of(index + 1)[: len(shared)] == shared
            assert 20 <= later.prompt_tokens - earlier.prompt_tokens - earlier.output_tokens <= 400


def test_sessions_share_the_system_prompts_whole_units_and_nothing_after_them() -> None:
    traffic = dialogue(ConstantTurns(num_turns=4), system_prompt_tokens=200, content_unit_tokens=64)
    contents = [session.content for session in sessions_of(traffic)]

    assert len({content[:3] for content in contents}) == 1
    own = [unit for content in contents for unit in content[3:]]
    assert len(set(own)) == len(own)
    assert not set(own) & set(contents[0][:3])


def test_classes_share_no_text() -> None:
    one, other = (
        sessions_of(dialogue(ConstantTurns(num_turns=4), name=name, system_prompt_tokens=200)) for name in ("a", "b")
    )

    assert not {unit for each in one for unit in each.content} & {unit for each in other for unit in each.content}


def test_a_session_ends_before_the_turn_that_does_not_fit_and_shifts_no_draw_of_the_next() -> None:
    endless = sessions_of(dialogue(ConstantTurns(num_turns=9)))
    limited = sessions_of(dialogue(ConstantTurns(num_turns=9), max_context_tokens=1_000))

    for whole, cut in zip(endless, limited, strict=True):
        fitting = sum(turn.prompt_tokens + turn.output_tokens <= 1_000 for turn in whole.turns)
        assert cut.turns == whole.turns[:fitting]
        assert 1 <= fitting < 9


def test_clients_allow_an_answer_no_more_than_what_is_left_of_the_context() -> None:
    generous = replace(dialogue(ConstantTurns(num_turns=9), max_context_tokens=1_000), max_output_tokens=LIMIT)

    turns = [turn for session in sessions_of(generous) for turn in session.turns]

    assert all(turn.output_tokens <= turn.max_output_tokens for turn in turns)
    assert all(turn.prompt_tokens + turn.max_output_tokens <= 1_000 for turn in turns)
    assert {500} < {turn.max_output_tokens for turn in turns}


def test_the_first_turn_is_sent_even_if_it_does_not_fit() -> None:
    assert all(len(each.turns) == 1 for each in sessions_of(dialogue(ConstantTurns(num_turns=3), max_context_tokens=1)))


def test_geometric_turns_go_on_with_the_same_probability() -> None:
    turns = GeometricTurns(mean_turns=4, most_turns=1_000).turns(DRAWS)

    assert turns.mean() == pytest.approx(4, rel=0.01)
    for reached in (1, 2, 3, 4, 5):
        assert np.mean(turns[turns >= reached] > reached) == pytest.approx(0.75, abs=0.01)


def test_truncated_turns_pile_up_nowhere() -> None:
    turns = GeometricTurns(mean_turns=4, most_turns=8).turns(DRAWS)
    counts = np.bincount(turns)

    assert turns.max() == 8
    assert turns.min() == 1
    assert counts[2:] / counts[1:-1] == pytest.approx([0.75] * 7, rel=0.05)


def test_think_times_have_the_declared_means_and_medians() -> None:
    log_normal = LogNormalThink(median_s=120, sigma=0.8).durations_s(DRAWS)

    assert ExponentialThink(mean_s=5).durations_s(DRAWS).mean() == pytest.approx(5, rel=0.01)
    assert np.median(log_normal) == pytest.approx(120, rel=0.01)
    assert np.std(np.log(log_normal)) == pytest.approx(0.8, rel=0.01)
    assert set(ConstantThink(duration_s=3).durations_s(DRAWS[:9])) == {3.0}


@for_each("think", [ConstantThink(duration_s=0), ExponentialThink(mean_s=5), LogNormalThink(median_s=9, sigma=1)])
def test_a_draw_of_0_is_a_think_time_too(think: ConstantThink | ExponentialThink | LogNormalThink) -> None:
    assert think.durations_s(np.zeros(1))[0] == 0


@given(st.integers(0, 2**64 - 1), st.integers(0, 200), st.integers(0, 200))
def test_a_units_id_depends_on_its_key_and_place_alone(key: int, begin: int, count: int) -> None:
    ids = unit_ids(key, begin, begin + count)

    assert ids == unit_ids(key, 0, begin + count)[begin:]
    assert all(0 <= each < 2**60 for each in ids)
    assert len(set(ids)) == count


def test_ids_are_the_same_for_ever() -> None:
    """Pinned: a process that hashed otherwise would find nobody's prefix."""
    assert unit_ids(key_of("chat", 3), 0, 2) == (661474835500073439, 1020548329748490682)


def test_a_keyed_draw_is_uniform_and_its_own() -> None:
    draws = np.array([uniform_of(7, logical_request, 1) for logical_request in range(20_000)])

    assert np.histogram(draws, 10, (0, 1))[0] == pytest.approx([2_000] * 10, abs=4 * np.sqrt(2_000))
    assert uniform_of(7, 3, 1) == draws[3]
    assert len({uniform_of(7, 3, 1), uniform_of(8, 3, 1), uniform_of(7, 3, 2), uniform_of(7, 31)}) == 4


@for_each(
    ("make", "field"),
    [
        (lambda: ConstantTurns(num_turns=0), "num_turns"),
        (lambda: GeometricTurns(mean_turns=1), "mean_turns"),
        (lambda: GeometricTurns(mean_turns=2, most_turns=0), "most_turns"),
        (lambda: ConstantThink(duration_s=-1), "duration_s"),
        (lambda: ExponentialThink(mean_s=0), "mean_s"),
        (lambda: LogNormalThink(median_s=0, sigma=1), "median_s"),
        (lambda: LogNormalThink(median_s=1, sigma=0), "sigma"),
        (lambda: _sessions(system_prompt_tokens=-1), "system_prompt_tokens"),
        (lambda: _sessions(content_unit_tokens=0), "content_unit_tokens"),
        (lambda: _sessions(max_context_tokens=0), "max_context_tokens"),
    ],
)
def test_a_wrong_value_is_named(make: Callable[[], object], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make()

    assert caught.value.field == field


def _sessions(**wrong: int) -> Sessions:
    return Sessions(turns=ConstantTurns(num_turns=1), think=ConstantThink(duration_s=1), **wrong)
