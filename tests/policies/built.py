"""Sets of policies of which a test names one; the others are those by default."""

from collections.abc import Mapping
from typing import Any

import pytest

from cluster import Seeds
from policies import ConfigError, Need, PolicyChoice, PolicySet, PolicySpec, build

EVERY_NEED = frozenset(Need)


def built(
    question: str = "",
    name: str = "",
    params: Mapping[str, Any] | None = None,
    *,
    provided: frozenset[Need] = EVERY_NEED,
    seed: int = 1,
    **host: Any,
) -> PolicySet:
    """Built for a host that has a lane `small` to fall back to; what else it says of itself is in ``host``."""
    spec = PolicySpec(**{question: PolicyChoice(name=name, params=dict(params or {}))} if question else {})
    return build(spec, rng_for=Seeds(seed).stream, provided=provided, fallback_lanes=("small",), **host)


def refusal_of(question: str, name: str, params: Mapping[str, Any] | None = None, **host: Any) -> ConfigError:
    """What is wrong with a policy that can't be built."""
    with pytest.raises(ConfigError) as caught:
        built(question, name, params, **host)
    return caught.value
