import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from cluster.sim.run_table import RunTable
from cluster.sim.simulator import simulate
from loadtests.run_sim import main
from loadtests.scenario.policy_settings import QUESTIONS
from policies.errors import InvariantViolation
from tests.loadtests import fake_simulator
from tests.loadtests.run_tables import run_table
from tests.tables import for_each
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
EXAMPLE = Path(__file__).parent / "scenarios" / "two-classes.yaml"

Sim = Callable[..., tuple[int, str, str]]


@pytest.fixture
def sim(capsys: pytest.CaptureFixture[str]) -> Sim:
    """Runs the command line in this process; exit status, stdout, stderr."""

    def run_it(*arguments: str, simulate: Any = fake_simulator.simulate) -> tuple[int, str, str]:
        try:
            status = main([*arguments, "--jobs", "1"], simulate)
        except SystemExit as left:
            status = int(str(left.code))
        said = capsys.readouterr()
        return status, said.out, said.err

    return run_it


@pytest.fixture
def variant_of(tmp_path: Path) -> Callable[..., str]:
    """The example with other values at the top, as a file."""

    def write(name: str, **changes: Any) -> str:
        document = {**yaml.safe_load(EXAMPLE.read_text(encoding="utf-8")), "name": name, **changes}
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump(document), encoding="utf-8")
        return str(path)

    return write


def test_all_checks_hold(sim: Sim) -> None:
    status, out, err = sim(str(EXAMPLE))

    assert (status, err) == (0, "")
    assert out.count("PASS") == 4
    assert "FAIL" not in out


def test_a_check_that_does_not_hold_is_exit_status_1(sim: Sim) -> None:
    """The policy is the baseline's own: no gain, so the check on the ratio fails."""
    status, out, err = sim(str(EXAMPLE), "--policy", "balancing=random")

    assert (status, err) == (1, "")
    assert re.search(r"chat +ttft_p99_s .* no difference +<= 0.6 +FAIL", out)


def test_too_few_samples_for_a_checks_percentile_are_exit_status_2(sim: Sim, variant_of: Callable[..., str]) -> None:
    status, out, err = sim(variant_of("short", faults=[]), "--duration", "100")

    assert status == 2
    assert re.search(r"chat +ttft_p99_s +too few +random +too few +<= 0.6 +INVALID", out)
    assert "short is INVALID: ttft_p99_s of class chat, the policy, seed 1: " in err
    assert "it takes 1,000" in err


def test_an_invalid_scenario_outweighs_one_that_fails(sim: Sim, variant_of: Callable[..., str]) -> None:
    failing = variant_of("failing", checks=[{"metric": "goodput_fraction", "at_most": 0.0}])
    invalid = variant_of("invalid", checks=[{"metric": "ttft_p999_s", "at_most": 9.0}])

    status, out, _ = sim(failing, invalid)

    assert sim(failing)[0] == 1
    assert status == 2
    assert "failing: FAIL; " in out
    assert "invalid: INVALID; " in out


def test_a_run_without_traffic_is_exit_status_2_and_says_so(sim: Sim) -> None:
    def empty(fleet: Any, dispatcher: Any, traffic: Any, traffic_classes: Sequence[str], **rest: Any) -> RunTable:
        return run_table(classes=traffic_classes)

    status, _, err = sim(str(EXAMPLE), simulate=empty)

    assert status == 2
    assert "two-classes is INVALID: policy, seed 1: nothing was wanted from 30 s to 300 s" in err


@for_each(
    ("arguments", "sentence"),
    [
        (["no-such-scenario"], "a name in the library"),
        ([str(EXAMPLE), "--policy", "speed=7"], "--policy: got 'speed=7'"),
        ([str(EXAMPLE), "--policy", "balancing=telepathy"], "policies.balancing: got 'telepathy'"),
        ([str(EXAMPLE), "--policy", "lanes.guard=backlog"], "allowed: always_on without parameters"),
        ([str(EXAMPLE), "--set", "fleet.num_gateways=0"], "two-classes.yaml: fleet.num_gateways: got 0"),
        ([str(EXAMPLE), "--set", "load=none"], "load: got 'none'"),
        ([str(EXAMPLE), "--set", "load"], "--set: got 'load'"),
        ([str(EXAMPLE), "--sweep", "load=2:1:1"], "--sweep: got 'load=2:1:1'"),
        ([str(EXAMPLE), "--sweep", "rate=1", "--sweep", "rate=2"], "every path once"),
        ([str(EXAMPLE), "--sweep", "rate=1", "--metric", "speed"], "--metric: got 'speed'"),
        (["ragged-lanes", "--policy", "lanes.guard=telepathy"], "policies.lanes.guard: got 'telepathy'"),
        (["ragged-lanes", "--policy", "lanes.guard.params.x=1"], "policies.lanes.guard"),
        ([str(EXAMPLE), "--duration", "30"], "two-classes.yaml: warm_up_s: got 30.0"),
        ([str(EXAMPLE), "--seeds", "0"], "allowed: 1 or more"),
        ([str(EXAMPLE), "--seeds", "few"], "invalid"),
        ([str(EXAMPLE), f"{EXAMPLE.parent}/../scenarios/two-classes.yaml"], "every name once"),
    ],
)
def test_what_can_not_be_used_is_exit_status_2_and_a_message_on_stderr(
    sim: Sim, arguments: list[str], sentence: str
) -> None:
    status, out, err = sim(*arguments)

    assert (status, out) == (2, "")
    assert sentence in err


def test_a_bug_is_not_taken_for_a_check_that_fails(sim: Sim) -> None:
    def broken(*arguments: Any, **settings: Any) -> RunTable:
        raise InvariantViolation("two heads")

    status, _, err = sim(str(EXAMPLE), simulate=broken)

    assert status == 2
    assert "InvariantViolation: two heads" in err


def test_ctrl_c_leaves_with_the_shells_status(sim: Sim) -> None:
    def interrupted(*arguments: Any, **settings: Any) -> RunTable:
        raise KeyboardInterrupt

    assert sim(str(EXAMPLE), simulate=interrupted)[0] == 130


def test_processes_print_and_write_what_one_process_does(
    sim: Sim, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    files = tmp_path / "one.json", tmp_path / "two.json"
    _, one, _ = sim(str(EXAMPLE), "--seeds", "2", "--json", str(files[0]))

    main([str(EXAMPLE), "--seeds", "2", "--jobs", "2", "--json", str(files[1])], fake_simulator.simulate)

    two = capsys.readouterr().out
    assert re.sub(r"of \d+\.\d s", "", one) == re.sub(r"of \d+\.\d s", "", two)
    metrics = [json.loads(file.read_text())["scenarios"][0]["variants"]["policy"]["runs"]["2"] for file in files]
    assert metrics[0]["metrics"] == metrics[1]["metrics"]


def test_the_table_is_plain_aligned_and_fits_120_columns(sim: Sim, variant_of: Callable[..., str]) -> None:
    _, out, _ = sim(str(EXAMPLE), variant_of("another-one"))

    header, *lines = out.splitlines()
    assert max(map(len, [header, *lines])) <= 120
    assert out.isascii()
    assert "\x1b" not in out
    rows = [line for line in lines[: lines.index("")] if line.startswith("  ")]
    assert len(rows) == 12
    ends = header.index("  against")
    assert all(row[ends] == " " and row[ends - 1] != " " for row in rows)
    assert {row[header.index("metric") :].split()[0] for row in rows} == {"ttft_p99_s", "goodput_fraction"}


def test_an_analytic_profile_can_not_be_taken_for_a_measurement(sim: Sim) -> None:
    _, out, _ = sim(str(EXAMPLE))

    assert "h100-llama3-8b is analytic, not measured" in out
    assert re.search(r"two-classes: PASS; [\d,]+ requests in 15 runs of \d+\.\d s, 5 seeds; ", out)


def test_every_variant_says_how_much_more_it_does_than_users_want(sim: Sim) -> None:
    """Every other document's first request is refused, and sent again."""
    _, out, _ = sim(str(EXAMPLE))

    shown = [line for line in out.splitlines() if "sends_per_request" in line]
    assert [line.split(":")[0].strip() for line in shown] == ["policy", "random", "p2c"]
    for line in shown:
        amounts = "sends_per_request (.*), attempts_per_request (.*), wasted_prefill_fraction 0, cancel_mean_s -"
        found = re.fullmatch(f"  .*: {amounts}", line)
        assert found is not None, line
        requests, attempts = map(float, found.groups())
        assert attempts <= 1 < requests


def test_few_seeds_give_ranges_and_say_so(sim: Sim) -> None:
    _, out, _ = sim(str(EXAMPLE), "--seeds", "3")

    assert "too few seeds" in out
    assert "(low to high): range over seeds" in out
    assert "bootstrap" not in out


def test_the_file_has_everything(sim: Sim, tmp_path: Path) -> None:
    file = tmp_path / "results" / "all.json"

    status, _, _ = sim(str(EXAMPLE), "--json", str(file), "--policy", "balancing=power_of_two")

    document = json.loads(file.read_text())
    scenario = document["scenarios"][0]
    assert document["verdict"] == scenario["verdict"] == ("PASS", "FAIL")[status]
    assert document["arguments"][0] == str(EXAMPLE)
    assert document["versions"]["numpy"]
    assert scenario["profile"]["provenance"]["kind"] == "analytic"
    assert scenario["seeds"] == [1, 2, 3, 4, 5]
    assert list(scenario["variants"]) == ["policy", "random", "p2c"]
    assert scenario["variants"]["policy"]["policies"]["balancing"] == {"name": "power_of_two", "params": {}}
    runs = scenario["variants"]["random"]["runs"]
    assert list(runs) == ["1", "2", "3", "4", "5"]
    assert runs["1"]["metrics"]["chat"]["ttft_p99_s"]["samples"] > 1000
    assert scenario["checks"][0]["check"]["class"] == "chat"
    assert scenario["checks"][0]["has_passed"] is True
    compared = {(each["class"], each["metric"], each["against"]) for each in scenario["comparisons"]}
    assert ("documents", "e2e_p99_s", "p2c") in compared
    assert document["metrics"]["goodput_fraction"]["meaning"]


def test_the_library_can_be_listed(sim: Sim) -> None:
    status, _, err = sim("--list")

    assert (status, err) == (0, "")


def test_help_teaches_by_example(sim: Sim) -> None:
    status, out, _ = sim("--help")

    assert status == 0
    assert "--policy balancing=power_of_two" in out
    assert all(question in out for question in QUESTIONS)
    assert "exit status:" in out


def test_a_run_in_which_something_raises_says_which_run_and_what(sim: Sim) -> None:
    def fail(*_: Any, **__: Any) -> RunTable:
        raise RuntimeError("no such replica")

    status, out, err = sim(str(EXAMPLE), simulate=fail)

    assert (status, out) == (2, "")
    assert err.startswith("run_sim: two-classes, policy, seed 1: RuntimeError: no such replica\n")
    assert "in fail" in err
    assert len(err.splitlines()) < 10


def test_a_policy_that_wants_to_end_the_process_does_not_pass(sim: Sim) -> None:
    def leave(*_: Any, **__: Any) -> RunTable:
        raise SystemExit(0)

    status, _, err = sim(str(EXAMPLE), simulate=leave)

    assert status == 2
    assert "SystemExit: 0" in err


def test_a_file_that_cannot_be_written_is_found_before_the_runs(sim: Sim, tmp_path: Path) -> None:
    def never(*_: Any, **__: Any) -> RunTable:
        raise AssertionError("it ran")

    status, out, err = sim(str(EXAMPLE), "--json", str(tmp_path), simulate=never)

    assert (status, out) == (2, "")
    assert "--json: got" in err
    assert "Is a directory" in err


def test_what_was_changed_is_said(sim: Sim) -> None:
    _, out, _ = sim(str(EXAMPLE), "--policy", "balancing=power_of_two", "--set", "fleet.num_gateways=3")

    changed = ["changed by --policy: balancing=power_of_two", "changed by --set: fleet.num_gateways=3"]
    assert out.splitlines()[-2:] == changed


def test_a_sweep_prints_a_table_for_each_metric_and_keeps_every_metric_of_every_run(
    sim: Sim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    short = ["--set", "duration_s=8", "--set", "warm_up_s=1", "--set", "faults=[]", "--set", "checks=[]"]
    grid = ["--sweep", "rate=1:2:1", "--sweep", "policies.balancing=random,round_robin"]

    status, out, err = sim(
        str(EXAMPLE), *short, *grid, "--seeds", "1", "--json", "found.jsonl", "--metric", "tpot_p50_s"
    )

    assert (status, err) == (0, "")
    lines = [line.split() for line in out.splitlines()]
    assert ["rate", "policies.balancing", "policy", "random", "p2c"] in lines
    assert [line[:2] for line in lines if line[:1] in (["1"], ["2"])] == [
        ["1", "random"],
        ["1", "round_robin"],
        ["2", "random"],
        ["2", "round_robin"],
    ]
    rows = [json.loads(line) for line in (tmp_path / "found.jsonl").read_text().splitlines()]
    found = {(row["scenario"], row["rate"], row["policies.balancing"], row["variant"]) for row in rows}
    assert found >= {(str(EXAMPLE), 2, "random", "p2c")}


def test_why_logical_requests_were_not_served_is_said_and_written(
    sim: Sim, variant_of: Callable[..., str], tmp_path: Path
) -> None:
    """A prompt longer than the context is nothing that an engine takes."""
    workload = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))["workload"]
    workload["classes"][0]["prompt_tokens"] = 200_000
    path = variant_of("too-long", workload=workload, checks=[], baselines={})

    _, out, _ = sim(path, "--seeds", "1", "--duration", "110", "--json", str(tmp_path / "o.json"), simulate=simulate)

    document = json.loads((tmp_path / "o.json").read_text())["scenarios"][0]
    num_refused = document["variants"]["policy"]["runs"]["1"]["reasons"]["invalid_request"]
    assert num_refused > 500
    assert f"  policy: not served: invalid_request {num_refused:,}" in out.splitlines()


def test_what_became_of_a_traces_rows_is_said(sim: Sim, variant_of: Callable[..., str], tmp_path: Path) -> None:
    rows = [f"2023-11-16 18:15:{second:02d}.0000000,{tokens},10" for second, tokens in enumerate([50, 0, 5_000, 60])]
    (tmp_path / "trace.csv").write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]) + "\n")
    trace = {"name": "chat", "path": "trace.csv", "schema": "azure", "timeout_s": 60, "max_context_tokens": 1000}
    path = variant_of(
        "replay", workload={"traces": [trace]}, slos={"chat": {"ttft_s": 1}}, checks=[], faults=[], baselines={}
    )

    _, out, _ = sim(path, "--seeds", "1", simulate=simulate)

    assert "  trace chat: 4 rows read, 3 replayed, 1 dropped: zero_tokens, 1 cut to 1,000 tokens" in out.splitlines()


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_run_that_is_terminated_ends_like_one_that_is_interrupted_with_all_its_processes(
    jobs: str, tmp_path: Path
) -> None:
    results = tmp_path / "results.json"
    options = ["--jobs", jobs, "--duration", "4000", "--seeds", "2", "--json", str(results)]
    process = subprocess.Popen(
        [sys.executable, "-m", "loadtests.run_sim", "ragged", *options], cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    running = psutil.Process(process.pid)
    num_workers = int(jobs) if int(jobs) > 1 else 0
    wait_until(lambda: results.exists() and len(running.children()) >= num_workers, "the runs have begun")
    children = running.children(recursive=True)

    process.terminate()
    _, err = process.communicate(timeout=60.0)

    assert process.returncode == 130
    assert "interrupted; no results" in err
    assert not psutil.wait_procs(children, timeout=10.0)[1]
