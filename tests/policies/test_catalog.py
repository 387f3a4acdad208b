from pathlib import Path
from typing import Any

from cluster import Seeds
from policies import CATALOG, Need, PolicyChoice, PolicySpec, Rng, Role, build
from policies.balancing import LeastWorkLeft, PowerOfTwo
from policies.catalog import resolve
from policies.hedging import NoHedge
from policies.signals import SIGNAL_TYPES
from tests.policies.built import built, refusal_of
from tests.policy_doubles import HedgeAfter, a_request
from tests.tables import for_each

DOUBLES = "tests.policy_doubles"
NO_FACTORY = "a class, or a function whose annotation says which class it returns"


def test_the_default_is_everything_off_with_the_balancer_to_beat() -> None:
    policies = built()
    assert isinstance(policies.hedging, NoHedge)
    assert all(isinstance(each, LeastWorkLeft) for each in policies.balancers.values())


def test_each_role_has_a_balancer_and_a_queue_of_its_own() -> None:
    policies = built()
    assert set(policies.balancers) == set(policies.queues) == set(Role)
    policies.queues[Role.PREFILL].push(a_request(), 0.0)
    assert [len(policies.queues[role]) for role in (Role.UNIFIED, Role.PREFILL, Role.DECODE)] == [0, 1, 0]


def test_each_policy_that_draws_has_a_random_stream_of_its_own() -> None:
    asked: list[str] = []

    def rng_for(purpose: str) -> Rng:
        asked.append(purpose)
        return Seeds(1).stream(purpose)

    build(PolicySpec(balancing=PolicyChoice(name="random")), rng_for=rng_for, provided=frozenset(Need))

    assert sorted(asked) == ["balancing.decode", "balancing.prefill", "balancing.unified", "retrying"]


def test_an_import_path_names_anybodys_own_policy() -> None:
    assert isinstance(built("hedging", f"{DOUBLES}:HedgeAfter", {"delay_s": 0.5}).hedging, HedgeAfter)


BALANCERS = f"one of {sorted(CATALOG['balancing'])}, or package.module:factory"
A_FROZENSET = (
    f"a policy with `consumes`, a frozenset of signal types (of {sorted(each.__name__ for each in SIGNAL_TYPES)}), "
    "empty if it learns nothing"
)
NEVER_CALLED = "a policy that names in `consumes` what its `observe` wants; nothing is named, so it is never called"


@for_each(
    ("question", "name", "allowed"),
    [
        ("balancing", "round_robbin", BALANCERS),
        ("balancing", "no_hedge", BALANCERS),
        ("balancing", f"{DOUBLES}:NOT_CALLABLE", NO_FACTORY),
        ("balancing", f"{DOUBLES}:FailsWhenMade", "a policy that can be made (RuntimeError: no such table)"),
        ("balancing", f"{DOUBLES}:AdmitNone", "a policy that has the methods ['pick']"),
        ("hedging", "builtins:dict", "a factory that says which parameters it takes"),
        ("shedding", f"{DOUBLES}:ForgotConsumes", A_FROZENSET),
        ("shedding", f"{DOUBLES}:ConsumesByName", A_FROZENSET),
        ("shedding", f"{DOUBLES}:ConsumesAnEvent", A_FROZENSET),
        ("shedding", f"{DOUBLES}:ConsumesNothing", NEVER_CALLED),
        ("shedding", f"{DOUBLES}:CannotObserve", "a policy that has `observe` for what it consumes (['Completed'])"),
    ],
)
def test_what_is_no_policy_for_the_question_is_refused(question: str, name: str, allowed: str) -> None:
    error = refusal_of(question, name)
    assert (error.field, error.value) == (f"policies.{question}", name)
    assert error.allowed == allowed


@for_each(
    ("question", "name", "params", "allowed"),
    [
        ("hedging", f"{DOUBLES}:HedgeAfter", {"s": 1}, "parameters ['delay_s']"),
        ("hedging", f"{DOUBLES}:HedgeAfter", {}, "parameters ['delay_s']"),
        ("balancing", "least_work_left", {"rng": 4}, "no parameters"),
        ("balancing", "power_of_two", {"rng": 4}, "no parameters"),
    ],
    ids=["unknown", "missing", "a random stream that it does not take", "a random stream that it takes"],
)
def test_parameters_that_a_policy_does_not_have_are_refused_with_those_it_has(
    question: str, name: str, params: dict[str, Any], allowed: str
) -> None:
    error = refusal_of(question, name, params)
    assert (error.field, error.value) == (f"policies.{question}.params", params)
    assert error.allowed == allowed


@for_each(
    "path",
    [
        "no_such_package.module:Factory",
        f"{DOUBLES}:NoSuchFactory",
        f"{DOUBLES}:",
        ":Factory",
        ".policy_doubles:Factory",
    ],
)
def test_an_import_path_that_does_not_work_is_refused(path: str) -> None:
    error = refusal_of("balancing", path)
    assert (error.field, error.value) == ("policies.balancing", path)
    assert error.allowed.startswith("an import path that works (")
    assert error.__cause__ is not None


@for_each("path", ["os:system", "subprocess:call", "os:popen", "math:pi"])
def test_what_makes_no_policy_is_refused_before_it_is_called(path: str, tmp_path: Path) -> None:
    error = refusal_of("balancing", path, {"command": f"touch {tmp_path / 'called'}"})
    assert (error.field, error.value) == ("policies.balancing", path)
    assert error.allowed == NO_FACTORY
    assert not [*tmp_path.iterdir()]


def test_a_policy_whose_needs_the_host_cannot_meet_is_refused() -> None:
    error = refusal_of("balancing", "least_work_left", provided=frozenset({Need.LOCAL_WORK, Need.FIRST_TOKEN}))
    assert (error.field, error.value) == ("policies.balancing", "least_work_left")
    assert error.allowed == (
        "a policy whose needs are within ['first_token', 'local_work'] (missing: ['replica_reports'])"
    )


def test_a_policy_is_built_when_its_needs_are_met() -> None:
    policies = built("balancing", "power_of_two", provided=frozenset({Need.LOCAL_WORK}))
    assert isinstance(policies.balancers[Role.DECODE], PowerOfTwo)


def test_names_can_be_looked_up_outside_the_catalog() -> None:
    assert resolve("anything", "mine", {"mine": NoHedge}) is NoHedge
