"""The least that an application is made from, and what is wrong with what is not right."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from policies.errors import ConfigError

UNIFIED = {
    "model": {"id": "tiny", "path": ".models/tiny-llama"},
    "pools": [{"name": "unified", "role": "unified"}],
    "policies": {"planning": "always_unified"},
}


def args(**changes: Any) -> dict[str, Any]:
    """One pool, and nothing else that could be left out; sections that are named take the place of those."""
    return {**copy.deepcopy(UNIFIED), **changes}


def error_of(call: Callable[..., object], *arguments: Any) -> ConfigError:
    """What a call has against its arguments."""
    with pytest.raises(ConfigError) as caught:
        call(*arguments)
    return caught.value
