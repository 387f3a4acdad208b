"""The open loop inside a locust user: a greenlet for each request, sent when the plan says, however the others fare.

The clock starts at the scheduled time. ``readline`` reads an event as soon as it is there; locust's own ``iter_lines``
waits for blocks of 1,024 bytes, and ``response_time`` of a stream ends at its headers, so neither is used.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import gevent
from gevent.pool import Group
from locust.contrib.fasthttp import FAILURE_EXCEPTIONS, FastHttpSession

from cluster.clock import MonotonicClock
from cluster.sim.traffic import Arrival, PlannedRequest, Traffic
from loadtests.drivers.answer_stream import AnswerStream
from loadtests.drivers.client_log import ClientLog
from loadtests.drivers.completions import GAVE_UP, HEADERS, NO_HEAD, Endpoint, Head, head_of
from loadtests.drivers.endings import Ending, broken_off, ending_of, refusal
from loadtests.drivers.prompts import PromptTokens
from loadtests.results.client_health import own_cpu_s


class EndedTry(NamedTuple):
    """One request that has ended; times are on the run's clock, in seconds."""

    arrival: Arrival
    sent_s: float
    ended_s: float
    answer: AnswerStream
    ending: Ending
    head: Head
    num_bytes: int


class OpenLoop:
    """Sends one worker's share of a plan.

    Args:
        endpoint: Where to.
        client: The user's session; its concurrency has to be ``max_in_flight`` at least.
        traffic: The clients.
        prompts: Makes the prompts.
        log: Where everything is noted down.
        on_end: Told of each request that has ended.
        max_in_flight: What is due while so many are in flight is counted as dropped and never sent.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        client: FastHttpSession,
        traffic: Traffic,
        prompts: PromptTokens,
        *,
        log: ClientLog,
        on_end: Callable[[EndedTry], None],
        max_in_flight: int,
    ) -> None:
        self._endpoint = endpoint
        self._client = client
        self._traffic = traffic
        self._prompts = prompts
        self._log = log
        self._on_end = on_end
        self._max_in_flight = max_in_flight
        self._clock = MonotonicClock()
        self._greenlets = Group()
        self._num_in_flight = 0
        self._failure: BaseException | None = None
        self._began_s = 0.0
        self._cpu_before_s = own_cpu_s()
        self.num_unanswered = 0

    def run(self, begins_in_s: float, until_s: float) -> None:
        """Sends everything and waits for its end, or for ``until_s`` on the run's clock.

        Args:
            begins_in_s: From now to the run's time 0.
            until_s: A hard end; what is unanswered then has no row.

        Raises:
            Exception: What the traffic itself raises; a request's failure is a row and no exception.
        """
        self._began_s = self._clock.now_s() + begins_in_s
        self._cpu_before_s = own_cpu_s()
        try:
            with gevent.Timeout(max(0.0, until_s + begins_in_s), False):
                self._send_all(self._traffic.arrivals())
                self._greenlets.join()
        finally:
            self.num_unanswered = len(self._greenlets)
            self._greenlets.kill()
            self.note_cpu()
        if self._failure is not None:
            raise self._failure

    def note_cpu(self) -> None:
        """Brings the log's CPU fraction up to date."""
        run_s = self.now_s()
        self._log.cpu_fraction = (own_cpu_s() - self._cpu_before_s) / run_s if run_s > 0 else 0.0

    def now_s(self) -> float:
        """Time on the run's clock."""
        return self._clock.now_s() - self._began_s

    def _send_all(self, arrivals: Iterator[Arrival]) -> None:
        for arrival in arrivals:
            body = self._endpoint.body(arrival.request, self._prompts)
            self._wait_until(arrival.at_s)
            if self._has_room():
                self._spawn(self._send, arrival, body)

    def _send_later(self, arrival: Arrival) -> None:
        body = self._endpoint.body(arrival.request, self._prompts)
        self._wait_until(arrival.at_s)
        if self._has_room():
            self._send(arrival, body)

    def _spawn(self, call: Callable[..., None], *arguments: object) -> None:
        self._greenlets.spawn(call, *arguments).link_exception(self._fail)

    def _fail(self, greenlet: gevent.Greenlet) -> None:
        """Traffic that raises ends the run; an exception in a greenlet would be printed and forgotten."""
        self._failure = self._failure or greenlet.exception
        self._greenlets.kill(block=False)

    def _wait_until(self, at_s: float) -> None:
        gevent.sleep(max(0.0, at_s - self.now_s()))

    def _has_room(self) -> bool:
        if self._num_in_flight < self._max_in_flight:
            self._num_in_flight += 1
            return True
        self._log.add_dropped()
        return False

    def _send(self, arrival: Arrival, body: bytes) -> None:
        sent_s = self.now_s()
        self._log.add_sent(arrival.at_s, sent_s)
        reader = _Reader(self.now_s)
        patience = gevent.Timeout(max(0.0, arrival.at_s + arrival.request.timeout_s - sent_s))
        try:
            with patience:
                ending = reader.read(self._post(arrival.request, body))
        except gevent.Timeout as timeout:
            if timeout is not patience:
                raise
            ending = Ending(outcome=GAVE_UP)
        except (*FAILURE_EXCEPTIONS, OSError, ValueError) as error:
            ending = broken_off(error)
        finally:
            self._num_in_flight -= 1
        self._note(EndedTry(arrival, sent_s, self.now_s(), reader.answer, ending, reader.head, reader.num_bytes))

    def _post(self, request: PlannedRequest, body: bytes) -> Any:
        """Never entered as a context manager, so locust fires no event of its own for it."""
        headers = {**HEADERS, **self._endpoint.headers(request)}
        return self._client.post(self._endpoint.url, data=body, headers=headers, stream=True, catch_response=True)

    def _note(self, ended: EndedTry) -> None:
        request = ended.arrival.request
        following = self._traffic.on_end(request, ended.ending.outcome, ended.ended_s)
        for arrival in following:
            self._spawn(self._send_later, arrival)
        self._log.add_ended(
            request,
            ended.answer,
            ended.ending,
            sent_s=ended.sent_s,
            ended_s=ended.ended_s,
            is_last=all(arrival.request.logical_request != request.logical_request for arrival in following),
            head=ended.head,
        )
        self._on_end(ended)


class _Reader:
    """Reads one response, line by line as lines come."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self.answer = AnswerStream()
        self.head = NO_HEAD
        self.num_bytes = 0

    def read(self, response: Any) -> Ending:
        """How it ends.

        Raises:
            Exception: The connection failed, or what came is no answer.
        """
        if not response.status_code:
            raise response.error
        self.head = head_of(response.headers.get)
        if response.status_code != 200:
            return refusal(response.status_code, response.headers.get, response.content or b"")
        stream = response.stream
        while not self.answer.is_over and (line := stream.readline(b"\n")):
            self.num_bytes += len(line)
            self.answer.feed(line, self._now_s())
        return ending_of(self.answer)
