"""How much a tenant's clients may ask for, and what is left of it: requests, tokens and bytes a minute, and at a time.

They hold for the deployment: each of several gateways has its part of them. What a tenant has used is known before its
request's body is read, so that what is refused costs next to nothing.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cluster.config.terms import NO_LIMITS, LimitsConfig
from deployments.openai.errors import ApiError
from deployments.tenants.tenants import Tenant
from policies.admission.bucket import Bucket

CODE = "rate_limit_exceeded"
MINUTE_S = 60.0
REQUESTS, TOKENS, BYTES = "requests", "tokens", "bytes"
SOON_S = 1.0
"""When to come back where requests that are under way have to end first, at a time that is not known."""
NowS = Callable[[], float]


class Usage:
    """What one request uses of its tenant's limits, from its dispatch to its end.

    Args:
        account: Its tenant's.

    Attributes:
        headers: What its response says of what is left.
    """

    __slots__ = ("_account", "_is_over", "headers")

    def __init__(self, account: "TenantAccount", headers: Mapping[str, str]) -> None:
        self._account = account
        self._is_over = False
        self.headers = headers

    def end(self, output_tokens: int) -> None:
        """It is answered, with so many tokens; those that its tenant has not any more are taken from what comes."""
        if not self._is_over:
            self._is_over = True
            self._account.end(output_tokens)


class NoUsage:
    """Nobody counts."""

    headers: Mapping[str, str] = {}

    def end(self, output_tokens: int) -> None:
        """Nothing is used."""


NO_USAGE = NoUsage()


class NoAccount:
    """Of a tenant without limits."""

    def check_in(self, num_bytes: int) -> None:
        """It may come."""

    def take_bytes(self, num_bytes: int) -> None:
        """Nobody counts."""

    def has_come(self) -> None:
        """Nobody waits for it."""

    def begin(self, prompt_tokens: int) -> NoUsage:
        """It may go on."""
        return NO_USAGE


NO_ACCOUNT = NoAccount()


class TenantAccount:
    """What one tenant has left at one gateway.

    A request is counted when it comes, whatever becomes of it. Its prompt's tokens are taken before it is dispatched,
    those of its answer when it has ended: a bucket that they overdraw lets nothing in until it has filled again.

    Args:
        limits: Of the deployment.
        num_gateways: How many have a part of them.
        now_s: The gateway's clock.
    """

    def __init__(self, limits: LimitsConfig, num_gateways: int, now_s: NowS) -> None:
        self.limits = limits
        self._now_s = now_s
        per_min = {
            REQUESTS: limits.requests_per_min,
            TOKENS: limits.tokens_per_min,
            BYTES: limits.bytes_per_min,
        }
        self._buckets = {
            what: Bucket(number / num_gateways / MINUTE_S, number / num_gateways, number / num_gateways, now_s())
            for what, number in per_min.items()
            if number is not None
        }
        most = limits.concurrent_requests
        self._most_at_a_time = math.inf if most is None else max(1, most // num_gateways)
        self._num_open = self._num_coming = 0

    def check_in(self, num_bytes: int) -> None:
        """A request has come, of which the headers are read.

        Args:
            num_bytes: That it says it has; they count at once, as others may come while they do.

        Raises:
            ApiError: 429, it is one too many, or the bytes or tokens are used up.
        """
        self._require(REQUESTS, 1.0)
        self._require(TOKENS, 0.0)
        self._require(BYTES, num_bytes)
        self._require_place()
        self._take(REQUESTS, 1.0)
        self._take(BYTES, num_bytes)
        self._num_coming += 1

    def take_bytes(self, num_bytes: int) -> None:
        """So many bytes have come of a body that does not say how many it has; they may be more than are left."""
        self._take(BYTES, num_bytes)

    def has_come(self) -> None:
        """The body of one that was checked in is read, or never will be."""
        self._num_coming -= 1

    def begin(self, prompt_tokens: int) -> Usage:
        """It is about to be dispatched, with a prompt of so many tokens.

        Raises:
            ApiError: 429, its tenant has not so many left, or as many requests under way as it may have by now.
        """
        self._require_place()
        self._require(TOKENS, prompt_tokens)
        self._take(TOKENS, prompt_tokens)
        self._num_open += 1
        return Usage(self, self._headers())

    def end(self, output_tokens: int) -> None:
        """One that was dispatched has ended."""
        self._num_open -= 1
        self._take(TOKENS, output_tokens)

    def _require_place(self) -> None:
        if self._num_open + self._num_coming >= self._most_at_a_time:
            at_a_time = f"{self.limits.concurrent_requests:,} requests at a time"
            raise self._refusal(f"this API key's tenant may have {at_a_time}", SOON_S)

    def _take(self, what: str, amount: float) -> None:
        if bucket := self._buckets.get(what):
            bucket.take(amount, self._now_s())

    def _require(self, what: str, amount: float) -> None:
        """One that is larger than a full bucket comes in when that is full, and overdraws it."""
        bucket = self._buckets.get(what)
        if bucket is None:
            return
        missing = min(max(amount, 1.0), bucket.burst) - bucket.level_at(self._now_s())
        if missing > 1e-9 * bucket.burst:
            per_min = f"{bucket.burst:,.6g} {what} a minute at this gateway"
            raise self._refusal(f"this API key's tenant may have {per_min}", missing / bucket.rate_per_s)

    def _refusal(self, said: str, retry_after_s: float) -> ApiError:
        headers = {"x-spillway-reason": CODE, **self._headers()}
        return ApiError(429, f"{said}; try again later", CODE, retry_after_s=retry_after_s, headers=headers)

    def _headers(self) -> dict[str, str]:
        """As OpenAI's API has them: the limit, what is left of it, and how long until nothing is used of it."""
        headers, now_s = {}, self._now_s()
        for what in (REQUESTS, TOKENS):
            if bucket := self._buckets.get(what):
                level = bucket.level_at(now_s)
                headers[f"x-ratelimit-limit-{what}"] = str(math.ceil(bucket.burst))
                headers[f"x-ratelimit-remaining-{what}"] = str(max(0, math.floor(level)))
                headers[f"x-ratelimit-reset-{what}"] = duration((bucket.burst - level) / bucket.rate_per_s)
        return headers


def duration(seconds: float) -> str:
    """As OpenAI's API writes it: ``6m0s``, ``1.25s``, ``20ms``."""
    if (whole_ms := math.ceil(1000 * seconds)) < 1000:
        return f"{whole_ms}ms"
    minutes, hundredths = divmod(math.ceil(whole_ms / 10), 6000)
    said = f"{hundredths / 100:.2f}".rstrip("0").rstrip(".")
    return f"{minutes}m{said}s" if minutes else f"{said}s"


@dataclass(frozen=True, slots=True)
class _Known:
    account: TenantAccount
    num_gateways: int


class RateLimits:
    """The accounts of all tenants of one gateway.

    Args:
        now_s: The gateway's clock.
    """

    def __init__(self, now_s: NowS) -> None:
        self._now_s = now_s
        self._known: dict[str, _Known] = {}

    def account_of(self, tenant: Tenant, num_gateways: int) -> TenantAccount | NoAccount:
        """What a tenant has left; a full account, where its limits or the number of gateways are new."""
        if tenant.limits == NO_LIMITS:
            return NO_ACCOUNT
        known = self._known.get(tenant.name)
        if known is None or known.account.limits != tenant.limits or known.num_gateways != num_gateways:
            account = TenantAccount(tenant.limits, num_gateways, self._now_s)
            known = self._known[tenant.name] = _Known(account, num_gateways)
        return known.account
