"""Finished requests on which length predictors are compared: of a trace, and made up with something to learn."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cluster.seeds import Seeds
from loadtests.schema.ranges import require
from loadtests.workloads.streams import ClassStreams
from loadtests.workloads.traces import SCHEMAS, read_trace
from routing.sizing.length_log import LoggedRequest
from routing.sizing.prompt_ngrams import NgramParams, hashed_ngrams

ORDINARY_TOKENS = range(1_000, 30_000)
CAPS_TOKENS = (256, 1024, 4096)
"""What clients allow, each a third of the requests; answers are cut there."""
EDGE_TOKENS = 48
"""As much text as a prompt gets at either end; nobody looks at what is between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What some prompts ask for.

    Args:
        words: Tokens that say so.
        is_first: Whether they stand before the material rather than after it.
        prompt_tokens: Median length of the prompt.
        output_tokens: Median length of the answer, to which ``output_per_prompt`` adds.
        output_per_prompt: Tokens of the answer for each of the prompt.
        spread: Standard deviation of the answer's length, as a logarithm.
        shares: How frequent it is before the drift and after it.
    """

    words: tuple[int, ...]
    is_first: bool
    prompt_tokens: float
    output_tokens: float
    output_per_prompt: float = 0.0
    spread: float
    shares: tuple[float, float]


KINDS = (
    Kind(words=(11, 12, 13), is_first=False, prompt_tokens=400, output_tokens=4, spread=0.4, shares=(0.3, 0.2)),
    Kind(words=(21, 22), is_first=True, prompt_tokens=1500, output_tokens=150, spread=0.3, shares=(0.3, 0.2)),
    Kind(words=(31, 32), is_first=False, prompt_tokens=250, output_tokens=350, spread=0.4, shares=(0.2, 0.2)),
    Kind(
        words=(41,),
        is_first=True,
        prompt_tokens=500,
        output_tokens=1,
        output_per_prompt=1.0,
        spread=0.15,
        shares=(0.1, 0.2),
    ),
    Kind(words=(51, 52, 53), is_first=False, prompt_tokens=300, output_tokens=900, spread=0.6, shares=(0.1, 0.2)),
)
"""Yes or no, summarise, list, translate, write: their prompts' lengths overlap, their words don't."""
TENANTS = {"north": (0.7, 1.4), "south": (1.0, 1.0), "east": (1.0, 1.0), "west": (1.6, 0.8)}
"""By what each one's answers are longer than others', before the drift and after it."""


def synthetic_requests(num_requests: int, seed: int, ngrams: NgramParams) -> list[LoggedRequest]:
    """Requests whose words decide how long the answer is; half-way the mix of kinds and the tenants' habits change.

    Args:
        num_requests: How many.
        seed: Of all draws.
        ngrams: How their prompts are hashed.
    """
    draw = ClassStreams(Seeds(seed), "synthetic-lengths").generator("requests")
    tenants = sorted(TENANTS)
    requests = []
    for number in range(num_requests):
        half = int(2 * number >= num_requests)
        kind = KINDS[draw.choice(len(KINDS), p=[each.shares[half] for each in KINDS])]
        tenant_number = int(draw.integers(len(tenants)))
        prompt_tokens = 16 + int(kind.prompt_tokens * np.exp(0.7 * draw.standard_normal()))
        median = kind.output_tokens + kind.output_per_prompt * prompt_tokens
        length = median * TENANTS[tenants[tenant_number]][half] * np.exp(kind.spread * draw.standard_normal())
        cap = CAPS_TOKENS[int(draw.integers(len(CAPS_TOKENS)))]
        token_ids = _prompt(kind, tenant_number, draw)
        requests.append(
            LoggedRequest(
                prompt_tokens=prompt_tokens,
                max_output_tokens=cap,
                output_tokens=max(1, min(round(length), cap)),
                tenant=tenants[tenant_number],
                ngrams=hashed_ngrams(token_ids, ngrams.num_buckets, ngrams.limit),
            )
        )
    return requests


def azure_requests(path: Path) -> tuple[list[LoggedRequest], int]:
    """The requests of an Azure trace, which has no words, no tenants and no ``max_output_tokens``.

    Returns:
        The requests, and the cap that they are all given: the longest answer of the trace.

    Raises:
        ConfigError: The file can't be read, or is malformed.
    """
    rows = [row for row in read_trace(path, SCHEMAS["azure"], None) if row.prompt_tokens and row.output_tokens]
    require(len(rows) > 0, "trace", str(path), "a trace with at least one answer")
    cap = max(row.output_tokens for row in rows)
    return [
        LoggedRequest(prompt_tokens=row.prompt_tokens, max_output_tokens=cap, output_tokens=row.output_tokens)
        for row in sorted(rows, key=lambda row: row.at_s)
    ], cap


def _prompt(kind: Kind, tenant_number: int, draw: np.random.Generator) -> list[int]:
    """The two ends: a system prompt of the tenant's, the words, material, and what a chat template puts last."""
    material = draw.integers(ORDINARY_TOKENS.start, ORDINARY_TOKENS.stop, 2 * EDGE_TOKENS).tolist()
    system, template = [100 + tenant_number, 110, 111], [120, 121, 122]
    if kind.is_first:
        return [*system, *kind.words, *material, *template]
    return [*system, *material, *kind.words, *template]
