"""Makes a real engine slow now and then, from outside: its process is stopped for most of the time.

Real engines have no fault switches. One whose process gets a tenth of the time is what a throttled processor, a
neighbour on the same host or a sick driver makes of it: it answers its health checks, all that it does takes longer,
and its replica's own process, which takes calls and cancellations, goes on as ever.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import psutil

from cluster.sim.faults import Fault
from engines.faults import FaultKind
from loadtests.machine.pinning import engines_of
from policies.errors import ConfigError

PERIOD_S = 0.1
"""An engine that is ten times as slow runs for a tenth of this, and is stopped for the rest; short beside a prompt."""


@contextmanager
def slowed(replica_pid: int, faults: Sequence[Fault]) -> Iterator[None]:
    """While the block runs, the engine of one replica is slow at the faults' times; time 0 is the block's beginning.

    Args:
        replica_pid: The replica's process, as its metrics say.
        faults: Of this replica, all of them ``SLOW`` by a factor above 1, in order and one after the other.

    Raises:
        ConfigError: Another kind of fault, or there is no engine.
    """
    for fault in faults:
        if fault.kind is not FaultKind.SLOW or fault.factor < 1:
            raise ConfigError("faults", fault.kind.value, "slow, by a factor above 1")
    engines = engines_of(replica_pid)
    if not engines:
        raise ConfigError("replica_pid", replica_pid, "a replica that has started an engine")
    over = threading.Event()
    thread = threading.Thread(target=_run, args=(engines, faults, over))
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _run(engines: Sequence[psutil.Process], faults: Sequence[Fault], over: threading.Event) -> None:
    """The timeline; whatever happens, engines run when it is over."""
    began_s = time.monotonic()
    try:
        for fault in faults:
            if over.wait(max(0.0, began_s + fault.at_s - time.monotonic())):
                return
            _slow_down(engines, fault.factor, began_s + fault.at_s + fault.for_s, over)
    finally:
        _tell(engines, "resume")


def _slow_down(engines: Sequence[psutil.Process], factor: float, until_s: float, over: threading.Event) -> None:
    runs_s = PERIOD_S / factor
    while time.monotonic() < until_s and not over.is_set():
        _tell(engines, "suspend")
        over.wait(PERIOD_S - runs_s)
        _tell(engines, "resume")
        over.wait(runs_s)


def _tell(engines: Sequence[psutil.Process], what: str) -> None:
    """An engine that has died is nobody's to stop; psutil sees to it that nobody else has its id."""
    for engine in engines:
        with suppress(psutil.Error):
            getattr(engine, what)()
