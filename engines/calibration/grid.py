"""What calibration makes an engine do: points of a grid, each a handful of requests, and random points to check with.

Prompts begin with a piece of a *document*: a long prompt that the engine has seen before the first point, so that
decoding with a long context costs no long prefill. Each sequence of a point has a document of its own, because blocks
that sequences share are read from the processor's cache and would make attention look cheaper than it is.
"""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

LEAD_TOKENS = 512
DECODE_STEPS = 16
MIXED_DECODE_STEPS = 48
SHORT_CONTEXT_TOKENS = 64
CONTEXT_PARTS = (8, 3, 4 / 3)
"""Longer contexts of decode points: the engine's context divided by these."""
TAIL_TOKENS = 16
MOST_DECODING = 256
SHARED = ((4, 512), (16, 512), (16, 1024))
"""Points of sequences that share a prefix: how many, and its length."""
USERS = {4: 12, 16: 6}
"""Points of traffic: users at a time, and requests of each."""
TRAFFIC_PROMPT_TOKENS = (16, 1024)
TRAFFIC_OUTPUT_TOKENS = (2, 48)


class Prompt(NamedTuple):
    """A prompt: the first tokens of a document, then tokens that nobody has seen.

    Args:
        document: Which.
        document_tokens: How many of its tokens; whole blocks of them are in the prefix cache.
        fresh_tokens: How many new ones.
    """

    document: int
    document_tokens: int
    fresh_tokens: int

    @property
    def num_tokens(self) -> int:
        """Its length."""
        return self.document_tokens + self.fresh_tokens


class GridTurn(NamedTuple):
    """One of the requests that a user submits one after the other.

    Args:
        prompt: Its prompt.
        output_tokens: Length of its answer.
    """

    prompt: Prompt
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Requests that go to an idle engine together.

    Args:
        name: Tells points apart in the results.
        prompts: Submitted together.
        output_tokens: Of each of them.
        lead_tokens: A fresh prompt that goes ahead, so that the others find a busy engine and start in one step.
        joining: Submitted one after the other when all ``prompts`` decode; each gives one token.
        users: Each submits its next request when the one before it has ended.
    """

    name: str
    prompts: tuple[Prompt, ...]
    output_tokens: int = 1
    lead_tokens: int = 0
    joining: tuple[Prompt, ...] = ()
    users: tuple[tuple[GridTurn, ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The engine's sizes, which the grid spans.

    Args:
        context_tokens: Longest prompt and output together that is measured.
        kv_capacity_tokens: KV tokens that the engine can hold.
        block_tokens: Tokens in a KV block.
        max_num_seqs: Sequences in a step.
    """

    context_tokens: int
    kv_capacity_tokens: int
    block_tokens: int
    max_num_seqs: int


@dataclass(frozen=True, slots=True)
class Grid:
    """All points, and the documents that they take pieces from.

    Args:
        documents: Their lengths in tokens.
        points: Steps are fitted to these.
        idle: Lone requests to an idle engine: what the front end adds to a request's steps.
        traffic: Requests that come and go on a busy engine: what a request costs the engine beside its steps.
        shared: Sequences that decode with a prefix in common.
        held_out: Random points that the fit does not see.
    """

    documents: tuple[int, ...]
    points: tuple[Point, ...]
    idle: tuple[Point, ...]
    traffic: tuple[Point, ...]
    shared: tuple[Point, ...]
    held_out: tuple[Point, ...]


def make_grid(bounds: Bounds, rng: random.Random, *, quick: bool = False) -> Grid:
    """The grid for an engine.

    Args:
        bounds: The engine's sizes.
        rng: Draws the held-out points.
        quick: A few points of each kind: a minute instead of several, to see whether everything works.
    """
    contexts, batches = _contexts(bounds), _powers_of_two(1, min(bounds.max_num_seqs, MOST_DECODING))
    if quick:
        contexts, batches = contexts[:2], batches[:5:2]
    decode = [(batch, context) for batch in batches for context in contexts if _fits(bounds, batch, context)]
    documents = _documents(decode, contexts)
    points = [*_prefill_points(bounds, documents, quick), *map(_decode_point, decode)]
    points += _mixed_points(bounds, documents, quick)
    idle = [_lone_prompt(f"idle {tokens}", tokens, lead_tokens=0) for tokens in (16, 32, 64, 128, 256)]
    held_out = tuple(_held_out_points(bounds, documents, rng, 3 if quick else 10))
    traffic = [_traffic_point(bounds, rng, users, 4 if quick else turns) for users, turns in USERS.items()]
    shared = tuple(_shared_points(bounds, documents))
    return Grid(documents, tuple(points), tuple(idle), tuple(traffic), shared, held_out)


def _powers_of_two(first: int, last: int) -> list[int]:
    powers = [first]
    while powers[-1] * 2 <= last:
        powers.append(powers[-1] * 2)
    return powers


def _up_to(limit: int, numbers: Sequence[int]) -> list[int]:
    return [each for each in numbers if each <= limit]


def _contexts(bounds: Bounds) -> list[int]:
    """Decode contexts: whole blocks and a short tail, so that a cached prompt leaves no more than that to compute.

    Not a tail of one token: hardly a prompt has that, and on CPUs it costs as much as many.
    """
    block_tokens = bounds.block_tokens
    longer = [int(bounds.context_tokens / part) // block_tokens * block_tokens + TAIL_TOKENS for part in CONTEXT_PARTS]
    return sorted({SHORT_CONTEXT_TOKENS, *(each for each in longer if each > SHORT_CONTEXT_TOKENS)})


def _fits(bounds: Bounds, batch: int, context: int) -> bool:
    """Documents must stay in the prefix cache beside all the fresh prompts."""
    return batch * context <= bounds.kv_capacity_tokens // 4


def _documents(decode: list[tuple[int, int]], contexts: list[int]) -> tuple[int, ...]:
    """One for each sequence of the largest batch, as long as the longest context that is asked of it."""
    longest = [max(context for batch, context in decode if batch > number) for number in range(max(decode)[0])]
    return (max(contexts), *longest[1:])


def _lone_prompt(name: str, tokens: int, lead_tokens: int = LEAD_TOKENS) -> Point:
    return Point(name=name, prompts=(Prompt(0, 0, tokens),), lead_tokens=lead_tokens)


def _prefill_points(bounds: Bounds, documents: tuple[int, ...], quick: bool) -> Iterator[Point]:
    longest = bounds.context_tokens - bounds.block_tokens
    for tokens in (16, 256, 1024) if quick else (*_powers_of_two(16, longest), longest):
        yield _lone_prompt(f"prefill {tokens}", tokens)
    for batch in _up_to(bounds.max_num_seqs, (4,) if quick else (2, 4, 8)):
        for tokens in (16, 64) if quick else (16, 64, 256, 1024):
            prompts = tuple(Prompt(0, 0, tokens) for _ in range(batch))
            yield Point(name=f"prefill {batch} x {tokens}", prompts=prompts, lead_tokens=LEAD_TOKENS)
    halves = (256,) if quick else (256, 1024, 4096)
    cached = [(each, each) for each in halves] + [(documents[0] - TAIL_TOKENS, each) for each in halves[:2]]
    for document_tokens, tokens in cached:
        if document_tokens < documents[0] and document_tokens + tokens < bounds.context_tokens:
            prompt = Prompt(0, document_tokens, tokens)
            name = f"prefill {tokens} after {document_tokens} cached"
            yield Point(name=name, prompts=(prompt,), lead_tokens=LEAD_TOKENS)


def _decode_point(size: tuple[int, int]) -> Point:
    batch, context = size
    prompts = tuple(Prompt(number, context, 0) for number in range(batch))
    return Point(name=f"decode {batch} x {context}", prompts=prompts, output_tokens=DECODE_STEPS)


def _mixed_points(bounds: Bounds, documents: tuple[int, ...], quick: bool) -> Iterator[Point]:
    """Prompts that join a batch which decodes: the steps that most requests are first computed in."""
    lengths = _up_to(bounds.context_tokens // 2, (16, 256) if quick else (16, 64, 256, 1024))
    joining = [Prompt(0, 0, tokens) for tokens in lengths]
    if not quick:
        joining.append(Prompt(0, documents[0] // 2 // bounds.block_tokens * bounds.block_tokens, 128))
    sizes = ((4, 64), (16, 64)) if quick else ((1, 64), (4, 1024), (16, 64), (16, 1024), (32, 512), (64, 64))
    for batch, context in sizes:
        if batch < min(bounds.max_num_seqs, len(documents)) and documents[batch - 1] >= context:
            prompts = tuple(Prompt(number, context, 0) for number in range(batch))
            yield Point(
                name=f"mixed {batch} x {context}",
                prompts=prompts,
                output_tokens=MIXED_DECODE_STEPS,
                joining=tuple(joining),
            )


def _shared_points(bounds: Bounds, documents: tuple[int, ...]) -> Iterator[Point]:
    for batch, tokens in SHARED:
        prefix_tokens = tokens // bounds.block_tokens * bounds.block_tokens
        if prefix_tokens and batch <= bounds.max_num_seqs and tokens <= documents[0]:
            prompts = tuple(Prompt(0, prefix_tokens, TAIL_TOKENS) for _ in range(batch))
            yield Point(name=f"shared {batch} x {tokens}", prompts=prompts, output_tokens=DECODE_STEPS)


def _traffic_point(bounds: Bounds, rng: random.Random, num_users: int, num_turns: int) -> Point:
    """Requests of all sizes; a closed loop of users keeps any engine busy, however fast it is."""
    shortest, longest = TRAFFIC_PROMPT_TOKENS
    longest = min(longest, bounds.context_tokens // 2)

    def turn() -> GridTurn:
        return GridTurn(Prompt(0, 0, _log_uniform(rng, shortest, longest)), _log_uniform(rng, *TRAFFIC_OUTPUT_TOKENS))

    users = tuple(tuple(turn() for _ in range(num_turns)) for _ in range(min(num_users, bounds.max_num_seqs)))
    return Point(name=f"traffic of {num_users}", prompts=(), users=users)


def _log_uniform(rng: random.Random, low: int, high: int) -> int:
    return round(math.exp(rng.uniform(math.log(low), math.log(high))))


def _held_out_points(bounds: Bounds, documents: tuple[int, ...], rng: random.Random, number: int) -> Iterator[Point]:
    """``number`` random points of each kind."""
    block_tokens = bounds.block_tokens

    def log_uniform(low: int, high: int) -> int:
        return _log_uniform(rng, low, high)

    def decoding(most: int) -> tuple[Prompt, ...]:
        batch = log_uniform(1, min(most, len(documents)))
        context = log_uniform(16, documents[batch - 1])
        return tuple(
            Prompt(each, context // block_tokens * block_tokens, TAIL_TOKENS + rng.randrange(64))
            for each in range(batch)
        )

    for index in range(number):
        batch = log_uniform(1, min(8, bounds.max_num_seqs))
        tokens = log_uniform(16, bounds.context_tokens // 2 // batch)
        cached = rng.choice((0, rng.randrange(documents[0] // 2) // block_tokens * block_tokens))
        prompts = tuple(Prompt(0, cached, tokens) for _ in range(batch))
        yield Point(name=f"held out prefill {index}", prompts=prompts, lead_tokens=LEAD_TOKENS)
        yield Point(name=f"held out decode {index}", prompts=decoding(MOST_DECODING), output_tokens=DECODE_STEPS)
        joining = tuple(Prompt(0, 0, log_uniform(16, min(2048, bounds.context_tokens // 2))) for _ in range(3))
        prompts = decoding(bounds.max_num_seqs - 1)
        name = f"held out mixed {index}"
        yield Point(name=name, prompts=prompts, output_tokens=MIXED_DECODE_STEPS, joining=joining)
