"""One request in an emulated engine: how much of its answer is out, and how much of that was read."""

from engines.contract import ChosenLogprob, Chunk, EngineRequest, EngineTimes, KvParams
from engines.emulated.answers import Answer, Answerer
from engines.emulated.text import TextStream, Vocabulary
from engines.model.sequences import Sequence
from engines.resumed_text import text_left
from policies.errors import ServingError


class EmulatedRun:
    """From a request's submission until nothing of it is left in the engine and its reader has all of it.

    Args:
        request: What was asked.
        answer: What will be answered, from the first token that is not out yet.
        vocabulary: To write it with; not needed for a prefill.
        came_at_s: When it came, in the model's time.

    Raises:
        RequestInvalid: More characters are said to be out than the answer so far has.

    Attributes:
        sequence: The request inside the engine model, once it is there.
        kv_params: Where its prompt's KV is held, for a decode.
        cached_tokens: Prompt tokens that the prefill engine found cached, for a decode.
        prefill_s: How long its prompt took, in real seconds, once its first token has left the engine.
        kv_transfer_s: How long the KV of its prompt took to come, in real seconds, once it is here.
        has_started: Its first token has left the engine.
        finish_reason: Why it is over, if it is and nothing went wrong.
        final_tokens: Tokens of the answer that were given in the end.
        error: What went wrong.
        is_handed_over: Its caller has the handle of the KV that is held of it.
        is_read: The reader has the verdict.
    """

    def __init__(
        self, request: EngineRequest, answer: Answer, vocabulary: Vocabulary | None = None, came_at_s: float = 0.0
    ) -> None:
        self.request_id = request.request_id
        self.prompt_token_ids = request.prompt_token_ids
        self.priority = request.priority
        self.tied_to = request.tied_to
        self.adapter = request.adapter.name
        self.cache_salt = request.cache_salt
        self.answer = answer
        self.sequence: Sequence
        self.kv_params: KvParams = {}
        self.cached_tokens: int | None = None
        self.came_at_s = came_at_s
        self.prefill_s = 0.0
        self.kv_transfer_s = 0.0
        self.has_started = False
        self.finish_reason: str | None = None
        self.final_tokens = 0
        self.error: ServingError | None = None
        self.is_handed_over = False
        self.is_read = False
        self._num_logprobs = request.sampling.logprobs
        self._text = vocabulary and TextStream(
            vocabulary, request.original_token_ids, request.sampling.skip_special_tokens
        )
        self._num_read = 0
        self._num_characters = request.answered_chars
        self._held_back = ""
        if self._text and request.answered_tokens:
            self._held_back = text_left(self._text.feed(request.answered_token_ids), request.answered_chars)

    @property
    def is_over(self) -> bool:
        """Whether no more tokens will come."""
        return self.finish_reason is not None or self.error is not None

    def end(self, finish_reason: str, num_tokens: int) -> None:
        """That was all."""
        self.finish_reason = finish_reason
        self.final_tokens = max(num_tokens, self._num_read)

    def fail(self, error: ServingError) -> None:
        """Something went wrong; what happened first counts."""
        if not self.is_over:
            self.error = error

    def text_left(self) -> str:
        """Text of the answer so far that is not out."""
        return self._write([])

    def has_news(self, num_tokens: int) -> bool:
        """Whether there is something to read, when so many tokens have left the engine."""
        return self.is_over or num_tokens > self._num_read

    def read(self, num_tokens: int, answerer: Answerer) -> Chunk:
        """Everything that is out and was not read yet.

        Raises:
            ServingError: What went wrong.
        """
        if self.error is not None:
            raise self.error
        answer, start = self.answer, self._num_read
        token_ids = answer.token_ids[start:num_tokens]
        self._num_read = num_tokens
        self.is_read = self.finish_reason is not None
        is_stopped = self.finish_reason == "stop"
        return Chunk(
            text=self._write(answer.token_ids[start : min(num_tokens, answer.num_text_tokens)]),
            token_ids=tuple(token_ids),
            finish_reason=self.finish_reason,
            stop_reason=answer.stop_reason if is_stopped else None,
            cached_tokens=self.sequence.cached_tokens if self.cached_tokens is None else self.cached_tokens,
            logprobs=self._logprobs(token_ids, answerer),
            times=None if start else EngineTimes(self.prefill_s, self.kv_transfer_s),
        )

    def _write(self, token_ids: list[int]) -> str:
        text = self._held_back + (self._text.feed(token_ids) if self._text else "")
        self._held_back = ""
        if self.answer.text_end is not None:
            text = text[: max(0, self.answer.text_end - self._num_characters)]
        self._num_characters += len(text)
        return text

    def _logprobs(self, token_ids: list[int], answerer: Answerer) -> tuple[ChosenLogprob, ...] | None:
        if self._num_logprobs is None:
            return None
        return tuple([answerer.logprobs(token_id, self._num_logprobs) for token_id in token_ids])
