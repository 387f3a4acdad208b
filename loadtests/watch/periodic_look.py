"""Looks at something again and again, beside what else a program does."""

import threading
from collections.abc import Callable
from types import TracebackType


class PeriodicLook:
    """A thread that looks every so often, until it is stopped or has seen enough. A look that raises is lost, and the
    next one may be luckier.

    Args:
        look: What is done; whether to go on.
        every_s: Between two looks.
        first_after_s: Before the first one.

    Attributes:
        num_lost: Looks that raised.
        first_error: What the first of them raised, in words; empty without one.
    """

    def __init__(self, look: Callable[[], bool], every_s: float, first_after_s: float = 0.0) -> None:
        self._look = look
        self._every_s = every_s
        self._first_after_s = first_after_s
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._go_on, daemon=True)
        self.num_lost = 0
        self.first_error = ""

    def start(self) -> None:
        """Begins."""
        self._thread.start()

    def stop(self) -> None:
        """Looks no more; returns when the look that is under way has ended."""
        self._is_over.set()
        self._thread.join()

    def __enter__(self) -> "PeriodicLook":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _go_on(self) -> None:
        wait_s = self._first_after_s
        while not self._is_over.wait(wait_s) and self._goes_on():
            wait_s = self._every_s

    def _goes_on(self) -> bool:
        try:
            return self._look()
        except Exception as error:  # the thread would end, and nobody would hear of it
            self.num_lost += 1
            self.first_error = self.first_error or f"{type(error).__name__}: {error}"
            return True
