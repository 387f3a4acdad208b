"""What a KV handoff has beside the KV: the answer's first token, who draws it, and what is left for the decode.

A prefill ends with the logits of the first token. Where it draws it, the client has it before the KV has moved, and the
decode spends no step on it. SGLang and TensorRT-LLM hand their first token over, too.
"""

import msgspec

from engines.contract import AWAITS_KV, Chunk, EngineInfo, EngineRequest, EngineStats


def comes_from_prefill(prompt_tokens: int, kv_block_tokens: int, *, is_resumable: bool) -> bool:
    """Whether the prefill draws it. Which token that is has no say, or what decodes draw would be biased.

    The decode goes on with it as with an answer that was interrupted, so it has to be one that can. And vLLM pulls as
    many blocks as the prompt takes with that token, and has all their text cached then: the prompt alone has to take as
    many, and that token, whose KV is still to be computed, must not fill the last one.

    Args:
        prompt_tokens: Tokens of the prompt, the answer so far included.
        kv_block_tokens: Tokens in a KV block.
        is_resumable: :attr:`engines.contract.Sampling.is_resumable`.
    """
    return is_resumable and prompt_tokens % kv_block_tokens not in (0, kv_block_tokens - 1)


def handed_over(chunk: Chunk, request: EngineRequest, context_tokens: int) -> Chunk:
    """What a prefill's handle has of the first token that it drew.

    Args:
        chunk: What the engine gave for the request as if no further token were wanted.
        request: The request.
        context_tokens: ``EngineInfo.context_tokens``.
    """
    most_tokens = min(request.sampling.max_tokens, context_tokens - len(request.prompt_token_ids))
    if most_tokens == 1 or chunk.finish_reason != "length":
        return msgspec.structs.replace(chunk, times=None)
    return msgspec.structs.replace(chunk, text="", finish_reason=None, times=AWAITS_KV)


def left_for_decode(request: EngineRequest, first: Chunk | None) -> EngineRequest:
    """What a decode runs of a request whose handle has that first token; of a whole answer it only pulls the KV."""
    if first is not None and first.finish_reason is None:
        return request.after(first.token_ids, request.answered_chars)
    sampling = msgspec.structs.replace(request.sampling, prompt_logprobs=None)
    if first is not None:
        sampling = msgspec.structs.replace(sampling, max_tokens=1, min_tokens=0)
    return msgspec.structs.replace(request, sampling=sampling)


def has_room(
    prompt_tokens: int, *, num_running: int, max_num_seqs: int, kv_cache_usage: float, kv_capacity_tokens: int
) -> bool:
    """Whether a decode's engine pulls the KV at once, for a first token that a client gets is one that others follow.

    Args:
        prompt_tokens: Tokens of the prompt.
        num_running: Sequences that the engine runs.
        max_num_seqs: Those that it could.
        kv_cache_usage: Fraction of its KV blocks in use.
        kv_capacity_tokens: KV tokens that it can hold.
    """
    return num_running < max_num_seqs and prompt_tokens < (1.0 - kv_cache_usage) * kv_capacity_tokens


def goes_ahead(first: Chunk, prompt_tokens: int, stats: EngineStats, info: EngineInfo) -> bool:
    """Whether a client gets a first token before the KV has come: more follow, and the engine has room for them."""
    return first.finish_reason is None and has_room(
        prompt_tokens,
        num_running=stats.num_requests_running,
        max_num_seqs=info.max_num_seqs,
        kv_cache_usage=stats.kv_cache_usage,
        kv_capacity_tokens=info.kv_capacity_tokens,
    )


def with_first(first: Chunk | None, chunk: Chunk) -> Chunk:
    """The first chunk of a decode's own, together with a first token that the client has not got yet.

    Args:
        first: That token; ``None`` where there is none, or the client has it. A whole answer takes the chunk's place.
        chunk: What the decode has given; an aborted one stays so.
    """
    if first is None or chunk.finish_reason == "abort":
        return chunk
    if first.finish_reason is not None:
        return msgspec.structs.replace(first, times=chunk.times)
    logprobs = None if chunk.logprobs is None else (*(first.logprobs or ()), *chunk.logprobs)
    token_ids = (*first.token_ids, *chunk.token_ids)
    return msgspec.structs.replace(chunk, text=first.text + chunk.text, token_ids=token_ids, logprobs=logprobs)
