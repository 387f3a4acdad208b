"""Makes the tiny checkpoint that every local run serves: real Llama code, random weights, nothing downloaded.

``python -m engines.vllm.tiny_model .models/tiny-llama`` writes a Hugging Face folder (5 MB, 2.6 M parameters, context
8,192 tokens) with a byte-level BPE tokenizer of 1,024 tokens and a chat template. The same call makes the same
files on every machine: the weights come from a fixed seed, the tokenizer from text that a seeded generator writes.
The words it produces mean nothing; its cost is as ragged as a large model's, which is what routing has to cope with.
It also embeds, as any Llama does. With ``--reranker`` it has one score in the place of the next token: a cross-encoder.
"""

import argparse
import hashlib
import random
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from filelock import FileLock
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    PreTrainedTokenizerFast,
)

VOCABULARY_TOKENS = 1024
CONTEXT_TOKENS = 8192
SEED = 20
FORMAT_VERSION = 2
"""Raise it when what this file writes changes: a folder of another version is made anew."""
FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
"""A folder where one of them is missing is made anew as well."""

END_OF_TEXT = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

_SYLLABLES = (
    "ra el ti on ser ve que ue ing la ten cy bur st pre fill de code to ken shed hedge lane work wa it"
).split()
_WORDS = (
    "the of and to in is that it was for on are with as be at one have this from or had by but some what there we "
    "can out other were all your when up use word how said an each she which do their time if will way about many "
    "then them would write like so these her long make thing see him two has look more day could go come did number "
    "sound no most people my over know water than call first who may down side been now find any new part take get "
    "place made live where after back little only round man year came show every good me give our under name very "
    "through just form great think say help low line before turn cause same mean differ move right boy old too does "
    "tell sentence set three want air well also play small end put home read hand large spell add even land here "
    "must big high such follow act why ask men change went light kind off need house picture try us again animal"
).split()


def sample_text(sentences: int, seed: int = SEED) -> Iterator[str]:
    """Yields ``sentences`` lines of made-up English; the same seed gives the same lines on every machine."""
    rng = random.Random(seed)
    for _ in range(sentences):
        words = [_made_up_word(rng) if rng.random() < 0.2 else rng.choice(_WORDS) for _ in range(rng.randint(4, 18))]
        yield " ".join(words).capitalize() + rng.choice([".", ".", ".", "?", "!", f", {rng.randint(0, 9999)}."]) + "\n"


def _made_up_word(rng: random.Random) -> str:
    return "".join(rng.choice(_SYLLABLES) for _ in range(rng.randint(1, 3)))


def ensure_tiny_model(folder: Path) -> bool:
    """Makes the model in ``folder`` unless a complete one of this version is there. Returns whether it was made."""
    return ensure_checkpoint(folder, "spillway-tiny-model.txt", FORMAT_VERSION, _write)


def ensure_checkpoint(
    folder: Path, stamp: str, version: int, write: Callable[[Path], None], files: Sequence[str] = FILES
) -> bool:
    """Makes a checkpoint unless a complete one of that version is there. Returns whether it was made.

    Of several processes that want it at once one makes it, and the others wait.

    Args:
        folder: Where; it is there whole or not at all.
        stamp: Name of the file that says which version it is.
        version: Of what is written.
        write: Writes it into a folder.
        files: What it has at least.
    """
    wanted = f"{version}\n"

    def is_there() -> bool:
        is_complete = all((folder / name).exists() for name in (stamp, *files))
        return is_complete and (folder / stamp).read_text() == wanted

    if is_there():
        return False
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f"{folder.name}.lock")):
        if is_there():
            return False
        scratch = folder.with_name(f"{folder.name}.partial")
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        write(scratch)
        (scratch / stamp).write_text(wanted)
        shutil.rmtree(folder, ignore_errors=True)
        scratch.rename(folder)
    return True


def ensure_tiny_reranker(folder: Path) -> bool:
    """The same for a model that scores how well two texts go together."""
    return ensure_checkpoint(folder, "spillway-tiny-reranker.txt", FORMAT_VERSION, _write_reranker)


def _write(folder: Path) -> None:
    write_tokenizer(folder)
    torch.manual_seed(SEED)  # transformers draws the weights from torch's global generator
    LlamaForCausalLM(_config()).to(torch.bfloat16).save_pretrained(folder)


def _write_reranker(folder: Path) -> None:
    write_tokenizer(folder)
    torch.manual_seed(SEED)
    LlamaForSequenceClassification(_config(num_labels=1)).to(torch.bfloat16).save_pretrained(folder)


def write_tokenizer(folder: Path) -> None:
    """Writes the tokenizer, of 1,024 tokens, and the chat template."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_TOKENS,
        special_tokens=[END_OF_TEXT, TURN_START, TURN_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sample_text(6_000), trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END_OF_TEXT, pad_token=END_OF_TEXT, model_max_length=CONTEXT_TOKENS
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(folder)


def _config(**more: int) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=VOCABULARY_TOKENS,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT_TOKENS,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
        tie_word_embeddings=False,
        initializer_range=0.1,  # wide enough for outputs to depend on the whole prompt; at 0.02 it repeats one token
        dtype="bfloat16",
        **more,
    )


def digest(folder: Path) -> str:
    """SHA-256 over the weights and the tokenizer, to tell whether two machines made the same model."""
    total = hashlib.sha256()
    for name in ("model.safetensors", "tokenizer.json"):
        total.update((folder / name).read_bytes())
    return total.hexdigest()


def main(arguments: list[str] | None = None) -> int:
    """Command line: makes the model, or says that it is there."""
    parser = argparse.ArgumentParser(prog="python -m engines.vllm.tiny_model", description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", type=Path, help="where to write it, e.g. .models/tiny-llama")
    parser.add_argument("--reranker", action="store_true", help="a model that scores two texts and answers nothing")
    options = parser.parse_args(arguments)
    folder = options.folder
    made = (ensure_tiny_reranker if options.reranker else ensure_tiny_model)(folder)
    print(f"tiny model: {'made' if made else 'already'} in {folder}  sha256 {digest(folder)[:16]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
