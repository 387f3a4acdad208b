"""Tokens of an identity provider in the place of keys: JSON Web Tokens (RFC 7519), as OpenID Connect's are."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt

LOGGER = logging.getLogger("ray.serve")
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Those with a public key: whoever reads a gateway's files can make no token."""
SECRET_FIELDS = {"d", "k"}
"""Of a private key, and of one that both sides have."""
MOST_BYTES = 8_192
LEEWAY_S = 30.0
"""How far an issuer's clock may be from a gateway's."""
LOOK_EVERY_S = 5.0
NowS = Callable[[], float]


class NoPublicKeys(ValueError):
    """A file is no set of public keys; says what it has to be, and repeats nothing that is in it."""


class PublicKeys:
    """An issuer's public keys: a JSON Web Key Set (RFC 7517) in a file, which is read again when that has changed.

    Args:
        path: The file.
        now_s: The gateway's clock.

    Raises:
        NoPublicKeys: It can't be read, or is no such set.
    """

    def __init__(self, path: Path, now_s: NowS) -> None:
        self._path = path
        self._now_s = now_s
        self._looked_s = now_s()
        self._keys, self._version = self._read()

    def key(self, key_id: str | None) -> jwt.PyJWK:
        """The key of that id; without one, the only key that there is.

        Raises:
            PyJWTError: There is none.
        """
        self._look()
        if key_id is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        if key_id in self._keys:
            return self._keys[key_id]
        raise jwt.InvalidKeyError("no key of that id")

    def _look(self) -> None:
        """A file that has become unreadable changes nothing: who has a token goes on."""
        if self._now_s() - self._looked_s < LOOK_EVERY_S:
            return
        self._looked_s = self._now_s()
        try:
            if self._path.stat().st_mtime_ns != self._version:
                self._keys, self._version = self._read()
        except (OSError, NoPublicKeys) as error:
            LOGGER.warning("%s: the keys stay as they were: %s", self._path, str(error))

    def _read(self) -> tuple[dict[str | None, jwt.PyJWK], int]:
        try:
            version = self._path.stat().st_mtime_ns
            said = json.loads(self._path.read_text())
        except (OSError, ValueError, RecursionError) as error:
            raise NoPublicKeys(f"a file with a JSON Web Key Set ({type(error).__name__})") from None
        entries = said.get("keys") if isinstance(said, dict) else None
        if not isinstance(entries, list) or not all(isinstance(each, dict) for each in entries):
            raise NoPublicKeys("a JSON Web Key Set: an object whose keys are a list of objects")
        if any(SECRET_FIELDS & each.keys() for each in entries):
            raise NoPublicKeys("public keys alone, without d and k")
        try:
            usable = [jwt.PyJWK(each) for each in entries if each.get("use", "sig") == "sig"]
        except (jwt.PyJWTError, ValueError, TypeError) as error:
            raise NoPublicKeys(f"keys that can be used ({type(error).__name__})") from None
        if not usable:
            raise NoPublicKeys("a JSON Web Key Set with a key for signatures")
        return {each.key_id: each for each in usable}, version


class NoWebTokens:
    """Keys alone count."""

    def __bool__(self) -> bool:
        """There are none."""
        return False

    def tenant_named_by(self, token: bytes) -> str:
        """Nobody."""
        return ""


class WebTokens(NoWebTokens):
    """What one issuer's tokens say.

    Args:
        issuer: As their ``iss`` has to be.
        audience: As their ``aud`` has to be, or one of it.
        claim: That names the tenant.
        keys: With which the issuer signs.
    """

    def __init__(self, issuer: str, audience: str, claim: str, keys: PublicKeys) -> None:
        self._claim = claim
        self._keys = keys
        self._wanted: dict[str, Any] = {
            "algorithms": ALGORITHMS,
            "issuer": issuer,
            "audience": audience,
            "leeway": LEEWAY_S,
            "options": {"require": ["exp", "iss", "aud", claim]},
        }

    def __bool__(self) -> bool:
        """There are some."""
        return True

    def tenant_named_by(self, token: bytes) -> str:
        """The tenant's name; empty for what is no token of the issuer's, is for somebody else, or has expired."""
        if len(token) > MOST_BYTES or token.count(b".") != 2:
            return ""
        try:
            key = self._keys.key(jwt.get_unverified_header(token).get("kid"))
            name = jwt.decode(token, key, **self._wanted)[self._claim]
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
            return ""
        return name if isinstance(name, str) else ""


NO_WEB_TOKENS = NoWebTokens()
