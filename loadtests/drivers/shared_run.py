"""One run that several processes drive together: who sends what, and how what they measured comes together.

The process that has the run's order splits the plan over the workers, who send it, and judges what they report. All of
it is data, so that it does not matter whether they are threads of one process or machines.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import msgspec

from loadtests.drivers.client_log import ClientLog
from loadtests.drivers.completions import Endpoint, authorization
from loadtests.drivers.live_run import INTERRUPTED, LivePlan, LiveResult, judged, plan_of, unanswered
from loadtests.drivers.plan_parts import Share
from loadtests.results.run_folder import SavedRun
from loadtests.results.run_record import Moment


class RunOrder(msgspec.Struct, frozen=True, kw_only=True):
    """All that a worker has to know to send its share.

    Args:
        run_id: Tells this run's reports from another's, and salts its prompts.
        scenario: A name in the library, or a file that every worker has.
        seed: Of the plan.
        rate_fraction: Share of the scenario's logical requests that are sent.
        duration_s: Instead of the scenario's own.
        classes: Names of the traffic classes that are sent; empty: all.
        base_url: Where to.
        model: The model's name there.
        asks_token_ids: Whether events are to carry token ids.
        max_in_flight: What is due beyond that is dropped, in each worker.
        begins_at: The run's time 0 as a POSIX timestamp, so that clocks of several machines have to agree.
        index: This worker's number.
        num_workers: How many share the plan.
    """

    run_id: str
    scenario: str
    seed: int
    rate_fraction: float
    duration_s: float | None
    classes: tuple[str, ...]
    base_url: str
    model: str
    asks_token_ids: bool
    max_in_flight: int
    begins_at: float
    index: int = 0
    num_workers: int = 1

    def plan(self) -> LivePlan:
        """What is to be sent by all together.

        Raises:
            ConfigError: There is no such scenario, or it can't be run so.
        """
        return plan_of(
            self.scenario,
            seed=self.seed,
            rate_fraction=self.rate_fraction,
            salt=self.run_id,
            duration_s=self.duration_s,
            classes=self.classes,
        )

    @property
    def share(self) -> Share:
        """What of it this worker sends."""
        return Share(self.index, self.num_workers)

    @property
    def endpoint(self) -> Endpoint:
        """Where to; the key, where there is one, is in the environment of each worker."""
        return Endpoint(
            base_url=self.base_url,
            model=self.model,
            asks_token_ids=self.asks_token_ids,
            asks_latency_budget=True,
            authorization=authorization(),
        )

    def for_worker(self, index: int, num_workers: int) -> "RunOrder":
        """The order as one of the workers gets it."""
        return msgspec.structs.replace(self, index=index, num_workers=num_workers)


class WorkerReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker has measured since its last report.

    Args:
        run_id: Of which run.
        taken: What its log had; see :meth:`loadtests.drivers.client_log.ClientLog.take`.
        is_over: Whether its share is sent and answered, so that this is its last report.
        num_unanswered: Requests that had no answer at the hard end.
        failure: Why the share could not be sent to its end; empty where it could.
    """

    run_id: str
    taken: bytes
    is_over: bool
    num_unanswered: int = 0
    failure: str = ""


class SharedRun:
    """A run as the process sees it that has its order.

    Args:
        order: The order, as none of the workers gets it.
        workers: Ids of the workers, in the order of their shares.

    Raises:
        ConfigError: There is no such scenario, or it can't be run so.
    """

    def __init__(self, order: RunOrder, workers: Sequence[str]) -> None:
        self.order = order
        self.plan = order.plan()
        self.log = ClientLog(self.plan.scenario.workload.class_names)
        self.workers = tuple(workers)
        self._over: set[str] = set()
        self._num_unanswered = 0
        self._failures: list[str] = []

    def orders(self) -> dict[str, RunOrder]:
        """What each worker is told, by its id."""
        return {worker: self.order.for_worker(index, len(self.workers)) for index, worker in enumerate(self.workers)}

    def absorb(self, worker: str, report: WorkerReport) -> None:
        """Takes a report in; one of another run is left alone."""
        if report.run_id != self.order.run_id or worker not in self.workers:
            return
        self.log.absorb(report.taken)
        if report.is_over:
            self._over.add(worker)
            self._num_unanswered += report.num_unanswered
            self._failures += [f"a worker failed: {report.failure}"] if report.failure else []

    def is_over(self, is_there: Callable[[str], bool]) -> bool:
        """Whether nothing more will come.

        Args:
            is_there: Whether a worker still is; one that is gone will not report any more.
        """
        return all(worker in self._over or not is_there(worker) for worker in self.workers)

    def judged(
        self,
        driver: str,
        packages: Sequence[str],
        lost: Sequence[str] = (),
        moments: Sequence[Moment] = (),
        *,
        notes: Sequence[str] = (),
    ) -> SavedRun:
        """What the run came to.

        Args:
            driver: One of ``run_folder.DRIVERS``.
            packages: Names of the packages whose versions matter.
            lost: Ids of workers that are gone.
            moments: What the deployment said of itself meanwhile.
            notes: What a reader has to know of them, a sentence each.
        """
        measured = LiveResult(
            driver=driver,
            target=self.order.base_url,
            started_at=datetime.fromtimestamp(self.order.begins_at, UTC).isoformat(timespec="milliseconds"),
            table=self.log.table(),
            details=self.log.details(),
            health=self.log.health(),
            abandoned=self.log.abandoned,
            problems=self._problems(lost),
            packages=packages,
            moments=moments,
            notes=notes,
        )
        return judged(self.plan, measured)

    def _problems(self, lost: Sequence[str]) -> list[str]:
        missing = [worker for worker in self.workers if worker not in self._over]
        gone = [worker for worker in missing if worker in lost]
        problems = (
            [f"{len(gone)} of {len(self.workers)} workers were lost, with their shares of the plan"] if gone else []
        )
        if len(missing) > len(gone):
            problems.append(INTERRUPTED)
        return [*problems, *self._failures, *unanswered(self._num_unanswered, self.plan)]
