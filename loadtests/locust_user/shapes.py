"""The shape of a locust test that follows a plan: one user in each worker, until the plan is over.

Users are no load here: the one in each worker sends its share of the plan, open loop. Locust's own ``--users`` and
``--spawn-rate`` would change nothing, and locust says so.
"""

from collections.abc import Callable

from locust import LoadTestShape


class PlanShape(LoadTestShape):
    """One user for each worker; the test ends when the plan does.

    Attributes:
        is_over: Asked once a second whether nothing more will come.
    """

    def __init__(self) -> None:
        super().__init__()
        self.is_over: Callable[[], bool] = never
        self._num_users = 0

    def reset_time(self) -> None:
        """A test starts."""
        super().reset_time()
        self._num_users = self.runner.worker_count

    def tick(self) -> tuple[int, float] | None:
        """How many users there are to be, and how many are started in a second; ``None`` ends the test."""
        return None if self.is_over() else (self._num_users, self._num_users)


def never() -> bool:
    """Of a test that has not begun."""
    return False
