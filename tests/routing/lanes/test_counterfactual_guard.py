import math
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies import ConfigError, PolicyChoice, Role
from policies.queueing.edf import Edf
from policies.queueing.fcfs import Fcfs
from policies.views import Geometry, RequestView
from routing.config.catalog import build_guard
from routing.fleet.fleet import Fleet
from routing.lanes.counterfactual import CounterfactualGuard
from routing.lanes.guard import LaneGuard
from routing.lanes.lanes import ONE_LANE, Lane, TokenRange, one_lane
from routing.lanes.queue_model import NewQueue, QueueModel
from tests.policy_doubles import a_request, replica_info
from tests.tables import for_each

POOLS = {"short": Role.UNIFIED, "long": Role.UNIFIED}
LANES = (
    Lane(name="short", prompt_tokens=TokenRange(0, 1000), pools=("short",)),
    Lane(name="long", prompt_tokens=TokenRange(1000), pools=("long",)),
)


def a_model(lanes: Sequence[Lane], new_queue: NewQueue = lambda stage: Fcfs(), **settings: Any) -> QueueModel:
    """One replica in each of two pools, which is given a prompt at a time unless it is said otherwise."""
    model = QueueModel(lanes, POOLS, new_queue=new_queue, **{"prefill_window_tokens": 1, **settings})
    for pool in POOLS:
        model.follow(pool, [pool])
    return model


def a_prompt(work_s: float, *, arrival_s: float = 0.0, request_id: str = "q", slo_s: float = 60.0) -> RequestView:
    return a_request(
        request_id,
        prompt_tokens=max(1, round(work_s * 10_000)),
        arrival_s=arrival_s,
        deadline_s=arrival_s + 100.0,
        first_token_by_s=arrival_s + slo_s,
        geometry=Geometry(uncached_tokens=max(1, round(work_s * 10_000)), prefill_s=work_s),
    )


def ttfts_s(model: QueueModel, prompts: Sequence[RequestView], lane: str) -> list[float]:
    """Times to first token as the model finds them, in the order in which it finds them; all have an SLO of 60 s."""
    costs = [each for prompt in prompts for each in model.arrive(prompt, lane, Role.UNIFIED, prompt.arrival_s)]
    costs += model.arrive(a_prompt(60.0, arrival_s=1e6, request_id="end"), lane, Role.UNIFIED, 1e6)
    return [60.0 * math.sqrt(each) for each in costs[:-1]]


def three_of_two_seconds() -> list[RequestView]:
    """Prompts that arrive one after the other and take two seconds each."""
    return [a_prompt(2.0, arrival_s=0.1 * number, request_id=f"{number}") for number in range(3)]


def test_prompts_wait_for_a_replica_of_their_lane() -> None:
    in_lane = ttfts_s(a_model(LANES), three_of_two_seconds(), "short")
    in_pool = ttfts_s(a_model(one_lane(POOLS)), three_of_two_seconds(), ONE_LANE)

    assert in_lane == pytest.approx([2.0, 3.9, 5.8])
    assert in_pool == pytest.approx([2.0, 2.0, 3.8])


def test_without_a_window_a_prompt_waits_where_it_was_sent() -> None:
    prompts = [a_prompt(2.0), a_prompt(1.0, request_id="1"), a_prompt(0.5, arrival_s=0.1, request_id="2")]
    costs = ttfts_s(a_model(one_lane(POOLS), prefill_window_tokens=0), prompts, ONE_LANE)

    assert costs == pytest.approx([2.0, 1.0, 1.4]), "behind the shorter one"


def test_queues_of_the_model_are_in_the_order_of_their_policy() -> None:
    model = a_model(LANES, new_queue=lambda stage: Edf(stage=stage), refuses_late=False)
    late, soon = a_prompt(2.0, request_id="late"), a_prompt(2.0, request_id="soon", slo_s=10.0)

    first, second, third = ttfts_s(model, [a_prompt(2.0), late, soon], "short")

    assert (first, third) == pytest.approx((2.0, 6.0))
    assert second == pytest.approx(60.0 * 4.0 / 10.0), "of its own SLO, so much has passed"


def test_a_prompt_that_can_not_be_in_time_is_late_and_given_up_where_it_is_refused() -> None:
    prompts = [a_prompt(2.0), a_prompt(2.0, request_id="hopeless", slo_s=3.0), a_prompt(2.0, request_id="next")]

    assert ttfts_s(a_model(LANES), prompts, "short") == pytest.approx([2.0, 60.0, 4.0])
    assert ttfts_s(a_model(LANES, refuses_late=False), prompts, "short") == pytest.approx([2.0, 60.0, 6.0])


def test_a_request_that_waits_is_in_the_account_as_soon_as_it_is_late() -> None:
    model = a_model(LANES, refuses_late=False)
    for prompt in (a_prompt(50.0), a_prompt(2.0, request_id="waits", slo_s=3.0)):
        list(model.arrive(prompt, "short", Role.UNIFIED, 0.0))

    def costs(at_s: float) -> list[float]:
        return list(model.arrive(a_prompt(1.0, arrival_s=at_s, request_id=f"{at_s}"), "short", Role.UNIFIED, at_s))

    assert costs(2.9) == []
    assert costs(3.1) == [1.0]
    assert len(costs(51.0)) == 0, "it begins, and is counted already"


def test_those_that_wait_for_a_replica_that_has_gone_wait_for_another() -> None:
    model = a_model(LANES)
    for name in ("under way", "waits"):
        list(model.arrive(a_prompt(2.0, request_id=name), "short", Role.UNIFIED, 0.0))

    model.follow("short", [])
    new = a_prompt(2.0, arrival_s=3.0, request_id="new")
    assert list(model.arrive(new, "short", Role.UNIFIED, 3.0)) == [1.0], "there is none to wait for"
    model.follow("short", ["another"])
    assert len(list(model.arrive(a_prompt(2.0, arrival_s=4.0, request_id="newer"), "short", Role.UNIFIED, 4.0))) == 1


@given(
    st.lists(st.tuples(st.floats(0, 2), st.floats(0.01, 3)), max_size=30),
    st.sampled_from([LANES, one_lane(POOLS)]),
    st.sampled_from([0, 1, 20_000]),
)
def test_every_prompt_gets_one_first_token_no_sooner_than_it_can(
    arrivals: list[tuple[float, float]], lanes: Sequence[Lane], window_tokens: int
) -> None:
    now_s, prompts = 0.0, []
    for number, (gap_s, work_s) in enumerate(arrivals):
        now_s += gap_s
        prompts.append(a_prompt(work_s, arrival_s=now_s, request_id=f"{number}"))

    found = ttfts_s(a_model(lanes, prefill_window_tokens=window_tokens, refuses_late=False), prompts, lanes[0].name)

    assert len(found) == len(prompts)
    assert sum(found) >= sum(min(60.0, each.geometry.prefill_s) for each in prompts) - 1e-6


class Guarded:
    """A guard over two pools of two replicas each, and requests that arrive."""

    def __init__(self, num_gateways: int = 1, **params: int) -> None:
        laned, pooled = (QueueModel(lanes, POOLS, new_queue=lambda _: Fcfs()) for lanes in (LANES, one_lane(POOLS)))
        self.guard = CounterfactualGuard(laned=laned, pooled=pooled, num_gateways=num_gateways, **params)
        self.fleet = Fleet()
        for pool in POOLS:
            replicas = [replica_info(f"{pool}-{number}", pool=pool) for number in (1, 2)]
            self.fleet.replace(pool, Role.UNIFIED, replicas)
        self.now_s = 0.0
        self._ids: Iterator[int] = count()

    def goes_on(self, *, short_every_s: float, eight_long_every_s: float, for_s: float) -> bool:
        """Whether lanes are on after a while with short prompts of 20 ms and long ones of a second, eight at once."""
        end_s, long_s = self.now_s + for_s, self.now_s + eight_long_every_s
        while self.now_s < end_s:
            self.now_s += short_every_s
            self.arrives("short")
            if self.now_s >= long_s:
                long_s += eight_long_every_s
                for _ in range(8):
                    self.arrives("long")
        return self.guard.are_on(Role.UNIFIED)

    def arrives(self, lane: str) -> None:
        prompt = a_prompt(1.0 if lane == "long" else 0.02, arrival_s=self.now_s, request_id=f"{next(self._ids)}")
        request = prompt.classified(prompt.geometry, lane, prompt.deadline_s)
        self.guard.look(request, Role.UNIFIED, LANES, self.fleet, self.now_s)


LONG_IN_THE_WAY = {"short_every_s": 0.05, "eight_long_every_s": 5.0}
"""Long ones take all replicas now and then, where they may."""
SHORT_LANE_TOO_SMALL = {"short_every_s": 0.0092, "eight_long_every_s": 500.0}
"""Short ones have more to do than two replicas can; four can."""


def test_lanes_that_keep_short_prompts_from_waiting_stay_on() -> None:
    guarded = Guarded()

    assert guarded.goes_on(**LONG_IN_THE_WAY, for_s=120)
    assert guarded.guard.gauges() == {"lanes_on": 1.0}


def test_lanes_whose_requests_would_do_better_in_one_pool_go_off_and_on_again_when_they_win_again() -> None:
    guarded = Guarded()

    assert not guarded.goes_on(**SHORT_LANE_TOO_SMALL, for_s=30)
    assert guarded.guard.gauges() == {"lanes_on": 0.0}
    assert guarded.guard.are_on(Role.DECODE)
    assert guarded.goes_on(**LONG_IN_THE_WAY, for_s=600)


def test_few_requests_say_nothing() -> None:
    assert Guarded(min_requests=1_000_000_000).goes_on(**SHORT_LANE_TOO_SMALL, for_s=30)


def test_each_of_several_gateways_reckons_with_the_requests_of_all() -> None:
    part = {"short_every_s": 4 * SHORT_LANE_TOO_SMALL["short_every_s"], "eight_long_every_s": 2000.0}

    assert Guarded().goes_on(**part, for_s=60), "alone it is a quarter of the load"
    assert not Guarded(num_gateways=4).goes_on(**part, for_s=60)


def test_a_request_in_a_fallback_lane_says_nothing_about_the_others() -> None:
    guarded = Guarded()
    for _ in range(500):
        guarded.arrives("fallback")

    assert guarded.guard.are_on(Role.UNIFIED)


@for_each("params", [{"memory_s": 0}, {"hysteresis": -0.1}, {"min_requests": 0}])
def test_parameters_out_of_range_are_refused(params: dict[str, float]) -> None:
    given_by_host = {name: lambda: a_model(LANES) for name in ("laned", "pooled")}

    with pytest.raises(ConfigError, match=r"lanes\.guard\.params"):
        build_guard(PolicyChoice(name="counterfactual", params=params), given_by_host)


def test_a_guard_of_ones_own_need_not_take_what_the_host_gives() -> None:
    guard: LaneGuard = build_guard(PolicyChoice(name="always_on"), {"laned": lambda: a_model(LANES)})

    assert guard.are_on(Role.UNIFIED)
