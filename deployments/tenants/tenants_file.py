"""The file of tenants that ``gateway.tenants`` names.

It has only hashes of keys, and no message here repeats what stands in it where a key could have been put by mistake.
"""

import math
import os
from datetime import UTC, date, datetime
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from cluster.clock import MonotonicClock
from cluster.config.strict import allowed_by
from cluster.config.terms import NO_LIMITS, LimitsConfig, TermsConfig
from cluster.config.yaml_text import parse_yaml
from deployments.config import ROOT
from deployments.configuration.models import Models
from deployments.tenants.keys import HASH
from deployments.tenants.tenants import ANYBODY, Tenant, Tenants
from deployments.tenants.web_tokens import NO_WEB_TOKENS, NoPublicKeys, NoWebTokens, PublicKeys, WebTokens
from policies.errors import ConfigError
from policies.views import Priority

FIELD = "gateway.tenants"
ENVIRONMENT = "env:"
"""Begins a place that is a variable of the environment."""
HARMLESS = frozenset({"name", "cache_group", "max_priority", "weight", "work_per_s", "burst_s"})
HARMLESS |= LimitsConfig.model_fields.keys() | {"issuer", "audience", "jwks", "tenant_claim"}
"""Fields whose values an error may repeat; anything else could be a key in the wrong place."""


def tenants_of(models: Models) -> Tenants:
    """Those of a deployment.

    Raises:
        ConfigError: As :func:`load_tenants`, or one may use a model that there is not, and nobody may load it.
    """
    place, known = models[0].gateway.tenants, [name for each in models for name in each.model.ids]
    tenants = load_tenants(place)
    if not tenants.may_load_adapters and not tenants.models <= set(known):
        allowed = f"ids of models and adapters, which are {', '.join(known)}"
        raise ConfigError(f"{FIELD} {place}: models", "another name, not shown", allowed)
    return tenants


def load_tenants(place: str | None) -> Tenants:
    """The tenants that a place names; without a place, ``ANYBODY``.

    Args:
        place: A YAML file, absolute or relative to the application's folder, or ``env:NAME`` for a variable of the
            environment that holds the YAML.

    Raises:
        ConfigError: It can't be read, or a value in it can't be served.
    """
    if place is None:
        return ANYBODY
    said = _parse(place, _read(place))
    tenants: dict[str, Tenant] = {}
    owners: dict[bytes, Tenant] = {}
    expire_unix_s: dict[bytes, float] = {}
    for number, entry in enumerate(said.tenants):
        where = f"{FIELD} {place}: tenants.{number}"
        if entry.name in tenants:
            raise ConfigError(f"{where}.name", entry.name, "each name once")
        if not entry.keys and said.tokens is None:
            raise ConfigError(f"{where}.keys", "none", "a key at the least, or tokens beside tenants")
        tenant = tenants[entry.name] = entry.tenant()
        for key_number, key in enumerate(entry.keys):
            if key.digest in owners:
                owner = owners[key.digest].name
                raise ConfigError(f"{where}.keys.{key_number}", f"the key of {owner}", "each key once")
            owners[key.digest] = tenant
            expire_unix_s[key.digest] = key.expires_unix_s
    return Tenants(tenants.values(), owners, expire_unix_s, _web_tokens(place, said.tokens))


def _web_tokens(place: str, entry: "TokensEntry | None") -> NoWebTokens:
    if entry is None:
        return NO_WEB_TOKENS
    try:
        keys = PublicKeys(ROOT / entry.jwks, MonotonicClock().now_s)
    except NoPublicKeys as error:
        raise ConfigError(f"{FIELD} {place}: tokens.jwks", entry.jwks, str(error)) from None
    return WebTokens(entry.issuer, entry.audience, entry.tenant_claim, keys)


Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]


KeyHash = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]


class KeyEntry(BaseModel):
    """One of a tenant's ``keys``; a hash alone is one that counts for ever.

    Args:
        hash: Its SHA-256.
        expires: The first day, by UTC, on which it does not count any more.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    hash: KeyHash
    expires: date | None = None

    @model_validator(mode="before")
    @classmethod
    def _is_hash_alone(cls, said: Any) -> Any:
        return {"hash": said} if isinstance(said, str) else said

    @property
    def digest(self) -> bytes:
        """The hash's bytes."""
        return bytes.fromhex(self.hash.removeprefix(HASH))

    @property
    def expires_unix_s(self) -> float:
        """The first moment of that day."""
        day = self.expires
        return math.inf if day is None else datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()


class TenantEntry(TermsConfig):
    """One of the ``tenants`` in the file that ``gateway.tenants`` names.

    Args:
        name: As policies and logs see it.
        keys: SHA-256 of each of its keys, or that and when it expires; two while it changes from one to the other. None
            where tokens name it.
        max_priority: The highest class that it may claim.
        models: Ids of the models and adapters that it may use; all when not given.
        may_load_adapters: Whether it may load adapters, for all, and unload them.
        cache_group: Tenants with the same group share KV of equal prompts, and by it can tell whether another one has
            sent such a prompt of late. Its own name when not given: it shares with nobody.
        limits: What its clients may ask for.
    """

    name: Name
    keys: list[KeyEntry] = Field(default=[])
    max_priority: Priority = Priority.STANDARD
    models: list[str] | None = Field(default=None, min_length=1)
    may_load_adapters: bool = False
    cache_group: Name | None = None
    limits: LimitsConfig = NO_LIMITS

    def tenant(self) -> Tenant:
        return Tenant(
            name=self.name,
            max_priority=self.max_priority,
            terms=self.terms(),
            models=None if self.models is None else frozenset(self.models),
            may_load_adapters=self.may_load_adapters,
            cache_group=self.cache_group or self.name,
            limits=self.limits,
        )


class TokensEntry(BaseModel):
    """The ``tokens`` in that file: an identity provider's, which clients may send in the place of a key.

    Args:
        issuer: As their ``iss`` is.
        audience: As their ``aud`` is, or one of it.
        jwks: File with the issuer's public keys, a JSON Web Key Set, absolute or relative to the application's folder.
            It is read again when it has changed.
        tenant_claim: The claim that names a tenant.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    issuer: Annotated[str, Field(min_length=1)]
    audience: Annotated[str, Field(min_length=1)]
    jwks: Annotated[str, Field(min_length=1)]
    tenant_claim: Annotated[str, Field(min_length=1)] = "sub"


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    tenants: Annotated[list[TenantEntry], Field(min_length=1)]
    tokens: TokensEntry | None = None


def _read(place: str) -> str:
    if place.startswith(ENVIRONMENT):
        text = os.environ.get(place.removeprefix(ENVIRONMENT), "")
        if not text:
            raise ConfigError(FIELD, place, "a variable of each gateway's environment that holds the tenants as YAML")
        return text
    try:
        return (ROOT / place).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(FIELD, place, f"a YAML file that each gateway can read ({type(error).__name__})") from None


def _parse(place: str, text: str) -> _File:
    """Errors are raised without their causes: those quote the line or the value that they are about."""
    try:
        document = parse_yaml(text)
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"; line {mark.line + 1} is none" if mark else ""
        raise ConfigError(FIELD, place, f"tenants as YAML{where}") from None
    try:
        return _File.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    field = ".".join(str(part) for part in first["loc"])
    raise ConfigError(f"{FIELD} {place}: {field or 'document'}", _shown(first), _allowed(first))


def _shown(error: Any) -> object:
    value = error["input"]
    if isinstance(value, (str, int, float)) and error["loc"] and error["loc"][-1] in HARMLESS:
        return value
    return f"{type(value).__name__}, not shown"


def _allowed(error: Any) -> str:
    if "keys" in error["loc"] and error["type"] == "string_pattern_mismatch":
        return "sha256: and 64 hexadecimal digits, as 'python -m deployments.tenants new-key NAME' prints them"
    return allowed_by(error)
