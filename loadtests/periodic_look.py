"""Looks at something again and again, beside what else a program does."""

import threading
from collections.abc import Callable


class PeriodicLook:
    """A thread that looks every so often, until it is stopped or has seen enough.

    Args:
        look: What is done; whether to go on.
        every_s: Between two looks.
        first_after_s: Before the first one.
    """

    def __init__(self, look: Callable[[], bool], every_s: float, first_after_s: float = 0.0) -> None:
        self._look = look
        self._every_s = every_s
        self._first_after_s = first_after_s
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._go_on, daemon=True)

    def start(self) -> None:
        """Begins."""
        self._thread.start()

    def stop(self) -> None:
        """Looks no more; returns when the look that is under way has ended."""
        self._is_over.set()
        self._thread.join()

    def _go_on(self) -> None:
        wait_s = self._first_after_s
        while not self._is_over.wait(wait_s) and self._look():
            wait_s = self._every_s
