"""What the marks of coordination are held against, and what is deployed."""

import os

import pytest

from cluster import Seeds
from deployments.app import check_policies, read_config
from loadtests.results.metrics import Figure
from loadtests.studies import coordination
from loadtests.studies.coordination import (
    ALONE,
    DEAF,
    LEAST_SPREAD,
    POLICIES,
    SAID_SPREAD,
    TOGETHER,
    Figures,
    Measured,
    document_of,
    workload_of,
)
from loadtests.workloads.arrivals import FlashCrowd
from policies.contracts import Need
from tests.engines.emulated_engines import ensure_tokenizer


def figures(sessions: float, tries: float = 1.0, same: float = 1.0, spread: float = 0.0, said: float = 0.0) -> Figures:
    values = {
        "session_goodput_fraction": sessions,
        "tries_per_sent_intent": tries,
        "same_answer_fraction": same,
        "shed_spread": spread,
        LEAST_SPREAD: 0.0,
        SAID_SPREAD: said,
    }
    return {name: Figure(value=value, samples=100) for name, value in values.items()}


def measured(together: Figures, deaf: Figures, *, was_killed: bool = True) -> Measured:
    runs = {ALONE: figures(0.2, tries=2.5), TOGETHER: together, DEAF: deaf}
    return Measured(capacity_rps=20.0, figures=runs, was_killed=was_killed)


GOOD = figures(0.4, tries=1.1)


@pytest.mark.parametrize(
    ("found", "missed"),
    [
        (measured(GOOD, GOOD), []),
        (measured(figures(0.25), GOOD), ["session_goodput_fraction"]),
        (measured(figures(0.4, tries=1.5), GOOD), ["tries_per_sent_intent"]),
        (measured(GOOD, figures(0.4, same=0.9)), ["same_answer_fraction"]),
        (measured(GOOD, figures(0.4, spread=0.05)), ["shed_spread"]),
        (measured(GOOD, figures(0.4, said=0.05)), ["said_spread"]),
        (measured(GOOD, GOOD, was_killed=False), ["killed"]),
    ],
    ids=["all well", "few sessions", "many tries", "another answer", "apart", "say otherwise", "no ledger"],
)
def test_every_mark_can_be_missed(found: Measured, missed: list[str]) -> None:
    lines, are_met = coordination.verdicts(found)

    assert are_met is (not missed)
    assert all(any(word in line for line in lines if line.endswith("MISSED")) for word in missed)
    assert sum(line.endswith("MISSED") for line in lines) == len(missed)


@pytest.mark.parametrize("shedding", sorted(POLICIES.values()))
def test_what_is_deployed_can_be_and_differs_in_the_shedding_alone(shedding: str) -> None:
    ensure_tokenizer()
    documents = {name: document_of(name)["applications"][0]["args"] for name in POLICIES.values()}
    config = read_config(documents[shedding])

    check_policies(config)
    assert Need.LEDGER in config.provided
    others = [{**args, "policies": {**args["policies"], "shedding": ""}} for args in documents.values()]
    assert others[0] == others[1]


def test_conversations_have_four_calls() -> None:
    crowd = FlashCrowd(rate_per_s=5.0, factor=2.5, from_s=40.0, for_s=60.0)
    planned = list(workload_of(crowd, 50.0).plan(Seeds(1)))

    assert {len(each.session.turns) for each in planned if each.session} == {4}


def test_a_deployment_without_a_ledger_has_none_to_kill() -> None:
    assert not coordination.kill_ledger(os.getpid())


def test_odd_arguments_are_refused_with_what_is_allowed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        coordination.main(["--seconds", "5"])

    assert "allowed" in capsys.readouterr().err
