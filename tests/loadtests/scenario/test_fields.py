import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.scenario.fields import axis, setting, with_fields
from loadtests.scenario.scenario import load
from policies.errors import ConfigError
from tests.tables import for_each

DOCUMENT: dict[str, Any] = {
    "fleet": {"num_gateways": 2, "pools": [{"role": "prefill", "replicas": 1}, {"role": "decode", "replicas": 3}]},
    "policies": {"balancing": "random", "hedging": {"name": "slowdown", "params": {"budget": 0.1}}},
    "workload": {"classes": [{"name": "chat", "timeout_s": 30}, {"name": "code", "timeout_s": 60}]},
}


@for_each(
    ("path", "value", "found"),
    [
        ("fleet.num_gateways", 4, lambda it: it["fleet"]["num_gateways"]),
        ("fleet.pools.1.replicas", 8, lambda it: it["fleet"]["pools"][1]["replicas"]),
        ("workload.classes.code.timeout_s", 5, lambda it: it["workload"]["classes"][1]["timeout_s"]),
        ("policies.hedging.params.budget", 0.2, lambda it: it["policies"]["hedging"]["params"]["budget"]),
        ("clients.max_requests", 3, lambda it: it["clients"]["max_requests"]),
    ],
    ids=["a field", "a number in a list", "a name in a list", "a parameter", "what is not there yet"],
)
def test_a_path_leads_to_one_field_and_the_rest_stays(path: str, value: Any, found: Any) -> None:
    before = copy.deepcopy(DOCUMENT)

    changed = with_fields(DOCUMENT, {path: value})

    assert found(changed) == value
    assert before == DOCUMENT, "the document itself is left alone"


def test_a_word_where_the_path_goes_on_is_a_name() -> None:
    changed = with_fields(DOCUMENT, {"policies.balancing.params.power": 3})

    assert changed["policies"]["balancing"] == {"name": "random", "params": {"power": 3}}


def test_nothing_takes_a_field_or_an_element_away() -> None:
    changed = with_fields(DOCUMENT, {"policies.hedging": None, "workload.classes.chat": None})

    assert changed["policies"] == {"balancing": "random"}
    assert [each["name"] for each in changed["workload"]["classes"]] == ["code"]


def test_later_settings_see_earlier_ones() -> None:
    changed = with_fields(DOCUMENT, {"policies.balancing": "two", "policies.balancing.params.power": 3})

    assert changed["policies"]["balancing"] == {"name": "two", "params": {"power": 3}}


@for_each(
    ("path", "allowed"),
    [
        ("workload.classes.video.timeout_s", "one of ['chat', 'code']"),
        ("fleet.pools.2.replicas", "one of ['0', '1']"),
        ("fleet.num_gateways.more", "a path that ends at num_gateways, which is a value"),
    ],
)
def test_a_path_that_leads_nowhere_is_refused(path: str, allowed: str) -> None:
    with pytest.raises(ConfigError) as caught:
        with_fields(DOCUMENT, {path: 1})

    assert (caught.value.field, caught.value.allowed) == (path, allowed)


@for_each(
    ("text", "path", "value"),
    [
        ("a.b=4", "a.b", 4),
        ("a=word", "a", "word"),
        ("a={b: [1, 2]}", "a", {"b": [1, 2]}),
        ("a=null", "a", None),
        ("a=b=c", "a", "b=c"),
        ("a=their.module:Policy", "a", "their.module:Policy"),
    ],
)
def test_a_setting_is_written_as_in_yaml(text: str, path: str, value: object) -> None:
    assert setting(text) == (path, value)


@for_each("text", ["", "=1", "load", "a=[1"])
def test_a_setting_that_can_not_be_read_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--set"):
        setting(text)


@for_each(
    ("text", "values"),
    [
        ("load=0.25:1:0.25", [0.25, 0.5, 0.75, 1.0]),
        ("n=1:4:1", [1, 2, 3, 4]),
        ("n=1:4:2", [1, 3]),
        ("load=0.5,2", [0.5, 2]),
        ("policies.balancing=random,power_of_two", ["random", "power_of_two"]),
        ("policies.hedging={name: a},b", [{"name": "a"}, "b"]),
    ],
)
def test_an_axis_is_values_or_steps(text: str, values: list[object]) -> None:
    assert axis(text)[1] == values


@for_each("text", ["load", "load=", "load=1:0:0.1", "load=0:1:0", "load=0:1000:1", "load=[", "=1,2"])
def test_an_axis_that_can_not_be_read_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--sweep"):
        axis(text)


@given(st.integers(1, 40), st.integers(1, 20), st.integers(1, 9))
def test_steps_begin_at_the_first_and_never_pass_the_last(first: int, count: int, step: int) -> None:
    last = first + count * step

    _, values = axis(f"load={first / 10}:{last / 10}:{step / 10}")

    assert values == pytest.approx([(first + number * step) / 10 for number in range(count + 1)])


def test_a_scenario_is_read_with_other_values_and_checked_with_them() -> None:
    assert load("ragged", {"fleet.num_gateways": 3}).fleet.num_gateways == 3
    with pytest.raises(ConfigError, match=r"ragged.yaml: fleet.num_gateways: got 0"):
        load("ragged", {"fleet.num_gateways": 0})
