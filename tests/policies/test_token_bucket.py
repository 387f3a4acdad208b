from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies import Admit, Reason, Reject
from policies.admission import TokenBucket
from tests.policies.admission_cases import broke_off, comes, completed, hosted, sized, started
from tests.policy_doubles import FakeBacklog
from tests.tables import for_each


def bucket(**params: object) -> Any:
    return hosted(TokenBucket(**params))  # type: ignore[arg-type]


def num_let_in(policy: Any, now_s: float, *, cost_s: float = 0.5, tenant: str = "") -> int:
    """How many come in at once."""
    requests = (sized(f"{tenant}{now_s}.{index}", prefill_s=cost_s, tenant=tenant) for index in range(1000))
    return next(index for index, request in enumerate(requests) if not comes(policy, request, now_s))


def test_a_tenant_has_its_burst_at_once_and_then_its_rate() -> None:
    policy = bucket(rate_per_s=1.0, burst_s=2.0)
    assert num_let_in(policy, 0.0) == 4
    assert num_let_in(policy, 0.4) == 0
    assert num_let_in(policy, 1.0) == 2
    assert num_let_in(policy, 100.0) == 4


def test_a_refusal_says_when_there_is_enough_again() -> None:
    policy = bucket(rate_per_s=0.5, burst_s=2.0)
    assert comes(policy, sized(prefill_s=0.8), 0.0)

    verdict = policy.decide(sized(prefill_s=0.6), FakeBacklog(), 0.4)

    assert isinstance(verdict, Reject)
    assert verdict.reason is Reason.QUOTA_EXCEEDED
    assert verdict.retry_after_s == pytest.approx(0.4)
    assert comes(policy, sized("later", prefill_s=0.6), 0.4 + verdict.retry_after_s)


def test_one_that_costs_more_than_the_burst_comes_in_when_the_bucket_is_full_and_is_paid_off() -> None:
    policy = bucket(rate_per_s=1.0, burst_s=2.0)
    assert comes(policy, sized("long", prefill_s=5.0), 0.0)
    assert num_let_in(policy, 3.4) == 0
    assert num_let_in(policy, 3.5) == 1


@for_each(("reserve", "reserved_s"), [("expected", 1.0), ("high", 2.0), ("most", 8.0)])
def test_the_answer_is_paid_for_in_advance_and_settled_when_it_has_ended(reserve: str, reserved_s: float) -> None:
    request = sized(prefill_s=0.5, decode_s=1.0, output_tokens=50, high_tokens=100)
    under_way, ended = (bucket(rate_per_s=0.001, burst_s=20_000.0, reserve=reserve) for _ in range(2))
    for policy in (under_way, ended):
        assert comes(policy, request, 0.0)
        policy.observe(started(request))
    ended.observe(completed(request, 0.0, output_tokens=75))

    assert num_let_in(under_way, 0.0) == 2 * (20.0 - 0.5 - reserved_s)
    assert num_let_in(ended, 0.0) == 2 * (20.0 - 0.5 - 1.5)


def test_an_answer_that_is_longer_than_expected_is_charged() -> None:
    policy = bucket(rate_per_s=1.0, burst_s=2.0, reserve="expected")
    request = sized(prefill_s=0.0, decode_s=0.5, output_tokens=50)
    assert comes(policy, request, 0.0)

    policy.observe(completed(request, 0.0, output_tokens=350))

    assert num_let_in(policy, 1.9) == 0
    assert num_let_in(policy, 2.0) == 1


@for_each("has_started", [True, False])
def test_who_never_started_gets_all_back_and_who_broke_off_nothing(has_started: bool) -> None:
    policy = bucket(rate_per_s=1.0, burst_s=2.0)
    request = sized(prefill_s=2.0, decode_s=0.0)
    assert comes(policy, request, 0.0)
    if has_started:
        policy.observe(started(request))
    policy.observe(broke_off(request, 0.0))

    assert num_let_in(policy, 0.0) == (0 if has_started else 4)


def test_what_comes_back_does_not_overfill_the_bucket() -> None:
    policy = bucket(rate_per_s=1.0, burst_s=2.0)
    request = sized(prefill_s=2.0)
    assert comes(policy, request, 0.0)
    policy.observe(broke_off(request, 50.0))
    assert num_let_in(policy, 50.0) == 4


def test_nothing_is_reserved_for_a_request_that_another_policy_refuses() -> None:
    policy = bucket(rate_per_s=1.0, burst_s=2.0)
    assert policy.decide(sized(prefill_s=2.0), FakeBacklog(), 0.0) == Admit()
    policy.observe(completed(sized("unknown"), 0.0))
    assert num_let_in(policy, 0.0) == 4


def test_tokens_are_those_that_are_computed_and_generated() -> None:
    policy = bucket(unit="tokens", rate_per_s=90.0, burst_s=2.0)
    request = sized(prefill_s=0.0, high_tokens=100)

    assert comes(policy, request, 0.0)
    assert not comes(policy, sized("q2"), 0.0)
    policy.observe(completed(request, 0.0, output_tokens=10))  # 80 + 10 of the 180 are used
    assert not comes(policy, sized("q2"), 0.9)
    assert comes(policy, sized("q2"), 1.0)


def test_tenants_do_not_feel_each_other_and_may_have_rates_of_their_own() -> None:
    policy = bucket(rate_per_s=1.0, burst_s=2.0, tenants={"big": {"rate_per_s": 10.0}, "calm": {"burst_s": 1.0}})
    counts = [num_let_in(policy, 0.0, tenant=tenant) for tenant in ("one", "big", "calm", "two", "one")]
    assert counts == [4, 40, 2, 4, 0]


def test_no_more_buckets_are_kept_than_allowed_and_newcomers_share_one() -> None:
    policy = bucket(rate_per_s=1.0, burst_s=2.0, max_tenants=2, tenants={"named": {}})
    for tenant in ("a", "b"):
        assert num_let_in(policy, 0.0, tenant=tenant) == 4

    assert [num_let_in(policy, 0.0, tenant=f"made-up-{index}") for index in range(50)] == [4] + [0] * 49
    assert num_let_in(policy, 0.0, tenant="named") == 4
    assert len(policy._others) == 2


def test_a_bucket_that_is_full_again_makes_room_for_a_newcomer() -> None:
    policy = bucket(rate_per_s=1.0, burst_s=2.0, max_tenants=1)
    assert num_let_in(policy, 0.0, tenant="a") == 4

    assert num_let_in(policy, 2.0, tenant="b") == 4

    assert list(policy._others) == ["b"]
    assert num_let_in(policy, 2.0, tenant="c") == 4
    assert num_let_in(policy, 2.0, tenant="a") == 0


def test_of_two_buckets_that_are_full_again_the_one_that_was_used_last_is_kept() -> None:
    policy = bucket(rate_per_s=1.0, burst_s=2.0, max_tenants=2)
    for tenant, now_s in (("a", 0.0), ("b", 0.0), ("a", 2.0), ("c", 10.0)):
        assert num_let_in(policy, now_s, tenant=tenant) == 4
    assert list(policy._others) == ["a", "c"]


def let_in_at(policy: Any, gaps_s: list[float], costs_s: list[float]) -> Iterator[tuple[float, float]]:
    """When and with which cost requests came in."""
    for index, (now_s, cost_s) in enumerate(zip(accumulate(gaps_s), costs_s, strict=False)):
        if comes(policy, sized(f"q{index}", prefill_s=cost_s), now_s):
            yield now_s, cost_s


@given(
    rate=st.floats(0.1, 10.0),
    burst_s=st.floats(0.1, 10.0),
    gaps_s=st.lists(st.floats(0.0, 2.0), min_size=1, max_size=40),
    costs_s=st.lists(st.floats(0.001, 20.0), min_size=40, max_size=40),
)
def test_no_window_has_more_work_than_the_rate_and_the_burst(
    rate: float, burst_s: float, gaps_s: list[float], costs_s: list[float]
) -> None:
    """Of requests that are no larger than the burst; a larger one counts for the burst and is alone in its window."""
    policy = bucket(rate_per_s=rate, burst_s=burst_s)
    burst = rate * burst_s

    came = list(let_in_at(policy, gaps_s, [min(each, burst) for each in costs_s]))

    for first in range(len(came)):
        for last in range(first, len(came)):
            work_s = sum(cost_s for _, cost_s in came[first : last + 1])
            assert work_s <= rate * (came[last][0] - came[first][0]) + burst + 1e-6 * burst
