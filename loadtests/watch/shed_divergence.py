"""Whether gateways give up the same part of what comes to them: what they say, and what came of it."""

import math
from types import TracebackType

import numpy as np

from cluster.sim.run_table import RunTable
from loadtests.results.metrics import Window
from loadtests.results.shedding_metrics import ABANDONED, SHED
from loadtests.watch.gateway_page import read
from loadtests.watch.periodic_look import PeriodicLook

LOOK_EVERY_S = 0.5
RESAMPLES = 2_000
FRACTION = "spillway_shed_fraction"
CONFIDENCE = 0.95


class FractionWatch:
    """Reads what each gateway says that it gives up, every so often, for as long as the block lasts.

    Args:
        base_url: Of the deployment.
        window: When to look, on a clock that starts when the block is entered.

    Attributes:
        by_gateway: What each said, by its name.
    """

    def __init__(self, base_url: str, window: Window) -> None:
        self._base_url = base_url
        self._looks_left = math.ceil(window.length_s / LOOK_EVERY_S)
        self._looks = PeriodicLook(self._look, LOOK_EVERY_S, window.from_s)
        self.by_gateway: dict[str, list[float]] = {}

    def __enter__(self) -> "FractionWatch":
        self._looks.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._looks.stop()

    @property
    def spread(self) -> float:
        """The largest mean of a gateway less the smallest; NaN unless there are two."""
        means = [float(np.mean(said)) for said in self.by_gateway.values()]
        return max(means) - min(means) if len(means) > 1 else math.nan

    @property
    def num_lost(self) -> int:
        """Looks that came to nothing: a machine that is too busy to answer, or a gateway that is gone."""
        return self._looks.num_lost

    def _look(self) -> bool:
        if not self._looks_left:
            return False
        self._looks_left -= 1
        said = read(self._base_url, (FRACTION,)).by("gateway", FRACTION)
        for gateway, fraction in said.items():
            self.by_gateway.setdefault(gateway, []).append(fraction)
        return self._looks_left > 0


def least_spread(table: RunTable, window: Window, seed: int = 0) -> float:
    """The smallest difference between two gateways' shares of shed requests that chance leaves room for.

    Who comes to which gateway is chance, and a conversation's requests share their fate, so conversations are drawn
    anew: a bootstrap (Efron, 1979) over them.

    Args:
        table: Requests of conversations that came to two gateways.
        window: Which count, by when they were wanted.
        seed: Of the draws.

    Returns:
        The end nearest to 0 of the interval; 0 where it holds 0, NaN unless there are two gateways.
    """
    counted = (table.scheduled_s >= window.from_s) & (table.scheduled_s < window.until_s)
    counted &= (table.outcome != ABANDONED) & (table.gateway >= 0)
    gateways = np.unique(table.gateway[counted])
    if len(gateways) != 2:
        return math.nan
    sessions, session = np.unique(table.session[counted], return_inverse=True)
    is_second = table.gateway[counted] == gateways[1]
    is_shed = table.reason[counted] == SHED
    size = len(sessions)
    counts = np.stack(
        [
            np.bincount(session, weights=each, minlength=size)
            for each in (is_shed & ~is_second, ~is_second, is_shed & is_second, is_second)
        ]
    )
    times = np.random.default_rng(seed).multinomial(size, np.full(size, 1 / size), size=RESAMPLES)
    shed_first, first, shed_second, second = counts @ times.T
    differences = shed_first / first - shed_second / second
    low, high = np.nanquantile(differences, ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2))
    return float(max(0.0, low, -high))
