"""Whatever policies of somebody's own do: every request has one outcome, and every slot comes back."""

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies import PolicyChoice, Reason, Role
from policies.views import Priority
from routing import (
    AttemptFailed,
    AttemptFinished,
    Cancel,
    CancelTimer,
    ClientGone,
    DispatcherParams,
    FirstTokenReceived,
    Respond,
    Send,
    SetTimer,
    TimerFired,
    Truncate,
    reconfigured,
)
from routing.breakers.breaker import PolicyFailure
from routing.breakers.breakers import Breakers, is_own
from routing.config.spec import LanesSpec
from routing.lanes.lanes import Lane, TokenRange
from tests.routing.dialogue import Dialogue

WILD = "tests.routing.breakers.misbehaving:Wild"
QUESTIONS = (
    "admission",
    "shedding",
    "degradation",
    "preemption",
    "hedging",
    "retrying",
    "ejection",
    "queueing",
    "balancing",
)
REPLICAS = "abc"


def wild(question: str, seed: int) -> PolicyChoice:
    name = "Order" if question == "engine_order" else question.capitalize()
    return PolicyChoice(name=f"{WILD}{name}", params={"seed": seed})


class Host:
    """Carries out what a dispatcher wants, and lets things happen at random."""

    def __init__(self, seed: int, failures: list[PolicyFailure], policies: Mapping[str, Any]) -> None:
        self.script = random.Random(seed)
        breakers = Breakers(failures.append, lambda: 0.0)
        params = DispatcherParams(waiting_room_s=1.0, quarantine_s=0.5)
        self.talk = Dialogue(breakers=breakers, params=params, **policies)
        self.open: list[str] = []
        self.ending: list[str] = []
        self.timers: dict[str, float] = {}
        self.arrived = 0
        self.outcomes = Counter[str]()
        self.tell(lambda: self.talk.replicas(Role.UNIFIED, *REPLICAS, slots=2))

    def tell(self, say: Any) -> None:
        say()
        for effect in self.talk.answer:
            match effect:
                case Send():
                    self.open.append(effect.attempt_id)
                case Cancel() | Truncate():
                    self.ending.append(effect.attempt_id)
                case SetTimer():
                    self.timers[effect.token] = effect.at_s
                case CancelTimer():
                    self.timers.pop(effect.token, None)
                case Respond():
                    self.outcomes[effect.request_id] += 1

    def step(self) -> None:
        """One of the things that can happen."""
        self.talk.now_s += self.script.random() * 0.2
        dice = self.script.random()
        if dice < 0.35:
            self.arrived += 1
            name, priority = f"q{self.arrived}", self.script.choice(list(Priority))
            self.tell(lambda: self.talk.arrives(name, budget_s=5.0, priority=priority, prefix_blocks=(1,)))
        elif dice < 0.4 and self.arrived:
            gone = f"q{self.script.randrange(self.arrived) + 1}"
            self.tell(lambda: self.talk.tell(ClientGone(request_id=gone)))
        elif dice < 0.5 and self.timers:
            self.fire(min(self.timers, key=self.timers.__getitem__))
        elif self.open:
            self.go_on(self.script.choice(self.open))

    def go_on(self, attempt_id: str) -> None:
        dice = self.script.random()
        if attempt_id in self.ending or dice < 0.2:
            reason = Reason.CLIENT_GONE if attempt_id in self.ending else self.script.choice([*Reason][-6:-1])
            self.ends(attempt_id, AttemptFailed(attempt_id=attempt_id, reason=reason))
        elif dice < 0.5:
            self.tell(lambda: self.talk.tell(FirstTokenReceived(attempt_id=attempt_id)))
        else:
            self.ends(attempt_id, AttemptFinished(attempt_id=attempt_id, output_tokens=3))

    def ends(self, attempt_id: str, event: AttemptFailed | AttemptFinished) -> None:
        self.open.remove(attempt_id)
        self.tell(lambda: self.talk.tell(event))

    def fire(self, token: str) -> None:
        self.talk.now_s = max(self.talk.now_s, self.timers.pop(token))
        self.tell(lambda: self.talk.tell(TimerFired(token=token)))

    def wind_up(self) -> None:
        """Nothing new comes; everything ends."""
        for _ in range(10_000):
            if self.open:
                self.ends(self.open[0], AttemptFinished(attempt_id=self.open[0], output_tokens=1))
            elif self.timers:
                self.fire(min(self.timers, key=self.timers.__getitem__))
            else:
                return


def of(questions: frozenset[str], seed: int) -> Iterator[tuple[str, PolicyChoice]]:
    for question in (*QUESTIONS, "engine_order"):
        if question in questions:
            yield question, wild(question, seed)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    questions=st.frozensets(st.sampled_from([*QUESTIONS, "engine_order"]), min_size=1),
)
def test_every_request_has_one_outcome_and_every_slot_comes_back(seed: int, questions: frozenset[str]) -> None:
    failures: list[PolicyFailure] = []
    host = Host(seed, failures, dict(of(questions, seed)))
    for _ in range(150):
        host.step()
    host.wind_up()
    assert host.outcomes == Counter({f"q{number + 1}": 1 for number in range(host.arrived)})
    assert host.talk.is_over


@pytest.mark.parametrize("question", [*QUESTIONS, "engine_order"])
def test_a_policy_that_always_fails_is_left_out_and_requests_are_served(question: str) -> None:
    failures: list[PolicyFailure] = []
    choice = wild(question, 1)
    host = Host(3, failures, {question: PolicyChoice(name=choice.name, params={**choice.params, "sanity": 0.0})})
    for _ in range(400):
        host.step()
    host.wind_up()
    assert host.talk.is_over
    assert {each.question for each in failures} == {question}
    assert {each.policy for each in failures} == {choice.name}
    assert any(each.is_left_out for each in failures)


POOLS = tuple(role.value for role in Role)
LANES = (
    Lane(name="short", prompt_tokens=TokenRange(0, 50), pools=POOLS),
    Lane(name="long", prompt_tokens=TokenRange(50), pools=POOLS),
)
PARTS = {
    "length_prediction": "Predictor",
    "prefixes": "Tracker",
    "lanes.classifier": "Classifier",
    "lanes.guard": "Guard",
}
"""What is no policy and may be somebody's own, and the wild one of it."""


def part(question: str, **params: Any) -> dict[str, Any]:
    """What tells a dispatcher to have that one."""
    choice = PolicyChoice(name=f"{WILD}{PARTS[question]}", params=params)
    room, _, kind = question.partition(".")
    return {room: LanesSpec(lanes=LANES, **{kind: choice}) if kind else choice}


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), question=st.sampled_from(sorted(PARTS)))
def test_whatever_a_part_does_every_request_has_one_outcome(seed: int, question: str) -> None:
    host = Host(seed, [], part(question, seed=seed))
    for _ in range(150):
        host.step()
    host.wind_up()
    assert host.outcomes == Counter({f"q{number + 1}": 1 for number in range(host.arrived)})
    assert host.talk.is_over


@pytest.mark.parametrize("question", sorted(PARTS))
def test_a_part_that_always_fails_is_left_out_and_requests_are_served(question: str) -> None:
    failures: list[PolicyFailure] = []
    host = Host(3, failures, part(question, seed=1, sanity=0.0))
    for _ in range(400):
        host.step()
    host.wind_up()
    assert host.talk.is_over
    assert {(each.question, each.policy) for each in failures} == {(question, f"{WILD}{PARTS[question]}")}
    assert any(each.is_left_out for each in failures)


@pytest.mark.parametrize("question", sorted(PARTS))
def test_a_part_that_does_what_it_should_is_asked_and_never_blamed(question: str) -> None:
    failures: list[PolicyFailure] = []
    host = Host(3, failures, part(question, seed=1, sanity=1.0))
    for _ in range(400):
        host.step()
    host.wind_up()
    assert host.talk.is_over
    assert failures == []


def test_a_reload_that_leaves_a_part_as_it_is_leaves_its_breaker_as_it_is() -> None:
    failures: list[PolicyFailure] = []
    choice = part("length_prediction", seed=1, sanity=0.0)
    talk = Dialogue(breakers=Breakers(failures.append, lambda: 0.0), **choice)
    talk.replicas(Role.UNIFIED, *"abc")
    for number in range(4):
        talk.arrives(f"q{number}")
    before = len(failures)
    assert before

    talk.tell(reconfigured(talk.spec))
    talk.arrives("after")

    assert len(failures) == before, "it is still left out"


def test_a_planner_that_fails_has_requests_run_whole() -> None:
    failures: list[PolicyFailure] = []
    name = "tests.routing.breakers.misbehaving:WildPlanning"
    breakers = Breakers(failures.append, lambda: 0.0)
    talk = Dialogue(planner=name, planner_params={"seed": 1, "sanity": 0.0}, breakers=breakers)
    talk.replicas(Role.UNIFIED, "a")
    talk.arrives("q")
    assert talk.sends == ["q.0 unified to a"]
    assert [each.question for each in failures] == ["planning"]


def test_built_in_policies_answer_for_themselves() -> None:
    breakers = Breakers(lambda _: None, lambda: 0.0)
    plain, behind = Dialogue(), Dialogue(breakers=breakers)
    assert type(behind.policies.admission) is type(plain.policies.admission)
    assert type(behind.policies.balancers[Role.UNIFIED]) is type(plain.policies.balancers[Role.UNIFIED])


def test_a_chain_with_a_link_of_somebodys_own_is_behind_a_breaker() -> None:
    assert is_own(PolicyChoice(name="chain", params={"policies": ["deadline", {"name": "mine.policies:Own"}]}))
    assert not is_own(PolicyChoice(name="chain", params={"policies": ["deadline", {"name": "codel"}]}))


def test_a_reload_that_leaves_a_policy_as_it_is_leaves_its_breaker_as_it_is() -> None:
    failures: list[PolicyFailure] = []
    params = {"seed": 1, "sanity": 0.0}
    choice = PolicyChoice(name=f"{WILD}Balancing", params=params)
    talk = Dialogue(breakers=Breakers(failures.append, lambda: 0.0), balancing=choice).replicas(Role.UNIFIED, *"abc")
    for number in range(4):
        talk.arrives(f"q{number}")
    before = len(failures)

    talk.tell(reconfigured(talk.spec))
    talk.arrives("after")

    assert talk.sends == ["after.0 unified to b"]
    assert len(failures) == before, "it is still left out"
