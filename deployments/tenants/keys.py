"""API keys: made here, shown once, and kept as hashes alone."""

import secrets
from hashlib import sha256

HASH = "sha256:"
KEY_PREFIX = "sk-spillway-"
KEY_BYTES = 32


def new_key() -> tuple[str, str]:
    """A key that nobody has, and its hash as the file has it."""
    key = KEY_PREFIX + secrets.token_urlsafe(KEY_BYTES)
    return key, HASH + sha256(key.encode()).hexdigest()
