"""Tells a stalled engine from an idle one."""


class StallDetector:
    """Has the engine had requests for ``stall_after_s`` without making a step?

    An engine can be alive, answer every call and serve nothing: a hung collective, a dead transfer thread. Steps are
    the evidence; chunks are not, because one long prefill gives none for many seconds.

    Args:
        stall_after_s: Seconds without a step, while requests wait, after which it counts as stalled.
    """

    def __init__(self, stall_after_s: float) -> None:
        self._stall_after_s = stall_after_s
        self._num_steps = -1
        self._progress_at_s = 0.0

    def is_stalled(self, num_steps: int, num_requests: int, now_s: float) -> bool:
        """Takes in one look at the engine.

        Args:
            num_steps: Steps the engine has made so far.
            num_requests: Requests that it has taken in and not finished; one that is finished and still being read by
                a slow client is no reason for a step.
            now_s: Now.
        """
        if num_requests == 0 or num_steps != self._num_steps:
            self._num_steps = num_steps
            self._progress_at_s = now_s
            return False
        return now_s - self._progress_at_s >= self._stall_after_s
