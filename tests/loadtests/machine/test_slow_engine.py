"""An engine's process is stopped for most of the time while its fault lasts, and never afterwards."""

import sys
from collections.abc import Iterator

import psutil
import pytest

from cluster.sim.faults import Fault
from engines.faults import FaultKind
from loadtests.machine.slow_engine import slowed
from policies.errors import ConfigError
from policies.views import Role
from tests.loadtests.child_process import child_process
from tests.waiting import wait_until

ENGINE = "import sys; print('up', flush=True); sys.stdin.read()"
REPLICA = f"import subprocess; subprocess.run(['VLLM::EngineCore', '-c', {ENGINE!r}], executable={sys.executable!r})"


@pytest.fixture
def replica() -> Iterator[psutil.Process]:
    """A process that has started an engine."""
    with child_process(REPLICA) as process:
        yield process


@pytest.fixture
def engine(replica: psutil.Process) -> psutil.Process:
    (found,) = replica.children()
    return found


def slow(at_s: float, for_s: float, *, kind: FaultKind = FaultKind.SLOW, factor: float = 1000.0) -> Fault:
    return Fault(kind=kind, at_s=at_s, for_s=for_s, role=Role.UNIFIED, replica=0, factor=factor)


def is_stopped(process: psutil.Process) -> bool:
    return process.status() == psutil.STATUS_STOPPED


def test_the_engine_is_stopped_while_its_fault_lasts_and_its_replica_is_not(
    replica: psutil.Process, engine: psutil.Process
) -> None:
    with slowed(replica.pid, [slow(0.0, 600.0)]):
        wait_until(lambda: is_stopped(engine), "the engine is stopped")
        assert not is_stopped(replica)

    assert not is_stopped(engine), "it goes on when the block is left, however long its fault was to last"


def test_an_engine_goes_on_between_two_faults(replica: psutil.Process, engine: psutil.Process) -> None:
    with slowed(replica.pid, [slow(0.0, 0.5), slow(600.0, 1.0)]):
        wait_until(lambda: is_stopped(engine), "the first fault has begun")
        wait_until(lambda: not is_stopped(engine), "it is over, or the engine runs for a moment")

    assert not is_stopped(engine)


def test_an_engine_that_dies_meanwhile_is_left_alone(replica: psutil.Process, engine: psutil.Process) -> None:
    with slowed(replica.pid, [slow(0.0, 600.0)]):
        engine.kill()
        replica.wait(30)


@pytest.mark.parametrize(
    "fault",
    [slow(0.0, 1.0, kind=FaultKind.STALL, factor=1.0), slow(0.0, 1.0, factor=0.5)],
    ids=["a stall", "faster"],
)
def test_what_is_not_slow_is_refused(replica: psutil.Process, fault: Fault) -> None:
    with pytest.raises(ConfigError, match="slow"), slowed(replica.pid, [fault]):
        pass


def test_a_process_without_an_engine_is_no_replica(engine: psutil.Process) -> None:
    with pytest.raises(ConfigError, match="engine"), slowed(engine.pid, [slow(0.0, 1.0)]):
        pass
