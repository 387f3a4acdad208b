"""A request inside the step model, and where it is."""

import math
from enum import IntEnum

from engines.model.kv_blocks import BlockRun, KvHolding
from policies.views import level_in_common


class SequenceStage(IntEnum):
    """Where a sequence is. ``NEW``: no batch has it yet. ``HELD``: finished, its KV waits for another engine."""

    NEW = 0
    WAITING = 1
    PULLING = 2
    PREFILLING = 3
    DECODING = 4
    HELD = 5
    GONE = 6


NOT_BEGUN = (SequenceStage.NEW, SequenceStage.WAITING)


class ExecutionClaim(IntEnum):
    """Who computes a prompt that two engines have, of which one is to compute it.

    ``NONE``: this one, as far as it knows. ``HELD``: this one if its turn comes first, and it says so then. ``WANTED``:
    whoever is asked for it when this one is the first in its line; no step takes it in before the answer. ``ASKED``:
    the answer is on its way.
    """

    NONE = 0
    HELD = 1
    WANTED = 2
    ASKED = 3


class Sequence:
    """One request inside an engine.

    Args:
        request_id: Unique among those that the engine has.
        prompt_tokens: Length of the prompt, at least 1.
        output_tokens: Tokens that it will generate, at least 1; the engine finds out when it gets there.
        priority: Smaller goes first, under priority scheduling.
        pulls_kv: Its prompt's KV comes from another engine.
        holds_kv: Its blocks stay held when it has finished, for another engine to pull.
        content: Identity of its text; see :meth:`engines.model.kv_blocks.KvBlocks.lookup`. What is longer than this is
            nobody else's.
        content_unit_tokens: Tokens in a unit of ``content``, a multiple of the block.
        claim: Whether another engine has the same prompt.
        link_slowdown: How many times as long its KV takes to come as by the engine's own link.
        adapter: What it is computed with; empty: the engine's own model.

    Attributes:
        number: Its place in order of arrival.
        turn: Its place in running order, that of the sequences in the batch.
        cached_tokens: Prompt tokens that were in the prefix cache when it was first taken in.
        num_preemptions: How often it had to give its blocks up.
        num_prefilled: Tokens that steps have computed of it as a prompt, those of before a preemption included.
        aborted_s: When it was stopped on demand, at the boundary of a step; NaN if it was not.
        left_behind: What it then left in the cache under no name, after ``left_behind_after`` tokens of other text.
    """

    __slots__ = (
        "aborted_s",
        "adapter",
        "cached_tokens",
        "claim",
        "clock_offset",
        "content",
        "content_unit_tokens",
        "finish_clock",
        "holding",
        "holds_kv",
        "kv_is_here",
        "left_behind",
        "left_behind_after",
        "link_slowdown",
        "num_computed",
        "num_generated",
        "num_preemptions",
        "num_prefilled",
        "num_published",
        "number",
        "output_tokens",
        "priority",
        "prompt_tokens",
        "pulls_kv",
        "request_id",
        "stage",
        "turn",
    )

    def __init__(
        self,
        request_id: str,
        prompt_tokens: int,
        output_tokens: int,
        *,
        priority: int = 0,
        pulls_kv: bool = False,
        holds_kv: bool = False,
        content: tuple[int, ...] = (),
        content_unit_tokens: int = 0,
        claim: ExecutionClaim = ExecutionClaim.NONE,
        link_slowdown: float = 1.0,
        adapter: str = "",
    ) -> None:
        self.request_id = request_id
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.priority = priority
        self.pulls_kv, self.holds_kv = pulls_kv, holds_kv
        self.content = content
        self.content_unit_tokens = content_unit_tokens
        self.claim = claim
        self.link_slowdown, self.adapter = link_slowdown, adapter
        self.number = 0
        self.turn = 0
        self.stage = SequenceStage.NEW
        self.holding = KvHolding()
        self.cached_tokens = 0
        self.num_computed = 0
        self.num_generated = 0
        self.num_published = 0
        self.num_preemptions = 0
        self.num_prefilled = 0
        self.aborted_s = math.nan
        self.left_behind: BlockRun | None = None
        self.left_behind_after = 0
        self.kv_is_here = False
        self.clock_offset = 0
        self.finish_clock = 0

    @property
    def num_known_tokens(self) -> int:
        """Prompt, and what was generated before the sequence last started to prefill."""
        return self.prompt_tokens + self.num_generated

    @property
    def has_begun(self) -> bool:
        """Whether a step has taken it in, now or ever."""
        is_in_a_step = self.stage in (SequenceStage.PREFILLING, SequenceStage.DECODING, SequenceStage.HELD)
        return is_in_a_step or self.num_computed > 0 or self.num_preemptions > 0

    @property
    def is_over(self) -> bool:
        """Whether it takes part in no step any more."""
        return self.stage >= SequenceStage.HELD


class ExecutionClaims:
    """The sequences of one engine that share an execution claim and have not begun.

    The claim is kept outside the steps. The one that has it begins when it likes, and says so. The other one asks when
    it is the first in its queue, and the step that it belongs in waits; the answer takes a network's delay there and
    back, which is short beside a prompt's step. It asks neither behind others that the same step has room for, nor
    while the step before is still on: it would be bound to an engine that is not done with it before it is done with
    them.
    """

    def __init__(self) -> None:
        self._shared: list[Sequence] = []

    def __bool__(self) -> bool:
        return bool(self._shared)

    def watch(self, sequence: Sequence) -> None:
        """The sequence, which has not begun, shares an execution claim from here on."""
        self._shared.append(sequence)

    def ask(self, next_in_line: Sequence | None) -> list[Sequence]:
        """The one whose turn it is, if it has to ask and has not."""
        if next_in_line is None or next_in_line.claim is not ExecutionClaim.WANTED:
            return []
        next_in_line.claim = ExecutionClaim.ASKED
        return [next_in_line]

    @property
    def are_awaited(self) -> bool:
        """Whether somebody has asked and has no answer yet."""
        return any(each.claim is ExecutionClaim.ASKED and each.stage in NOT_BEGUN for each in self._shared)

    def begun(self) -> list[Sequence]:
        """Those that had the execution claim and have just begun; forgets them, and all that are gone."""
        begun = [
            each
            for each in self._shared
            if each.claim is ExecutionClaim.HELD and each.stage is SequenceStage.PREFILLING
        ]
        self._shared = [
            each for each in self._shared if each.stage in NOT_BEGUN and each.claim is not ExecutionClaim.NONE
        ]
        return begun


def slowdown_between(place: tuple[str, ...], other: tuple[str, ...], slowdowns: tuple[float, ...]) -> float:
    """How many times as long KV takes from one place to another, by what they have in common; 1 where that is nothing.

    Args:
        place: Where it goes, level by level.
        other: Where it comes from, likewise.
        slowdowns: By level.
    """
    level = level_in_common(place, other)
    return 1.0 if level is None else slowdowns[level]


class StepOutput:
    """What a step, or a run of equal steps, brought to an end.

    Args:
        first_tokens: Sequences that gave their first token.
        finished: Sequences that gave their last.
    """

    __slots__ = ("finished", "first_tokens")

    def __init__(self) -> None:
        self.first_tokens: list[Sequence] = []
        self.finished: list[Sequence] = []
