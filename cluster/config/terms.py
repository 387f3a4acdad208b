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
