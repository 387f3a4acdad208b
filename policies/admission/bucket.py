"""What a tenant may still use."""

from collections.abc import Mapping
from dataclasses import dataclass

from policies.errors import ConfigError
from policies.params import ADMISSION
from policies.tenancy import Quota

FIELD = "policies.admission.params.tenants"


@dataclass(slots=True)
class Bucket:
    """Fills at a steady rate until it is full; may be overdrawn.

    Args:
        rate_per_s: Units a second.
        burst: Units when it is full.
        level: Units at ``at_s``.
        at_s: When it was last looked into to take something.
    """

    rate_per_s: float
    burst: float
    level: float
    at_s: float = 0.0

    def level_at(self, now_s: float) -> float:
        """Units that are in it now."""
        return min(self.burst, self.level + self.rate_per_s * max(0.0, now_s - self.at_s))

    def take(self, amount: float, now_s: float) -> None:
        """Takes units out or, if fewer than 0, gives them back as far as there is room."""
        self.level = self.level_at(now_s) - amount
        self.at_s = max(self.at_s, now_s)


class BucketMaker:
    """Makes full buckets, each a gateway's part of what a tenant has.

    Args:
        rate_per_s: Units a second where nothing else is said.
        burst_s: Seconds' worth that a bucket holds where nothing else is said.
        num_gateways: How many have a bucket of their own for each tenant.

    Raises:
        ConfigError: A value out of range.
    """

    def __init__(self, rate_per_s: float, burst_s: float, num_gateways: int) -> None:
        self._defaults = {"rate_per_s": rate_per_s, "burst_s": burst_s}
        self._num_gateways = num_gateways
        self._check("", self._defaults)

    def usual(self) -> Bucket:
        """The bucket of a tenant about whom nothing else is said."""
        return self._worth(self._defaults)

    def named(self, overrides: Mapping[str, Mapping[str, float]], quotas: Mapping[str, Quota]) -> dict[str, Bucket]:
        """Buckets of the tenants about whom something is said.

        Args:
            overrides: Another ``rate_per_s`` or ``burst_s``, by tenant.
            quotas: By tenant.

        Raises:
            ConfigError: A value out of range, an override of something else, or both overrides and quotas.
        """
        if not isinstance(overrides, Mapping):
            raise ConfigError(FIELD, overrides, "a mapping from tenants to their overrides")
        if overrides and quotas:
            allowed = f"nothing, because tenants have quotas of their own: {', '.join(sorted(quotas))}"
            raise ConfigError(FIELD, dict(overrides), allowed)
        by_quota = {tenant: self._full(quota.work_per_s, quota.burst_s) for tenant, quota in quotas.items()}
        return {tenant: self._of_override(tenant, given) for tenant, given in overrides.items()} or by_quota

    def _of_override(self, tenant: str, given: Mapping[str, float]) -> Bucket:
        if not isinstance(given, Mapping) or not given.keys() <= self._defaults.keys():
            raise ConfigError(f"{FIELD}.{tenant}", given, f"a mapping with {' or '.join(self._defaults)}")
        values = {**self._defaults, **given}
        self._check(f"tenants.{tenant}.", values)
        return self._worth(values)

    def _worth(self, values: Mapping[str, float]) -> Bucket:
        return self._full(values["rate_per_s"], values["rate_per_s"] * values["burst_s"])

    def _full(self, rate_per_s: float, burst: float) -> Bucket:
        part = burst / self._num_gateways
        return Bucket(rate_per_s=rate_per_s / self._num_gateways, burst=part, level=part)

    @staticmethod
    def _check(place: str, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            ADMISSION.check_positive(f"{place}{name}", value)
