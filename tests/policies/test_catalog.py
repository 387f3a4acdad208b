from collections.abc import Callable
from typing import Any

import pytest

from cluster import Seeds
from policies import CATALOG, ConfigError, Need, PolicyChoice, PolicySet, PolicySpec, Rng, Role, build
from policies.balancing import LeastWorkLeft, PowerOfTwo
from policies.catalog import resolve
from policies.hedging import NoHedge
from tests.policy_doubles import HedgeAfter, a_request
from tests.tables import for_each

DOUBLES = "tests.policy_doubles"


def build_all(spec: PolicySpec, provided: frozenset[Need] = frozenset(Need)) -> PolicySet:
    return build(spec, rng_for=Seeds(1).stream, provided=provided)


def refusal(call: Callable[[], Any]) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        call()
    return caught.value


def refusal_of(choice: PolicyChoice) -> ConfigError:
    return refusal(lambda: build_all(PolicySpec(balancing=choice)))


def test_the_default_is_everything_off_with_the_balancer_to_beat() -> None:
    policies = build_all(PolicySpec())

    assert isinstance(policies.hedging, NoHedge)
    assert all(isinstance(each, LeastWorkLeft) for each in policies.balancers.values())


def test_each_role_has_a_balancer_and_a_queue_of_its_own() -> None:
    policies = build_all(PolicySpec())

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


def test_an_unknown_name_is_refused_with_the_names_there_are() -> None:
    error = refusal_of(PolicyChoice(name="round_robbin"))

    assert (error.field, error.value) == ("policies.balancing", "round_robbin")
    assert error.allowed == f"one of {sorted(CATALOG['balancing'])}, or package.module:factory"


def test_a_name_of_another_kind_is_unknown() -> None:
    assert refusal_of(PolicyChoice(name="no_hedge")).value == "no_hedge"


def test_an_unknown_parameter_is_refused_with_the_parameters_there_are() -> None:
    error = refusal(lambda: build_all(PolicySpec(hedging=PolicyChoice(name=f"{DOUBLES}:HedgeAfter", params={"s": 1}))))

    assert (error.field, error.value) == ("policies.hedging.params", {"s": 1})
    assert error.allowed == "parameters ['delay_s']"


def test_a_missing_parameter_is_refused() -> None:
    error = refusal(lambda: build_all(PolicySpec(hedging=PolicyChoice(name=f"{DOUBLES}:HedgeAfter"))))

    assert error.allowed == "parameters ['delay_s']"


@for_each("name", ["least_work_left", "power_of_two"], ids=["takes_no_stream", "takes_a_stream"])
def test_a_random_stream_is_not_a_parameter(name: str) -> None:
    error = refusal_of(PolicyChoice(name=name, params={"rng": 4}))

    assert (error.field, error.value) == ("policies.balancing.params", {"rng": 4})
    assert error.allowed == "no parameters"


def test_an_import_path_names_anybodys_own_policy() -> None:
    choice = PolicyChoice(name=f"{DOUBLES}:HedgeAfter", params={"delay_s": 0.5})

    policies = build_all(PolicySpec(hedging=choice))

    assert isinstance(policies.hedging, HedgeAfter)


@for_each(
    "path",
    [
        "no_such_package.module:Factory",
        f"{DOUBLES}:NoSuchFactory",
        f"{DOUBLES}:",
        ":Factory",
        ".policy_doubles:Factory",
    ],
    ids=["no_module", "no_attribute", "empty_attribute", "empty_module", "relative"],
)
def test_an_import_path_that_does_not_work_is_refused(path: str) -> None:
    error = refusal_of(PolicyChoice(name=path))

    assert (error.field, error.value) == ("policies.balancing", path)
    assert error.allowed.startswith("an import path that works (")
    assert error.__cause__ is not None


def test_an_import_path_to_something_that_cannot_be_called_is_refused() -> None:
    error = refusal_of(PolicyChoice(name=f"{DOUBLES}:NOT_CALLABLE"))

    assert error.allowed == "something that can be called to make the policy"


def test_a_policy_whose_needs_the_host_cannot_meet_is_refused() -> None:
    provided = frozenset({Need.LOCAL_WORK, Need.FIRST_TOKEN})

    error = refusal(lambda: build_all(PolicySpec(), provided))

    assert (error.field, error.value) == ("policies.balancing", "least_work_left")
    assert error.allowed == (
        "a policy whose needs are within ['first_token', 'local_work'] (missing: ['replica_reports'])"
    )


def test_a_policy_is_built_when_its_needs_are_met() -> None:
    spec = PolicySpec(balancing=PolicyChoice(name="power_of_two"))

    policies = build_all(spec, provided=frozenset({Need.LOCAL_WORK}))

    assert isinstance(policies.balancers[Role.DECODE], PowerOfTwo)


@for_each("name", ["ForgotConsumes", "ConsumesByName", "ConsumesAnEvent"])
def test_a_policy_that_does_not_say_what_it_consumes_is_refused(name: str) -> None:
    error = refusal(lambda: build_all(PolicySpec(shedding=PolicyChoice(name=f"{DOUBLES}:{name}"))))

    assert (error.field, error.value) == ("policies.shedding", f"{DOUBLES}:{name}")
    assert error.allowed.startswith(
        "a policy with `consumes`, a frozenset of signal types (of ['Admitted', 'Answering', 'Cancelled', 'Completed',"
    )


def test_a_policy_whose_observe_would_never_be_called_is_refused() -> None:
    error = refusal(lambda: build_all(PolicySpec(shedding=PolicyChoice(name=f"{DOUBLES}:ConsumesNothing"))))

    assert (error.field, error.value) == ("policies.shedding", f"{DOUBLES}:ConsumesNothing")
    assert error.allowed.startswith("a policy that names in `consumes` what its `observe` wants")


def test_a_policy_that_cannot_take_in_what_it_consumes_is_refused() -> None:
    error = refusal(lambda: build_all(PolicySpec(shedding=PolicyChoice(name=f"{DOUBLES}:CannotObserve"))))

    assert (error.field, error.value) == ("policies.shedding", f"{DOUBLES}:CannotObserve")
    assert error.allowed == "a policy that has `observe` for what it consumes (['Completed'])"


def test_names_can_be_looked_up_outside_the_catalog() -> None:
    assert resolve("anything", "mine", {"mine": NoHedge}) is NoHedge


def test_a_policy_that_cannot_be_made_is_refused_with_what_it_raised() -> None:
    refused = refusal_of(PolicyChoice(name=f"{DOUBLES}:FailsWhenMade"))

    assert refused.field == "policies.balancing"
    assert refused.allowed == "a policy that can be made (RuntimeError: no such table)"


def test_a_policy_without_the_method_that_answers_its_question_is_refused() -> None:
    assert refusal_of(PolicyChoice(name=f"{DOUBLES}:AdmitNone")).allowed == "a policy that has the methods ['pick']"


def test_a_factory_that_hides_its_parameters_is_refused() -> None:
    error = refusal(lambda: build_all(PolicySpec(hedging=PolicyChoice(name="builtins:dict"))))

    assert (error.field, error.value) == ("policies.hedging", "builtins:dict")
