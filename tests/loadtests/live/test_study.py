"""Study files: what is refused when they are read, and what their runs deploy and send."""

from pathlib import Path
from typing import Any

import pytest

from loadtests.live.configuration import laid_over
from loadtests.live.plans import run_plan, steady_plan
from loadtests.live.study import Study, library, load
from loadtests.workloads.arrivals import Poisson
from loadtests.workloads.turns import ConstantThink
from policies.errors import ConfigError
from tests.loadtests.live.studies import WITH, WITHOUT, document, study
from tests.tables import for_each

CHAT = document()["workload"]["classes"][0]
KILL = {"at_s": 10, "kill": {"pool": "decode"}}
TRACE = {"name": "document", "path": "trace.csv", "schema": "azure", "timeout_s": 30}
GAMMA = {"arrivals": {"gamma": {"rate_per_s": 1, "cv": 3}}}
SIMULATED = {"profile": "h100-llama3-8b"}
STALL = {"at_s": 10, "fault": {"kind": "stall", "pool": "decode", "for_s": 5}}


@for_each("path", library())
def test_a_study_that_comes_along_can_be_run(path: Path) -> None:
    found = load(str(path))

    assert found.checks
    assert {check.metric for check in found.checks} | {name for names in found.table_metrics.values() for name in names}


@for_each(
    ("changes", "field", "allowed"),
    [
        ({"loads": [0]}, "loads.0", "more than 0"),
        ({"speed": 2}, "speed", "no field of this name"),
        ({"warm_up_s": 60}, "warm_up_s", "less than duration_s"),
        ({"deployment": {"config": "nowhere.yaml"}}, "config", "emulated.yaml"),
        ({"capacity": {"rate": 5}}, "capacity", "requests_per_s, flood"),
        (
            {"capacity": {"flood": {"requests_per_s": 5, "for_s": 9, "settles_s": 9, "variant": WITH}}},
            "capacity",
            "less",
        ),
        (
            {"capacity": {"flood": {"requests_per_s": 5, "for_s": 9, "settles_s": 1, "variant": "no"}}},
            "capacity.flood.variant",
            WITHOUT,
        ),
        (
            {
                "capacity": {"flood": {"requests_per_s": 5, "for_s": 9, "settles_s": 1}},
                "variants": {WITH: {"requests_per_s": 2}},
            },
            f"variants.{WITH}.requests_per_s",
            "a flood finds the capacity",
        ),
        ({"usual": {"load": 0.8, "for_s": 60}}, "usual.for_s", "less than duration_s"),
        ({"variants": {WITH: {"args": {"policies": {"balancing": "best"}}}}}, f"variants.{WITH}", "power_of_two"),
        ({"variants": {WITH: {"args": {"policies": {"guess": "best"}}}}}, f"variants.{WITH}.policies.guess", ""),
        (
            {"workload": {"classes": [CHAT], "traces": [TRACE]}},
            "workload.traces",
            "a trace has its own",
        ),
        (
            {
                "usual": {"load": 0.8, "for_s": 6},
                "workload": {"classes": [CHAT | GAMMA, CHAT | {"name": "document"}]},
            },
            "workload.classes",
            "with poisson arrivals",
        ),
        (
            {
                "usual": {"load": 0.8, "for_s": 6},
                "variants": {WITHOUT: {}, WITH: {"workload": {"classes": [CHAT | GAMMA]}}},
            },
            f"variants.{WITH}.workload.classes",
            "with poisson arrivals",
        ),
        (
            {"variants": {WITHOUT: {}, WITH: {"workload": {"classes": [CHAT | {"name": "other"}]}}}},
            "slos",
            "'chat', 'document', 'other'",
        ),
        ({"slos": {"chat": {"ttft_s": 1}}}, "slos", "document"),
        ({"simulated": {"profile": "abacus"}}, "simulated.profile", "h100-llama3-8b"),
        ({"simulated": SIMULATED, "actions": [KILL]}, "actions", "none"),
        ({"variants": {WITH: {}, f"{WITH}, simulated": {}}}, "variants", "', simulated'"),
        ({"seeds": [1, 1]}, "seeds", "every seed once"),
        ({"actions": [KILL | {"at_s": 60}]}, "actions.0.at_s", "less than duration_s"),
        ({"actions": [KILL | {"variants": ["no"]}]}, "actions.0.variants", WITHOUT),
        ({"actions": [KILL | STALL]}, "actions.0", "exactly one of"),
        ({"actions": [{"at_s": 1, "kill": {"pool": "none"}}]}, "actions.0.pool", "prefill"),
        ({"actions": [{"at_s": 1, "kill": {"role": "decode", "replica": 4}}]}, "actions.0.replica", "4"),
        ({"actions": [{"at_s": 1, "slow_engine": {"pool": "decode", "factor": 2, "for_s": 1}}]}, "actions.0", "vLLM"),
        ({"deployment": {"config": "local-vllm.yaml"}, "actions": [STALL]}, "actions.0.fault", "emulated"),
        ({"actions": [{"at_s": 1, "fault": {"kind": "slow", "pool": "decode", "for_s": 5}}]}, "actions.0.factor", ""),
        ({"shown": {"all": ["speed"]}}, "shown.all.metric", "goodput_fraction"),
        ({"checks": [{"metric": "ttft_p99_s", "variant": "no", "at_most": 1}]}, "checks.0.variant", WITHOUT),
        ({"checks": [{"metric": "ttft_p99_s", "against": "no", "at_most": 1}]}, "checks.0.against", WITHOUT),
        (
            {"checks": [{"metric": "ttft_p99_s", "variant": WITH, "against": WITH, "at_most": 1}]},
            "checks.0.against",
            "another variant",
        ),
        (
            {"checks": [{"metric": "ttft_p99_s", "variant": f"{WITH}, simulated", "at_most": 1}]},
            "checks.0.variant",
            WITHOUT,
        ),
        (
            {
                "simulated": SIMULATED,
                "checks": [{"metric": "hedges", "variant": f"{WITH}, simulated", "at_most": 1}],
            },
            "checks.0.metric",
            "that the simulator has",
        ),
        ({"checks": [{"metric": "ttft_p99_s", "simulated": True, "at_most": 1}]}, "checks.0.simulated", "simulated"),
        (
            {
                "simulated": SIMULATED,
                "checks": [{"metric": "ttft_p99_s", "simulated": True, "against": WITH, "at_most": 1}],
            },
            "checks.0.simulated",
            "without 'against'",
        ),
        (
            {
                "simulated": SIMULATED,
                "checks": [{"metric": "ttft_p99_s", "simulated": True, "class": "nobody", "at_most": 1}],
            },
            "checks.0.class",
            "document",
        ),
        (
            {
                "variants": {WITHOUT: {}, WITH: {"workload": {"classes": [CHAT]}}},
                "checks": [{"metric": "ttft_p99_s", "class": "document", "against": WITH, "at_most": 1}],
            },
            "checks.0.class",
            "chat",
        ),
        ({"checks": [{"metric": "ttft_p99_s"}]}, "checks.0.at_most", "at_most, at_least or both"),
        ({"name": "other"}, "name", "the file's name"),
    ],
)
def test_what_is_wrong_is_refused_with_its_field(
    changes: dict[str, Any], field: str, allowed: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as raised:
        study(tmp_path, **changes)

    assert field in raised.value.field
    assert "small.yaml" in raised.value.field
    assert allowed in raised.value.allowed


def test_a_study_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(ConfigError, match="overload"):
        load("nowhere")


@for_each(
    ("args", "patch", "merged"),
    [
        ({"a": {"b": 1, "c": 2}}, {"a": {"c": 3}}, {"a": {"b": 1, "c": 3}}),
        ({"lanes": {"lanes": []}, "a": 1}, {"lanes": None}, {"a": 1}),
        ({"pools": [1, 2]}, {"pools": [3]}, {"pools": [3]}),
        ({"hedging": {"name": "a", "params": {"x": 1}}}, {"hedging": {"name": "b"}}, {"hedging": {"name": "b"}}),
        ({"hedging": "a"}, {"hedging": {"name": "b"}}, {"hedging": {"name": "b"}}),
        ({}, {"engine": {"emulation": {"speed": 2}}}, {"engine": {"emulation": {"speed": 2}}}),
    ],
    ids=["key by key", "taken away", "a list anew", "a policy anew", "a name", "what was not there"],
)
def test_what_is_laid_over_a_configuration(args: Any, patch: Any, merged: Any) -> None:
    assert laid_over(args, patch) == merged


def test_a_variant_is_laid_over_the_deployment_and_that_over_the_file(tmp_path: Path) -> None:
    deployment = {"config": "emulated.yaml", "args": {"policies": {"balancing": "random"}, "gateway": {"replicas": 2}}}
    found = study(tmp_path, deployment=deployment)
    of_each = {name: found.document(name)["applications"][0]["args"] for name in found.variants}

    assert [of_each[name]["policies"]["balancing"] for name in (WITHOUT, WITH)] == ["random", "power_of_two"]
    assert of_each[WITH]["gateway"] == {"num_cpus": 0.5, "replicas": 2}


def test_another_length_moves_windows_and_actions_along(tmp_path: Path) -> None:
    windows = {"before": {"from_s": 0, "until_s": 27}, "after": {"from_s": 27, "until_s": 60}}
    found = study(tmp_path, duration_s=60, warm_up_s=5, windows=windows, actions=[KILL | {"at_s": 27}])
    found = found.measured_for(5.0)

    assert found.duration_s == 10
    assert [each.at_s for each in found.actions] == pytest.approx([7.0])
    assert (found.windows["before"].from_s, found.windows["after"].until_s) == (0, 10)
    with pytest.raises(ConfigError, match="--seconds"):
        found.measured_for(0)


def rate_of(found: Study, load_: float, from_s: float, until_s: float) -> float:
    arrivals = run_plan(found, WITH, load_, 100.0, 1).clients().arrivals()
    turns = 4 if found.workload_of(WITH).classes[0].sessions else 1
    return turns * sum(from_s <= each.at_s < until_s for each in arrivals) / (until_s - from_s)


SESSIONS = {"turns": {"constant": {"num_turns": 4}}, "think": {"constant": {"duration_s": 1}}}


@for_each(
    "classes",
    [[CHAT], [CHAT | GAMMA], [CHAT | {"sessions": SESSIONS}], [CHAT, CHAT | {"name": "document"}]],
    ids=["one class", "bursts", "conversations", "two classes"],
)
def test_a_load_is_a_share_of_the_capacity_with_every_turn_counted(classes: list[Any], tmp_path: Path) -> None:
    slos = {each["name"]: {"ttft_s": 1} for each in classes}
    alike = study(tmp_path, workload={"classes": classes}, slos=slos)
    of_its_own = study(tmp_path, variants={WITHOUT: {}, WITH: {"workload": {"classes": classes}}})

    assert rate_of(alike, 2.0, 0.0, 60.0) == pytest.approx(200.0, rel=0.1)
    assert rate_of(of_its_own, 2.0, 0.0, 60.0) == pytest.approx(200.0, rel=0.1)


def test_the_runs_of_a_variant_with_users_of_its_own_know_no_others(tmp_path: Path) -> None:
    found = study(tmp_path, variants={WITHOUT: {}, WITH: {"workload": {"classes": [CHAT | GAMMA]}}})
    plans = [run_plan(found, name, 1.0, 10.0, 1).scenario for name in (WITHOUT, WITH)]

    assert [plan.workload.class_names for plan in plans] == [("chat", "document"), ("chat",)]
    assert [set(plan.slos) for plan in plans] == [{"chat", "document"}, {"chat"}]


def test_a_flood_has_neither_bursts_nor_think_times(tmp_path: Path) -> None:
    agents = {"steps": {"constant": {"num_turns": 3}}, "calls": {"constant": {"num_turns": 2}}}
    classes = [CHAT | GAMMA | {"sessions": SESSIONS}]
    classes.append(CHAT | GAMMA | {"name": "document", "agents": agents | {"tools": {"constant": {"duration_s": 5}}}})
    found = study(tmp_path, variants={WITHOUT: {}, WITH: {"workload": {"classes": classes}}})
    users, working = steady_plan(found, WITH, 50.0, 4.0, "flood", drain_s=0.0).scenario.workload.classes

    for each in (users, working):
        assert isinstance(each.arrivals, Poisson)
        assert each.arrivals.rate_per_s == pytest.approx(50.0 / (4 + 5))
    assert users.sessions is not None
    assert users.sessions.think == ConstantThink(duration_s=0.0)
    assert working.agents is not None
    assert working.agents.tools == ConstantThink(duration_s=0.0)


def test_a_check_of_the_simulator_is_one_for_each_variant_that_has_the_users(tmp_path: Path) -> None:
    check = {"metric": "ttft_p50_s", "class": "document", "simulated": True, "at_least": 0.9, "at_most": 1.1}
    variants = {WITHOUT: {}, WITH: {}, "chats": {"workload": {"classes": [CHAT]}}}
    found = study(tmp_path, variants=variants, simulated=SIMULATED, checks=[check])

    assert [(each.variant, each.against) for each in found.single_checks] == [
        (f"{name}, simulated", name) for name in (WITHOUT, WITH)
    ]


def test_the_usual_load_comes_before_the_one_that_is_tried(tmp_path: Path) -> None:
    found = study(tmp_path, usual={"load": 0.5, "for_s": 30})

    assert rate_of(found, 2.0, 0.0, 30.0) == pytest.approx(50.0, rel=0.15)
    assert rate_of(found, 2.0, 30.0, 60.0) == pytest.approx(200.0, rel=0.1)


def test_runs_share_no_text_and_runs_of_one_seed_have_the_same_plan(tmp_path: Path) -> None:
    found = study(tmp_path, seeds=[1, 2], loads=[1, 2])
    plans = [run_plan(found, name, each, 10.0, seed) for name in (WITH, WITHOUT) for each in (1, 2) for seed in (1, 2)]

    assert len({plan.salt for plan in plans}) == len(plans)
    assert {plan.scenario.name for plan in plans} == {"small-1x", "small-2x"}
    one, other = (list(plans[index].clients().arrivals()) for index in (0, 4))
    assert one == other


def test_a_variants_clients_ask_again_and_those_of_a_flood_never_do(tmp_path: Path) -> None:
    found = study(tmp_path, variants={WITHOUT: {}, WITH: {"clients": {"max_requests": 3}}})
    plans = [run_plan(found, name, 1.0, 10.0, 1) for name in (WITHOUT, WITH)]
    flood = steady_plan(found, WITH, 50.0, 4.0, "flood", drain_s=0.0)

    assert [plan.scenario.clients.max_requests for plan in plans] == [1, 3]
    assert (flood.scenario.clients.max_requests, flood.until_s) == (1, 4.0)
