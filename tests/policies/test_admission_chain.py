from collections.abc import Sequence
from itertools import product
from typing import Any, ClassVar

from hypothesis import given
from hypothesis import strategies as st

from cluster import Seeds
from policies import Admit, ConfigError, Need, PolicyChoice, PolicySpec, Reason, Reject, Rng, Role, build
from policies.admission import Chain
from policies.decisions import ADMIT, WAIT, AdmissionDecision, StartDecision, Wait
from policies.signals import Admitted, Ended, Signal
from policies.views import BacklogView, RequestView
from tests.policies.admission_cases import admitted, completed, hosted, sized, started
from tests.policies.built import built, refusal_of
from tests.policy_doubles import FakeBacklog
from tests.routing.dialogue import Dialogue
from tests.tables import for_each

ANSWERS: dict[str, StartDecision] = {
    "admit": ADMIT,
    "wait": WAIT,
    "full": Reject(reason=Reason.QUEUE_FULL, retry_after_s=1.0),
    "quota": Reject(reason=Reason.QUOTA_EXCEEDED, retry_after_s=2.0),
}


class Says:
    """Answers what it is told to, and remembers that it was asked and what it heard."""

    requires: ClassVar[frozenset[Need]] = frozenset({Need.LOCAL_WORK})
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset({Admitted})

    def __init__(self, *, decides: str = "admit", starts: str = "admit") -> None:
        self.asked: list[str] = []
        self.subscribed: list[Signal] = []
        self._decides, self._starts = ANSWERS[decides], ANSWERS[starts]

    def decide(self, request: RequestView, backlog: BacklogView, now_s: float) -> AdmissionDecision:
        self.asked.append("decide")
        assert not isinstance(self._decides, Wait)
        return self._decides

    def start(self, request: RequestView, backlog: BacklogView, now_s: float, permit: object) -> StartDecision:
        self.asked.append("start")
        return self._starts

    def observe(self, signal: Signal) -> None:
        self.subscribed.append(signal)


class HearsOfEnds(Says):
    """Wants to know of other things."""

    requires: ClassVar[frozenset[Need]] = frozenset({Need.REPLICA_REPORTS})
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset({Ended})


SAYS = f"{__name__}:Says"


def link(**params: str) -> dict[str, Any]:
    return {"name": SAYS, "params": params}


def chain(*policies: object) -> Chain:
    made = built("admission", "chain", {"policies": list(policies)}).admission
    assert isinstance(made, Chain)
    return made


def doubles(made: Chain) -> list[Says]:
    assert all(isinstance(each, Says) for each in made.links)
    return [each for each in made.links if isinstance(each, Says)]


def refused_for(policies: object, provided: frozenset[Need] = frozenset(Need)) -> ConfigError:
    return refusal_of("admission", "chain", {"policies": policies}, provided=provided)


def test_everybody_must_let_a_request_in_and_after_the_first_refusal_nobody_else_is_asked() -> None:
    assert chain(SAYS, SAYS).decide(sized(), FakeBacklog(), 0.0) == Admit()
    made = chain(SAYS, link(decides="full"), link(decides="quota"))
    assert made.decide(sized(), FakeBacklog(), 0.0) == ANSWERS["full"]
    assert [each.asked for each in doubles(made)] == [["decide"], ["decide"], []]


@given(st.lists(st.sampled_from(sorted(ANSWERS)), min_size=1, max_size=5))
def test_at_the_head_of_a_line_the_first_refusal_counts_and_then_anybodys_wish_to_wait(answers: list[str]) -> None:
    made = chain(*(link(starts=each) for each in answers))
    refusals = [each for each in answers if each in ("full", "quota")]
    expected = refusals[0] if refusals else "wait" if "wait" in answers else "admit"
    assert made.start(sized(), FakeBacklog(), 0.0, None) == ANSWERS[expected]


def test_each_link_hears_what_it_has_named() -> None:
    policies = built("admission", "chain", {"policies": [SAYS, f"{__name__}:HearsOfEnds"]})
    signals = admitted(sized()), started(sized()), completed(sized(), 1.0)
    for signal in signals:
        policies.observe(signal)

    assert policies.subscribed >= {Admitted, Ended}
    made = policies.admission
    assert isinstance(made, Chain)
    assert [each.subscribed for each in doubles(made)] == [[signals[0]], [signals[2]]]


def test_a_chain_needs_what_its_links_need() -> None:
    assert chain(SAYS, f"{__name__}:HearsOfEnds").requires == {Need.LOCAL_WORK, Need.REPLICA_REPORTS}
    assert chain("always_admit").requires == frozenset()


def test_a_chain_of_links_without_signals_and_starts_has_none_either() -> None:
    made = chain("always_admit", "always_admit")
    assert not hasattr(made, "observe")
    assert not hasattr(made, "start")
    assert made.consumes == frozenset()


def test_links_may_be_chains() -> None:
    inner = {"name": "chain", "params": {"policies": [SAYS, link(decides="quota", starts="wait")]}}
    made = chain(SAYS, inner)
    assert made.decide(sized(), FakeBacklog(), 0.0) == ANSWERS["quota"]
    assert made.start(sized(), FakeBacklog(), 0.0, None) == WAIT
    assert made.requires == {Need.LOCAL_WORK}


def test_each_link_that_draws_has_a_random_stream_of_its_own() -> None:
    asked: list[str] = []

    def rng_for(purpose: str) -> Rng:
        asked.append(purpose)
        return Seeds(1).stream(purpose)

    policies = PolicyChoice(name="chain", params={"policies": ["bounded_queue", "codel", "bounded_queue"]})
    build(PolicySpec(admission=policies), rng_for=rng_for, provided=frozenset(Need))

    assert [each for each in asked if each.startswith("admission")] == ["admission.0", "admission.2"]


def ask(policy: Any, what: str, *arguments: object) -> object:
    """What it answers, if it has something to say there."""
    if what == "observe" and type(arguments[0]) not in policy.consumes:
        return None
    return getattr(policy, what)(*arguments) if hasattr(policy.policy, what) else ADMIT


def asked_one_by_one(links: Sequence[Any], what: str, *arguments: object) -> object:
    for each in links:
        verdict = ask(each, what, *arguments)
        if isinstance(verdict, Reject | Wait):
            return verdict
    return ADMIT


NAMES = st.sampled_from(["token_bucket", "concurrency_limit", "codel", "bounded_queue"])
STEPS = st.tuples(st.floats(0.0, 0.5), st.integers(0, 6), st.floats(0.0, 2.0))


@given(names=st.lists(NAMES, max_size=3), steps=st.lists(STEPS, max_size=40))
def test_a_chain_answers_as_its_links_would_one_after_the_other(
    names: list[str], steps: Sequence[tuple[float, int, float]]
) -> None:
    """The links are made a second time, with the same random streams, and asked and told by hand."""
    together = hosted(built("admission", "chain", {"policies": (names := ["always_admit", *names])}).admission)
    links = [
        hosted(
            build(
                PolicySpec(admission=PolicyChoice(name=name)),
                rng_for=lambda purpose, index=index: Seeds(1).stream(f"{purpose}.{index}"),  # type: ignore[misc]
                provided=frozenset(Need),
            ).admission
        )
        for index, name in enumerate(names)
    ]
    now_s = 0.0
    for number, (gap_s, num_waiting, waiting_s) in enumerate(steps):
        now_s += gap_s
        request = sized(f"q{number}", prefill_s=0.3, arrival_s=now_s)
        backlog = FakeBacklog(num_waiting=num_waiting, waiting_s=waiting_s, ahead_s=waiting_s)
        verdict = together.decide(request, backlog, now_s)
        assert verdict == asked_one_by_one(links, "decide", request, backlog, now_s)
        if isinstance(verdict, Reject):
            continue
        later_s = now_s + waiting_s
        verdict = ask(together, "start", request, backlog, later_s)
        assert verdict == asked_one_by_one(links, "start", request, backlog, later_s)
        signals: list[Signal] = [admitted(request, now_s), started(request, later_s)]
        if number % 2:
            signals.append(completed(request, later_s))
        for each, signal in product((together, *links), signals):
            ask(each, "observe", signal)


def test_a_dispatcher_asks_a_chain_at_both_ends_of_the_line() -> None:
    one_at_a_time = "tests.policy_doubles:StartsOneAtATime"
    choice = PolicyChoice(name="chain", params={"policies": ["always_admit", one_at_a_time]})
    talk = Dialogue(admission=choice).replicas(Role.UNIFIED, "a")
    talk.arrives("q1")
    talk.arrives("q2")
    assert talk.sends == []

    talk.finishes("q1.0")

    assert talk.sends == ["q2.0 unified to a"]


@for_each("policies", [None, [], "codel", {"name": "codel"}])
def test_a_chain_is_a_list_of_links(policies: object) -> None:
    assert refused_for(policies).field == "policies.admission.params.policies"


@for_each(
    ("bad", "field"),
    [
        ("codell", "1"),
        (3, "1"),
        ({"params": {}}, "1"),
        ({"name": "codel", "parameters": {}}, "1"),
        ({"name": 3}, "1"),
        ({"name": "codel", "params": {"target": 1}}, "1.params"),
        ({"name": "codel", "params": {"drop_factor": 0}}, "1.params.drop_factor"),
        ({"name": "token_bucket", "params": {"tenants": {"a": {"rate_per_s": 0}}}}, "1.params.tenants.a.rate_per_s"),
        ({"name": "chain", "params": {"policies": ["fcfs"]}}, "1.params.policies.0"),
        (
            {"name": "chain", "params": {"policies": [{"name": "codel", "params": {"drop_factor": 0}}]}},
            "1.params.policies.0.params.drop_factor",
        ),
        ({"name": "chain", "params": {"policies": []}}, "1.params.policies"),
        ("tests.policy_doubles:CannotObserve", "1"),
    ],
)
def test_an_error_names_the_link(bad: object, field: str) -> None:
    error = refused_for(["always_admit", bad])
    assert error.field == f"policies.admission.params.policies.{field}"


def test_a_link_whose_needs_are_not_met_is_named() -> None:
    error = refused_for(["always_admit", "codel"], frozenset({Need.GEOMETRY}))
    assert (error.field, error.value) == ("policies.admission.params.policies.1", "codel")
    assert "missing: ['service_rates']" in error.allowed
