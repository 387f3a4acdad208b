"""Requests of the OpenAI API, as vLLM extends it: validated here, turned into engine terms here.

Fields that nobody knows are ignored, as vLLM does. Fields that are known and not served (``n`` above 1, tools, and so
on) are refused by name: silence would change what the client gets.
"""

from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from deployments.openai.engine_limits import check_vocabulary
from deployments.openai.errors import invalid
from deployments.openai.structured_output import ResponseFormat, StructuredOutputs, structured_output_of
from deployments.openai.terms import TermsFields, Text
from deployments.openai.validation import Unserved
from engines.contract import MOST_ENTRIES, Sampling

TokenId = Annotated[int, Field(strict=True, ge=0, lt=1 << 31)]
TokenIds = Annotated[list[TokenId], Field(fail_fast=True)]
"""Looked at until one is none: pydantic takes 3 us and a kilobyte to say what is wrong with each."""
MOST_PROMPT_LOGPROBS = 1 << 17
"""Of one answer: a gateway writes so many in an eighth of a second, in which it does nothing else."""
MOST_BIAS = 100.0
Stop = Annotated[Text, Field(max_length=1024)]
"""An engine looks for each of them after each token."""
Seed = Annotated[int, Field(strict=True, ge=-(1 << 63), lt=1 << 63)]
Count = Annotated[int, Field(strict=True, ge=1, lt=1 << 31)]
UNSERVED: dict[str, tuple[tuple[Any, ...], str]] = {
    "n": ((1,), "n must be 1: one choice per request is served"),
    "best_of": ((1,), "best_of must be 1: one choice per request is served"),
    "use_beam_search": ((False,), "beam search is not served"),
    "guided_json": ((), "guided_json is called structured_outputs: {json: ...} now"),
    "guided_regex": ((), "guided_regex is called structured_outputs: {regex: ...} now"),
    "guided_choice": ((), "guided_choice is called structured_outputs: {choice: ...} now"),
    "guided_grammar": ((), "guided_grammar is called structured_outputs: {grammar: ...} now"),
    "truncate_prompt_tokens": ((), "prompts are never truncated; send a shorter one"),
    "echo": ((False,), "echo is not served"),
    "suffix": (("",), "suffix is not served"),
    "tools": (([],), "tools are not served"),
    "functions": (([],), "functions are not served"),
    "chat_template": ((), "the model's own chat template is used"),
    "background": ((False,), "background requests are not served"),
    "kv_transfer_params": ((), "the KV handoff is the deployment's own affair"),
}
"""Fields that OpenAI or vLLM knows and this deployment does not serve: values that change nothing, and what to say."""


def _biases(said: Any) -> Any:
    """Looked at until one is none, as token ids are."""
    for bias in said.values() if isinstance(said, dict) else ():
        if isinstance(bias, bool) or not isinstance(bias, int | float) or not -MOST_BIAS <= bias <= MOST_BIAS:
            raise PydanticCustomError("bias", f"a bias is a number, -{MOST_BIAS:g} to {MOST_BIAS:g}")
    return said


StopTokenIds = Annotated[TokenIds, Field(max_length=MOST_ENTRIES["stop_token_ids"])]
AllowedTokenIds = Annotated[TokenIds, Field(min_length=1, max_length=MOST_ENTRIES["allowed_token_ids"])]
Biases = Annotated[
    dict[str, Annotated[float, Field(ge=-MOST_BIAS, le=MOST_BIAS)]],
    Field(max_length=MOST_ENTRIES["logit_bias"]),
    BeforeValidator(_biases),
]
BadWords = Annotated[
    list[Annotated[str, Field(strict=True, min_length=1)]],
    Field(fail_fast=True, max_length=MOST_ENTRIES["bad_words"]),
]


class StreamOptions(BaseModel):
    """What a stream carries beside tokens.

    Args:
        include_usage: Whether it ends with a chunk that says how many tokens there were.
    """

    include_usage: bool = False


class SamplingFields(TermsFields):
    """Fields that both endpoints share.

    Args:
        stream: Whether tokens come as server-sent events.
        stream_options: With ``include_usage: true`` a stream ends with a chunk that says how many tokens there were.
        max_tokens: Most tokens of the answer.
        min_tokens: Fewest tokens of the answer.
        temperature: 0 takes the likeliest token.
        top_p: Tokens are drawn from the likeliest that make up this part of the probability.
        top_k: Tokens are drawn from the likeliest so many; 0 and -1: from all.
        min_p: Tokens less likely than this part of the likeliest are left out.
        seed: Of the draws.
        stop: Texts that end the answer.
        stop_token_ids: Tokens that end the answer.
        include_stop_str_in_output: Whether the text that ended the answer is in it.
        ignore_eos: Whether the model's own end of text is passed over.
        presence_penalty: Against tokens that the answer has already.
        frequency_penalty: Against tokens by how often the answer has them.
        repetition_penalty: Against tokens that prompt or answer have; 1 is none.
        logit_bias: Added to the logits of tokens, by token id.
        allowed_token_ids: No other tokens are chosen.
        bad_words: Texts that do not come.
        response_format: What the answer has to match: ``{type: json_object}``, ``{type: json_schema, json_schema:
            {name, schema}}``, or vLLM's ``{type: structural_tag, ...}``; ``{type: text}`` is anything.
        structured_outputs: The same in vLLM's words: one of ``json``, ``json_object``, ``regex``, ``choice``,
            ``grammar``, ``structural_tag``.
        prompt_logprobs: So many alternatives with each token of the prompt; not in a stream.
        skip_special_tokens: Whether special tokens are left out of the text.
        return_token_ids: Whether the answer has the ids of prompt and tokens too.
        n: Choices; one is served.
    """

    stream: bool | None = False
    stream_options: StreamOptions | None = None
    max_tokens: Count | None = None
    min_tokens: Annotated[int, Field(strict=True, ge=0, lt=1 << 31)] = 0
    temperature: Annotated[float, Field(ge=0, le=2)] | None = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] | None = 1.0
    top_k: Annotated[int, Field(strict=True, ge=-1, lt=1 << 31)] | None = 0
    min_p: Annotated[float, Field(ge=0, le=1)] | None = 0.0
    seed: Seed | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=16)] | None = None
    stop_token_ids: StopTokenIds | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = 0.0
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = 0.0
    repetition_penalty: Annotated[float, Field(gt=0, le=2)] | None = 1.0
    logit_bias: Biases | None = None
    allowed_token_ids: AllowedTokenIds | None = None
    bad_words: BadWords | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    prompt_logprobs: Annotated[int, Field(strict=True, ge=0, le=20)] | None = None
    skip_special_tokens: bool = True
    return_token_ids: bool | None = False
    n: Literal[1] | None = 1

    @model_validator(mode="before")
    @classmethod
    def _refuse_what_is_not_served(cls, fields: Any) -> Any:
        if not isinstance(fields, dict):
            return fields
        for name, (neutral, sentence) in UNSERVED.items():
            value = fields.get(name)
            if value is not None and not any(value == each and type(value) is type(each) for each in neutral):
                raise Unserved(name, sentence)
        if fields.get("stream_options") and not fields.get("stream"):
            raise Unserved("stream_options", "stream_options needs stream: true")
        if fields.get("prompt_logprobs") and fields.get("stream"):
            raise Unserved("prompt_logprobs", "prompt_logprobs needs stream: false")
        return fields

    def sampling(self, room_tokens: int, limit: int | None, logprobs: int | None, vocabulary: int) -> Sampling:
        """The engine's terms.

        Args:
            room_tokens: What the context leaves for the output.
            limit: Output bound that the client asked for, if any.
            logprobs: Alternatives to report with each token.
            vocabulary: Number of token ids.

        Raises:
            ApiError: 400, naming the field.
        """
        max_tokens = room_tokens if limit is None else limit
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        self._check(max_tokens, stop, vocabulary)
        return Sampling(
            max_tokens=max_tokens,
            min_tokens=self.min_tokens,
            temperature=_given(self.temperature, 1.0),
            top_p=_given(self.top_p, 1.0),
            top_k=max(0, int(_given(self.top_k, 0))),
            min_p=_given(self.min_p, 0.0),
            seed=self.seed,
            stop=stop,
            stop_token_ids=tuple(self.stop_token_ids or ()),
            include_stop_str_in_output=self.include_stop_str_in_output,
            ignore_eos=self.ignore_eos,
            presence_penalty=_given(self.presence_penalty, 0.0),
            frequency_penalty=_given(self.frequency_penalty, 0.0),
            repetition_penalty=_given(self.repetition_penalty, 1.0),
            logit_bias=_logit_bias(self.logit_bias, vocabulary),
            allowed_token_ids=None if self.allowed_token_ids is None else tuple(self.allowed_token_ids),
            bad_words=tuple(self.bad_words or ()),
            structured_output=structured_output_of(self.response_format, self.structured_outputs),
            logprobs=logprobs,
            prompt_logprobs=self.prompt_logprobs,
            skip_special_tokens=self.skip_special_tokens,
        )

    def _check(self, max_tokens: int, stop: tuple[str, ...], vocabulary: int) -> None:
        if self.min_tokens > max_tokens:
            raise invalid(f"min_tokens ({self.min_tokens}) is over max_tokens ({max_tokens})", "min_tokens")
        if "" in stop:
            raise invalid("stop must not contain an empty string", "stop")
        named = {"stop_token_ids": self.stop_token_ids, "allowed_token_ids": self.allowed_token_ids}
        check_vocabulary(named, vocabulary)

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        return self.stream_options is not None and self.stream_options.include_usage


class CompletionRequest(SamplingFields):
    """``POST /v1/completions``.

    Args:
        prompt: Text or token ids, one per request.
        max_tokens: Most tokens of the answer; ``null``: the rest of the context.
        logprobs: So many alternatives with each token.
    """

    prompt: (
        Text
        | TokenIds
        | Annotated[list[Text], Field(min_length=1, fail_fast=True)]
        | Annotated[list[TokenIds], Field(fail_fast=True)]
    )
    max_tokens: Count | None = 16
    logprobs: Annotated[int, Field(strict=True, ge=0, le=20)] | None = None

    def single_prompt(self) -> str | list[int]:
        """The one prompt, as text or token ids.

        Raises:
            ApiError: 400 when it is a batch.
        """
        if isinstance(self.prompt, str):
            return self.prompt
        if self.prompt and isinstance(self.prompt[0], int):
            return self.prompt
        if len(self.prompt) != 1:
            raise invalid("prompt must be one text or one list of token ids per request", "prompt")
        return cast(str | list[int], self.prompt[0])


class ContentPart(BaseModel):
    """One part of a message; text is what is served."""

    type: Literal["text"]
    text: Text


class Message(BaseModel):
    """One turn of a conversation."""

    model_config = ConfigDict(extra="allow")

    role: Annotated[str, Field(strict=True, pattern=r"^(system|developer|user|assistant|tool)$")]
    content: Text | list[ContentPart] | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_other_parts(cls, fields: Any) -> Any:
        parts = fields.get("content") if isinstance(fields, dict) else None
        if isinstance(parts, list) and any(isinstance(part, dict) and part.get("type") != "text" for part in parts):
            raise Unserved("messages", "only content parts of type text are served")
        return fields

    def text(self) -> str:
        """The content as one text."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class ChatRequest(SamplingFields):
    """``POST /v1/chat/completions``.

    Args:
        messages: The conversation, each with ``role`` and ``content``: text, in the model's own chat template.
        max_tokens: Most tokens of the answer; without it the rest of the context.
        max_completion_tokens: The same, and goes before it.
        logprobs: Whether each token comes with its log probability.
        top_logprobs: So many alternatives with each token; needs ``logprobs``.
        add_generation_prompt: Whether the template opens the assistant's turn.
    """

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = False
    top_logprobs: Annotated[int, Field(strict=True, ge=0, le=20)] | None = None
    add_generation_prompt: bool = True

    @model_validator(mode="before")
    @classmethod
    def _top_logprobs_need_logprobs(cls, fields: Any) -> Any:
        if isinstance(fields, dict) and fields.get("top_logprobs") and not fields.get("logprobs"):
            raise Unserved("top_logprobs", "top_logprobs needs logprobs: true")
        return fields


def _given(value: float | None, default: float) -> float:
    return default if value is None else value


def check_prompt_logprobs(sampling: Sampling, prompt_tokens: int) -> None:
    """Refuses a request for more of them than a gateway writes at a time.

    Raises:
        ApiError: 400, naming the field.
    """
    if sampling.prompt_logprobs is None:
        return
    number = prompt_tokens * (sampling.prompt_logprobs + 1)
    if number > MOST_PROMPT_LOGPROBS:
        said = f"{prompt_tokens} prompt tokens with {sampling.prompt_logprobs} alternatives each are {number} logprobs"
        raise invalid(f"{said}; at most {MOST_PROMPT_LOGPROBS} are given", "prompt_logprobs")


def _logit_bias(bias: dict[str, float] | None, vocabulary: int) -> dict[int, float] | None:
    if not bias:
        return None
    try:
        by_id = {int(token): value for token, value in bias.items()}
    except ValueError as error:
        raise invalid("logit_bias must map token ids to numbers", "logit_bias") from error
    if any(not 0 <= token < vocabulary for token in by_id):
        raise invalid(f"logit_bias names token ids outside the vocabulary of {vocabulary}", "logit_bias")
    return by_id
