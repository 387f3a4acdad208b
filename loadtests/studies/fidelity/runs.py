"""Runs one plan for real and in the simulator: deployments, the hop between client and engine, the capacity."""

import asyncio
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cluster.seeds import Seeds
from cluster.sim.run_table import RunTable
from cluster.sim.simulator import simulate
from cluster.sim.traffic import Arrival, PlannedRequest
from engines.model.profile import load_profile
from loadtests.drivers.http_driver import HttpRun, drive
from loadtests.drivers.prompts import ORDINARY_TOKENS, PromptsAlone, PromptTokens
from loadtests.live.configuration import laid_over, read_config
from loadtests.live.counterpart import dispatcher_of, fleet_of
from loadtests.live.deployed import Deployed, deployed
from loadtests.machine.gateway_overhead import NO_COST, measure
from loadtests.machine.machine_load import ForeignLoad
from loadtests.machine.pinning import cpu_s_of_others
from loadtests.results.analysis import completions_per_s
from loadtests.studies.fidelity.metrics import Pair, completed_fraction, metrics_of
from loadtests.studies.fidelity.plans import RAGGED, Shape, flood_of, workload_of
from loadtests.workloads.clients import Clients
from loadtests.workloads.workload import Workload
from routing.request.effects import Outcome

PROBES, PROBE_SERIES = 20, 3
PROBE_PROMPT_TOKENS, PROBE_OUTPUT_TOKENS = 32, 4
PROBE_PAUSE_S = 0.05
WARM_UP_RPS, WARM_UP_S = 8.0, 5.0
FLOOD_FACTOR = 2.0
FLOOD_SETTLES = 0.4
SIMULATED_FLOOD_S, SIMULATED_FLOOD_REQUESTS = 40.0, 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A deployment and its counterpart in the simulator.

    Args:
        part: Names it in tables.
        config: Its configuration.
        profile: The engine's profile, by name or path.
        port: Where it is to answer.
        shape: Lengths of the texts that suit it.
        pins: Whether engines get core 0 and everything else core 1; otherwise everything shares all cores.
        has_goals: Whether errors are held against the goals.
    """

    part: str
    config: Path
    profile: str
    port: int
    shape: Shape
    pins: bool = False
    has_goals: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Requests per second of one workload that a deployment completes at most."""

    measured_rps: float
    simulated_rps: float


class Rig:
    """A target that is up, and its counterpart.

    Args:
        target: What was started.
        document: Its configuration.
        running: The deployment.
    """

    def __init__(self, target: Target, document: dict[str, Any], running: Deployed) -> None:
        self.target = target
        self.pinned = running.pinned
        self.endpoint = running.endpoint
        self.fleet = fleet_of(document, load_profile(target.profile), 0.0)
        self.dispatcher = dispatcher_of(document, self.fleet)
        self.hop_s = 0.0
        self.front = NO_COST
        self.pid = running.pid
        self._document = document
        self._num_probes = 0

    # -- calibration of what is not the engine ------------------------------------------------------------------------

    def measure_hop(self) -> None:
        """What a small request on the idle system takes longer than the engine's model says becomes the fleet's delays.

        Done with requests one after the other, which none of the plans has. Other work on the machine only ever adds to
        it, so of several series the quickest counts.
        """
        self.run_for_real(workload_of(RAGGED, self.target.shape, WARM_UP_RPS, WARM_UP_S), seed=0, salt="warm-up")
        simulated = simulate(self.fleet, self.dispatcher, _OneByOne(PROBES), ("probe",), seed=0)
        real_s = min(_median_ttft_s(self._probe(PROBES)) for _ in range(PROBE_SERIES))
        self.hop_s = max(0.0, real_s - _median_ttft_s(simulated))
        if self.pinned is not None and self.pinned.other_cores:
            self.front = measure(self._front_cpu_s, _wait, self._run_small, self._run_streams)
        self.fleet = fleet_of(self._document, load_profile(self.target.profile), self.hop_s, self.front)

    def _front_cpu_s(self) -> float:
        return cpu_s_of_others(self.pid)

    def _run_small(self, num_requests: int) -> None:
        self._probe(num_requests, output_tokens=1)

    def _run_streams(self, num_streams: int, num_tokens: int) -> None:
        self._probe(num_streams, output_tokens=num_tokens, at_a_time=num_streams)

    def capacity(self, name: str, seconds: float) -> Capacity:
        """Requests per second that come out when far more go in.

        Args:
            name: The workload.
            seconds: How long the flood lasts; the part after ``FLOOD_SETTLES`` of it counts.

        Raises:
            RuntimeError: Nothing was completed.
        """
        expected_rps = self._simulated_capacity_rps(name)
        flood = flood_of(name, self.target.shape, FLOOD_FACTOR * expected_rps, seconds)
        real = self.run_for_real(flood, seed=0, salt=f"flood/{name}", until_s=seconds)
        self._probe(1)  # waits its turn behind whatever the flood has left
        measured_rps = completions_per_s(real.table, FLOOD_SETTLES * seconds, seconds)
        if not measured_rps:
            raise RuntimeError(
                f"{self.target.part}: of {real.health.sent} requests of the flood of {name} none was completed in the "
                f"last {(1 - FLOOD_SETTLES) * seconds:g} of its {seconds:g} seconds, where the profile "
                f"{self.target.profile} has {expected_rps:.1f} a second: it is of another machine (make calibrate)"
            )
        return Capacity(measured_rps=measured_rps, simulated_rps=expected_rps)

    def _simulated_capacity_rps(self, name: str) -> float:
        """The same in virtual time, where a long flood costs nothing; its rate is raised until it is one."""
        offered_rps, completed_rps = 1.0, 1.0
        while completed_rps > offered_rps / FLOOD_FACTOR:
            offered_rps *= 2
            seconds = min(SIMULATED_FLOOD_S, SIMULATED_FLOOD_REQUESTS / offered_rps)
            table = self.run_simulated(flood_of(name, self.target.shape, offered_rps, seconds), seed=0, until_s=seconds)
            completed_rps = completions_per_s(table, FLOOD_SETTLES * seconds, seconds)
        return completed_rps

    def _probe(self, num_requests: int, *, output_tokens: int = PROBE_OUTPUT_TOKENS, at_a_time: int = 1) -> RunTable:
        self._num_probes += 1
        prompts = PromptTokens(ORDINARY_TOKENS, f"probe/{self._num_probes}")
        traffic = _OneByOne(num_requests, output_tokens, at_a_time)
        return asyncio.run(drive(self.endpoint, traffic, prompts, ("probe",))).table

    # -- plans --------------------------------------------------------------------------------------------------------

    def compare(
        self, name: str, load: float, capacity_rps: float, *, seed: int, seconds: float, variant: str = ""
    ) -> Pair:
        """Runs one plan twice.

        Args:
            name: The workload.
            load: Share of the capacity.
            capacity_rps: The capacity.
            seed: Of the plan.
            seconds: How long requests arrive.
            variant: Goes into the result.
        """
        workload = workload_of(name, self.target.shape, load * capacity_rps, seconds)
        foreign = ForeignLoad(self.pid)
        real = self.run_for_real(workload, seed=seed, salt=f"{name}/{load}/{seed}")
        foreign_fraction = foreign.fraction()
        simulated = self.run_simulated(workload, seed=seed)
        prompt_tokens = max(1, int(real.table.prompt_tokens.sum()))
        return Pair(
            part=self.target.part,
            workload=name,
            load=load,
            variant=variant,
            seed=seed,
            requests=len(real.table),
            measured=metrics_of(real.table),
            simulated=metrics_of(simulated),
            completed=completed_fraction(real.table),
            cached_fraction=(
                real.health.cached_tokens / prompt_tokens,
                sum(replica.cached_tokens for replica in simulated.replicas) / prompt_tokens,
            ),
            foreign_fraction=foreign_fraction,
            health=real.health,
        )

    def run_for_real(self, workload: Workload, *, seed: int, salt: str, until_s: float = math.inf) -> HttpRun:
        """One run over HTTP; no two salts share any text."""
        traffic = PromptsAlone(Clients(workload, Seeds(seed)))
        prompts = PromptTokens(ORDINARY_TOKENS, salt)
        return asyncio.run(drive(self.endpoint, traffic, prompts, workload.class_names, until_s=until_s))

    def run_simulated(self, workload: Workload, *, seed: int, until_s: float = math.inf) -> RunTable:
        """The same plan in virtual time."""
        traffic = PromptsAlone(Clients(workload, Seeds(seed)))
        return simulate(self.fleet, self.dispatcher, traffic, workload.class_names, seed=seed, until_s=until_s)


@contextmanager
def rig_of(target: Target, logs: Path, *, balancer: str | None = None) -> Iterator[Rig]:
    """Starts a target, pins it, and measures its hop.

    Args:
        target: What to start.
        logs: Folder for its log and its configuration, which differs from the file's when a balancer is given.
        balancer: By name or import path, in place of the configuration's own.

    Raises:
        RuntimeError: It does not start; the message names its log.
    """
    document = read_config(str(target.config))
    application = document["applications"][0]
    changes = {} if balancer is None else {"policies": {"balancing": balancer}}
    application["args"] = laid_over(application["args"], changes)
    cores = ((0,), (1,)) if target.pins else None
    with deployed(f"fidelity-{target.port}", document, logs, target.port, cores) as running:
        rig = Rig(target, document, running)
        rig.measure_hop()
        yield rig


class _OneByOne:
    """Requests with small prompts, each sent when one before it has ended; so many at a time."""

    def __init__(self, num_requests: int, output_tokens: int = PROBE_OUTPUT_TOKENS, at_a_time: int = 1) -> None:
        self._num_requests = num_requests
        self._output_tokens = output_tokens
        self._at_a_time = at_a_time
        self._num_sent = 0

    def arrivals(self) -> Iterator[Arrival]:
        for _ in range(self._at_a_time):
            yield self._next(0.0)

    def on_end(self, request: PlannedRequest, outcome: Outcome, now_s: float) -> Sequence[Arrival]:
        return (self._next(now_s + PROBE_PAUSE_S),) if self._num_sent < self._num_requests else ()

    def _next(self, at_s: float) -> Arrival:
        self._num_sent += 1
        request = PlannedRequest(
            request_id=f"probe-{self._num_sent}",
            logical_request=self._num_sent,
            scheduled_s=at_s,
            prompt_tokens=PROBE_PROMPT_TOKENS,
            output_tokens=self._output_tokens,
            max_output_tokens=self._output_tokens,
            timeout_s=60.0,
        )
        return Arrival(at_s, request)


def _wait(seconds: float) -> None:
    asyncio.run(asyncio.sleep(seconds))


def _median_ttft_s(table: RunTable) -> float:
    return float(np.median(table.first_token_s - table.scheduled_s))
