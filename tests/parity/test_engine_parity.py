"""The emulated engine's host and the simulated replica are told the same and have the same, after every message."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.sim.attempt import AttemptEvent, SimAttempt
from cluster.sim.event_queue import EventQueue
from cluster.sim.replica import SimReplica
from cluster.sim.topology import FleetSpec, PoolSpec
from engines.contract import EngineRequest, Sampling, TiedRequest
from engines.emulated.answers import Answer
from engines.emulated.model_host import ModelHost
from engines.emulated.run import EmulatedRun
from engines.emulated.settings import EmulatedSettings
from engines.faults import FaultKind
from engines.model.batching import BatchLimits
from engines.model.cost_model import StepCoefficients
from engines.model.engine_model import EngineModel
from engines.model.messages import (
    AskClaim,
    Begun,
    ClaimKv,
    GrantClaim,
    KvClaimed,
    KvClaimEnded,
    KvGone,
    KvHolderLost,
    KvPulled,
    Meet,
    Message,
)
from engines.model.profile import EngineProfile, KvCache, Provenance
from engines.model.sequences import ExecutionClaim, Sequence
from engines.model.step_model import StepModelSpec
from policies.errors import PromptWithdrawn, ServingError
from policies.views import Role
from routing.request.effects import Send
from routing.request.events import AttemptFailed, AttemptFinished, AttemptWithdrawn, CacheChanged
from tests.cluster.simulated import planned

LEASE_S = 3.0
MESSAGES_OF_THE_PROOF = 100_000
LENGTH = 50


class StepByStep(EngineProfile, frozen=True):
    """Small, and so that each step can be seen, as an emulated engine takes them."""

    def step_model(self, limits: BatchLimits, **terms: Any) -> StepModelSpec:
        return super().step_model(limits, **{**terms, "max_steps_per_run": 1})


PROFILE = StepByStep(
    name="small",
    provenance=Provenance(kind="analytic", model="none", machine="none", date="2026-01-01", method="made up"),
    step=StepCoefficients(step_s=0.1, new_token_s=0.01, attention_pair_s=0.0, sequence_s=0.003, context_token_s=0.0),
    kv=KvCache(block_tokens=4, capacity_tokens=160, bytes_per_token=1, bandwidth_bytes_per_s=50.0),
    context_tokens=100,
    max_num_seqs=4,
    max_num_batched_tokens=32,
    start_s=0.0,
)
LIMITS = PROFILE.limits()


class Transports:
    """In place of the emulated engine's connections: another engine's KV is claimed at once, and all is noted."""

    def __init__(self, said: list[str], is_kv_there: dict[str, bool]) -> None:
        self._said = said
        self._is_kv_there = is_kv_there
        self.tell: Callable[[Message], object] = lambda _: None

    def make(self, request_id: str, params: dict[str, Any]) -> None:
        self.tell(KvClaimed(request_id) if self._is_kv_there[request_id] else KvGone(request_id))

    def end(self, request_id: str, *, is_pulled: bool) -> None:
        if is_pulled:
            self._said.append(f"{request_id} pulled")

    def is_silent(self, address: str) -> bool:
        return False

    def connect(self, request_id: str, tied_to: TiedRequest) -> None:
        """It would be asked for."""

    def ask(self, request_id: str) -> None:
        self._said.append(f"{request_id} turn")

    tell_begun = ask

    def drop(self, request_id: str) -> None:
        """Nothing is asked any more."""

    def stop(self) -> None:
        """The engine has died."""


class Emulated:
    """The emulated engine's host on a clock that is driven by hand."""

    def __init__(self, is_kv_there: dict[str, bool]) -> None:
        self.now_s = 0.0
        self.said: list[str] = []
        self.answers: list[Message] = []
        settings_ = EmulatedSettings(
            model="none", role=Role.PREFILL, profile=PROFILE, limits=LIMITS, kv_lease_s=LEASE_S, context_tokens=100
        )
        self.host = host = ModelHost(settings_, on_news=lambda: None, now_s=lambda: self.now_s)
        self.model = host.model
        self._runs: dict[str, EmulatedRun] = {}
        transports: Any = Transports(self.said, is_kv_there)
        host._kv_claims = host._requesters = host._keeper = transports
        transports.tell = host._tell

    def pass_time(self, now_s: float) -> None:
        self.now_s = now_s
        self.host.catch_up()

    def submit(self, sequence: Sequence) -> None:
        request_id, tokens = sequence.request_id, [0] * sequence.prompt_tokens
        tied_to = TiedRequest("first", "address") if sequence.claim is ExecutionClaim.WANTED else None
        request = EngineRequest(
            request_id=request_id, prompt_token_ids=tokens, sampling=Sampling(max_tokens=9), tied_to=tied_to
        )
        answer = Answer([0] * sequence.output_tokens, "length", None, 0, None)
        run = self._runs[request_id] = EmulatedRun(request, answer)
        sequence.claim = ExecutionClaim.NONE
        with suppress(ServingError):
            self.host.submit(run, sequence)

    def abort(self, request_id: str) -> None:
        if run := self.host.runs.get(request_id):
            self.host.abort(run)

    def tell(self, message: Message) -> list[Message]:
        told = self.host._tell(message)
        return [] if isinstance(message, KvHolderLost) else list(told)  # the answer goes nowhere: ends are compared

    def begin_fault(self, kind: FaultKind, factor: float) -> None:
        if kind is FaultKind.CRASH:
            self.host.die("crashed")
        else:
            self.host.faults.begin(kind, factor, None)

    def end_fault(self, kind: FaultKind) -> None:
        self.host.faults.end(kind)

    def ends(self) -> dict[str, str]:
        """How requests have ended, as their readers are told; who aborts is told nothing in the simulator."""
        ended = {request_id: _end_of(run) for request_id, run in self._runs.items() if run.is_over}
        return {request_id: end for request_id, end in ended.items() if end != "abort"}


def _end_of(run: EmulatedRun) -> str:
    if run.error is None:
        return "finished" if run.finish_reason == "length" else "abort"
    return "withdrawn" if isinstance(run.error, PromptWithdrawn) else "failed"


class Simulated:
    """The simulated replica, its messages without a delay."""

    def __init__(self, is_kv_there: dict[str, bool]) -> None:
        self.said: list[str] = []
        self._is_kv_there = is_kv_there
        pool = PoolSpec(role=Role.PREFILL, replicas=1, profile=PROFILE, limits=LIMITS)
        others = PoolSpec(role=Role.DECODE, replicas=1, profile=PROFILE, limits=LIMITS)
        fleet = FleetSpec(pools=(pool, others), network_delay_s=0.0, detection_delay_s=0.0, kv_lease_s=LEASE_S)
        self._events = EventQueue()
        self.replica = SimReplica("replica", pool, fleet, self._events, die_of=print)
        self.model = self.replica.engine
        self._now_s = 0.0
        self._ended: dict[str, str] = {}

    def pass_time(self, now_s: float) -> None:
        self._now_s = now_s
        self._events.run(now_s)

    def submit(self, sequence: Sequence) -> None:
        request_id = sequence.request_id
        stage = Role.DECODE if sequence.pulls_kv else Role.PREFILL if sequence.holds_kv else Role.UNIFIED
        terms = {"prompt_tokens": sequence.prompt_tokens, "output_tokens": sequence.output_tokens}
        send = Send(
            attempt_id=request_id,
            request_id=request_id,
            stage=stage,
            replica_id="replica",
            pool="prefill",
            prefill_tokens=0,
            kv_tokens=0,
            kv_from=None,
        )
        attempt = SimAttempt(send, planned(request_id=request_id, **terms), self._reply)
        attempt.sequence = sequence
        attempt.pull(self._answer, self._hear, f"holder of {request_id}", request_id)
        attempt.on_turn = lambda _: self.said.append(f"{request_id} turn")
        self.replica.receive(self._now_s, attempt)

    def abort(self, request_id: str) -> None:
        self.replica.cancel(self._now_s, request_id)

    def tell(self, message: Message) -> list[Message]:
        if isinstance(message, KvHolderLost):  # a replica that has died is not told what of
            self.replica.lose_kv_source(f"holder of {message.request_id}", self._now_s)
            return []
        return list(self.replica.tell(self._now_s, message))

    def begin_fault(self, kind: FaultKind, factor: float) -> None:
        self.replica.begin_fault(kind, factor, self._now_s)

    def end_fault(self, kind: FaultKind) -> None:
        self.replica.end_fault(kind, self._now_s)

    def ends(self) -> dict[str, str]:
        return self._ended

    def _reply(self, at_s: float, event: AttemptEvent | CacheChanged) -> None:
        assert not isinstance(event, CacheChanged)
        ends = {AttemptFinished: "finished", AttemptFailed: "failed", AttemptWithdrawn: "withdrawn"}
        if end := ends.get(type(event)):
            self._ended[event.attempt_id] = end

    def _answer(self, message: Message, now_s: float) -> tuple[Message, ...]:
        assert isinstance(message, ClaimKv)
        request_id = message.request_id
        return (KvClaimed(request_id) if self._is_kv_there[request_id] else KvGone(request_id),)

    def _hear(self, now_s: float, message: Message) -> tuple[Message, ...]:
        if isinstance(message, KvPulled):
            self.said.append(f"{message.request_id} pulled")
        return ()


def all_of(model: EngineModel) -> dict[str, Any]:
    """What an engine has."""
    steps, batch = model.steps, model.steps.batch
    return {
        "open": {
            each.request_id: (each.stage, each.claim, batch.num_output_tokens_of(each))
            for each in model.open_requests.values()
        },
        "unfinished": model.num_unfinished,
        "running": list(batch.running),
        "waiting": steps.num_waiting,
        "held": {name: (held.num_claims, held.was_pulled, held.lease_end_s) for name, held in model.held.items()},
        "blocks": batch.blocks.usage_fraction,
        "tokens": (batch.num_prompt_tokens, batch.num_output_tokens, model.kv_tokens_received),
        "failures": model.kv_transfer_failures,
        "faults": (model.is_dead, model.faults),
        "next": model.next_event_s,
    }


class Pair:
    """Both hosts, which are told the same.

    Attributes:
        seen: What has happened so far; a proof in which something never happens proves nothing of it.
    """

    def __init__(self) -> None:
        self._is_kv_there: dict[str, bool] = {}
        self.hosts = Emulated(self._is_kv_there), Simulated(self._is_kv_there)
        self.seen: set[str] = set()
        self._now_s = 0.0
        self._num_submitted = 0

    def play(self, what: str, number: int, amount: int) -> None:
        """One message, or time that passes; afterwards both have the same."""
        if what == "time":
            self._now_s += amount / 70
        name = f"r{max(0, self._num_submitted + 2 - number % 8)}"
        if what in ("whole", "second", "prefill", "decode"):
            self._submit(what, number, amount)
        elif what == "abort":
            self._both(lambda host: host.abort(name))
        elif what in ("begin", "end"):
            self._switch(what, number, amount)
        elif what != "time":
            self._tell(MESSAGES[what](name))
        for host in self.hosts:
            host.pass_time(self._now_s)
        emulated, simulated = self.hosts
        assert all_of(emulated.model) == all_of(simulated.model)
        assert sorted(emulated.said) == sorted(simulated.said)
        if not emulated.model.is_dead:  # what had not left when an engine died is lost, or was on its way to a gateway
            assert emulated.ends() == simulated.ends()
        self.seen |= {*emulated.ends().values(), *(each.split()[1] for each in emulated.said)}

    def _submit(self, what: str, number: int, amount: int) -> None:
        name = f"r{self._num_submitted}"
        self._num_submitted += 1
        self._is_kv_there[name] = number % 4 > 0
        for host in self.hosts:
            sequence = Sequence(
                name,
                1 + amount % 60,
                1 if what == "prefill" else 1 + amount % 7,
                pulls_kv=what == "decode",
                holds_kv=what == "prefill",
                claim=ExecutionClaim.WANTED if what == "second" else ExecutionClaim.NONE,
            )
            host.submit(sequence)

    def _switch(self, what: str, number: int, amount: int) -> None:
        kind = list(FaultKind)[number % len(FaultKind)]
        if what == "end":
            self._both(lambda host: host.end_fault(kind))
        elif kind is not FaultKind.CRASH or amount < 10:
            self._both(lambda host: host.begin_fault(kind, 1.5 + amount % 3))

    def _tell(self, message: Message) -> None:
        model = self.hosts[0].model
        num_failures = model.kv_transfer_failures
        told = [self._answers(host, message) for host in self.hosts]
        assert told[0] == told[1]
        self.seen |= {type(each).__name__ for each in told[0]}
        if model.kv_transfer_failures > num_failures:
            self.seen.add(type(message).__name__)

    def _answers(self, host: Any, message: Message) -> list[Message]:
        """What is answered, and to the one who has asked: a turn is told to others only when it comes by itself."""
        num_said = len(host.said)
        told: list[Message] = host.tell(message)
        host.said[num_said:] = [each for each in host.said[num_said:] if not each.endswith("turn")]
        return told

    def _both(self, do: Callable[[Any], None]) -> None:
        for host in self.hosts:
            do(host)


MESSAGES: dict[str, Callable[[str], Message]] = {
    "claim": ClaimKv,
    "pulled": KvPulled,
    "claim lost": KvClaimEnded,
    "holder lost": KvHolderLost,
    "meet": Meet,
    "ask": AskClaim,
    "grant": GrantClaim,
    "begun": Begun,
}
OFTEN = ("time",) * 6 + ("whole", "second", "prefill", "prefill", "decode", "abort", "claim", "claim", "end", "end")
STEPS = st.tuples(st.sampled_from((*OFTEN, "begin", *MESSAGES)), st.integers(0, 63), st.integers(0, 63))


async def played(steps: list[tuple[str, int, int]]) -> set[str]:
    pair = Pair()
    for step in steps:
        pair.play(*step)
    return pair.seen


def run(played: Awaitable[set[str]]) -> set[str]:
    async def main() -> set[str]:
        return await played

    return asyncio.run(main())


@settings(max_examples=60, deadline=None)
@given(st.lists(STEPS, max_size=LENGTH))
def test_both_hosts_have_the_same_after_every_message(steps: list[tuple[str, int, int]]) -> None:
    run(played(steps))


@pytest.mark.proof
@pytest.mark.timeout(1200)
def test_both_hosts_have_the_same_after_each_of_many_messages() -> None:
    """And everything has happened that can."""
    seen: set[str] = set()

    @settings(max_examples=MESSAGES_OF_THE_PROOF // LENGTH, deadline=None)
    @given(st.lists(STEPS, min_size=LENGTH, max_size=LENGTH))
    def play(steps: list[tuple[str, int, int]]) -> None:
        seen.update(run(played(steps)))

    play()

    told = {"KvClaimed", "KvGone", "Begun", "GrantClaim", "Withdrawn", "KvHolderLost"}
    assert seen >= {"finished", "failed", "withdrawn", "pulled", "turn"} | told
