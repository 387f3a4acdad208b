import subprocess
import sys
from pathlib import Path

from deployments.openai.tokenization import PromptTokenizer
from tests.tables import for_each

MODEL = Path(__file__).parents[3] / ".models" / "tiny-llama"
TEXTS = ["", "a", "Tell me about queues.", "naïve café — 東京 \N{ROCKET}", "  spaces\n\tand lines\n" * 50]


@for_each("text", TEXTS, ids=["empty", "letter", "english", "unicode", "long"])
async def test_a_text_gets_the_ids_that_transformers_own_choice_of_tokenizer_gives(text: str) -> None:
    from transformers import AutoTokenizer

    wanted = AutoTokenizer.from_pretrained(str(MODEL)).encode(text)
    assert await PromptTokenizer(str(MODEL)).encode(text) == wanted


async def test_a_conversation_gets_the_ids_that_transformers_own_choice_gives() -> None:
    from transformers import AutoTokenizer

    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is a lane?"}]
    chosen = AutoTokenizer.from_pretrained(str(MODEL))
    text = chosen.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids = await PromptTokenizer(str(MODEL)).encode_chat(messages, add_generation_prompt=True)

    assert ids == chosen.encode(text, add_special_tokens=False)


def test_a_gateway_with_a_plain_tokenizer_does_not_load_torch() -> None:
    code = (
        "import sys\nfrom deployments.openai.tokenization import PromptTokenizer\n"
        f"PromptTokenizer({str(MODEL)!r})\nsys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=MODEL.parents[1], check=False, timeout=120)

    assert done.returncode == 0
