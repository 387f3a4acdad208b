from operator import attrgetter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.config.named_policy import PolicyConfig
from cluster.config.policies import PoliciesConfig
from loadtests.scenario.fields import with_fields
from loadtests.scenario.policy_settings import QUESTIONS, policy_setting
from policies.errors import ConfigError
from tests.tables import for_each

DOCUMENT = {
    "policies": {
        "planning": "always_unified",
        "hedging": {"name": "slowdown", "params": {"quantile": 0.95, "budget": 0.05}},
        "lanes": {
            "lanes": [{"name": "all", "pools": ["unified"]}],
            "classifier": {"name": "adaptive_lane_borders", "params": {"refresh_s": 20, "hysteresis": 0.2}},
        },
    }
}


def changed_by(*settings: str) -> PoliciesConfig:
    return PoliciesConfig.model_validate(with_fields(DOCUMENT, dict(map(policy_setting, settings)))["policies"])


def policy_of(policies: PoliciesConfig, question: str) -> PolicyConfig:
    found: PolicyConfig = attrgetter(question)(policies)
    return found


def test_a_policy_is_put_in_place_without_the_parameters_of_the_one_before() -> None:
    found = changed_by("hedging=fixed_delay", "planning=always_disaggregated")

    assert (found.hedging.name, found.hedging.params) == ("fixed_delay", {})
    assert found.planning.name == "always_disaggregated"
    assert found.balancing == changed_by().balancing


@for_each(
    ("text", "value"),
    [("0.3", 0.3), ("7", 7), ("true", True), ("word", "word"), ("[1, 2]", [1, 2]), ("a=b", "a=b")],
)
def test_a_parameter_is_written_as_in_yaml_and_the_others_stay(text: str, value: object) -> None:
    found = changed_by(f"hedging.params.quantile={text}")

    assert found.hedging.name == "slowdown"
    assert found.hedging.params == {"quantile": value, "budget": 0.05}


def test_an_import_path_is_a_name_like_any_other() -> None:
    assert changed_by("balancing=their.module:Policy").balancing.name == "their.module:Policy"


def test_what_decides_about_lanes_is_changed_and_the_lanes_stay() -> None:
    found = changed_by(
        "lanes.guard=backlog", "lanes.guard.params.off_ratio=0.5", "lanes.classifier.params.refresh_s=10"
    )

    assert (found.lanes.guard.name, found.lanes.guard.params) == ("backlog", {"off_ratio": 0.5})
    assert found.lanes.classifier.name == "adaptive_lane_borders"
    assert found.lanes.classifier.params == {"refresh_s": 10, "hysteresis": 0.2}
    assert found.lanes.lanes == changed_by().lanes.lanes
    assert changed_by("lanes.classifier=first_that_fits").lanes.classifier.params == {}


@for_each(
    "setting",
    [
        "",
        "balancing",
        "balancing=",
        "=random",
        "speed=7",
        "lanes=none",
        "lanes.lanes=none",
        "hedging.params=1",
        "hedging.params.=1",
        "hedging.params.delay_s=",
        "hedging.params.delay_s=[1",
        "hedging.delay_s=1",
    ],
)
def test_a_setting_that_can_not_be_read_is_refused(setting: str) -> None:
    with pytest.raises(ConfigError) as caught:
        policy_setting(setting)

    assert (caught.value.field, caught.value.value) == ("--policy", setting)


@given(st.lists(st.tuples(st.sampled_from(QUESTIONS), st.from_regex(r"[a-z_:.]+", fullmatch=True))))
def test_a_setting_changes_its_own_question_alone(settings: list[tuple[str, str]]) -> None:
    found = changed_by(*(f"{question}={name}" for question, name in settings))

    last = dict(settings)
    for question in QUESTIONS:
        assert policy_of(found, question).name == last.get(question, policy_of(changed_by(), question).name)
