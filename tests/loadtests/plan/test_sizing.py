"""How many unified replicas a demand takes: predictions, against the simulator and against each other."""

from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from loadtests.plan.__main__ import main
from loadtests.plan.sizing.demand import demand_of
from loadtests.plan.sizing.engine import Engine
from loadtests.plan.sizing.pools import pools_of
from loadtests.plan.sizing.prediction import Prediction, values_of
from loadtests.plan.sizing.prefill_decode_pools import PrefillDecodePools
from loadtests.plan.sizing.unified_pool import UnifiedPool
from loadtests.plan.sizing.waits import waits_at_servers
from loadtests.plan.verification import verified
from loadtests.scenario.scenario import Scenario, load
from policies.capacity import StationaryQueue
from policies.errors import ConfigError
from policies.views import Role
from routing.sizing.geometry import ServiceRates
from tests.loadtests.plan.chats import document
from tests.tables import for_each

SECONDS = st.floats(0.0, 5.0, allow_nan=False)
ENGINE = Engine(
    rates=ServiceRates(step_s=0.006, new_token_s=2.6e-5, context_token_s=3.7e-8),
    request_s=0.002, token_s=1e-5, kv_capacity_tokens=400_000, kv_block_tokens=16, max_num_seqs=256,
    dollars_per_h=3.0, watts=700.0,
)  # fmt: skip


def chats(**changes: Any) -> Scenario:
    return Scenario.model_validate(document(**changes))


@cache
def pool(rate_per_s: float = 40.0) -> UnifiedPool:
    return UnifiedPool(demand_of(chats(rate_per_s=rate_per_s), 1), ENGINE)


@for_each(("variant", "simulated_tpot_s"), [("policy", 0.00515), ("no-drafts", 0.00888), ("twelve-drafts", 0.0181)])
def test_the_time_per_token_with_draft_tokens_is_near_the_simulators(variant: str, simulated_tpot_s: float) -> None:
    """The simulator's medians are those that the scenario prints."""
    pools = pools_of(load("speculative-decoding").alone(variant))
    predicted = values_of(pools.at({Role.PREFILL: 2, Role.DECODE: 2}).figures)
    assert predicted["tpot_s"] == pytest.approx(simulated_tpot_s, rel=0.12)


@given(st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=20), st.integers(1, 5))
def test_a_job_begins_when_it_has_come_and_a_server_is_free(jobs: list[tuple[float, float]], servers: int) -> None:
    arrivals_s = np.cumsum([gap_s for gap_s, _ in jobs])
    service_s = np.array([its_s for _, its_s in jobs])
    begins_s = arrivals_s + waits_at_servers(arrivals_s, service_s, servers)
    assert all(one <= other + 1e-9 for one, other in pairwise(begins_s)), "in order of arrival"
    for number, begin_s in enumerate(begins_s):
        others = [(at_s, at_s + its_s) for at_s, its_s in zip(begins_s[:number], service_s, strict=False)]
        assert sum(end_s > begin_s + 1e-9 for _, end_s in others) < servers
        if begin_s > arrivals_s[number] + 1e-9:
            assert any(abs(end_s - begin_s) < 1e-9 for _, end_s in others), "a job does not wait beside an idle server"


def test_waits_of_many_poisson_arrivals_are_those_of_the_closed_form() -> None:
    rng = np.random.default_rng(1)
    arrivals_s, service_s = np.cumsum(rng.exponential(1 / 3.2, 200_000)), rng.exponential(1.0, 200_000)
    expected_s = StationaryQueue(rate_per_s=3.2, service_s=1.0, servers=4).mean_wait_s
    assert waits_at_servers(arrivals_s, service_s, 4).mean() == pytest.approx(expected_s, rel=0.05)


def at(pools: UnifiedPool, replicas: int) -> Prediction:
    return pools.at({Role.UNIFIED: replicas})


def never_worse(less: Prediction, more: Prediction) -> None:
    assert less.attained_fraction <= more.attained_fraction
    earlier, later = values_of(less.figures), values_of(more.figures)
    for name in ("utilisation", "tpot_s", "kv_residency", "ttft_p50_s", "ttft_p99_s", "e2e_p99_s"):
        assert later[name] <= earlier[name] + 1e-9


def test_a_larger_pool_is_never_predicted_to_do_worse() -> None:
    for less, more in pairwise(at(pool(), pool().least[Role.UNIFIED] + more) for more in range(8)):
        never_worse(less, more)


@for_each("role", [Role.PREFILL, Role.DECODE])
def test_more_replicas_of_a_role_are_never_predicted_to_do_worse(role: Role) -> None:
    pools = PrefillDecodePools(demand_of(chats(rate_per_s=100.0), 1), ENGINE)
    for less, more in pairwise(pools.at({**pools.least, role: pools.least[role] + more}) for more in range(5)):
        never_worse(less, more)


@for_each("attained_fraction", [0.5, 0.9, 0.99])
def test_the_fewest_replicas_are_enough_and_one_less_is_not(attained_fraction: float) -> None:
    fewest = pool(200.0).fewest(attained_fraction)
    assert fewest.keeps(attained_fraction)
    number = fewest.replicas[Role.UNIFIED]
    assert number == pool(200.0).least[Role.UNIFIED] or not at(pool(200.0), number - 1).keeps(attained_fraction)


def test_one_replica_fewer_of_either_role_is_not_enough() -> None:
    pools = PrefillDecodePools(demand_of(chats(rate_per_s=200.0), 1), ENGINE)
    fewest = pools.fewest(0.99)
    assert fewest.keeps(0.99)
    for role, number in fewest.replicas.items():
        assert number == pools.least[role] or not pools.at({**fewest.replicas, role: number - 1}).keeps(0.99)


def test_replicas_that_the_work_fills_are_too_few() -> None:
    with pytest.raises(ConfigError, match="replicas"):
        at(pool(200.0), pool(200.0).least[Role.UNIFIED] - 1)


def test_an_slo_that_no_request_keeps_alone_is_kept_by_no_number_of_replicas() -> None:
    demand = demand_of(chats(slos={"chat": {"ttft_s": 0.001}}), 1)
    with pytest.raises(ConfigError, match=r"0\.0%"):
        UnifiedPool(demand, ENGINE).fewest(0.9)


@for_each(
    "options",
    ["--attained 2", "--attained nan", "--attained 0", "--watts -5", "--dollars-per-h nan", "--jobs 0", "--replicas 0"],
)
def test_an_option_out_of_range_is_named_with_its_range(options: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["size", "steady", *options.split()])
    assert ended.value.code == 2
    assert "allowed" in capsys.readouterr().err


@for_each(
    ("slos", "more"),
    [({"ttft_s": 2.0, "tpot_s": 0.015}, 1), ({"e2e_s": 0.5}, None), ({"ttft_s": 2.0, "e2e_s": 30.0}, 0)],
)
def test_every_slo_of_a_request_counts(slos: dict[str, float], more: int | None) -> None:
    demand = demand_of(chats(slos={"chat": slos}), 1)
    loose = UnifiedPool(demand_of(chats(slos={"chat": {"ttft_s": 2.0}}), 1), ENGINE).fewest(0.99)
    if more is None:
        with pytest.raises(ConfigError, match="within theirs"):
            UnifiedPool(demand, ENGINE).fewest(0.99)
    else:
        assert UnifiedPool(demand, ENGINE).fewest(0.99).replicas[Role.UNIFIED] >= loose.replicas[Role.UNIFIED] + more


def test_answers_of_one_token_have_no_time_per_token() -> None:
    document_of = document(slos={"chat": {"ttft_s": 1.0, "tpot_s": 0.001}})
    document_of["workload"]["classes"][0]["output_tokens"] = 1
    demand = demand_of(Scenario.model_validate(document_of), 1)
    assert UnifiedPool(demand, ENGINE).fewest(0.99).attained_fraction == 1.0


def test_pools_without_an_slo_for_tokens_are_sized_by_the_others() -> None:
    pools = PrefillDecodePools(demand_of(chats(slos={"chat": {"ttft_s": 1.0}}), 1), ENGINE)
    assert pools.fewest(0.99).attained_fraction >= 0.99


def test_what_engines_do_not_hold_is_not_said_to_be_in_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["size", "steady", "--replicas", "5", "2"]) == 0
    assert "steady: 5 prefill, 2 decode; more than engines hold" in capsys.readouterr().out


def test_the_longer_of_two_slos_counts() -> None:
    demand = demand_of(chats(slos={"chat": {"ttft_s": 0.5, "ttft_s_per_1k_prompt_tokens": 1.0}}), 1)
    expected_s = np.maximum(0.5, demand.prompt_tokens / 1000)
    assert (demand.ttft_slo_s == expected_s).all()
    assert (demand.tpot_slo_s == np.inf).all()


def test_conversations_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="by themselves") as error:
        demand_of(load("sessions"), 1)
    assert error.value.field == "workload.classes"


def test_predictions_are_near_the_simulator_and_what_they_say_is_enough_is_enough() -> None:
    scenario = chats()
    found = UnifiedPool(demand_of(scenario, 1), ENGINE).fewest(0.99)
    predicted = values_of(found.figures)
    simulated, *_ = verified(scenario, found.replicas, 0.99, 1, Console(stderr=True))
    assert simulated.metrics["goodput_fraction"] > 0.98
    assert predicted["tpot_s"] == pytest.approx(simulated.metrics["tpot_p50_s"], rel=0.15)
    assert predicted["ttft_p50_s"] == pytest.approx(simulated.metrics["ttft_p50_s"], rel=0.4)
    assert predicted["ttft_p99_s"] == pytest.approx(simulated.metrics["ttft_p99_s"], rel=0.4)


def test_the_table_has_the_size_its_neighbours_and_what_the_simulator_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "chats.yaml"
    briefly: dict[str, Any] = {"duration_s": 12, "seeds": [1]}
    mine.write_text(yaml.safe_dump(document(**briefly)))
    assert main(["size", str(mine), "--verify", "--jobs", "1"]) == 0
    shown = capsys.readouterr().out
    binds, _, table = shown.partition("\n")
    assert binds.startswith("what binds: memory, ")
    fewest = int(table.removeprefix("chats: ").partition(" unified; ")[0])
    for words in (f" {fewest} unified ", f" {fewest - 1} unified ", f" {fewest + 2} unified ", "one unified lost"):
        assert words in shown


@for_each(
    "arguments",
    ["sessions", "ragged-lanes", "overload-200 --replicas 1", "steady --replicas 1", "steady --replicas 4 1"],
)
def test_what_can_not_be_sized_ends_with_2_and_says_why(arguments: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["size", *arguments.split()]) == 2
    assert "allowed" in capsys.readouterr().err


def test_prefill_and_decode_pools_that_are_predicted_to_do_are_enough_in_the_simulator_and_fewer_are_not() -> None:
    scenario = load("steady").changed(seeds=(1,), duration_s=25.0)
    pools = PrefillDecodePools(demand_of(scenario, 1), replace(ENGINE, rates=scenario.fleet_spec().rates))
    found = pools.fewest(0.99)
    enough, *others = verified(scenario, found.replicas, 0.99, 1, Console(stderr=True))
    assert enough.metrics["goodput_fraction"] > 0.99
    assert len(others) == 4
    assert all(each.metrics["goodput_fraction"] < 0.97 for each in others)
    assert values_of(found.figures)["tpot_s"] == pytest.approx(enough.metrics["tpot_p50_s"], rel=0.1)
