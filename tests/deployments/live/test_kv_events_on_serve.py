"""What an engine says of its prefix cache reaches its gateway through Ray Serve, in front of an emulated engine."""

import pytest

from tests.deployments.live_cluster import Live
from tests.deployments.reloadable import Reloadable, headers_of
from tests.plain_http import HTTP

pytestmark = pytest.mark.ray

PROMPT_TOKENS = 5000
BLOCK_TOKENS = 64
"""Of a gateway: engines find a few tokens more."""


def cached_tokens(live: Live, first: int) -> tuple[float, float]:
    """What the gateway took to be cached of a prompt that begins with this token, and what the engine found."""
    names = "spillway_expected_cached_prompt_tokens_total", "spillway_cached_prompt_tokens_total"
    before = [live.metric(name) for name in names]
    prompt = [first, *(5 + position % 200 for position in range(PROMPT_TOKENS))]
    body = {"model": "tiny-llama", "prompt": prompt, "max_tokens": 2, "temperature": 1.0}
    HTTP.post(f"{live.url}/v1/completions", json=body, headers=headers_of("shop"), timeout=60).raise_for_status()
    expected, found = (live.metric(name) - earlier for name, earlier in zip(names, before, strict=True))
    return expected, found


def test_a_gateway_knows_what_its_engine_has_thrown_out(reloadable: Reloadable) -> None:
    live = reloadable.use(prefixes="block_hash")
    assert cached_tokens(live, 11) == (0, 0)

    expected, found = cached_tokens(live, 11)
    assert 0 <= found - expected < BLOCK_TOKENS
    assert found > PROMPT_TOKENS - BLOCK_TOKENS

    for first in (12, 13, 14):
        assert cached_tokens(live, first) == (0, 0)
    expected, found = cached_tokens(live, 11)
    assert 0 <= found - expected < BLOCK_TOKENS
    assert found < PROMPT_TOKENS / 2, "the others have taken the place of its end"
