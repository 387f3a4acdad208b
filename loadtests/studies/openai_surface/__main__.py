"""Compares what a deployment answers with what vLLM's own server answers: each shape, whole and streamed.

``python -m loadtests.studies.openai_surface [--only TEXT] [--json FILE]``

Both serve the scripted model (:mod:`engines.vllm.scripted_model`), which has learnt what it says by heart: calls of
tools in two formats, thoughts, plain text. vLLM's server answers first, then a deployment with one engine, then one
that hands KV over. A model that embeds and one that scores follow, on one engine. Streams are compared event by event,
joined where one only continues the text of the one before: how many tokens come in an event is a matter of who was
late. Ids, times and what is left out where vLLM writes ``null`` are no differences.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer

from loadtests.machine.systems import ROOT, up
from loadtests.studies.openai_surface.cases import Case
from loadtests.studies.openai_surface.comparison import difference, events, joined, without_chance
from loadtests.studies.openai_surface.servers import HANDOFF, ONE_ENGINE, SETUPS, Setup, deployment, vllms_server

LOGS = ROOT / ".run" / "openai"
PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """How one answer compares.

    Args:
        setup: How both were started.
        deployment: Which deployment answered.
        path: The endpoint.
        feature: What was tried.
        stream: Whether it was streamed.
        difference: Where and how it differs; empty where it does not.
    """

    setup: str
    deployment: str
    path: str
    feature: str
    stream: bool
    difference: str


def ask(url: str, model: str, case: Case, *, stream: bool) -> Any:
    """What a server answers, without what says when and which."""
    body = {"model": model, **case.body}
    if not stream:
        body.pop("stream_options", None)
    answer = httpx.post(f"{url}{case.path}", json={**body, "stream": stream}, timeout=PATIENCE_S)
    if answer.status_code != 200:
        return {"status": answer.status_code}
    return joined(without_chance(events(answer.text))) if stream else without_chance(answer.json())


def compare(setup: Setup, asked: Sequence[Case], folder: Path, console: Console) -> list[Verdict]:
    """Every case, whole and streamed, by each deployment against vLLM's server."""
    turns = [(case, stream) for case in asked for stream in (False, True) if case.streams or not stream]
    console.print(f"{setup.name}: vLLM's server, {len(turns)} requests", highlight=False)
    reference = vllms_server(setup)
    with up(reference, folder / "vllm.log"):
        wanted = [ask(reference.url, setup.model, case, stream=stream) for case, stream in turns]
    for (case, stream), answer in zip(turns, wanted, strict=True):
        if case.answer and not stream:
            _check_script(setup, case, answer)
    verdicts = []
    for name in setup.deployments:
        console.print(f"{setup.name}: {name}", highlight=False)
        ours = deployment(setup, name, folder)
        with up(ours, folder / f"{name}.log"):
            for (case, stream), by_vllm in zip(turns, wanted, strict=True):
                found = difference(by_vllm, ask(ours.url, setup.model, case, stream=stream))
                verdicts.append(Verdict(setup.name, name, case.path, case.feature, stream, found))
    return verdicts


def _check_script(setup: Setup, case: Case, answer: Any) -> None:
    """That the model has said what it has learnt, whatever parsers have made of it: so many tokens, and the end.

    Raises:
        RuntimeError: It has not, so the comparison would be of nonsense.
    """
    said = answer["usage"]["completion_tokens"]
    tokenizer = Tokenizer.from_file(str(setup.folder / "tokenizer.json"))
    learnt = len(tokenizer.encode(case.answer, add_special_tokens=False)) + 1
    if said != learnt:
        raise RuntimeError(f"{case.feature}: the model said {said} tokens and not the {learnt} that it has learnt")


def table(verdicts: Sequence[Verdict]) -> Table:
    """A row for each feature of each endpoint."""
    result = Table(title="answers against those of vLLM's own server, event by event", title_justify="left")
    for name in ("parsers", "endpoint", "feature", "one engine", "streamed", "prefill/decode", "streamed"):
        result.add_column(name, no_wrap=name == "endpoint", overflow="fold")
    for key in dict.fromkeys((each.setup, each.path, each.feature) for each in verdicts):
        cells = []
        for name, stream in (
            (ONE_ENGINE, False),
            (ONE_ENGINE, True),
            (HANDOFF, False),
            (HANDOFF, True),
        ):
            found = [
                each
                for each in verdicts
                if (each.setup, each.path, each.feature, each.deployment, each.stream) == (*key, name, stream)
            ]
            cells.append("-" if not found else found[0].difference or "same")
        result.add_row(*key, *cells)
    return result


def main(arguments: list[str] | None = None) -> int:
    """Command line; fails where an answer differs."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.studies.openai_surface", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--only", default="", help="only features with this text in their name")
    parser.add_argument("--json", type=Path, help="writes the verdicts there, too")
    options = parser.parse_args(arguments)
    console = Console()
    LOGS.mkdir(parents=True, exist_ok=True)
    verdicts: list[Verdict] = []
    for setup in SETUPS:
        asked = [case for case in setup.cases() if options.only in f"{case.path} {case.feature}"]
        if asked:
            setup.make(setup.folder)
            verdicts += compare(setup, asked, LOGS, console)
    console.print(table(verdicts))
    if options.json:
        options.json.write_text(json.dumps([asdict(each) for each in verdicts], indent=1))
    identical = sum(not each.difference for each in verdicts)
    console.print(f"{identical} of {len(verdicts)} are identical")
    return 0 if identical == len(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
