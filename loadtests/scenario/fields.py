"""Any field of a scenario file, changed by its path: ``fleet.num_gateways``, ``workload.classes.chat.timeout_s``.

Paths are those of the file. An element of a list is named by its ``name``, or by its number from 0. Where a path
continues behind a word, the word is the name of what stands there: ``policies.hedging.params.delay_s`` turns
``hedging: after_delay`` into a mapping with that name and the parameter.
"""

import copy
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import yaml

from policies.errors import ConfigError

MOST_VALUES = 100
_RANGE = re.compile(r"(\d+(?:\.\d+)?):(\d+(?:\.\d+)?):(\d+(?:\.\d+)?)")
Settings = Mapping[str, Any]
"""Values by path; ``None`` takes a field away."""


def with_fields(document: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """A copy of a document with other values at some paths, set in their order.

    Raises:
        ConfigError: A path that leads nowhere.
    """
    changed: dict[str, Any] = copy.deepcopy(dict(document))
    for path, value in settings.items():
        *way, last = path.split(".")
        holder: Any = changed
        for part in way:
            holder = _inside(holder, part, path)
        _put(holder, last, copy.deepcopy(value), path)
    return changed


def setting(text: str) -> tuple[str, Any]:
    """Reads ``PATH=VALUE``; the value is written as in YAML.

    Raises:
        ConfigError: It is something else.
    """
    path, equals, value = text.partition("=")
    if not path or not equals:
        raise ConfigError("--set", text, "PATH=VALUE, such as fleet.num_gateways=4")
    return path, yaml_value(value, "--set", text)


def axis(text: str) -> tuple[str, list[Any]]:
    """Reads ``PATH=VALUES``: values as in YAML with commas between them, or ``FROM:TO:STEP``, ``TO`` included.

    Raises:
        ConfigError: It is something else, or more than ``MOST_VALUES``.
    """
    path, equals, values = text.partition("=")
    if not path or not equals or not values:
        raise ConfigError("--sweep", text, "PATH=VALUE,VALUE or PATH=FROM:TO:STEP, such as load=0.25:2:0.25")
    steps = _RANGE.fullmatch(values)
    found = _steps(text, *map(Decimal, steps.groups())) if steps else yaml_value(f"[{values}]", "--sweep", text)
    if len(found) > MOST_VALUES:
        raise ConfigError("--sweep", text, f"at most {MOST_VALUES} values")
    return path, found


def _steps(text: str, first: Decimal, last: Decimal, step: Decimal) -> list[float | int]:
    if step <= 0 or last < first or (last - first) / step >= MOST_VALUES:
        raise ConfigError(
            "--sweep", text, f"FROM:TO:STEP with TO from FROM on, and at most {MOST_VALUES} steps above 0"
        )
    values = [first + number * step for number in range(int((last - first) / step) + 1)]
    return [int(each) if step == int(step) and first == int(first) else float(each) for each in values]


def yaml_value(text: str, option: str, whole: str) -> Any:
    """A value as YAML has it.

    Raises:
        ConfigError: It has none such; names the option and all that was given to it.
    """
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(option, whole, "a value that YAML can read") from error


def _inside(holder: Any, part: str, path: str) -> Any:
    """What a path goes on in; a mapping that is not there is made, and a word becomes one."""
    if isinstance(holder, list):
        return holder[_index(holder, part, path)]
    found = holder.get(part)
    if found is None:
        found = holder[part] = {}
    elif isinstance(found, str):
        found = holder[part] = {"name": found}
    if not isinstance(found, dict | list):
        raise ConfigError(path, found, f"a path that ends at {part}, which is a value")
    return found


def _put(holder: Any, last: str, value: Any, path: str) -> None:
    if isinstance(holder, list):
        index = _index(holder, last, path)
        holder[index : index + 1] = [] if value is None else [value]
    elif value is None:
        holder.pop(last, None)
    else:
        holder[last] = value


def _index(elements: Sequence[Any], part: str, path: str) -> int:
    """Where an element is, by its name or its number."""
    names = [each.get("name") if isinstance(each, dict) else None for each in elements]
    if part in names:
        return names.index(part)
    if part.isdecimal() and int(part) < len(elements):
        return int(part)
    known = [name if name is not None else str(number) for number, name in enumerate(names)]
    raise ConfigError(path, part, f"one of {known}")
