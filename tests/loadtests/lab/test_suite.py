"""The suite on which policies are chosen and judged."""

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from cluster import Seeds
from loadtests.lab.run_suite import main
from loadtests.lab.suite import Part, Suite, SuiteCell, read_suite
from loadtests.lab.suite.cells import Value
from loadtests.lab.suite.suite_file import Family, PolicySet
from loadtests.lab.suite.suite_runs import SuiteRuns
from loadtests.workloads.clients import OFFICIAL_CLIENTS
from policies.errors import ConfigError
from tests.tables import for_each

SUITE = read_suite()
DRAWN = [name for name, family in SUITE.families.items() if family.trace is None]


def cell_of(family: str = "ragged", **others: float | str) -> SuiteCell:
    """A cell with bursts, four gateways and clients that try again, if nothing else is said."""
    wanted: dict[str, float | str] = {"cv": 4, "load": 0.5, "gateways": 4, "max_requests": 3, **others}
    of_family = (cell for cell in SUITE.cells() if cell.family == family)
    return next(cell for cell in of_family if wanted.items() <= {**wanted, **cell.values}.items())


CELL = cell_of()


def test_of_each_family_as_many_cells_are_for_judging_and_every_axis_has_some_for_either_part() -> None:
    parts = SUITE.parts()
    judging = [cell for cell, part in parts.items() if part is Part.JUDGING]

    assert len({cell.name for cell in parts}) == len(parts)
    assert {name: sum(cell.family == name for cell in judging) for name in SUITE.families} == dict.fromkeys(
        SUITE.families, SUITE.judging_cells
    )
    for axis, known in SUITE.axes_of_cells().items():
        for part in Part:
            values = {cell.values.get(axis) for cell, its in parts.items() if its is part} - {None}
            assert axis in {"family", "part", "window"} or values == set(known), (axis, part)


def test_a_window_is_looked_at_in_one_part_alone() -> None:
    windows: dict[Part, set[tuple[str, Value]]] = {part: set() for part in Part}
    for cell, part in SUITE.parts().items():
        if "window" in cell.values:
            windows[part].add((cell.family, cell.values["window"]))

    traces = {name: family.trace for name, family in SUITE.families.items() if family.trace is not None}
    seen = {(name, window) for name, trace in traces.items() for window in trace.seen}

    assert not windows[Part.TUNING] & windows[Part.JUDGING]
    assert windows[Part.JUDGING]
    assert not windows[Part.JUDGING] & seen
    assert windows[Part.TUNING] >= seen


def test_a_policy_that_changes_the_engines_meets_the_same_users_as_the_others() -> None:
    small_steps = PolicySet.model_validate(
        {"description": "Ours.", "settings": {"fleet.pools.0.max_num_batched_tokens": 256}}
    )
    suite = SUITE.model_copy(update={"policies": {**SUITE.policies, "ours": small_steps}})
    ours, theirs = (suite.scenario(CELL, name) for name in ("ours", "edf"))

    assert ours.fleet != theirs.fleet
    assert ours.workload == theirs.workload


def test_a_cell_keeps_its_part_whatever_else_is_in_the_suite_until_the_edition_changes() -> None:
    others = SUITE.model_copy(update={"families": {"ragged": SUITE.families["ragged"]}, "policies": {}})
    again = SUITE.model_copy(update={"edition": SUITE.edition + 1})
    parts = SUITE.parts()

    assert others.parts().items() <= parts.items()
    assert again.parts() != parts


@for_each("family", DRAWN)
def test_a_cell_is_a_scenario_with_the_bursts_the_load_the_gateways_and_the_clients_of_its_name(family: str) -> None:
    calm, bursty = (SUITE.scenario(cell_of(family, cv=cv), "edf") for cv in (1, 13))

    assert calm.workload != bursty.workload
    assert (bursty.fleet.num_gateways, bursty.clients) == (4, OFFICIAL_CLIENTS["openai"])
    assert bursty.policies.admission.name == "deadline"
    assert SUITE.scenario(cell_of(family, gateways=1, max_requests=1), "edf").clients.max_requests == 1


def test_a_profile_is_an_axis_of_its_own() -> None:
    small, large = (SUITE.scenario(cell_of(profile=name), "edf") for name in SUITE.families["ragged"].profile)

    assert (small.profile, large.profile) == ("h100-llama3-8b", "h100x4-llama3-70b")
    rates = [each.workload.requests_per_s(each.duration_s) for each in (small, large)]
    assert rates[0] > 2 * rates[1]


def a_trace(folder: Path, num_rows: int = 600) -> tuple[Suite, list[SuiteCell]]:
    """A suite of two windows of a trace of so many rows, one a second, with ten lengths of prompts; and its cells."""
    rows = (f"2023-11-16 18:{at // 60:02}:{at % 60:02},{100 + at // 60},5" for at in range(num_rows))
    text = "\n".join(("TIMESTAMP,ContextTokens,GeneratedTokens", *rows)) + "\n"
    (folder / "short.csv").write_text(text)
    family = {
        **SUITE.families["azure"].model_dump(by_alias=True),
        "trace": {
            "file": "short.csv",
            "schema": "azure",
            "sha256": hashlib.sha256(text.encode()).hexdigest(),
            "windows": [0, 1],
            "first_s": 60,
            "window_s": 240,
            "fields": {"timeout_s": 30},
        },
    }
    suite = SUITE.model_copy(update={"families": {"azure": Family.model_validate(family)}, "judging_cells": 1})
    return suite, [cell for cell in suite.cells() if cell.values["load"] == 0.5]


def test_a_window_of_a_trace_is_replayed_as_a_whole_at_the_rate_of_its_load(tmp_path: Path) -> None:
    suite, cells = a_trace(tmp_path)
    half, second = cells[0], next(cell for cell in cells if cell.values["window"] == 1)
    double = replace(half, at=tuple((axis, 1.0 if axis == "load" else value) for axis, value in half.at))

    at_half, at_double, later = (suite.scenario(cell, "edf", tmp_path) for cell in (half, double, second))

    plans = [
        [each.arrival.request for each in made.workload.build(made.duration_s).plan(Seeds(1))]
        for made in (at_half, at_double, later)
    ]
    assert [len(plan) for plan in plans] == [240, 240, 240]
    assert at_half.duration_s == pytest.approx(2 * at_double.duration_s)
    assert plans[0][-1].scheduled_s == pytest.approx(at_half.duration_s, rel=0.01)
    assert [{request.prompt_tokens for request in plan} for plan in plans] == [
        {101, 102, 103, 104},
        {101, 102, 103, 104},
        {105, 106, 107, 108},
    ]


def test_cells_without_their_trace_are_left_out_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    suite, cells = a_trace(tmp_path)
    (tmp_path / "empty").mkdir()

    assert SuiteRuns(suite=suite, jobs=1, folder=tmp_path, traces=tmp_path).without_trace(cells) == []
    for traces in (None, tmp_path / "empty"):
        assert SuiteRuns(suite=suite, jobs=1, folder=tmp_path, traces=traces).without_trace(cells) == cells
        with pytest.raises(ConfigError, match="a folder with short\\.csv, by --traces or SPILLWAY_TRACES"):
            suite.scenario(cells[0], "edf", traces)
    monkeypatch.delenv("SPILLWAY_TRACES", raising=False)
    assert main(["--where", "family=azure", "window=3", "load=1", "gateways=1"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "2 cells are left out, their traces are missing (no SPILLWAY_TRACES and no --traces):" in said
    assert "azure window=3 load=1 gateways=1 max_requests=1" in said


def test_policies_meet_the_same_users() -> None:
    ones = [SUITE.scenario(CELL, policy) for policy in SUITE.policies]

    assert len({repr(each.workload) for each in ones}) == 1


def test_a_policy_that_can_not_be_is_refused_by_cell_and_name() -> None:
    broken = SUITE.policies["edf"].model_copy(update={"settings": {"policies.balancing": "telepathy"}})

    with pytest.raises(ConfigError, match=f"{CELL.name}, broken: policies.balancing"):
        SUITE.model_copy(update={"policies": {"broken": broken}}).scenario(CELL, "broken")


def test_a_part_of_the_suite_runs(tmp_path: Path) -> None:
    short = SUITE.model_copy(update={"base": SUITE.base | {"duration_s": 8, "warm_up_s": 1}, "seeds": (101, 102)})

    found = SuiteRuns(suite=short, jobs=1, folder=tmp_path).of([CELL], ["edf", "power-of-two"])

    assert found["policy"].tolist() == ["edf", "edf", "power-of-two", "power-of-two"]
    assert found["goodput_fraction"].between(0, 1).all()
    assert found[["family", "cv", "load", "gateways", "max_requests"]].drop_duplicates().to_numpy().tolist() == [
        ["ragged", 4, 0.5, 4, 3]
    ]


@for_each(
    ("arguments", "says"),
    [
        (["--where", "family=nobody"], "--where family: got 'nobody'; allowed: one of ['ragged'"),
        (["--where", "load=1,7"], "--where load: got '7'; allowed: one of ['0.25', '0.5'"),
        (
            ["--where", "moon=full"],
            "--where: got 'moon=full'; allowed: AXIS=VALUE,VALUE; AXIS is one of ['family', 'part'",
        ),
        (
            ["--where", "part=judging"],
            "--where part: got 'judging'; allowed: tuning; the judging part is run by --judging",
        ),
        (["--policy", "edf", "--of", "lmetric"], "--of: got 'lmetric'; allowed: one of ['edf']"),
    ],
)
def test_what_is_not_there_is_exit_status_2(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert says in " ".join(capsys.readouterr().err.split())


def listed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert main(["--list", *arguments]) == 0
    return [line for line in capsys.readouterr().out.splitlines() if not line.startswith("policy ")]


def test_cells_are_chosen_by_their_values_and_their_part(capsys: pytest.CaptureFixture[str]) -> None:
    chosen = listed(capsys, "--tuning", "--where", "family=days,ragged", "load=1.0,2", "gateways=4")

    assert {line.split()[0] for line in chosen} == {"tuning"}
    assert {line.split()[1] for line in chosen} == {"ragged", "days"}
    assert {word for line in chosen for word in line.split()[3:5]} == {"load=1", "load=2", "gateways=4"}
    judging = listed(capsys, "--where", "family=days", "part=judging")
    assert judging == listed(capsys, "--judging", "--where", "family=days")
    assert len(judging) == SUITE.judging_cells
    assert len(listed(capsys, "--tuning", "--cells", "2", "--where", "family=days,ragged")) == 4


def test_a_policy_has_what_it_shares_with_others_then_what_a_deployment_has_then_its_own(tmp_path: Path) -> None:
    configuration = tmp_path / "recommended.yaml"
    configuration.write_text(
        "applications: [{args: {gateway: {prefill_window_tokens: 512}, "
        "policies: {planning: always_unified, queueing: edf}}}]"
    )
    ours = PolicySet.model_validate(
        {
            "description": "Ours.",
            "shares": ["edf"],
            "from": str(configuration),
            "settings": {"policies.balancing": "random"},
        }
    )

    made = SUITE.model_copy(update={"policies": {"ours": ours}}).scenario(CELL, "ours")

    assert made.dispatcher.prefill_window_tokens == 512
    assert (made.policies.queueing.name, made.policies.balancing.name) == ("edf", "random")
