"""A structured output is resumed: the answer so far is replayed into its grammar's matcher.

vLLM begins a grammar with the first token that it draws itself. Of an answer that is resumed, here or elsewhere,
the tokens that are out are the end of a prompt, and a grammar that has not seen them would begin a second document. So
the schedulers here, which vLLM takes by ``scheduler_cls``, give a compiled grammar those tokens before the request may
be scheduled. A grammar that rejects them fails the request: it is not the one that they were drawn with.

Imported by the engine core's process alone.
"""

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager
from vllm.v1.structured_output.backend_types import StructuredOutputGrammar

from engines.resumed_text import ANSWERED_TOKENS


class _Replays:
    structured_output_manager: StructuredOutputManager

    def add_request(self, request: Request) -> None:
        """Takes a request in; its grammar is ready once it has been compiled and has seen the answer so far."""
        structured, params = request.structured_output_request, request.sampling_params
        extra = (params.extra_args if params is not None else None) or {}
        answered_tokens = extra.get(ANSWERED_TOKENS, 0)
        if structured is not None and answered_tokens:
            replay = partial(replayed, self.structured_output_manager, request, answered_tokens)
            structured.grammar = _then(structured._grammar, replay)
        super().add_request(request)  # type: ignore[misc]


class ReplayingScheduler(_Replays, Scheduler):
    """vLLM's scheduler."""


class ReplayingAsyncScheduler(_Replays, AsyncScheduler):
    """The one that runs ahead of the device."""


def replayed(
    manager: StructuredOutputManager, request: Request, answered_tokens: int, grammar: StructuredOutputGrammar
) -> StructuredOutputGrammar:
    """The grammar as it was when the answer was interrupted; the request knows whether its reasoning had ended.

    Args:
        manager: The engine's.
        request: What is left of the request.
        answered_tokens: So many of the last tokens of its prompt are the answer so far.
        grammar: New.

    Raises:
        ValueError: The grammar would not have let the answer so far through.
    """
    prompt, structured = list(request.prompt_token_ids or ()), request.structured_output_request
    assert structured is not None
    original, answered = prompt[:-answered_tokens], prompt[-answered_tokens:]
    interrupted = Request(
        request.request_id,
        original,
        request.sampling_params,
        None,
        reasoning_ended=structured.reasoning_ended,
        reasoning_parser_kwargs=structured.reasoning_parser_kwargs,
    )
    before = interrupted.structured_output_request
    assert before is not None
    before.grammar = grammar
    interrupted.append_output_token_ids(answered)
    if not manager.accept_tokens(interrupted, answered):
        raise ValueError(f"the grammar of {request.request_id} rejects the {answered_tokens} tokens that are out")
    structured.reasoning_ended = before.reasoning_ended
    return grammar


def _then(compiled: Any, change: Callable[[StructuredOutputGrammar], StructuredOutputGrammar]) -> Future[Any]:
    """What is made of a grammar once it is compiled; or why it was not."""
    changed: Future[StructuredOutputGrammar] = Future()

    def go_on(done: Future[StructuredOutputGrammar]) -> None:
        try:
            changed.set_result(change(done.result()))
        except Exception as error:  # the scheduler ends the request with it
            changed.set_exception(error)

    if not isinstance(compiled, Future):
        ready: Future[StructuredOutputGrammar] = Future()
        ready.set_result(compiled)
        compiled = ready
    compiled.add_done_callback(go_on)
    return changed
