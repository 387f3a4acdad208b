"""The plans that are run for real and in the simulator: three kinds of users, at shares of a measured capacity.

None of them is on the calibration's grid: lengths are drawn from ragged mixtures, arrivals are random, and sessions
share prefixes.
"""

from dataclasses import dataclass

from loadtests.workloads.arrivals import ArrivalProcess, Gamma, Poisson
from loadtests.workloads.lengths import Lengths, LogNormal, Uniform
from loadtests.workloads.mixtures import Mixture, Part
from loadtests.workloads.sessions import Sessions
from loadtests.workloads.turns import ConstantTurns, ExponentialThink
from loadtests.workloads.workload import TrafficClass, Workload

RAGGED, BURSTY, SESSIONS = "poisson ragged", "bursty ragged", "shared-prefix sessions"
WORKLOADS = (RAGGED, BURSTY, SESSIONS)
LOADS = (0.3, 0.6, 0.85)
"""Shares of the capacity."""
BURST_CV = 3.0
TURNS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How long texts are for one deployment: an engine that is a thousand times as fast needs longer ones.

    Args:
        prompt_tokens: Of the ragged mix.
        output_tokens: Of the ragged mix.
        system_prompt_tokens: What all sessions begin with.
        message_tokens: What each turn of a session adds.
        answer_tokens: What each turn is answered.
        think_s: Mean pause between an answer and the next turn.
        content_unit_tokens: A multiple of the engine's KV block.
        timeout_s: Of every client.
    """

    prompt_tokens: Lengths
    output_tokens: Lengths
    system_prompt_tokens: int
    message_tokens: Lengths
    answer_tokens: Lengths
    think_s: float
    content_unit_tokens: int
    timeout_s: float = 120.0


TINY = Shape(
    prompt_tokens=Mixture(
        parts=(
            Part(weight=0.85, tokens=LogNormal(median_tokens=120, sigma=0.8, least_tokens=8, most_tokens=800)),
            Part(weight=0.15, tokens=LogNormal(median_tokens=900, sigma=0.5, least_tokens=300, most_tokens=3000)),
        )
    ),
    output_tokens=LogNormal(median_tokens=40, sigma=0.9, least_tokens=2, most_tokens=300),
    system_prompt_tokens=512,
    message_tokens=Uniform(least_tokens=20, most_tokens=250),
    answer_tokens=Uniform(least_tokens=5, most_tokens=90),
    think_s=0.5,
    content_unit_tokens=128,
)
"""For the tiny model on a processor."""

LARGE = Shape(
    prompt_tokens=Mixture(
        parts=(
            Part(weight=0.8, tokens=LogNormal(median_tokens=2_000, sigma=0.8, least_tokens=100, most_tokens=10_000)),
            Part(weight=0.2, tokens=LogNormal(median_tokens=9_000, sigma=0.4, least_tokens=4_000, most_tokens=24_000)),
        )
    ),
    output_tokens=LogNormal(median_tokens=30, sigma=0.7, least_tokens=2, most_tokens=200),
    system_prompt_tokens=1_024,
    message_tokens=Uniform(least_tokens=500, most_tokens=4_000),
    answer_tokens=Uniform(least_tokens=5, most_tokens=60),
    think_s=0.5,
    content_unit_tokens=128,
)
"""For an emulated engine of a large model: prompts that keep its prefill replicas busy, and few output tokens, because
every one of them is a message for two shared cores."""


def workload_of(name: str, shape: Shape, requests_per_s: float, duration_s: float) -> Workload:
    """One of ``WORKLOADS`` at a rate, sessions counted by their turns."""
    if name == SESSIONS:
        return _sessions(shape, Poisson(rate_per_s=requests_per_s / TURNS), duration_s, think_s=shape.think_s)
    arrivals: ArrivalProcess = Poisson(rate_per_s=requests_per_s)
    if name == BURSTY:
        arrivals = Gamma(rate_per_s=requests_per_s, cv=BURST_CV)
    return _ragged(shape, arrivals, duration_s)


def flood_of(name: str, shape: Shape, requests_per_s: float, duration_s: float) -> Workload:
    """The same users at a rate far above capacity; in sessions nobody stops to think, or the flood would not rise."""
    if name == SESSIONS:
        return _sessions(shape, Poisson(rate_per_s=requests_per_s / TURNS), duration_s, think_s=1e-3)
    return _ragged(shape, Poisson(rate_per_s=requests_per_s), duration_s)


def _ragged(shape: Shape, arrivals: ArrivalProcess, duration_s: float) -> Workload:
    users = TrafficClass(
        name="ragged",
        arrivals=arrivals,
        prompt_tokens=shape.prompt_tokens,
        output_tokens=shape.output_tokens,
        timeout_s=shape.timeout_s,
    )
    return Workload(classes=(users,), duration_s=duration_s)


def _sessions(shape: Shape, arrivals: ArrivalProcess, duration_s: float, *, think_s: float) -> Workload:
    sessions = Sessions(
        turns=ConstantTurns(num_turns=TURNS),
        think=ExponentialThink(mean_s=think_s),
        system_prompt_tokens=shape.system_prompt_tokens,
        content_unit_tokens=shape.content_unit_tokens,
    )
    users = TrafficClass(
        name="sessions",
        arrivals=arrivals,
        prompt_tokens=shape.message_tokens,
        output_tokens=shape.answer_tokens,
        timeout_s=shape.timeout_s,
        sessions=sessions,
    )
    return Workload(classes=(users,), duration_s=duration_s)
