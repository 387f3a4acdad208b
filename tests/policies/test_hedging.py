"""When a second attempt is due, where it goes, and when it is not worth it."""

import math
from dataclasses import replace
from typing import Any

import pytest

from policies.candidates import CandidateList
from policies.decisions import Reason
from policies.estimators import RecentQuantile
from policies.estimators.work_budget import WorkBudget
from policies.hedging import DualPath, FixedDelay, NoHedge, Percentile, Slowdown, Tied
from policies.signals import Failed, FirstToken, Started, Superseded
from policies.views import Geometry
from tests.policy_doubles import FakeAttempt, FakeFleet, FakeReplica, a_request

IDLE = FakeReplica(replica_id="idle")
BUSY = FakeReplica(replica_id="busy", prefill_tokens=5_000)
SICK = FakeReplica(replica_id="sick", prefill_tokens=1_000)


def an_attempt(number: int = 0, *, at_s: float = 0.0, expected_s: float = 0.1, tokens: int = 1_000) -> FakeAttempt:
    return FakeAttempt(
        replica=SICK, attempt_id=f"q{number}.0", sent_at_s=at_s, expected_s=expected_s, prefill_tokens=tokens
    )


def started(tokens: int, at_s: float) -> Started:
    return Started(request=replace(a_request(), geometry=Geometry(uncached_tokens=tokens)), at_s=at_s)


def a_budget() -> WorkBudget:
    """After 40 requests of 1,000 tokens within four seconds."""
    budget = WorkBudget()
    for number in range(40):
        budget.observe(started(1_000, 0.1 * number))
    return budget


def send(policy: Any, attempt: FakeAttempt, fleet: FakeFleet | None = None, lane: str = "") -> float:
    """When a second attempt is due; most of the fleet is idle."""
    fleet = fleet or FakeFleet(replicas=[SICK, *(FakeReplica(replica_id=f"idle{number}") for number in range(7))])
    delay_s: float = policy.delay_s(replace(a_request(), lane=lane), attempt, fleet, attempt.sent_at_s)
    return delay_s


def learn(policy: Any, took_s: float, expected_s: float = 0.1) -> float:
    """A hundred attempts that each took so long; returns when the last one was over."""
    for number in range(100):
        attempt = an_attempt(number, at_s=0.01 * number, expected_s=expected_s)
        send(policy, attempt)
        policy.observe(first_token(attempt, took_s))
    return 1.0 + took_s


def first_token(attempt: FakeAttempt, took_s: float) -> FirstToken:
    at_s = attempt.sent_at_s + took_s
    return FirstToken(request_id="q", attempt_id=attempt.attempt_id, replica_id="sick", latency_s=took_s, at_s=at_s)


def superseded(attempt: FakeAttempt, after_s: float) -> Superseded:
    at_s = attempt.sent_at_s + after_s
    return Superseded(request_id="q", attempt_id=attempt.attempt_id, replica_id="sick", at_s=at_s)


class TestWhen:
    def test_hedging_that_is_off_never_sends_a_second_attempt(self) -> None:
        assert send(NoHedge(), an_attempt()) == math.inf
        assert NoHedge().target(a_request(), an_attempt(), CandidateList([IDLE]), 1.0) is None

    def test_a_fixed_delay_is_the_same_for_everybody(self) -> None:
        policy = FixedDelay(budget=a_budget(), wait_s=0.7)
        assert send(policy, an_attempt(1, expected_s=0.01)) == send(policy, an_attempt(2, expected_s=5.0)) == 0.7

    def test_the_percentile_is_that_of_times_to_the_first_token_and_takes_a_long_prompt_for_a_sick_replica(
        self,
    ) -> None:
        policy = Percentile(budget=a_budget(), min_samples=20)
        assert send(policy, an_attempt()) == math.inf, "nothing is known yet"
        over_s = learn(policy, took_s=0.4)
        assert send(policy, an_attempt(100, at_s=over_s)) == pytest.approx(0.4)
        assert send(policy, an_attempt(101, at_s=over_s, expected_s=4.0)) == pytest.approx(0.4)

    def test_the_percentile_has_bounds(self) -> None:
        for bounds in ({"min_delay_s": 0.6}, {"max_delay_s": 0.3}):
            policy = Percentile(budget=a_budget(), min_samples=20, **bounds)
            over_s = learn(policy, took_s=0.4)
            assert [send(policy, an_attempt(100, at_s=over_s))] == list(bounds.values())

    def test_stretch_gives_a_long_prompt_its_time(self) -> None:
        policy = Slowdown(budget=a_budget(), min_samples=20)
        over_s = learn(policy, took_s=0.3, expected_s=0.1)
        assert send(policy, an_attempt(100, at_s=over_s, expected_s=0.1)) == pytest.approx(0.3)
        assert send(policy, an_attempt(101, at_s=over_s, expected_s=3.0)) == pytest.approx(9.0)

    def test_where_nearly_nobody_is_late_a_little_late_is_not_sick(self) -> None:
        policy = Slowdown(budget=a_budget(), min_samples=20, min_slowdown=2.0)
        over_s = learn(policy, took_s=0.101, expected_s=0.1)
        assert send(policy, an_attempt(100, at_s=over_s)) == pytest.approx(0.2)

    def test_what_was_beaten_counts_for_as_long_as_it_had_waited(self) -> None:
        """Else the more of a sick replica's requests are hedged, the healthier it looks."""
        policy = Slowdown(budget=a_budget(), quantile=0.9, min_samples=10, max_slowdown=100.0)
        for number in range(20):
            attempt = an_attempt(number, at_s=float(number))
            send(policy, attempt)
            policy.observe(superseded(attempt, 1.0) if number % 2 else first_token(attempt, 0.1))

        assert send(policy, an_attempt(20, at_s=20.0)) == pytest.approx(1.0)

    def test_no_more_than_max_stretch_is_taken_for_normal(self) -> None:
        policy = Slowdown(budget=a_budget(), min_samples=20, max_slowdown=4.0)
        over_s = learn(policy, took_s=2.0, expected_s=0.1)
        assert send(policy, an_attempt(100, at_s=over_s)) == pytest.approx(0.4)

    def test_what_failed_says_nothing_about_waiting(self) -> None:
        policy = Slowdown(budget=a_budget(), min_samples=1)
        attempt = an_attempt()
        send(policy, attempt)
        lost = Failed(request_id="q", attempt_id="q0.0", replica_id="sick", reason=Reason.REPLICA_LOST, at_s=9.0)

        policy.observe(lost)
        policy.observe(first_token(attempt, 1.0))

        assert send(policy, an_attempt(1, at_s=10.0)) == math.inf

    def test_lanes_are_learned_apart(self) -> None:
        policy = Slowdown(budget=a_budget(), min_samples=20)
        over_s = learn(policy, took_s=0.2)
        assert send(policy, an_attempt(100, at_s=over_s), lane="other") == math.inf

    def test_old_samples_are_forgotten(self) -> None:
        policy = Slowdown(budget=a_budget(), min_samples=20, window_s=60.0)
        learn(policy, took_s=0.2)
        assert send(policy, an_attempt(100, at_s=62.0)) == math.inf

    def test_two_at_once_for_those_that_are_expected_to_take_long(self) -> None:
        policy = DualPath(budget=a_budget(), threshold_s=0.5)
        assert send(policy, an_attempt(1, expected_s=0.4)) == math.inf
        assert send(policy, an_attempt(2, expected_s=0.5)) == 0.0

    def test_a_second_place_is_taken_at_once_where_there_is_somebody_to_wait_for(self) -> None:
        alone = FakeAttempt(replica=SICK, prefill_tokens=1_000)
        behind = FakeAttempt(replica=SICK, prefill_tokens=400)
        assert (send(Tied(), alone), send(Tied(), behind)) == (math.inf, 0.0)
        assert send(Tied(min_ahead_tokens=601), behind) == math.inf
        assert send(Tied(min_ahead_tokens=0), alone) == 0.0


class TestWhereAndWhether:
    def target(self, policy: Any, attempt: FakeAttempt, *replicas: FakeReplica, at_s: float = 1.0) -> object:
        return policy.target(a_request(), attempt, CandidateList(replicas), at_s)

    def ready(self, gap_s: float = 0.1, fleet: FakeFleet | None = None, **params: Any) -> FixedDelay:
        """A policy that has seen a few seconds of a fleet, an idle one by default, with ordinary work for a hedge."""
        policy = FixedDelay(budget=a_budget(), wait_s=0.1, **params)
        for number in range(40):
            send(policy, an_attempt(number, at_s=gap_s * number), fleet)
        return policy

    def test_a_hedge_goes_where_there_is_the_least_to_compute(self) -> None:
        full_of_kv = FakeReplica(replica_id="kv", kv_tokens=9_000)
        assert self.target(self.ready(), an_attempt(), BUSY, full_of_kv, at_s=4.0) is full_of_kv

    def test_a_hedge_that_would_have_more_to_wait_for_is_not_sent(self) -> None:
        assert self.target(self.ready(), an_attempt(at_s=3.5), BUSY, at_s=4.0) is None

    def test_one_that_has_waited_longer_than_it_would_take_there_goes_where_there_is_more_to_compute(self) -> None:
        """6,000 tokens there for 1,000 here, which were to take 0.1 s."""
        assert self.target(self.ready(), an_attempt(at_s=3.3), BUSY, at_s=4.0) is BUSY

    def test_nobody_is_hedged_while_most_replicas_are_busy(self) -> None:
        busy = FakeFleet(replicas=[SICK, *(FakeReplica(replica_id=f"b{n}", prefill_tokens=9) for n in range(7))])
        gated, ungated = self.ready(0.5, busy), self.ready(0.5, busy, max_busy_fraction=1.0)
        assert self.target(gated, an_attempt(), IDLE, at_s=20.0) is None
        assert self.target(ungated, an_attempt(), IDLE, at_s=20.0) is IDLE

    def test_an_attempt_does_not_count_itself_as_load(self) -> None:
        assert self.target(self.ready(0.5, max_busy_fraction=0.1), an_attempt(), IDLE, at_s=20.0) is IDLE

    def test_hedges_stay_within_their_share_of_the_work(self) -> None:
        policy = self.ready(budget_fraction=0.05)
        found = [self.target(policy, an_attempt(), IDLE, at_s=4.0) for _ in range(10)]
        assert found.count(IDLE) == 1, "of 40 equal requests, the first of which have begun to fade"

    def test_a_second_place_is_where_there_is_the_least_to_compute_however_much_that_is(self) -> None:
        assert self.target(Tied(), an_attempt(), BUSY, FakeReplica(replica_id="busier", prefill_tokens=5_001)) is BUSY


class TestWorkBudget:
    def test_where_nothing_is_done_nothing_is_done_twice(self) -> None:
        assert not WorkBudget().spend(1, 1.0, 0.0)

    def test_extra_work_is_a_fraction_of_the_ordinary_work_in_the_long_run(self) -> None:
        budget = WorkBudget(memory_s=10.0)
        spent = 0
        for second in range(1, 1_000):
            budget.observe(started(100, float(second)))
            while budget.spend(7, 0.1, float(second)):
                spent += 7

        assert spent == pytest.approx(0.1 * 100 * 1_000, rel=0.05)

    def test_what_was_saved_up_long_ago_is_gone(self) -> None:
        budget = WorkBudget(memory_s=10.0)
        budget.observe(started(1_000, 0.0))
        assert not budget.spend(10, 0.1, 100.0)
        assert budget.spend(10, 0.1, 1.0)

    def test_those_that_are_content_with_less_stop_first(self) -> None:
        budget = WorkBudget()
        budget.observe(started(1_000, 0.0))
        assert budget.spend(60, 0.1, 0.0), "of the 100 that it may bring the account up to"
        assert not budget.spend(1, 0.05, 0.0)
        assert budget.spend(40, 0.1, 0.0)

    def test_what_has_to_be_done_whatever_the_budget_counts_too(self) -> None:
        budget = WorkBudget()
        budget.observe(started(1_000, 0.0))
        budget.charge(200, 0.0)
        assert not budget.spend(1, 0.1, 0.0)


class TestRecentQuantile:
    def test_it_is_exact(self) -> None:
        quantile = RecentQuantile(0.95, window_s=60.0, min_samples=10)
        for value in range(100):
            quantile.add(float(value), 0.0)
        assert quantile.at(0.0) == 95.0

    def test_only_the_latest_count(self) -> None:
        quantile = RecentQuantile(0.5, window_s=60.0, min_samples=1, max_samples=3)
        for value in (9.0, 9.0, 9.0, 1.0, 1.0):
            quantile.add(value, 0.0)
        assert quantile.at(0.0) == 1.0
