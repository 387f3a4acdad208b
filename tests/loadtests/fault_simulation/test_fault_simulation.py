"""Random faults break nothing, planted bugs are found, and a script says all about its run."""

import re

import msgspec
import pytest

from cluster.clock import ClockSkew
from cluster.sim.gateway import SimGateway
from loadtests import simulate_faults
from loadtests.fault_simulation import fault_script, shrinking
from loadtests.fault_simulation.fault_run import run
from loadtests.fault_simulation.fault_script import CLOCKS, KINDS, FaultScript, draw
from loadtests.fault_simulation.planted_bugs import PLANTED
from loadtests.fault_simulation.shrinking import shrink
from policies.decisions import AGAIN_AT_ONCE
from routing.attempts.recovery import Recovery
from routing.config.spec import LeaderFirst
from tests.tables import for_each

NUM_REQUESTS = 300
SEEDS = range(1, 16)
LEAKS = 3
"""A seed of which the planted leak breaks something."""


def is_broken(script: FaultScript) -> bool:
    return bool(run(script).violations)


def test_nothing_breaks_and_every_kind_of_fault_is_there() -> None:
    runs = [run(draw(seed, NUM_REQUESTS)) for seed in SEEDS]

    assert [each.violations for each in runs] == [[]] * len(runs)
    assert {kind for each in runs for kind, times in each.hit.items() if times} == {*KINDS, CLOCKS}


def test_a_seed_is_a_script_and_a_script_is_a_run() -> None:
    script = draw(3, NUM_REQUESTS)
    assert script == draw(3, NUM_REQUESTS) != draw(4, NUM_REQUESTS)
    as_text = msgspec.yaml.decode(msgspec.yaml.encode(script), type=FaultScript)
    assert run(as_text) == run(script)


def ahead(script: FaultScript, seconds: float) -> FaultScript:
    """The same with gateways whose clocks have begun at other times, and go equally fast."""
    clocks = tuple(ClockSkew(ahead_s=seconds * (1 + gateway)) for gateway in range(script.num_gateways))
    return msgspec.structs.replace(script, clocks=clocks)


def test_when_a_gateways_clock_has_begun_makes_no_difference() -> None:
    for seed in SEEDS:
        script = msgspec.structs.replace(draw(seed, NUM_REQUESTS), clocks=())
        assert run(ahead(script, 4096.0)).outcomes == run(script).outcomes, f"of seed {seed}"


@for_each("bug", sorted(PLANTED))
def test_a_planted_bug_is_found(bug: str) -> None:
    with PLANTED[bug]():
        assert any(is_broken(draw(seed, NUM_REQUESTS)) for seed in SEEDS)


def test_what_no_dispatcher_may_do_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here it tries again however often it has, and whatever the prompt has done before."""
    monkeypatch.setattr(Recovery, "decide", lambda *_: AGAIN_AT_ONCE)

    scripts = [msgspec.structs.replace(draw(seed, NUM_REQUESTS), leader_first=LeaderFirst.NEVER) for seed in SEEDS]
    said = [each for script in scripts for each in run(script).violations]

    assert [each for each in said if re.search(r"gateway \d, record \d+, [\d.]+ s: .* is attempt 5 at .*, of 4$", each)]


def test_a_script_that_breaks_something_is_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shrinking, "MOST_RUNS", 40)
    with PLANTED["token_doubled_on_resume"]():
        broken = next(script for seed in SEEDS if is_broken(script := draw(seed, NUM_REQUESTS)))
        shortest = shrink(broken, is_broken)
        assert is_broken(shortest)
    assert len(shortest.faults) < len(broken.faults)
    assert not is_broken(shortest), "without the bug nothing breaks"


def test_a_run_that_raises_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: SimGateway, *_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(SimGateway, "_commit", fail)
    assert run(draw(1, NUM_REQUESTS)).violations[0] == "ZeroDivisionError: a bug"


def test_the_command_says_what_holds_and_fails_where_something_does_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(simulate_faults, "REQUESTS_OF_A_SEED", NUM_REQUESTS)
    monkeypatch.setattr(simulate_faults, "PLANTED", {})
    assert simulate_faults.main(["--requests", "600", "--jobs", "1"]) == 0
    printed = capsys.readouterr().out
    assert "in 2 runs, 0 violations" in printed
    assert "Placement" in printed

    monkeypatch.setattr(shrinking, "MOST_RUNS", 2)
    with PLANTED["slot_leaked_on_cancel"]():
        assert simulate_faults.main(["--seed", str(LEAKS)]) == 1
    printed = capsys.readouterr().out
    assert f"seed {LEAKS} breaks:" in printed
    assert "the shortest script that breaks anything:" in printed


def test_policies_that_scripts_draw_from_are_all_to_be_had() -> None:
    """A wrong name or parameter would be found by some seed, and late."""
    script = draw(1, NUM_REQUESTS)
    for question, names in fault_script.NAMES.items():
        for name in names:
            policies = {**script.policies, question: name}
            few = msgspec.structs.replace(script, policies=policies, num_requests=3, faults=())
            assert run(few).violations == []
