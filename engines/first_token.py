"""Who draws the first token of an answer whose prompt's KV is handed over.

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


def given_instead(chunk: Chunk, answer: Chunk | None) -> Chunk:
    """What a decode gives: where the prefill's token was the whole answer, that, unless the decode was aborted."""
    if answer is None or chunk.finish_reason == "abort":
        return chunk
    return msgspec.structs.replace(answer, times=chunk.times)


def goes_on(
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


def engine_goes_on(prompt_tokens: int, stats: EngineStats, info: EngineInfo) -> bool:
    """:func:`goes_on` of an engine as it says how busy it is."""
    return goes_on(
        prompt_tokens,
        num_running=stats.num_requests_running,
        max_num_seqs=info.max_num_seqs,
        kv_cache_usage=stats.kv_cache_usage,
        kv_capacity_tokens=info.kv_capacity_tokens,
    )


def joined(first: Chunk, chunk: Chunk) -> Chunk:
    """A first token that nobody has got yet, and what follows it."""
    logprobs = None if chunk.logprobs is None else (*(first.logprobs or ()), *chunk.logprobs)
    token_ids = (*first.token_ids, *chunk.token_ids)
    return msgspec.structs.replace(chunk, text=first.text + chunk.text, token_ids=token_ids, logprobs=logprobs)
