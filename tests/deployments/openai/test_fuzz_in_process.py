"""Whatever a client sends, a gateway's answer is a result or an error that says what is wrong.

Two sources: schemathesis draws bodies from the gateway's own ``/openapi.json``, valid and invalid ones; the strategies
of ``fuzzed_bodies`` combine what is right with what is at the edge of it. The same bodies every time.
"""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode

from tests.deployments.fuzzed_bodies import chats, completions, plain, send, short
from tests.deployments.gateway_in_process import gateway_in_process

FROM_SCHEMA = settings(max_examples=70, suppress_health_check=list(HealthCheck))
FROM_STRATEGIES = settings(max_examples=200, suppress_health_check=list(HealthCheck))
POSTS = ("/v1/completions", "/v1/chat/completions", "/tokenize")


@pytest.fixture(scope="module", params=[True, False], ids=["hot_routes", "routes"])
def http(request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    with gateway_in_process(is_hot=request.param) as client:
        yield client


@pytest.fixture(scope="module")
def schema(http: httpx.Client) -> Any:
    """The gateway's own description of itself."""
    return schemathesis.openapi.from_dict(http.get("/openapi.json").json())


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["valid", "invalid"])
def test_no_body_from_the_schema_makes_the_server_fail(
    http: httpx.Client, schema: Any, path: str, mode: GenerationMode
) -> None:
    bodies = schema[path]["POST"].as_strategy(generation_mode=mode)

    @FROM_SCHEMA
    @given(case=bodies)
    def check(case: Any) -> None:
        send(http, path, short(plain(case.body)))

    check()


@FROM_STRATEGIES
@given(body=completions)
def test_no_completion_makes_the_server_fail(http: httpx.Client, body: dict[str, Any]) -> None:
    send(http, "/v1/completions", short(body))


@FROM_STRATEGIES
@given(body=chats)
def test_no_chat_makes_the_server_fail(http: httpx.Client, body: dict[str, Any]) -> None:
    send(http, "/v1/chat/completions", short(body))
