"""One run from this process, from its plan to what the client and the deployment saw of it."""

import asyncio
import gc
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from loadtests.drivers.completions import Endpoint
from loadtests.drivers.http_driver import START_DELAY_S, HttpDriver
from loadtests.drivers.live_run import INTERRUPTED, MAX_IN_FLIGHT, LivePlan, LiveResult, unanswered
from loadtests.drivers.prompts import PromptsAlone
from loadtests.results.run_folder import ASYNCIO
from loadtests.watch.deployment_watch import DeploymentWatch


class OneProcess:
    """A run over HTTP on asyncio, with a watch of the deployment's metrics beside it.

    Args:
        plan: What is sent.
        endpoint: Where to.
        max_in_flight: What is due while so many are in flight is dropped.
        on_progress: Called with the run's time, at most its duration, and the number of requests that have ended.
    """

    def __init__(
        self,
        plan: LivePlan,
        endpoint: Endpoint,
        *,
        max_in_flight: float = MAX_IN_FLIGHT,
        on_progress: Callable[[float, int], None] = lambda _at_s, _ended: None,
    ) -> None:
        self._plan = plan
        self._endpoint = endpoint
        self._clients = plan.clients()
        self._on_progress = on_progress
        self._num_ended = 0
        self._driver = HttpDriver(
            endpoint,
            PromptsAlone(self._clients),
            plan.prompts(),
            plan.scenario.workload.class_names,
            on_progress=self._advance,
            max_in_flight=max_in_flight,
        )

    def run(self) -> LiveResult:
        """Runs it to its end, or to Ctrl-C, of which the result says that it has come."""
        started_at = datetime.now(UTC) + timedelta(seconds=START_DELAY_S)
        was_interrupted = False
        gc.collect()
        gc.freeze()  # going through all that is imported takes longer than a request may be late

        def now_s() -> float:
            return (datetime.now(UTC) - started_at).total_seconds()

        with DeploymentWatch(self._endpoint.base_url, now_s) as watch:
            try:
                asyncio.run(self._driver.run(self._plan.until_s))
            except KeyboardInterrupt:
                was_interrupted = True
        gc.unfreeze()
        result = self._driver.result()
        return LiveResult(
            driver=ASYNCIO,
            target=self._endpoint.base_url,
            started_at=started_at.isoformat(timespec="milliseconds"),
            table=result.table,
            details=result.details,
            health=result.health,
            abandoned=self._clients.abandoned,
            problems=[INTERRUPTED] if was_interrupted else unanswered(result.num_unanswered, self._plan),
            packages=("aiohttp", "numpy"),
            moments=watch.moments,
            notes=watch.notes(),
        )

    def _advance(self, now_s: float) -> None:
        self._num_ended += 1
        self._on_progress(min(now_s, self._plan.scenario.duration_s), self._num_ended)
