"""Ends asks of policies that do not return: a gateway does nothing else meanwhile, for any of its requests.

A thread looks at how long an ask has been under way. Python can raise an exception in another thread, as soon as that
runs Python: a loop ends so, and :class:`routing.breakers.breaker.PolicyStuck` is one more thing that a policy has
raised. What waits inside of C (a lock, a regular expression) can't be ended so, and is for
:mod:`deployments.gateway.watches.loop_watch`.
"""

import ctypes
import logging
import sys
import threading
import traceback
from collections.abc import Callable

from routing.breakers.breaker import AskWatch, PolicyStuck

LOGGER = logging.getLogger("ray.serve")
PATIENCE_S = 2.0
LOOKS_PER_PATIENCE = 8
MOST_STEPS_UNTIL_RAISED = 1_000
"""Python looks after what is to be raised at each turn of a loop; one is enough."""


class PolicyWatch(AskWatch):
    """One model's, for asks on one thread at a time.

    An exception must come while the policy runs or not at all. So the watch raises it under a lock, and whoever has
    asked takes the same lock before going on.

    Args:
        now_s: The clock that asks begin by.
        patience_s: How long one may take, and then how long until it is ended once more.
    """

    def __init__(self, now_s: Callable[[], float], patience_s: float = PATIENCE_S) -> None:
        self._now_s = now_s
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._thread_id = 0
        self._begun_s: float | None = None
        self._is_raised = False
        self._is_over = threading.Event()
        self._looks = threading.Thread(target=self._run, name="policy watch", daemon=True)

    def close(self) -> None:
        """No ask is ended any more."""
        self._is_over.set()

    def begin(self, now_s: float) -> None:
        if not self._thread_id:
            self._looks.start()  # only where there is something to look at
        self._thread_id = threading.get_ident()
        self._begun_s = now_s

    def end(self) -> None:
        with self._lock:
            self._begun_s = None
            is_raised, self._is_raised = self._is_raised, False
        if is_raised:
            for _ in range(MOST_STEPS_UNTIL_RAISED):
                pass

    def _run(self) -> None:
        while not self._is_over.wait(self._patience_s / LOOKS_PER_PATIENCE):
            with self._lock:
                if self._begun_s is not None and self._now_s() - self._begun_s > self._patience_s:
                    self._raise_in_it()

    def _raise_in_it(self) -> None:
        """It has another ``patience_s`` then: it may catch everything, or wait inside of C."""
        frame = sys._current_frames().get(self._thread_id)
        where = "".join(traceback.format_stack(frame)[-3:]) if frame is not None else ""
        LOGGER.error("a policy has not answered for %.1f s, and is ended:\n%s", self._patience_s, where)
        self._begun_s, self._is_raised = self._now_s(), True
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread_id), ctypes.py_object(PolicyStuck))
