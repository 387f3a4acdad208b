"""What an agent's calls say, and what they share; when they come is in ``test_clients.py``."""

from dataclasses import replace
from itertools import islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster import Seeds
from loadtests.workloads.agents import AgentTask
from loadtests.workloads.sessions import Sessions
from loadtests.workloads.turns import ConstantThink, ConstantTurns, GeometricTurns
from loadtests.workloads.workload import TrafficClass, Workload
from policies import ConfigError
from tests.loadtests.sample_workloads import research


def tasks_of(traffic: TrafficClass, count: int = 20) -> list[AgentTask]:
    plan = Workload(classes=(traffic,), duration_s=float("inf")).plan(Seeds(7))
    return [planned.session for planned in islice(plan, count) if isinstance(planned.session, AgentTask)]


@given(
    num_steps=st.integers(1, 4),
    num_calls=st.integers(1, 4),
    unit_tokens=st.sampled_from([1, 16, 64, 100]),
    system_tokens=st.integers(0, 500),
)
def test_a_call_holds_all_that_was_said_in_the_steps_before_and_nothing_of_its_own_step(
    num_steps: int, num_calls: int, unit_tokens: int, system_tokens: int
) -> None:
    traffic = research(num_steps, num_calls, content_unit_tokens=unit_tokens, system_prompt_tokens=system_tokens)

    for task in tasks_of(traffic, 3):
        assert [len(step) for step in task.steps] == [1, *[num_calls] * (num_steps - 1)]
        said_tokens = system_tokens
        for step, context_tokens in zip(task.steps, task.contexts_tokens, strict=True):
            assert context_tokens == said_tokens
            contents = [task.content_of(index) for index in step]
            for index, content in zip(step, contents, strict=True):
                turn = task.turns[index]
                assert 20 <= turn.prompt_tokens - context_tokens <= 400
                assert len(content) == (turn.prompt_tokens + turn.output_tokens) // unit_tokens
                known = context_tokens // unit_tokens
                assert content[:known] == task.content[:known]
                said_tokens += turn.prompt_tokens - context_tokens + turn.output_tokens
            own = [unit for content in contents for unit in content[context_tokens // unit_tokens :]]
            assert len(set(own)) == len(own)
        for earlier, later in pairwise(task.steps):
            first = task.content_of(earlier.start)
            assert task.content_of(later.start)[: len(first)] == first


def test_tasks_share_the_system_prompt_and_nothing_after_it() -> None:
    tasks = tasks_of(research(system_prompt_tokens=200))
    contents = [task.content_of(index) for task in tasks for index in range(len(task.turns))]

    assert len({content[:3] for content in contents}) == 1
    last_units = [{unit for index in range(len(task.turns)) for unit in task.content_of(index)[3:]} for task in tasks]
    assert sum(map(len, last_units)) == len(set.union(*last_units))


def test_a_task_ends_before_the_step_that_does_not_fit_and_shifts_no_draw_of_the_next() -> None:
    endless, limited = (tasks_of(research(6, 2, **limit)) for limit in ({}, {"max_context_tokens": 1_500}))

    for whole, cut in zip(endless, limited, strict=True):
        assert cut.steps == whole.steps[: len(cut.steps)]
        assert cut.turns == whole.turns[: len(cut.turns)]
        following = whole.turns[len(cut.turns) :][:2]
        assert 1 <= len(cut.steps) < 6
        assert max(turn.prompt_tokens + turn.output_tokens for turn in cut.turns) <= 1_500
        assert max(turn.prompt_tokens + turn.output_tokens for turn in following) > 1_500


def test_the_rate_that_is_expected_counts_every_call() -> None:
    traffic = research()
    assert traffic.agents is not None
    agents = replace(
        traffic.agents, steps=GeometricTurns(mean_turns=4, most_turns=9), calls=GeometricTurns(mean_turns=2)
    )
    tasks = tasks_of(replace(traffic, agents=agents), 4_000)

    mean_calls = sum(len(task.turns) for task in tasks) / len(tasks)

    assert replace(traffic, agents=agents).requests_per_s(100.0) == pytest.approx(0.5 * mean_calls, rel=0.05)


def test_a_class_has_sessions_or_agents() -> None:
    sessions = Sessions(turns=ConstantTurns(num_turns=2), think=ConstantThink(duration_s=1))

    with pytest.raises(ConfigError) as caught:
        replace(research(), sessions=sessions)

    assert caught.value.field == "agents"
