"""What the simulator makes of a deployment, and how the hop between client and engine gets into it."""

from dataclasses import replace

import msgspec
import pytest

from cluster.scaled_pools import Autoscaling
from cluster.sim.run_table import RunTable
from cluster.sim.traffic import Traffic
from engines.model.speculation import Drafts
from loadtests.live.counterpart import Counterpart, dispatcher_of, fleet_of
from loadtests.live.hop import CLASS_NAMES, Probes, hop_of
from loadtests.machine.gateway_overhead import GatewayOverhead
from routing.config.spec import DispatcherParams
from tests.cluster.simulated import PROFILE
from tests.tables import for_each

ONE_POOL = {"applications": [{"args": {"pools": [{"role": "unified"}], "policies": {"planning": "always_unified"}}}]}


@for_each(("cpu_s", "of_the_hop_s"), [(0.003, 0.003), (0.020, 0.007), (0.0, 0.0)])
def test_processor_time_and_delays_of_a_small_request_are_its_hop_together(cpu_s: float, of_the_hop_s: float) -> None:
    spec = fleet_of(ONE_POOL, PROFILE, 0.007, GatewayOverhead(cpu_s, 0.0004))

    assert spec.gateway_request_s == of_the_hop_s
    assert spec.gateway_request_s + spec.ingress_delay_s + 2 * spec.network_delay_s == pytest.approx(0.007)
    assert spec.gateway_chunk_s == 0.0004


def test_its_dispatcher_has_the_limits_of_the_deployments_gateways() -> None:
    gateway = {"replicas": 2, "prefill_window_tokens": 4096, "load_coordinator": True}
    its = {**ONE_POOL["applications"][0]["args"], "gateway": gateway}
    document = {"applications": [{"args": its}]}
    spec = dispatcher_of(document, fleet_of(document, PROFILE, 0.0))

    assert spec.params == DispatcherParams(prefill_window_tokens=4096)
    assert (spec.num_gateways, spec.has_load_coordinator) == (2, True)


def test_its_engines_make_their_steps_as_the_deployments_engines_do() -> None:
    drafts = {"method": "eagle3", "num_speculative_tokens": 2}
    both = {"scheduling_policy": "priority", "long_prefill_token_threshold": 512, "speculative_config": drafts}
    pools = [{"role": "unified", "engine_args": {"long_prefill_token_threshold": 256}}]
    its = {**ONE_POOL["applications"][0]["args"], "engine": {"args": both}, "pools": pools}
    profile = msgspec.structs.replace(PROFILE, drafts=Drafts(accepted_fraction=0.5))
    (pool,) = fleet_of({"applications": [{"args": its}]}, profile, 0.0).pools

    assert pool.speculation.num_speculative_tokens == 2
    assert (pool.limits.priority_scheduling, pool.limits.long_prefill_token_threshold) == (True, 256)


def test_its_pools_change_their_sizes_as_the_deployments_do() -> None:
    pools = [{"role": "unified", "autoscaling": {"max_replicas": 6}, "start_s": 7.5}]
    its = {**ONE_POOL["applications"][0]["args"], "pools": pools, "scaling_period_s": 3}
    spec = fleet_of({"applications": [{"args": its}]}, PROFILE, 0.0)

    assert (spec.pools[0].autoscaling, spec.pools[0].starts_in_s) == (Autoscaling(min_replicas=1, max_replicas=6), 7.5)
    assert (spec.scaling_period_s, fleet_of(ONE_POOL, PROFILE, 0.0).pools[0].autoscaling) == (3, None)


def test_the_hop_is_what_the_quickest_series_takes_longer_than_the_engine() -> None:
    counterpart = Counterpart(document=ONE_POOL, profile=PROFILE)
    disturbed_s = iter((0.030, 0.0, 0.010))

    def send(traffic: Traffic) -> RunTable:
        return replace(counterpart, hop_s=0.020 + next(disturbed_s)).simulate(traffic, CLASS_NAMES)

    assert hop_of(counterpart, send) == pytest.approx(0.020)


def test_a_deployment_that_is_quicker_than_its_profile_has_no_hop() -> None:
    counterpart = Counterpart(document=ONE_POOL, profile=PROFILE)
    slower = replace(counterpart, hop_s=0.010)

    assert hop_of(slower, lambda traffic: counterpart.simulate(traffic, CLASS_NAMES)) == 0.0


@for_each(("at_a_time", "num_first"), [(1, 1), (4, 4)])
def test_probes_are_sent_so_many_at_a_time_until_all_have_been(at_a_time: int, num_first: int) -> None:
    counterpart = Counterpart(document=ONE_POOL, profile=PROFILE)
    table = counterpart.simulate(Probes(12, 3, at_a_time), CLASS_NAMES)

    assert len(table) == 12
    assert (table.scheduled_s == 0.0).sum() == num_first
    assert set(table.output_tokens.tolist()) == {3}
