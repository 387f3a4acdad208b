import dataclasses
from pathlib import Path
from typing import Any

import pytest

from loadtests.scenario.fleet_config import DispatcherConfig
from loadtests.schema.files import validate
from loadtests.schema.reading import ForDataclass
from loadtests.workloads.config import (
    MixtureConfig,
    PartConfig,
    SessionsConfig,
    TraceConfig,
    TrafficClassConfig,
    WorkloadConfig,
)
from loadtests.workloads.lengths import EMPIRICAL, Constant, Lengths, Uniform
from loadtests.workloads.mixtures import Mixture, Part
from loadtests.workloads.sessions import Sessions
from loadtests.workloads.turns import ConstantTurns, LogNormalThink
from policies.errors import ConfigError
from tests.tables import for_each

CHAT = {
    "name": "chat",
    "arrivals": {"poisson": {"rate_per_s": 5}},
    "prompt_tokens": 100,
    "output_tokens": 10,
    "timeout_s": 60,
}


def workload(**changes: Any) -> WorkloadConfig:
    return validate(WorkloadConfig, {"classes": [{**CHAT, **changes}]}, Path())


@for_each(
    "model",
    [DispatcherConfig, MixtureConfig, PartConfig, SessionsConfig, TraceConfig, TrafficClassConfig],
)
def test_a_file_has_the_fields_and_defaults_of_the_dataclass(model: type[ForDataclass]) -> None:
    """What a dataclass gains must be possible in a file, with the same default."""
    fields = {field.alias or name: field for name, field in model.model_fields.items()}
    target: Any = model.target

    assert set(fields) == {field.name for field in dataclasses.fields(target)}
    for field in dataclasses.fields(target):
        if field.default is dataclasses.MISSING:
            assert fields[field.name].is_required()
        else:
            assert fields[field.name].default == field.default


@for_each(
    ("written", "read"),
    [
        (512, Constant(num_tokens=512)),
        ("azure-conv-prompt", EMPIRICAL["azure-conv-prompt"]),
        ({"uniform": {"least_tokens": 1, "most_tokens": 5}}, Uniform(least_tokens=1, most_tokens=5)),
        (
            {"mixture": {"parts": [{"weight": 2, "tokens": 7}, {"weight": 1, "tokens": "azure-conv-output"}]}},
            Mixture(
                parts=(
                    Part(weight=2, tokens=Constant(num_tokens=7)),
                    Part(weight=1, tokens=EMPIRICAL["azure-conv-output"]),
                )
            ),
        ),
    ],
)
def test_lengths_are_a_number_a_table_or_a_kind(written: object, read: Lengths) -> None:
    assert workload(prompt_tokens=written).classes[0].prompt_tokens == read


def test_a_limit_is_exact_or_lengths() -> None:
    assert workload().classes[0].max_output_tokens == "exact"
    assert workload(max_output_tokens="exact").classes[0].max_output_tokens == "exact"
    assert workload(max_output_tokens=500).classes[0].max_output_tokens == Constant(num_tokens=500)


def test_sessions_are_read_with_their_own_kinds() -> None:
    written = {"turns": {"constant": {"num_turns": 3}}, "think": {"log_normal": {"median_s": 5, "sigma": 1}}}

    assert workload(sessions=written).classes[0].sessions == Sessions(
        turns=ConstantTurns(num_turns=3), think=LogNormalThink(median_s=5, sigma=1)
    )


@for_each("value", [1.5, True, "a word", [1], {"constant": {"num_tokens": 1}, "uniform": {}}])
def test_what_is_no_length_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match=r"classes\.0\.prompt_tokens"):
        workload(prompt_tokens=value)
