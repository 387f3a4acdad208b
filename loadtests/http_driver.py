"""Runs traffic against an OpenAI endpoint in real time, open loop, and leaves what a simulated run leaves.

Every request is sent when its plan says, however the others fare, on a connection of its own if need be; the clock
starts at the scheduled time, so what a late client adds is in the figures, and in ``send_lag_s`` beside them. A driver
that can't keep up does not measure the service: look at :class:`ClientHealth` first.
"""

import asyncio
import math
import os
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import aiohttp
import msgspec
import numpy as np

from cluster.run_table import RunRecorder, RunTable
from cluster.traffic import Arrival, PlannedRequest, Traffic
from loadtests.answer_stream import AnswerStream
from loadtests.prompts import PromptTokens
from loadtests.streams import Floats
from policies.decisions import Reason
from routing.effects import Outcome, OutcomeKind

START_DELAY_S = 0.2
"""From the driver's start to the plan's time 0: the first requests are ready when they are due."""
HEADERS = {"Accept-Encoding": "identity", "Content-Type": "application/json"}
GATEWAY_HEADER = "x-spillway-gateway"
COMPLETED = Outcome(kind=OutcomeKind.COMPLETED)
GAVE_UP = Outcome(kind=OutcomeKind.CANCELLED, reason=Reason.CLIENT_GONE)

_REASONS = {reason.value: reason for reason in Reason}
_REASONS_OF_STATUS = {
    429: Reason.ADMISSION_REJECTED,
    499: Reason.CLIENT_GONE,
    503: Reason.NO_REPLICA_AVAILABLE,
    504: Reason.DEADLINE_EXCEEDED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where requests go.

    Args:
        base_url: Such as ``http://127.0.0.1:8000``.
        model: The model's name there.
        asks_token_ids: Whether events are to carry token ids (``return_token_ids``, in spillway and vLLM), so that a
            token counts even while its text is held back in the middle of a character.
    """

    base_url: str
    model: str
    asks_token_ids: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientHealth:
    """Whether the client was fast enough to measure anything.

    Args:
        sent: Requests sent.
        send_lag_p99_s: From when a request was due to when it was sent, 99th percentile.
        cpu_fraction: CPU time of the client's process / the run's time.
        achieved_fraction: Rate of sending / rate in the plan, over the time in which arrivals were due.
        wrong_lengths: Answers that had another number of tokens than planned, by their usage or by what was streamed.
        cached_tokens: Prompt tokens that servers found in prefix caches, as their usage says.
        errors: How often each error was seen: HTTP status and message.
    """

    sent: int
    send_lag_p99_s: float
    cpu_fraction: float
    achieved_fraction: float
    wrong_lengths: int
    cached_tokens: int
    errors: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRun:
    """What a run over HTTP leaves: the table that every host leaves, and how the client fared."""

    table: RunTable
    health: ClientHealth


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

    In the table, ``attempts`` is 1 for whatever was sent, because HTTP does not tell, ``computed_prompt_tokens`` is not
    known, and ``replicas`` is empty.

    Args:
        endpoint: Where to.
        traffic: The clients.
        prompts: Makes the prompts.
        traffic_classes: Names of the traffic classes.
        on_progress: Called with the run's time whenever a request has ended.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        traffic: Traffic,
        prompts: PromptTokens,
        traffic_classes: tuple[str, ...],
        *,
        on_progress: Callable[[float], None] | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._traffic = traffic
        self._prompts = prompts
        self._recorder = RunRecorder(traffic_classes)
        self._on_progress = on_progress or _ignore
        self._url = f"{endpoint.base_url}/v1/completions"
        self._tasks: set[asyncio.Task[None]] = set()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._over = asyncio.Event()
        self._failure: BaseException | None = None
        self._started_s = self._ended_s = 0.0
        self._cpu_s = 0.0
        self._due_s, self._lag_s = array("d"), array("d")
        self._wrong_lengths = self._cached_tokens = 0
        self._errors: Counter[str] = Counter()
        self._gateways: dict[str, int] = {}

    async def run(self, until_s: float = math.inf) -> None:
        """Runs all traffic to its end, or to ``until_s``.

        Raises:
            Exception: What the traffic itself raises; a request's failure is a row and no exception.
        """
        self._loop = asyncio.get_running_loop()
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=None, sock_read=None)
        cpu_before_s = _cpu_s()
        async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=HEADERS) as self._session:
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
                self._cpu_s = _cpu_s() - cpu_before_s
                await self._stop()
        if self._failure is not None:
            raise self._failure

    def result(self) -> HttpRun:
        """Everything that has ended so far."""
        due_s, lag_s = np.array(self._due_s), np.array(self._lag_s)
        run_s = self._ended_s or self._now_s()
        health = ClientHealth(
            sent=len(lag_s),
            send_lag_p99_s=float(np.quantile(lag_s, 0.99)) if len(lag_s) else 0.0,
            cpu_fraction=self._cpu_s / run_s if run_s > 0 else 0.0,
            achieved_fraction=_achieved_fraction(due_s, lag_s),
            wrong_lengths=self._wrong_lengths,
            cached_tokens=self._cached_tokens,
            errors=dict(self._errors),
        )
        return HttpRun(table=self._recorder.table(()), health=health)

    # -- what is sent when --------------------------------------------------------------------------------------------

    def _now_s(self) -> float:
        return self._loop.time() - self._started_s

    def _expect_next(self, arrivals: Iterator[Arrival]) -> None:
        """Only the next arrival of the plan waits, ready to be sent; plans may be endless."""
        arrival = next(arrivals, None)
        if arrival is not None:
            self._expect(arrival, lambda: self._expect_next(arrivals))

    def _expect(self, arrival: Arrival, then: Callable[[], None] | None = None) -> None:
        body = self._body(arrival.request)
        name = arrival.request.request_id
        self._timers[name] = self._loop.call_at(self._started_s + arrival.at_s, self._begin, arrival, body, then)

    def _begin(self, arrival: Arrival, body: bytes, then: Callable[[], None] | None) -> None:
        del self._timers[arrival.request.request_id]
        task = self._loop.create_task(self._send(arrival, body))
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)
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
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        left = tuple(self._tasks)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    # -- one request --------------------------------------------------------------------------------------------------

    def _body(self, request: PlannedRequest) -> bytes:
        body = {
            "model": self._endpoint.model,
            "prompt": self._prompts.of(request),
            "max_tokens": request.output_tokens,
            "temperature": 0.0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return msgspec.json.encode(body | {"return_token_ids": True} if self._endpoint.asks_token_ids else body)

    async def _send(self, arrival: Arrival, body: bytes) -> None:
        sent_s = self._now_s()
        self._due_s.append(arrival.at_s)
        self._lag_s.append(sent_s - arrival.at_s)
        answer, gateway = AnswerStream(), [-1]
        try:
            async with asyncio.timeout_at(self._started_s + arrival.at_s + arrival.request.timeout_s):
                outcome = await self._outcome_of(arrival.request, body, answer, gateway)
        except TimeoutError:
            outcome = GAVE_UP
        except (aiohttp.ClientError, OSError, ValueError) as error:
            outcome = self._broken(answer, error)
        self._record(arrival.request, sent_s, answer, outcome, gateway[-1])

    async def _outcome_of(
        self, request: PlannedRequest, body: bytes, answer: AnswerStream, gateway: list[int]
    ) -> Outcome:
        """How it ends; the number of the gateway that answers is appended as soon as it is known."""
        headers = {"x-session-id": request.session_id} if request.session_id else None
        async with self._session.post(self._url, data=body, headers=headers) as response:
            if name := response.headers.get(GATEWAY_HEADER):
                gateway.append(self._gateways.setdefault(name, len(self._gateways)))
            if response.status != 200:
                return self._refusal(response, await response.read())
            async for data in response.content.iter_any():
                answer.feed(data, self._now_s())
                if answer.is_done:
                    return COMPLETED
        kind = OutcomeKind.FAILED if answer.events else OutcomeKind.REFUSED
        if answer.error is None:
            self._errors["a stream ended without [DONE]"] += 1
            return Outcome(kind=kind, reason=Reason.ENGINE_ERROR)
        self._errors[f"error event: {answer.error.get('message')}"] += 1
        return Outcome(kind=kind, reason=_REASONS.get(str(answer.error.get("code")), Reason.ENGINE_ERROR))

    def _refusal(self, response: aiohttp.ClientResponse, body: bytes) -> Outcome:
        code = _error_code(body)
        self._errors[f"HTTP {response.status} {code}".strip()] += 1
        reason = _REASONS.get(code) or _REASONS_OF_STATUS.get(response.status)
        if reason is None:
            reason = Reason.INVALID_REQUEST if response.status < 500 else Reason.ENGINE_ERROR
        may_retry = response.headers.get("x-should-retry") != "false"
        wait_s = _retry_after_s(response)
        return Outcome(kind=OutcomeKind.REFUSED, reason=reason, retry_after_s=wait_s, may_retry=may_retry)

    def _broken(self, answer: AnswerStream, error: Exception) -> Outcome:
        self._errors[type(error).__name__] += 1
        kind = OutcomeKind.FAILED if answer.events else OutcomeKind.REFUSED
        if isinstance(error, ValueError):  # something came that is no answer
            return Outcome(kind=kind, reason=Reason.ENGINE_ERROR)
        return Outcome(kind=kind, reason=Reason.REPLICA_LOST if answer.events else Reason.NO_REPLICA_AVAILABLE)

    def _record(
        self, request: PlannedRequest, sent_s: float, answer: AnswerStream, outcome: Outcome, gateway: int
    ) -> None:
        ended_s = self._now_s()
        following = self._traffic.on_end(request, outcome, ended_s)
        for arrival in following:
            self._expect(arrival)
        has_completed = outcome is COMPLETED
        self._wrong_lengths += has_completed and not answer.has_length(request.output_tokens)
        self._cached_tokens += answer.cached_tokens
        self._recorder.add(
            request,
            sent_s=sent_s,
            first_token_s=answer.first_s,
            end_s=answer.last_s if has_completed and answer.events else ended_s,
            output_tokens=answer.output_tokens or answer.events,
            outcome=outcome,
            num_attempts=1,
            is_last=all(arrival.request.intent != request.intent for arrival in following),
            cached_tokens=answer.cached_tokens if has_completed else 0,
            gateway=gateway,
        )
        self._on_progress(ended_s)


def _error_code(body: bytes) -> str:
    try:
        return str(msgspec.json.decode(body)["error"]["code"])
    except (msgspec.MsgspecError, LookupError, TypeError):
        return ""


def _retry_after_s(response: aiohttp.ClientResponse) -> float:
    try:
        return max(0.0, float(response.headers.get("retry-after", "0")))
    except ValueError:  # a date; nobody here sends one
        return 0.0


def _achieved_fraction(due_s: Floats, lag_s: Floats) -> float:
    """How much of the plan's rate the client kept up with; 1 when sends took no longer than their plan."""
    if len(due_s) < 2:
        return 1.0
    planned_s = float(due_s.max() - due_s.min())
    took_s = float((due_s + lag_s).max() - (due_s + lag_s).min())
    return min(1.0, planned_s / took_s) if took_s > 0 else 1.0


def _cpu_s() -> float:
    times = os.times()
    return times.user + times.system


def _ignore(now_s: float) -> None:
    """Nobody watches the run."""
