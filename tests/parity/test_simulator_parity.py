"""Each gateway of a simulation replays by itself, from the seed and its number."""

from collections.abc import Sequence
from dataclasses import replace

from cluster import GatewayStreams, LogHeader
from cluster.event_log.frames import CLOSED
from cluster.event_log.replay import ReplayResult, replay
from cluster.sim.faults import Fault
from cluster.sim.simulator import simulate
from engines.faults import FaultKind
from policies import CATALOG, Role
from routing import PLANNERS, AttemptFailed, Effect, Event
from tests.cluster.logged import LogInMemory
from tests.cluster.simulated import dispatcher, fleet, poisson
from tests.tables import for_each

NUM_GATEWAYS = 3
SEED = 11


@for_each("balancing", sorted(CATALOG["balancing"]))
@for_each("planner", sorted(PLANNERS))
def test_a_simulation_with_crashes_replays_gateway_by_gateway(balancing: str, planner: str) -> None:
    is_disaggregated = planner != "always_unified"
    spec = fleet(4, is_disaggregated=is_disaggregated, num_gateways=NUM_GATEWAYS)
    if planner == "conditional":
        prefill, decode = spec.pools
        spec = replace(spec, pools=(prefill, replace(decode, whole_requests=True)))
    made_from = dispatcher(spec, balancing, planner)
    logs = [
        LogInMemory(
            LogHeader(
                gateway=str(rank), streams=GatewayStreams(seed=SEED, prefix=f"gateway.{rank}."), dispatcher=made_from
            )
        )
        for rank in range(NUM_GATEWAYS)
    ]

    def listen(gateway: int, now_s: float, event: Event, effects: Sequence[Effect]) -> None:
        logs[gateway].on_event(now_s, event, effects)

    role = Role.DECODE if is_disaggregated else Role.UNIFIED
    crash = Fault(kind=FaultKind.CRASH, at_s=2.0, for_s=3.0, role=role, replica=1)

    simulate(
        spec,
        made_from,
        poisson(400, rate_per_s=40.0, seed=1),
        ["all"],
        seed=SEED,
        faults=[crash],
        on_event=listen,
    )

    for log in logs:
        assert replay(log.file()) == ReplayResult(num_records=len(log.events), end_reason=CLOSED)
    events = [event for log in logs for event in log.events]
    assert len(events) > 1000
    assert any(isinstance(each, AttemptFailed) for each in events)
