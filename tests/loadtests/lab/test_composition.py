"""Choices in pairs: what is run, and what counts as a loss."""

from typing import Any

import pandas as pd
import pytest

from loadtests.lab import run_composition
from loadtests.lab.suite.composition import (
    DEFAULTS,
    Choice,
    Composition,
    differences_of_pairs,
    read_composition,
    warnings_of,
)
from loadtests.lab.suite.suite_runs import SuiteRuns
from policies.errors import ConfigError
from tests.tables import for_each

COMPOSITION = read_composition()
SUITE = COMPOSITION.as_suite()
CELL = COMPOSITION.cells_of(SUITE)[0]


def having(**fields: Any) -> Composition:
    return COMPOSITION.model_copy(update=fields)


def of_two(base: float, one: float, other: float, both: float) -> pd.DataFrame:
    """Runs of ``edf`` and ``outlier`` on one cell, with a goodput that differs a little from seed to seed."""
    goodputs = {DEFAULTS: base, "edf": one, "outlier": other, "edf + outlier": both}
    return pd.DataFrame(
        {"cell": CELL.name, "family": "ragged", "policy": policy, "seed": seed, "goodput": goodput + seed / 1e4}
        for policy, goodput in goodputs.items()
        for seed in COMPOSITION.seeds
    )


TWO = having(choices={name: COMPOSITION.choices[name] for name in ("edf", "outlier")})


def test_every_choice_meets_the_defaults_and_every_choice_of_another_question() -> None:
    pairs = TWO.pairs
    assert pairs == [(DEFAULTS, "edf"), (DEFAULTS, "outlier"), ("edf", "outlier")]
    assert ("edf", "sjf_aged") not in COMPOSITION.pairs, "they answer the same question"
    assert ("recommended", "slowdown") in COMPOSITION.pairs
    assert ("recommended", "edf") not in COMPOSITION.pairs, "the recommended policies have an answer to that"


def test_a_pair_is_a_policy_of_the_suite_with_the_settings_of_both() -> None:
    its = SUITE.policies["least_delay + edf"].settings
    assert its == {
        "policies.balancing": "least_delay",
        "policies.prefixes": "block_hash",
        "policies.queueing": "edf",
    }
    policies = SUITE.scenario(CELL, "recommended + slowdown").policies
    assert (policies.admission.name, policies.hedging.name) == ("deadline", "slowdown")


def test_a_pair_is_held_against_the_better_of_the_two_alone_and_a_choice_against_the_defaults() -> None:
    found = differences_of_pairs(of_two(base=0.9, one=0.95, other=0.8, both=0.93), TWO)
    by_pair = {(row.one, row.other): row for row in found.itertuples()}
    assert by_pair["edf", "outlier"].better == "edf"
    assert by_pair["edf", "outlier"].difference == pytest.approx(-0.02)
    assert by_pair[DEFAULTS, "outlier"].difference == pytest.approx(-0.1)
    assert by_pair[DEFAULTS, "edf"].difference == pytest.approx(0.05)
    assert found["difference"].is_monotonic_increasing


def test_a_pair_that_start_up_warns_of_is_known_to_be_one() -> None:
    assert any("prefix_affinity" in each for each in warnings_of(SUITE, CELL, "prefix_affinity + window"))
    assert warnings_of(SUITE, CELL, "recommended") == ()


def test_cells_that_are_not_for_tuning_are_refused() -> None:
    judging = next(cell.name for cell, part in SUITE.parts().items() if part == "judging")
    with pytest.raises(ConfigError, match="cells of the tuning part"):
        having(cells=(judging,)).cells_of(SUITE)


def test_a_name_that_could_be_a_pair_is_refused() -> None:
    document = COMPOSITION.model_dump(by_alias=True)
    with pytest.raises(ConfigError, match=r"names without \+"):
        Composition.model_validate(document | {"choices": {"a + b": Choice(question="x"), "c": Choice(question="y")}})


@for_each(
    ("both", "warning", "said"),
    [(0.95, "", (0, "")), (0.92, "", (1, "! edf + outlier: -3.0 points")), (0.92, "w", (0, "w edf + outlier: -3.0"))],
)
def test_the_command_fails_for_a_loss_that_nobody_is_warned_of(
    both: float, warning: str, said: tuple[int, str], capsys: pytest.CaptureFixture[str]
) -> None:
    runs = of_two(base=0.9, one=0.95, other=0.9, both=both).assign(problems="")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(SuiteRuns, "of", lambda *_: runs)
        patched.setattr(run_composition, "_warnings", lambda *place: warning if place[-2] == "edf" else "")
        assert run_composition.main(["--choices", "edf", "outlier"]) == said[0]
    assert said[1] in capsys.readouterr().out
