"""Small workloads that several tests share, and what a plan looks like when it is hashed.

``python -m tests.loadtests.sample_workloads 7`` prints the hash of a plan with every kind of class in it.
"""

import hashlib
import sys
from itertools import islice

from cluster import PlannedRequest, Seeds
from loadtests.workloads.agents import Agents
from loadtests.workloads.arrivals import ArrivalProcess, Diurnal, FlashCrowd, Gamma, OnOff, Poisson
from loadtests.workloads.clients import Clients
from loadtests.workloads.lengths import EMPIRICAL, Constant, Exponential, LogNormal, Uniform
from loadtests.workloads.mixtures import Mixture, Part
from loadtests.workloads.sessions import Sessions
from loadtests.workloads.turns import (
    ConstantThink,
    ConstantTurns,
    ExponentialThink,
    GeometricTurns,
    LogNormalThink,
    Turns,
)
from loadtests.workloads.workload import TrafficClass, TrafficSource, Workload
from routing import Outcome, OutcomeKind

COMPLETED = Outcome(kind=OutcomeKind.COMPLETED)

CHAT = TrafficClass(
    name="chat",
    arrivals=Poisson(rate_per_s=20),
    prompt_tokens=EMPIRICAL["azure-conv-prompt"],
    output_tokens=EMPIRICAL["azure-conv-output"],
    timeout_s=60,
)
BATCH = TrafficClass(
    name="batch",
    arrivals=Gamma(rate_per_s=5, cv=3),
    prompt_tokens=LogNormal(median_tokens=3_000, sigma=1, most_tokens=30_000),
    output_tokens=Exponential(mean_tokens=200),
    timeout_s=600,
    max_output_tokens=Uniform(least_tokens=100, most_tokens=500),
)


def dialogue(turns: Turns, *, name: str = "dialogue", **sessions: int) -> TrafficClass:
    """Sessions that begin once in 2 s, with 10 s between turns."""
    return TrafficClass(
        name=name,
        arrivals=Poisson(rate_per_s=0.5),
        prompt_tokens=Uniform(least_tokens=20, most_tokens=400),
        output_tokens=Uniform(least_tokens=1, most_tokens=300),
        timeout_s=30,
        sessions=Sessions(turns=turns, think=ConstantThink(duration_s=10), **sessions),
    )


def research(num_steps: int = 3, num_calls: int = 2, **agents: int) -> TrafficClass:
    """Tasks that begin once in 2 s, with 10 s of tools between steps of so many calls."""
    return TrafficClass(
        name="research",
        arrivals=Poisson(rate_per_s=0.5),
        prompt_tokens=Uniform(least_tokens=20, most_tokens=400),
        output_tokens=Uniform(least_tokens=1, most_tokens=300),
        timeout_s=30,
        agents=Agents(
            steps=ConstantTurns(num_turns=num_steps),
            calls=ConstantTurns(num_turns=num_calls),
            tools=ConstantThink(duration_s=10),
            **agents,
        ),
    )


def every_kind() -> Workload:
    """All processes, lengths and sessions at once."""
    mixture = Mixture(
        parts=(Part(weight=1, tokens=Constant(num_tokens=9)), Part(weight=2, tokens=Exponential(mean_tokens=50)))
    )
    long_think = Sessions(
        turns=GeometricTurns(mean_turns=3), think=LogNormalThink(median_s=20, sigma=1), system_prompt_tokens=200
    )
    short_think = Sessions(turns=GeometricTurns(mean_turns=3), think=ExponentialThink(mean_s=2))
    arrivals: tuple[ArrivalProcess, ...] = (
        OnOff(on_rate_per_s=5, mean_on_s=3, mean_off_s=3),
        FlashCrowd(rate_per_s=2, factor=10, from_s=30, for_s=5),
        Diurnal(mean_rate_per_s=5, peak_to_trough=5, period_s=60),
    )
    others = tuple(
        TrafficClass(
            name=type(process).__name__,
            arrivals=process,
            prompt_tokens=mixture,
            output_tokens=mixture,
            timeout_s=30,
            sessions=sessions,
        )
        for process, sessions in zip(arrivals, (None, long_think, short_think), strict=True)
    )
    return Workload(classes=(CHAT, BATCH, *others, research()), duration_s=120)


def requests_of(
    *classes: TrafficSource, seed: int = 7, duration_s: float = 300, most: int = 100_000
) -> list[PlannedRequest]:
    """The first requests of a workload."""
    plan = Workload(classes=classes, duration_s=duration_s).plan(Seeds(seed))
    return [planned.arrival.request for planned in islice(plan, most)]


def plan_hash(seed: int) -> str:
    """Of all arrivals, when every request is answered at once."""
    clients = Clients(every_kind(), Seeds(seed))
    digest = hashlib.sha256()
    for arrival in clients.arrivals():
        pending = [arrival]
        while pending:
            at_s, request = pending.pop()
            digest.update(repr((at_s, request)).encode())
            pending.extend(clients.on_end(request, COMPLETED, at_s))
    return digest.hexdigest()


if __name__ == "__main__":
    print(plan_hash(int(sys.argv[1])))
