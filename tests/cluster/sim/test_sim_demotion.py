"""Answers that exceed_lane_length their lanes in virtual time."""

from collections.abc import Sequence

from cluster.sim.simulator import simulate
from cluster.sim.topology import FleetSpec, PoolSpec
from policies import PolicyChoice, RequestView, Role
from routing import Demotion, DispatcherSpec, Effect, Event, LaneLengthExceeded, Record
from routing.config.spec import LanesSpec
from routing.lanes.lanes import Lane, TokenRange
from routing.sizing.length_prediction import OutputEstimate
from tests.cluster.simulated import PROFILE, PlainTraffic, request

LANES = (
    Lane(name="quick", output_tokens=TokenRange(0, 100), pools=("prefill", "quick")),
    Lane(name="slow", output_tokens=TokenRange(100), pools=("prefill", "slow")),
)


class AlwaysFifty:
    """Fifty tokens are expected of everybody."""

    wants_ngrams = None

    def predict(self, request: RequestView) -> OutputEstimate:
        return OutputEstimate(50, 50)

    def observe(self, request: RequestView, output_tokens: int) -> None: ...


def test_gateways_hear_of_long_answers_with_the_replicas_next_report() -> None:
    pools = tuple(
        PoolSpec(name=name, role=role, replicas=1, profile=PROFILE, limits=PROFILE.limits())
        for name, role in (("prefill", Role.PREFILL), ("quick", Role.DECODE), ("slow", Role.DECODE))
    )
    fleet = FleetSpec(pools=pools, report_period_s=0.5)
    spec = DispatcherSpec(
        planner=PolicyChoice(name="always_disaggregated"),
        pools=fleet.roles_by_pool,
        lanes=LanesSpec(lanes=LANES),
        length_prediction=PolicyChoice(name=f"{__name__}:AlwaysFifty"),
    )
    traffic = PlainTraffic(
        [request(0, 0.0, output_tokens=30), request(1, 0.0, output_tokens=2000, max_output_tokens=3000)]
    )
    told: list[tuple[float, LaneLengthExceeded, Sequence[Effect]]] = []

    def listen(gateway: int, now_s: float, event: Event, effects: Sequence[Effect]) -> None:
        if isinstance(event, LaneLengthExceeded):
            told.append((now_s, event, effects))

    table = simulate(fleet, spec, traffic, ["all"], seed=1, on_event=listen)

    ((at_s, event, effects),) = told
    assert event.attempt_id == "r1.1"
    assert 100 <= event.output_tokens < 2000, "before the end"
    assert 0.0 < at_s < table.end_s.max()
    decisions = [each.decision for each in effects if isinstance(each, Record)]
    assert [each.to_lane for each in decisions if isinstance(each, Demotion)] == ["slow"]
    assert sorted(table.output_tokens.tolist()) == [30, 2000], "nothing was cut short"
