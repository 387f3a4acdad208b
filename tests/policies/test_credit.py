from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies import Admit, ConfigError, RequestView, Wait
from policies.admission import Credit
from policies.signals import Ended, Started
from tests.policies.admission_cases import hosted
from tests.policy_doubles import FakeBacklog, a_request


def request(request_id: str = "q", kv_tokens: int = 400) -> RequestView:
    return replace(a_request(request_id), prompt_tokens=kv_tokens - 50, max_output_tokens=50)


def start(policy: Any, each: RequestView) -> None:
    policy.decide(each, POOL, 0.0)
    policy.observe(Started(request=each, at_s=0.0))


def end(policy: Any, each: RequestView) -> None:
    policy.observe(Ended(request=each, is_completed=True, output_tokens=50, at_s=1.0))


POOL = FakeBacklog(kv_capacity_tokens=1000)


def test_everybody_comes_in() -> None:
    policy = hosted(Credit(overcommit=0.001))
    assert isinstance(policy.decide(request(), POOL, 0.0), Admit)


def test_a_request_waits_until_there_is_credit_for_its_whole_answer() -> None:
    policy = hosted(Credit(overcommit=1.0))
    start(policy, request("a"))
    start(policy, request("b"))
    assert policy.start(request("c"), POOL, 0.0) == Wait()
    assert policy.start(request("d", 200), POOL, 0.0) == Admit()

    end(policy, request("a"))

    assert policy.start(request("c"), POOL, 0.0) == Admit()


def test_more_credit_is_given_than_there_is_kv_because_some_lies_idle() -> None:
    policy = hosted(Credit(overcommit=1.2))
    start(policy, request("a"))
    start(policy, request("b"))
    assert policy.start(request("c"), POOL, 0.0) == Admit()


def test_each_gateway_deals_in_its_own_share() -> None:
    policy = hosted(Credit(overcommit=1.0, num_gateways=2))
    start(policy, request("a"))
    assert policy.start(request("b"), POOL, 0.0) == Wait()


def test_a_request_that_is_larger_than_all_there_is_starts_when_nobody_else_holds_any() -> None:
    policy = hosted(Credit(overcommit=1.0))
    assert policy.start(request("a", 5000), POOL, 0.0) == Admit()
    start(policy, request("a", 5000))
    assert policy.start(request("b", 100), POOL, 0.0) == Wait()


def test_a_request_that_ends_without_having_started_gives_nothing_back() -> None:
    policy = hosted(Credit(overcommit=1.0))
    start(policy, request("a", 900))
    end(policy, request("b", 900))
    assert policy.start(request("c"), POOL, 0.0) == Wait()


@given(st.lists(st.integers(60, 600), max_size=60), st.randoms())
def test_credit_that_is_out_never_exceeds_what_there_is(sizes: list[int], draw: Random) -> None:
    policy, out = hosted(Credit(overcommit=1.0)), dict[str, int]()
    for number, kv_tokens in enumerate(sizes):
        each = request(f"q{number}", kv_tokens)
        while policy.start(each, POOL, 0.0) == Wait():
            other = sorted(out)[draw.randrange(len(out))]
            end(policy, request(other, out.pop(other)))
        start(policy, each)
        out[each.request_id] = kv_tokens
        assert sum(out.values()) <= 1000


def test_parameters_out_of_range_are_refused() -> None:
    with pytest.raises(ConfigError, match="num_gateways"):
        Credit(num_gateways=0)
