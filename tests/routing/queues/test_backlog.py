"""What admission is shown: a dispatcher's real lines and replicas, seen by a policy that remembers."""

from dataclasses import fields
from typing import ClassVar

import pytest

from policies import Admit, BacklogView, Need, PolicyChoice, RequestView, Role
from policies.decisions import ADMIT
from policies.signals import Signal
from routing import DispatcherParams, NewsReceived
from routing.intake.slos import Slo, Slos
from routing.request.news import GatewayNews, ReplicaWork, SharedWork
from routing.sizing.geometry import ServiceRates
from tests.policy_doubles import FakeBacklog
from tests.routing.dialogue import Dialogue
from tests.tables import for_each

MORE_WORK_S = 0.5


class Remembers:
    """Lets everything in and keeps what it was shown, and when a first token would come behind more work."""

    requires: ClassVar[frozenset[Need]] = frozenset()
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset()

    def __init__(self) -> None:
        self.shown: dict[str, FakeBacklog] = {}
        self.behind_more_s: dict[str, float] = {}

    def decide(self, request: RequestView, backlog: BacklogView, now_s: float) -> Admit:
        shown = {each.name: getattr(backlog, each.name) for each in fields(FakeBacklog)}
        self.shown[request.request_id] = FakeBacklog(**shown)
        self.behind_more_s[request.request_id] = backlog.first_token_behind_s(MORE_WORK_S)
        return ADMIT


def remembered(talk: Dialogue) -> Remembers:
    admission = talk.policies.admission
    assert isinstance(admission, Remembers)
    return admission


def shown_to(talk: Dialogue, request_id: str) -> FakeBacklog:
    return remembered(talk).shown[request_id]


def behind_more_s(talk: Dialogue, request_id: str) -> float:
    return remembered(talk).behind_more_s[request_id]


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


CHATS = {"a": tuple(range(20)), "b": tuple(range(100, 120))}
"""Blocks of a chat of 2,000 tokens that each replica has in its cache."""


def chats(num_gateways: int = 1) -> Dialogue:
    """Two replicas that are busy for 0.1 s, 1,000 tokens a second, and a turn of 1,500 tokens at each that can wait."""
    talk = Dialogue(
        admission=PolicyChoice(name=f"{__name__}:Remembers"),
        balancing=PolicyChoice(name="least_delay"),
        queueing=PolicyChoice(name="edf"),
        prefixes=PolicyChoice(name="block_hash"),
        rates=ServiceRates(new_token_s=1e-3),
        slos=Slos(default=Slo(ttft_s=3.0), by_tenant={"patient": Slo(ttft_s=60.0)}),
        params=DispatcherParams(prefill_window_tokens=1),
        num_gateways=num_gateways,
    ).replicas(Role.UNIFIED, "a", "b")
    for replica, blocks in CHATS.items():
        talk.arrives(f"chat-{replica}", prompt_tokens=2000, prefix_blocks=blocks)
        assert talk.sends == [f"chat-{replica}.0 unified to {replica}"]
    for replica in CHATS:
        talk.first_token(f"chat-{replica}.0")
        talk.finishes(f"chat-{replica}.0")
        talk.arrives(f"busy-{replica}", prompt_tokens=100)
    for blocks in CHATS.values():
        turn(talk, f"patient-{blocks[0]}", 1500, blocks, tenant="patient")
    assert talk.dispatcher.num_waiting_requests == 2
    return talk


def turn(talk: Dialogue, request_id: str, new_tokens: int, chat: tuple[int, ...], tenant: str = "") -> float:
    """A chat's next turn; when admission was told that its first token would come."""
    talk.arrives(request_id, prompt_tokens=2000 + new_tokens, prefix_blocks=(*chat, 999), tenant=tenant)
    return shown_to(talk, request_id).first_token_s


def test_those_who_wait_for_the_same_replica_and_are_due_later_do_not_count() -> None:
    talk = chats()
    assert turn(talk, "hurried", 100, CHATS["a"]) == pytest.approx(0.1 + 0.1, rel=0.01)
    assert turn(talk, "patient", 100, CHATS["a"], "patient") == pytest.approx(0.1 + 0.1 + 1.5 + 0.1, rel=0.01)


def test_a_request_that_may_go_anywhere_goes_before_those_who_wait_for_a_replica_and_are_due_later() -> None:
    talk = chats()
    talk.arrives("hurried", prompt_tokens=100)
    assert shown_to(talk, "hurried").first_token_s == pytest.approx(0.1 + 0.1, rel=0.01)


def test_those_who_wait_for_the_same_replica_in_another_queue_count() -> None:
    talk = chats()
    shared = talk.dispatcher.fleet.get("a")
    assert shared is not None
    shared.waiting_tokens += 700  # another lane's
    assert turn(talk, "hurried", 100, CHATS["a"]) == pytest.approx(0.1 + 0.7 + 0.1, rel=0.01)


def test_of_those_who_wait_for_a_replica_at_other_gateways_as_many_count_as_here() -> None:
    talk = chats(num_gateways=2)
    elsewhere = {replica: ReplicaWork(waiting_tokens=1000) for replica in CHATS}
    talk.tell(NewsReceived(news=GatewayNews(work=SharedWork(replicas=elsewhere), at_s=talk.now_s)))
    assert turn(talk, "hurried", 100, CHATS["a"]) == pytest.approx(0.1 + 0.1, rel=0.01)
    assert turn(talk, "patient", 100, CHATS["a"], "patient") == pytest.approx(0.1 + 0.1 + 1.5 + 1.0 + 0.1, rel=0.01)


@for_each("name", [each.name for each in fields(FakeBacklog)])
def test_the_double_has_what_the_view_has(name: str) -> None:
    assert hasattr(BacklogView, name)


def test_more_work_goes_where_least_is_to_be_done_and_is_shared_once_all_have_as_much() -> None:
    """500 tokens beside one replica's 400 and nothing at the other: 400 level the two, and 100 are shared."""
    talk = Dialogue(
        admission=PolicyChoice(name=f"{__name__}:Remembers"), rates=ServiceRates(new_token_s=1e-3)
    ).replicas(Role.UNIFIED, "a", "b")
    talk.arrives("q1", prompt_tokens=400)
    talk.arrives("q2", prompt_tokens=100)

    assert shown_to(talk, "q2").first_token_s == pytest.approx(0.1)
    assert behind_more_s(talk, "q2") == pytest.approx(0.4 + 0.05 + 0.1, rel=0.01)


def test_work_is_nothing_where_nobody_knows_how_long_it_takes() -> None:
    talk = dialogue().replicas(Role.UNIFIED, "a")
    talk.arrives("q")
    assert behind_more_s(talk, "q") == shown_to(talk, "q").first_token_s
