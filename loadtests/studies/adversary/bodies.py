"""Requests that cost their sender little and a gateway much, each by another part of what a gateway does with one."""

import json
import random
from collections.abc import Callable, Mapping
from typing import Any

MIB = 1 << 20
SEED = 7
Body = Callable[[str], bytes]
"""Of a model, by its name."""


def honest(model: str) -> bytes:
    """What everybody sends: a short prompt, and a short answer."""
    return _json(model, prompt=[5 + number % 900 for number in range(64)], max_tokens=16, ignore_eos=True)


def _json(model: str, **fields: Any) -> bytes:
    return json.dumps({"model": model, "max_tokens": 1, **fields}).encode()


def _words(num_bytes: int) -> str:
    """Text without an end of words that repeat: what is cached of some does not help with others."""
    rng = random.Random(SEED)
    words = ["".join(rng.choices("abcdefghij", k=6)) for _ in range(num_bytes // 7)]
    return " ".join(words)


def _largest_prompt(model: str) -> bytes:
    return _json(model, prompt=_words(8 * MIB - 4096))


def _long_prompt(model: str) -> bytes:
    return _json(model, prompt=_words(MIB))


def _one_word(model: str) -> bytes:
    return _json(model, prompt="a" * MIB)


def _token_ids(model: str) -> bytes:
    return _json(model, prompt=[7] * 500_000)


def _many_messages(model: str) -> bytes:
    return _json(model, messages=[{"role": "user", "content": "a"}] * 30_000)


def _many_parts(model: str) -> bytes:
    return _json(model, messages=[{"role": "user", "content": [{"type": "text", "text": "a"}] * 30_000}])


def _filled_with(value: bytes) -> Body:
    """A list of such values, as many as a body may have, in a field that nobody knows."""

    def body(model: str) -> bytes:
        number = (8 * MIB - 4096) // (len(value) + 1)
        return _json(model, prompt="a")[:-1] + b', "more": [' + b",".join([value] * number) + b"]}"

    return body


def _long_stops(model: str) -> bytes:
    return _json(model, prompt="a", stop=["x" * 250_000] * 4)


def _logit_bias(model: str) -> bytes:
    return _json(model, prompt="a", logit_bias={str(number): 1 for number in range(50_000)})


def _nested(model: str) -> bytes:
    return b'{"model": "' + model.encode() + b'", "prompt": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"


def _schema(model: str) -> bytes:
    choices = [f"choice number {number}" for number in range(20_000)]
    return _json(model, prompt="a", structured_outputs={"choice": choices})


DEAR: Mapping[str, tuple[str, Body]] = {
    "largest prompt": ("/v1/completions", _largest_prompt),
    "a prompt of 1 MiB": ("/v1/completions", _long_prompt),
    "1 MiB without a space": ("/v1/completions", _one_word),
    "1 MiB to count": ("/tokenize", _long_prompt),
    "500,000 token ids": ("/v1/completions", _token_ids),
    "30,000 messages": ("/v1/chat/completions", _many_messages),
    "30,000 parts of a message": ("/v1/chat/completions", _many_parts),
    "8 MiB of fractions": ("/v1/completions", _filled_with(b"1.2345678901234567e-300")),
    "8 MiB of lists": ("/v1/completions", _filled_with(b"[[[[[]]]]]")),
    "8 MiB of objects": ("/v1/completions", _filled_with(b'{"a":{}}')),
    "four stops of 250 kB": ("/v1/completions", _long_stops),
    "50,000 biases": ("/v1/completions", _logit_bias),
    "200,000 brackets": ("/v1/completions", _nested),
    "20,000 choices": ("/v1/completions", _schema),
}
"""Path and body of each, by what it is."""
