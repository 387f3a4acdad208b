import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.sim.faults import Fault
from engines.faults import FaultKind
from loadtests.results.slo import ClassSlo
from loadtests.scenario.scenario import Scenario, load
from loadtests.workloads.arrivals import Gamma, Poisson
from policies import Quota, Role, TenantTerms
from policies.errors import ConfigError
from tests.tables import for_each

EXAMPLE = Path(__file__).parents[1] / "scenarios" / "two-classes.yaml"
DOCUMENT = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
MISSING = object()
Read = Callable[[object], Scenario]


def put(path: str, value: object) -> dict[str, Any]:
    """The example with another value at a dotted path; ``MISSING`` takes it away."""
    document: dict[str, Any] = copy.deepcopy(DOCUMENT)
    *way, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    place: Any = document
    for part in way:
        place = place[part] if isinstance(part, int) else place.setdefault(part, {})
    if value is MISSING:
        del place[last]
    else:
        place[last] = value
    return document


@pytest.fixture
def read(tmp_path: Path) -> Callable[[object], Scenario]:
    def write_and_load(document: object) -> Scenario:
        path = tmp_path / "two-classes.yaml"
        path.write_text(document if isinstance(document, str) else yaml.safe_dump(document), encoding="utf-8")
        return load(str(path))

    return write_and_load


def test_a_scenario_becomes_what_the_simulator_takes() -> None:
    scenario = load(str(EXAMPLE))

    fleet = scenario.fleet_spec()
    assert (fleet.num_gateways, fleet.pools[0].replicas, fleet.pools[0].limits.max_num_batched_tokens) == (2, 8, 4096)
    assert scenario.dispatcher_spec("policy").policies.balancing.name == "least_work_left"
    assert scenario.dispatcher_spec("policy").params.max_attempts == 3
    assert scenario.faults == (Fault(kind=FaultKind.SLOW, at_s=100, for_s=60, role=Role.UNIFIED, replica=0, factor=10),)
    assert scenario.slos["documents"] == ClassSlo(ttft_s=1, ttft_s_per_1k_prompt_tokens=0.5)
    assert scenario.workload.classes[0].arrivals == Poisson(rate_per_s=8)
    assert scenario.workload.classes[1].arrivals == Gamma(rate_per_s=0.5, cv=3)
    assert scenario.clients.max_requests == 2
    assert (scenario.window.from_s, scenario.window.until_s) == (30, 300)
    assert scenario.seeds == (1, 2, 3, 4, 5)


def test_a_baseline_is_the_policies_with_its_own_changes() -> None:
    scenario = load(str(EXAMPLE))

    assert list(scenario.variants) == ["policy", "random", "p2c"]
    assert scenario.variants["p2c"].balancing.name == "power_of_two"
    assert scenario.variants["p2c"].planning.name == "always_unified"


EIGHT_OTHERS = [{"role": "prefill", "replicas": 3}, {"role": "decode", "replicas": 5, "whole_requests": True}]


def test_a_baseline_can_have_pools_of_its_own(read: Callable[[object], Scenario]) -> None:
    document = put("baselines.p2c", {"planning": "conditional", "pools": EIGHT_OTHERS})
    del document["faults"]

    scenario = read(document)

    assert scenario.fleet_spec().roles_by_pool == {"unified": Role.UNIFIED}
    assert scenario.fleet_spec("p2c").roles_by_pool == {"prefill": Role.PREFILL, "decode": Role.DECODE}
    assert scenario.fleet_spec("p2c").num_gateways == scenario.fleet_spec().num_gateways == 2
    spec = scenario.dispatcher_spec("p2c")
    assert (set(spec.pools), spec.whole_request_pools) == ({"prefill", "decode"}, ("decode",))
    assert spec.policies == scenario.dispatcher_spec("policy").policies


@for_each(
    ("baseline", "field", "allowed"),
    [
        (
            {
                "planning": "always_disaggregated",
                "pools": [{**EIGHT_OTHERS[0], "replicas": 4}, EIGHT_OTHERS[1]],
            },
            "baselines.p2c.pools",
            "8 replicas in all, as the scenario's own fleet has",
        ),
        ({"pools": EIGHT_OTHERS[:1]}, "baselines.p2c.fleet.pools", "prefill and decode, both or neither"),
        (
            {"planning": "always_disaggregated", "pools": EIGHT_OTHERS},
            "baselines.p2c.faults.0.role",
            "one of ['decode', 'prefill']",
        ),
    ],
    ids=["more_replicas", "half_a_fleet", "a_fault_that_hits_nobody"],
)
def test_a_baselines_pools_must_be_fair_and_whole(
    read: Callable[[object], Scenario], baseline: object, field: str, allowed: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        read(put("baselines.p2c", baseline))

    assert caught.value.field.endswith(f": {field}")
    assert caught.value.allowed == allowed


def test_tenants_of_a_scenario_reach_the_policies(read: Callable[[object], Scenario]) -> None:
    quota = {"work_per_s": 0.5, "burst_s": 2}
    document = put("workload.classes.0.tenant", "shop") | {"tenants": {"shop": {"weight": 2, "quota": quota}}}
    document["policies"] |= {"admission": "token_bucket"}

    spec = read(document).dispatcher_spec("policy")

    assert spec.tenants == {"shop": TenantTerms(weight=2.0, quota=Quota(work_per_s=0.5, burst_s=2.0))}
    assert spec.num_gateways == 2


def test_a_scenario_survives_the_way_into_another_process() -> None:
    scenario = load(str(EXAMPLE))

    assert pickle.loads(pickle.dumps(scenario)) == scenario


WRONG: dict[str, list[object]] = yaml.safe_load("""
{version: [2], name: [Two Classes], description: [''], profile: [abacus], speed: [7], fleet.speed: [7],
  fleet.num_gateways: [0], fleet.report_period_s: [0.0], fleet.network_delay_s: [-0.1], fleet.pools.0.speed: [7],
  fleet.pools.0.role: [spare], fleet.pools.0.replicas: [0], fleet.pools.0.max_num_batched_tokens: [127],
  fleet.pools.0.kv_capacity_tokens: [15], dispatcher.max_attempts: [1], dispatcher.speed: [7], policies.speed: [7],
  policies.balancing: [telepathy], policies.planning: [always_disaggregated], baselines.p2c.speed: [7],
  tenants.shop.weight: [0], tenants.shop.quota: [7], tenants.shop.speed: [7], workload.speed: [7],
  workload.classes.0.speed: [7], workload.classes.0.arrivals: [{poison: {}}],
  workload.classes.0.arrivals.poisson.rate_per_s: [0.0], workload.classes.0.arrivals.poisson.cv: [2],
  workload.classes.0.output_tokens.log_normal.sigma: [-1.0],
  workload.classes.1.prompt_tokens.mixture.parts.0.weight: [0.0],
  workload.classes.1.prompt_tokens.mixture.parts.0.tokens.uniform.least_tokens: [0],
  workload.classes.1.sessions.turns.geometric.mean_turns: [1.0], workload.classes.1.sessions.speed: [7],
  workload.classes.0.timeout_s: [0.0], duration_s: [0], warm_up_s: [-1, 300.0], clients.max_tries: [0],
  clients.speed: [7], faults.0.kind: [tired], faults.0.role: [prefill], faults.0.replica: [8],
  faults.0.at_s: [300.0], faults.0.factor: [1.0], slos.chat.ttft_s: [0.0], slos.chat.speed: [7],
  seeds: [[], [1, 2, 1]], checks.0.metric: [speed], checks.0.class: [nobody], checks.0.against: [nothing],
  checks.0.speed: [7]}
""")


@for_each(("path", "values"), WRONG.items())
def test_a_wrong_value_is_refused_with_file_field_and_what_is_allowed(
    read: Callable[[object], Scenario], path: str, values: list[object]
) -> None:
    for value in values:
        with pytest.raises(ConfigError) as caught:
            read(put(path, value))

        file, _, field = caught.value.field.partition(": ")
        assert file.endswith("two-classes.yaml")
        assert (field, caught.value.value) == (path, value)
        assert caught.value.allowed


def test_a_wrong_seed_is_refused_by_its_place(read: Callable[[object], Scenario]) -> None:
    with pytest.raises(ConfigError, match=r"seeds\.0: got -1"):
        read(put("seeds", [-1]))


@for_each(
    ("path", "value", "field"),
    [
        ("slos.documents", MISSING, "slos"),
        ("checks.0", {"metric": "left_open_requests", "at_most": 0}, "checks.0.metric"),
        ("slos.nobody", {"ttft_s": 1}, "slos"),
        ("slos.chat", {}, "slos.chat"),
        ("tenants", {"nobody": {"weight": 2}}, "tenants"),
        ("workload.classes", [], "workload.classes"),
        ("workload.classes.1.name", "chat", "workload.classes"),
        ("workload.classes.1.name", "all", "workload.classes"),
        ("baselines.p2c", {}, "baselines.p2c"),
        ("baselines.policy", {"balancing": "random"}, "baselines"),
        ("baselines.p2c", {"balancing": "telepathy"}, "baselines.p2c.policies.balancing"),
        ("fleet.pools", [], "fleet.pools"),
        ("fleet.pools", [{"role": "prefill", "replicas": 1}], "fleet.pools"),
        ("fleet.pools", [{"role": "unified", "replicas": 1}] * 2, "fleet.pools"),
        ("checks.0.at_most", MISSING, "checks.0.at_most"),
        ("workload.classes.0.prompt_tokens", "a-table", "workload.classes.0.prompt_tokens.table"),
        ("workload.classes.0.prompt_tokens", 0, "workload.classes.0.prompt_tokens.constant.num_tokens"),
        ("workload.classes.0.timeout_s", MISSING, "workload.classes.0.timeout_s"),
        ("warm_up_s", MISSING, "warm_up_s"),
        ("name", "three-classes", "name"),
    ],
)
def test_what_does_not_fit_together_is_refused_where_it_stands(
    read: Callable[[object], Scenario], path: str, value: object, field: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        read(put(path, value))

    assert caught.value.field.partition(": ")[2].startswith(field)


@for_each("text", ["", "- 1", "a: [", "\0"], ids=["empty", "a list", "broken", "binary"])
def test_a_file_that_is_no_scenario_is_refused_by_name(read: Callable[[object], Scenario], text: str) -> None:
    with pytest.raises(ConfigError, match=r"two-classes\.yaml"):
        read(text)


def test_a_trace_and_a_profile_lie_beside_the_file(read: Callable[[object], Scenario], tmp_path: Path) -> None:
    trace = {"name": "replay", "path": "azure.csv", "schema": "azure", "timeout_s": 60}
    document = put("workload.traces", [trace])
    document["slos"]["replay"] = {"e2e_s": 60}
    profile = Path("engines/profiles/h100-llama3-8b.yaml").read_text(encoding="utf-8")
    (tmp_path / "own.yaml").write_text(profile, encoding="utf-8")

    scenario = read({**document, "profile": "own.yaml"})

    assert scenario.workload.class_names == ("chat", "documents", "replay")
    assert scenario.workload.traces[0].path == str(tmp_path / "azure.csv")
    assert scenario.profile == str(tmp_path / "own.yaml")


@for_each("name", ["no-such-scenario", "no/such/file.yaml"])
def test_a_scenario_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="a name in the library"):
        load(name)


def test_a_copy_with_changes_is_checked_again() -> None:
    scenario = load(str(EXAMPLE))

    assert scenario.changed(duration_s=150.0).window.until_s == 150
    with pytest.raises(ConfigError, match="warm_up_s"):
        scenario.changed(duration_s=30.0)


def test_a_key_that_stands_twice_is_refused(read: Callable[[object], Scenario]) -> None:
    with pytest.raises(ConfigError, match=r"duration_s.* stands twice"):
        read(EXAMPLE.read_text(encoding="utf-8") + "\nduration_s: 20\n")


def test_a_replica_cannot_fail_in_the_same_way_twice_at_once(read: Callable[[object], Scenario]) -> None:
    first = {"kind": "crash", "at_s": 50, "for_s": 30, "role": "unified", "replica": 1}

    with pytest.raises(ConfigError, match=r"faults\.1\.at_s: got 70"):
        read(put("faults", [first, {**first, "at_s": 70}]))

    assert len(read(put("faults", [first, {**first, "at_s": 80}])).faults) == 2


EPISODES = {"kind": "slow", "role": "unified", "share_of_time": 0.05, "for_s": 2, "factor": 10}


def test_episodes_are_faults_that_depend_on_the_seed_and_not_on_the_policy(read: Read) -> None:
    scenario = read(put("episodes", [{**EPISODES, "kind": "stall", "factor": 1}]))

    faults = scenario.all_faults("policy", 1)

    assert set(scenario.faults) < set(faults)
    assert scenario.all_faults("p2c", 1) == faults != scenario.all_faults("policy", 2)
    assert {fault.replica for fault in faults if fault.kind is FaultKind.STALL} == set(range(8))


@for_each(
    ("changes", "field"),
    [
        ({"role": "decode"}, "episodes.0.role"),
        ({"share_of_time": 1}, "episodes.0.share_of_time"),
        ({}, "episodes.0.kind"),
    ],
)
def test_episodes_that_do_not_fit_are_refused(read: Read, changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(put("episodes", [{**EPISODES, **changes}]))

    assert refused.value.field.endswith(field)
