"""Drives an engine model in real time, on the event loop's timers.

Model time follows the plan and not the wake-ups: a timer that fires late on a busy machine finds several steps due and
takes them all, each at its own time. So a busy machine makes chunks bigger and answers no later than they are due.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable

from engines.model.engine_model import EngineModel, Messages
from engines.model.messages import Finished, FirstToken, Message


class PacedModel:
    """An engine model on a clock.

    Args:
        model: The model; it takes every step by itself.
        speed: Model seconds in a real second, above 0.
        on_message: Called with each message that the model tells by itself: tokens when they leave the engine, and
            anything else right away.
        on_steps: Called after steps have left the engine.
        now_s: A monotonic clock in seconds; the event loop's unless given.
    """

    def __init__(
        self,
        model: EngineModel,
        speed: float,
        on_message: Callable[[Message], None],
        on_steps: Callable[[], None],
        now_s: Callable[[], float] | None = None,
    ) -> None:
        self._model = model
        self._speed = speed
        self._on_message = on_message
        self._on_steps = on_steps
        self._loop = asyncio.get_running_loop()
        self._read_clock = now_s or self._loop.time
        self._origin_s = self._read_clock()
        self._leaving: deque[tuple[float, list[FirstToken | Finished], int]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_s = math.inf
        self._is_stopped = False

    @property
    def num_tokens_leaving(self) -> int:
        """Tokens of a sequence that decodes that have not left the engine yet, though their steps have ended."""
        return sum(tokens for _, _, tokens in self._leaving)

    @property
    def now_s(self) -> float:
        """The model's time."""
        return (self._read_clock() - self._origin_s) * self._speed

    def tell(self, message: Message) -> Messages:
        """Tells the model something, after all that is due; returns its answers."""
        answers = self._model.handle(message, self.catch_up())
        self._arm()
        return answers

    def catch_up(self) -> float:
        """Lets everything happen that is due; returns the model's time."""
        now_s = self.now_s
        has_left = False
        while not self._is_stopped and self._next_s() <= now_s:
            if self._leaving and self._leaving[0][0] <= self._model.next_event_s:
                has_left = True
                for message in self._leaving.popleft()[1]:
                    self._on_message(message)
            else:
                self._step()
        if has_left:
            self._on_steps()
        return now_s

    def stop(self) -> None:
        """Nothing happens any more."""
        self._is_stopped = True
        self._leaving.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self) -> None:
        """Has :meth:`catch_up` called when the next thing is due."""
        next_s = self._next_s()
        if self._is_stopped or next_s == self._timer_at_s:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_at_s = next_s
        if next_s < math.inf:
            delay_s = self._origin_s + next_s / self._speed - self._read_clock()
            self._timer = self._loop.call_later(max(0.0, delay_s), self._wake_up)

    def _wake_up(self) -> None:
        self._timer = None
        self._timer_at_s = math.inf
        self.catch_up()
        self._arm()

    def _next_s(self) -> float:
        next_s = self._model.next_event_s
        return min(next_s, self._leaving[0][0]) if self._leaving else next_s

    def _step(self) -> None:
        """Goes on to the model's next event; tokens of a step that ends there leave a little later."""
        model = self._model
        steps, at_s = model.steps, model.next_event_s
        num_steps, num_sequences, num_tokens = steps.num_steps, len(steps.batch.running), steps.batch.next_tokens
        left: list[FirstToken | Finished] = []
        for message in model.advance(at_s):
            if isinstance(message, FirstToken | Finished):
                left.append(message)
            else:
                self._on_message(message)
        if steps.num_steps > num_steps:
            leave_s = left[0].at_s if left else at_s + steps.spec.token_overhead_s * num_sequences
            last_s = self._leaving[-1][0] if self._leaving else 0.0
            self._leaving.append((max(leave_s, last_s), left, num_tokens))
