"""What a tenant's clients may ask for, what is left of it, and what they are told when that is nothing."""

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from cluster.config.terms import LimitsConfig
from deployments.http.rate_limits import NO_ACCOUNT, RateLimits, TenantAccount, duration
from deployments.openai.errors import ApiError
from deployments.tenants.tenants import Tenant
from policies import Priority
from tests.deployments.gateway_in_process import gateway_in_process
from tests.tables import for_each

KEY = "sk-shop"
HEADERS = {"authorization": f"Bearer {KEY}"}
BODY = {"model": "tiny-llama", "prompt": [1, 2, 3, 4], "max_tokens": 2}


@dataclass
class Clock:
    time_s: float = 0.0

    def now_s(self) -> float:
        return self.time_s


def an_account(clock: Clock | None = None, num_gateways: int = 1, **limits: int) -> TenantAccount:
    return TenantAccount(LimitsConfig(**limits), num_gateways, (clock or Clock()).now_s)


def refusal_of(account: TenantAccount) -> ApiError:
    with pytest.raises(ApiError) as caught:
        account.check_in(0)
    assert (caught.value.status, caught.value.code) == (429, "rate_limit_exceeded")
    return caught.value


def test_requests_are_counted_and_come_back_with_time() -> None:
    clock = Clock()
    account = an_account(clock, requests_per_min=3)
    for _ in range(3):
        account.check_in(0)

    error = refusal_of(account)

    assert error.retry_after_s == pytest.approx(20.0)
    assert error.headers["x-ratelimit-limit-requests"] == "3"
    assert error.headers["x-ratelimit-remaining-requests"] == "0"
    assert error.headers["x-ratelimit-reset-requests"] == "1m0s"
    clock.time_s = 20.0
    account.check_in(0)


def test_a_prompts_tokens_are_taken_before_it_is_dispatched_and_those_of_the_answer_when_it_has_ended() -> None:
    clock = Clock()
    account = an_account(clock, tokens_per_min=600)
    account.check_in(0)
    usage = account.begin(100)
    assert usage.headers["x-ratelimit-remaining-tokens"] == "500"

    usage.end(output_tokens=700)

    assert refusal_of(account).retry_after_s == pytest.approx(20.1)
    clock.time_s = 20.1
    account.check_in(0)


def test_a_prompt_that_is_longer_than_what_is_left_is_refused_and_one_longer_than_all_waits_for_all() -> None:
    account = an_account(tokens_per_min=100)
    account.begin(60)
    with pytest.raises(ApiError, match="100 tokens a minute"):
        account.begin(60)

    clock = Clock()
    account = an_account(clock, tokens_per_min=100)
    account.begin(500)
    clock.time_s = 239.9
    refusal_of(account)
    clock.time_s = 241.0
    account.check_in(0)


def test_bytes_that_were_not_declared_are_counted_when_they_are_read() -> None:
    account = an_account(bytes_per_min=1_000)
    account.check_in(0)
    account.take_bytes(1_000)
    assert "bytes a minute" in refusal_of(account).message


def test_bytes_that_were_declared_are_counted_before_they_come() -> None:
    clock = Clock()
    account = an_account(clock, bytes_per_min=1_200)
    account.check_in(800)
    with pytest.raises(ApiError, match="bytes a minute") as caught:
        account.check_in(800)
    assert caught.value.retry_after_s == pytest.approx(20.0)
    account.check_in(400)
    clock.time_s = 60.0
    account.check_in(5_000)
    assert refusal_of(account).retry_after_s == pytest.approx(190.05)


def test_no_more_requests_are_under_way_at_a_time() -> None:
    account = an_account(concurrent_requests=1)
    account.check_in(0)
    account.has_come()
    usage = account.begin(10)
    assert refusal_of(account).retry_after_s == 1.0

    usage.end(output_tokens=1)

    account.check_in(0)


def test_those_that_were_read_at_the_same_time_are_counted_when_they_are_dispatched() -> None:
    account = an_account(concurrent_requests=2)
    for _ in range(5):
        account.check_in(0)
        account.has_come()
    usages = [account.begin(1) for _ in range(2)]
    with pytest.raises(ApiError, match="2 requests at a time"):
        account.begin(1)

    for usage in (*usages, *usages):
        usage.end(output_tokens=1)

    account.begin(1)
    account.begin(1)
    with pytest.raises(ApiError):
        account.begin(1)


def test_each_gateway_has_its_part_and_one_request_at_a_time_at_least() -> None:
    account = an_account(num_gateways=4, requests_per_min=8, concurrent_requests=2)
    account.check_in(0)
    assert "2 requests at a time" in refusal_of(account).message, "its body still comes"
    account.has_come()
    account.begin(1)
    assert "2 requests at a time" in refusal_of(account).message
    account.end(1)
    account.check_in(0)
    assert "2 requests a minute at this gateway" in refusal_of(account).message


def test_an_account_is_the_tenants_until_its_limits_or_the_gateways_change() -> None:
    limits = RateLimits(Clock().now_s)
    shop = Tenant(name="shop", max_priority=Priority.STANDARD, limits=LimitsConfig(requests_per_min=1))
    other = Tenant(name="shop", max_priority=Priority.STANDARD, limits=LimitsConfig(requests_per_min=2))
    account = limits.account_of(shop, 1)
    assert limits.account_of(shop, 1) is account
    assert limits.account_of(shop, 2) is not account
    assert limits.account_of(other, 2) is not limits.account_of(shop, 2)
    assert limits.account_of(Tenant(name="free", max_priority=Priority.STANDARD), 1) is NO_ACCOUNT


@given(pauses_s=st.lists(st.floats(0, 30), max_size=60), most=st.integers(1, 20))
def test_in_no_minute_more_come_in_than_twice_the_limit_and_over_long_no_more_than_that(
    pauses_s: list[float], most: int
) -> None:
    clock, times_s = Clock(), list[float]()
    account = an_account(clock, requests_per_min=most)
    for pause_s in pauses_s:
        clock.time_s += pause_s
        try:
            account.check_in(0)
        except ApiError:
            continue
        times_s.append(clock.time_s)

    for begin_s in times_s:
        assert sum(begin_s <= each < begin_s + 60.0 for each in times_s) <= 2 * most
    assert len(times_s) <= most + most * clock.time_s / 60.0 + 1e-6


@for_each(
    ("seconds", "said"),
    [
        (0.0, "0ms"),
        (0.0201, "21ms"),
        (1.0, "1s"),
        (1.25, "1.25s"),
        (59.999, "1m0s"),
        (60.0, "1m0s"),
        (0.9999, "1s"),
        (360.5, "6m0.5s"),
    ],
)
def test_durations_are_written_as_openai_writes_them(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def tenants_file(tmp_path: Path, **entry: Any) -> str:
    file = tmp_path / "tenants.yaml"
    key_hash = f"sha256:{sha256(KEY.encode()).hexdigest()}"
    file.write_text(yaml.safe_dump({"tenants": [{"name": "shop", "keys": [key_hash], **entry}]}))
    return str(file)


@pytest.fixture(params=[False, True], ids=["plain", "hot"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[httpx.Client]:
    tenants = tenants_file(tmp_path, limits={"requests_per_min": 3, "tokens_per_min": 1_000, "bytes_per_min": 10_000})
    with gateway_in_process(is_hot=request.param, tenants=tenants) as client:
        yield client


def test_answers_say_what_is_left_and_refusals_when_to_come_back(shop: httpx.Client) -> None:
    answers = [shop.post("/v1/completions", json=BODY, headers=HEADERS) for _ in range(4)]

    assert [each.status_code for each in answers] == [200, 200, 200, 429]
    left = [each.headers["x-ratelimit-remaining-requests"] for each in answers]
    assert left == ["2", "1", "0", "0"]
    tokens = [int(each.headers["x-ratelimit-remaining-tokens"]) for each in answers]
    assert tokens[0] == 996
    assert tokens[1] <= 996 - 4 - 2 + 1, "a thousand tokens a minute come back while it runs"
    assert answers[-1].json()["error"]["code"] == "rate_limit_exceeded"
    assert int(answers[-1].headers["retry-after"]) <= 20


def test_chunked_bodies_count_whatever_they_are(shop: httpx.Client) -> None:
    """They don't say how long they are, and this one is no JSON."""
    first, second = (shop.post("/v1/completions", content=iter([b"no" * 3_000] * 2), headers=HEADERS) for _ in range(2))
    assert (first.status_code, second.status_code) == (400, 429)
    assert "bytes a minute" in second.json()["error"]["message"]


def test_streams_say_it_too(shop: httpx.Client) -> None:
    with shop.stream("POST", "/v1/completions", json={**BODY, "stream": True}, headers=HEADERS) as answer:
        assert answer.headers["x-ratelimit-remaining-requests"] == "2"
        answer.read()


def test_work_that_reaches_no_engine_counts(shop: httpx.Client) -> None:
    assert shop.post("/v1/completions", content=b"{", headers=HEADERS).status_code == 400
    assert shop.post("/tokenize", json={"prompt": "Hello"}, headers=HEADERS).status_code == 200
    assert shop.post("/v1/completions", json={**BODY, "model": "none"}, headers=HEADERS).status_code == 404
    assert shop.post("/tokenize", json={"prompt": "Hello"}, headers=HEADERS).status_code == 429


def test_requests_without_a_key_cost_nobody_anything(shop: httpx.Client) -> None:
    for _ in range(5):
        assert shop.post("/v1/completions", json=BODY).status_code == 401
    assert shop.post("/v1/completions", json=BODY, headers=HEADERS).status_code == 200


def test_what_is_too_much_for_a_minute_comes_in_once_and_nothing_after_it(shop: httpx.Client) -> None:
    first = shop.post("/v1/completions", json={**BODY, "prompt": "a " * 6_000}, headers=HEADERS)
    assert (first.status_code, first.headers["x-ratelimit-remaining-tokens"]) == (200, "0")

    again = shop.post("/v1/completions", json=BODY, headers=HEADERS)

    assert again.status_code == 429
    assert int(again.headers["retry-after"]) > 300
