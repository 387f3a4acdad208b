"""Chunks of one or several answers, as the outputs that vLLM's layer reads from an engine."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress

import torch
from vllm.logprobs import Logprob
from vllm.outputs import CompletionOutput, PoolingOutput, PoolingRequestOutput, RequestOutput
from vllm.sampling_params import RequestOutputKind

from deployments.front_end.exchange import Answering, Exchange
from engines.contract import ChosenLogprob, Chunk, Pooling, PromptLogprobs
from routing.request.effects import Outcome, OutcomeKind


class _Choice:
    """One answer: what there is of it so far, and what is new."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._chunks: list[Chunk] = []

    def add(self, chunk: Chunk) -> None:
        self._chunks.append(chunk)

    def whole(self) -> CompletionOutput:
        return self._output(self._chunks)

    def delta(self) -> CompletionOutput:
        chunks, self._chunks = self._chunks, []
        return self._output(chunks)

    def _output(self, chunks: Sequence[Chunk]) -> CompletionOutput:
        last = chunks[-1]
        logprobs = [_position(entry) for chunk in chunks for entry in chunk.logprobs or ()]
        chosen = [entry.chosen.logprob for chunk in chunks for entry in chunk.logprobs or ()]
        return CompletionOutput(
            index=self._index,
            text="".join(chunk.text for chunk in chunks),
            token_ids=[token for chunk in chunks for token in chunk.token_ids],
            cumulative_logprob=sum(chosen) if chosen else None,
            logprobs=logprobs if any(chunk.logprobs is not None for chunk in chunks) else None,
            finish_reason=last.finish_reason,
            stop_reason=last.stop_reason,
        )


async def outputs(
    request_id: str, token_ids: list[int], answers: Sequence[Answering], exchange: Exchange, kind: RequestOutputKind
) -> AsyncGenerator[RequestOutput, None]:
    """What an engine would give for a prompt.

    Args:
        request_id: vLLM's.
        token_ids: The prompt.
        answers: Of its choices.
        exchange: Is told of one that fails.
        kind: Whether an output has what is new, all so far, or comes once, when all is there.

    Raises:
        Exception: What the client is told of an answer that is none.
    """
    choices = [_Choice(number) for number in range(len(answers))]
    prompt_logprobs, num_cached = None, None
    async for number, item in _merged(answers):
        if isinstance(item, Outcome):
            if item.kind is not OutcomeKind.COMPLETED:
                raise exchange.failed(answers[number], item)
            continue
        exchange.begin()
        choices[number].add(item)
        num_cached = item.cached_tokens if num_cached is None else num_cached
        if item.prompt_logprobs is not None:
            prompt_logprobs = _of_prompt(item.prompt_logprobs)
        if kind is not RequestOutputKind.FINAL_ONLY:
            choice = choices[number]
            output = choice.delta() if kind is RequestOutputKind.DELTA else choice.whole()
            yield _output(request_id, token_ids, [output], prompt_logprobs, num_cached, is_last=False)
            prompt_logprobs = None if kind is RequestOutputKind.DELTA else prompt_logprobs
    if kind is RequestOutputKind.FINAL_ONLY:
        whole = [choice.whole() for choice in choices]
        yield _output(request_id, token_ids, whole, prompt_logprobs, num_cached, is_last=True)


async def vector_output(
    request_id: str, token_ids: list[int], pooling: Pooling, exchange: Exchange, turn: asyncio.Lock
) -> AsyncGenerator[PoolingRequestOutput[PoolingOutput], None]:
    """What an engine would give for a prompt that is pooled.

    Args:
        request_id: vLLM's.
        token_ids: The prompt.
        pooling: What is to be made of it.
        exchange: Where it is handed over; is told when nothing comes of it.
        turn: Whose it is to hand one over.

    Raises:
        Exception: What the client is told of a vector that is none.
    """
    answering = await exchange.in_turn(turn, token_ids, pooling)
    chunk = Chunk("", ())
    while not isinstance(item := await answering.stream.read(), Outcome):
        chunk = item
    if item.kind is not OutcomeKind.COMPLETED:
        raise exchange.failed(answering, item)
    await exchange.has_vector()
    vector = torch.frombuffer(bytearray(chunk.vector), dtype=torch.float32)
    yield PoolingRequestOutput(request_id, PoolingOutput(vector), token_ids, chunk.cached_tokens, finished=True)


async def _merged(answers: Sequence[Answering]) -> AsyncGenerator[tuple[int, Chunk | Outcome], None]:
    """Whatever comes next of any of them, each to its outcome."""
    if len(answers) == 1:
        while not isinstance(item := await answers[0].stream.read(), Outcome):
            yield 0, item
        yield 0, item
        return
    reading = {asyncio.ensure_future(each.stream.read()): number for number, each in enumerate(answers)}
    try:
        while reading:
            done, _ = await asyncio.wait(reading, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                number = reading.pop(task)
                item = task.result()
                if not isinstance(item, Outcome):
                    reading[asyncio.ensure_future(answers[number].stream.read())] = number
                yield number, item
    finally:
        for task in reading:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


def _output(
    request_id: str,
    token_ids: list[int],
    choices: list[CompletionOutput],
    prompt_logprobs: list[dict[int, Logprob] | None] | None,
    num_cached: int | None,
    *,
    is_last: bool,
) -> RequestOutput:
    return RequestOutput(
        request_id=request_id,
        prompt=None,
        prompt_token_ids=token_ids,
        prompt_logprobs=prompt_logprobs,
        outputs=choices,
        finished=is_last,
        num_cached_tokens=num_cached,
    )


def _of_prompt(entries: PromptLogprobs) -> list[dict[int, Logprob] | None]:
    return [None if entry is None else _position(entry) for entry in entries]


def _position(entry: ChosenLogprob) -> dict[int, Logprob]:
    """The chosen token first, then the likeliest, as vLLM has them."""
    return {each.token_id: Logprob(each.logprob, each.rank or None, each.token) for each in (entry.chosen, *entry.top)}
