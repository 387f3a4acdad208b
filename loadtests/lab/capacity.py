"""What a fleet can do of a workload: what it completes a second of a flood, in virtual time.

Users come at constant rates, or a flood of bursts would begin with a drought. The fleet is that of the scenario behind
one gateway, with ``least_work_left`` and nothing that lanes, admission,
shedding or a window could take away, so that one load means the same for all that is compared.
"""

from functools import cache
from pathlib import Path

from cluster.config.policies import PoliciesConfig
from cluster.seeds import Seeds
from cluster.sim.simulator import simulate
from loadtests.lab.run_cache import RunCache
from loadtests.results.analysis import completions_per_s
from loadtests.scenario.scenario import POLICY, Scenario
from loadtests.workloads.clients import Clients
from policies.errors import ConfigError
from routing.config.spec import DispatcherParams

FLOOD_S = 20.0
"""Many times as long as an answer takes, or its beginning would count as part of what it is for."""
SETTLES = 0.4
"""Of the flood, after which completions count."""
MOST_DOUBLINGS = 16


def simulated_capacity_rps(scenario: Scenario, kept_in: Path | None = None) -> float:
    """Requests a second that the scenario's fleet completes at the most.

    Args:
        scenario: The scenario.
        kept_in: A folder for what was found; ``None``: it is known for as long as this process lives.

    Raises:
        ConfigError: However many come, as many are completed: there is nothing that could be full.
    """
    plain = scenario.changed(
        workload=scenario.workload.steady(scenario.duration_s),
        fleet=scenario.fleet.model_copy(update={"num_gateways": 1}),
        dispatcher=DispatcherParams(),
        policies=PoliciesConfig(planning=scenario.policies.planning),
        baselines={},
        checks=(),
        tenants={},
        faults=(),
        episodes=(),
        load_coordinator_outages=(),
        windows={},
    )
    flooded = _Flooded(plain)
    if kept_in is None:
        return _capacity_rps(flooded)
    cache, key = RunCache(kept_in, plain), f"capacity of {flooded.text} after {FLOOD_S:g} s"
    kept = cache.get(key)
    if kept is not None:
        return float(kept)
    found = _capacity_rps(flooded)
    cache.put(key, repr(found).encode())
    return found


class _Flooded:
    """A scenario as a key of a cache: scenarios that are written alike have one capacity."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.text = repr((scenario.profile, scenario.fleet, scenario.policies, scenario.workload, scenario.duration_s))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Flooded) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)


@cache
def _capacity_rps(flooded: _Flooded) -> float:
    scenario = flooded.scenario
    own_rps = scenario.workload.requests_per_s(FLOOD_S)
    for doubling in range(MOST_DOUBLINGS):
        factor = 2.0**doubling
        completed_rps = _completed_rps(scenario, factor)
        if completed_rps <= factor * own_rps / 2:
            return completed_rps
    raise ConfigError("load", factor * own_rps, "a share of a capacity; this fleet completes whatever comes")


def _completed_rps(scenario: Scenario, factor: float) -> float:
    """Of the scenario's users, so many times as many."""
    workload = scenario.workload.scaled(factor).build(FLOOD_S)
    table = simulate(
        scenario.fleet_spec(),
        scenario.dispatcher_spec(POLICY),
        Clients(workload, Seeds(0)),
        workload.class_names,
        seed=0,
        until_s=FLOOD_S,
    )
    return completions_per_s(table, SETTLES * FLOOD_S, FLOOD_S)
