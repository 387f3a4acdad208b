"""A deployment's tenants, found by their API keys and tokens."""

import hmac
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from types import MappingProxyType

from cluster.config.terms import NO_LIMITS, LimitsConfig
from deployments.tenants.web_tokens import NO_WEB_TOKENS, NoWebTokens
from policies.tenancy import USUAL_TERMS, TenantTerms, TenantTermsByName
from policies.views import Priority


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """Who pays for a request.

    Args:
        name: As policies see it; empty when nobody said.
        max_priority: The highest class that it may claim.
        terms: What policies are told of it.
        models: Ids of the models and adapters that it may use; ``None``: all.
        may_load_adapters: Whether it may load and unload adapters.
        cache_group: With whom it shares KV of equal prompts; empty: with everybody.
        limits: What its clients may ask for.
    """

    name: str
    max_priority: Priority
    terms: TenantTerms = USUAL_TERMS
    models: frozenset[str] | None = None
    may_load_adapters: bool = False
    cache_group: str = ""
    limits: LimitsConfig = NO_LIMITS

    def may_use(self, model: str) -> bool:
        """Whether it may use a model."""
        return self.models is None or model in self.models


NEVER_EXPIRE: Mapping[bytes, float] = MappingProxyType({})


class Tenants:
    """All tenants of a deployment, found by their keys and tokens; where there are none, anybody may use it.

    Args:
        tenants: All of them.
        owners: Whose a key is, by its SHA-256.
        expire_unix_s: Until when keys count, by their hashes; those that are not named count for ever.
        tokens: That name a tenant in the place of a key.
    """

    def __init__(
        self,
        tenants: Iterable[Tenant],
        owners: Mapping[bytes, Tenant],
        expire_unix_s: Mapping[bytes, float] = NEVER_EXPIRE,
        tokens: NoWebTokens = NO_WEB_TOKENS,
    ) -> None:
        self._by_name = {each.name: each for each in tenants}
        self._hashes = tuple(owners.items())
        self._expire_unix_s = expire_unix_s
        self._tokens = tokens

    def __bool__(self) -> bool:
        """Whether there are any, so that a request needs a key."""
        return bool(self._by_name)

    @property
    def may_load_adapters(self) -> bool:
        """Whether any of them may, so that a name that is none yet may become one."""
        return any(each.may_load_adapters for each in self._by_name.values())

    @property
    def models(self) -> frozenset[str]:
        """Models that are named as those that some may use."""
        return frozenset(model for each in self._by_name.values() for model in each.models or ())

    @property
    def terms(self) -> TenantTermsByName:
        """What policies are told of those about whom there is something to tell, by name."""
        return {name: each.terms for name, each in self._by_name.items() if each.terms != USUAL_TERMS}

    def of_key(self, key: bytes, now_unix_s: float = 0.0) -> Tenant | None:
        """The tenant that has this key, or that this token names, unless it has expired.

        Compares with every key there is, each in constant time: how long it takes says nothing about any of them.
        """
        presented = sha256(key).digest()
        found = None
        for known, tenant in self._hashes:
            if hmac.compare_digest(known, presented):
                found = tenant
        if found is None:
            return self._by_name.get(self._tokens.tenant_named_by(key))
        return found if now_unix_s < self._expire_unix_s.get(presented, math.inf) else None


ANYBODY = Tenants((), {})
"""Of a deployment that names none."""
