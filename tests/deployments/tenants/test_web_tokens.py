"""Tokens of an identity provider: which of them count, and whose they are."""

import json
import os
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import Any

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.clock import unix_s
from deployments.tenants.web_tokens import LEEWAY_S, LOOK_EVERY_S, MOST_BYTES, NoPublicKeys, PublicKeys, WebTokens
from tests.deployments.tenants.web_tokens import AUDIENCE, ISSUER, Provider
from tests.tables import for_each

PROVIDER, STRANGER = Provider(), Provider()


class Clock:
    """Stands still until it is moved."""

    time_s = 0.0

    def now_s(self) -> float:
        return self.time_s


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return PROVIDER.publish(tmp_path / "jwks.json")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def tokens(file: Path, clock: Clock) -> WebTokens:
    return WebTokens(ISSUER, AUDIENCE, "sub", PublicKeys(file, clock.now_s))


@for_each("key", ["RS256", "ES256"])
def test_a_token_that_the_issuer_has_signed_names_its_tenant(tokens: WebTokens, key: str) -> None:
    assert tokens.tenant_named_by(PROVIDER.token(key)) == "shop"
    assert tokens.tenant_named_by(PROVIDER.token(key, aud=["other", AUDIENCE], sub="lab")) == "lab"


def test_another_claim_may_name_the_tenant(file: Path, clock: Clock) -> None:
    tokens = WebTokens(ISSUER, AUDIENCE, "tenant", PublicKeys(file, clock.now_s))

    assert tokens.tenant_named_by(PROVIDER.token(tenant="shop", sub="7f3a")) == "shop"
    assert tokens.tenant_named_by(PROVIDER.token(sub="shop")) == ""


@for_each(
    "claims",
    [
        {"iss": "https://login.example.com"},
        {"iss": None},
        {"aud": "another"},
        {"aud": None},
        {"exp": None},
        {"exp": "tomorrow"},
        {"exp": 1},
        {"nbf": 1 << 40},
        {"sub": None},
        {"sub": ""},
        {"sub": 7},
        {"sub": ["shop"]},
    ],
)
def test_what_is_not_for_this_deployment_or_not_now_names_nobody(tokens: WebTokens, claims: dict[str, Any]) -> None:
    key = PROVIDER.keys["RS256"]
    said = {"iss": ISSUER, "aud": AUDIENCE, "exp": unix_s() + 60, "sub": "shop", **claims}
    said = {claim: value for claim, value in said.items() if value is not None}
    signed = jwt.api_jws.encode(json.dumps(said).encode(), key, "RS256", {"kid": "RS256"})

    assert tokens.tenant_named_by(signed.encode()) == ""


def test_an_issuers_clock_may_be_a_little_late(tokens: WebTokens) -> None:
    assert tokens.tenant_named_by(PROVIDER.token(exp=unix_s() - LEEWAY_S / 2)) == "shop"
    assert tokens.tenant_named_by(PROVIDER.token(exp=unix_s() - 2 * LEEWAY_S)) == ""


def test_what_somebody_else_has_signed_names_nobody(tokens: WebTokens, file: Path) -> None:
    said = {"iss": ISSUER, "aud": AUDIENCE, "exp": unix_s() + 60, "sub": "shop"}
    public = json.loads(file.read_text())["keys"][0]["n"]
    forged = [
        STRANGER.token(),
        PROVIDER.token(key_id="ES256"),
        PROVIDER.token(key_id="unknown"),
        PROVIDER.token(key_id=None),
        jwt.encode(said, "", "none", {"kid": "RS256"}).encode(),
        jwt.encode(said, public, "HS256", {"kid": "RS256"}).encode(),
        PROVIDER.token()[:-4] + b"AAAA",
        PROVIDER.token() + b"." + b"A" * MOST_BYTES,
    ]
    assert [tokens.tenant_named_by(each) for each in forged] == [""] * len(forged)


def _encoded(text: bytes) -> bytes:
    return urlsafe_b64encode(text).rstrip(b"=")


@given(parts=st.lists(st.binary(max_size=40) | st.sampled_from([b'{"alg":"RS256"}', b"[" * 3000]), max_size=4))
def test_whatever_comes_in_the_place_of_a_token_names_nobody(tmp_path_factory: Any, parts: list[bytes]) -> None:
    file = PROVIDER.publish(tmp_path_factory.getbasetemp() / "any.json", "RS256")
    tokens = WebTokens(ISSUER, AUDIENCE, "sub", PublicKeys(file, Clock().now_s))

    assert tokens.tenant_named_by(b".".join(parts)) == ""
    assert tokens.tenant_named_by(b".".join(map(_encoded, parts))) == ""


def test_a_token_that_names_no_key_is_of_the_only_one(tmp_path: Path, clock: Clock) -> None:
    file = PROVIDER.publish(tmp_path / "one.json", "RS256")
    tokens = WebTokens(ISSUER, AUDIENCE, "sub", PublicKeys(file, clock.now_s))

    assert tokens.tenant_named_by(PROVIDER.token(key_id=None)) == "shop"


def changed(file: Path, *names: str) -> None:
    """The file is another one, whatever the clock of its file system says."""
    before = file.stat().st_mtime_ns
    PROVIDER.publish(file, *names)
    os.utime(file, ns=(before + 1_000_000, before + 1_000_000))


def test_a_key_that_the_file_has_no_more_does_not_count_any_longer(tokens: WebTokens, file: Path, clock: Clock) -> None:
    assert tokens.tenant_named_by(PROVIDER.token("ES256")) == "shop"
    changed(file, "RS256")
    clock.time_s = LOOK_EVERY_S

    assert tokens.tenant_named_by(PROVIDER.token("ES256")) == ""
    assert tokens.tenant_named_by(PROVIDER.token("RS256")) == "shop"


def test_a_file_that_has_become_unreadable_leaves_the_keys_as_they_were(
    tokens: WebTokens, file: Path, clock: Clock
) -> None:
    for text in ("{", None):
        file.unlink() if text is None else file.write_text(text)
        clock.time_s += LOOK_EVERY_S
        assert tokens.tenant_named_by(PROVIDER.token()) == "shop"


@for_each(
    ("said", "wanted"),
    [
        (b"{", "a file with a JSON Web Key Set"),
        (b"\xff", "a file with a JSON Web Key Set"),
        (b"[]", "an object whose keys"),
        (b'{"keys": 7}', "an object whose keys"),
        (b'{"keys": [7]}', "an object whose keys"),
        (b'{"keys": []}', "a key for signatures"),
        (b'{"keys": [{"kty": "RSA", "use": "enc"}]}', "a key for signatures"),
        (b'{"keys": [{"kty": "RSA"}]}', "keys that can be used"),
        (b'{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}', "public keys alone"),
        (b'{"keys": [{"kty": "RSA", "n": "AQAB", "e": "AQAB", "d": "c2VjcmV0"}]}', "public keys alone"),
    ],
)
def test_a_file_without_public_keys_is_refused_and_nothing_of_it_is_shown(
    tmp_path: Path, clock: Clock, said: bytes, wanted: str
) -> None:
    (tmp_path / "jwks.json").write_bytes(said)
    with pytest.raises(NoPublicKeys, match=wanted) as caught:
        PublicKeys(tmp_path / "jwks.json", clock.now_s)
    assert "c2VjcmV0" not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
