"""The suite on which policies are chosen and judged."""

from itertools import islice
from pathlib import Path

import pandas as pd
import pytest

from loadtests.lab.judging import differences, means_table, summary_lines
from loadtests.lab.run_suite import main, run_suite
from loadtests.lab.suite import Part, SuiteCell, read_suite
from loadtests.workloads.clients import OFFICIAL_CLIENTS
from policies.errors import ConfigError
from tests.tables import for_each

SUITE = read_suite()
CELL = SuiteCell("ragged", 4, 0.5, 4, 3)


def test_about_half_of_the_cells_of_every_family_and_value_are_for_judging() -> None:
    cells = list(SUITE.cells())
    is_judged = [SUITE.part_of(cell) is Part.JUDGING for cell in cells]

    assert len({cell.name for cell in cells}) == len(cells)
    assert sum(is_judged) / len(cells) == pytest.approx(0.5, abs=0.08)
    for family in SUITE.families:
        of_family = [judged for cell, judged in zip(cells, is_judged, strict=True) if cell.family == family]
        assert 0.3 < sum(of_family) / len(of_family) < 0.7


def test_a_cell_keeps_its_part_whatever_else_is_in_the_suite_until_the_edition_changes() -> None:
    others = SUITE.model_copy(update={"families": {"ragged": SUITE.families["ragged"]}, "policies": {}})
    again = SUITE.model_copy(update={"edition": SUITE.edition + 1})
    cells = list(SUITE.cells())

    assert [SUITE.part_of(cell) for cell in cells] == [others.part_of(cell) for cell in cells]
    assert [SUITE.part_of(cell) for cell in cells] != [again.part_of(cell) for cell in cells]


@for_each("family", list(SUITE.families))
def test_a_cell_is_a_scenario_with_the_bursts_the_load_the_gateways_and_the_clients_of_its_name(family: str) -> None:
    calm, bursty = (SUITE.scenario(SuiteCell(family, cv, 0.5, 4, 3), "edf") for cv in (1, 13))

    assert calm.workload != bursty.workload
    assert (bursty.fleet.num_gateways, bursty.clients) == (4, OFFICIAL_CLIENTS["openai"])
    assert bursty.policies.admission.name == "deadline"
    assert SUITE.scenario(SuiteCell(family, 13, 0.5, 1, 1), "edf").clients.max_requests == 1


def test_policies_meet_the_same_users() -> None:
    ones = [SUITE.scenario(CELL, policy) for policy in SUITE.policies]

    assert len({repr(each.workload) for each in ones}) == 1


def test_a_policy_that_can_not_be_is_refused_by_cell_and_name() -> None:
    broken = SUITE.policies["edf"].model_copy(update={"settings": {"policies.balancing": "telepathy"}})

    with pytest.raises(ConfigError, match=f"{CELL.name}, broken: policies.balancing"):
        SUITE.model_copy(update={"policies": {"broken": broken}}).scenario(CELL, "broken")


def a_run_of(**goodput: list[float]) -> pd.DataFrame:
    return pd.DataFrame(
        {"cell": "one", "family": "ragged", "policy": policy, "seed": seed, "goodput_fraction": value}
        for policy, values in goodput.items()
        for seed, value in enumerate(values)
    ).assign(longest_tenth_goodput_fraction=0.5)


def test_differences_pair_the_seeds_and_what_they_come_to_goes_by_the_ends_of_intervals() -> None:
    found = a_run_of(
        ours=[0.9, 0.8, 0.7, 0.9, 0.8], alike=[0.9, 0.8, 0.7, 0.9, 0.8], better=[0.96, 0.87, 0.77, 0.96, 0.86]
    )

    differing = differences(found, "ours").set_index("against")

    assert differing.loc["alike", ["difference", "low", "high"]].tolist() == [0, 0, 0]
    assert differing.loc["better", "difference"] == pytest.approx(-0.064)
    assert differing.loc["better", "high"] < -0.05
    lines = summary_lines(differing.reset_index())
    assert lines[0] == "no worse than -2% at the interval's lower end: 50.0% of 2"
    assert lines[1] == "below -5%: 1"
    assert "worst: one, against better: -0.064" in lines[3]
    assert means_table(found).row_count == 1


def test_a_part_of_the_suite_runs(tmp_path: Path) -> None:
    short = SUITE.model_copy(update={"base": SUITE.base | {"duration_s": 8, "warm_up_s": 1}, "seeds": (101, 102)})

    found = run_suite(short, list(islice(short.cells(), 1)), ["edf", "power-of-two"], 1, tmp_path)

    assert found["policy"].tolist() == ["edf", "edf", "power-of-two", "power-of-two"]
    assert found["goodput_fraction"].between(0, 1).all()


@for_each(
    ("arguments", "says"),
    [
        (["--only", "nobody"], "--only: got 'nobody'; allowed: one of ['ragged'"),
        (["--policy", "edf", "--of", "lmetric"], "--of: got 'lmetric'; allowed: one of ['edf']"),
    ],
)
def test_what_is_not_there_is_exit_status_2(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert says in " ".join(capsys.readouterr().err.split())


def test_the_list_names_cells_with_their_parts_and_policies(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list", "--part", "judging", "--only", "days"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in lines} == {"judging", "policy"}
    assert all("days" in line for line in lines if line.startswith("judging"))
