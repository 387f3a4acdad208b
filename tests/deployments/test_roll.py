"""When a configuration that is being rolled out is not to stay."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.config import ROOT
from deployments.roll import __main__ as roll
from deployments.roll.__main__ import why_not
from deployments.roll.misses import Misses, counts_in
from deployments.roll.steps import steps, with_sizes
from tests.tables import for_each

PAGE = """
# TYPE spillway_lane_slo counter
spillway_lane_slo_total{gateway="a",lane="",slo="ttft",met="true"} 90.0
spillway_lane_slo_total{gateway="a",lane="",slo="ttft",met="false"} 5.0
spillway_lane_slo_total{gateway="a",lane="",slo="tpot",met="false"} 3.0
# TYPE spillway_canary_slo counter
spillway_canary_slo_total{gateway="a",slo="ttft",met="false"} 4.0
# TYPE spillway_requests counter
spillway_requests_total{class="standard",gateway="a",lane="",outcome="completed",reason=""} 80.0
spillway_requests_total{class="sheddable",gateway="a",lane="",outcome="completed",reason=""} 8.0
spillway_requests_total{class="standard",gateway="a",lane="",outcome="failed",reason="replica_lost"} 2.0
spillway_requests_total{class="standard",gateway="a",lane="",outcome="cancelled",reason=""} 9.0
# TYPE spillway_canary_attempts counter
spillway_canary_attempts_total{gateway="a",result="finished"} 7.0
spillway_canary_attempts_total{gateway="a",result="failed"} 2.0
spillway_canary_attempts_total{gateway="a",result="beaten"} 1.0
# TYPE spillway_canary_ejections counter
spillway_canary_ejections_total{gateway="a",reason="stalled"} 1.0
"""


def counted(met: float, missed: float, gateway: str = "a") -> dict[tuple[str, ...], float]:
    return {(gateway, "ttft", "met"): met, (gateway, "ttft", "missed"): missed}


def test_slos_and_failures_are_read_by_gateway() -> None:
    assert counts_in(PAGE) == {
        ("a", "ttft", "met"): 90.0,
        ("a", "ttft", "missed"): 5.0,
        ("a", "tpot", "missed"): 3.0,
        ("a", "ttft of canaries", "missed"): 4.0,
        ("a", "an answer", "met"): 88.0,
        ("a", "an answer", "missed"): 2.0,
        ("a", "an answer of a canary", "met"): 7.0,
        ("a", "an answer of a canary", "missed"): 3.0,
        ("a", "stalled", "ejected"): 1.0,
    }


def test_what_was_missed_before_counts_for_nothing() -> None:
    misses = Misses()
    misses.see(counted(0, 1000))
    misses.see(counted(75, 1025))
    assert misses.too_many(0.05) == "25 of 100 requests missed: ttft (allowed: 5%)"


def test_a_gateway_that_is_new_counts_from_nothing_and_one_that_goes_takes_nothing_along() -> None:
    misses = Misses()
    misses.see(counted(100, 100))
    misses.see(counted(0, 30, "b"))
    misses.see(counted(70, 30, "b"))
    assert misses.too_many(0.05) == "30 of 100 requests missed: ttft (allowed: 5%)"


def test_canaries_are_judged_by_their_own_requests() -> None:
    misses = Misses()
    misses.see({})
    misses.see(counted(970, 30) | {("a", "ttft of canaries", each): 5.0 for each in ("met", "missed")})
    assert misses.too_many(0.05) == "5 of 10 requests missed: ttft of canaries (allowed: 5%)"


def test_one_ejection_of_a_canary_is_too_many_but_not_one_from_before() -> None:
    misses = Misses()
    misses.see({("a", "stalled", "ejected"): 1.0})
    misses.see({("a", "stalled", "ejected"): 1.0})
    assert misses.too_many(1.0) == ""
    misses.see({("a", "stalled", "ejected"): 2.0})
    assert misses.too_many(1.0) == "a canary was ejected: stalled"


def test_a_canary_that_fails_goes_back_though_others_answer_for_it() -> None:
    misses = Misses()
    misses.see({})
    misses.see({("a", "an answer", "met"): 40.0, ("a", "an answer of a canary", "missed"): 3.0})
    assert misses.too_many(0.05) == "3 of 3 requests missed: an answer of a canary (allowed: 5%)"
    assert misses.seen() == "40 answers, 3 attempts of canaries"


@given(st.floats(0.01, 0.5), st.integers(0, 2000), st.integers(1, 2000))
def test_what_may_be_chance_is_not_too_many_and_more_of_it_is_no_better(allowed: float, missed: int, met: int) -> None:
    misses, more = Misses(), Misses()
    for each, number in ((misses, missed), (more, missed + 100)):
        each.see({})
        each.see(counted(met, number))
    if missed <= allowed * (missed + met):
        assert misses.too_many(allowed) == ""
    if misses.too_many(allowed):
        assert more.too_many(allowed)


def test_two_requests_say_nothing_and_three_do_where_one_in_twenty_may_miss() -> None:
    misses = Misses()
    misses.see({})
    misses.see(counted(0, 2))
    assert misses.too_many(0.05) == ""
    misses.see(counted(0, 3))
    assert misses.too_many(0.05)


def test_it_stays_unless_serve_gives_up_or_too_many_requests_suffer() -> None:
    misses = Misses()
    assert why_not({"spillway": "DEPLOYING"}, misses, 0.05) == ""
    assert "spillway is DEPLOY_FAILED" in why_not({"spillway": "DEPLOY_FAILED"}, misses, 0.05)
    misses.see(counted(0, 0))
    misses.see(counted(80, 20))
    assert why_not({"spillway": "RUNNING"}, misses, 0.2) == ""
    assert "20 of 100 requests missed" in why_not({"spillway": "RUNNING"}, misses, 0.05)


def test_a_pool_that_a_policy_scales_keeps_its_size_and_others_have_what_the_file_says() -> None:
    pools = [{"name": "p", "autoscaling": {"max_replicas": 9}}, {"name": "d"}]
    gateway = {"name": "gateway", "user_config": {"revision": 2}}
    document = {"applications": [{"name": "s", "args": {"pools": pools}, "deployments": [gateway]}]}
    found = with_sizes(document, {("s", "p"): 6, ("s", "d"): 3, ("other", "p"): 8})
    assert found["applications"][0]["deployments"] == [gateway, {"name": "p", "num_replicas": 6}]
    assert document["applications"][0]["deployments"] == [gateway]


def served(*deployments: dict[str, object], threads: int = 1) -> dict[str, object]:
    args = {"pools": [{"name": "p"}, {"name": "d"}], "threads": threads}
    return {"applications": [{"name": "s", "args": args, "deployments": list(deployments)}]}


def pool_with(name: str, **engine_args: int) -> dict[str, object]:
    return {"name": name, "user_config": {"engine_args": engine_args}}


SIZES = {("s", "p"): 10, ("s", "d"): 1}


def test_pools_come_one_after_the_other_and_a_few_replicas_of_each_first() -> None:
    before, wanted = served(pool_with("p", seed=1)), served(pool_with("p", seed=2), pool_with("d", seed=3))
    found = steps(wanted, before, SIZES, 0.15)
    assert [each.what for each in found] == [
        "pool p: 2 of 10 replicas",
        "pool p: all 10 replicas",
        "pool d: all 1 replicas",
    ]
    tried = {"engine_args": {"seed": 1}, "canary": {"engine_args": {"seed": 2}, "replicas": 2}}
    assert found[0].document == served({"name": "p", "user_config": tried})
    assert found[1].document == served(pool_with("p", seed=2))
    assert found[2].document == wanted


def test_without_canaries_all_replicas_of_a_pool_have_it_at_once() -> None:
    assert [each.what for each in steps(served(pool_with("p", seed=2)), served(), SIZES, 0.0)] == [
        "pool p: all 10 replicas"
    ]


def test_a_pool_goes_back_to_its_own_arguments_likewise() -> None:
    found = steps(served(), served(pool_with("p", seed=2)), SIZES, 0.1)
    assert [each.what for each in found] == ["pool p: 1 of 10 replicas", "pool p: all 10 replicas", "the rest"]
    assert found[-1].document == served()


def test_another_value_in_args_replaces_everything() -> None:
    wanted = served(pool_with("p", seed=2), threads=2)
    assert steps(wanted, served(), SIZES, 0.1) == [("all of it, a fifth of each pool's replicas at a time", wanted)]


def test_where_nothing_runs_there_is_nothing_to_replace(capsys: pytest.CaptureFixture[str]) -> None:
    config = ROOT / "deployments" / "configs" / "emulated.yaml"
    assert roll.main([str(config), "--port", "8099"]) == 2
    assert "port: got 8099" in capsys.readouterr().err


def test_what_cannot_be_served_is_named_before_anything_is_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "wrong.yaml").write_text(
        "applications: [{name: a, import_path: deployments.app:build, args: {model: 7}}]"
    )
    assert roll.main([str(tmp_path / "wrong.yaml")]) == 2
    assert "model" in capsys.readouterr().err


@for_each(
    ("option", "value"),
    [("--most-missed", "1.5"), ("--most-missed", "nan"), ("--canary", "2"), ("--watch", "-1"), ("--patience", "0")],
)
def test_an_option_out_of_range_is_named(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert roll.main(["any.yaml", option, value]) == 2
    assert f"{option}: got {float(value)!r}; allowed: " in capsys.readouterr().err
