import pytest

from policies import ConfigError, PolicyChoice, Role
from routing import PLANNERS, Plan, build_planner
from routing.request.stages import DISAGGREGATED, UNIFIED
from tests.policy_doubles import FakeFleet, a_request
from tests.tables import for_each

ALL_POOLS = frozenset(Role)
UNIFIED_POOL = frozenset({Role.UNIFIED})


@for_each(
    ("name", "plan"),
    [("always_unified", (Role.UNIFIED,)), ("always_disaggregated", (Role.PREFILL, Role.DECODE))],
)
def test_a_built_in_planner_gives_every_request_the_same_plan(name: str, plan: Plan) -> None:
    assert build_planner(PolicyChoice(name=name), ALL_POOLS).plan(a_request(), FakeFleet(), 0.0) == plan


@for_each("name", sorted(PLANNERS))
def test_a_planner_plans_within_the_roles_it_names(name: str) -> None:
    planner = build_planner(PolicyChoice(name=name), ALL_POOLS)

    assert planner.roles >= frozenset(planner.plan(a_request(), FakeFleet(), 0.0))


def test_a_planner_without_its_pools_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        build_planner(PolicyChoice(name="always_disaggregated"), UNIFIED_POOL)

    assert (caught.value.field, caught.value.value) == ("policies.planning", "always_disaggregated")
    assert caught.value.allowed == "a planner for the pools ['unified'] (missing: ['decode', 'prefill'])"


def test_an_unknown_planner_is_refused_with_the_planners_there_are() -> None:
    with pytest.raises(ConfigError) as caught:
        build_planner(PolicyChoice(name="sometimes"), ALL_POOLS)

    assert (caught.value.field, caught.value.value) == ("policies.planning", "sometimes")
    assert (
        caught.value.allowed
        == "one of ['always_disaggregated', 'always_unified', 'conditional'], or package.module:factory"
    )


def test_a_planner_can_be_named_by_import_path() -> None:
    planner = build_planner(PolicyChoice(name="tests.policy_doubles:LongPromptsApart"), ALL_POOLS)

    assert planner.plan(a_request(prompt_tokens=10), FakeFleet(), 0.0) == UNIFIED
    assert planner.plan(a_request(prompt_tokens=5000), FakeFleet(), 0.0) == DISAGGREGATED
