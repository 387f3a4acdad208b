"""Proofs run one after the other, keep their results, and are skipped where there is one of the commit at hand."""

import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from loadtests.proofs import PROOFS, RESULTS, ROOT, commit_of, main, outcome_of, prove, run_proof

MAKEFILE = """
bench:
\t@echo run >> runs; echo "| metrics |"
overload:
\t@echo run >> runs; exit 3
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """One commit, with a proof that passes and one that fails."""
    git(tmp_path, "init", "--quiet")
    (tmp_path / "Makefile").write_text(MAKEFILE)
    (tmp_path / ".gitignore").write_text("runs\n.run/\n")
    commit(tmp_path)
    return tmp_path


def git(root: Path, *arguments: str) -> None:
    author = ["-c", "user.name=somebody", "-c", "user.email=somebody@example.org"]
    subprocess.run(["git", *author, *arguments], cwd=root, check=True, capture_output=True)


def commit(root: Path) -> None:
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "a change")


def num_runs(root: Path) -> int:
    return len((root / "runs").read_text().split())


def prove_all(root: Path, *, runs_again: bool = False) -> int:
    return prove(["bench", "overload"], root, runs_again=runs_again, console=Console(quiet=True))


def test_every_proof_is_a_target_of_the_makefile() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)

    assert set(PROOFS) <= set(targets)


def test_a_proof_leaves_its_result_with_date_and_commit(repository: Path) -> None:
    assert prove_all(repository) == 1

    passed, failed = [(repository / RESULTS / f"{name}.md").read_text() for name in ("bench", "overload")]
    assert f"- Commit: {commit_of(repository)}\n" in passed
    assert re.search(r"^- Date: \d{4}-\d\d-\d\d \d\d:\d\d UTC$", passed, re.MULTILINE)
    assert "- Result: passed\n" in passed
    assert "\n| metrics |\n" in passed
    assert "- Result: failed with status 2\n" in failed


def test_what_make_proofs_is_told_is_not_told_to_the_proof(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """make hands its variables on to every make that it starts, by its flags and by the environment."""
    monkeypatch.setenv("MAKEFLAGS", " -- ARGS=bench")
    monkeypatch.setenv("MAKELEVEL", "1")
    monkeypatch.setenv("ARGS", "bench")
    (repository / "Makefile").write_text("bench:\n\t@echo told: $(ARGS).\n")
    result = run_proof(("make", "bench"), repository, repository / ".run" / "log")

    assert (result.outcome, result.output) == ("passed", "told: .")


def test_what_has_a_result_of_this_commit_is_skipped_and_failures_stay_failures(repository: Path) -> None:
    prove_all(repository)
    commit(repository)

    assert prove_all(repository) == 1
    assert num_runs(repository) == 2

    assert prove_all(repository, runs_again=True) == 1
    assert num_runs(repository) == 4


def test_after_another_commit_and_with_changes_that_are_not_committed_everything_runs(repository: Path) -> None:
    prove_all(repository)
    (repository / "code.py").write_text("changed")

    prove_all(repository)
    assert num_runs(repository) == 4
    commit(repository)
    prove_all(repository)

    assert num_runs(repository) == 6
    assert outcome_of(repository / RESULTS / "bench.md", commit_of(repository)) == "passed"


def test_without_git_everything_runs(tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text(MAKEFILE)

    for _ in range(2):
        prove_all(tmp_path)

    assert num_runs(tmp_path) == 4


@pytest.fixture(params=[signal.default_int_handler, signal.SIG_IGN], ids=["in front", "in the background"])
def interrupts(request: pytest.FixtureRequest) -> Iterator[None]:
    """What is started in the background ignores interrupts."""
    before = signal.signal(signal.SIGINT, request.param)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interrupts")
def test_a_proof_that_takes_too_long_is_interrupted_and_so_is_what_it_has_started(tmp_path: Path) -> None:
    log = tmp_path / "log"
    interrupted = "trap 'echo interrupted; exit 1' INT; echo begun; tail -f /dev/null & wait"

    result = run_proof(("sh", "-c", interrupted), tmp_path, log, timeout_s=2)

    assert result.outcome == "not done within 0 minutes"
    assert result.output == "begun\ninterrupted"


def test_a_proof_that_there_is_not_is_refused_with_those_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["abacus"])

    assert "abacus: no proof; there are proof-tests, test-openai, bench" in capsys.readouterr().err
