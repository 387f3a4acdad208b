"""Texts that would take for ever are refused at once, and large ones that say much are not."""

import pytest
import yaml

from cluster.config.yaml_text import MOST_PARTS, parse_yaml
from tests.tables import for_each

LEVELS = 12
"""With nine of each in the next: 282 billion values."""


def bomb(level: str, first: str) -> str:
    lines = [f"a0: &a0 {first}"]
    for number in range(1, LEVELS):
        names = ", ".join([f"*a{number - 1}"] * 9)
        lines.append(f"a{number}: &a{number} {level.format(names=names)}")
    return "\n".join(lines)


@for_each(
    ("text", "said"),
    [
        (bomb("[{names}]", "[1]"), "aliases make"),
        (bomb("{{<<: [{names}]}}", "{k: 1}"), "keys are merged"),
        ("a: &a [*a]", "within itself"),
        ("a: 1\nb: 2\na: 3", "the key 'a' stands twice"),
        ("? [1]\n: 2", "can't be a key"),
        ("[" * 5_000, "nested too deeply"),
    ],
)
def test_what_has_no_end_within_reason_is_refused(text: str, said: str) -> None:
    with pytest.raises(yaml.YAMLError, match=said):
        parse_yaml(text)


def test_what_is_named_a_few_times_is_there_each_time() -> None:
    text = "usual: &usual {rate: 1}\nothers: [*usual, *usual]\nmore: {<<: *usual, burst: 2}"
    assert parse_yaml(text) == {"usual": {"rate": 1}, "others": [{"rate": 1}] * 2, "more": {"rate": 1, "burst": 2}}


def test_a_list_of_many_tenants_is_read_and_each_of_them_once() -> None:
    number = 5_000
    assert number * 5 < MOST_PARTS
    found = parse_yaml("\n".join(f"tenant-{each}: {{weight: 2}}" for each in range(number)))
    assert len(found) == number
