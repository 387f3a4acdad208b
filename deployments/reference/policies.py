"""``policies.md``: every built-in answer to every question, with its parameters."""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cluster.config.lanes import LanesConfig
from cluster.config.policies import PoliciesConfig
from deployments.reference.docstrings import args_of, fields_of, summary_of
from deployments.reference.markdown import code, from_docstring, literal, page, table
from policies.catalog import CATALOG, Factory
from policies.contracts import Need
from routing.config.catalog import CLASSIFIERS, GUARDS, PLANNERS, PREDICTORS, TRACKERS

INTRODUCTION = """
A question under `policies` of the configuration, or in a scenario of the simulator, is answered by a name of this
page, by `{name: ..., params: {...}}`, or by the import path of your own, `package.module:factory` ([how to write
one](../how-to/write-a-policy.md)). What a policy needs is checked at the start: a configuration that can't supply
it is refused. Rule, state, complexity, failure mode and source of each are in its docstring.
"""
OF_POLICIES = frozenset({"budget", "fallback_lanes", "make_link", "num_gateways", "prefixes", "rng", "unix_ahead_s"})
FROM_HOST: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(CATALOG, OF_POLICIES),
    "admission": OF_POLICIES | {"quotas"},
    "queueing": OF_POLICIES | {"stage"},
    "planning": frozenset({"rates"}),
}
"""Parameters that the host fills in, and no configuration, by question."""
MORE: Mapping[str, str] = {
    "admission": "admission",
    "balancing": "prefix-affinity",
    "degradation": "degradation",
    "ejection": "ejection",
    "engine_order": "queueing",
    "hedging": "hedging",
    "lanes.classifier": "lanes",
    "lanes.guard": "lanes",
    "length_prediction": "length-prediction",
    "planning": "architecture",
    "preemption": "preemption",
    "prefixes": "prefix-affinity",
    "queueing": "queueing",
    "retrying": "retries",
    "scaling": "scaling",
    "shedding": "shedding",
}
"""The page that explains the answers to a question."""
NEEDS: Mapping[Need, str] = {
    Need.LOCAL_WORK: "the gateway's own account of each replica's work",
    Need.REPLICA_REPORTS: "what replicas report of their load",
    Need.FIRST_TOKEN: "when first tokens come",
    Need.GEOMETRY: "an estimate of each request's cost",
    Need.PREFIXES: "an index of prefixes: `prefixes: block_hash`",
    Need.SERVICE_RATES: "an engine profile: `engine.profile`, or emulated engines",
    Need.RESPONSE_CACHE: "`gateway.response_cache`",
    Need.LOAD_COORDINATOR: "`gateway.load_coordinator: true`",
    Need.CLAIMS: "engines that ask before they begin a prompt: emulated ones, and those of the simulator",
    Need.ENGINE_PRIORITY: "engines with `scheduling_policy: priority`",
}
"""How a deployment meets a need."""
ALWAYS_MET = frozenset({Need.LOCAL_WORK, Need.REPLICA_REPORTS, Need.FIRST_TOKEN, Need.GEOMETRY})
"""Every host does."""


@dataclass(frozen=True, slots=True)
class Question:
    """One question.

    Args:
        name: As the configuration names it under ``policies``.
        text: The question itself.
        default: The answer when none is given; empty where one has to be.
        answers: Factories by name.
    """

    name: str
    text: str
    default: str
    answers: Mapping[str, Factory]


def questions() -> Iterator[Question]:
    """All of them, in the order of the configuration."""
    tiers = {"planning": PLANNERS, "length_prediction": PREDICTORS, "prefixes": TRACKERS}
    catalogs: Mapping[str, Mapping[str, Factory]] = {**CATALOG, **tiers}
    texts, lane_texts = fields_of(PoliciesConfig), fields_of(LanesConfig)
    for name, field in PoliciesConfig.model_fields.items():
        if name == "lanes":
            for part, answers in (("classifier", CLASSIFIERS), ("guard", GUARDS)):
                default = LanesConfig.model_fields[part].default.name
                yield Question(f"lanes.{part}", lane_texts[part], default, answers)
        elif name in catalogs:
            yield Question(name, texts[name], "" if field.is_required() else field.default.name, catalogs[name])


def policies_page() -> str:
    """The page."""
    return page("Policies", INTRODUCTION, _overview(), *(part for each in questions() for part in _section(each)))


def _overview() -> str:
    rows = (
        (
            f"[`{each.name}`](#{_anchor(each.name)}): {from_docstring(each.text)}",
            ", ".join(code(name) for name in sorted(each.answers)),
            code(each.default) or "none: say which",
        )
        for each in questions()
    )
    return table(("Question", "Built in", "Default"), rows)


def _anchor(name: str) -> str:
    return re.sub(r"[^\w-]", "", name)


def _section(question: Question) -> Iterator[str]:
    yield f"## `{question.name}`"
    yield f"{from_docstring(question.text)} More: [{MORE[question.name]}](../explanation/{MORE[question.name]}.md)."
    for name, factory in sorted(question.answers.items()):
        yield f"### `{question.name}: {name}`"
        yield from_docstring(summary_of(factory))
        yield _needs_of(factory)
        yield table(("Parameter", "Default", ""), _params_of(question.name, factory))


def _needs_of(factory: Factory) -> str:
    needs: frozenset[Need] = getattr(factory, "requires", frozenset())
    told = [NEEDS[need] for need in Need if need in needs - ALWAYS_MET]
    return f"Needs {'; '.join(told)}." if told else ""


def _params_of(question: str, factory: Callable[..., Any]) -> Iterator[tuple[str, ...]]:
    texts = args_of(factory)
    for name, parameter in inspect.signature(factory).parameters.items():
        if name not in FROM_HOST.get(question, ()):
            is_required = parameter.default is inspect.Parameter.empty
            default = "required" if is_required else _default(parameter.default)
            yield code(name), default, from_docstring(texts.get(name, ""))


def _default(value: object) -> str:
    return "" if value is None else code(literal(value))
