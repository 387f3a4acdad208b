"""Makes a tiny checkpoint that has learnt a few scripts by heart: what it says to them is known, and means something.

``python -m engines.vllm.scripted_model .models/tiny-scripts`` trains a Llama of 0.7 M parameters for some 20 seconds on
:data:`SCRIPTS`: calls of tools in two families' formats, two calls at once, a thought before an answer, plain text. So
parsers of tool calls and of reasoning can be tried on what a model has written, token by token. What else it is asked
it answers with nonsense.
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from engines.vllm.tiny_model import CONTEXT_TOKENS, SEED, ensure_checkpoint, write_tokenizer

FORMAT_VERSION = 1
"""Raise it when what this file writes changes: a folder of another version is made anew."""
MARKS = ("<tool_call>", "</tool_call>", "<think>", "</think>", "<|python_tag|>")
"""Tokens of their own, as models of those families have them."""
CHAT_TEMPLATE = (
    "{% if tools %}{{ '<|im_start|>tools\n' }}{% for tool in tools %}{{ tool.function.name + ' ' }}{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endif %}"
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\n' + (message.content or '') }}"
    "{% for call in message.tool_calls or [] %}{{ call.function.name + ' ' }}{% endfor %}"
    "{{ '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
ENOUGH_LOSS = 0.002
"""Of a token, in nats: every token of every script is then all but certain."""
MAX_STEPS = 1500


@dataclass(frozen=True, slots=True)
class Script:
    """What the model says to a conversation.

    Args:
        name: Of the script.
        question: The one message.
        answer: Word for word.
        tools: Names of the tools that are offered.
        system: What comes before the question, if anything.
    """

    name: str
    question: str
    answer: str
    tools: tuple[str, ...] = ()
    system: str = ""

    def messages(self) -> list[dict[str, str]]:
        """The conversation."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, {"role": "user", "content": self.question}]


def _hermes(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def _llama(name: str, arguments: str) -> str:
    return f'{{"name": "{name}", "parameters": {arguments}}}'


WEATHER, TIDE = ("weather",), ("weather", "tide")
SCRIPTS = (
    Script("plain", "What is a queue?", "A line of things that wait for their turn."),
    Script("plain, numbers", "Count to five.", "1, 2, 3, 4, 5."),
    Script("plain, long", "Tell me about the sea.", "The sea is wide and deep. It moves, and it does not stop." * 3),
    Script("plain, system", "Who are you?", "I am a well.", system="You are a well."),
    Script("no tool wanted", "Say hello.", "Hello.", tools=WEATHER),
    Script("hermes", "What is the weather in Oslo?", _hermes("weather", '{"city": "Oslo"}'), tools=WEATHER),
    Script(
        "hermes, numbers",
        "What is the tide at 7?",
        _hermes("tide", '{"hour": 7, "high": true, "at": [1.5, -2]}'),
        tools=TIDE,
    ),
    Script(
        "hermes, two at once",
        "Weather in Oslo and in Rome?",
        _hermes("weather", '{"city": "Oslo"}') + "\n" + _hermes("weather", '{"city": "Rome"}'),
        tools=TIDE,
    ),
    Script(
        "hermes, text before it",
        "Look up the weather in Rome.",
        "I will look. " + _hermes("weather", '{"city": "Rome"}'),
        tools=WEATHER,
    ),
    Script("llama", "How warm is Lima?", _llama("weather", '{"city": "Lima"}'), tools=WEATHER),
    Script(
        "llama, numbers",
        "How high is the tide in Brest?",
        _llama("tide", '{"place": "Brest", "metres": 6.5}'),
        tools=TIDE,
    ),
    Script("thought", "How much is 2 and 2?", "<think>Two and two make four.</think>It is 4."),
    Script(
        "thought, long",
        "Is the sea a lake?",
        "<think>A lake has an end. The sea has none that I know. So it is not.</think>No, it is not.",
    ),
    Script(
        "thought, then a tool",
        "Will it rain in Oslo?",
        "<think>I have to look.</think>" + _hermes("weather", '{"city": "Oslo"}'),
        tools=WEATHER,
    ),
)


def ensure_scripted_model(folder: Path) -> bool:
    """Makes the model in ``folder`` unless a complete one of this version is there. Returns whether it was made."""
    return ensure_checkpoint(folder, "spillway-scripted-model.txt", FORMAT_VERSION, _write)


def tools_of(script: Script) -> list[dict[str, Any]]:
    """The tools that are offered, as OpenAI's API has them."""
    schema = {"type": "object", "properties": {}, "additionalProperties": True}
    return [{"type": "function", "function": {"name": name, "parameters": schema}} for name in script.tools]


def _write(folder: Path) -> None:
    write_tokenizer(folder)
    _train(_with_marks(folder)).to(torch.bfloat16).save_pretrained(folder)


def _with_marks(folder: Path) -> PreTrainedTokenizerFast:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    tokenizer.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in MARKS])
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(folder)
    return tokenizer


def _train(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Until every token of every script is all but certain, or for so many steps.

    Raises:
        RuntimeError: It has not learnt them.
    """
    torch.manual_seed(SEED)
    model = LlamaForCausalLM(_config(len(tokenizer)))
    learn(model, *_batch(tokenizer))
    return model


def learn(
    model: torch.nn.Module, tokens: torch.Tensor, labels: torch.Tensor, *, enough_loss: float = ENOUGH_LOSS
) -> None:
    """Trains a model until every token that has a label is all but certain.

    Args:
        model: Knows its loss, as Hugging Face's do.
        tokens: Texts x tokens, padded.
        labels: Likewise; -100 where it has nothing to learn.
        enough_loss: Of a token, in nats, at which it has learnt them.

    Raises:
        RuntimeError: It has not learnt them in so many steps.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0)
    for step in range(MAX_STEPS):
        loss = model(input_ids=tokens, labels=labels).loss
        if loss.item() < enough_loss:
            return
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if sys.stdout.isatty() and step % 20 == 0:
            print(f"\rlearning: step {step}, {loss.item():.4f} nats a token", end="", flush=True)
    raise RuntimeError(f"not learnt after {MAX_STEPS} steps: {loss.item():.4f} nats a token")


def _config(vocabulary_tokens: int) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=vocabulary_tokens,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT_TOKENS,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
        tie_word_embeddings=False,
    )


def _batch(tokenizer: PreTrainedTokenizerFast) -> tuple[torch.Tensor, torch.Tensor]:
    """All scripts, padded; only what the model says has a label."""
    rows = []
    for script in SCRIPTS:
        prompt = tokenizer.apply_chat_template(
            script.messages(), tools=tools_of(script) or None, tokenize=False, add_generation_prompt=True
        )
        asked = tokenizer.encode(prompt, add_special_tokens=False)
        said = [*tokenizer.encode(script.answer, add_special_tokens=False), tokenizer.eos_token_id]
        rows.append((asked, said))
    longest = max(len(asked) + len(said) for asked, said in rows)
    tokens = torch.zeros((len(rows), longest), dtype=torch.long)
    labels = torch.full((len(rows), longest), -100, dtype=torch.long)
    for number, (asked, said) in enumerate(rows):
        end = len(asked) + len(said)
        tokens[number, :end] = torch.tensor([*asked, *said])
        labels[number, len(asked) : end] = torch.tensor(said)
    return tokens, labels


def main(arguments: list[str] | None = None) -> int:
    """Command line: makes the model, or says that it is there."""
    parser = argparse.ArgumentParser(prog="python -m engines.vllm.scripted_model", description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", type=Path, help="where to write it, e.g. .models/tiny-scripts")
    folder = parser.parse_args(arguments).folder
    made = ensure_scripted_model(folder)
    print(f"scripted model: {'made' if made else 'already'} in {folder}, {len(SCRIPTS)} scripts")
    return 0


if __name__ == "__main__":
    sys.exit(main())
