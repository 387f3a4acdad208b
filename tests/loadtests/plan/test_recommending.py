"""The cheapest fleet: the search, against every size there is; what it costs; and the deployment that comes of it."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from deployments.app import check_policies
from deployments.config import validated
from loadtests.plan.__main__ import main
from loadtests.plan.deployment import LIKE, deployment_document
from loadtests.plan.fleet_search import Candidate, Trial, candidates_of, fewest, searched, smallest_sizes
from loadtests.plan.price_front import front_figure, price_front
from loadtests.plan.recommendation import recommended
from loadtests.plan.sizing.prediction import Replicas
from loadtests.plan.verification import METRICS
from loadtests.scenario.scenario import POLICY, Scenario
from policies.errors import ConfigError
from policies.views import Role
from tests.loadtests.plan.chats import document

QUIET = Console(quiet=True)
PREFILL_DECODE = [
    {"role": "prefill", "replicas": 1, "max_num_batched_tokens": 2048},
    {"role": "decode", "replicas": 1, "max_num_seqs": 64},
]


def chats(**changes: Any) -> Scenario:
    return Scenario.model_validate(document(**changes))


def with_pools() -> Scenario:
    """Unified pools, and prefill and decode pools as a baseline."""
    pools = [{"role": "unified", "replicas": 2, "max_num_batched_tokens": 2048, "priority_scheduling": True}]
    apart = {"planning": "always_disaggregated", "pools": PREFILL_DECODE, "prefill_window_tokens": 4096}
    return chats(fleet={"pools": pools}, baselines={"apart": apart}, duration_s=10, warm_up_s=2, seeds=[1])


def trial(dollars_per_h: float, goodput_fraction: float, candidate: str = "policy") -> Trial:
    metrics = dict.fromkeys(METRICS, 1.0) | {"goodput_fraction": goodput_fraction}
    replicas: Replicas = {Role.UNIFIED: 1}
    return Trial(
        candidate=candidate,
        replicas=replicas,
        dollars_per_h=dollars_per_h,
        keeps=goodput_fraction > 0.9,
        metrics=metrics,
    )


@given(st.integers(1, 200), st.integers(0, 200))
def test_the_fewest_are_found_in_few_questions(least: int, more: int) -> None:
    asked: list[int] = []

    def keeps(number: int) -> bool:
        asked.append(number)
        return number >= least

    assert fewest(keeps, least + more) == least
    assert all(1 <= number < least + more for number in asked)
    assert len(asked) <= 2 * (more + 1).bit_length() + 2


@given(st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12)), min_size=1, max_size=4), st.integers(1, 6))
def test_of_two_pools_no_smaller_sum_keeps_what_larger_ones_keep(corners: list[tuple[int, int]], start: int) -> None:
    def keeps(first: int, second: int) -> bool:
        return any(first >= one and second >= other for one, other in corners)

    found = smallest_sizes(keeps, (start, start))

    assert found is not None
    assert keeps(*found)
    enough = start
    while not keeps(enough, enough):
        enough *= 2
    sums = [sum(sizes) for sizes in product(range(1, enough + 1), repeat=2) if keeps(*sizes)]
    assert sum(found) == min(sums)


def test_what_no_size_keeps_is_given_up_after_a_few_doublings() -> None:
    asked: set[int] = set()

    def keeps(size: int) -> bool:
        asked.add(size)
        return False

    assert smallest_sizes(keeps, (3,)) is None
    assert asked == {3, 6, 12, 24, 48}


@given(st.lists(st.tuples(st.integers(1, 8), st.integers(0, 8)), max_size=12))
def test_the_front_has_what_no_cheaper_fleet_is_as_good_as(fleets: list[tuple[int, int]]) -> None:
    front = {(each.dollars_per_h, each.goodput_fraction) for each in price_front([trial(*each) for each in fleets])}
    expected = {
        (price, good)
        for price, good in fleets
        if not any((other <= price and its >= good) and (other, its) != (price, good) for other, its in fleets)
    }
    assert front == expected


def test_the_figure_has_every_candidate_the_front_and_what_is_recommended() -> None:
    trials = [trial(3, 0.5), trial(6, 0.95), trial(6, 0.99, "apart"), trial(9, 0.98)]
    drawn = {each.name: list(each.x) for each in front_figure(trials, 0.9, trials[1]).data}
    assert drawn == {
        "policy": [3, 6, 9],
        "apart": [6],
        "no cheaper one is as good": [3, 6],
        "recommended": [6],
        "may be outside": [3, 9],
    }


def test_the_size_that_is_found_keeps_the_slos_and_one_fewer_does_not() -> None:
    candidate = Candidate(name="policy", scenario=chats(rate_per_s=80.0, seeds=[1]), dollars_per_h=2.0)
    found = searched(candidate, 0.95)
    assert found.cheapest is not None
    number = found.cheapest.replicas[Role.UNIFIED]
    assert found.cheapest.dollars_per_h == 2.0 * number
    kept = {each.replicas[Role.UNIFIED]: each.keeps for each in found.trials}
    assert kept[number]
    assert not kept[number - 1]


def test_of_all_candidates_the_cheapest_is_recommended_and_proven_on_other_seeds() -> None:
    scenario = chats(rate_per_s=80.0, seeds=[1], duration_s=20)
    dear, cheap = (Candidate(name=str(price), scenario=scenario, dollars_per_h=price) for price in (3.0, 2.0))
    best = recommended([searched(dear, 0.9), searched(cheap, 0.9)], 0.9, 1, QUIET)
    assert best.candidate == cheap
    assert [each.is_smaller for each in best.verified] == [False, True, False]
    assert best.verified[0].metrics["goodput_fraction"] != best.trial.goodput_fraction
    assert best.is_proven


def test_where_no_fleet_keeps_the_slos_none_is_recommended_and_the_best_is_said() -> None:
    impossible = chats(slos={"chat": {"ttft_s": 0.001}}, duration_s=4, warm_up_s=1, seeds=[1])
    found = searched(Candidate(name="policy", scenario=impossible, dollars_per_h=2.0), 0.9)
    assert found.cheapest is None
    with pytest.raises(ConfigError, match="at most 0"):
        recommended([found], 0.9, 1, QUIET)


def test_every_variant_on_every_engine_is_a_candidate() -> None:
    engines = {"h100-llama3-8b": 3.0, "h100x4-llama3-70b": 12.0}
    found = candidates_of(with_pools(), [POLICY, "apart"], engines)
    assert [each.name for each in found] == [
        f"{variant} on {profile}" for variant in (POLICY, "apart") for profile in engines
    ]
    assert [each.dollars_per_h for each in found] == [3.0, 12.0, 3.0, 12.0]
    assert found[3].scenario.profile == "h100x4-llama3-70b"
    assert [str(pool.role) for pool in found[2].scenario.fleet.pools] == ["prefill", "decode"]
    assert found[2].scenario.dispatcher.prefill_window_tokens == 4096


def test_a_variant_that_is_none_and_pools_with_the_same_role_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="variant: got 'none-such'"):
        candidates_of(with_pools(), ["none-such"], {"h100-llama3-8b": 3.0})
    two = [{"role": "unified", "name": name, "replicas": 1} for name in ("short", "long")]
    with pytest.raises(ConfigError, match="one of each role"):
        candidates_of(chats(fleet={"pools": two}), [POLICY], {"h100-llama3-8b": 3.0})


@pytest.mark.parametrize("variant", [POLICY, "apart"])
@pytest.mark.parametrize("like", [LIKE, LIKE.with_name("unified-vllm.yaml"), LIKE.with_name("recommended.yaml")])
def test_the_deployment_has_the_pools_policies_and_limits_that_were_simulated(variant: str, like: Path) -> None:
    (candidate,) = candidates_of(with_pools(), [variant], {"h100-llama3-8b": 3.0})
    sizes = (3, 2)[: len(candidate.scenario.fleet.pools)]

    written = yaml.safe_load(yaml.safe_dump(deployment_document(candidate, candidate.replicas(sizes), like)))

    config = validated(written["applications"][0]["args"])
    check_policies(config)
    assert config.policies == candidate.scenario.policies
    assert {pool.stage: pool.replicas for pool in config.pools} == dict(candidate.replicas(sizes))
    simulated = {pool.role: pool.limits for pool in candidate.scenario.fleet_spec().pools}
    for pool in config.pools:
        args = pool.args_over(config.engine)
        assert args["max_num_seqs"] == simulated[pool.stage].max_num_seqs
        assert args["max_num_batched_tokens"] == simulated[pool.stage].max_num_batched_tokens
        assert (args.get("scheduling_policy") == "priority") == simulated[pool.stage].priority_scheduling
    assert config.gateway.prefill_window_tokens == candidate.scenario.dispatcher.prefill_window_tokens
    assert config.service_rates().step_s == candidate.scenario.fleet_spec().rates.step_s


def test_the_deployments_engines_draft_as_many_tokens_as_those_that_were_simulated() -> None:
    pools = [{"role": "unified", "replicas": 1, "speculative_config": {"num_speculative_tokens": 2}}]
    (candidate,) = candidates_of(chats(fleet={"pools": pools}), [POLICY], {"h100-llama3-8b": 3.0})

    written = deployment_document(candidate, candidate.replicas((2,)), LIKE)
    config = validated(written["applications"][0]["args"])
    check_policies(config)
    assert config.service_rates() == candidate.scenario.fleet_spec().rates
    with pytest.raises(ConfigError, match="speculative_config"):
        deployment_document(candidate, candidate.replicas((2,)), LIKE.with_name("unified-vllm.yaml"))


def test_a_file_that_is_no_deployment_is_refused_by_name(tmp_path: Path) -> None:
    (candidate,) = candidates_of(with_pools(), [POLICY], {"h100-llama3-8b": 3.0})
    (tmp_path / "other.yaml").write_text("applications: []")
    with pytest.raises(ConfigError, match="--like"):
        deployment_document(candidate, candidate.replicas((1,)), tmp_path / "other.yaml")


def test_the_command_prints_the_candidates_the_front_and_the_proof_and_writes_a_deployment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, output, figure = tmp_path / "chats.yaml", tmp_path / "to" / "start.yaml", tmp_path / "front.html"
    shorter = document(rate_per_s=80.0, duration_s=20, seeds=[1], baselines={"random": {"balancing": "random"}})
    path.write_text(yaml.safe_dump(shorter))
    arguments = ["recommend", str(path), "--attained", "0.95", "--engine", "h100-llama3-8b=2.5", "--jobs", "1"]

    status = main([*arguments, "--output", str(output), "--figure", str(figure)])

    printed = capsys.readouterr().out
    assert status == 0
    for words in ("random", "each candidate at its cheapest", "no cheaper fleet", "did not see", "recommended: "):
        assert words in printed
    assert "Plotly" in figure.read_text()
    text = output.read_text()
    assert text.startswith("# ")
    config = validated(yaml.safe_load(text)["applications"][0]["args"])
    assert f"{config.pools[0].replicas} unified replicas on h100-llama3-8b for the users of chats" in text


@pytest.mark.parametrize("engine", ["h100-llama3-8b", "h100-llama3-8b=dear", "h100-llama3-8b=-1", "=3"])
def test_an_engine_without_a_price_is_refused(engine: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["recommend", "steady", "--engine", engine])
    assert ended.value.code == 2
    assert "--engine" in capsys.readouterr().err


def test_a_profile_that_is_none_is_refused_before_anything_is_simulated(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recommend", "steady", "--engine", "none-such=3"]) == 2
    assert "none-such" in capsys.readouterr().err
