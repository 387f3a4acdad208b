"""Token ids to text and text to identities, without transformers or torch.

The tokenizer is the model's own, read from its ``tokenizer.json``, so text and token counts agree with the gateway's.
"""

import hashlib
from array import array
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from policies.errors import ConfigError

MIN_WORDS = 32
ENOUGH_WORDS = 4096
PRIMING_TOKENS = 8
WORD_STARTS = ("\u0120", "\u2581")
"""How byte-level and sentence-piece vocabularies write the space before a word."""
BROKEN = "\ufffd"
CONTENT_BITS = 60


class Vocabulary:
    """What a model's tokens are.

    Args:
        tokenizer: The model's tokenizer.
        eos_token_id: The token that ends a text.
    """

    def __init__(self, tokenizer: Tokenizer, eos_token_id: int) -> None:
        self.tokenizer = tokenizer
        self.eos_token_id = eos_token_id
        self.num_tokens: int = tokenizer.get_vocab_size()
        self.words = self._choose_words()
        self._texts: dict[int, str] = {}

    @classmethod
    def load(cls, folder: str) -> "Vocabulary":
        """Reads ``tokenizer.json`` and the end-of-text token from a checkpoint's folder.

        Raises:
            ConfigError: The folder has none.
        """
        path = Path(folder) / "tokenizer.json"
        if not path.is_file():
            raise ConfigError("model.path", folder, "a folder with a tokenizer.json, for an emulated engine")
        tokenizer = Tokenizer.from_file(str(path))
        return cls(tokenizer, _eos_token_id(Path(folder), tokenizer))

    def text_of(self, token_id: int) -> str:
        """One token's own text."""
        if token_id not in self._texts:
            self._texts[token_id] = self.tokenizer.decode([token_id], skip_special_tokens=False)
        return self._texts[token_id]

    def _choose_words(self) -> tuple[int, ...]:
        """Tokens to write answers with: whole words if there are enough, else whatever can be read, else anything."""
        special = {*self.tokenizer.get_added_tokens_decoder(), self.eos_token_id}
        kinds: tuple[Callable[[int], bool], ...] = (self._is_word, self._is_readable, lambda _: True)
        words: list[int] = []
        for is_wanted in kinds:
            words = [each for each in range(self.num_tokens) if each not in special and is_wanted(each)]
            if len(words) >= MIN_WORDS:
                break
        return tuple(words[:ENOUGH_WORDS])

    def _is_word(self, token_id: int) -> bool:
        token: str = self.tokenizer.id_to_token(token_id) or ""
        return token.startswith(WORD_STARTS) and token[1:].isascii() and token[1:].isalpha()

    def _is_readable(self, token_id: int) -> bool:
        text: str = self.tokenizer.decode([token_id])
        return bool(text.strip()) and text.isascii() and text.isprintable()


class TextStream:
    """The text of a growing list of tokens; lags behind in the middle of a character.

    Args:
        vocabulary: The model's.
        prompt_token_ids: What precedes the text; decides whether its first word begins with a space.
        skip_special_tokens: Leave special tokens out.
    """

    def __init__(self, vocabulary: Vocabulary, prompt_token_ids: Sequence[int], skip_special_tokens: bool) -> None:
        self._tokenizer = vocabulary.tokenizer
        before = list(prompt_token_ids[-PRIMING_TOKENS:])
        if BROKEN in self._tokenizer.decode(before, skip_special_tokens=skip_special_tokens):
            before = []
        self._stream = DecodeStream(before, skip_special_tokens)

    def feed(self, token_ids: Iterable[int]) -> str:
        """The text that these tokens complete."""
        return "".join([self._stream.step(self._tokenizer, token_id) or "" for token_id in token_ids])


def content_of(token_ids: Sequence[int], unit_tokens: int, adapter: str = "", cache_salt: str = "") -> tuple[int, ...]:
    """The identity of a text, one number for each whole unit: equal numbers mean equal text up to there.

    The same in every process, so that engines agree on it.

    Args:
        token_ids: The text.
        unit_tokens: Tokens in a unit.
        adapter: What it is computed with: the KV of the same text is another's then.
        cache_salt: Likewise: who has another one is not to find it.
    """
    raw = encoded(token_ids)
    width = 4 * unit_tokens
    digest = f"{adapter}\0{cache_salt}".encode() if cache_salt else adapter.encode()
    units: list[int] = []
    for start in range(0, len(raw) - width + 1, width):
        digest = hashlib.blake2b(digest + raw[start : start + width], digest_size=8).digest()
        units.append(int.from_bytes(digest, "big") >> (64 - CONTENT_BITS))
    return tuple(units)


def encoded(token_ids: Sequence[int]) -> bytes:
    """Token ids as bytes, four for each."""
    return array("I", token_ids).tobytes()


def _eos_token_id(folder: Path, tokenizer: Tokenizer) -> int:
    for name in ("generation_config.json", "config.json"):
        found = _read(folder / name).get("eos_token_id")
        if isinstance(found, list) and found:
            found = found[0]
        if isinstance(found, int):
            return found
    token = _read(folder / "tokenizer_config.json").get("eos_token")
    token_id: int | None = tokenizer.token_to_id(token) if isinstance(token, str) else None
    if token_id is None:
        raise ConfigError("model.path", str(folder), "a model whose configuration names its end-of-text token")
    return token_id


def _read(path: Path) -> dict[str, Any]:
    return msgspec.json.decode(path.read_bytes(), type=dict[str, Any]) if path.is_file() else {}
