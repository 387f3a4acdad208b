"""What an engine core did, step by step: the raw material of calibration.

Entries are in the engine core's own time and say how many tokens a step computed; whose they were follows from the
order in which prompts were submitted (:mod:`engines.calibration.samples`).
"""

from collections.abc import Callable
from typing import NamedTuple


class SequenceOutput(NamedTuple):
    """What one sequence got out of a step.

    Args:
        request_id: As the engine was given it.
        num_tokens: New tokens.
        is_last: The sequence is finished.
        cached_tokens: Prompt tokens that were in the prefix cache; on a sequence's first output only.
        queued_s: When the scheduler got the request, on the clock of ``EngineStep.ended_s``; on the first output only.
    """

    request_id: str
    num_tokens: int
    is_last: bool
    cached_tokens: int | None = None
    queued_s: float | None = None


class EngineStep(NamedTuple):
    """One step of an engine core.

    Args:
        ended_s: When its outputs were ready, by the monotonic clock that all processes of a machine share.
        prompt_tokens: Prompt tokens that it computed.
        prompt_sequences: Sequences that these belong to.
        decode_sequences: Sequences that it decoded a token for.
        outputs: Sequences that got tokens.
    """

    ended_s: float
    prompt_tokens: int
    prompt_sequences: int
    decode_sequences: int
    outputs: tuple[SequenceOutput, ...]


OnStep = Callable[[EngineStep], None]


class EngineSizes(NamedTuple):
    """What a profile needs beside :class:`engines.contract.EngineInfo`, as the engine itself says.

    Args:
        max_num_batched_tokens: Tokens in a step.
        kv_bytes_per_token: Bytes of KV for one token, all layers together.
        runs_ahead: Whether it launches a step before it tells the end of the one before.
    """

    max_num_batched_tokens: int
    kv_bytes_per_token: int
    runs_ahead: bool = False
