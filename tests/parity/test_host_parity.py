"""The Serve host writes a log while replicas answer, fail, vanish and report, and clients leave; the log replays, and
all holds in it that must.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from io import FileIO
from pathlib import Path
from typing import Any, get_args

import pytest
from ray.exceptions import ActorDiedError

from cluster import EventLogFile, NoEventLog, Seeds
from cluster.event_log.frames import CLOSED, LogReader, encode_answer
from cluster.event_log.invariants import hear_log
from cluster.event_log.replay import ReplayResult, replay
from deployments.wire import inner_hop
from deployments.wire.inner_hop import Failure, Withdrawn
from engines.contract import AWAITS_KV, Chunk, KvHandle
from policies import CATALOG, InvariantViolation, PolicyChoice, Reason, RequestView, Role
from routing import Arrived, DispatcherParams, DispatcherSpec, Effect, Event
from routing.lanes.lanes import Lane, TokenRange
from routing.sizing.length_prediction import OutputEstimate
from tests.cluster.logged import LogInMemory, a_header
from tests.deployments.host_dialogue import Call, HostDialogue

HANDLE = KvHandle({"remote_block_ids": [1]}, 3)
NUM_REQUESTS = 200
FAKE_CLOCK_S = 1e6
"""The script's clock is not that of the event loop, so timers fire when they like."""
TIE = PolicyChoice(name="tests.policy_doubles:TieHalf")
EJECT = PolicyChoice(name="tests.policy_doubles:EjectAfterErrors")
ELSEWHERE = {"LoadDue", "ThresholdsReceived", "NewsReceived"}
"""Exchanges with the load coordinator are the gateway's own affair, and have tests of their own."""
PROBED = {"ProbeEnded"}
"""The script's replicas know attempts alone; what comes of probes is in the tests of the host."""
KINDS = frozenset(each.__name__ for each in get_args(Event)) - ELSEWHERE - PROBED


class RandomReplicas:
    """Plays everybody whom a host talks to, from a script of random numbers.

    Args:
        talk: The host.
        script: Where the randomness comes from.
    """

    def __init__(self, talk: HostDialogue, script: random.Random) -> None:
        self._talk = talk
        self._script = script
        self._of_caches = random.Random(7)
        self._of_stalls = random.Random(9)
        self._stalled: set[str] = set()
        self._ended: set[str] = set()
        self._begun: set[str] = set()
        self._passed_on: set[str] = set()
        self._offered: set[str] = set()
        self._requests: list[str] = []

    async def play(self) -> None:
        """Many requests, with several things happening in between; then everything ends well."""
        self._announce(3)
        while len(self._requests) < NUM_REQUESTS:
            self._talk.clock.time_s += self._script.random()
            await self._talk.turn()
            self._take_new_ones()
            self._next()
            self._stand_still()
            self._talk.host.live_replicas()  # /ready looks at the fleet in between, which must not count
        while not self._talk.is_over:
            for attempt_id in self._open():
                self._finish(attempt_id)
            self._talk.clock.time_s += 1.0  # whoever waits for replicas that are out does so no longer
            self._announce(4)
            await self._talk.turn()

    def _take_new_ones(self) -> None:
        """Most calls are taken at once where they were sent: second attempts wait for that."""
        for attempt_id in self._open():
            if attempt_id not in self._offered and self._script.random() < 0.8:
                self._talk.host.on_accepted(attempt_id, self._call(attempt_id).target)
            self._offered.add(attempt_id)

    def _stand_still(self) -> None:
        """Now and then a replica does, or moves again; some are told of that are not there."""
        if self._of_stalls.random() < 0.04:
            replica_id = f"{self._of_stalls.choice(list(Role))}-{self._of_stalls.choice('abcd')}"
            self._stalled ^= {replica_id}
            self._talk.host.take_in_stall(replica_id, replica_id in self._stalled)

    def _next(self) -> None:
        dice = self._script.random()
        calls = self._open()
        pairs = [each for each in calls if self._is_one_of_a_pair(each)]
        if pairs and dice > 0.8:
            self._happen(pairs[0])
        elif dice < 0.4 or not calls:
            self._arrive()
        elif dice < 0.45:
            self._announce(self._script.randrange(2, 4))
        elif dice < 0.5:
            self._talk.host.abandon(self._script.choice(self._requests))
        else:
            self._happen(self._script.choice(calls))

    def _happen(self, attempt_id: str) -> None:
        happenings: tuple[Callable[[str], None], ...] = (
            self._accept,
            self._progress,
            self._finish,
            self._finish,
            self._fail,
            self._break,
        )
        if self._is_one_of_a_pair(attempt_id) and self._script.random() < 0.5:
            self._end_with(attempt_id, Withdrawn())
        else:
            self._script.choice(happenings)(attempt_id)

    def _is_one_of_a_pair(self, attempt_id: str) -> bool:
        """Of two that are tied, while it has not begun."""
        ties = {each: call.tied_to[0] for each, call in self._talk.calls.items() if call.tied_to}
        return attempt_id not in self._begun and attempt_id in {*ties, *ties.values()}

    def _announce(self, number: int) -> None:
        for role in Role:
            names = [f"{role}-{letter}" for letter in self._script.sample("abcd", number)]
            work = float(self._script.randrange(500))  # as JSON may have it
            load: dict[str, Any] = {"prefill_tokens": 0, "kv_tokens": work, "kv_cache_usage": 0}
            self._talk.replicas(role, *names, slots=2, **load)

    def _arrive(self) -> None:
        request_id = f"q{len(self._requests)}"
        self._requests.append(request_id)
        if len(self._requests) == NUM_REQUESTS // 2:
            policies = replace(self._talk.spec.policies, queueing=PolicyChoice(name="vtc"))
            self._talk.host.reconfigure(replace(self._talk.spec, policies=policies))
        self._talk.submit(request_id, budget_s=0.0 if self._script.random() < 0.05 else 600.0)

    def _open(self) -> list[str]:
        """Attempts whose calls have been made and have not ended."""
        return [each for each, call in self._talk.calls.items() if each not in self._ended and not call.num_cancels]

    def _call(self, attempt_id: str) -> Call:
        return self._talk.calls[attempt_id]

    def _accept(self, attempt_id: str) -> None:
        pool = self._call(attempt_id).target.rpartition("-")[0]
        self._talk.host.on_accepted(attempt_id, f"{pool}-{self._script.choice('abcd')}")

    def _progress(self, attempt_id: str) -> None:
        method = self._call(attempt_id).method
        if method == "decode" and attempt_id not in self._begun | self._passed_on and self._script.random() < 0.5:
            self._passed_on.add(attempt_id)
            self._call(attempt_id).gives(Chunk("Hel", (0,), times=AWAITS_KV))
        elif method != "prefill":
            self._begun.add(attempt_id)
            self._call(attempt_id).gives(self._told(Chunk("Hello", (1, 2))))

    def _finish(self, attempt_id: str) -> None:
        is_prefill = self._call(attempt_id).method == "prefill"
        self._end_with(attempt_id, self._told(HANDLE if is_prefill else Chunk(".", (3,), "stop")))

    def _told(self, item: Chunk | KvHandle) -> inner_hop.Item:
        """Now and then the engine says with it what has come into its cache and gone from it."""
        if self._of_caches.random() < 0.7:
            return item
        stored, dropped = (tuple(self._of_caches.sample(range(9), 3)) for _ in range(2))
        return inner_hop.WithCacheChange(item, stored, dropped)

    def _fail(self, attempt_id: str) -> None:
        is_decode = self._call(attempt_id).method == "decode"
        reason = Reason.KV_TRANSFER_FAILED if is_decode else Reason.ENGINE_ERROR
        self._end_with(attempt_id, Failure(reason, "it went wrong"))

    def _break(self, attempt_id: str) -> None:
        self._talk.host.on_replica_lost(self._call(attempt_id).target)
        self._ended.add(attempt_id)
        self._call(attempt_id).breaks(ActorDiedError())

    def _end_with(self, attempt_id: str, item: inner_hop.Item) -> None:
        self._ended.add(attempt_id)
        call = self._call(attempt_id)
        call.gives(item)
        if call.method != "prefill":
            call.ends()


class ExpectsTwo:
    """Every answer is expected to have two tokens."""

    wants_ngrams = None

    def predict(self, request: RequestView) -> OutputEstimate:
        return OutputEstimate(2, 2)

    def observe(self, request: RequestView, output_tokens: int) -> None: ...


ALL_POOLS = tuple(f"{role}-pool" for role in Role)
LANES = (
    Lane(name="quick", output_tokens=TokenRange(0, 3), pools=ALL_POOLS),
    Lane(name="slow", output_tokens=TokenRange(3), pools=ALL_POOLS),
)


@pytest.mark.parametrize("planner", ["always_unified", "always_disaggregated"])
@pytest.mark.parametrize("balancing", sorted(CATALOG["balancing"]))
async def test_what_a_serve_host_writes_replays_and_holds(tmp_path: Path, planner: str, balancing: str) -> None:
    path = tmp_path / "gw.log"
    logs: list[EventLogFile] = []

    def begin(spec: DispatcherSpec) -> EventLogFile:
        logs.append(EventLogFile(FileIO(path, "x"), a_header(spec), print))
        return logs[0]

    talk = HostDialogue(
        planner=planner,
        hedging=TIE,
        ejection=EJECT,
        params=DispatcherParams(quarantine_s=0.5, probe_s=0.0, max_fruitless_losses=9),
        balancing=balancing,
        lanes=LANES,
        length_prediction=f"{__name__}:ExpectsTwo",
        listener_for=begin,
    )
    await asyncio.wait_for(RandomReplicas(talk, Seeds(8).stream("script")).play(), 60)
    logs[0].close()

    with path.open("rb") as file:
        result = replay(file)
    with path.open("rb") as file:
        events = [type(record.event).__name__ for record in LogReader(file)]
    with path.open("rb") as file:
        heard = hear_log(file, FAKE_CLOCK_S, FAKE_CLOCK_S).heard
    assert heard.violations == []
    assert result == ReplayResult(num_records=len(events), end_reason=CLOSED)
    assert set(events) | {"AnswerBegun"} == KINDS, "with all unified replicas out, requests are served apart"
    assert planner == "always_unified" or "AnswerBegun" in events
    assert events.count("Arrived") == NUM_REQUESTS


async def test_what_the_dispatcher_raised_is_in_the_log_and_is_raised_again() -> None:
    logs: list[LogInMemory] = []

    def begin(spec: DispatcherSpec) -> LogInMemory:
        logs.append(LogInMemory(a_header(spec)))
        return logs[0]

    talk = HostDialogue(listener_for=begin).replicas(Role.UNIFIED, "a")
    await talk.arrives("q")
    with pytest.raises(InvariantViolation):
        talk.submit("q")

    *_, record = LogReader(logs[0].file())
    assert bytes(record.answer) == encode_answer("InvariantViolation")
    assert replay(logs[0].file()) == ReplayResult(num_records=3, end_reason=CLOSED)
    talk.host.abandon("q")
    await talk.until(lambda: talk.is_over)


async def test_the_listener_hears_of_an_event_before_its_effects_are_carried_out() -> None:
    """So that a log is in the order in which the dispatcher was told, whatever the effects lead to."""
    seen: list[int] = []

    class Listener(NoEventLog):
        def on_event(self, now_s: float, event: Event, effects: Sequence[Effect]) -> None:
            if isinstance(event, Arrived):
                seen.append(len(talk.host._attempts))

    talk = HostDialogue(listener_for=lambda _: Listener()).replicas(Role.UNIFIED, "a")
    await talk.arrives("q")

    assert seen == [0]
    talk.host.abandon("q")
    await talk.until(lambda: talk.is_over)
