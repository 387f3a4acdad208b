"""What an emulated model answers: tokens of the real vocabulary that mean nothing, known before they are generated.

The model that stands behind it has an opinion on two things only: how likely the text ends at a place, and that all
words are equally likely. So ``logit_bias`` moves the odds as it does in a real model, ``temperature`` says whether the
draw is the prompt's own (0, or ``top_k=1``) or the seed's, and ``top_p``, ``min_p``, a larger ``top_k`` and the
penalties have nothing to choose between: they are checked and change nothing. ``allowed_token_ids`` are the words that
there are. What a text means nothing to it can't have, or costs what its profile does not say, is refused by name.
"""

import hashlib
import itertools
import math
import random
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from engines.contract import ChosenLogprob, EngineRequest, Sampling, TokenLogprob
from engines.emulated.text import TextStream, Vocabulary, encoded
from policies.errors import RequestInvalid

LENGTH_SIGMA = math.sqrt(math.log(2))
"""Of the lognormal output length: its standard deviation is then its mean, as in chat traffic."""
OTHER_TOKEN_LOGIT = -30.0
"""Of tokens that are no words, against 0: they need a bias to be chosen."""
MAX_LOGPROBS = 20
MAX_LENGTH_DRAWS = 100
"""Until an answer is longer than what is out; one that is rarer than that ends at once."""

_Check = tuple[str, Callable[[Sampling], bool], str]
_RANGES: tuple[_Check, ...] = (
    ("max_tokens", lambda s: s.max_tokens >= 1, "1 or more"),
    ("min_tokens", lambda s: 0 <= s.min_tokens <= s.max_tokens, "0 to max_tokens"),
    ("temperature", lambda s: 0 <= s.temperature <= 2, "0 to 2"),
    ("top_p", lambda s: 0 < s.top_p <= 1, "above 0, at most 1"),
    ("top_k", lambda s: s.top_k >= -1, "-1 or more"),
    ("min_p", lambda s: 0 <= s.min_p <= 1, "0 to 1"),
    ("presence_penalty", lambda s: -2 <= s.presence_penalty <= 2, "-2 to 2"),
    ("frequency_penalty", lambda s: -2 <= s.frequency_penalty <= 2, "-2 to 2"),
    ("repetition_penalty", lambda s: 0 < s.repetition_penalty < math.inf, "above 0"),
    ("logprobs", lambda s: s.logprobs is None or 0 <= s.logprobs <= MAX_LOGPROBS, f"0 to {MAX_LOGPROBS}"),
    ("stop", lambda s: "" not in s.stop, "strings that are not empty"),
    ("allowed_token_ids", lambda s: s.allowed_token_ids is None or bool(s.allowed_token_ids), "one token or more"),
)


_REFUSED = {
    "structured_output": "an emulated engine knows no grammars",
    "bad_words": "an emulated engine has no tokens for words; logit_bias may do",
    "prompt_logprobs": "an emulated engine computes no prompt",
}
"""Fields that it can't honour, and why."""


class Answer(NamedTuple):
    """An answer, or what is left of one that was interrupted.

    Args:
        token_ids: Its tokens, end-of-text included.
        finish_reason: ``stop`` or ``length``.
        stop_reason: The stop string or token that ends it, if one does.
        num_text_tokens: How many of its tokens have text; a stop token has none unless it is to be included.
        text_end: Characters of the whole answer's text, when a stop string cuts it short.
    """

    token_ids: list[int]
    finish_reason: str
    stop_reason: str | int | None
    num_text_tokens: int
    text_end: int | None

    def after(self, num_tokens: int) -> "Answer":
        """What is left after so many tokens."""
        return self._replace(token_ids=self.token_ids[num_tokens:], num_text_tokens=self.num_text_tokens - num_tokens)


class Answerer:
    """Knows the answer to every request.

    Args:
        vocabulary: The model's.
        context_tokens: Longest prompt and output together.
        mean_output_tokens: Mean length of an answer that ends by itself, above 1.
        seed: Of the sampling of requests that bring no seed.
    """

    def __init__(self, vocabulary: Vocabulary, context_tokens: int, mean_output_tokens: float, seed: int) -> None:
        self._vocabulary = vocabulary
        self._context_tokens = context_tokens
        self._length_mu = math.log(mean_output_tokens) - LENGTH_SIGMA**2 / 2
        self._seeds = random.Random(seed)

    def answer(self, request: EngineRequest) -> Answer:
        """The answer to a request: a function of the original prompt and, when sampling, of the seed.

        Raises:
            RequestInvalid: A sampling parameter out of range, or a prompt that the model can't take.
        """
        self._check(request)
        if not request.answered_tokens:
            return self._whole_answer(request, [])
        return self._whole_answer(_as_asked(request), request.answered_token_ids).after(request.answered_tokens)

    def _whole_answer(self, request: EngineRequest, known: list[int]) -> Answer:
        """The answer from its first token on; the known ones are taken as they are, whoever drew them."""
        sampling = request.sampling
        rng = self._stream(request)
        length = self._length(rng, sampling, longer_than=len(known) if _seed(sampling) is None else 0)
        limit = min(sampling.max_tokens, self._context_tokens - len(request.prompt_token_ids))
        allowed, eos = sampling.allowed_token_ids, self._vocabulary.eos_token_id
        ends = not sampling.ignore_eos and (allowed is None or eos in allowed)
        if ends:
            length = max(1 if allowed == (eos,) else length, sampling.min_tokens + 1)
        ends = ends and length <= limit
        token_ids = self._draw(rng, sampling, length - 1 if ends else limit)
        token_ids[: len(known)] = known
        if ends:
            token_ids.append(self._vocabulary.eos_token_id)
        return self._cut_at_stop_string(request, self._cut_at_stop_token(sampling, token_ids, ends))

    def logprobs(self, token_id: int, num_top: int) -> ChosenLogprob:
        """Made-up log probabilities: the chosen token is the likeliest, each further one half as likely."""
        words = self._vocabulary.words
        others = (words[(token_id + each) % len(words)] for each in range(len(words)))
        tokens = itertools.chain([token_id], (each for each in others if each != token_id))
        ranked = tuple(
            TokenLogprob(each, self._vocabulary.text_of(each), -(rank + 1) * math.log(2))
            for rank, each in enumerate(itertools.islice(tokens, max(1, num_top)))
        )
        return ChosenLogprob(ranked[0], ranked)

    def first_token(self, request: EngineRequest) -> Answer:
        """The beginning of the answer, as one that ends there.

        Raises:
            RequestInvalid: As :meth:`answer` does.
        """
        answer = self.answer(request)
        if len(answer.token_ids) == 1:
            return answer
        return Answer(answer.token_ids[:1], "length", None, min(1, answer.num_text_tokens), None)

    def no_token(self, request: EngineRequest) -> Answer:
        """A token that nobody gets, for a prefill whose decode draws the answer.

        Raises:
            RequestInvalid: As :meth:`answer` does.
        """
        self._check(request)
        return Answer([self._vocabulary.eos_token_id], "length", None, 0, None)

    def _check(self, request: EngineRequest) -> None:
        sampling, prompt = request.sampling, request.prompt_token_ids
        request.check()
        self._refuse(sampling)
        for param, is_valid, allowed in _RANGES:
            if not is_valid(sampling):
                raise RequestInvalid(f"{param} must be {allowed}, got {getattr(sampling, param)!r}", param)
        if not prompt:
            raise RequestInvalid("the prompt has no tokens", "prompt")
        if len(prompt) + (not request.pooling) > self._context_tokens:
            message = (
                f"the prompt has {len(prompt)} tokens, and an answer none in the context of {self._context_tokens}"
            )
            raise RequestInvalid(message, "prompt")
        for param, token_ids in (
            ("prompt", prompt),
            ("stop_token_ids", sampling.stop_token_ids),
            ("logit_bias", sampling.logit_bias or ()),
            ("allowed_token_ids", sampling.allowed_token_ids or ()),
        ):
            if token_ids and not 0 <= min(token_ids) <= max(token_ids) < self._vocabulary.num_tokens:
                message = f"{param} has a token id outside the vocabulary of {self._vocabulary.num_tokens}"
                raise RequestInvalid(message, param)

    def _refuse(self, sampling: Sampling) -> None:
        for param, why in _REFUSED.items():
            if getattr(sampling, param) not in (None, ()):
                raise RequestInvalid(f"{param} is not served: {why}", param)

    def _stream(self, request: EngineRequest) -> random.Random:
        """The random stream of one answer: the prompt's own and its adapter's, or the seed's, or a new one."""
        seed = _seed(request.sampling)
        if seed is None:
            seed = self._seeds.getrandbits(64)
        asked = encoded(request.prompt_token_ids) + request.adapter.name.encode()
        digest = hashlib.blake2b(asked, digest_size=16, key=str(seed).encode()[:64])
        return random.Random(int.from_bytes(digest.digest(), "big"))

    def _length(self, rng: random.Random, sampling: Sampling, longer_than: int) -> int:
        """When an answer ends by itself. One that has not ended yet and is drawn anew is one of the longer ones."""
        for _ in range(MAX_LENGTH_DRAWS):
            length = self._moved(max(1, round(rng.lognormvariate(self._length_mu, LENGTH_SIGMA))), sampling)
            if length > longer_than:
                break
        return length

    def _moved(self, length: int, sampling: Sampling) -> int:
        """A bias on end-of-text makes it likelier or rarer at each place, and answers shorter or longer by as much."""
        bias = (sampling.logit_bias or {}).get(self._vocabulary.eos_token_id, 0.0)
        return max(1, round(length * math.exp(min(100.0, -bias))))

    def _draw(self, rng: random.Random, sampling: Sampling, num_tokens: int) -> list[int]:
        words = self._vocabulary.words
        biases = {
            token: bias for token, bias in (sampling.logit_bias or {}).items() if token != self._vocabulary.eos_token_id
        }
        if (allowed := sampling.allowed_token_ids) is not None:
            words = self._words_among(allowed)
            biases = {token: bias for token, bias in biases.items() if token in allowed}
        if not biases:
            return rng.choices(words, k=num_tokens)
        logits = dict.fromkeys(words, 0.0)
        for token, bias in biases.items():
            logits[token] = logits.get(token, OTHER_TOKEN_LOGIT) + bias
        highest = max(logits.values())
        return rng.choices(list(logits), [math.exp(each - highest) for each in logits.values()], k=num_tokens)

    def _words_among(self, allowed: tuple[int, ...]) -> tuple[int, ...]:
        """The likeliest of the tokens that are allowed; end-of-text has its own odds."""
        others = tuple(token for token in allowed if token != self._vocabulary.eos_token_id)
        words = set(self._vocabulary.words).intersection(others)
        return tuple(token for token in others if token in words) or others or allowed

    def _cut_at_stop_token(self, sampling: Sampling, token_ids: list[int], ends: bool) -> Answer:
        """Ends the answer with its first stop token that is not among the first ``min_tokens``."""
        hidden = 0 if sampling.include_stop_str_in_output else 1
        stops = set(sampling.stop_token_ids)
        for position in range(sampling.min_tokens, len(token_ids)) if stops else ():
            if token_ids[position] in stops:
                return Answer(token_ids[: position + 1], "stop", token_ids[position], position + 1 - hidden, None)
        if ends:
            return Answer(token_ids, "stop", None, len(token_ids) - hidden, None)
        return Answer(token_ids, "length", None, len(token_ids), None)

    def _cut_at_stop_string(self, request: EngineRequest, answer: Answer) -> Answer:
        """Ends the answer with the token that completes a stop string."""
        sampling = request.sampling
        if not sampling.stop:
            return answer
        stream = TextStream(self._vocabulary, request.prompt_token_ids, sampling.skip_special_tokens)
        text = ""
        for position, token_id in enumerate(answer.token_ids[: answer.num_text_tokens]):
            num_seen = len(text)
            text += stream.feed((token_id,))
            found = _first(text, num_seen, sampling.stop) if position >= sampling.min_tokens else None
            if found is not None:
                at, stop = found
                end = at + len(stop) if sampling.include_stop_str_in_output else at
                return Answer(answer.token_ids[: position + 1], "stop", stop, position + 1, end)
        return answer


def _seed(sampling: Sampling) -> int | None:
    """Of the draw: the prompt's own is 0, and there is none without a seed of the request's."""
    return 0 if sampling.temperature == 0 or sampling.top_k == 1 else sampling.seed


def _as_asked(request: EngineRequest) -> EngineRequest:
    """The request before the interruption, as far as it matters from the interruption on.

    Least lengths shorter than the answer so far are all the same, since it did not end there.
    """
    sampling, answered_tokens = request.sampling, request.answered_tokens
    return msgspec.structs.replace(
        request,
        prompt_token_ids=request.original_token_ids,
        sampling=msgspec.structs.replace(
            sampling,
            max_tokens=sampling.max_tokens + answered_tokens,
            min_tokens=sampling.min_tokens + answered_tokens,
        ),
        answered_tokens=0,
        answered_chars=0,
    )


def _first(text: str, num_seen: int, stops: tuple[str, ...]) -> tuple[int, str] | None:
    """Where the first stop string begins that ends after the characters seen before, and which one it is."""
    found = [(at, stop) for stop in stops if (at := text.find(stop, max(0, num_seen - len(stop) + 1))) >= 0]
    return min(found, default=None)
