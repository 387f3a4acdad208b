import hmac
from datetime import UTC, date, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from cluster.config.terms import LimitsConfig
from deployments import launch
from deployments.app import build
from deployments.config import ROOT, validated
from deployments.tenants.__main__ import main
from deployments.tenants.keys import new_key
from deployments.tenants.tenants import ANYBODY, Tenant, Tenants
from deployments.tenants.tenants_file import load_tenants
from policies import Priority, Quota, TenantTerms
from policies.errors import ConfigError
from tests.deployments.app_args import args, error_of
from tests.deployments.tenants.web_tokens import AUDIENCE, ISSUER, Provider
from tests.tables import for_each

EXAMPLE = ROOT / "deployments" / "configs" / "tenants.example.yaml"
SECRET = "sk-spillway-somebodys"


def hash_of(key: str) -> str:
    return f"sha256:{sha256(key.encode()).hexdigest()}"


def an_entry(name: str = "shop", *keys: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "keys": [hash_of(key) for key in keys or (name,)], **fields}


def loaded(tmp_path: Path, *entries: dict[str, Any]) -> Tenants:
    file = tmp_path / "tenants.yaml"
    file.write_text(yaml.safe_dump({"tenants": list(entries)}))
    found = load_tenants(str(file))
    assert found is not None
    return found


def error_in(tmp_path: Path, text: str) -> ConfigError:
    file = tmp_path / "tenants.yaml"
    file.write_text(text)
    error = error_of(load_tenants, str(file))
    assert error.__cause__ is None
    return error


def test_a_key_finds_its_tenant_and_what_that_is_entitled_to(tmp_path: Path) -> None:
    found = loaded(
        tmp_path,
        an_entry("shop", "one", "two", max_priority="critical", weight=4, quota={"work_per_s": 0.5, "burst_s": 5}),
        an_entry("reports", "three"),
    )
    terms = TenantTerms(weight=4.0, quota=Quota(work_per_s=0.5, burst_s=5.0))
    shop = Tenant(name="shop", max_priority=Priority.CRITICAL, terms=terms, cache_group="shop")

    assert [found.of_key(key) for key in (b"one", b"two")] == [shop, shop]
    assert found.of_key(b"three") == Tenant(name="reports", max_priority=Priority.STANDARD, cache_group="reports")
    assert found.of_key(b"four") is found.of_key(b"") is None
    assert found.of_key(hash_of("one").encode()) is None, "the hash is no key"


def test_a_key_counts_until_the_day_on_which_it_expires(tmp_path: Path) -> None:
    entry = an_entry("shop", "old", "new")
    entry["keys"][0] = {"hash": entry["keys"][0], "expires": date(2027, 1, 31)}
    found = loaded(tmp_path, entry)
    first_moment_unix_s = datetime(2027, 1, 31, tzinfo=UTC).timestamp()

    assert found.of_key(b"old", first_moment_unix_s - 0.001) == found.of_key(b"new", first_moment_unix_s)
    assert found.of_key(b"old", first_moment_unix_s) is None


def test_a_tenants_limits_are_those_of_all_its_keys(tmp_path: Path) -> None:
    found = loaded(tmp_path, an_entry("shop", "one", "two", limits={"requests_per_min": 60}))
    tenants = [found.of_key(key) for key in (b"one", b"two")]
    assert [each and each.limits for each in tenants] == [LimitsConfig(requests_per_min=60)] * 2


def test_policies_are_told_of_those_about_whom_there_is_something_to_tell(tmp_path: Path) -> None:
    found = loaded(
        tmp_path,
        an_entry("heavy", "one", "two", weight=4),
        an_entry("limited", "three", quota={"work_per_s": 0.5, "burst_s": 5}),
        an_entry("usual", "four", weight=1),
    )

    assert found.terms == {
        "heavy": TenantTerms(weight=4.0),
        "limited": TenantTerms(quota=Quota(work_per_s=0.5, burst_s=5.0)),
    }
    assert ANYBODY.terms == {}


def test_a_token_finds_the_tenant_that_it_names_with_a_key_of_its_own_or_without(tmp_path: Path) -> None:
    provider, file = Provider(), tmp_path / "tenants.yaml"
    jwks = provider.publish(tmp_path / "jwks.json")
    tokens = {"issuer": ISSUER, "audience": AUDIENCE, "jwks": str(jwks), "tenant_claim": "tenant"}
    named_alone = {"name": "lab", "models": ["llama"], "weight": 2}
    file.write_text(yaml.safe_dump({"tenants": [an_entry("shop", "one"), named_alone], "tokens": tokens}))
    found = load_tenants(str(file))

    assert (
        found.of_key(provider.token(tenant="shop"))
        == found.of_key(b"one")
        == Tenant(name="shop", max_priority=Priority.STANDARD, cache_group="shop")
    )
    lab = found.of_key(provider.token(tenant="lab"))
    assert lab is not None
    assert (lab.name, lab.terms, lab.models) == ("lab", TenantTerms(weight=2.0), frozenset({"llama"}))
    assert found.terms == {"lab": lab.terms}
    assert found.models == lab.models
    assert found.of_key(provider.token(tenant="nobody")) is found.of_key(Provider().token(tenant="lab")) is None


def test_a_variable_of_the_environment_can_hold_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ITS_TENANTS", yaml.safe_dump({"tenants": [an_entry("shop", "one")]}))
    found = load_tenants("env:ITS_TENANTS")
    assert found is not None
    assert found.of_key(b"one") == Tenant(name="shop", max_priority=Priority.STANDARD, cache_group="shop")


def test_without_a_place_there_are_no_tenants() -> None:
    assert load_tenants(None) is ANYBODY


def test_a_relative_path_begins_at_the_applications_folder_and_the_example_is_valid() -> None:
    assert load_tenants(str(EXAMPLE.relative_to(ROOT))) is not None


@for_each("place", ["nowhere.yaml", "deployments", "env:NOT_SET_ANYWHERE"])
def test_a_place_where_there_is_nothing_is_a_wrong_configuration(place: str) -> None:
    error = error_of(load_tenants, place)
    assert (error.field, error.value) == ("gateway.tenants", place)


def document(**fields: Any) -> str:
    return yaml.safe_dump({"tenants": [an_entry() | fields]})


@for_each(
    ("text", "field", "allowed"),
    [
        ("", "document", "a mapping"),
        ("[]", "document", "a mapping"),
        ("tenants: []", "tenants", "1 or more entries"),
        (document(name="a b"), "tenants.0.name", "text that matches"),
        (document(name=7), "tenants.0.name", "text"),
        (document(keys=[]), "tenants.0.keys", "a key at the least, or tokens beside tenants"),
        (document() + "tokens: {}", "tokens.issuer", "no default"),
        (document() + "tokens: {issuer: i, audience: a, jwks: ''}", "tokens.jwks", "1 or more characters"),
        (document() + "tokens: {issuer: i, audience: a, jwks: nowhere.json}", "tokens.jwks", "JSON Web Key Set"),
        (document(keys=["sha256:" + "0" * 63]), "tenants.0.keys.0.hash", "new-key NAME"),
        (document(keys=[{"hash": hash_of("a"), "expires": "soon"}]), "tenants.0.keys.0.expires", "date"),
        (document(keys=[{"hash": hash_of("a"), "until": 1}]), "tenants.0.keys.0.until", "no field of this name"),
        (document(limits={"requests_per_min": 0}), "tenants.0.limits.requests_per_min", "1 or more"),
        (document(limits={"requests": 5}), "tenants.0.limits.requests", "no field of this name"),
        (document(max_priority="urgent"), "tenants.0.max_priority", "'critical', 'standard' or 'sheddable'"),
        (document(weight=0), "tenants.0.weight", "0.001 or more"),
        (document(weight=1001), "tenants.0.weight", "1000 or less"),
        (document(weight=float("inf")), "tenants.0.weight", "finite"),
        (document(weight=float("nan")), "tenants.0.weight", "finite"),
        (document(quota={"work_per_s": 1}), "tenants.0.quota.burst_s", "no default"),
        (document(quota={"work_per_s": -1, "burst_s": 1}), "tenants.0.quota.work_per_s", "more than 0"),
        (document(colour="red"), "tenants.0.colour", "no field of this name"),
        (yaml.safe_dump({"tenants": [an_entry("a", "1"), an_entry("a", "2")]}), "tenants.1.name", "each name once"),
        (yaml.safe_dump({"tenants": [an_entry("a", "1"), an_entry("b", "2", "1")]}), "tenants.1.keys.1", "each key"),
    ],
)
def test_a_wrong_value_is_named_with_its_place(tmp_path: Path, text: str, field: str, allowed: str) -> None:
    error = error_in(tmp_path, text)
    assert error.field == f"gateway.tenants {tmp_path / 'tenants.yaml'}: {field}"
    assert allowed in error.allowed


@for_each(
    "text",
    [
        f"tenants: {{{SECRET}",
        f"tenants:\n  - name: shop\n   keys: {SECRET}",
        f"{SECRET}: 1",
        f"tenants: *{SECRET}",
        SECRET,
        document(keys=[SECRET]),
        document(keys=SECRET),
        document(key=SECRET),
        document(quota=SECRET),
        document(keys={"a": SECRET}),
        yaml.safe_dump({"tenants": [{"keys": [SECRET]}]}),
        yaml.safe_dump({"tenants": SECRET}),
    ],
)
def test_no_message_shows_a_key_that_was_put_into_the_file(tmp_path: Path, text: str) -> None:
    error = error_in(tmp_path, text)
    if not text.startswith(f"{SECRET}:"):  # the name of a field is shown, or nobody would find it
        assert SECRET not in f"{error} {error.__context__ if not error.__suppress_context__ else ''}"


def test_what_is_known_of_a_tenant_has_no_key_and_no_hash(tmp_path: Path) -> None:
    found = loaded(tmp_path, an_entry("shop", "one"))
    assert hash_of("one").removeprefix("sha256:") not in repr((found, found.of_key(b"one")))


def test_tenants_that_cannot_be_read_keep_the_application_from_starting(tmp_path: Path) -> None:
    wrong = args(gateway={"tenants": "nowhere.yaml"})
    config = tmp_path / "serve.yaml"
    config.write_text(yaml.safe_dump({"applications": [{"import_path": "deployments.app:build", "args": wrong}]}))
    for error in (error_of(build, validated(wrong)), error_of(launch.load, config)):
        assert "gateway.tenants: got 'nowhere.yaml'" in str(error)


@given(keys=st.sets(st.binary(min_size=1, max_size=40), min_size=1, max_size=8), other=st.binary(max_size=40))
def test_a_key_opens_for_its_own_tenant_and_no_other(keys: set[bytes], other: bytes) -> None:
    owners = {key: Tenant(name=key.hex(), max_priority=Priority.STANDARD) for key in keys}
    found = Tenants(owners.values(), {sha256(key).digest(): owner for key, owner in owners.items()})
    assert {key: found.of_key(key) for key in keys} == owners
    assert found.of_key(other) == owners.get(other)


@pytest.mark.parametrize("key", [b"0", b"7", b"nobody's"])
def test_every_key_is_compared_with_all_of_them_whether_or_not_it_is_among_the_first(
    monkeypatch: pytest.MonkeyPatch, key: bytes
) -> None:
    owner = Tenant(name="shop", max_priority=Priority.STANDARD)
    found = Tenants([owner], {sha256(str(number).encode()).digest(): owner for number in range(8)})
    compared: list[bytes] = []
    compare = hmac.compare_digest

    def counting(known: bytes, presented: bytes) -> bool:
        compared.append(known)
        return compare(known, presented)

    monkeypatch.setattr(hmac, "compare_digest", counting)
    found.of_key(key)

    assert len(compared) == 8


def test_no_two_new_keys_are_the_same_and_each_fits_its_hash() -> None:
    made = [new_key() for _ in range(100)]
    assert len({key for key, _ in made}) == 100
    assert all(hash_of(key) == its_hash for key, its_hash in made)
    assert all(key.startswith("sk-spillway-") and len(key) >= 50 for key, _ in made)


def test_the_command_prints_a_key_and_the_lines_for_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new-key", "123"]) == 0
    printed = capsys.readouterr().out
    (key,) = [line for line in printed.splitlines() if line.startswith("sk-")]
    file = tmp_path / "tenants.yaml"
    file.write_text(printed.replace(key, ""))
    found = load_tenants(str(file))

    assert printed.count(key) == 1
    assert found is not None
    assert found.of_key(key.encode()) == Tenant(name="123", max_priority=Priority.STANDARD, cache_group="123")


def test_the_command_refuses_what_is_no_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new-key", "a shop"]) == 2
    printed = capsys.readouterr()
    assert "'a shop' is no name" in printed.err
    assert not printed.out
