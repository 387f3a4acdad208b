"""What a deployment says of its queues and its shedding while a client drives it."""

import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from types import TracebackType

from loadtests.results.replica_counts import HELD, READY
from loadtests.results.run_record import Moment
from loadtests.watch.gateway_page import MetricsPage
from loadtests.watch.measures import BOUND_SECONDS, binding
from loadtests.watch.periodic_look import PeriodicLook

LOOK_EVERY_S = 1.0
PATIENCE_S = 5.0
NO_SUCH_PAGE = frozenset({404, 405})
"""Statuses of a server that has no metrics, and will not have them later either."""
SUMS = {
    "queue_requests": "spillway_queue_requests",
    "queue_work_s": "spillway_queue_work_seconds",
    "requests_open": "spillway_requests_open",
    "requests_waiting": "spillway_requests_waiting",
}
"""Gauges that are added up over gateways, classes and lines."""
SHED = "spillway_shed_fraction"
UP = "spillway_replicas"
TARGET, DRAINING, WARM = (f"spillway_{each}_replicas" for each in ("target", "draining", "warm"))
"""What every gateway says of a pool whose size may change."""
WANTED = (*SUMS.values(), SHED, UP, TARGET, DRAINING, WARM, BOUND_SECONDS)


def gauges_in(text: str) -> dict[str, float]:
    """What a page of metrics says of queues and shedding; empty where it is no gateway's.

    Only lines that are wanted are read: a page has thousands, and the client that drives the deployment shares its
    core with whoever reads them.
    """
    return _gauges(MetricsPage.parse(text, WANTED))


def _gauges(page: MetricsPage) -> dict[str, float]:
    if not page.samples:
        return {}
    gauges = {name: page.sum(metric) for name, metric in SUMS.items()} | _replicas(page)
    shed = page.by("gateway", SHED)
    return gauges | {"shed_fraction": sum(shed.values()) / len(shed)} if shed else gauges


def _replicas(page: MetricsPage) -> dict[str, float]:
    """How many each pool has, and how many all pools together hold; nothing where nobody says."""
    ready = page.by("pool", UP)
    if not ready:
        return {}
    targets, *others = (_of_any_gateway(page, name) for name in (TARGET, DRAINING, WARM))
    besides = sum(each.get(pool, 0.0) for each in others for pool in ready)
    held = besides + sum(targets.get(pool, number) for pool, number in ready.items())
    return {f"{READY}{pool}": number for pool, number in ready.items()} | {HELD: held}


def _of_any_gateway(page: MetricsPage, name: str) -> dict[str, float]:
    """What gateways say of each pool, of whom one may have heard it later than another."""
    gateways = page.by("gateway", name)
    said = [page.by("pool", name, gateway=each) for each in gateways]
    return {pool: max(each[pool] for each in said if pool in each) for its in said for pool in its}


class DeploymentWatch:
    """Looks every so often, for as long as the block lasts. A deployment that is none of spillway's leaves no moments;
    one that does not answer loses looks, which are counted. Neither is an error.

    Args:
        base_url: Of the deployment.
        now_s: The run's clock.

    Attributes:
        moments: What it said, in order of time.
        first: What it said first, with counters.
        last: What it said last.
    """

    def __init__(self, base_url: str, now_s: Callable[[], float]) -> None:
        self._url = f"{base_url}/metrics"
        self._now_s = now_s
        self._looks = PeriodicLook(self._look, LOOK_EVERY_S)
        self.moments: list[Moment] = []
        self.first = self.last = MetricsPage()

    def start(self) -> None:
        """Begins to look."""
        self._looks.start()

    def stop(self) -> Sequence[Moment]:
        """Looks no more; what was seen."""
        self._looks.stop()
        return self.moments

    @property
    def num_lost(self) -> int:
        """Looks that came to nothing, because nobody answered or not as a gateway does."""
        return self._looks.num_lost

    def notes(self) -> list[str]:
        """What requests lost their time to, and what a reader of the moments has to know."""
        notes = binding(self.first, self.last)
        if not self.num_lost:
            return notes
        return [
            *notes,
            f"looks at the deployment's metrics that were lost: {self.num_lost:,}, first {self._looks.first_error}",
        ]

    def __enter__(self) -> "DeploymentWatch":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _look(self) -> bool:
        """Whether another look makes sense: a server without such metrics will not have them later either.

        Raises:
            Exception: This look is lost.
        """
        at_s = self._now_s()
        try:
            with urllib.request.urlopen(self._url, timeout=PATIENCE_S) as answer:  # noqa: S310 - a base URL of http
                page = MetricsPage.parse(answer.read().decode(), WANTED)
        except urllib.error.HTTPError as error:
            with error:
                if error.code in NO_SUCH_PAGE:
                    return False
                raise
        gauges = _gauges(page)
        if gauges:
            self.first, self.last = self.first if self.moments else page, page
            self.moments.append(Moment(at_s=at_s, gauges=gauges))
        return bool(gauges)
