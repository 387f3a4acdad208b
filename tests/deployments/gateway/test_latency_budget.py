"""Where a request's time goes: the stages are what happened, and add up to the whole whatever happens."""

from collections.abc import Callable, Iterable
from functools import partial
from itertools import groupby, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ray.exceptions import ActorDiedError

from cluster.latency_budget import LatencyBudget, LatencyStage, Timeline, spent_s
from deployments.gateway.open_request import ServeOpenRequest
from deployments.wire import inner_hop
from deployments.wire.attempt_call import WINDOW_ITEMS
from deployments.wire.inner_hop import Failure
from engines.contract import AWAITS_KV, Chunk, EngineTimes, KvHandle
from policies import Priority, Reason, Role
from tests.deployments.host_dialogue import Call, HostDialogue
from tests.routing.dialogue import completed, hedge_after

END = Chunk(".", (3,), "stop")


class StepByStep(HostDialogue):
    """A dialogue whose clock goes on whenever the test says so."""

    async def after(self, seconds: float) -> None:
        await self.turn()
        self.clock.time_s += seconds

    async def gives(self, call: Call, *items: inner_hop.Item, after_s: float) -> None:
        await self.after(after_s)
        call.gives(*items)
        await self.turn()

    async def accepts(self, attempt_id: str, replica_id: str, after_s: float) -> None:
        await self.after(after_s)
        self.host.on_accepted(attempt_id, replica_id)
        await self.turn()

    async def timeline(self, opened: ServeOpenRequest) -> str:
        """That of a whole answer, which leaves for a quarter of a second."""
        assert (await self.answer(opened))[1] == completed()
        self.clock.time_s += 0.25
        return shape(opened.budget.timeline())


def shape(timeline: Timeline) -> str:
    """Stage, length and replica of each span; each begins where the one before it ends."""
    assert all(before.ends_s == after.begins_s for before, after in pairwise(timeline))
    parts = ((span.stage, round(span.ends_s - span.begins_s, 6), span.replica_id) for span in timeline)
    return ", ".join(f"{stage} {seconds:g} {replica_id}".strip() for stage, seconds, replica_id in parts)


async def test_a_whole_request_is_dispatched_prefilled_and_decoded() -> None:
    talk = StepByStep().replicas(Role.UNIFIED, "a")
    opened, call = await talk.opens("q")
    await talk.accepts("q.0", "a", after_s=1.0)
    await talk.gives(call, Chunk("He", (1,), times=EngineTimes(prefill_s=3.0)), after_s=5.0)
    assert shape(opened.budget.timeline()).endswith("first_token 2 a"), "the answer goes on"
    await talk.gives(call, END, after_s=7.0)

    assert await talk.timeline(opened) == "dispatch 1 a, prefill 3 a, first_token 2 a, decode 7, egress 0.25"


async def test_a_handoff_has_two_replicas_and_a_transfer() -> None:
    talk = StepByStep(planner="always_disaggregated").replicas(Role.PREFILL, "p").replicas(Role.DECODE, "d")
    opened, prefill = await talk.opens("q")
    await talk.accepts("q.0", "p", after_s=1.0)
    await talk.gives(prefill, KvHandle({}, 3, 4.0), after_s=4.5)
    decode = await talk.call("q.1")
    await talk.accepts("q.1", "d", after_s=2.0)
    await talk.gives(decode, Chunk("He", (1,), times=EngineTimes(kv_transfer_s=3.0)), after_s=4.0)
    await talk.gives(decode, END, after_s=7.0)

    assert await talk.timeline(opened) == (
        "dispatch 1 p, prefill 4 p, dispatch 0.5 p, dispatch 2 d, "
        "kv_transfer 3 d, first_token 1 d, decode 7, egress 0.25"
    )
    assert opened.budget.replica_id == "d"


async def test_kv_that_comes_after_the_first_token_is_no_part_of_its_time() -> None:
    talk = StepByStep(planner="always_disaggregated").replicas(Role.PREFILL, "p").replicas(Role.DECODE, "d")
    opened, prefill = await talk.opens("q")
    await talk.gives(prefill, KvHandle({}, 3, 4.0), after_s=4.0)
    decode = await talk.call("q.1")
    await talk.gives(decode, Chunk("H", (0,), times=AWAITS_KV), after_s=1.0)
    assert shape(opened.budget.timeline()).endswith("first_token 1 d"), "the answer goes on"
    await talk.gives(decode, Chunk("e", (1,), times=EngineTimes(kv_transfer_s=3.0)), after_s=5.0)
    await talk.gives(decode, END, after_s=7.0)

    assert await talk.timeline(opened) == "prefill 4 p, first_token 1 d, kv_transfer 3, decode 9, egress 0.25"


async def test_kv_that_does_not_come_after_the_first_token_is_time_lost_from_then_on() -> None:
    talk = StepByStep(planner="always_disaggregated").replicas(Role.PREFILL, "p").replicas(Role.DECODE, "d")
    opened, prefill = await talk.opens("q")
    await talk.gives(prefill, KvHandle({}, 3, 4.0), after_s=4.0)
    decode = await talk.call("q.1")
    await talk.gives(decode, Chunk("H", (0,), times=AWAITS_KV), after_s=1.0)
    await talk.gives(decode, Failure(Reason.KV_TRANSFER_FAILED, "no such blocks"), after_s=2.0)
    await talk.gives(await talk.call("q.2"), KvHandle({}, 4, 3.0), after_s=3.0)
    await talk.gives(await talk.call("q.3"), END, after_s=1.0)

    assert await talk.timeline(opened) == "prefill 4 p, first_token 1 d, kv_transfer 2, lost 4, egress 0.25"


async def test_an_engine_that_says_more_than_there_was_is_believed_as_far_as_that_goes() -> None:
    talk = StepByStep().replicas(Role.UNIFIED, "a")
    opened, call = await talk.opens("q")
    await talk.accepts("q.0", "a", after_s=1.0)
    await talk.gives(call, Chunk("He", (1,), "stop", times=EngineTimes(prefill_s=99.0)), after_s=2.0)
    assert await talk.timeline(opened) == "prefill 3 a, egress 0.25"


async def test_where_the_acceptance_comes_late_both_ways_are_equally_long() -> None:
    talk = StepByStep().replicas(Role.UNIFIED, "a")
    opened, call = await talk.opens("q")
    await talk.accepts("q.0", "a", after_s=5.0)
    await talk.gives(call, Chunk("He", (1,), "stop", times=EngineTimes(prefill_s=4.0)), after_s=1.0)
    assert await talk.timeline(opened) == "dispatch 1 a, prefill 4 a, first_token 1 a, egress 0.25"


async def test_waiting_for_a_replica_is_queueing() -> None:
    talk = StepByStep().replicas(Role.UNIFIED, "a", slots=1)
    before = await talk.arrives("before")
    opened = await talk.arrives("q")
    await talk.after(6.0)
    assert shape(opened.budget.timeline()) == "queue 6"
    (await talk.call("before.0")).gives(END)
    await talk.answer(before)
    call = await talk.call("q.0")
    await talk.gives(call, END, after_s=1.0)

    assert await talk.timeline(opened) == "queue 6, first_token 1 a, egress 0.25"


async def test_a_lost_attempt_is_time_lost_until_the_next_one() -> None:
    talk = StepByStep().replicas(Role.UNIFIED, "a", "b")
    opened, lost = await talk.opens("q")
    await talk.after(2.0)
    lost.breaks(ActorDiedError())
    await talk.gives(await talk.call("q.1"), END, after_s=1.0)

    assert await talk.timeline(opened) == "lost 2, first_token 1 b, egress 0.25"


async def test_a_decode_that_no_engine_had_costs_no_second_prefill() -> None:
    talk = StepByStep(planner="always_disaggregated").replicas(Role.PREFILL, "p").replicas(Role.DECODE, "d1", "d2")
    opened = await talk.arrives("q")
    await talk.gives(await talk.call("q.0"), KvHandle({}, 3, 4.0), after_s=4.0)
    lost = await talk.call("q.1")
    await talk.after(2.0)
    lost.answers(Failure(Reason.REPLICA_LOST, "takes none", was_taken=False))
    await talk.gives(await talk.call("q.2"), END, after_s=1.0)

    assert await talk.timeline(opened) == "prefill 4 p, lost 2, first_token 1 d2, egress 0.25"


async def test_a_decode_that_is_lost_loses_the_time_of_its_prefill_too() -> None:
    talk = StepByStep(planner="always_disaggregated").replicas(Role.PREFILL, "p").replicas(Role.DECODE, "d1", "d2")
    opened = await talk.arrives("q")
    await talk.gives(await talk.call("q.0"), KvHandle({}, 3, 4.0), after_s=4.0)
    lost = await talk.call("q.1")
    await talk.after(2.0)
    lost.answers(Failure(Reason.REPLICA_LOST, "gone"))
    await talk.gives(await talk.call("q.2"), KvHandle({}, 3, 1.0), after_s=1.0)
    await talk.gives(await talk.call("q.3"), END, after_s=1.0)

    assert await talk.timeline(opened) == "lost 6, prefill 1 p, first_token 1 d2, egress 0.25"


async def test_a_second_attempt_that_wins_has_cost_the_wait_for_the_first() -> None:
    talk = StepByStep(hedging=hedge_after(0.0)).replicas(Role.UNIFIED, "a", "b")
    opened = await talk.arrives("q")
    await talk.call("q.0")
    talk.clock.time_s += 3.0
    second = await talk.call("q.1")
    await talk.gives(second, END, after_s=1.0)

    assert await talk.timeline(opened) == "lost 3, first_token 1 b, egress 0.25"


async def test_an_answer_that_is_interrupted_loses_time_in_the_middle() -> None:
    talk = StepByStep().replicas(Role.UNIFIED, "a", "b")
    opened, first = await talk.opens("q")
    await talk.gives(first, Chunk("He", (1, 2)), after_s=1.0)
    await talk.after(5.0)
    first.breaks(ActorDiedError())
    await talk.gives(await talk.call("q.1"), Chunk("y", (4,)), after_s=2.0)
    await talk.gives(talk.calls["q.1"], END, after_s=3.0)

    assert await talk.timeline(opened) == "first_token 1 a, decode 5, lost 2, decode 3, egress 0.25"


async def test_a_client_that_reads_too_slowly_is_not_taken_for_a_slow_engine() -> None:
    talk = StepByStep().replicas(Role.UNIFIED, "a")
    opened, call = await talk.opens("q")
    await talk.gives(call, Chunk("x", (1,)), after_s=1.0)
    await talk.gives(call, *[Chunk("x", (1,))] * (WINDOW_ITEMS - 1), after_s=2.0)
    call.gives(END)
    await talk.after(4.0)
    assert call.num_unread == 1, "the engine is held up"

    assert await talk.timeline(opened) == "first_token 1 a, decode 2, egress 4, egress 0.25"


async def test_a_preempted_answer_waits_in_the_middle() -> None:
    talk = StepByStep(queueing="priority", preemption="newest_sheddable").replicas(Role.UNIFIED, "a", slots=1)
    bulk = await talk.arrives("bulk", priority=Priority.SHEDDABLE)
    await talk.gives(await talk.call("bulk.0"), Chunk("a", (11,)), after_s=1.0)
    await talk.after(2.0)
    other = await talk.arrives("q")
    await talk.gives(await talk.call("q.0"), END, after_s=4.0)
    await talk.answer(other)
    await talk.gives(await talk.call("bulk.1"), END, after_s=0.5)

    assert await talk.timeline(bulk) == "first_token 1 a, decode 2, lost 4.5, egress 0.25"


async def test_an_answer_that_is_stopped_while_its_client_is_behind_is_lost_and_not_decoded() -> None:
    talk = StepByStep(queueing="priority", preemption="newest_sheddable").replicas(Role.UNIFIED, "a", slots=1)
    bulk, call = await talk.opens("bulk", priority=Priority.SHEDDABLE)
    await talk.gives(call, Chunk("x", (1,)), after_s=1.0)
    await talk.gives(call, *[Chunk("x", (1,))] * (WINDOW_ITEMS - 1), after_s=2.0)
    await talk.after(3.0)
    other = await talk.arrives("q")
    await talk.gives(await talk.call("q.0"), END, after_s=10.0)
    await talk.answer(other)
    await talk.gives(await talk.call("bulk.1"), END, after_s=0.5)

    assert await talk.timeline(bulk) == "first_token 1 a, decode 2, egress 3, lost 10.5, egress 0.25"


async def test_a_request_that_nobody_could_serve_has_waited_and_lost() -> None:
    talk = StepByStep().replicas(Role.UNIFIED, "a")
    opened = await talk.arrives("q")
    await talk.call("q.0")
    await talk.after(4.0)
    talk.host.abandon("q")
    await talk.turn()

    assert shape(opened.budget.timeline()) == "lost 4"
    assert opened.budget.replica_id == ""


TIMES_S = st.floats(min_value=0.0, max_value=1e3)
INTAKE = ("parsed", "tokenized", "arrived", "admitted")
EVENTS = ("send", "hand_over", "place", "accept", "say", "await", "end", "commit", "interrupt", "hold_up", "let_go")


class ManualClock:
    def __init__(self) -> None:
        self.time_s = 1000.0

    def __call__(self) -> float:
        return self.time_s


class Happenings:
    """Has anything happen to a budget, in any order."""

    def __init__(self, budget: LatencyBudget) -> None:
        self._budget = budget
        self._attempts: list[str] = []

    def happen(self, event: str, which: int, engine_s: float) -> None:
        budget = self._budget
        if event in ("send", "hand_over"):
            prefill = self._attempts[which % len(self._attempts)] if event == "hand_over" and self._attempts else None
            self._attempts.append(f"q.{len(self._attempts)}")
            budget.sent(self._attempts[-1], "a", prefill)
        elif event == "interrupt":
            budget.interrupted()
        elif event == "hold_up":
            budget.held_up()
        elif event == "let_go":
            budget.let_go()
        elif self._attempts:
            attempt_id = self._attempts[which % len(self._attempts)]
            calls: dict[str, Callable[[], None]] = {
                "place": lambda: budget.placed(attempt_id),
                "accept": lambda: budget.accepted(attempt_id, "b"),
                "say": lambda: budget.took(attempt_id, EngineTimes(engine_s, engine_s)),
                "await": lambda: budget.took(attempt_id, AWAITS_KV),
                "end": lambda: budget.ended(attempt_id),
                "commit": lambda: budget.committed(attempt_id),
            }
            calls[event]()


@given(
    intake_s=st.lists(TIMES_S, min_size=5, max_size=5),
    happenings=st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 9), TIMES_S, TIMES_S), max_size=20),
    answer_s=st.none() | TIMES_S,
    egress_s=TIMES_S,
)
def test_the_stages_are_not_negative_and_add_up_to_the_whole(
    intake_s: list[float],
    happenings: list[tuple[str, int, float, float]],
    answer_s: float | None,
    egress_s: float,
) -> None:
    clock = ManualClock()
    budget = LatencyBudget(clock)
    for mark, dt_s in zip(INTAKE, intake_s, strict=False):
        clock.time_s += dt_s
        getattr(budget, mark)()
    attempts = Happenings(budget)
    for event, which, engine_s, dt_s in happenings:
        clock.time_s += dt_s
        attempts.happen(event, which, engine_s)
    if answer_s is not None:
        clock.time_s += answer_s
        budget.answered()
    clock.time_s += egress_s
    timeline = budget.timeline()

    assert all(span.ends_s > span.begins_s for span in timeline)
    assert all(before.ends_s == after.begins_s for before, after in pairwise(timeline))
    spent = spent_s(timeline)
    assert set(spent) == set(LatencyStage)
    if timeline:
        assert timeline[0].begins_s == 1000.0
        assert sum(spent.values()) == pytest.approx(timeline[-1].ends_s - 1000.0)
    if answer_s is not None and clock.time_s > 1000.0:
        assert timeline[-1].ends_s == clock.time_s


class Expected:
    """What each second of an answer belongs to, from its first token on: to a loss, else to the client, else decode."""

    def __init__(self) -> None:
        self._is_lost = self._is_held = False

    @property
    def stage(self) -> LatencyStage:
        if self._is_lost:
            return LatencyStage.LOST
        return LatencyStage.EGRESS if self._is_held else LatencyStage.DECODE

    def happen(self, event: str) -> None:
        if event == "interrupt" and not self._is_lost:
            self._is_lost, self._is_held = True, False
        elif event == "commit":
            self._is_lost = False
        elif event in ("hold_up", "let_go"):
            self._is_held = event == "hold_up"


def merged(parts: Iterable[tuple[LatencyStage, float]]) -> list[tuple[LatencyStage, float]]:
    """Neighbours of one stage are one part; what took no time is none."""
    found = groupby(((stage, took_s) for stage, took_s in parts if took_s), key=lambda each: each[0])
    return [(stage, sum(took_s for _, took_s in each)) for stage, each in found]


SECONDS = st.integers(0, 9)


@given(
    before=st.lists(SECONDS, min_size=6, max_size=6),
    happenings=st.lists(st.tuples(st.sampled_from(("commit", "interrupt", "hold_up", "let_go")), SECONDS), max_size=20),
    after=st.tuples(SECONDS, SECONDS),
)
def test_every_second_belongs_to_what_went_on_then(
    before: list[int], happenings: list[tuple[str, int]], after: tuple[int, int]
) -> None:
    clock = ManualClock()
    budget = LatencyBudget(clock)
    attempts, expected = Happenings(budget), Expected()
    first: list[Callable[[], None]] = [getattr(budget, mark) for mark in INTAKE]
    first += [partial(attempts.happen, event, 0, 0.0) for event in ("send", "commit")]
    for happens, dt_s in zip(first, before, strict=True):
        clock.time_s += dt_s
        happens()
    stages = [LatencyStage(name) for name in "parse tokenize classify admit queue first_token".split()]
    parts: list[tuple[LatencyStage, float]] = list(zip(stages, before, strict=True))
    for event, dt_s in happenings:
        clock.time_s += dt_s
        parts.append((expected.stage, dt_s))
        attempts.happen(event, 0, 0.0)
        expected.happen(event)
    clock.time_s += after[0]
    parts.append((expected.stage, after[0]))
    budget.answered()
    clock.time_s += after[1]
    parts.append((LatencyStage.EGRESS, after[1]))
    found = merged((span.stage, span.ends_s - span.begins_s) for span in budget.timeline())

    assert found == merged(parts)
