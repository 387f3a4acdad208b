"""A small request that no client has sent: does an engine answer at all?"""

from collections.abc import Sequence

from engines.contract import NO_POOLING, ONE_STEP, EngineRequest, Pooling, PoolingTask

PROBE_TOKENS = 8


def probe_request(request_id: str, pooling_tasks: Sequence[PoolingTask]) -> EngineRequest:
    """A prompt, and one token of an answer, or a vector.

    Args:
        request_id: Unique among everything that the engine has open.
        pooling_tasks: What the engine makes of prompts; none: it gives answers.
    """
    return EngineRequest(
        request_id=request_id,
        prompt_token_ids=[1 + position % 7 for position in range(PROBE_TOKENS)],
        sampling=ONE_STEP,
        pooling=Pooling(pooling_tasks[0]) if pooling_tasks else NO_POOLING,
    )
