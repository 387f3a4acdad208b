import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engines.model.profile import PROFILES, EngineProfile, load_profile, save_profile
from policies.errors import ConfigError
from tests.tables import for_each

SHIPPED = sorted(path.stem for path in PROFILES.glob("*.yaml"))


def content(**changes: Any) -> dict[str, Any]:
    """A shipped profile as plain values; ``step__step_s=...`` changes a field of a part, ``None`` removes one."""
    plain: dict[str, Any] = msgspec.to_builtins(load_profile(SHIPPED[0]))
    for name, value in changes.items():
        *parts, field = name.split("__")
        inner = plain
        for part in parts:
            inner = inner[part]
        if value is None:
            del inner[field]
        else:
            inner[field] = value
    return plain


def written(tmp_path: Path, plain: object) -> str:
    path = tmp_path / "mine.yaml"
    path.write_bytes(msgspec.yaml.encode(plain))
    return str(path)


@for_each("name", SHIPPED)
def test_a_profile_that_comes_with_spillway_says_where_its_numbers_come_from(name: str) -> None:
    profile = load_profile(name)

    provenance = profile.provenance
    assert profile.name == name
    assert all(each.strip() for each in (provenance.model, provenance.machine, provenance.method))
    assert datetime.date.fromisoformat(provenance.date)
    assert provenance.kind == "analytic" or (provenance.versions and provenance.residuals)
    assert profile.step_model(profile.limits()).num_kv_blocks == profile.kv.capacity_tokens // profile.kv.block_tokens


@for_each("name", SHIPPED)
def test_a_saved_profile_is_the_same_when_it_is_loaded_again(name: str, tmp_path: Path) -> None:
    profile = load_profile(name)

    save_profile(profile, tmp_path / "mine.yaml")

    assert load_profile(str(tmp_path / "mine.yaml")) == profile


@for_each(
    ("changes", "named"),
    [
        ({"colour": "green"}, "colour"),
        ({"kv__colour": "green"}, "colour"),
        ({"start_s": -1.0}, "start_s"),
        ({"step__step_s": -0.001}, "step_s"),
        ({"step__context_token_s": -1e-9}, "context_token_s"),
        ({"overheads__token_s": -1.0}, "token_s"),
        ({"kv__block_tokens": 0}, "block_tokens"),
        ({"kv__bandwidth_bytes_per_s": 0.0}, "bandwidth_bytes_per_s"),
        ({"max_num_seqs": "many"}, "max_num_seqs"),
        ({"provenance__kind": "guessed"}, "kind"),
        ({"name": None}, "name"),
        ({"step__sequence_s": None}, "sequence_s"),
        ({"provenance__machine": None}, "machine"),
    ],
)
def test_a_wrong_field_is_named(changes: dict[str, Any], named: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=named) as caught:
        load_profile(written(tmp_path, content(**changes)))

    assert caught.value.field == "profile"


@for_each("text", ["", "[1, 2]", "name: [", "name: x"])
def test_a_file_that_is_no_profile_is_named(text: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)

    with pytest.raises(ConfigError, match=r"mine\.yaml"):
        load_profile(str(path))


@for_each("name", ["no-such-profile", "no/such/file.yaml"])
def test_a_profile_that_is_not_there_is_named_beside_those_that_are(name: str) -> None:
    with pytest.raises(ConfigError, match=SHIPPED[0]) as caught:
        load_profile(name)

    assert caught.value.value == name


def test_limits_are_the_profiles_own_unless_a_pool_says_otherwise() -> None:
    profile = msgspec.convert(content(), EngineProfile)

    own, other = profile.limits(), profile.limits(max_num_seqs=3, max_num_batched_tokens=50, priority_scheduling=True)

    assert (own.max_num_seqs, own.max_num_batched_tokens) == (profile.max_num_seqs, profile.max_num_batched_tokens)
    assert (other.max_num_seqs, other.max_num_batched_tokens, other.priority_scheduling) == (3, 50, True)


def test_a_kv_cache_of_less_than_one_block_is_refused() -> None:
    profile = msgspec.convert(content(), EngineProfile)

    with pytest.raises(ConfigError, match="kv_capacity_tokens"):
        profile.step_model(profile.limits(), kv_capacity_tokens=profile.kv.block_tokens - 1)
