"""Who a request belongs to, how much it matters and how long it may take, as its headers and its body say."""

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b

from fastapi import Request

from cluster.clock import unix_s
from deployments.openai.errors import NO_RETRY, ApiError, invalid
from deployments.openai.terms import MAX_TIMEOUT_S, TermsFields
from deployments.tenants.tenants import Tenant, Tenants
from policies.decisions import Reason
from policies.views import Priority

SESSION_HEADER = "x-session-id"
LOGICAL_REQUEST_HEADER = "idempotency-key"
RETRY_COUNT_HEADER = "x-stainless-retry-count"
"""What OpenAI's clients send with every request: how often they have sent the same before."""
ANTHROPIC_KEY_HEADER = "x-api-key"
TENANT_HEADER = "x-tenant-id"
PRIORITY_HEADER = "x-priority"
TIMEOUT_HEADER = "x-request-timeout-seconds"
DEADLINE_HEADER = "x-request-deadline"
TIME_LEFT_HEADER = "x-request-time-left-seconds"
"""Of a response: what was left until then when it began."""
LATENCY_BUDGET_HEADER = "x-spillway-latency-budget"
MAX_LENGTH = 128
"""Characters in what such a header says: it is kept, logged and hashed."""
LEAD_S = 0.1
LEAD_FRACTION = 0.1
"""Serve reads ``x-request-timeout-seconds`` too, and at that time cuts the connection with a 408 in plain text. So much
earlier, a tenth and no more than ``LEAD_S``, the request ends here, with a reason and in OpenAI's shape."""

SALT_BYTES = 16
_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
_UNIX_S = re.compile(r"[0-9]{1,11}(\.[0-9]{1,9})?")
_COUNT = re.compile(r"[0-9]{1,4}")
_CHALLENGE = {"www-authenticate": "Bearer"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a request is served under.

    Args:
        tenant: Name of who pays for it; empty when nobody said.
        session_id: The conversation that it belongs to, or else the user; empty when nobody said.
        logical_request_id: What the client's own retries of it share: its idempotency key, or a hash of the body.
        is_keyed: Whether that is a key.
        retry_count: How often its client has sent the same before, as far as it says so.
        priority: Its class; its tenant is entitled to it.
        deadline_s: Absolute time after which nobody waits for it any more.
        client_deadline_unix_s: The time of day that its client names as the deadline of all its calls; endless when it
            names none.
        cache_salt: What keeps its KV apart from that of others with equal prompts; empty: nothing does.
    """

    tenant: str
    session_id: str
    logical_request_id: str
    is_keyed: bool
    retry_count: int
    priority: Priority
    deadline_s: float
    client_deadline_unix_s: float = math.inf
    cache_salt: str = ""


def cache_salt_of(tenant: Tenant, asked: str) -> str:
    """What a tenant's requests have in common that share KV, narrowed by what their client asks for.

    A hash of both: whatever a client asks for, it gets no other tenant's.
    """
    if not tenant.cache_group and not asked:
        return ""
    group, salt = tenant.cache_group.encode(), asked.encode("utf-8", "surrogatepass")
    return blake2b(len(group).to_bytes(2, "big") + group + salt, digest_size=SALT_BYTES).hexdigest()


def tenant_of(request: Request, tenants: Tenants) -> Tenant:
    """Whose request it is: that of the key's owner or, where there are no keys, of whom the client names.

    Raises:
        ApiError: 401, there is no key or a wrong one; 400, the tenant's name is none.
    """
    if not tenants:
        return Tenant(name=header_of(request, TENANT_HEADER), max_priority=Priority.CRITICAL)
    key = api_key_of(request)
    if not key:
        message = "there is no API key; send one in the header 'Authorization: Bearer KEY'"
        raise ApiError(401, message, "invalid_api_key", headers=_CHALLENGE)
    tenant = tenants.of_key(key, unix_s())
    if tenant is None:
        message = "the API key is not one of this deployment's, or has expired"
        raise ApiError(401, message, "invalid_api_key", headers=_CHALLENGE)
    return tenant


def terms_of(
    request: Request, body: TermsFields, tenant: Tenant, digest: str, *, received_s: float, now_s: float, limit_s: float
) -> Terms:
    """What the request is served under.

    Args:
        request: Its headers.
        body: Its fields.
        tenant: Whose it is.
        digest: A hash of the body.
        received_s: When its headers were there.
        now_s: Now, by the same clock.
        limit_s: How long any request may take.

    Raises:
        ApiError: 400, a header is malformed or out of range; 403, the tenant is not entitled to the class; 504, its
            client's deadline has passed.
    """
    key = header_of(request, LOGICAL_REQUEST_HEADER)
    body_s = math.inf if body.timeout is None else body.timeout
    ends_unix_s = _client_deadline_unix_s(request, unix_s() + limit_s)
    left_s = ends_unix_s - unix_s()
    if left_s <= 0:
        message = f"the time that {DEADLINE_HEADER} names has passed"
        headers = {"x-spillway-reason": Reason.DEADLINE_EXCEEDED.value, TIME_LEFT_HEADER: "0.000", **NO_RETRY}
        raise ApiError(504, message, Reason.DEADLINE_EXCEEDED.value, DEADLINE_HEADER, headers=headers)
    return Terms(
        tenant=tenant.name,
        session_id=header_of(request, SESSION_HEADER) or (body.user or ""),
        logical_request_id=key or digest,
        is_keyed=bool(key),
        retry_count=_retry_count(request),
        priority=_priority_of(request, body, tenant),
        deadline_s=received_s + min(limit_s, body_s, _header_timeout_s(request), now_s - received_s + left_s),
        client_deadline_unix_s=ends_unix_s,
        cache_salt=cache_salt_of(tenant, body.cache_salt or ""),
    )


def _client_deadline_unix_s(request: Request, latest_unix_s: float) -> float:
    """The deadline of all the calls of which the request is one."""
    value = header_of(request, DEADLINE_HEADER)
    if not value:
        return math.inf
    deadline_unix_s = _unix_s_of(value)
    if not deadline_unix_s <= latest_unix_s:
        latest = datetime.fromtimestamp(latest_unix_s, UTC).isoformat(timespec="seconds")
        allowed = f"RFC 3339 with its zone, or Unix seconds, at the latest {latest}"
        raise invalid(f"{DEADLINE_HEADER}: got {value!r}; allowed: {allowed}", DEADLINE_HEADER)
    return deadline_unix_s


def _unix_s_of(value: str) -> float:
    """Of a time of day; not a number for what is none."""
    if _UNIX_S.fullmatch(value):
        return float(value)
    try:
        said = datetime.fromisoformat(value)
        return said.timestamp() if said.tzinfo else math.nan
    except (ValueError, OverflowError):
        return math.nan


def header_of(request: Request, header: str) -> str:
    """What a header says; empty when it is not there.

    Repeats that say the same count as one.

    Raises:
        ApiError: It is longer than ``MAX_LENGTH``, or its repeats differ: nobody knows which of them is meant.
    """
    values = dict.fromkeys(request.headers.getlist(header))
    if len(values) > 1:
        message = f"the header {header} is there {len(values)} times with different values; send it once"
        raise invalid(message, header)
    value = next(iter(values), "")
    if len(value) > MAX_LENGTH:
        message = f"the header {header} has {len(value)} characters; at most {MAX_LENGTH} are allowed"
        raise invalid(message, header)
    return value


def wants_latency_budget(request: Request) -> bool:
    """Whether the response is to say where the request's time has gone.

    Raises:
        ApiError: 400, the header is neither ``1`` nor ``0``.
    """
    value = header_of(request, LATENCY_BUDGET_HEADER)
    if value not in ("", "0", "1"):
        raise invalid(f"{LATENCY_BUDGET_HEADER}: got {value!r}; allowed: 1 or 0", LATENCY_BUDGET_HEADER)
    return value == "1"


def api_key_of(request: Request) -> bytes:
    """The bearer token, or what Anthropic's clients send; empty when there is none, or when there are several and it is
    not said which is meant.
    """
    values = set(request.headers.getlist("authorization"))
    if not values:
        keys = set(request.headers.getlist(ANTHROPIC_KEY_HEADER))
        return keys.pop().strip().encode("latin-1") if len(keys) == 1 else b""
    if len(values) != 1:
        return b""
    scheme, _, key = values.pop().partition(" ")
    return key.strip().encode("latin-1") if scheme.lower() == "bearer" else b""


def _retry_count(request: Request) -> int:
    """A count that is no number says nothing: no request fails because of it."""
    value = request.headers.get(RETRY_COUNT_HEADER, "")
    return int(value) if _COUNT.fullmatch(value) else 0


def _priority_of(request: Request, body: TermsFields, tenant: Tenant) -> Priority:
    """The lowest of the classes that are claimed; without any, the tenant's own, ``standard`` at most."""
    claims = {
        PRIORITY_HEADER: _header_priority(request),
        "priority": body.priority_class,
        "service_tier": body.service_tier_class,
    }
    claimed = [(priority.rank, priority, param) for param, priority in claims.items() if priority is not None]
    if not claimed:
        return max(Priority.STANDARD, tenant.max_priority, key=lambda each: each.rank)
    rank, priority, param = max(claimed, key=lambda claim: claim[0])
    if rank < tenant.max_priority.rank:
        message = f"{param}: this API key is entitled to the class {tenant.max_priority} at most, not to {priority}"
        raise ApiError(403, message, "priority_not_allowed", param)
    return priority


def _header_priority(request: Request) -> Priority | None:
    value = header_of(request, PRIORITY_HEADER)
    if not value:
        return None
    try:
        return Priority(value)
    except ValueError:
        raise invalid(f"{PRIORITY_HEADER}: got {value!r}; allowed: {', '.join(Priority)}", PRIORITY_HEADER) from None


def _header_timeout_s(request: Request) -> float:
    value = header_of(request, TIMEOUT_HEADER)
    if not value:
        return math.inf
    timeout_s = float(value) if _SECONDS.fullmatch(value) else 0.0
    if not 0 < timeout_s <= MAX_TIMEOUT_S:
        message = f"{TIMEOUT_HEADER}: got {value!r}; allowed: seconds above 0, at most {MAX_TIMEOUT_S}"
        raise invalid(message, TIMEOUT_HEADER)
    return timeout_s - min(LEAD_S, LEAD_FRACTION * timeout_s)
