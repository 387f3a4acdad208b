"""``api.md``: endpoints, fields, headers, statuses."""

from collections.abc import Iterator, Mapping

from fastapi.routing import APIRoute

from deployments.gateway.egress import ATTEMPTS_HEADER, TIMING_HEADER
from deployments.gateway.gateway import app
from deployments.gateway.model_service import GATEWAY_HEADER
from deployments.gateway.open_request import LANE_HEADER
from deployments.gateway.otlp import PARENT_HEADER
from deployments.http.json_body import DEAR_VALUES, MOST_VALUES, PLAIN_BYTES
from deployments.http.rate_limits import CODE as RATE_LIMIT_CODE
from deployments.openai.engine_limits import MOST_MESSAGES
from deployments.openai.errors import NO_RETRY, VERDICTS
from deployments.openai.event_ids import LAST_EVENT_HEADER
from deployments.openai.identity import (
    ANTHROPIC_KEY_HEADER,
    DEADLINE_HEADER,
    LATENCY_BUDGET_HEADER,
    LOGICAL_REQUEST_HEADER,
    MAX_LENGTH,
    PRIORITY_HEADER,
    RETRY_COUNT_HEADER,
    SESSION_HEADER,
    TENANT_HEADER,
    TIME_LEFT_HEADER,
    TIMEOUT_HEADER,
)
from deployments.openai.requests import UNSERVED, ChatRequest, CompletionRequest
from deployments.openai.token_requests import TokenizeRequest
from deployments.reference.docstrings import summary_of
from deployments.reference.markdown import code, from_docstring, literal, page, table
from deployments.reference.schemas import Schema
from deployments.wire import degradation
from policies.decisions import Reason

INTRODUCTION = """
Every gateway has OpenAI's API as vLLM extends it. `GET /openapi.json` is the schema, to generate clients from; `GET
/docs` shows it in a browser and loads its script from the internet. A field that is not known is ignored, as vLLM
does; a field that is known and not served is refused by name.
"""
STREAMS = """
The status line of a stream waits for the first token, so whatever goes wrong before it is one of the statuses
below. After it, a failure is an event `data: {"error": {...}}` with the same codes, and no `data: [DONE]` follows:
a stream that ends without `[DONE]` is not a whole answer. The `openai` client raises `APIError` on such an event.
"""
ERRORS = """
Errors have OpenAI's shape: `error.message`, `type`, `param`, `code`. Those that the dispatcher decided carry the
code in the header `x-spillway-reason` as well, and it is the label `reason` of `spillway_requests_total`. 429 and
503 carry `Retry-After`, in whole seconds, rounded up, an hour at most: how long the policy that refused takes the
queue to be, and up to half as long again, different for each client, so that refused clients do not come back
together.
"""
REQUEST_HEADERS: Mapping[str, str] = {
    "authorization": "`Bearer KEY`, where the deployment has [tenants](../how-to/tenants.md)",
    ANTHROPIC_KEY_HEADER: "`KEY`, the same where there is no `authorization`, as Anthropic's clients send it",
    TENANT_HEADER: "the tenant, unproven; heeded where the deployment has no tenants",
    PRIORITY_HEADER: "the class: `critical`, `standard` or `sheddable`",
    DEADLINE_HEADER: "a time of day, RFC 3339 or Unix seconds, by which a client wants all calls of a chain answered; "
    "at most `gateway.request_timeout_s` ahead",
    TIMEOUT_HEADER: "how long the request may take; Ray Serve reads it too, so the gateway ends it a tenth earlier",
    SESSION_HEADER: "the conversation, for [placement](../explanation/prefix-affinity.md) and "
    "[shedding](../explanation/shedding.md)",
    LOGICAL_REQUEST_HEADER: "what a client's own retries of one request share, and no other request of its tenant",
    LAST_EVENT_HEADER: "with the `idempotency-key` of a stream that broke: the [rest of its "
    "answer](../how-to/operations.md#what-happens-when) is wanted, after the event of that id",
    RETRY_COUNT_HEADER: "OpenAI's clients send it; above 0 it is a retry, known by its body where there is no key, and "
    "has [what is left of the first one's time](../explanation/retries.md#clients-that-retry)",
    LATENCY_BUDGET_HEADER: "`1`: the answer says [where its time went](../explanation/latency-budget.md)",
    PARENT_HEADER: "the client's trace, with [tracing](../explanation/latency-budget.md#traces)",
}
RESPONSE_HEADERS: Mapping[str, str] = {
    GATEWAY_HEADER: "the gateway that answered or refused",
    LANE_HEADER: "the lane, where there are several",
    degradation.HEADER: "what the request was [given in place of what it asked for](../explanation/degradation.md)",
    "x-spillway-reason": "the reason of a refusal or failure that the dispatcher decided",
    TIME_LEFT_HEADER: f"what was left until the `{DEADLINE_HEADER}` when the answer began",
    "x-ratelimit-remaining-requests": "what the tenant's [limits](../how-to/tenants.md#keys) leave; `-limit-` and "
    "`-reset-` beside it, and the same of `-tokens`",
    "retry-after": "with 429 and 503: when to come back",
    next(iter(NO_RETRY)): "`false`: a retry, at whichever gateway, would be answered the same",
    TIMING_HEADER: f"the stages so far, to a client that sends `{LATENCY_BUDGET_HEADER}: 1`",
    ATTEMPTS_HEADER: "attempts and hedges so far, likewise",
}
OF_THE_GATEWAY: tuple[tuple[int, str, str, str], ...] = (
    (400, "invalid_json", "the body is not JSON", "change it"),
    (400, "missing_required_parameter", "a field is missing; `param` names it", "add it"),
    (400, "invalid_value", "a field or header has the wrong type or range; `param` names it", "change it"),
    (
        400,
        "invalid_value",
        f"a body over {PLAIN_BYTES // 1024} KiB has more than {MOST_VALUES:,} values beside its texts (a list, an "
        f"object, a fraction or a text in one of them counts as {DEAR_VALUES}), or a conversation more than "
        f"{MOST_MESSAGES:,} messages and parts of messages",
        "send less",
    ),
    (400, "unsupported_value", "a field that is known and not served", "leave it out"),
    (400, "context_length_exceeded", "prompt and `max_tokens` together exceed the context", "send or ask for less"),
    (401, "invalid_api_key", "the deployment has tenants, and the key is missing or none of theirs", "change the key"),
    (429, RATE_LIMIT_CODE, "its tenant has asked for more than its `limits`", "wait as long as `Retry-After` says"),
    (
        403,
        "priority_not_allowed",
        "the class is above the tenant's ceiling; `param` names what claims it",
        "claim less",
    ),
    (403, "adapters_not_allowed", "the tenant may not load adapters", "ask for `may_load_adapters`"),
    (404, "model_not_found", "no model or adapter that the tenant may use has that name", "change it"),
    (404, "not_found", "an unknown path", "change it"),
    (
        404,
        "answer_not_found",
        "no replica keeps the answer that `last-event-id` names for this tenant, key and body",
        "begin it anew",
    ),
    (405, "method_not_allowed", "the path exists, not for this method", "change it"),
    (400, "invalid_http", "without a proxy: what came is no HTTP", "change it"),
    (
        408,
        "request_too_slow",
        "without a proxy: it did not come in 20 s and a second more for each 500 bytes",
        "repeat it",
    ),
    (
        429,
        "too_many_connections",
        "without a proxy: its address has `gateway.connections_per_client` at this gateway",
        "close some, and use one for several requests",
    ),
    (
        401,
        "client_certificate_required",
        "without a proxy: `gateway.tls.client_authorities`, and the connection has no certificate",
        "connect with one that such an authority has signed",
    ),
    (413, "body_too_long", "the body exceeds `gateway.max_body_bytes`", "send less"),
    (431, "headers_too_long", "without a proxy: request line and headers exceed 64 KiB", "send less"),
    (500, "internal_error", "the gateway failed", "report it"),
    (503, "no_gateway_available", "without a proxy: no gateway takes the connection", "come back after `Retry-After`"),
    (503, "not_ready", "no replica has come up yet", "come back after `Retry-After`"),
    (503, "tokenizer_unavailable", "what tokenizes long texts has failed", "come back after `Retry-After`"),
    (503, "adapters_unavailable", "the model's `adapter_store` can't be read", "come back after `Retry-After`"),
    (503, "too_many_watchers", "the [live page](../how-to/live-page.md) is open often enough", "close one"),
)
"""Status, code, when, and what the client should do; of what never reaches the dispatcher."""
COME_BACK = "come back after `Retry-After`"
REASONS: Mapping[Reason, tuple[str, str]] = {
    Reason.ADMISSION_REJECTED: ("the admission policy refused it for another reason than those below", COME_BACK),
    Reason.QUEUE_FULL: ("capacity exists; too much waits before this request", COME_BACK),
    Reason.KV_FULL: (
        "replicas would hold more KV tokens than they can, with what was let in",
        f"{COME_BACK}, or ask for less",
    ),
    Reason.QUOTA_EXCEEDED: ("its tenant has used up its quota for now", f"{COME_BACK}, or send less"),
    Reason.DEADLINE_UNREACHABLE: (
        "it would not be answered in the time that it has",
        f"{COME_BACK}, or allow more time",
    ),
    Reason.SHED: ("its session is among those that are shed for now", COME_BACK),
    Reason.NO_REPLICA_AVAILABLE: ("no replica that could take it is up", f"{COME_BACK}; retry elsewhere"),
    Reason.DEADLINE_EXCEEDED: (
        "its time is over: its own, or `gateway.request_timeout_s`",
        "allow more, or ask for less",
    ),
    Reason.REPLICA_LOST: (
        "the engine was lost and no other could take over",
        "repeat it; with `x-should-retry: false` it [was retried](../explanation/retries.md), and replicas were lost "
        "each time",
    ),
    Reason.KV_TRANSFER_FAILED: ("its KV blocks were lost and its attempts are used up", "repeat it"),
    Reason.ENGINE_ERROR: ("the engine failed on it", "report it"),
    Reason.INVALID_REQUEST: ("the engine can't run it", "change it"),
    Reason.CLIENT_GONE: ("the client closed the connection", ""),
}
"""When, and what the client should do."""
OF_BOTH = frozenset(CompletionRequest.model_fields) & frozenset(ChatRequest.model_fields) - {"logprobs", "max_tokens"}


def api_page() -> str:
    """The page."""
    return page(
        "API",
        INTRODUCTION,
        table(("Endpoint", ""), _endpoints()),
        *_fields(),
        *_headers(),
        "## Statuses and reasons",
        ERRORS,
        STREAMS,
        table(("Status", "`code`", "When", "The client should"), _statuses()),
    )


def _endpoints() -> Iterator[tuple[str, str]]:
    for route in app.routes:
        if isinstance(route, APIRoute):
            path = route.path.replace(":path", "")
            yield code(f"{' '.join(sorted(route.methods))} {path}"), from_docstring(summary_of(route.endpoint))


def _fields() -> Iterator[str]:
    yield "## Fields of both, completions and chat"
    yield Schema(CompletionRequest).table(frozenset(CompletionRequest.model_fields) - OF_BOTH)
    for model in (CompletionRequest, ChatRequest):
        yield f"## Fields of {from_docstring(summary_of(model)).rstrip('.')}"
        yield Schema(model).table(OF_BOTH)
    yield f"## Fields of {from_docstring(summary_of(TokenizeRequest)).partition(':')[0]}"
    yield Schema(TokenizeRequest).table()
    yield "## Fields that are refused"
    yield (
        "With `gateway.vllm_front_end` [vLLM's layer](../how-to/openai.md) serves `n`, `echo`, `suffix`, `tools` and "
        "batches of prompts."
    )
    refused = (
        (code(name), text, ", ".join(code(literal(each)) for each in neutral))
        for name, (neutral, text) in UNSERVED.items()
    )
    yield table(("Field", "Why", "Values that change nothing, and pass"), refused)


def _headers() -> Iterator[str]:
    yield "## Request headers"
    yield f"At most {MAX_LENGTH} characters; one that is longer, or repeated with another value, is refused with 400."
    yield table(("Header", ""), ((code(name), text) for name, text in REQUEST_HEADERS.items()))
    yield "## Response headers"
    yield table(("Header", ""), ((code(name), text) for name, text in RESPONSE_HEADERS.items()))


def _statuses() -> list[tuple[str, ...]]:
    of_dispatcher = ((VERDICTS[reason][0], reason.value, *REASONS[reason]) for reason in Reason)
    rows = sorted([*OF_THE_GATEWAY, *of_dispatcher], key=lambda row: row[0])
    return [(str(status), code(its_code), when, then) for status, its_code, when, then in rows]
