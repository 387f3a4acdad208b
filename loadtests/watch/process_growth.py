"""Do processes grow? Memory and file descriptors of a deployment's gateways and replicas, from minute to minute."""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from statistics import fmean, stdev

import psutil
from scipy import stats

from cluster.clock import unix_s
from loadtests.results.metrics import MetricValue

GATEWAY, REPLICA = "gateway", "replica"
MINUTE_S, MINUTES_IN_H = 60.0, 60.0
YOUNG_S = 120.0
"""A process that has just started is still reading what it is made of."""
MIB = 2.0**20
_TITLE = re.compile(r"ServeReplica:[^:]+:(\S+)")
Sizes = dict[int, list[float]]
"""By minute of the run, what was seen of one process."""


class ProcessGrowth:
    """Looks at the processes of gateways and replicas, as far as they are two minutes old.

    Connections that others have made to a process are not among its file descriptors: how many clients there are is not
    its doing. One that it keeps although the other end has closed it is.

    How much a process grows in a minute is the mean of what was seen in it less the mean of the minute before. All such
    differences of all processes of a kind give the growth and its 95% interval (Student's t). One that goes up and down
    widens the interval, and one that settles does not grow.

    Args:
        root_pid: The process that started the deployment.
        pools: Names of the pools, whose replicas are looked at.
        now_s: The time of day, as processes know when they were started.
    """

    def __init__(self, root_pid: int, pools: Sequence[str], now_s: Callable[[], float] = unix_s) -> None:
        self._root_pid = root_pid
        self._kinds = {GATEWAY: GATEWAY, **dict.fromkeys(pools, REPLICA)}
        self._now_s = now_s
        self._seen: dict[tuple[str, str, str], dict[int, Sizes]] = defaultdict(
            lambda: defaultdict(lambda: defaultdict(list))
        )

    def look(self) -> bool:
        """Takes note of what they have now; always worth another look."""
        with suppress(psutil.Error):
            for process in psutil.Process(self._root_pid).children(recursive=True):
                with suppress(psutil.Error):
                    self._note(process)
        return True

    def _note(self, process: psutil.Process) -> None:
        now_s = self._now_s()
        if now_s - process.create_time() < YOUNG_S or (title := _TITLE.search(" ".join(process.cmdline()))) is None:
            return
        kind = self._kinds.get(title[1])
        if kind is not None:
            num_fds = process.num_fds() - _num_visitors(process)
            self.see(kind, process.pid, now_s, rss_bytes=process.memory_info().rss, num_fds=num_fds)

    def see(self, kind: str, pid: int, at_s: float, *, rss_bytes: int, num_fds: int) -> None:
        """A process of a kind has so much at a time."""
        minute = math.floor(at_s / MINUTE_S)
        self._seen[kind, "rss", "_mib_per_h"][pid][minute].append(rss_bytes / MIB)
        self._seen[kind, "fds", "_per_h"][pid][minute].append(float(num_fds))

    def metrics(self) -> dict[str, MetricValue]:
        """``gateway_rss_growth_mib_per_h`` and the like, and ``..._growth_high_...``, the interval's upper end, of what
        was seen for three minutes.
        """
        found: dict[str, MetricValue] = {}
        for (kind, what, unit), processes in self._seen.items():
            grown = [each for sizes in processes.values() for each in _grown(sizes)]
            if len(grown) < 2:
                continue
            mean, error = fmean(grown), stdev(grown) / math.sqrt(len(grown))
            high = mean + float(stats.t.ppf(0.975, len(grown) - 1)) * error
            for end, value in (("", mean), ("_high", high)):
                found[f"{kind}_{what}_growth{end}{unit}"] = MetricValue(value=value * MINUTES_IN_H, samples=len(grown))
        return found


def _num_visitors(process: psutil.Process) -> int:
    """Connections that others have made to it and keep."""
    connections = process.net_connections("tcp")
    ports = {each.laddr.port for each in connections if each.status == psutil.CONN_LISTEN}
    return sum(each.status == psutil.CONN_ESTABLISHED and each.laddr.port in ports for each in connections)


def _grown(sizes: Sizes) -> list[float]:
    """From each minute to the next one that follows it."""
    means = {minute: fmean(each) for minute, each in sizes.items()}
    return [means[minute + 1] - mean for minute, mean in means.items() if minute + 1 in means]
