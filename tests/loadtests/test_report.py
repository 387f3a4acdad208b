"""The report's command line, and what stands in the files it writes."""

from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from loadtests.report import main
from loadtests.reports.wording import seed_text
from loadtests.results.run_folder import RUN_FILE, write
from loadtests.results.run_record import CheckResult
from tests.loadtests.run_tables import RequestRow
from tests.loadtests.saved_runs import HEALTH, save, save_simulated, saved_run
from tests.tables import for_each

HOSTILE = "</style></title><script>alert('x')</script> | *bold* `code`"
MISSED = CheckResult(text="goodput_fraction of chat >= 0.99", value=0.95, verdict="missed")

Report = Callable[..., tuple[int, str, str]]


class Text(HTMLParser):
    """The text of a page, and the names of its elements."""

    def __init__(self) -> None:
        super().__init__()
        self.words = ""
        self.names: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)

    def handle_data(self, data: str) -> None:
        self.words += data


@pytest.fixture
def report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Report:
    """Reports on folders; exit status, the page's text and the summary."""

    def run_it(*folders: Path, title: str = "") -> tuple[int, str, str]:
        output = tmp_path / "out" / "report.html"
        status = main([*map(str, folders), "--output", str(output), "--title", title])
        page = Text()
        page.feed(output.read_text(encoding="utf-8"))
        assert "script" not in page.names
        capsys.readouterr()
        return status, page.words, (output.parent / "summary.md").read_text(encoding="utf-8")

    return run_it


def test_one_run_is_enough(report: Report, tmp_path: Path) -> None:
    status, page, summary = report(save(tmp_path / "run"))

    assert status == 0
    for section in ("Checks", "Goodput", "Latency", "Timeline", "Latency budget", "Amplification", "Validity"):
        assert section in page
    assert "Comparison" not in page
    assert "| policy | PASS | asyncio | http://127.0.0.1:8000 | 1 |" in summary


def test_what_nobody_measured_of_a_live_run_is_not_stated(report: Report, tmp_path: Path) -> None:
    """Attempts and hedges are the gateways' own affair: HTTP does not tell, and a simulated run beside it knows."""
    folders = save(tmp_path / "live", number=300), save_simulated(tmp_path / "sim", number=300)

    _, _, alone = report(folders[0])
    _, _, together = report(*folders)

    assert "attempts per request" not in alone
    lines = together.partition("### Amplification")[2].strip().splitlines()
    rows = {
        cells[0]: dict(zip(lines[0].split(" | "), cells, strict=True))
        for cells in (line.split(" | ") for line in lines[:4])
    }
    assert rows["| policy, asyncio"]["attempts per request"] == "-"
    assert float(rows["| policy, simulator"]["attempts per request"]) > 0.9


def test_ten_runs_are_two_series_of_five_seeds(report: Report, tmp_path: Path) -> None:
    for seed in range(1, 6):
        save_simulated(tmp_path / "runs" / f"policy-{seed}", seed=seed, number=300)
        save_simulated(tmp_path / "runs" / f"random-{seed}", variant="random", seed=seed, number=300)

    status, page, summary = report(tmp_path / "runs")

    assert status == 0
    assert "5 seeds" in page
    assert "| random | PASS | simulator | h100: 4 unified, 1 gateway | 1 to 5 |" in summary
    assert "policy against random" in page
    assert "in virtual time no client can be late" in page
    assert "did not tell where the time" in page


@pytest.mark.parametrize(("verdict", "status"), [("PASS", 0), ("FAIL", 1), ("INVALID", 2)])
def test_the_worst_verdict_is_the_exit_status(report: Report, tmp_path: Path, verdict: str, status: int) -> None:
    folders = save(tmp_path / "fine", number=100), save(tmp_path / "other", number=100, verdict=verdict)

    assert report(*folders)[0] == status


def test_a_missed_check_is_shown_with_its_value(report: Report, tmp_path: Path) -> None:
    _, _, summary = report(save(tmp_path / "run", number=100, checks=(MISSED,), verdict="FAIL"))

    assert "| policy | 1 | goodput_fraction of chat \\>= 0.99 | 0.95 | missed |" in summary


def test_an_invalid_run_says_why_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = save(tmp_path / "run", number=100, verdict="INVALID", problems=("the client was late",))
    output = tmp_path / "report.html"

    assert main([str(folder), "--output", str(output)]) == 2

    assert "report: two-lanes is INVALID: the client was late" in " ".join(capsys.readouterr().err.split())
    assert "This proves nothing yet." in output.read_text(encoding="utf-8")


def test_a_run_without_a_completed_request_is_reported(report: Report, tmp_path: Path) -> None:
    made = [
        RequestRow(logical_request=number, at_s=number / 10, e2e_s=0.0, outcome="refused", reason="shed")
        for number in range(500)
    ]
    write(tmp_path / "run", saved_run(made))

    _, page, summary = report(tmp_path / "run")

    assert "No request got far enough to have a latency" in page
    assert "| policy | shed | 500 | 500 | 100.0% |" in summary


@pytest.mark.parametrize("is_told", [True, False], ids=["with moments", "with nothing"])
def test_a_run_of_no_rows_is_reported(report: Report, tmp_path: Path, is_told: bool) -> None:
    write(tmp_path / "run", saved_run([], is_told=is_told))

    status, page, _ = report(tmp_path / "run")

    assert status == 0
    assert "No request got far enough to have a latency" in page


def test_a_run_that_was_broken_off_in_its_warm_up_is_reported(report: Report, tmp_path: Path) -> None:
    assert report(save(tmp_path / "run", number=100, duration_s=1.0, verdict="INVALID"))[0] == 2


def test_what_others_wrote_means_itself(report: Report, tmp_path: Path) -> None:
    """Names and texts come from files; none of them is markup, in HTML or in Markdown."""
    folder = save(
        tmp_path / "run",
        number=100,
        scenario=HOSTILE,
        description=HOSTILE,
        variant=HOSTILE,
        target=HOSTILE,
        notes=(HOSTILE,),
        problems=(HOSTILE,),
        checks=(CheckResult(text=HOSTILE, value=1.0, verdict="met"),),
        health=replace(HEALTH, errors={HOSTILE: 1}),
        versions={HOSTILE: HOSTILE},
    )

    _, page, summary = report(folder, title=HOSTILE)

    assert page.count(HOSTILE) >= 9
    assert "<script>" not in summary
    assert "\\`code\\`" in summary


def test_runs_of_the_same_seed_are_told_apart_by_their_folders(report: Report, tmp_path: Path) -> None:
    save(tmp_path / "before" / "run", number=200)
    save(tmp_path / "after" / "run", number=200)

    _, page, _ = report(tmp_path / "before", tmp_path / "after")

    assert "policy, after against policy, before" in page


def test_a_folder_that_is_given_twice_is_one_run(report: Report, tmp_path: Path) -> None:
    folder = save(tmp_path / "runs" / "run", number=100)

    assert report(folder, tmp_path / "runs", folder)[2].count("| policy | PASS |") == 1


def test_where_lanes_are_known_requests_are_told_apart_by_lane(report: Report, tmp_path: Path) -> None:
    _, _, summary = report(save(tmp_path / "run"))

    assert "| lane | series |" in summary
    assert "| short | policy |" in summary


def test_without_lanes_everywhere_requests_are_told_apart_by_class(report: Report, tmp_path: Path) -> None:
    folders = save(tmp_path / "live", number=300), save_simulated(tmp_path / "sim", number=300)

    _, _, summary = report(*folders)

    assert "| class | series |" in summary
    assert "| document | policy, simulator |" in summary
    assert "policy, asyncio" in summary


@pytest.mark.parametrize(
    ("content", "sentence"),
    [(None, "a run writes one with --save FOLDER"), ("{", "a folder with run.json and requests.jsonl.gz")],
    ids=["no run", "a broken run"],
)
def test_what_is_no_run_is_exit_status_2_and_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, sentence: str
) -> None:
    if content is not None:
        (tmp_path / RUN_FILE).write_text(content, encoding="utf-8")

    assert main([str(tmp_path), "--output", str(tmp_path / "report.html")]) == 2

    assert sentence in " ".join(capsys.readouterr().err.split())


def test_a_class_without_slo_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = save(tmp_path / "run", number=10, slos={})

    assert main([str(folder), "--output", str(tmp_path / "report.html")]) == 2

    assert "'chat'" in capsys.readouterr().err


def test_a_verdict_that_nobody_knows_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = save(tmp_path / "run", number=10, verdict="MAYBE")

    assert main([str(folder), "--output", str(tmp_path / "report.html")]) == 2

    assert "MAYBE" in capsys.readouterr().err


def test_a_file_that_can_not_be_written_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = save(tmp_path / "run", number=10)

    assert main([str(folder), "--output", str(folder / RUN_FILE / "report.html")]) == 2

    assert "--output" in capsys.readouterr().err


@for_each(("seeds", "text"), [([1], "1"), ([1, 2], "1, 2"), ([3, 1, 2], "1 to 3"), ([1, 3, 5], "1, 3, 5")])
def test_seeds_are_named_shortly(seeds: list[int], text: str) -> None:
    assert seed_text(seeds) == text
