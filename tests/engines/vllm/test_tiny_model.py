from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from engines.vllm.tiny_model import (
    CONTEXT_TOKENS,
    FILES,
    SEED,
    TURN_END,
    TURN_START,
    VOCABULARY_TOKENS,
    digest,
    ensure_checkpoint,
    ensure_tiny_model,
    main,
    sample_text,
)
from tests.tables import for_each

STAMP = "spillway-tiny-model.txt"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that tests may damage, as long as they have it restored."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    assert ensure_tiny_model(folder)
    return folder


def names(folder: Path) -> set[str]:
    return {each.name for each in folder.iterdir()}


def test_the_same_seed_gives_the_same_text() -> None:
    assert list(sample_text(20)) == list(sample_text(20, seed=SEED))


def test_a_longer_text_begins_with_the_shorter_one() -> None:
    assert list(sample_text(20))[:5] == list(sample_text(5))


def test_another_seed_gives_another_text() -> None:
    assert list(sample_text(5)) != list(sample_text(5, seed=SEED + 1))


def test_the_first_sentence_is_the_same_for_ever() -> None:
    """Pinned: if it changes, so does the tokenizer, and every measurement with it."""
    (sentence,) = sample_text(1)

    assert (
        sentence == "How big what well that from fillto them hedgetenten here help then was had walala each is her!\n"
    )


def test_a_sentence_is_a_line() -> None:
    assert all(sentence.endswith("\n") and sentence.count("\n") == 1 for sentence in sample_text(100))


def test_a_model_that_is_there_is_left_as_it_is(made: Path) -> None:
    written = {each.name: each.stat().st_mtime_ns for each in made.iterdir()}

    assert not ensure_tiny_model(made)

    assert {each.name: each.stat().st_mtime_ns for each in made.iterdir()} == written


def test_two_machines_make_the_same_model(made: Path, tmp_path: Path) -> None:
    other = tmp_path / "deep" / "tiny"

    assert ensure_tiny_model(other)

    assert digest(other) == digest(made)
    assert names(other) == names(made)


def test_nothing_but_its_lock_is_left_beside_the_model(made: Path) -> None:
    assert names(made.parent) == {made.name, f"{made.name}.lock"}


def test_a_model_of_another_version_is_made_anew(made: Path) -> None:
    wanted = digest(made)
    (made / STAMP).write_text("0\n")
    (made / "model.safetensors").write_bytes(b"old")

    assert ensure_tiny_model(made)

    assert digest(made) == wanted


@for_each("lost", [STAMP, *FILES])
def test_a_model_with_a_file_missing_is_made_anew(made: Path, lost: str) -> None:
    wanted = digest(made)
    (made / lost).unlink()

    assert ensure_tiny_model(made)

    assert digest(made) == wanted
    assert (made / lost).exists()


def test_what_an_interrupted_run_left_is_no_obstacle(tmp_path: Path) -> None:
    partial = tmp_path / "tiny.partial"
    partial.mkdir()
    (partial / "model.safetensors").write_bytes(b"half")

    assert ensure_tiny_model(tmp_path / "tiny")

    assert names(tmp_path) == {"tiny", "tiny.lock"}


def test_the_tokenizer_knows_every_byte_and_its_turns(made: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(made)
    text = "Hello, Wörld! 😀 \t\n"

    assert len(tokenizer) == VOCABULARY_TOKENS
    assert tokenizer.model_max_length == CONTEXT_TOKENS
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_the_chat_template_opens_the_assistants_turn(made: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(made)
    messages = [{"role": "user", "content": "Hello"}]

    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)

    assert text == f"{TURN_START}user\nHello{TURN_END}\n{TURN_START}assistant\n"


def test_the_command_says_what_it_did(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(made)]) == 0

    assert capsys.readouterr().out == f"tiny model: already in {made}  sha256 {digest(made)[:16]}\n"


def test_of_several_that_want_a_checkpoint_at_once_one_makes_it(tmp_path: Path) -> None:
    written: list[Path] = []

    def write(folder: Path) -> None:
        (folder / "weights").write_text("heavy")
        written.append(folder)

    with ThreadPoolExecutor(max_workers=8) as pool:
        wanted = [pool.submit(ensure_checkpoint, tmp_path / "model", "stamp", 1, write, ("weights",)) for _ in range(8)]
        made = [each.result() for each in wanted]

    assert (sum(made), len(written)) == (1, 1)
    assert (tmp_path / "model" / "weights").read_text() == "heavy"
