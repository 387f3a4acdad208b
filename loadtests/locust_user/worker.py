"""One process's share of a run under locust: what its one user sends, what locust is told, what is reported."""

import gc
import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from loadtests.drivers.client_log import ClientLog
from loadtests.drivers.endings import COMPLETED
from loadtests.drivers.prompts import PromptsAlone
from loadtests.drivers.shared_run import RunOrder, WorkerReport
from loadtests.locust_user.gevent_driver import EndedTry, OpenLoop

logger = logging.getLogger(__name__)


class RequestFailed(Exception):
    """A request that was refused, broke off or was given up; locust counts failures by these words."""


class Worker:
    """This process's share of a run: none until there is an order."""

    def __init__(self) -> None:
        self.order: RunOrder | None = None
        self._log = ClientLog(())
        self._loop: OpenLoop | None = None
        self._clients: Any = None
        self._is_over = False
        self._failure = ""

    def take_order(self, order: RunOrder) -> None:
        """Prepares for it, so that nothing has to be read when the first request is due.

        An order that can't be taken, such as one for a file that this machine does not have, is a report.
        """
        self._log, self._loop, self._clients = ClientLog(()), None, None
        self._is_over, self._failure = False, ""
        self.order = order
        with self._reporting("the order could not be taken"):
            self._plan = order.plan()
            self._clients = self._plan.clients(order.share)
            self._log = ClientLog(self._plan.scenario.workload.class_names)
        gc.collect()
        gc.freeze()  # going through all that is imported takes longer than a request may be late

    def run(self, user: Any) -> None:
        """Sends the share through a locust user and waits for its end."""
        order = self.order
        if order is None or self._is_over:
            return
        with self._reporting("the plan could not be sent to its end"):
            self._loop = OpenLoop(
                order.endpoint,
                user.client,
                PromptsAlone(self._clients),
                self._plan.prompts(),
                log=self._log,
                on_end=lambda ended: self._tell_locust(user, ended),
                max_in_flight=order.max_in_flight,
            )
            self._loop.run(order.begins_at - timestamp(), self._plan.until_s)
        self._log.abandoned, self._clients.abandoned = self._clients.abandoned, []
        self._is_over = True

    @contextmanager
    def _reporting(self, what: str) -> Iterator[None]:
        """An exception ends this share, and is for whoever judges the run to tell; locust would only try again."""
        try:
            yield
        except Exception as error:
            logger.exception("%s", what)
            self._failure = f"{what}: {type(error).__name__}: {error}"
            self._is_over = True

    def report(self) -> WorkerReport | None:
        """What there is since the last report; ``None`` without an order."""
        if self.order is None:
            return None
        if self._loop is not None and not self._is_over:
            self._loop.note_cpu()
        report = WorkerReport(
            run_id=self.order.run_id,
            taken=self._log.take(),
            is_over=self._is_over,
            num_unanswered=self._loop.num_unanswered if self._loop is not None else 0,
            failure=self._failure,
        )
        if self._is_over:
            self.order = None
        return report

    def _tell_locust(self, user: Any, ended: EndedTry) -> None:
        outcome, due_s = ended.ending.outcome, ended.arrival.at_s
        has_completed = outcome is COMPLETED
        end_s = ended.answer.last_s if has_completed and ended.answer.events else ended.ended_s
        order = self.order
        assert order is not None
        traffic_class = self._log.traffic_classes[ended.arrival.request.traffic_class]
        user.environment.events.request.fire(
            request_type="POST",
            name=traffic_class,
            response_time=1e3 * (end_s - due_s),
            response_length=ended.num_bytes,
            exception=None if has_completed else RequestFailed(f"{outcome.kind.value}: {outcome.reason or ''}"),
            context={**user.context(), **context_of(ended), "traffic_class": traffic_class},
            start_time=order.begins_at + ended.sent_s,
            url=order.endpoint.url,
            response=None,
        )


def context_of(ended: EndedTry) -> dict[str, Any]:
    """What a request event says beside its name and time; ``None`` where there is nothing to measure."""
    answer, request = ended.answer, ended.arrival.request
    num_tokens = answer.output_tokens or answer.events
    tpot_s = (answer.last_s - answer.first_s) / (num_tokens - 1) if num_tokens > 1 else math.nan
    times_s = {
        "ttft_s": answer.first_s - ended.arrival.at_s,
        "tpot_s": tpot_s,
        "longest_gap_s": answer.longest_gap_s,
        "send_lag_s": ended.sent_s - ended.arrival.at_s,
    }
    return {
        **{name: value if math.isfinite(value) else None for name, value in times_s.items()},
        "prompt_tokens": request.prompt_tokens,
        "output_tokens": num_tokens,
        "cached_tokens": answer.cached_tokens,
        "stages_s": answer.stages_s or ended.head.stages_s,
        "lane": ended.head.lane,
        "outcome": ended.ending.outcome.kind.value,
        "reason": str(ended.ending.outcome.reason or ""),
        "logical_request": request.logical_request,
        "retry_index": request.retry_index,
        "session": request.session,
    }


def timestamp() -> float:
    """Now, as a POSIX timestamp: what clocks of several machines agree on."""
    return datetime.now(UTC).timestamp()
