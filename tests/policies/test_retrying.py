"""Which lost requests are tried again, and when."""

from dataclasses import replace
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from policies.attempt_views import LostAttempt
from policies.decisions import AGAIN_AT_ONCE, Again, GiveUp, Reason, RetryDecision
from policies.estimators.work_budget import WorkBudget
from policies.retrying import AtOnce, Backoff, NeverRetry
from policies.signals import Started
from policies.views import Geometry
from tests.policy_doubles import a_request


def lost(num_retries: int = 0, *, tokens: int = 100) -> LostAttempt:
    return LostAttempt(reason=Reason.REPLICA_LOST, num_retries=num_retries, prefill_tokens=tokens)


def after(tokens: int, at_s: float = 0.0) -> WorkBudget:
    """A budget of so much ordinary work."""
    budget = WorkBudget()
    budget.observe(Started(request=replace(a_request(), geometry=Geometry(uncached_tokens=tokens)), at_s=at_s))
    return budget


def backoff(budget: WorkBudget | None = None, **params: Any) -> Backoff:
    return Backoff(rng=Random(1), budget=budget or after(1_000_000), **params)


def ask(policy: Backoff, attempt: LostAttempt | None = None, now_s: float = 0.0) -> RetryDecision:
    return policy.decide(a_request(), attempt or lost(), now_s)


def test_retrying_that_is_off_leaves_it_to_the_client() -> None:
    assert NeverRetry().decide(a_request(), lost(), 0.0) == GiveUp(may_retry=True)


def test_at_once_is_at_once_however_often() -> None:
    assert AtOnce().decide(a_request(), lost(99), 0.0) == AGAIN_AT_ONCE


def test_each_wait_is_longer_than_the_one_before_up_to_the_longest() -> None:
    policy = backoff(max_retries=6, first_s=0.2, factor=2.0, longest_s=1.0, jitter_fraction=0.0)
    waits_s = [ask(policy, lost(number)) for number in range(5)]
    assert waits_s == [Again(after_s=each) for each in (0.2, 0.4, 0.8, 1.0, 1.0)]


@given(seed=st.integers(0, 1_000), jitter_fraction=st.floats(0.0, 1.0))
def test_the_wait_is_longer_or_shorter_by_no_more_than_the_jitter(seed: int, jitter_fraction: float) -> None:
    policy = Backoff(rng=Random(seed), budget=after(1_000_000), first_s=0.2, jitter_fraction=jitter_fraction)
    decision = ask(policy)
    assert isinstance(decision, Again)
    assert abs(decision.after_s - 0.2) <= 0.2 * jitter_fraction + 1e-12


def test_those_that_were_lost_together_come_back_apart() -> None:
    policy = backoff()
    assert len({ask(policy) for _ in range(20)}) == 20


def test_a_request_that_has_had_its_tries_is_not_to_come_back() -> None:
    """It may be what its replicas die of; three tries of its client would be nine here."""
    policy = backoff(max_retries=2)
    assert isinstance(ask(policy, lost(1)), Again)
    assert ask(policy, lost(2)) == GiveUp(may_retry=False)


def test_retries_stay_within_their_share_of_the_work() -> None:
    policy = backoff(after(10_000), floor_per_s=0.0, budget_fraction=0.1)
    decisions = [ask(policy, lost(tokens=100)) for _ in range(20)]
    assert sum(isinstance(each, Again) for each in decisions) == 10
    assert decisions[-1] == GiveUp(may_retry=True), "there may be room for it by then"


def test_what_was_hedged_is_not_there_for_retries() -> None:
    budget = after(10_000)
    assert budget.spend(1_000, 0.1, 0.0)
    assert ask(backoff(budget, floor_per_s=0.0)) == GiveUp(may_retry=True)


def test_a_decode_that_pulls_the_same_blocks_again_costs_nothing() -> None:
    budget = WorkBudget()
    budget.charge(1_000, 0.0)
    policy = backoff(budget, floor_per_s=0.0)
    assert isinstance(ask(policy, lost(tokens=0)), Again), "however much has been done twice"


def test_a_quiet_fleet_may_lose_a_replica() -> None:
    """Where next to nothing was done there is no budget; so many retries a second are free, over the last minute."""
    policy = backoff(WorkBudget(), floor_per_s=0.5)
    decisions = [ask(policy) for _ in range(40)]
    assert sum(isinstance(each, Again) for each in decisions) == 30
    assert isinstance(ask(policy, now_s=60.0), Again), "and later there are more"
