"""What tenants are entitled to, as policies are told: their shares and their limits."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from policies.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """What a tenant may use of the whole deployment.

    Args:
        work_per_s: Service-seconds a second.
        burst_s: Service-seconds at once.
    """

    work_per_s: float
    burst_s: float


UNLIMITED = Quota(work_per_s=math.inf, burst_s=math.inf)
"""Nobody has said how much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantTerms:
    """What policies are told of a tenant.

    Args:
        weight: Its share against the others', where that is how room is divided.
        quota: What it may use.
    """

    weight: float = 1.0
    quota: Quota = UNLIMITED


USUAL_TERMS = TenantTerms()
"""Those of a tenant about whom nothing is said."""
TenantTermsByName = Mapping[str, TenantTerms]
NO_TERMS: TenantTermsByName = {}


def weights_of(tenants: TenantTermsByName) -> dict[str, float]:
    """Weights that are not 1, which is what everybody has who is not named."""
    return {name: terms.weight for name, terms in tenants.items() if terms.weight != 1.0}


def quotas_of(tenants: TenantTermsByName) -> dict[str, Quota]:
    """Quotas of those who have one."""
    return {name: terms.quota for name, terms in tenants.items() if terms.quota != UNLIMITED}


def terms_for(question: str, tenants: TenantTermsByName) -> Mapping[str, Callable[[], Any]]:
    """What the policies that answer a question are given of the tenants' terms, by the parameter's name.

    ``quotas`` for admission. ``weights`` for queueing, unless no tenant has any: then a policy's own hold.
    """
    if question == "admission":
        quotas = quotas_of(tenants)
        return {"quotas": lambda: quotas}
    weights = weights_of(tenants)
    return {"weights": lambda: weights} if question == "queueing" and weights else {}


def check_said_once(field: str, params: Mapping[str, Any], terms: Mapping[str, Callable[[], Any]]) -> None:
    """Whether a policy's parameters leave to the tenants' terms what those say.

    Args:
        field: Where the configuration names the policy.
        params: Its parameters there.
        terms: See :func:`terms_for`.

    Raises:
        ConfigError: They don't, and nobody could know which of the two is meant.
    """
    for name in terms.keys() & params.keys():
        allowed = f"nothing: {name} are the tenants' own, of {sorted(terms[name]())}"
        raise ConfigError(f"{field}.params.{name}", params[name], allowed)
