from operator import attrgetter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.config.named_policy import PolicyConfig
from cluster.config.policies import PoliciesConfig
from loadtests.scenario.policy_settings import QUESTIONS, with_settings
from policies.errors import ConfigError
from tests.tables import for_each

POLICIES = PoliciesConfig.model_validate(
    {"planning": "always_unified", "hedging": {"name": "slowdown", "params": {"quantile": 0.95, "budget": 0.05}}}
)
WITH_LANES = PoliciesConfig.model_validate(
    {
        "planning": "always_unified",
        "lanes": {
            "lanes": [{"name": "all", "pools": ["unified"]}],
            "classifier": {"name": "adaptive_lane_borders", "params": {"refresh_s": 20, "hysteresis": 0.2}},
        },
    }
)


def policy_of(policies: PoliciesConfig, question: str) -> PolicyConfig:
    found: PolicyConfig = attrgetter(question)(policies)
    return found


def test_a_policy_is_put_in_place_without_the_parameters_of_the_one_before() -> None:
    found = with_settings(POLICIES, ["hedging=fixed_delay", "planning=always_disaggregated"])

    assert (found.hedging.name, found.hedging.params) == ("fixed_delay", {})
    assert found.planning.name == "always_disaggregated"
    assert found.balancing == POLICIES.balancing


@for_each(
    ("text", "value"),
    [("0.3", 0.3), ("7", 7), ("true", True), ("word", "word"), ("[1, 2]", [1, 2]), ("null", None), ("a=b", "a=b")],
)
def test_a_parameter_is_written_as_in_yaml_and_the_others_stay(text: str, value: object) -> None:
    found = with_settings(POLICIES, [f"hedging.params.quantile={text}"])

    assert found.hedging.name == "slowdown"
    assert found.hedging.params == {"quantile": value, "budget": 0.05}


def test_later_settings_see_earlier_ones() -> None:
    found = with_settings(POLICIES, ["hedging=fixed_delay", "hedging.params.delay_s=1", "hedging.params.delay_s=2"])

    assert (found.hedging.name, found.hedging.params) == ("fixed_delay", {"delay_s": 2})


def test_an_import_path_is_a_name_like_any_other() -> None:
    assert with_settings(POLICIES, ["balancing=their.module:Policy"]).balancing.name == "their.module:Policy"


def test_who_decides_about_lanes_is_changed_and_the_lanes_stay() -> None:
    found = with_settings(
        WITH_LANES,
        ["lanes.guard=backlog", "lanes.guard.params.off_ratio=0.5", "lanes.classifier.params.refresh_s=10"],
    )

    assert (found.lanes.guard.name, found.lanes.guard.params) == ("backlog", {"off_ratio": 0.5})
    assert found.lanes.classifier.name == "adaptive_lane_borders"
    assert found.lanes.classifier.params == {"refresh_s": 10, "hysteresis": 0.2}
    assert found.lanes.lanes == WITH_LANES.lanes.lanes
    assert with_settings(WITH_LANES, ["lanes.classifier=first_that_fits"]).lanes.classifier.params == {}


@for_each("setting", ["lanes.guard=backlog", "lanes.classifier.params.refresh_s=10"])
def test_lanes_are_not_changed_where_there_are_none(setting: str) -> None:
    with pytest.raises(ConfigError, match="only for scenarios that have lanes"):
        with_settings(POLICIES, [setting])


@for_each(
    "setting",
    [
        "",
        "balancing",
        "balancing=",
        "=random",
        "speed=7",
        "speed.params.x=7",
        "hedging.params.=7",
        "hedging.params.x=",
        "hedging.delay_s=7",
        "lanes.params.x=7",
        "lanes=backlog",
        "lanes.lanes=7",
        "lanes.guard.off_ratio=7",
        "guard=backlog",
        "hedging.params.x=[",
    ],
)
def test_a_setting_that_can_not_be_read_is_refused(setting: str) -> None:
    with pytest.raises(ConfigError) as caught:
        with_settings(POLICIES, [setting])

    assert (caught.value.field, caught.value.value) == ("--policy", setting)


@given(st.lists(st.tuples(st.sampled_from(QUESTIONS), st.from_regex(r"[a-z_:.]+", fullmatch=True))))
def test_a_setting_changes_its_own_question_alone(settings: list[tuple[str, str]]) -> None:
    found = with_settings(WITH_LANES, [f"{question}={name}" for question, name in settings])

    last = dict(settings)
    for question in QUESTIONS:
        assert policy_of(found, question).name == last.get(question, policy_of(WITH_LANES, question).name)


def test_an_old_name_of_a_parameter_takes_the_place_of_the_one_that_the_scenario_gives() -> None:
    hedging = PolicyConfig(name="slowdown", params={"min_slowdown": 1.5})
    policies = PoliciesConfig(planning=PolicyConfig(name="always_unified"), hedging=hedging)

    changed = with_settings(policies, ["hedging.params.min_stretch=2"])

    assert changed.hedging.params == {"min_slowdown": 2}
