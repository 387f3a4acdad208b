"""The hop: what a request on an idle deployment takes beside its engine, so that a counterpart can have it, too."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count

import numpy as np

from cluster.sim.run_table import RunTable
from cluster.sim.traffic import Arrival, PlannedRequest, Traffic
from loadtests.drivers.http_driver import drive
from loadtests.drivers.prompts import ORDINARY_TOKENS, PromptTokens
from loadtests.live.counterpart import Counterpart
from loadtests.live.deployed import Deployed
from loadtests.machine.gateway_overhead import GatewayOverhead, measure
from loadtests.machine.pinning import cpu_s_of_others
from routing.request.effects import Outcome

PROBES, PROBE_SERIES = 20, 3
PROBE_PROMPT_TOKENS, PROBE_OUTPUT_TOKENS = 32, 4
PROBE_PAUSE_S, PROBE_TIMEOUT_S = 0.05, 60.0
CLASS_NAMES = ("probe",)

Send = Callable[[Traffic], RunTable]
"""Runs traffic to its end."""


def with_hop(counterpart: Counterpart, running: Deployed) -> Counterpart:
    """The counterpart with its deployment's hop, and with what the front end takes where that has cores of its own.

    Args:
        counterpart: What the simulator makes of the configuration.
        running: The deployment; nobody else sends it anything.
    """
    numbers = count(1)

    def send(traffic: Traffic) -> RunTable:
        prompts = PromptTokens(ORDINARY_TOKENS, f"probe/{next(numbers)}")
        return asyncio.run(drive(running.endpoint, traffic, prompts, CLASS_NAMES)).table

    found = replace(counterpart, hop_s=hop_of(counterpart, send))
    if running.pinned is not None and running.pinned.other_cores:
        found = replace(found, front=_front_of(running, send))
    pinned = "nothing is pinned" if running.pinned is None else str(running.pinned)
    return replace(found, notes=(*counterpart.notes, pinned, *_notes(found)))


def hop_of(counterpart: Counterpart, send: Send) -> float:
    """What a small request takes longer than the engine's model says, seconds.

    The requests come one after the other, as none of a plan do. Other work on the machine only ever adds to the hop, so
    of several series the quickest counts.

    Args:
        counterpart: Without a hop.
        send: Sends them to the deployment.
    """
    real_s = min(_median_ttft_s(send(Probes(PROBES))) for _ in range(PROBE_SERIES))
    return max(0.0, real_s - _median_ttft_s(counterpart.simulate(Probes(PROBES), CLASS_NAMES)))


class Probes:
    """Requests with small prompts, each sent when one before it has ended.

    Args:
        num_requests: How many.
        output_tokens: Of each.
        at_a_time: How many are under way.
    """

    def __init__(self, num_requests: int, output_tokens: int = PROBE_OUTPUT_TOKENS, at_a_time: int = 1) -> None:
        self._num_requests = num_requests
        self._output_tokens = output_tokens
        self._at_a_time = at_a_time
        self._num_sent = 0

    def arrivals(self) -> Iterator[Arrival]:
        """The first ones."""
        for _ in range(self._at_a_time):
            yield self._next(0.0)

    def on_end(self, request: PlannedRequest, outcome: Outcome, now_s: float) -> Sequence[Arrival]:
        """The one that follows."""
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
            timeout_s=PROBE_TIMEOUT_S,
        )
        return Arrival(at_s, request)


def _front_of(running: Deployed, send: Send) -> GatewayOverhead:
    def wait(seconds: float) -> None:
        asyncio.run(asyncio.sleep(seconds))

    def run_small(num_requests: int) -> None:
        send(Probes(num_requests, 1))

    def run_streams(num_streams: int, num_tokens: int) -> None:
        send(Probes(num_streams, num_tokens, num_streams))

    return measure(lambda: cpu_s_of_others(running.pid), wait, run_small, run_streams)


def _median_ttft_s(table: RunTable) -> float:
    return float(np.median(table.first_token_s - table.scheduled_s))


def _notes(counterpart: Counterpart) -> Iterator[str]:
    fleet, front = counterpart.fleet, counterpart.front
    yield (
        f"a small request takes {1e3 * counterpart.hop_s:.1f} ms more than its engine; the simulator has it as "
        f"{1e3 * fleet.ingress_delay_s:.2f} ms before the dispatcher and {1e3 * fleet.network_delay_s:.2f} ms "
        f"for each message, and {1e3 * fleet.gateway_request_s:.2f} ms of the gateway's processor"
    )
    if front.request_s:
        yield (
            f"the front end's processor takes {1e3 * front.request_s:.1f} ms for a small request and "
            f"{1e3 * front.chunk_s:.2f} ms for a chunk of a stream"
        )
