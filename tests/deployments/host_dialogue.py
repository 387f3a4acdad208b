"""A dialogue with a Serve host on a real event loop: the test speaks for the replicas, the routers and the client.

::

    talk = HostDialogue().replicas(Role.UNIFIED, "a")
    opened = talk.arrives("q")
    call = await talk.call("q.0")
    call.gives(Chunk("Hello", (1,)), Chunk("", (), "stop"))
    assert await talk.answer(opened) == ("Hello", completed())
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Generator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Self, cast
from weakref import WeakSet

from ray.exceptions import RayActorError
from ray.serve import context
from ray.serve.handle import DeploymentHandle

from cluster import DispatcherListener, NoEventLog, Seeds
from deployments.data_plane.attempt_server import AttemptServer
from deployments.data_plane.connections import Connections
from deployments.gateway.open_request import ServeOpenRequest
from deployments.gateway.response_cache import NO_CACHE_ENTRY, CacheEntry
from deployments.gateway.serve_host import ServeHost
from deployments.telemetry.metrics import GatewayMetrics
from deployments.telemetry.refusals import RecentRefusals
from deployments.wire import inner_hop
from deployments.wire.attempt_call import AttemptOrder
from deployments.wire.fleet_registry import SeenReplica
from deployments.wire.handle_calls import METHODS
from deployments.wire.seen_fleet import SeenFleet
from engines.contract import Chunk, EngineRequest, Sampling
from policies import Need, PolicyChoice, PolicySpec, Priority, RequestView, Role
from routing import DispatcherParams, DispatcherSpec, Outcome, build_dispatcher
from routing.config.spec import LanesSpec
from routing.lanes.lanes import Lane
from routing.sizing.geometry import ServiceRates
from tests.routing.dialogue import AT_ONCE, NEVER_DEGRADE, NEVER_EJECT, NO_HEDGE

MAX_TURNS = 1000
HOSTS: WeakSet[ServeHost] = WeakSet()
"""Those of dialogues. Tests share an event loop: what one's host would do in five seconds another test would have."""


class Call:
    """One call of a replica; the test says what comes of it."""

    def __init__(
        self,
        method: str,
        arguments: tuple[bytes, ...],
        *,
        target: str,
        work: tuple[int, int],
        priority: int,
        tied_to: tuple[str, str] | None = None,
    ) -> None:
        self.method = method
        self.arguments = arguments
        self.target = target
        self.work = work
        self.priority = priority
        self.tied_to = tied_to
        self.hang_up: Callable[[], None] = lambda: None
        self.internal_request_id = context._get_serve_request_context()._internal_request_id
        self.num_cancels = 0
        self._coming: asyncio.Queue[bytes | Exception] = asyncio.Queue()

    # -- for the test -------------------------------------------------------------------------------------------------

    def gives(self, *items: inner_hop.Item) -> None:
        """The replica's items, and nothing after them yet."""
        for item in items:
            self._coming.put_nowait(inner_hop.encode(item))

    def gives_bytes(self, raw: bytes) -> None:
        """Something that the replica should not send."""
        self._coming.put_nowait(raw)

    def breaks(self, error: Exception) -> None:
        """What the handle raises."""
        self._coming.put_nowait(error)

    def ends(self) -> None:
        """The end of the stream."""
        self._coming.put_nowait(StopAsyncIteration())

    def answers(self, *items: inner_hop.Item) -> None:
        """All that the replica has to give, and the end of the stream."""
        self.gives(*items)
        self.ends()

    @property
    def num_unread(self) -> int:
        """What the host has not asked for yet."""
        return self._coming.qsize()

    # -- for the host -------------------------------------------------------------------------------------------------

    def __aiter__(self) -> "Call":
        return self

    async def __anext__(self) -> bytes:
        item = await self._coming.get()
        if isinstance(item, Exception):
            raise item
        return item

    async def run(self) -> AsyncGenerator[inner_hop.Item, None]:
        """The same, where it has come over a connection; what the test breaks there is the connection."""
        has_ended = False
        try:
            while not has_ended:
                raw = await self._coming.get()
                if isinstance(raw, RayActorError):
                    await asyncio.sleep(0)  # what was given before is on its way
                    await asyncio.sleep(0)
                    self.hang_up()
                    await asyncio.Event().wait()
                if isinstance(raw, StopAsyncIteration):
                    has_ended = True
                    return
                if isinstance(raw, Exception):
                    raise raw
                item = inner_hop.decode_item(raw)
                has_ended = inner_hop.is_last(item)
                yield item
        finally:
            self.num_cancels += not has_ended

    def __await__(self) -> Generator[Any, None, bytes]:
        return self.__anext__().__await__()

    def cancel(self) -> None:
        self.num_cancels += 1


class Handle:
    """A pool's deployment handle."""

    def __init__(self, calls: dict[str, Call], method_name: str = "") -> None:
        self._calls = calls
        self._method_name = method_name
        self.options_given: list[dict[str, Any]] = []

    def options(self, **options: Any) -> "Handle":
        self.options_given.append(options)
        return Handle(self._calls, options.get("method_name", ""))

    def remote(
        self,
        *arguments: bytes,
        attempt_id: str,
        work: tuple[int, int],
        priority: int,
        target: str,
        tied_to: tuple[str, str] | None = None,
    ) -> Call:
        assert attempt_id not in self._calls, "called twice"
        call = Call(self._method_name, arguments, target=target, work=work, priority=priority, tied_to=tied_to)
        self._calls[attempt_id] = call
        return call


class ServedReplica:
    """A replica's end of the data plane, whose attempts are calls as those of a handle are."""

    def __init__(self, replica_id: str, calls: dict[str, Call]) -> None:
        self._replica_id = replica_id
        self._calls = calls
        self.released: list[bytes] = []
        self.server: AttemptServer

    async def start(self) -> Self:
        self.server = await AttemptServer.start(self._run, self._release_kv, "127.0.0.1")
        return self

    async def _release_kv(self, handle: bytes) -> None:
        self.released.append(handle)

    async def _run(self, order: AttemptOrder) -> AsyncIterator[inner_hop.Item]:
        arguments = (order.request, order.handle) if order.handle else (order.request,)
        call = Call(
            METHODS[order.stage],
            arguments,
            target=self._replica_id,
            work=order.work,
            priority=order.priority,
            tied_to=order.tied_to,
        )
        call.hang_up = self._hang_up
        assert order.attempt_id not in self._calls, "called twice"
        self._calls[order.attempt_id] = call
        async with aclosing(call.run()) as items:
            async for item in items:
                yield item

    def _hang_up(self) -> None:
        """As a replica that dies does."""
        for connection in self.server._connections:
            connection.close()


class FixedClock:
    """Stands still until somebody moves it."""

    def __init__(self) -> None:
        self.time_s = 0.0

    def now_s(self) -> float:
        return self.time_s


RATES = ServiceRates(step_s=0.01, new_token_s=0.001)
SIDES = {"prefill-pool": "decode-pool", "decode-pool": "prefill-pool"}


class HostDialogue:
    """One host, its dispatcher, and pools whose replicas are the test.

    Args:
        planner: Name of the planner.
        whole_request_pools: Prefill and decode pools whose replicas also take whole requests.
        hedging: Choice of the hedging policy.
        retrying: Choice of the retry policy.
        ejection: Choice of the ejection policy.
        degradation: Choice of the degradation policy.
        params: Limits of the dispatcher.
        balancing: Choice of the balancer.
        queueing: Choice of the policy that puts lines in order.
        engine_order: Choice of the policy that puts requests inside engines in order.
        preemption: Choice of the policy that stops sheddable requests.
        lanes: The lanes.
        length_prediction: How long answers are expected to be.
        listener_for: Makes what the host tells of events and effects, given what its dispatcher is made from.
        change_roles: Whether prefill and decode replicas change roles.
    """

    def __init__(
        self,
        *,
        planner: str = "always_unified",
        whole_request_pools: tuple[str, ...] = (),
        hedging: PolicyChoice = NO_HEDGE,
        retrying: PolicyChoice = AT_ONCE,
        ejection: PolicyChoice = NEVER_EJECT,
        degradation: PolicyChoice = NEVER_DEGRADE,
        params: DispatcherParams | None = None,
        balancing: str = "least_work_left",
        queueing: str = "fcfs",
        engine_order: str = "by_arrival",
        preemption: str = "never_preempt",
        lanes: Sequence[Lane] = (),
        length_prediction: str = "max_tokens",
        listener_for: Callable[[DispatcherSpec], DispatcherListener] = lambda _: NoEventLog(),
        change_roles: bool = False,
    ) -> None:
        self.spec = DispatcherSpec(
            planner=PolicyChoice(name=planner),
            pools={f"{role}-pool": role for role in Role},
            whole_request_pools=whole_request_pools,
            policies=PolicySpec(
                hedging=hedging,
                retrying=retrying,
                ejection=ejection,
                degradation=degradation,
                balancing=PolicyChoice(name=balancing),
                queueing=PolicyChoice(name=queueing),
                engine_order=PolicyChoice(name=engine_order),
                preemption=PolicyChoice(name=preemption),
            ),
            prefixes=PolicyChoice(name="block_hash"),
            lanes=LanesSpec(lanes=tuple(lanes)),
            length_prediction=PolicyChoice(name=length_prediction),
            rates=RATES if balancing == "least_delay" else ServiceRates(),
            params=params or DispatcherParams(),
        )
        self.dispatcher = build_dispatcher(self.spec, rng_for=Seeds(1).stream, provided=frozenset(Need))
        self.clock = FixedClock()
        self.metrics = GatewayMetrics(RATES)
        self.calls: dict[str, Call] = {}
        self.handles = {f"{role}-pool": Handle(self.calls) for role in Role}
        self.served: dict[str, ServedReplica] = {}
        self._pools: dict[Role, tuple[tuple[str, ...], int]] = {}
        self.refusals = RecentRefusals(self.clock.now_s)
        self.host = ServeHost(
            self.dispatcher,
            cast(Mapping[str, DeploymentHandle], self.handles),
            {f"{role}-pool": role for role in Role},
            self.clock,
            self.metrics,
            listener=listener_for(self.spec),
            connections=Connections("gateway-a"),
            refusals=self.refusals,
            seen=SeenFleet(SIDES if change_roles else {}),
        )
        HOSTS.add(self.host)

    # -- what the others do -------------------------------------------------------------------------------------------

    def replicas(
        self, role: Role, *replica_ids: str, slots: int = 8, canaries: Collection[str] = (), **stats: Any
    ) -> Self:
        """A router says that these replicas of a role are up."""
        self._pools[role] = replica_ids, slots
        seen = tuple(
            SeenReplica(
                replica_id=each,
                node_id="node",
                max_ongoing_requests=slots,
                deployment=f"{role}-pool",
                metadata={"kv_capacity_tokens": 10_000, "claims_at": f"{each}:5000", **self._served_at(each)},
                stats={**stats, "is_canary": True} if each in canaries else stats,
            )
            for each in replica_ids
        )
        self.host.on_replicas(f"{role}-pool", seen)
        return self

    async def over_connections(self) -> Self:
        """The replicas that are up take connections of the data plane."""
        for role, (replica_ids, slots) in list(self._pools.items()):
            for each in replica_ids:
                self.served[each] = await ServedReplica(each, self.calls).start()
            self.replicas(role, *replica_ids, slots=slots)
        await self.turn()
        return self

    def _served_at(self, replica_id: str) -> dict[str, Any]:
        served = self.served.get(replica_id)
        return {} if served is None else served.server.to_metadata()

    async def close(self) -> None:
        """Nothing is left of the sockets either."""
        self.host.close()
        for served in self.served.values():
            await served.server.close()

    async def arrives(self, request_id: str, **terms: Any) -> ServeOpenRequest:
        """A request comes in, after everything that was said before."""
        await self.turn()
        return self.submit(request_id, **terms)

    def submit(
        self,
        request_id: str,
        *,
        budget_s: float = 60.0,
        priority: str = "standard",
        cache_entry: CacheEntry = NO_CACHE_ENTRY,
    ) -> ServeOpenRequest:
        """A request comes in at this very moment."""
        now_s = self.clock.now_s()
        view = RequestView(
            request_id=request_id,
            prompt_tokens=3,
            max_output_tokens=50,
            arrival_s=now_s,
            deadline_s=now_s + budget_s,
            priority=Priority(priority),
            has_cached_answer=cache_entry.has_answer,
        )
        return self.host.submit(view, an_engine_request(request_id), cache_entry)

    def cached_blocks(self, blocks: tuple[int, ...]) -> dict[str, int]:
        """How many of a prompt's blocks each replica has in its cache, as far as the dispatcher knows."""
        view = RequestView(
            request_id="asked",
            prompt_tokens=len(blocks) + 1,
            max_output_tokens=1,
            arrival_s=0.0,
            deadline_s=1.0,
            prefix_blocks=blocks,
            prefix_block_tokens=1,
        )
        return dict(self.dispatcher._prefixes.cached_tokens(view))

    async def call(self, attempt_id: str) -> Call:
        """The call that an attempt makes, when it has made it."""
        await self.until(lambda: attempt_id in self.calls)
        return self.calls[attempt_id]

    async def opens(self, request_id: str, **terms: Any) -> tuple[ServeOpenRequest, Call]:
        """A request comes in and its first attempt is sent."""
        opened = await self.arrives(request_id, **terms)
        return opened, await self.call(f"{request_id}.0")

    # -- what came of it ----------------------------------------------------------------------------------------------

    async def answer(self, opened: ServeOpenRequest) -> tuple[str, Outcome]:
        """All of a request's text, and how it ended."""
        text = ""
        while isinstance(item := await asyncio.wait_for(opened.stream.read(), 5), Chunk):
            text += item.text
        await self.turn()
        return text, item

    async def answered(self, opened: ServeOpenRequest, call: Call, *items: inner_hop.Item) -> tuple[str, Outcome]:
        """The same, when a replica has given all that it has to give."""
        call.answers(*items)
        return await self.answer(opened)

    async def serves(self, request_id: str, *items: inner_hop.Item) -> tuple[str, Outcome]:
        """The same of a request that comes in now and is answered by its first attempt."""
        opened, call = await self.opens(request_id)
        return await self.answered(opened, call, *items)

    async def turn(self) -> None:
        """Lets everybody who can go on go on."""
        for _ in range(20):
            await asyncio.sleep(0)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Lets the others go on until something is so."""
        for _ in range(MAX_TURNS):
            if condition():
                return
            await asyncio.sleep(0)
        raise AssertionError("it never came to that")

    @property
    def load(self) -> dict[str, tuple[int, int]]:
        """Ongoing requests and work left of each live replica."""
        live = [each for role in Role for each in self.dispatcher.fleet.live(role, self.clock.now_s())]
        return {each.replica_id: (each.num_ongoing_requests, each.work_tokens) for each in live}

    @property
    def is_over(self) -> bool:
        """Nothing is open on either side, no task runs, and every slot is back."""
        dispatcher = self.dispatcher
        held = dispatcher.num_open_requests, dispatcher.num_open_attempts, dispatcher.num_waiting_requests
        kept = len(self.host._requests), len(self.host._attempts), len(self.host.tasks)
        return held == kept == (0, 0, 0) and dispatcher.fleet.num_ongoing_requests == 0


def an_engine_request(request_id: str) -> EngineRequest:
    """Three tokens in, fifty out."""
    return EngineRequest(request_id=request_id, prompt_token_ids=[1, 2, 3], sampling=Sampling(max_tokens=50))
