"""A request that no client has sent: does an engine answer at all, and how fast?"""

from collections.abc import Sequence
from zlib import crc32

from engines.contract import NO_POOLING, ONE_STEP, EngineRequest, Pooling, PoolingTask, Sampling

NUM_IDS, OWN_TOKENS = 7, 12
"""Token ids from 1 on, which every model has; so many of the first say which request it is, in that base."""


def probe_request(
    request_id: str, pooling_tasks: Sequence[PoolingTask], prompt_tokens: int, output_tokens: int
) -> EngineRequest:
    """A prompt of which nothing is cached, and an answer of exactly so many tokens, or a vector.

    Args:
        request_id: Unique among everything that the engine has open.
        pooling_tasks: What the engine makes of prompts; none: it gives answers.
        prompt_tokens: Length of the prompt.
        output_tokens: Length of the answer.
    """
    number = crc32(request_id.encode())
    own = [number // NUM_IDS**place for place in range(OWN_TOKENS)]
    return EngineRequest(
        request_id=request_id,
        prompt_token_ids=[1 + each % NUM_IDS for each in (*own, *range(OWN_TOKENS, prompt_tokens))][:prompt_tokens],
        sampling=ONE_STEP if pooling_tasks or output_tokens == 1 else _exactly(output_tokens),
        pooling=Pooling(pooling_tasks[0]) if pooling_tasks else NO_POOLING,
    )


def _exactly(output_tokens: int) -> Sampling:
    return Sampling(max_tokens=output_tokens, temperature=0.0, ignore_eos=True)
