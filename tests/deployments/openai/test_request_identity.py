"""What a gateway makes of a request beside its prompt: whose it is, how much it matters, how long it may take."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from hashlib import sha256
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
import yaml
from fastapi import Request, Response
from hypothesis import example, given
from hypothesis import strategies as st
from ray.serve.handle import DeploymentHandle

from cluster.clock import unix_s
from cluster.latency_budget import LatencyBudget
from deployments.config import validated
from deployments.gateway.response_cache import CacheEntry
from deployments.gateway.service import OpenAIService
from deployments.http.rate_limits import NO_USAGE, NoUsage
from deployments.openai.errors import ApiError
from deployments.openai.identity import cache_salt_of, tenant_of, terms_of
from deployments.openai.requests import CompletionRequest
from deployments.tenants.tenants import ANYBODY, Tenant, Tenants
from deployments.wire.attempt_call import AnswerKeeping
from deployments.wire.fleet_registry import FleetRegistry
from engines.contract import EngineRequest
from policies import Priority, RequestView
from routing.prefixes.block_hashes import block_hashes
from tests.deployments.app_args import args
from tests.deployments.host_dialogue import Handle
from tests.tables import for_each

PROMPT = list(range(100))


class PoolHandle(Handle):
    """A pool's handle, as Serve hands it to a gateway."""

    def _init(self) -> None: ...


class Taken(Exception):
    """The host was given a request."""


Headers = dict[str, str] | list[tuple[str, str]]


def a_request(headers: Headers, **fields: Any) -> Request:
    body = msgspec.json.encode({"model": "tiny", "prompt": PROMPT, "max_tokens": 5, **fields})

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    named = headers.items() if isinstance(headers, dict) else headers
    raw = [(name.encode(), value.encode()) for name, value in named]
    return Request({"type": "http", "method": "POST", "path": "/v1/completions", "headers": raw}, receive)


@dataclass
class Intake:
    """A gateway's service, whose host only keeps what it is given."""

    service: OpenAIService
    given: list[tuple[RequestView, EngineRequest]] = field(default_factory=list)
    budgets: list[LatencyBudget] = field(default_factory=list)

    async def take(self, headers: Headers | None = None, **fields: Any) -> tuple[RequestView, EngineRequest]:
        with pytest.raises(Taken):
            await self.service.completions(a_request(headers or {}, **fields))
        return self.given[-1]

    async def refuse(self, headers: Headers | None = None, **fields: Any) -> ApiError:
        with pytest.raises(ApiError) as caught:
            await self.service.completions(a_request(headers or {}, **fields))
        assert not self.given
        return caught.value

    async def priority_of(self, headers: Headers | None = None, **fields: Any) -> Priority:
        view, _ = await self.take(headers, **fields)
        return view.priority

    async def seconds_of(self, headers: Headers | None = None, **fields: Any) -> float:
        view, _ = await self.take(headers, **fields)
        return view.deadline_s - view.arrival_s


def an_intake(
    monkeypatch: pytest.MonkeyPatch, *, tenants: list[dict[str, Any]] | None = None, **policies: Any
) -> Intake:
    """A service with a clock that stands still, a limit of 60 s and, when there are tenants, keys."""
    monkeypatch.setattr(
        "deployments.gateway.model_service.PromptTokenizer",
        lambda path: SimpleNamespace(vocabulary_tokens=1000, close=lambda: None),
    )
    monkeypatch.setattr("deployments.gateway.service.REGISTRY", FleetRegistry())
    place = "env:TENANTS_OF_THIS_TEST" if tenants else None
    if tenants:
        monkeypatch.setenv("TENANTS_OF_THIS_TEST", yaml.safe_dump({"tenants": tenants}))
    gateway = {"prefix_block_tokens": 32, "request_timeout_s": 60, "tenants": place}
    config = validated(args(gateway=gateway, policies={"planning": "always_unified", **policies}))
    service = OpenAIService((config,), {"unified": cast(DeploymentHandle, PoolHandle({}))}, "gw")
    model = service._models[0]
    monkeypatch.setattr(model, "_context_tokens", lambda: 4096)
    monkeypatch.setattr(model, "_clock", SimpleNamespace(now_s=lambda: 1000.0))
    monkeypatch.setattr(service, "_clock", SimpleNamespace(now_s=lambda: 1000.0))
    intake = Intake(service)

    def submit(
        view: RequestView,
        engine_request: EngineRequest,
        cache_entry: CacheEntry,
        budget: LatencyBudget,
        *,
        keeping: AnswerKeeping,
        usage: NoUsage,
    ) -> None:
        assert not keeping, "nobody has streamed"
        assert usage is NO_USAGE, "nobody has limits"
        assert not cache_entry.has_answer
        intake.budgets.append(budget)
        intake.given.append((view, engine_request))
        raise Taken

    monkeypatch.setattr(model.host, "submit", submit)
    return intake


Intakes = Callable[..., Intake]


@pytest.fixture
def intakes(monkeypatch: pytest.MonkeyPatch) -> Intakes:
    """Makes gateways' services."""
    return partial(an_intake, monkeypatch)


async def test_a_prompt_is_named_block_by_block_where_prefixes_are_tracked_and_nobody_pays_elsewhere(
    intakes: Intakes,
) -> None:
    tracked, _ = await intakes(prefixes="block_hash").take()
    plain, _ = await intakes().take()

    assert (tracked.prefix_blocks, tracked.prefix_block_tokens) == (block_hashes(PROMPT, 32), 32)
    assert len(tracked.prefix_blocks) == 3
    assert (plain.prefix_blocks, plain.prefix_block_tokens) == ((), 0)


@for_each(
    ("headers", "session_id", "tenant"),
    [
        ({}, "", ""),
        ({"x-session-id": "s" * 128, "x-tenant-id": "t"}, "s" * 128, "t"),
        ([("x-session-id", "s"), ("x-tenant-id", "t"), ("x-session-id", "s")], "s", "t"),
    ],
    ids=["without any", "both", "one of them twice, as it was"],
)
async def test_headers_name_the_session_and_the_tenant(
    intakes: Intakes, headers: Headers, session_id: str, tenant: str
) -> None:
    view, _ = await intakes().take(headers)
    assert (view.session_id, view.tenant) == (session_id, tenant)


TIMEOUT = "x-request-timeout-seconds"


@for_each(
    ("headers", "fields", "seconds"),
    [
        ({}, {}, 60.0),
        ({}, {"timeout": 5}, 5.0),
        ({}, {"timeout": 0.25}, 0.25),
        ({}, {"timeout": None}, 60.0),
        ({}, {"timeout": 600}, 60.0),
        ({TIMEOUT: "5"}, {}, 4.9),
        ({TIMEOUT: "0.5"}, {}, 0.45),
        ({TIMEOUT: "600.0"}, {}, 60.0),
        ({TIMEOUT: ""}, {}, 60.0),
        ({TIMEOUT: "5"}, {"timeout": 3}, 3.0),
        ({TIMEOUT: "5"}, {"timeout": 7}, 4.9),
    ],
)
async def test_the_shortest_of_header_field_and_configuration_is_the_deadline(
    intakes: Intakes, headers: Headers, fields: dict[str, Any], seconds: float
) -> None:
    assert await intakes().seconds_of(headers, **fields) == pytest.approx(seconds)


async def test_the_time_counts_from_when_the_headers_were_there(
    intakes: Intakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    intake = intakes()
    times = iter([1000.0, 1000.5, 1001.0, 1001.5, 1002.0])  # received, read, parsed, tokenized, submitted
    for each in (intake.service, intake.service._models[0]):
        monkeypatch.setattr(each, "_clock", SimpleNamespace(now_s=lambda: next(times)))
    view, _ = await intake.take(timeout=5)
    assert (view.arrival_s, view.deadline_s) == (1002.0, 1005.0)


DEADLINE = "x-request-deadline"


@for_each(
    "said",
    [
        lambda unix_s: f"{unix_s:.6f}",
        lambda unix_s: f"{datetime.fromtimestamp(unix_s, UTC):%Y-%m-%dT%H:%M:%S.%fZ}",
        lambda unix_s: datetime.fromtimestamp(unix_s, timezone(timedelta(hours=-8))).isoformat(),
    ],
    ids=["unix_seconds", "utc", "another_zone"],
)
async def test_a_time_of_day_can_be_the_deadline(intakes: Intakes, said: Callable[[float], str]) -> None:
    seconds = await intakes().seconds_of({DEADLINE: said(unix_s() + 20.0)})
    assert 19.0 < seconds <= 20.0


async def test_of_two_deadlines_the_sooner_one_counts(intakes: Intakes) -> None:
    later = {DEADLINE: str(unix_s() + 30.0)}
    assert await intakes().seconds_of({**later, TIMEOUT: "5"}) == pytest.approx(4.9)
    assert await intakes().seconds_of(later, timeout=7) == pytest.approx(7.0)


async def test_nothing_is_done_for_a_deadline_that_has_passed(intakes: Intakes) -> None:
    error = await intakes().refuse({DEADLINE: str(unix_s() - 5.0)})
    assert (error.status, error.code, error.param) == (504, "deadline_exceeded", DEADLINE)
    assert error.headers["x-should-retry"] == "false"


@for_each("said", ["tomorrow", "-1", "1e9", "nan", "2026-11-27", "2026-11-27T10:00:00", "9" * 12, "99999999999", "²"])
async def test_a_deadline_that_is_none_or_too_far_ahead_is_refused(intakes: Intakes, said: str) -> None:
    error = await intakes().refuse({DEADLINE: said.encode("latin-1").decode("latin-1")})
    assert (error.status, error.param) == (400, DEADLINE)
    assert "RFC 3339 with its zone, or Unix seconds, at the latest 20" in error.message


@for_each("priority", Priority)
async def test_header_and_field_name_the_class(intakes: Intakes, priority: Priority) -> None:
    assert await intakes().priority_of({"x-priority": priority.value}) is priority
    assert await intakes().priority_of(priority=priority.value) is priority


@for_each(
    ("fields", "priority"),
    [
        *((fields, Priority.STANDARD) for fields in ({}, {"priority": None}, {"priority": 0})),
        ({"priority": -3}, Priority.CRITICAL),
        ({"priority": 1}, Priority.SHEDDABLE),
        ({"priority": (1 << 63) - 1}, Priority.SHEDDABLE),
        ({"service_tier": "priority"}, Priority.CRITICAL),
        ({"service_tier": "flex"}, Priority.SHEDDABLE),
        *(({"service_tier": tier}, Priority.STANDARD) for tier in ("auto", "default", "scale", None)),
        ({"service_tier": "priority", "priority": "standard"}, Priority.STANDARD),
        ({"service_tier": "flex", "priority": "critical"}, Priority.SHEDDABLE),
    ],
)
async def test_fields_of_vllm_and_openai_mean_a_class(
    intakes: Intakes, fields: dict[str, Any], priority: Priority
) -> None:
    assert await intakes().priority_of(**fields) is priority


@for_each(("header", "field"), [("critical", "sheddable"), ("sheddable", "critical")])
async def test_of_two_classes_the_lower_one_counts(intakes: Intakes, header: str, field: str) -> None:
    assert await intakes().priority_of({"x-priority": header}, priority=field) is Priority.SHEDDABLE


def an_entry(name: str, max_priority: str = "standard") -> dict[str, Any]:
    """A tenant whose key is its name."""
    return {"name": name, "keys": [f"sha256:{sha256(name.encode()).hexdigest()}"], "max_priority": max_priority}


TENANTS = [an_entry("shop", "critical"), an_entry("app"), an_entry("reports", "sheddable")]


def key(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {name}"}


@for_each("scheme", ["Bearer", "bearer", "BEARER"])
async def test_the_key_says_whose_request_it_is_and_no_header_does(intakes: Intakes, scheme: str) -> None:
    intake = intakes(tenants=TENANTS)
    view, _ = await intake.take({"authorization": f"{scheme} app", "x-tenant-id": "shop"})
    assert view.tenant == "app"


async def test_anthropics_clients_send_their_key_in_a_header_of_its_own(intakes: Intakes) -> None:
    intake = intakes(tenants=TENANTS)
    view, _ = await intake.take({"x-api-key": "app"})
    assert view.tenant == "app"
    view, _ = await intake.take({"x-api-key": "app", "authorization": "Bearer reports"})
    assert view.tenant == "reports", "what all clients send goes before it"


@for_each(
    "headers",
    [
        [],
        [("x-tenant-id", "shop")],
        [("x-api-key", "shops")],
        [("x-api-key", "shop"), ("x-api-key", "app")],
        [("x-api-key", "shop"), ("authorization", "Bearer shops")],
        *([("authorization", said)] for said in ("", "Bearer", "Bearer ", "shop", "Basic shop", TENANTS[0]["keys"][0])),
        *([("authorization", f"Bearer {name}")] for name in ("shops", "SHOP", "shop app", "shop" * 1000, "sh\xf6p")),
        [("authorization", "Bearer shop"), ("authorization", "Bearer app")],
    ],
)
async def test_without_a_key_that_is_known_nothing_is_served(intakes: Intakes, headers: Headers) -> None:
    error = await intakes(tenants=TENANTS).refuse(headers, model="wrong", max_tokens=-1)
    assert (error.status, error.code, error.kind) == (401, "invalid_api_key", "invalid_request_error")
    assert error.response().headers["www-authenticate"] == "Bearer"
    assert "shop" not in error.message


async def test_every_endpoint_of_the_api_wants_a_key_and_those_of_operations_do_not(intakes: Intakes) -> None:
    service = intakes(tenants=TENANTS).service
    stranger, friend = a_request({}), a_request(key("reports"))
    answers = [service.completions(stranger), service.chat_completions(stranger), service.tokenize(stranger)]
    answers += [service.models(stranger), service.model(stranger, "tiny"), service.detokenize(stranger)]
    answers += [service.responses(stranger), service.load_lora_adapter(stranger), service.unload_lora_adapter(stranger)]

    for response in (await service.messages(stranger), await service.count_tokens(stranger)):
        assert response.status_code == 401
        assert msgspec.json.decode(response.body)["error"]["type"] == "authentication_error"
    for answer in answers:
        with pytest.raises(ApiError) as caught:
            await answer
        assert caught.value.status == 401
    assert (await service.models(friend)).status_code == (await service.model(friend, "tiny")).status_code == 200
    operations: list[Response] = [await service.health(), await service.ready(), await service.metrics()]
    assert [each.status_code for each in operations] == [200, 503, 200]
    counted = rb'spillway_http_errors_total\{code="invalid_api_key",gateway="[^"]*",status="401"\} 11.0'
    assert re.search(counted, bytes(operations[2].body))


@for_each(
    ("name", "claim", "priority"),
    [
        ("shop", "critical", Priority.CRITICAL),
        ("shop", "sheddable", Priority.SHEDDABLE),
        ("shop", None, Priority.STANDARD),
        ("app", "standard", Priority.STANDARD),
        ("app", None, Priority.STANDARD),
        ("reports", "sheddable", Priority.SHEDDABLE),
        ("reports", None, Priority.SHEDDABLE),
    ],
)
async def test_a_tenant_gets_the_class_that_it_claims_and_its_own_where_it_claims_none(
    intakes: Intakes, name: str, claim: str | None, priority: Priority
) -> None:
    assert await intakes(tenants=TENANTS).priority_of(key(name), priority=claim) is priority


@for_each(
    ("name", "headers", "fields", "param"),
    [
        ("app", {"x-priority": "critical"}, {}, "x-priority"),
        ("app", {}, {"priority": "critical"}, "priority"),
        ("app", {}, {"priority": -1}, "priority"),
        ("app", {}, {"service_tier": "priority"}, "service_tier"),
        ("reports", {"x-priority": "critical"}, {"priority": "standard"}, "priority"),
    ],
)
async def test_a_class_above_the_tenants_ceiling_is_forbidden(
    intakes: Intakes, name: str, headers: dict[str, str], fields: dict[str, Any], param: str
) -> None:
    error = await intakes(tenants=TENANTS).refuse(key(name) | headers, **fields)
    assert (error.status, error.code, error.param) == (403, "priority_not_allowed", param)
    assert "is entitled to the class" in error.message


async def test_a_higher_claim_that_does_not_count_is_not_forbidden(intakes: Intakes) -> None:
    headers = key("reports") | {"x-priority": "critical"}
    priority = await intakes(tenants=TENANTS).priority_of(headers, priority="sheddable")
    assert priority is Priority.SHEDDABLE


NAMES = (
    "authorization",
    "x-request-deadline",
    "x-priority",
    "x-request-timeout-seconds",
    "x-session-id",
    "x-tenant-id",
)
WORDS = (
    b"Bearer ",
    b"bearer",
    b"shop",
    *(each.encode() for each in Priority),
    b"1",
    b"0.5",
    b"-",
    b"nan",
    b"1e9",
    b" ",
)
values = st.binary(max_size=200) | st.lists(st.sampled_from(WORDS), max_size=3).map(b"".join)
SHOP = Tenant(name="shop", max_priority=Priority.STANDARD)
KEYED = Tenants([SHOP], {sha256(b"shop").digest(): SHOP})
BODY = CompletionRequest(model="tiny", prompt="a")


@given(
    headers=st.lists(st.tuples(st.sampled_from(NAMES), values), max_size=6),
    tenants=st.sampled_from([ANYBODY, KEYED]),
)
@example(headers=[("authorization", b"Bearer shop")], tenants=KEYED)
@example(headers=[("authorization", b"Bearer shop"), ("x-priority", b"critical")], tenants=KEYED)
@example(headers=[("x-request-timeout-seconds", b"0.000000001")], tenants=ANYBODY)
def test_any_headers_are_terms_within_bounds_or_an_error_that_says_what_is_wrong(
    headers: list[tuple[str, bytes]], tenants: Tenants
) -> None:
    request = Request({"type": "http", "headers": [(name.encode(), value) for name, value in headers]})
    refused = None
    try:
        tenant = tenant_of(request, tenants)
        terms = terms_of(request, BODY, tenant, "digest", received_s=1000.0, now_s=1000.0, limit_s=60.0)
    except ApiError as error:
        refused = error
    if refused:
        assert (refused.status, refused.param in NAMES) in {(400, True), (401, False), (403, True), (504, True)}
        assert refused.response().body
        return
    assert 1000.0 < terms.deadline_s <= 1060.0
    assert terms.priority.rank >= tenant.max_priority.rank
    assert max(len(terms.tenant), len(terms.session_id)) <= 128
    assert not tenants or terms.tenant == "shop"


@for_each(
    ("value", "count"), [("0", 0), ("2", 2), ("", 0), *((odd, 0) for odd in ("-1", "one", "1.5", " ", "²", "9" * 30))]
)
def test_a_count_of_retries_that_is_no_number_says_nothing(value: str, count: int) -> None:
    """No request fails because of it."""
    headers = [(b"x-stainless-retry-count", value.encode("latin-1"))]
    request = Request({"type": "http", "headers": headers})
    terms = terms_of(request, BODY, tenant_of(request, ANYBODY), "digest", received_s=0.0, now_s=0.0, limit_s=60.0)

    assert (terms.retry_count, terms.logical_request_id, terms.is_keyed) == (count, "digest", False)


BUDGET = "x-spillway-latency-budget"


@for_each(("headers", "is_wanted"), [({}, False), ({BUDGET: "0"}, False), ({BUDGET: "1"}, True)])
async def test_who_asks_is_told_where_the_time_goes(intakes: Intakes, headers: dict[str, str], is_wanted: bool) -> None:
    intake = intakes()
    await intake.take(headers)
    assert [budget.is_wanted for budget in intake.budgets] == [is_wanted]


@for_each(
    ("param", "values"),
    [
        ("x-session-id", ["n" * 129]),
        ("x-tenant-id", ["n" * 129]),
        ("x-priority", ["urgent", "Critical", "0", "critical, critical", "\xb2", "n" * 200]),
        (TIMEOUT, ["0", "-1", "soon", "nan", "inf", "1e3", "1_0", "86401", "5 s", "0x5", ".", "5.", "\xb2", "9" * 200]),
        (BUDGET, ["yes", "2", "1,1", "é"]),
        ("priority", ["urgent", "7", 1.0, True, 1 << 63]),
        ("service_tier", ["gold", 7]),
        ("timeout", [0, -1, "5", True, 86_401, 10**400, [], {}]),
    ],
)
async def test_what_a_header_or_a_field_cannot_say_is_the_clients_mistake(
    intakes: Intakes, param: str, values: list[Any]
) -> None:
    for value in values:
        fields: dict[str, Any] = {} if param.startswith("x-") else {param: value}
        error = await intakes().refuse(None if fields else [(param, value)], **fields)
        assert (error.status, error.param, error.code) == (400, param, "invalid_value"), value


@for_each("header", ["x-session-id", "x-tenant-id"])
async def test_a_name_that_is_repeated_with_another_value_is_the_clients_mistake(intakes: Intakes, header: str) -> None:
    error = await intakes().refuse([(header, "one"), (header, "other")])
    assert (error.status, error.param, error.code) == (400, header, "invalid_value")


def a_tenant(name: str, cache_group: str = "") -> Tenant:
    return Tenant(name=name, max_priority=Priority.STANDARD, cache_group=cache_group or name)


def test_each_tenant_has_kv_of_its_own_and_a_group_has_it_together() -> None:
    shop, reports, team = a_tenant("shop"), a_tenant("reports"), a_tenant("team", "shop")
    assert cache_salt_of(shop, "") == cache_salt_of(team, "") != cache_salt_of(reports, "")


def test_what_a_client_asks_for_narrows_and_never_gets_it_another_tenants() -> None:
    shop, reports = a_tenant("shop"), a_tenant("reports")
    salts = [cache_salt_of(*each) for each in ((shop, ""), (shop, "a"), (shop, "b"), (reports, "a"), (reports, ""))]
    assert len(set(salts)) == len(salts)
    assert cache_salt_of(a_tenant("ab"), "c") != cache_salt_of(a_tenant("a"), "bc"), "where one ends is part of it"
    assert cache_salt_of(reports, cache_salt_of(shop, "")) != cache_salt_of(shop, "")


def test_where_there_are_no_keys_all_share_but_for_what_clients_ask_for() -> None:
    anybody = Tenant(name="shop", max_priority=Priority.CRITICAL)
    assert cache_salt_of(anybody, "") == ""
    assert cache_salt_of(anybody, "a") != ""
