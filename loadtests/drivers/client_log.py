"""What the clients of a run note down, try by try, on whatever event loop; and as bytes, between processes."""

from array import array
from collections import Counter

import msgspec
import numpy as np

from cluster.sim.run_table import ROW_TYPE, UNKNOWN, RunRecorder, RunTable
from cluster.sim.traffic import PlannedRequest
from loadtests.drivers.answer_stream import AnswerStream
from loadtests.drivers.completions import NO_HEAD, Head
from loadtests.drivers.endings import COMPLETED, Ending, printable
from loadtests.results.client_health import ClientHealth
from loadtests.results.run_record import RequestDetails
from loadtests.workloads.clients import AbandonedRequest
from loadtests.workloads.streams import Floats


class _Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """What one process has noted down since it last told; rows as in ``ROW_TYPE``, times as native doubles."""

    rows: bytes
    details: list[RequestDetails]
    due_s: bytes
    lag_s: bytes
    wrong_lengths: int
    cached_tokens: int
    errors: dict[str, int]
    client_dropped: int
    gateways: list[str]
    abandoned: list[AbandonedRequest]
    cpu_fraction: float


class ClientLog:
    """Notes of one run.

    Args:
        traffic_classes: Names of the traffic classes.

    Attributes:
        abandoned: Turns of sessions that were never sent.
        cpu_fraction: CPU time / the run's time, of the busiest process.
        client_dropped: Requests that were due and never sent.
    """

    def __init__(self, traffic_classes: tuple[str, ...]) -> None:
        self.traffic_classes = traffic_classes
        self.abandoned: list[AbandonedRequest] = []
        self.cpu_fraction = 0.0
        self._gateways: dict[str, int] = {}
        self._begin()

    def _begin(self) -> None:
        self._recorder = RunRecorder(self.traffic_classes)
        self._details: list[RequestDetails] = []
        self._due_s, self._lag_s = array("d"), array("d")
        self._wrong_lengths = self._cached_tokens = self.client_dropped = 0
        self._errors: Counter[str] = Counter()

    def add_sent(self, due_s: float, sent_s: float) -> None:
        """A request was sent; both times are on the run's clock."""
        self._due_s.append(due_s)
        self._lag_s.append(sent_s - due_s)

    def add_dropped(self) -> None:
        """A request was due and is not sent."""
        self.client_dropped += 1

    def add_ended(
        self,
        request: PlannedRequest,
        answer: AnswerStream,
        ending: Ending,
        *,
        sent_s: float,
        ended_s: float,
        is_last: bool,
        head: Head = NO_HEAD,
    ) -> None:
        """A request has ended.

        Args:
            request: What was sent.
            answer: What came.
            ending: How it ended.
            sent_s: When it was sent.
            ended_s: When it ended.
            is_last: Whether no other try of the logical request follows.
            head: What the response's head said.
        """
        has_completed = ending.outcome is COMPLETED
        self._count(request, answer, ending, head)
        told = head if answer.attempts is None else answer
        self._recorder.add(
            request,
            sent_s=sent_s,
            first_token_s=answer.first_s,
            end_s=answer.last_s if has_completed and answer.events else ended_s,
            output_tokens=answer.output_tokens or answer.events,
            outcome=ending.outcome,
            num_attempts=UNKNOWN if told.attempts is None else told.attempts,
            num_hedges=UNKNOWN if told.attempts is None else told.hedges,
            is_last=is_last,
            cached_tokens=answer.cached_tokens if has_completed else 0,
            gateway=self._gateways.setdefault(head.gateway, len(self._gateways)) if head.gateway else -1,
        )
        stages_s = answer.stages_s or head.stages_s
        self._details.append(RequestDetails(lane=head.lane, longest_gap_s=answer.longest_gap_s, stages_s=stages_s))

    def _count(self, request: PlannedRequest, answer: AnswerStream, ending: Ending, head: Head) -> None:
        is_as_asked = head.is_degraded or answer.has_length(request.output_tokens)
        self._wrong_lengths += ending.outcome is COMPLETED and not is_as_asked
        self._cached_tokens += answer.cached_tokens
        if ending.error:
            self._errors[printable(ending.error)] += 1

    def table(self) -> RunTable:
        """Every request that has ended, in order of their ends where one process noted them."""
        return self._recorder.table(())

    def details(self) -> list[RequestDetails]:
        """What else is known of each row of the table, in its order."""
        return list(self._details)

    def health(self) -> ClientHealth:
        """How the client has fared so far."""
        due_s, lag_s = np.array(self._due_s), np.array(self._lag_s)
        return ClientHealth(
            sent=len(lag_s),
            send_lag_p99_s=float(np.quantile(lag_s, 0.99)) if len(lag_s) else 0.0,
            cpu_fraction=self.cpu_fraction,
            achieved_fraction=_achieved_fraction(due_s, lag_s),
            wrong_lengths=self._wrong_lengths,
            cached_tokens=self._cached_tokens,
            errors=dict(self._errors),
            client_dropped=self.client_dropped,
        )

    # -- between processes --------------------------------------------------------------------------------------------

    def take(self) -> bytes:
        """Everything since it was last taken, for :meth:`absorb` in another process; it is no longer in here then."""
        chunk = _Chunk(
            rows=self._recorder.rows(),
            details=self._details,
            due_s=self._due_s.tobytes(),
            lag_s=self._lag_s.tobytes(),
            wrong_lengths=self._wrong_lengths,
            cached_tokens=self._cached_tokens,
            errors=dict(self._errors),
            client_dropped=self.client_dropped,
            gateways=list(self._gateways),
            abandoned=self.abandoned,
            cpu_fraction=self.cpu_fraction,
        )
        taken = msgspec.msgpack.encode(chunk)
        self.abandoned = []
        self._begin()
        return taken

    def absorb(self, taken: bytes) -> None:
        """Adds what another process has noted down."""
        chunk = msgspec.msgpack.decode(taken, type=_Chunk)
        self._recorder.extend(self._with_our_gateways(chunk))
        self._details += chunk.details
        self._due_s.frombytes(chunk.due_s)
        self._lag_s.frombytes(chunk.lag_s)
        self._wrong_lengths += chunk.wrong_lengths
        self._cached_tokens += chunk.cached_tokens
        self._errors.update(chunk.errors)
        self.client_dropped += chunk.client_dropped
        self.abandoned += chunk.abandoned
        self.cpu_fraction = max(self.cpu_fraction, chunk.cpu_fraction)

    def _with_our_gateways(self, chunk: _Chunk) -> bytes:
        """Each process numbers gateways as it meets them; -1, which nobody is, is the last of the array."""
        ours = [self._gateways.setdefault(name, len(self._gateways)) for name in chunk.gateways]
        rows = np.frombuffer(chunk.rows, dtype=ROW_TYPE).copy()
        rows["gateway"] = np.array([*ours, -1], dtype=np.int16)[rows["gateway"]]
        return rows.tobytes()


def _achieved_fraction(due_s: Floats, lag_s: Floats) -> float:
    """How much of the plan's rate the client kept up with; 1 when sends took no longer than their plan."""
    if len(due_s) < 2:
        return 1.0
    planned_s = float(due_s.max() - due_s.min())
    took_s = float((due_s + lag_s).max() - (due_s + lag_s).min())
    return min(1.0, planned_s / took_s) if took_s > 0 else 1.0
