"""An identity provider: its keys, their public halves in a file, and tokens that it gives."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from cluster.clock import unix_s

ISSUER, AUDIENCE = "https://login.example.org", "spillway"


@dataclass(frozen=True, slots=True)
class Provider:
    """Signs with one key of each kind.

    Args:
        keys: By what they are called, which is also the algorithm.
    """

    keys: Mapping[str, rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey] = field(
        default_factory=lambda: {
            "RS256": rsa.generate_private_key(public_exponent=65537, key_size=2048),
            "ES256": ec.generate_private_key(ec.SECP256R1()),
        }
    )

    def public_keys(self, *names: str) -> dict[str, Any]:
        """What the provider publishes of these."""
        return {"keys": [self._public(name) for name in names or tuple(self.keys)]}

    def publish(self, file: Path, *names: str) -> Path:
        """Writes it into a file."""
        file.write_text(json.dumps(self.public_keys(*names)))
        return file

    def token(self, name: str = "RS256", key_id: str | None = "", **claims: Any) -> bytes:
        """A token for a minute, of a tenant ``shop``, but for what is said otherwise; ``None`` leaves that out."""
        usual = {"iss": ISSUER, "aud": AUDIENCE, "exp": unix_s() + 60, "sub": "shop"}
        said = {claim: value for claim, value in {**usual, **claims}.items() if value is not None}
        headers = {} if key_id is None else {"kid": key_id or name}
        return jwt.encode(said, self.keys[name], name, headers).encode()

    def _public(self, name: str) -> dict[str, Any]:
        algorithm = jwt.get_algorithm_by_name(name)
        return {**json.loads(algorithm.to_jwk(self.keys[name].public_key())), "kid": name, "use": "sig"}
