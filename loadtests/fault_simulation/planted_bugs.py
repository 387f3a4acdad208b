"""Bugs that are put in on purpose: whether the invariants would find them is known only when they have."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

from cluster.sim.gateway import SimGateway
from routing.attempts.open_attempts import InFlight
from routing.dispatcher import Dispatcher
from routing.request.effects import CancelTimer, Effect
from routing.request.request import Attempt, Request
from routing.request.states import AttemptState


@contextmanager
def slot_leaked_on_cancel() -> Iterator[None]:
    """An attempt that was cancelled keeps its slot."""
    close = InFlight.close

    def leak(self: InFlight, request: Request, attempt: Attempt) -> None:
        if attempt.state is not AttemptState.CANCELLING:
            close(self, request, attempt)
            return
        with patch.object(self._fleet, "give_back", lambda _: None):
            close(self, request, attempt)

    with patch.object(InFlight, "close", leak):
        yield


@contextmanager
def token_doubled_on_resume() -> Iterator[None]:
    """An answer goes on one token before where it was cut."""
    keep = SimGateway._keep

    def double(self: SimGateway, attempt_id: str, *given: Any, **named: Any) -> int:
        output_tokens = keep(self, attempt_id, *given, **named)
        opened = self._requests.get(attempt_id.rpartition(".")[0])
        if opened is not None and output_tokens:
            opened.num_emitted -= 1
        return output_tokens

    with patch.object(SimGateway, "_keep", double):
        yield


@contextmanager
def timer_lost_on_reload() -> Iterator[None]:
    """Requests that are under way when policies change have no deadline any more."""
    reconfigure = Dispatcher._on_reconfigured

    def lose(self: Dispatcher, event: Any, now_s: float) -> Sequence[Effect]:
        effects = reconfigure(self, event, now_s)
        return [*effects, *(CancelTimer(token=each.deadline_token) for each in self._requests.values())]

    with patch.object(Dispatcher, "_on_reconfigured", lose):
        yield


PLANTED: Mapping[str, Callable[[], AbstractContextManager[None]]] = {
    each.__name__: each for each in (slot_leaked_on_cancel, token_doubled_on_resume, timer_lost_on_reload)
}
"""By name."""
