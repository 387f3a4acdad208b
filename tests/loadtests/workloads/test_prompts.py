"""Content numbers become tokens: equal where the plan says equal, and nobody's otherwise."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.seeds import Seeds
from cluster.sim.traffic import PlannedRequest
from loadtests.workloads.clients import Clients
from loadtests.workloads.prompts import PromptsAlone, PromptTokens
from loadtests.workloads.sessions import ConstantTurns
from loadtests.workloads.workload import Workload
from policies.errors import ConfigError
from tests.loadtests.sample_workloads import COMPLETED, dialogue

VOCABULARY = range(5, 1000)


def planned(intent: int = 1, prompt_tokens: int = 100, content: tuple[int, ...] = (), unit: int = 16) -> PlannedRequest:
    return PlannedRequest(
        request_id=f"{intent}-0",
        intent=intent,
        scheduled_s=0.0,
        prompt_tokens=prompt_tokens,
        output_tokens=8,
        max_output_tokens=8,
        timeout_s=10.0,
        content=content,
        content_unit_tokens=unit if content else 0,
    )


@given(
    prompt_tokens=st.integers(1, 400),
    content=st.lists(st.integers(0, (1 << 60) - 1), max_size=30).map(tuple),
    unit=st.sampled_from([1, 16, 64]),
)
def test_a_prompt_has_the_length_that_was_planned_and_ordinary_tokens_alone(
    prompt_tokens: int, content: tuple[int, ...], unit: int
) -> None:
    """Whatever the content; an id outside the range would be refused, or would end a text."""
    tokens = PromptTokens(VOCABULARY, "run").of(planned(prompt_tokens=prompt_tokens, content=content, unit=unit))

    assert len(tokens) == prompt_tokens
    assert set(tokens) <= set(VOCABULARY)


def test_prompts_agree_in_their_common_content_and_nowhere_else() -> None:
    """Two units are shared; the third differs; behind whole units all text is a request's own."""
    prompts = PromptTokens(VOCABULARY, "run")
    one = prompts.of(planned(1, 60, (11, 22, 33)))
    other = prompts.of(planned(2, 60, (11, 22, 44)))

    assert one[:32] == other[:32]
    assert one[32:48] != other[32:48]
    assert one[48:] != other[48:]


def test_requests_without_content_share_no_text() -> None:
    """Not even their first block."""
    prompts = PromptTokens(VOCABULARY, "run")
    beginnings = {tuple(prompts.of(planned(intent))[:16]) for intent in range(500)}

    assert len(beginnings) == 500


def test_another_salt_is_other_text() -> None:
    """A second run on the same engine meets no warm prefix cache."""
    one = PromptTokens(VOCABULARY, "first run").of(planned(1, 60, (11, 22, 33)))
    other = PromptTokens(VOCABULARY, "second run").of(planned(1, 60, (11, 22, 33)))

    assert not {tuple(one[at : at + 16]) for at in (0, 16, 32)} & {tuple(other[at : at + 16]) for at in (0, 16, 32)}


def test_a_retry_sends_the_same_text() -> None:
    """The intent counts, not the try."""
    prompts = PromptTokens(VOCABULARY, "run")
    first = planned(7)
    again = PlannedRequest(
        request_id="7-1",
        intent=7,
        try_index=1,
        scheduled_s=0.0,
        prompt_tokens=100,
        output_tokens=8,
        max_output_tokens=8,
        timeout_s=10.0,
    )

    assert prompts.of(first) == prompts.of(again)


def test_prompts_are_the_same_in_every_process() -> None:
    """Python's own hash differs from process to process."""
    program = (
        "from loadtests.workloads.prompts import PromptTokens; "
        "from tests.loadtests.workloads.test_prompts import planned, VOCABULARY; "
        "print(PromptTokens(VOCABULARY, 'run').of(planned(3, 50, (1, 2))))"
    )
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout

    assert printed.strip() == str(PromptTokens(VOCABULARY, "run").of(planned(3, 50, (1, 2))))


@pytest.mark.parametrize("vocabulary", [range(0), range(5, 6), range(0, 100, 2), range(-5, 100)])
def test_a_vocabulary_of_which_no_text_can_be_made_is_refused(vocabulary: range) -> None:
    with pytest.raises(ConfigError, match="vocabulary"):
        PromptTokens(vocabulary)


def test_answers_leave_the_content_and_prompts_stay() -> None:
    """Every turn's content covers its prompt's whole units, and begins with the turn's before."""
    workload = Workload(classes=(dialogue(ConstantTurns(num_turns=4), system_prompt_tokens=128),), duration_s=60)
    traffic = PromptsAlone(Clients(workload, Seeds(3)))
    num_turns = 0
    for arrival in traffic.arrivals():
        before: tuple[int, ...] = ()
        following = [arrival]
        while following:
            request = following[0].request
            assert len(request.content) == request.prompt_tokens // request.content_unit_tokens
            assert request.content[: len(before)] == before
            before = request.content
            num_turns += 1
            following = list(traffic.on_end(request, COMPLETED, following[0].at_s + 1.0))
    assert num_turns > 50
