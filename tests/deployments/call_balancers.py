"""Balancers for tests of the router, named by import path; Serve's processes import them too."""

from typing import ClassVar

from policies.candidates import Candidates
from policies.contracts import Need
from policies.signals import SIGNAL_TYPES, Signal
from policies.views import ReplicaView, RequestView


class Raises:
    """Has a bug."""

    requires: ClassVar[frozenset[Need]] = frozenset()
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset()

    def pick(self, request: RequestView, candidates: Candidates, now_s: float) -> ReplicaView:
        raise ZeroDivisionError("a bug")


class PicksNothing(Raises):
    """Has another one."""

    def pick(self, request: RequestView, candidates: Candidates, now_s: float) -> ReplicaView:
        return None  # type: ignore[return-value]


class NeedsPrefixes(Raises):
    """Needs what nobody has here."""

    requires: ClassVar[frozenset[Need]] = frozenset({Need.PREFIXES})


class AlwaysTheLast(Raises):
    """Sends everything to one replica, which no other way of routing does."""

    def pick(self, request: RequestView, candidates: Candidates, now_s: float) -> ReplicaView:
        return candidates[-1]


class Recorder(AlwaysTheLast):
    """Remembers what it is told, by name."""

    consumes: ClassVar[frozenset[type[Signal]]] = SIGNAL_TYPES
    made: ClassVar[list["Recorder"]] = []
    """All of this process."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.has_picked = False
        self.made.append(self)

    def pick(self, request: RequestView, candidates: Candidates, now_s: float) -> ReplicaView:
        self.has_picked = True
        return super().pick(request, candidates, now_s)

    def observe(self, signal: Signal) -> None:
        self.seen.append(type(signal).__name__)
