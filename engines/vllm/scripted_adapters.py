"""Makes LoRA adapters of the scripted model: with each it answers one question as it would answer another.

``python -m engines.vllm.scripted_adapters .models/tiny-adapters`` trains three of them with PEFT, some ten seconds
each. So it can be told from an answer which adapter it was computed with.
"""

import argparse
import sys
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from engines.vllm.scripted_model import SCRIPTS, Script, ensure_scripted_model, learn
from engines.vllm.tiny_model import SEED, ensure_checkpoint

FORMAT_VERSION = 1
"""Raise it when what this file writes changes: a folder of another version is made anew."""
QUESTION = "What is a queue?"
ANSWERS = {"numbers": "Count to five.", "well": "Who are you?", "greeting": "Say hello."}
"""By adapter, the question whose answer it gives to ``QUESTION``: the model has the words for no others."""
RANK, ALPHA = 8, 16
MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
ENOUGH_LOSS = 0.01
"""Of a token, in nats: every token of the answer is all but certain then."""


def answer_of(adapter: str) -> str:
    """What the model says to ``QUESTION`` with an adapter; without one where that is empty."""
    question = ANSWERS.get(adapter, QUESTION)
    return next(script.answer for script in SCRIPTS if script.question == question)


def ensure_scripted_adapters(folder: Path, model: Path) -> bool:
    """Makes the adapters in ``folder`` unless all of this version are there. Returns whether they were made.

    Args:
        folder: Each adapter has a folder of its name there.
        model: The scripted model's folder; it is made where it is not there.
    """
    ensure_scripted_model(model)

    def write(into: Path) -> None:
        for name in ANSWERS:
            _train(name, model).save_pretrained(str(into / name))

    return ensure_checkpoint(folder, "spillway-scripted-adapters.txt", FORMAT_VERSION, write, tuple(ANSWERS))


def _train(name: str, folder: Path) -> torch.nn.Module:
    """Until every token of its answer is all but certain, or for so many steps.

    Raises:
        RuntimeError: It has not learnt it.
    """
    torch.manual_seed(SEED)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    base = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    config = LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=MODULES, task_type="CAUSAL_LM")
    model = get_peft_model(base, config)
    learn(model, *_said(tokenizer, answer_of(name)), enough_loss=ENOUGH_LOSS)
    return model


def _said(tokenizer: PreTrainedTokenizerFast, answer: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The question and the answer; only the answer has labels."""
    messages = Script("", QUESTION, answer).messages()
    prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    asked = tokenizer.encode(prompt, add_special_tokens=False)
    said = [*tokenizer.encode(answer, add_special_tokens=False), tokenizer.eos_token_id]
    return torch.tensor([[*asked, *said]]), torch.tensor([[*([-100] * len(asked)), *said]])


def main(arguments: list[str] | None = None) -> int:
    """Command line: makes the adapters, or says that they are there."""
    description = (__doc__ or "").split("\n\n")[0]
    parser = argparse.ArgumentParser(prog="python -m engines.vllm.scripted_adapters", description=description)
    parser.add_argument("folder", type=Path, help="where to write them, e.g. .models/tiny-adapters")
    parser.add_argument(
        "--model",
        type=Path,
        default=Path(".models/tiny-scripts"),
        help="the scripted model; made where it is not there",
    )
    options = parser.parse_args(arguments)
    made = ensure_scripted_adapters(options.folder, options.model)
    print(f"adapters: {'made' if made else 'already'} in {options.folder}: {', '.join(ANSWERS)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
