"""Stands in for the simulator: no queues, no engines, and a time to first token that depends on the balancer's name."""

import heapq
import itertools
from collections.abc import Sequence
from math import nan

import numpy as np

from cluster.sim.faults import AnyFault
from cluster.sim.run_table import ReplicaTotals, RunTable
from cluster.sim.topology import FleetSpec
from cluster.sim.traffic import Traffic
from routing import Outcome, OutcomeKind
from routing.config.spec import DispatcherSpec
from tests.loadtests.run_tables import RequestRow, run_table

MEAN_TTFT_S = {"least_work_left": 0.05, "power_of_two": 0.05, "random": 0.2}
TPOT_S = 0.01
REFUSED = Outcome(kind=OutcomeKind.REFUSED)
COMPLETED = Outcome(kind=OutcomeKind.COMPLETED)


def simulate(
    fleet: FleetSpec,
    dispatcher: DispatcherSpec,
    traffic: Traffic,
    traffic_classes: Sequence[str],
    *,
    seed: int,
    until_s: float,
    faults: Sequence[AnyFault],
) -> RunTable:
    """Refuses a document's first request when its logical request is even, and completes everything else."""
    rng = np.random.default_rng(seed)
    mean_ttft_s = MEAN_TTFT_S[dispatcher.policies.balancing.name]
    number = itertools.count()
    waiting = [(arrival.at_s, next(number), arrival.request) for arrival in traffic.arrivals()]
    heapq.heapify(waiting)
    requests = []
    while waiting and waiting[0][0] < until_s:
        at_s, _, request = heapq.heappop(waiting)
        is_refused = request.traffic_class == 1 and request.logical_request % 2 == 0 and request.retry_index == 0
        ttft_s = float(rng.exponential(mean_ttft_s))
        ended_s = at_s if is_refused else at_s + ttft_s + TPOT_S * (request.output_tokens - 1)
        following = traffic.on_end(request, REFUSED if is_refused else COMPLETED, ended_s)
        for arrival in following:
            heapq.heappush(waiting, (arrival.at_s, next(number), arrival.request))
        requests.append(
            RequestRow(
                logical_request=request.logical_request,
                at_s=request.scheduled_s,
                ttft_s=nan if is_refused else at_s + ttft_s - request.scheduled_s,
                e2e_s=ended_s - request.scheduled_s,
                prompt_tokens=request.prompt_tokens,
                output_tokens=0 if is_refused else request.output_tokens,
                outcome="refused" if is_refused else "completed",
                traffic_class=request.traffic_class,
                is_last=all(arrival.request.logical_request != request.logical_request for arrival in following),
                retry_index=request.retry_index,
                attempts=0 if is_refused else 1,
                computed_prompt_tokens=0 if is_refused else request.prompt_tokens,
            )
        )
    replicas = [
        ReplicaTotals(replica_id="u0", role="unified", up_s=60.0, busy_s=30.0, prompt_tokens=3, cached_tokens=1)
    ]
    return run_table(*requests, classes=traffic_classes, replicas=replicas, duration_s=300.0)
