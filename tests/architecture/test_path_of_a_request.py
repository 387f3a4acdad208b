"""How far a reader has to go to follow one request through the dispatcher, with every policy off.

``python -m pytest -s tests/architecture/test_path_of_a_request.py`` prints it.
"""

import sys
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from policies import PolicyChoice, Role
from routing import Outcome, OutcomeKind
from tests.architecture.test_rooms import ROOT
from tests.routing.dialogue import Dialogue
from tests.tables import for_each

PRODUCT = tuple(f"{ROOT / package}/" for package in ("policies", "routing"))
MOST_FILES, MOST_DEEP = 21, 13
MOST_MOVES = {"always_unified": 80, "always_disaggregated": 130}
"""By planner; the second request has two attempts and goes through everything twice."""


@dataclass
class Walk:
    """What was called: which files and functions, how often a call went to another file, how deep the calls went."""

    files: set[str] = field(default_factory=set)
    functions: set[tuple[str, str]] = field(default_factory=set)
    num_moves: int = 0
    deepest: int = 0
    _chain: list[str] = field(default_factory=list)

    def record(self, frame: FrameType, event: str, _: Any) -> None:
        if event not in ("call", "return") or not frame.f_code.co_filename.startswith(PRODUCT):
            return
        if event == "return":
            del self._chain[-1:]
            return
        file = frame.f_code.co_filename
        self.num_moves += bool(self._chain) and self._chain[-1] != file
        self._chain.append(file)
        self.files.add(file)
        self.functions.add((file, frame.f_code.co_qualname))
        self.deepest = max(self.deepest, len(self._chain))


def followed(planner: str) -> Walk:
    """One request from its arrival to its answer, by a dispatcher that decides nothing that it need not decide."""
    talk = Dialogue(planner=planner, shedding=PolicyChoice(name="never_shed"))
    plan = {"always_unified": (Role.UNIFIED,), "always_disaggregated": (Role.PREFILL, Role.DECODE)}[planner]
    for role in plan:
        talk.replicas(role, f"{role}-a", f"{role}-b")
    walk = Walk()
    sys.setprofile(walk.record)
    try:
        talk.arrives("q")
        for number, role in enumerate(plan):
            talk.accepts(f"q.{number}", f"{role}-a")
            if role is not Role.PREFILL:
                talk.first_token(f"q.{number}")
            talk.finishes(f"q.{number}")
    finally:
        sys.setprofile(None)
    assert talk.responses == {"q": Outcome(kind=OutcomeKind.COMPLETED)}
    return walk


@for_each("planner", ["always_unified", "always_disaggregated"])
def test_a_request_can_be_followed(planner: str) -> None:
    walk = followed(planner)
    print(
        f"\n{planner}: {len(walk.files)} files, {len(walk.functions)} functions, {walk.num_moves} moves between files, "
        f"deepest chain {walk.deepest}"
    )
    assert len(walk.files) <= MOST_FILES
    assert walk.num_moves <= MOST_MOVES[planner]
    assert walk.deepest <= MOST_DEEP
