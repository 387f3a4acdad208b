"""The tokenizer of a checkpoint, and what is beneath it."""

import json
from pathlib import Path
from typing import Any

PLAIN_TOKENIZERS = ("TokenizersBackend", "PreTrainedTokenizerFast")
"""Names under which transformers saves a tokenizer that is all in ``tokenizer.json``."""


def load(model_path: str) -> Any:
    """The tokenizer that ``AutoTokenizer`` would choose, without torch where the checkpoint names it.

    Finding the class by way of the model's type imports torch, which takes a gateway two seconds and 200 MB.
    """
    config = Path(model_path) / "tokenizer_config.json"
    if config.is_file() and json.loads(config.read_text()).get("tokenizer_class") in PLAIN_TOKENIZERS:
        from transformers import PreTrainedTokenizerFast  # noqa: PLC0415 - takes a second; only gateways need it

        return PreTrainedTokenizerFast.from_pretrained(model_path)
    from transformers import AutoTokenizer  # noqa: PLC0415

    return AutoTokenizer.from_pretrained(model_path)


def plain_rust(tokenizer: Any) -> Any:
    """What is beneath a tokenizer, where that is all there is to it; else ``None``."""
    rust = getattr(tokenizer, "backend_tokenizer", None)
    return None if rust is None or rust.truncation is not None or rust.padding is not None else rust
