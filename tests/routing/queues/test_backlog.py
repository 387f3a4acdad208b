"""What admission is shown: a dispatcher's real lines and replicas, seen by a policy that remembers."""

from dataclasses import fields
from typing import ClassVar

from policies import Admit, BacklogView, Need, PolicyChoice, RequestView, Role
from policies.decisions import ADMIT
from policies.signals import Signal
from tests.policy_doubles import FakeBacklog
from tests.routing.dialogue import Dialogue
from tests.tables import for_each


class Remembers:
    """Lets everything in and keeps what it was shown."""

    requires: ClassVar[frozenset[Need]] = frozenset()
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset()

    def __init__(self) -> None:
        self.shown: dict[str, FakeBacklog] = {}

    def decide(self, request: RequestView, backlog: BacklogView, now_s: float) -> Admit:
        shown = {each.name: getattr(backlog, each.name) for each in fields(FakeBacklog)}
        self.shown[request.request_id] = FakeBacklog(**shown)
        return ADMIT


def shown_to(talk: Dialogue, request_id: str) -> FakeBacklog:
    admission = talk.policies.admission
    assert isinstance(admission, Remembers)
    return admission.shown[request_id]


def dialogue(planner: str = "always_unified") -> Dialogue:
    return Dialogue(planner=planner, admission=PolicyChoice(name=f"{__name__}:Remembers"))


def test_the_first_request_finds_nothing_before_it() -> None:
    talk = dialogue().replicas(Role.UNIFIED, "a", "b")

    talk.at(3.0).arrives("q")

    assert shown_to(talk, "q") == FakeBacklog(
        num_replicas=2, work_per_s=2.0, kv_capacity_tokens=20_000, oldest_arrival_s=3.0
    )


def test_a_request_finds_those_who_wait_and_those_who_are_served() -> None:
    talk = dialogue().replicas(Role.UNIFIED, "a", slots=2)
    for number in range(4):
        talk.at(float(number)).arrives(f"q{number}", prompt_tokens=100, max_output_tokens=50)

    talk.at(9.0).arrives("q")

    found = shown_to(talk, "q")
    assert (found.num_waiting, found.oldest_arrival_s, found.waiting_kv_tokens) == (2, 2.0, 300)
    assert (found.num_ongoing, found.kv_tokens) == (2, 300)


def test_those_who_leave_the_line_are_not_found_any_more() -> None:
    talk = dialogue().replicas(Role.UNIFIED, "a", slots=1)
    for number in range(4):
        talk.arrives(f"q{number}")
    talk.client_goes("q1")
    talk.finishes("q0.0")

    talk.arrives("q")

    found = shown_to(talk, "q")
    assert (found.num_waiting, found.waiting_kv_tokens, found.num_ongoing) == (1, 150, 1)


def test_a_request_with_a_handoff_finds_the_line_for_its_prefill_and_the_kv_where_it_will_be_answered() -> None:
    talk = dialogue("always_disaggregated").replicas(Role.PREFILL, "p").replicas(Role.DECODE, "d", "e")
    talk.arrives("q1", prompt_tokens=100, max_output_tokens=50)
    talk.finishes("q1.0", output_tokens=1)

    talk.arrives("q2")

    found = shown_to(talk, "q2")
    assert (found.stage, found.num_replicas, found.num_ongoing) == (Role.PREFILL, 1, 0)
    assert (found.kv_tokens, found.kv_capacity_tokens) == (150, 20_000)


@for_each("name", [each.name for each in fields(FakeBacklog)])
def test_the_double_has_what_the_view_has(name: str) -> None:
    assert hasattr(BacklogView, name)
