"""What an engine is to spillway: token ids in, chunks of tokens out, one side of a KV handoff or the whole request.

The types here cross process borders (:mod:`msgspec` structs, encoded as arrays; KV events do not), and both hosts and
every engine speak them. :func:`engines.conformance.check_engine` checks an engine against this page.
"""

from collections.abc import AsyncIterator, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import msgspec

from policies.errors import RequestInvalid

KvParams = dict[str, Any]
PoolingTask = Literal["embed", "classify"]
"""What an engine may make of a prompt that gets no answer."""
MOST_ENTRIES: Mapping[str, int] = {
    "logit_bias": 1_024,
    "allowed_token_ids": 1_024,
    "stop_token_ids": 100,
    "bad_words": 64,
}
"""Of fields of a :class:`Sampling`. vLLM's workers on GPUs keep tables of so many, its own end-of-text tokens among 128
that stop an answer and two forms of each bad word; a request that has more ends the engine and all that it has.
"""
MOST_BAD_WORDS_BYTES = 4_096
"""In all; an engine turns them into tokens while its others wait, and takes fewer than that may be."""


class StructuredOutput(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """What the text of an answer has to match. Kinds are vLLM's.

    Args:
        kind: How ``spec`` says it.
        spec: A JSON schema, a regular expression, a JSON list of choices, a grammar (EBNF, or Lark where the engine
            reads it), or a structural tag, as text; empty for ``json_object``, which is any.
        reasoning_ended: Whether the prompt has ended the reasoning, which is not matched; ``None``: the engine finds
            out, if it parses any.
        reasoning_options: What the engine's parser of reasoning is made with.
    """

    kind: Literal["json", "json_object", "regex", "choice", "grammar", "structural_tag"]
    spec: str = ""
    reasoning_ended: bool | None = None
    reasoning_options: dict[str, Any] | None = None


class Sampling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How to choose tokens. Names, ranges and defaults are vLLM's.

    Args:
        max_tokens: Upper bound of the output, at least 1.
        min_tokens: End-of-text is not chosen before this many tokens.
        temperature: 0 means greedy.
        top_p: Nucleus, in (0, 1].
        top_k: 0 means all.
        min_p: In [0, 1].
        seed: Seeds the request's own random stream.
        stop: Strings that end the output.
        stop_token_ids: Tokens that end the output.
        include_stop_str_in_output: Keep the stop string in the text.
        ignore_eos: Go on after end-of-text.
        presence_penalty: In [-2, 2].
        frequency_penalty: In [-2, 2].
        repetition_penalty: Above 0; 1 means none.
        logit_bias: Added to the logits, by token id.
        allowed_token_ids: No others are chosen, end-of-text neither; ``None`` means all.
        bad_words: Texts that do not come; of one that takes several tokens the last is not chosen.
        structured_output: What the text has to match; ``None`` means nothing.
        logprobs: How many alternatives to report with each token; ``None`` means no log probabilities at all.
        prompt_logprobs: The same for each token of the prompt.
        skip_special_tokens: Leave special tokens out of the text.
    """

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[str, ...] = ()
    structured_output: StructuredOutput | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True

    @property
    def is_resumable(self) -> bool:
        """Whether an answer that is interrupted goes on elsewhere as it would have gone on here.

        A seed's random stream can't be handed on, and what these penalties count and bad words begin with is the output
        of one run. What a structured output has matched is replayed.
        """
        draws_from_seed = self.seed is not None and self.temperature > 0
        return not (draws_from_seed or self.presence_penalty or self.frequency_penalty or self.bad_words)

    def check(self) -> None:
        """Checks what an engine can die of.

        Raises:
            RequestInvalid: A list that is too long, or a seed that is no whole number of 64 bits.
        """
        for name, most in MOST_ENTRIES.items():
            if (number := len(getattr(self, name) or ())) > most:
                raise RequestInvalid(f"{name} has {number} entries; at most {most} are taken", name)
        if self.seed is not None and not -(1 << 63) <= self.seed < 1 << 63:
            raise RequestInvalid(f"seed must be a whole number of 64 bits, got {self.seed}", "seed")

    def after(self, num_tokens: int) -> "Sampling":
        """What is left of it when so many tokens are out; the prompt's log probabilities came before them."""
        return msgspec.structs.replace(
            self,
            max_tokens=self.max_tokens - num_tokens,
            min_tokens=max(0, self.min_tokens - num_tokens),
            prompt_logprobs=None,
        )


class Pooling(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """What a prompt becomes that gets no answer: one vector. Tasks and defaults are vLLM's.

    Args:
        task: ``embed``: what it means, to be compared with others; ``classify``: the score of each class, or the only
            one, of how well two texts go together; empty: none, an answer is wanted.
        dimensions: Length of an embedding, of models whose vectors may be cut; ``None``: whole.
        use_activation: Whether an embedding has length 1, and scores are probabilities; ``None``: as the model has it.
        second_at: Position of the first token of the second of two texts, for models that are told which is which;
            ``None``: there is one text, or its tokens tell.
    """

    task: PoolingTask | Literal[""] = ""
    dimensions: int | None = None
    use_activation: bool | None = None
    second_at: int | None = None

    def __bool__(self) -> bool:
        return bool(self.task)


NO_POOLING = Pooling()
ONE_STEP = Sampling(max_tokens=1, temperature=0.0)
"""The sampling of a request that is pooled: nothing is sampled, and the same prompt gives the same vector."""


class TiedRequest(msgspec.Struct, frozen=True, array_like=True):
    """Where the execution claim on a prompt is that two engines have, of which one is to compute it.

    Args:
        request_id: Of the request that keeps it, which has the same prompt.
        address: ``EngineInfo.claims_at`` of the engine that has this one.
    """

    request_id: str
    address: str


class Adapter(msgspec.Struct, frozen=True, array_like=True):
    """A LoRA adapter: a model that is little more than what differs from the engine's own.

    Args:
        name: Of the model that it makes; empty: none, the engine's own model is meant.
        path: Folder of its checkpoint in PEFT's format, where each engine can read it, or a model hub's name.
    """

    name: str = ""
    path: str = ""

    def __bool__(self) -> bool:
        return bool(self.name)


NO_ADAPTER = Adapter()


class ImageFeatures(msgspec.Struct, frozen=True, array_like=True):
    """What a model sees of an image in the place of some tokens of a prompt.

    Args:
        identity: Tells the image from others: the same text with another image has other KV.
        offset: Position of the first of these tokens.
        num_tokens: How many there are.
        data: The features, as the engine's kind has them.
    """

    identity: str
    offset: int
    num_tokens: int
    data: bytes


class EngineRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request as an engine gets it.

    A request may go on with an answer that was interrupted, here or on another engine. The tokens that are out are the
    end of its prompt then, and ``sampling`` says what is left: ``max_tokens`` and ``min_tokens`` without them. Its
    stream gives new tokens only, and of the whole answer's text what follows the characters that are out. Nothing is
    lost, nothing comes twice, a stop string is found that began before, and it ends as it would have ended.

    Greedy tokens go on exactly, but for ties that rounding decides. A ``structured_output`` is resumed from what the
    answer so far has matched; an answer so far that it would not have let through is an ``EngineError``. What belongs
    to the answer alone begins anew: the random stream of a ``seed``, what ``presence_penalty`` and
    ``frequency_penalty`` count, and what ``bad_words`` look back at. ``repetition_penalty`` goes on, since it counts
    the prompt too. Wherever tokens of a prompt are counted, the answer so far is among them.

    Args:
        request_id: Unique among everything the engine has open; ``abort`` takes it.
        prompt_token_ids: The prompt, at least one token, and the answer so far.
        sampling: How to choose tokens.
        priority: Smaller goes first inside the engine.
        answered_tokens: So many of the last ``prompt_token_ids`` are the answer so far; not all of them.
        answered_chars: Characters of that answer's text that are out; the rest was held back, as the beginning of a
            character or, maybe, of a stop string. 0 where ``answered_tokens`` is.
        tied_to: Where its execution claim is, if it shares one; for ``generate`` and ``prefill`` of an engine with
            ``claims_at``. When its turn comes it begins if the other one has not, and leaves its queue once the other
            one has.
        adapter: What its prompt and its answer are computed with; an engine that has not loaded it does so first.
        cache_salt: Whose KV it may find in the prefix cache, and who may find its: requests with the same salt, and
            nobody else. Empty: all that have none.
        pooling: What the prompt becomes in the place of an answer, of engines with ``pooling_tasks``. Its ``sampling``
            is ``ONE_STEP`` then; ``generate`` gives one chunk, with the vector and without a token.
        images: In the order of their tokens. No engine takes any: prefixes, handoffs and resumption know text alone.
    """

    request_id: str
    prompt_token_ids: list[int]
    sampling: Sampling
    priority: int = 0
    answered_tokens: int = 0
    answered_chars: int = 0
    tied_to: TiedRequest | None = None
    adapter: Adapter = NO_ADAPTER
    cache_salt: str = ""
    pooling: Pooling = NO_POOLING
    images: tuple[ImageFeatures, ...] = ()

    @property
    def original_token_ids(self) -> list[int]:
        """The prompt without the answer so far."""
        if not self.answered_tokens:
            return self.prompt_token_ids
        return self.prompt_token_ids[: len(self.prompt_token_ids) - self.answered_tokens]

    @property
    def answered_token_ids(self) -> list[int]:
        """The answer so far."""
        return self.prompt_token_ids[len(self.prompt_token_ids) - self.answered_tokens :]

    def after(self, token_ids: Sequence[int], answered_chars: int) -> "EngineRequest":
        """What is left of it when these tokens are out, too.

        Args:
            token_ids: What has come of it, fewer than ``sampling.max_tokens``.
            answered_chars: Characters of the whole answer so far that are out.

        Raises:
            RequestInvalid: What is said of the answer so far is out of range.
        """
        self.check()
        return msgspec.structs.replace(
            self,
            prompt_token_ids=[*self.prompt_token_ids, *token_ids],
            sampling=self.sampling.after(len(token_ids)),
            answered_tokens=self.answered_tokens + len(token_ids),
            answered_chars=answered_chars,
        )

    def check(self) -> None:
        """Checks what is said of the answer so far, that there are no images, and that what it wants fits; every engine
        asks before it runs anything.

        Raises:
            RequestInvalid: A number out of range, an image, or a list that is too long.
        """
        if self.images:
            raise RequestInvalid("images are not served; send text", "images")
        self.sampling.check()
        tokens, chars = self.answered_tokens, self.answered_chars
        if tokens and not 0 < tokens < len(self.prompt_token_ids):
            message = f"answered_tokens must leave a prompt, got {tokens} of {len(self.prompt_token_ids)} tokens"
            raise RequestInvalid(message, "answered_tokens")
        if chars and not (chars > 0 and tokens):
            message = f"answered_chars must be 0, or more with answered_tokens, got {chars}"
            raise RequestInvalid(message, "answered_chars")


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """The log probability of one token, with its text.

    Args:
        token_id: The token.
        token: Its text.
        logprob: The natural logarithm of its probability.
        rank: Its place by probability, 1 for the likeliest; 0 where the engine does not say.
    """

    token_id: int
    token: str
    logprob: float
    rank: int = 0


class ChosenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """The log probability of the token that was chosen, and of the likeliest ones, likeliest first."""

    chosen: TokenLogprob
    top: tuple[TokenLogprob, ...]


PromptLogprobs = tuple[ChosenLogprob | None, ...]
"""Of a prompt, from its first token on."""


class EngineTimes(msgspec.Struct, frozen=True, array_like=True):
    """What a request took an engine before its first token was out, by the engine's own clock.

    Args:
        prefill_s: Of a whole request: from its coming to its first token, its wait in the engine's line included.
        kv_transfer_s: Of a decode: from its coming until its prompt's KV was here.
        awaits_kv: Of a decode whose first token the prefill has drawn: the KV is not here yet.
    """

    prefill_s: float = 0.0
    kv_transfer_s: float = 0.0
    awaits_kv: bool = False


AWAITS_KV = EngineTimes(awaits_kv=True)


class Chunk(msgspec.Struct, frozen=True, array_like=True, tag=0, omit_defaults=True):
    """All tokens since the last chunk: a slow reader gets bigger chunks, not a longer queue.

    Args:
        text: Their text; may lag behind the tokens in the middle of a character or a possible stop string.
        token_ids: The tokens.
        finish_reason: On the last chunk only: ``stop``, ``length`` or ``abort``.
        stop_reason: The stop string or token that ended it, if one did.
        cached_tokens: Prompt tokens that needed no prefill here, known from the first chunk on.
        logprobs: One for each token, when asked for.
        times: On the first chunk only, and after one that is from the prefill on the next one, too: what it took the
            engine to come there, if it says.
        prompt_logprobs: On the first chunk only, when asked for: one for each token of the prompt; of the first token,
            which nothing comes before, ``None``.
        vector: Of a request that is pooled: 32-bit floats, the low byte first.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    cached_tokens: int = 0
    logprobs: tuple[ChosenLogprob, ...] | None = None
    times: EngineTimes | None = None
    prompt_logprobs: PromptLogprobs | None = None
    vector: bytes = b""

    @property
    def is_from_prefill(self) -> bool:
        """Whether its token was drawn with the prompt, so that the KV and the decode's own tokens are still to come."""
        return self.times is not None and self.times.awaits_kv


class KvHandle(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Where a finished prefill's KV blocks are held until a decode pulls them or their lease runs out.

    Args:
        params: Opaque: made by one engine, read by another of the same kind.
        num_tokens: Prompt tokens whose KV is held.
        prefill_s: What it took the engine, from the request's coming, its wait in the engine's line included; 0 where
            the engine does not say.
        cached_tokens: Prompt tokens that needed no prefill there; ``None`` where the engine does not say.
        first: The first token of the answer, if it was drawn there; ``None``: the decode draws it. With a
            ``finish_reason`` it is the whole answer; without one it has no text, which the decode makes.
        prompt_logprobs: The prompt's log probabilities, when asked for; the decode passes them on.
    """

    params: KvParams
    num_tokens: int
    prefill_s: float = 0.0
    cached_tokens: int | None = None
    first: Chunk | None = None
    prompt_logprobs: PromptLogprobs | None = None


@dataclass(frozen=True, slots=True)
class KvStored:
    """KV blocks of consecutive text have come into an engine's prefix cache: who has the same text finds them.

    Args:
        block_ids: As the engine names them, in order of the text.
        parent_id: The block before the first of them; ``None``: the text begins with them.
        token_ids: Their text.
        cache_salt: Of the requests that find them, where the text begins with them.
    """

    block_ids: tuple[Hashable, ...]
    parent_id: Hashable
    token_ids: tuple[int, ...]
    cache_salt: str = ""


@dataclass(frozen=True, slots=True)
class KvDropped:
    """KV blocks have gone from an engine's prefix cache; one that came twice, for two that computed the same text at
    the same time, has to go twice.
    """

    block_ids: tuple[Hashable, ...]


@dataclass(frozen=True, slots=True)
class KvCleared:
    """All of them have."""


KvEvent = KvStored | KvDropped | KvCleared


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What does not change in an engine's life, as the engine itself says.

    Args:
        context_tokens: Longest prompt and output together.
        kv_capacity_tokens: KV tokens it can hold.
        kv_block_tokens: Tokens in a KV block.
        max_num_seqs: Sequences it runs in one step.
        can_sleep: Whether ``sleep`` gives anything up; where it does not, the engine stays as it is.
        claims_at: Where engines of its kind ask for the claims of its requests; empty: it has none, and asks for none.
        max_adapters: Adapters that it keeps loaded; 0: it takes none.
        pooling_tasks: What it makes of prompts; none: it gives answers, and answers alone.
    """

    context_tokens: int
    kv_capacity_tokens: int
    kv_block_tokens: int
    max_num_seqs: int
    can_sleep: bool = False
    claims_at: str = ""
    max_adapters: int = 0
    pooling_tasks: tuple[PoolingTask, ...] = ()


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """How busy an engine is, after its last step; totals count from its start.

    Args:
        num_requests_unfinished: Requests taken in and not finished, whether or not a step has seen them yet and
            whether or not anybody reads their output.
        num_requests_running: Requests in the batch.
        num_requests_waiting: Requests not in it yet.
        kv_cache_usage: Fraction of KV blocks in use, 0 to 1.
        num_steps: Steps so far: an engine that has requests and makes no steps has stalled.
        prompt_tokens_total: Prompt tokens taken in.
        output_tokens_total: Tokens emitted.
        kv_tokens_received_total: Prompt tokens whose KV came from a prefill replica; a first token that came with it
            is counted, too.
        kv_bytes_received_total: Bytes of that.
        kv_transfer_failures_total: Transfers that failed.
        draft_tokens_total: Tokens that drafts have proposed, with speculative decoding.
        accepted_tokens_total: Those of them that the model agreed with.
        adapter_loads_total: Times that it has loaded an adapter.
        adapters: Names of those that are loaded, the last one used first.
        adapters_in_use: Names of those that unfinished requests have.
    """

    num_requests_unfinished: int = 0
    num_requests_running: int = 0
    num_requests_waiting: int = 0
    kv_cache_usage: float = 0.0
    num_steps: int = 0
    prompt_tokens_total: int = 0
    output_tokens_total: int = 0
    kv_tokens_received_total: int = 0
    kv_bytes_received_total: int = 0
    kv_transfer_failures_total: int = 0
    draft_tokens_total: int = 0
    accepted_tokens_total: int = 0
    adapter_loads_total: int = 0
    adapters: tuple[str, ...] = ()
    adapters_in_use: tuple[str, ...] = ()


class Engine(Protocol):
    """A model that runs. All methods belong to one event loop.

    Every stream ends with a chunk that has a ``finish_reason``, or raises: ``RequestInvalid`` (nothing was run),
    ``KvTransferFailed``, ``PromptWithdrawn`` (another engine has the execution claim, nothing was run),
    ``EngineAborted``, ``EngineUnavailable`` (the engine takes nothing), ``EngineDied`` (with the request in it, and
    perhaps of it), or another ``EngineError``.
    Closing a stream early (``aclose``, or cancelling its reader) frees the request's blocks; a decode that is still
    pulling KV blocks finishes the transfer first.
    """

    @property
    def info(self) -> EngineInfo: ...

    def generate(self, request: EngineRequest) -> AsyncIterator[Chunk]:
        """Runs the whole request: gives the answer, or makes one vector of the prompt."""
        ...

    async def prefill(self, request: EngineRequest) -> KvHandle:
        """Runs the prompt and holds its KV blocks for a decode elsewhere.

        Where :func:`engines.handoff.comes_from_prefill` says so, the handle has the answer's first token.
        """
        ...

    def decode(self, request: EngineRequest, handle: KvHandle) -> AsyncIterator[Chunk]:
        """Pulls the prompt's KV blocks and runs the rest.

        Where the handle has the first token and there is room for the blocks, that is out before they have come, unless
        it is the last one.
        """
        ...

    async def release_kv(self, handle: KvHandle) -> None:
        """Has KV blocks freed, wherever they are held, that no engine pulls or will; on an engine that decodes. Nothing
        happens where they are gone, or can't be reached: their lease frees them.
        """
        ...

    async def abort(self, request_id: str) -> None:
        """Stops a request; its stream ends with ``finish_reason="abort"``. Unknown ids are ignored."""
        ...

    def stats(self) -> EngineStats: ...

    async def load_adapter(self, adapter: Adapter) -> None:
        """Loads an adapter, in the place of one of the same name from another path, and of the one that was used least
        lately where as many as it keeps are loaded.

        Raises:
            RequestInvalid: It takes none, or this one can't be read or does not fit the model.
            EngineUnavailable: The engine is dead.
        """
        ...

    async def unload_adapter(self, name: str) -> None:
        """Forgets an adapter; requests that have it finish. Nothing happens where it is not loaded."""
        ...

    def take_kv_events(self) -> Sequence[KvEvent]:
        """What has come into the prefix cache and gone from it since this was last asked, in order.

        Nothing, unless the engine was started to say so; then it is kept until somebody asks.
        """
        ...

    async def warm_up(self) -> None:
        """Runs what is slow the first time, so that no client pays for it."""
        ...

    async def sleep(self) -> None:
        """Gives up what a start would not take long to bring back: the memory of weights and KV. There is no request,
        and none is taken (``EngineUnavailable``) until it is awake. Nothing happens where it can't, or sleeps already.
        """
        ...

    async def wake(self) -> None:
        """Takes back what ``sleep`` gave up; the prefix cache is empty. Nothing happens where it is awake."""
        ...

    def check_health(self) -> None:
        """Raises ``EngineUnavailable`` when the engine is dead; one that sleeps is not."""
        ...

    async def shutdown(self) -> None:
        """Frees everything the engine holds, child processes included."""
        ...
