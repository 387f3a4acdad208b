"""Every tenant has a rate of work, and a little more for a moment."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from policies.admission.bucket import Bucket, BucketMaker
from policies.contracts import Need
from policies.decisions import AdmissionDecision, Admit, Reason, Reject
from policies.errors import ConfigError
from policies.params import ADMISSION
from policies.signals import Admitted, Ended, RequestSignal, Signal, Started
from policies.tenancy import Quota
from policies.views import BacklogView, RequestView

WORK, TOKENS = "work", "tokens"
EXPECTED, HIGH, MOST = "expected", "high", "most"
NO_OVERRIDES: Mapping[str, Mapping[str, float]] = {}
NO_QUOTAS: Mapping[str, Quota] = {}


@dataclass(slots=True)
class _Reservation:
    bucket: Bucket
    request: RequestView
    reserved: float
    is_started: bool = False


class TokenBucket:
    """May this request come in? Yes, if its tenant has not used up its rate.

    Rule: a tenant's bucket fills at ``rate_per_s`` up to ``burst_s`` seconds' worth. A request comes in if its bucket
        has what it is expected to cost, or is full, so that one that costs more than the burst comes in now and then.
        The cost is reserved, with the answer as long as ``reserve`` says; when it has ended, what it used less is
        given back, and what it used more is taken. Who never started gets all back; whose answer broke off, nothing.
        A tenant's quota takes the place of both numbers. They hold for the deployment: each of several gateways has its
        part of them.
    State: a bucket for each tenant that has an override or a quota, for as many others as ``max_tenants``, and one that
        further ones share; a request's reservation is its permit. A bucket that is full again is forgotten
        when its place is needed.
    Consumes: Admitted, Started, Ended.
    Complexity: O(1).
    Failure mode: the rate is a number that somebody has set. Where caches warm or replicas come and go it is too low or
        too high, and in the latter case it does nothing against overload. A tenant whose requests do not come to all
        gateways alike is refused by one while another has something left. Who is over the rate gets short requests in
        and long ones hardly ever. A tenant pays for answers that a lost replica broke off.
    Source: the token bucket, with work in the place of requests.

    Args:
        unit: ``work``, service-seconds of prefill and answer; or ``tokens``, uncached ones of the prompt and those of
            the answer.
        rate_per_s: Units a second of each tenant; 1 service-second a second is one replica's worth.
        burst_s: How many seconds' worth a bucket holds.
        reserve: Length of answer that is paid in advance: the ``expected`` one, the predictor's ``high`` quantile, or
            the ``most`` that the request allows.
        tenants: Other ``rate_per_s`` and ``burst_s`` for some tenants, by name.
        max_tenants: Buckets that are kept for tenants without overrides or quotas.
        quotas: The tenants' own, by name, in service-seconds.
        num_gateways: Among which a tenant's rate and burst are divided evenly.

    Raises:
        ConfigError: A value out of range, an override of something else, quotas beside overrides or other units.
    """

    requires: ClassVar[frozenset[Need]] = frozenset({Need.GEOMETRY, Need.SERVICE_RATES})
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset({Admitted, Started, Ended})

    def __init__(
        self,
        *,
        unit: str = WORK,
        rate_per_s: float = 1.0,
        burst_s: float = 2.0,
        reserve: str = HIGH,
        tenants: Mapping[str, Mapping[str, float]] = NO_OVERRIDES,
        max_tenants: int = 1000,
        quotas: Mapping[str, Quota] = NO_QUOTAS,
        num_gateways: int = 1,
    ) -> None:
        ADMISSION.check_choice("unit", unit, (WORK, TOKENS))
        ADMISSION.check_choice("reserve", reserve, (EXPECTED, HIGH, MOST))
        ADMISSION.check_number("max_tenants", max_tenants, 0)
        ADMISSION.check_number("num_gateways", num_gateways, 1)
        if quotas and unit != WORK:
            raise ConfigError(
                "policies.admission.params.unit", unit, f"{WORK}, because the tenants' quotas are in that"
            )
        self._by_tokens = unit == TOKENS
        self._reserve = reserve
        self._max_tenants = max_tenants
        self._make = BucketMaker(rate_per_s, burst_s, num_gateways)
        self._shared = self._make.usual()
        self._named = self._make.named(tenants, quotas)
        self._others: dict[str, Bucket] = {}  # the longest unused comes first

    def decide(self, request: RequestView, backlog: BacklogView, now_s: float) -> AdmissionDecision:
        bucket = self._bucket_of(request.tenant, now_s)
        reserved = self._reserved(request)
        missing = min(reserved, bucket.burst) - bucket.level_at(now_s)
        if missing <= 1e-9 * bucket.burst:  # what a sum of floats may be off
            return Admit(_Reservation(bucket, request, reserved))
        return Reject(reason=Reason.QUOTA_EXCEEDED, retry_after_s=missing / bucket.rate_per_s)

    def observe(self, signal: RequestSignal) -> None:
        its: _Reservation | None = signal.permit
        if its is None:
            return
        if isinstance(signal, Admitted):
            its.bucket.take(its.reserved, signal.at_s)
        elif isinstance(signal, Started):
            its.is_started = True
        elif isinstance(signal, Ended):
            its.bucket.take(self._used(its, signal) - its.reserved, signal.at_s)

    def _used(self, reservation: _Reservation, ended: Ended) -> float:
        if ended.is_completed:
            return self._cost(reservation.request, ended.output_tokens)
        return reservation.reserved if reservation.is_started else 0.0

    def _reserved(self, request: RequestView) -> float:
        geometry = request.geometry
        lengths = {EXPECTED: geometry.output_tokens, HIGH: geometry.output_tokens_high}
        return self._cost(request, lengths.get(self._reserve, 0) or request.max_output_tokens)

    def _cost(self, request: RequestView, output_tokens: int) -> float:
        geometry = request.geometry
        if self._by_tokens:
            return (geometry.uncached_tokens or request.prompt_tokens) + output_tokens
        return geometry.prefill_s + geometry.decode_s * output_tokens / (geometry.output_tokens or 1)

    def _bucket_of(self, tenant: str, now_s: float) -> Bucket:
        if (named := self._named.get(tenant)) is not None:
            return named
        bucket = self._others.pop(tenant, None) or self._newcomer(now_s)
        if bucket is not self._shared:
            self._others[tenant] = bucket
        return bucket

    def _newcomer(self, now_s: float) -> Bucket:
        if len(self._others) >= self._max_tenants:
            oldest = next(iter(self._others), None)
            if oldest is None or self._others[oldest].level_at(now_s) < self._others[oldest].burst:
                return self._shared
            del self._others[oldest]
        return self._make.usual()
