"""Prompts that two engines have and one computes: whose turn comes asks, and the step that it belongs in waits.

The execution claim on such a prompt is kept outside the steps. The one that has it begins when it likes, and says so.
The other one asks when it is the first in its queue; the answer takes a network's delay there and back, which is short
beside a prompt's step. It asks neither behind others that the same step has room for, nor while the step before is
still on: it would be bound to an engine that is not done with it before it is done with them.
"""

from engines.model.sequences import ExecutionClaim, Sequence, SequenceStage

NOT_BEGUN = (SequenceStage.NEW, SequenceStage.WAITING)


class ExecutionClaims:
    """The sequences of one engine that share an execution claim and have not begun."""

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
