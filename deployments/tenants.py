"""Who may use the deployment: tenants with API keys, and what each of them is entitled to.

``python -m deployments.tenants new-key NAME`` makes a key. The file has only hashes of keys, and no message here
repeats what stands in the file where a key could have been put by mistake.
"""

import argparse
import hmac
import math
import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from hashlib import sha256
from types import MappingProxyType
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from cluster.config.strict import allowed_by
from cluster.config.terms import NO_LIMITS, LimitsConfig, TermsConfig
from cluster.config.yaml_text import parse_yaml
from deployments.config import ROOT
from deployments.configuration.models import Models
from policies.errors import ConfigError
from policies.tenancy import USUAL_TERMS, TenantTerms, TenantTermsByName
from policies.views import Priority

FIELD = "gateway.tenants"
ENVIRONMENT = "env:"
"""Begins a place that is a variable of the environment."""
HASH = "sha256:"
KEY_PREFIX = "sk-spillway-"
KEY_BYTES = 32
HARMLESS = frozenset({"name", "cache_group", "max_priority", "weight", "work_per_s", "burst_s"})
HARMLESS |= LimitsConfig.model_fields.keys()
"""Fields whose values an error may repeat; anything else could be a key in the wrong place."""


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
    """All tenants of a deployment, found by their keys; where there are none, anybody may use it.

    Args:
        hashes: SHA-256 of each key, with the tenant that it belongs to.
        expire_unix_s: Until when they count, by their hashes; those that are not named count for ever.
    """

    def __init__(
        self, hashes: Sequence[tuple[bytes, Tenant]], expire_unix_s: Mapping[bytes, float] = NEVER_EXPIRE
    ) -> None:
        self._hashes = tuple(hashes)
        self._expire_unix_s = expire_unix_s

    def __bool__(self) -> bool:
        """Whether there are any, so that a request needs a key."""
        return bool(self._hashes)

    @property
    def may_load_adapters(self) -> bool:
        """Whether any of them may, so that a name that is none yet may become one."""
        return any(tenant.may_load_adapters for _, tenant in self._hashes)

    @property
    def models(self) -> frozenset[str]:
        """Models that are named as those that some may use."""
        return frozenset(model for _, tenant in self._hashes for model in tenant.models or ())

    @property
    def terms(self) -> TenantTermsByName:
        """What policies are told of those about whom there is something to tell, by name."""
        return {tenant.name: tenant.terms for _, tenant in self._hashes if tenant.terms != USUAL_TERMS}

    def of_key(self, key: bytes, now_unix_s: float = 0.0) -> Tenant | None:
        """The tenant that has this key, unless it has expired.

        Compares with every key there is, each in constant time: how long it takes says nothing about any of them.
        """
        presented = sha256(key).digest()
        found = None
        for known, tenant in self._hashes:
            if hmac.compare_digest(known, presented):
                found = tenant
        return found if now_unix_s < self._expire_unix_s.get(presented, math.inf) else None


ANYBODY = Tenants(())
"""Of a deployment that names none."""


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


def new_key() -> tuple[str, str]:
    """A key that nobody has, and its hash as the file has it."""
    key = KEY_PREFIX + secrets.token_urlsafe(KEY_BYTES)
    return key, HASH + sha256(key.encode()).hexdigest()


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
    entries = _parse(place, _read(place)).tenants
    names: set[str] = set()
    hashes: dict[str, Tenant] = {}
    expire_unix_s: dict[bytes, float] = {}
    for number, entry in enumerate(entries):
        if entry.name in names:
            raise ConfigError(f"{FIELD} {place}: tenants.{number}.name", entry.name, "each name once")
        names.add(entry.name)
        for key_number, key in enumerate(entry.keys):
            known = key.hash
            if known in hashes:
                where = f"{FIELD} {place}: tenants.{number}.keys.{key_number}"
                raise ConfigError(where, f"the key of {hashes[known].name}", "each key once")
            hashes[known] = entry.tenant()
            expire_unix_s[_digest_of(known)] = key.expires_unix_s
    return Tenants([(_digest_of(known), tenant) for known, tenant in hashes.items()], expire_unix_s)


def _digest_of(known: str) -> bytes:
    return bytes.fromhex(known.removeprefix(HASH))


Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]


KeyHash = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]


class _KeyEntry(BaseModel):
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
    def expires_unix_s(self) -> float:
        """The first moment of that day."""
        day = self.expires
        return math.inf if day is None else datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()


class TenantEntry(TermsConfig):
    """One of the ``tenants`` in the file that ``gateway.tenants`` names.

    Args:
        name: As policies and logs see it.
        keys: SHA-256 of each of its keys, or that and when it expires; two while it changes from one to the other.
        max_priority: The highest class that it may claim.
        models: Ids of the models and adapters that it may use; all when not given.
        may_load_adapters: Whether it may load adapters, for all, and unload them.
        cache_group: Tenants with the same group share KV of equal prompts, and by it can tell whether another one has
            sent such a prompt of late. Its own name when not given: it shares with nobody.
        limits: What its clients may ask for.
    """

    name: Name
    keys: Annotated[list[_KeyEntry], Field(min_length=1)]
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


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    tenants: Annotated[list[TenantEntry], Field(min_length=1)]


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


def main(arguments: list[str] | None = None) -> int:
    """Command line: makes a key."""
    parser = argparse.ArgumentParser(prog="python -m deployments.tenants", description="API keys of tenants.")
    commands = parser.add_subparsers(dest="command", required=True)
    new = commands.add_parser("new-key", help="a new key: shown once, and nowhere kept")
    new.add_argument("name", metavar="NAME", help="the tenant's name")
    options = parser.parse_args(arguments)
    key, its_hash = new_key()
    try:
        TenantEntry(name=options.name, keys=[_KeyEntry(hash=its_hash)])
    except ValidationError:
        print(f"{options.name!r} is no name: letters, digits, '.', '_' and '-', 128 at most", file=sys.stderr)
        return 2
    entry = yaml.safe_dump({"tenants": [{"name": options.name, "keys": [its_hash]}]}, sort_keys=False)
    print(f"# the key, for the tenant; it is not shown again\n{key}\n")
    print(f"# the tenant, for the file that gateway.tenants names\n{entry}", end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
