"""Names in YAML files that have changed, and what they are called now: read for one version more, with a warning."""

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from policies.errors import ConfigError

LOGGER = logging.getLogger("ray.serve")

KEYS: Mapping[tuple[str, str], str] = MappingProxyType(
    {
        ("gateway", "suspect_s"): "quarantine_s",
        ("dispatcher", "suspect_s"): "quarantine_s",
        ("gateway", "ledger"): "load_coordinator",
        ("fleet", "ledger_delay_s"): "load_coordinator_delay_s",
        ("", "ledger_outages"): "load_coordinator_outages",
        ("", "marks"): "checks",
        ("clients", "max_tries"): "max_requests",
    }
)
"""Section and key, and the key's name now; the section of the document itself is empty."""
POLICIES: Mapping[tuple[str, str], str] = MappingProxyType(
    {
        ("hedging", "stretch"): "slowdown",
        ("degradation", "time_box"): "output_time_limit",
        ("classifier", "adaptive_cutoffs"): "adaptive_lane_borders",
    }
)
"""Question and policy, and the policy's name now."""
PARAMS: Mapping[tuple[str, str], str] = MappingProxyType(
    {
        ("slowdown", "min_stretch"): "min_slowdown",
        ("slowdown", "max_stretch"): "max_slowdown",
        ("output_time_limit", "box_s"): "limit_s",
    }
)
"""Policy and parameter, and the parameter's name now."""
VALUES: Mapping[tuple[str, str, str], str] = MappingProxyType({("concurrency_limit", "signal", "stretch"): "slowdown"})
"""Policy, parameter and value, and what the value is called now."""

METRICS: Mapping[str, str] = MappingProxyType(
    {
        "offered_intents": "offered_requests",
        "tries_per_intent": "sends_per_request",
        "tries_per_sent_intent": "sends_per_sent_request",
        "attempts_per_intent": "attempts_per_request",
        "hedges_per_intent": "hedges_per_request",
        "preemptions_per_intent": "preemptions_per_request",
        "computed_tokens_per_intent": "computed_tokens_per_request",
    }
)
"""A metric that a scenario's check names, and its name now."""

_QUESTIONS = frozenset(question for question, _ in POLICIES) | {"admission"}
_warned: set[str] = set()


def modernised(document: Any) -> Any:
    """A YAML document with the names of now; each old one is warned of once in a process.

    Raises:
        ConfigError: A key stands under its old name and under its new one.
    """
    return _section("", document)


def _section(section: str, document: Any) -> Any:
    if isinstance(document, list | tuple):
        return [_section(section, each) for each in document]
    if not isinstance(document, Mapping):
        return document
    found: dict[Any, Any] = {}
    for key, value in document.items():
        now = KEYS.get((section, key), key) if isinstance(key, str) else key
        if now != key:
            if now in document:
                raise ConfigError(f"{section}.{key}".lstrip("."), value, f"{now} alone, which is its name now")
            _warn(f"{section}.{key}".lstrip("."), now)
        found[now] = _policy(now, value) if now in _QUESTIONS else _section(str(now), value)
    if section == "checks" and found.get("metric") in METRICS:
        old, found["metric"] = found["metric"], METRICS[found["metric"]]
        _warn(f"checks.metric: {old}", found["metric"])
    return found


def _policy(question: str, value: Any) -> Any:
    """What stands for a policy: a name, or a mapping with its name and its parameters."""
    if isinstance(value, str):
        now = POLICIES.get((question, value), value)
        if now != value:
            _warn(f"{question}: {value}", f"{question}: {now}")
        return now
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        return value
    name = _policy(question, value["name"])
    params = value.get("params")
    if not isinstance(params, Mapping):
        return {**value, "name": name}
    return {**value, "name": name, "params": dict(_param(question, name, *each, params) for each in params.items())}


def _param(question: str, policy: str, param: Any, value: Any, given: Mapping[Any, Any]) -> tuple[Any, Any]:
    if param == "policies" and isinstance(value, list | tuple):
        return param, [_policy(question, each) for each in value]
    now = PARAMS.get((policy, param), param)
    if now != param:
        if now in given:
            raise ConfigError(f"{question}.params.{param}", value, f"{now} alone, which is its name now")
        _warn(f"{policy}.params.{param}", now)
    value_now = VALUES.get((policy, param, value), value) if isinstance(value, str) else value
    if value_now != value:
        _warn(f"{policy}.params.{param}: {value}", value_now)
    return now, value_now


def _warn(old: str, new: str) -> None:
    if old not in _warned:
        _warned.add(old)
        LOGGER.warning("%s is called %s now; the old name is read in this version and not in the next one", old, new)


_NAMES = {key: now for (_, key), now in KEYS.items()} | {param: now for (_, param), now in PARAMS.items()}
_SCALARS = {name: now for (_, name), now in POLICIES.items()} | {value: now for (*_, value), now in VALUES.items()}
_SCALARS |= METRICS
_KEY = re.compile(rf"(^\s*(?:- +)*|[{{,]\s*)({'|'.join(_NAMES)})(?=\s*:(?:\s|$))")
_SCALAR = re.compile(rf"((?:^|[\s{{,])(?:\w+:|-)\s+|[\[,]\s*)({'|'.join(_SCALARS)})(?=\s*(?:[,\}}\]]|$))")
_WORD = re.compile(rf"(?<![\w-])(?:{'|'.join(_NAMES | _SCALARS)})(?![\w-])")
_COMMENT = re.compile(r"(?:^|\s)#.*$")


def has_old_name(line: str) -> bool:
    """Whether a line of a YAML file has a word that is an old name, wherever it stands."""
    return bool(_WORD.search(_COMMENT.sub("", line)))


@contextmanager
def without_warnings() -> Iterator[None]:
    """For those who mend what they would be warned of."""
    level = LOGGER.level
    LOGGER.setLevel(logging.ERROR)
    try:
        yield
    finally:
        LOGGER.setLevel(level)


def rewritten(line: str) -> str:
    """A line of a YAML file with the names of now; its comment stays as it is."""
    comment = _COMMENT.search(line)
    text, rest = (line[: comment.start()], line[comment.start() :]) if comment else (line, "")
    text = _KEY.sub(lambda found: found[1] + _NAMES[found[2]], text)
    return _SCALAR.sub(lambda found: found[1] + _SCALARS[found[2]], text) + rest
