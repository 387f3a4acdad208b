"""Runs traffic against an OpenAI endpoint in real time, open loop, and leaves what a simulated run leaves.

Every request is sent when its plan says, however the others fare, on a connection of its own if need be; the clock
starts at the scheduled time, so what a late client adds is in the metrics, and in ``send_lag_s`` beside them. A driver
that can't keep up does not measure the service: look at :class:`ClientHealth` first.
"""

import asyncio
import math
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass

import aiohttp

from cluster.sim.run_table import RunTable
from cluster.sim.traffic import Arrival, PlannedRequest, Traffic
from loadtests.drivers.answer_stream import AnswerStream
from loadtests.drivers.client_log import ClientLog
from loadtests.drivers.completions import GAVE_UP, HEADERS, NO_HEAD, Endpoint, Head, head_of
from loadtests.drivers.endings import NO_VERDICT, Ending, broken_off, ending_of, refusal
from loadtests.drivers.prompts import PromptTokens
from loadtests.results.client_health import ClientHealth, own_cpu_s
from loadtests.results.run_record import RequestDetails

START_DELAY_S = 0.2
"""From the driver's start to the plan's time 0: the first requests are ready when they are due."""
SMALL_BUFFER_BYTES = 4096
"""Of a slow reader's socket: with the usual one, the machine would read on for it."""
READS_PER_S = 20


class Reading:
    """Reads answers.

    Args:
        bytes_per_s: How fast; infinite: whatever has come, at once.
    """

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s

    def socket(self, address: aiohttp.AddrInfoType) -> socket.socket:
        """A connection's socket, for aiohttp."""
        family, kind, protocol, _, _ = address
        made = socket.socket(family, kind, protocol)
        if math.isfinite(self._bytes_per_s):
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER_BYTES)
        return made

    async def pieces(self, content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
        """What comes, piece by piece, to its end."""
        if math.isinf(self._bytes_per_s):
            async for data in content.iter_any():
                yield data
            return
        most_bytes = max(1, int(self._bytes_per_s / READS_PER_S))
        while data := await content.read(most_bytes):
            yield data
            await asyncio.sleep(len(data) / self._bytes_per_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRun:
    """What a run over HTTP leaves: the table that every host leaves, and how the client fared.

    Args:
        table: A row for each request that has ended.
        health: How the client fared.
        details: What else is known of each row.
        num_unanswered: Requests that were in flight, or due later, when the run was ended.
    """

    table: RunTable
    health: ClientHealth
    details: Sequence[RequestDetails] = ()
    num_unanswered: int = 0


async def drive(
    endpoint: Endpoint,
    traffic: Traffic,
    prompts: PromptTokens,
    traffic_classes: tuple[str, ...],
    *,
    until_s: float = math.inf,
    on_progress: Callable[[float], None] | None = None,
) -> HttpRun:
    """Runs all traffic to its end; see :class:`HttpDriver` for a run that may be interrupted.

    Args:
        endpoint: Where to.
        traffic: The clients.
        prompts: Makes the prompts.
        traffic_classes: Names of the traffic classes.
        until_s: A hard end; what is unanswered then has no row.
        on_progress: Called with the run's time whenever a request has ended.
    """
    driver = HttpDriver(endpoint, traffic, prompts, traffic_classes, on_progress=on_progress)
    await driver.run(until_s)
    return driver.result()


class HttpDriver:
    """One run. ``result`` may be asked for at any time: what has ended by then is in it.

    In the table ``attempts`` and ``hedges`` are ``UNKNOWN`` where the service does not say, ``computed_prompt_tokens``
    always is, and ``replicas`` is empty.

    Args:
        endpoint: Where to.
        traffic: The clients.
        prompts: Makes the prompts.
        traffic_classes: Names of the traffic classes.
        on_progress: Called with the run's time whenever a request has ended.
        max_in_flight: What is due while so many are in flight is counted as dropped and never sent; queueing it would
            only send it in a burst, later.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        traffic: Traffic,
        prompts: PromptTokens,
        traffic_classes: tuple[str, ...],
        *,
        on_progress: Callable[[float], None] | None = None,
        max_in_flight: float = math.inf,
    ) -> None:
        self._endpoint = endpoint
        self._traffic = traffic
        self._prompts = prompts
        self._reading = Reading(endpoint.reads_bytes_per_s)
        self._log = ClientLog(traffic_classes)
        self._on_progress = on_progress or _ignore
        self._max_in_flight = max_in_flight
        self._tasks: set[asyncio.Task[None]] = set()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._over = asyncio.Event()
        self._failure: BaseException | None = None
        self._started_s = self._ended_s = 0.0
        self._cpu_s = 0.0
        self._num_unanswered = 0

    async def run(self, until_s: float = math.inf) -> None:
        """Runs all traffic to its end, or to ``until_s``.

        Raises:
            Exception: What the traffic itself raises; a request's failure is a row and no exception.
        """
        self._loop = asyncio.get_running_loop()
        cpu_before_s = own_cpu_s()
        async with self._new_session() as self._session, self._new_session(force_close=True) as self._anew:
            self._started_s = self._loop.time() + START_DELAY_S
            try:
                self._expect_next(self._traffic.arrivals())
                if not self._timers:
                    return
                async with asyncio.timeout_at(self._started_s + until_s if until_s < math.inf else None):
                    await self._over.wait()
            except TimeoutError:
                pass
            finally:
                self._ended_s = self._now_s()
                self._cpu_s = own_cpu_s() - cpu_before_s
                await self._stop()
        if self._failure is not None:
            raise self._failure

    def _new_session(self, *, force_close: bool = False) -> aiohttp.ClientSession:
        """Connections of clients; ``force_close``: one for each request."""
        connector = aiohttp.TCPConnector(limit=0, socket_factory=self._reading.socket, force_close=force_close)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=None, sock_read=None)
        return aiohttp.ClientSession(connector=connector, timeout=timeout, headers=HEADERS)

    def result(self) -> HttpRun:
        """Everything that has ended so far."""
        run_s = self._ended_s or self._now_s()
        self._log.cpu_fraction = self._cpu_s / run_s if run_s > 0 else 0.0
        return HttpRun(
            table=self._log.table(),
            health=self._log.health(),
            details=self._log.details(),
            num_unanswered=self._num_unanswered,
        )

    # -- what is sent when --------------------------------------------------------------------------------------------

    def _now_s(self) -> float:
        return self._loop.time() - self._started_s

    def _expect_next(self, arrivals: Iterator[Arrival]) -> None:
        """Only the next arrival of the plan waits, ready to be sent; plans may be endless."""
        arrival = next(arrivals, None)
        if arrival is not None:
            self._expect(arrival, lambda: self._expect_next(arrivals))

    def _expect(self, arrival: Arrival, then: Callable[[], None] | None = None) -> None:
        body = self._endpoint.body(arrival.request, self._prompts)
        name = arrival.request.request_id
        self._timers[name] = self._loop.call_at(self._started_s + arrival.at_s, self._begin, arrival, body, then)

    def _begin(self, arrival: Arrival, body: bytes, then: Callable[[], None] | None) -> None:
        del self._timers[arrival.request.request_id]
        if len(self._tasks) < self._max_in_flight:
            task = self._loop.create_task(self._send(arrival, body))
            self._tasks.add(task)
            task.add_done_callback(self._task_ended)
        else:
            self._log.add_dropped()
        if then is not None:
            self._guarded(then)

    def _guarded(self, call: Callable[[], None]) -> None:
        """Traffic that raises ends the run; an exception in a callback would go to the log and nowhere else."""
        try:
            call()
        except Exception as error:
            self._fail(error)

    def _task_ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)
        elif not self._tasks and not self._timers:
            self._over.set()

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._over.set()

    async def _stop(self) -> None:
        self._num_unanswered = len(self._timers) + len(self._tasks)
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        left = tuple(self._tasks)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    # -- one request --------------------------------------------------------------------------------------------------

    async def _send(self, arrival: Arrival, body: bytes) -> None:
        sent_s = self._now_s()
        self._log.add_sent(arrival.at_s, sent_s)
        answer, heads = AnswerStream(), [NO_HEAD]
        try:
            async with asyncio.timeout_at(self._started_s + arrival.at_s + arrival.request.timeout_s):
                ending = await self._ending_of(self._session, arrival.request, body, answer, heads)
                if self._endpoint.reconnects and ending.outcome is NO_VERDICT:
                    answer.break_off()  # a connection that is kept may lead to whoever has died: a new one
                    ending = await self._ending_of(self._anew, arrival.request, body, answer, heads)
        except TimeoutError:
            ending = Ending(outcome=GAVE_UP)
        self._record(arrival.request, sent_s, answer, ending, heads[-1])

    async def _ending_of(
        self,
        session: aiohttp.ClientSession,
        request: PlannedRequest,
        body: bytes,
        answer: AnswerStream,
        heads: list[Head],
    ) -> Ending:
        """How it ends, or where it has broken off."""
        headers = self._endpoint.headers(request, answer.last_event_id)
        try:
            async with session.post(self._endpoint.url, data=body, headers=headers) as response:
                return await self._read(response, answer, heads)
        except TimeoutError:  # a client's patience; it is an OSError, too
            raise
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return broken_off(error)

    async def _read(self, response: aiohttp.ClientResponse, answer: AnswerStream, heads: list[Head]) -> Ending:
        """What comes to its end; what the response's head says is appended as soon as it is known."""
        heads.append(head_of(response.headers.get))
        if response.status != 200:
            return refusal(response.status, response.headers.get, await response.read())
        async for data in self._reading.pieces(response.content):
            answer.feed(data, self._now_s())
            if answer.is_over:
                break
        return ending_of(answer)

    def _record(self, request: PlannedRequest, sent_s: float, answer: AnswerStream, ending: Ending, head: Head) -> None:
        ended_s = self._now_s()
        following = self._traffic.on_end(request, ending.outcome, ended_s)
        for arrival in following:
            self._expect(arrival)
        is_last = all(arrival.request.logical_request != request.logical_request for arrival in following)
        self._log.add_ended(request, answer, ending, sent_s=sent_s, ended_s=ended_s, is_last=is_last, head=head)
        self._on_progress(ended_s)


def _ignore(now_s: float) -> None:
    """Nobody watches the run."""
