"""What a tenant is entitled to, as a YAML file says it, the same for a deployment and for a simulated scenario."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from policies.tenancy import UNLIMITED, Quota, TenantTerms

Amount = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]
Weight = Annotated[float, Field(ge=0.001, le=1000, allow_inf_nan=False)]


class QuotaConfig(BaseModel):
    """What a tenant may use of the whole deployment.

    Args:
        work_per_s: Service-seconds a second.
        burst_s: Service-seconds at once.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    work_per_s: Amount
    burst_s: Amount


Number = Annotated[int, Field(ge=1, le=10**12)]


class LimitsConfig(BaseModel):
    """What a tenant's clients may ask for of all gateways together, with all its keys; without one, no limit.

    Args:
        requests_per_min: Requests, answered or not.
        tokens_per_min: Tokens of prompts and answers.
        bytes_per_min: Bytes of bodies.
        concurrent_requests: Requests at a time; each choice of one is one.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    requests_per_min: Number | None = None
    tokens_per_min: Number | None = None
    bytes_per_min: Number | None = None
    concurrent_requests: Number | None = None


NO_LIMITS = LimitsConfig()


class TermsConfig(BaseModel):
    """What policies are told of a tenant.

    Args:
        weight: Its share against the others'.
        quota: What it may use; without one, what the policies say who limit tenants.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    weight: Weight = 1.0
    quota: QuotaConfig | None = None

    def terms(self) -> TenantTerms:
        """The same as :mod:`policies` takes it."""
        quota = Quota(**dict(self.quota)) if self.quota else UNLIMITED
        return TenantTerms(weight=self.weight, quota=quota)
