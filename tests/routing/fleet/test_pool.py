"""The lists and the heap of a pool against a look at every replica."""

import math
from collections.abc import Iterable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from cluster import Seeds
from policies import ReplicaView, Role
from routing.fleet.fleet import Fleet
from routing.fleet.pool import LoadIndex
from routing.fleet.replica import Replica
from routing.request.request import Attempt
from tests.policy_doubles import replica_info
from tests.tables import for_each

REPLICAS = ("a", "b", "c", "d", "e")
TOKENS = st.integers(min_value=0, max_value=6)
"""Few values, so that ties and loads that come back are common."""


class Model:
    """What is known of a replica, kept as simply as possible."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.taken: list[int] = []
        self.reported = 0
        self.here_at_report = 0
        self.quarantined_until_s = -math.inf
        self.after_ejection = slots
        self.after_start = slots

    @property
    def limit(self) -> int:
        return min(self.slots, self.after_ejection, self.after_start)

    @property
    def load(self) -> tuple[int, int]:
        here = sum(self.taken)
        return max(here, self.reported + here - self.here_at_report), len(self.taken)


class FleetMachine(RuleBasedStateMachine):
    """Changes a fleet at random, and asks after each change what it would ask before a placement."""

    def __init__(self) -> None:
        super().__init__()
        self.fleet = Fleet()
        self.now_s = 0.0
        self.known: dict[str, Model] = {}
        self.up: set[str] = set()
        self.open: list[Attempt] = []
        self.num_sent = 0

    @rule(slots_by_id=st.dictionaries(st.sampled_from(REPLICAS), st.integers(min_value=0, max_value=3)))
    def replace(self, slots_by_id: dict[str, int]) -> None:
        for name, slots in slots_by_id.items():
            self.known.setdefault(name, Model(slots))
        self.up = set(slots_by_id)
        self._forget()
        infos = [replica_info(each, slots=self.known[each].slots) for each in slots_by_id]
        self.fleet.replace("unified", Role.UNIFIED, infos)

    @precondition(lambda self: self.known)
    @rule(data=st.data(), work_tokens=TOKENS)
    def take(self, data: st.DataObject, work_tokens: int) -> None:
        self._take(self._draw(data), work_tokens)

    @rule(work_tokens=TOKENS)
    def take_where_least_is_left(self, work_tokens: int) -> None:
        candidates = self.fleet.with_room(("unified",), self.now_s)
        if candidates:
            self._take(candidates.least_work_left().replica_id, work_tokens)

    def _take(self, replica_id: str, work_tokens: int) -> None:
        attempt = Attempt(
            attempt_id=f"q.{self.num_sent}",
            request_id="q",
            stage=Role.UNIFIED,
            replica_id=replica_id,
            prefill_tokens=0,
            kv_tokens=work_tokens,
            sent_at_s=self.now_s,
        )
        self.num_sent += 1
        self.open.append(attempt)
        self.known[attempt.replica_id].taken.append(work_tokens)
        self.fleet.take(attempt)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        attempt = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
        self.known[attempt.replica_id].taken.remove(attempt.work_tokens)
        self._forget()
        self.fleet.give_back(attempt)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def move(self, data: st.DataObject) -> None:
        attempt = self.open[data.draw(st.integers(0, len(self.open) - 1))]
        replica_id = self._draw(data)
        self.known[attempt.replica_id].taken.remove(attempt.work_tokens)
        self.known[replica_id].taken.append(attempt.work_tokens)
        self._forget()
        self.fleet.move(attempt, replica_id)

    @rule(replica_id=st.sampled_from(REPLICAS), work_tokens=TOKENS)
    def report(self, replica_id: str, work_tokens: int) -> None:
        if model := self.known.get(replica_id):
            model.reported, model.here_at_report = work_tokens, sum(model.taken)
        self.fleet.report(replica_id, 0, work_tokens, 0.5)

    @rule(replica_id=st.sampled_from(REPLICAS), seconds=st.sampled_from((0.0, 1.0, 3.0)))
    def quarantine(self, replica_id: str, seconds: float) -> None:
        until_s = self.now_s + seconds
        if model := self.known.get(replica_id):
            model.quarantined_until_s = max(model.quarantined_until_s, until_s)
        self.fleet.quarantine(replica_id, until_s)

    @rule(replica_id=st.sampled_from(REPLICAS))
    def end_suspicion(self, replica_id: str) -> None:
        if replica_id in self.up:
            self.known[replica_id].quarantined_until_s = -math.inf
            self.fleet.end_suspicion(replica_id)

    @rule(replica_id=st.sampled_from(REPLICAS), attempts=st.integers(min_value=1, max_value=4))
    def limit_after_ejection(self, replica_id: str, attempts: int) -> None:
        if model := self.known.get(replica_id):
            model.after_ejection = attempts
        self.fleet.limit(replica_id, after_ejection=attempts)

    @rule(replica_id=st.sampled_from(REPLICAS), attempts=st.integers(min_value=1, max_value=4))
    def limit_after_start(self, replica_id: str, attempts: int) -> None:
        if model := self.known.get(replica_id):
            model.after_start = attempts
        self.fleet.limit(replica_id, after_start=attempts)

    @rule()
    def forgive(self) -> None:
        for model in self.known.values():
            model.after_ejection = model.slots
        self.fleet.forgive()

    @rule(seconds=st.sampled_from((0.5, 1.0, 4.0)))
    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds

    @invariant()
    def the_live_replicas_are_those_that_are_up_and_not_suspected(self) -> None:
        live = self.fleet.live(Role.UNIFIED, self.now_s)

        assert [each.replica_id for each in live] == self._live()
        assert [_load(each) for each in live] == [self.known[each].load for each in self._live()]

    @invariant()
    def the_candidates_are_those_with_room(self) -> None:
        candidates = self.fleet.with_room(("unified",), self.now_s)

        assert [each.replica_id for each in candidates] == self._with_room()
        if candidates:
            assert candidates.least_work_left().replica_id == self._least(self._with_room())
        assert candidates.total_work_tokens() == sum(self.known[each].load[0] for each in self._with_room())

    @precondition(lambda self: len(self.up) > 1)
    @rule(data=st.data())
    def leave_some_out(self, data: st.DataObject) -> None:
        out = data.draw(st.frozensets(st.sampled_from(REPLICAS), min_size=1))
        candidates = self.fleet.with_room(("unified",), self.now_s, out)

        assert [each.replica_id for each in candidates] == [each for each in self._with_room() if each not in out]
        if candidates:
            assert candidates.least_work_left().replica_id == self._least(each.replica_id for each in candidates)

    def _live(self) -> list[str]:
        return [each for each in sorted(self.up) if self.now_s >= self.known[each].quarantined_until_s]

    def _with_room(self) -> list[str]:
        return [each for each in self._live() if len(self.known[each].taken) < self.known[each].limit]

    def _least(self, replica_ids: Iterable[str]) -> str:
        return min(replica_ids, key=lambda each: (*self.known[each].load, each))

    def _draw(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(self.known)))

    def _forget(self) -> None:
        self.known = {name: model for name, model in self.known.items() if name in self.up or model.taken}


def _load(replica: ReplicaView) -> tuple[int, int]:
    return replica.work_tokens, replica.num_ongoing_requests


@pytest.mark.timeout(600)  # seconds when it passes; a failure takes longer to be reduced
def test_a_fleet_finds_what_a_look_at_every_replica_finds() -> None:
    run_state_machine_as_test(
        FleetMachine, settings=settings(max_examples=200, stateful_step_count=60, derandomize=True, deadline=None)
    )


def an_index(num_replicas: int) -> tuple[LoadIndex, list[Replica]]:
    index = LoadIndex()
    replicas = [Replica(replica_info(f"{n:03}", slots=9)) for n in range(num_replicas)]
    for replica in replicas:
        index.note(replica)
    return index, replicas


def test_of_no_candidates_none_has_the_least_work_left() -> None:
    index, (replica,) = an_index(1)
    index.discard(replica)

    with pytest.raises(ValueError, match="no candidate"):
        index.least()


@for_each("num_replicas", [1, 2, 9])
def test_former_loads_do_not_gather_and_the_heap_that_is_cleared_of_them_is_in_order(num_replicas: int) -> None:
    """For long stretches one replica stays the least loaded, so nothing of what lies below it comes to the top."""
    index, replicas = an_index(num_replicas)
    script = Seeds(1).stream("loads")

    for number in range(3000):
        changed = script.choice(replicas)
        changed.work_tokens = script.randrange(1000) if number % 100 else 0
        index.note(changed)
        assert index.least() is min(replicas, key=lambda each: (each.work_tokens, each.replica_id))
        assert index.total_work_tokens() == sum(each.work_tokens for each in replicas)
        assert len(index._heap) <= 4 * num_replicas + 16


def test_who_never_asks_does_not_pay() -> None:
    index, replicas = an_index(3)

    for work_tokens in range(1000):
        replicas[1].work_tokens = work_tokens
        index.note(replicas[1])

    assert (len(index._heap), len(index._changed)) == (0, 3)
