"""A script is run, and what must hold is looked at."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

from msgspec.structs import replace

from cluster.seeds import Seeds
from cluster.sim.simulator import simulate
from cluster.sim.traffic import Arrival, PlannedRequest
from loadtests.fault_simulation.fault_script import CLOCKS, FaultScript
from loadtests.fault_simulation.invariants import Invariants
from loadtests.workloads.clients import Retries
from loadtests.workloads.workload import request_id
from policies.views import Priority
from routing.request.effects import Outcome

LATEST_S = 100_000.0
"""In virtual time: whatever has not ended by then never does."""
POISON_DOWN_S = 1.0
MOST_CHOICES = 4
"""Requests with one prompt that come together."""
PREFIXES = 12
UNIT_TOKENS = 16


@dataclass(frozen=True, slots=True)
class FaultRun:
    """What came of a script.

    Args:
        script: The script.
        violations: What did not hold, a sentence each; none: all did.
        num_requests: Requests that came, clients' retries included.
        hit: How many faults of each kind there were.
        outcomes: How requests ended: ``completed``, or for which reason they did not.
        seen: What dispatchers were told and what they decided, and how often.
    """

    script: FaultScript
    violations: Sequence[str]
    num_requests: int
    hit: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    seen: Counter[str] = field(default_factory=Counter)


class _Users:
    """Ragged requests at random times, some with a beginning that others have, and clients that try again."""

    def __init__(self, script: FaultScript) -> None:
        self._script = script
        self._retries = Retries(max_requests=script.max_requests)
        self._rng = Seeds(script.seed).stream("fault traffic")

    def arrivals(self) -> Iterator[Arrival]:
        rng, at_s, number = self._rng, 0.0, 0
        poison = list(self._script.poison_at_s)
        while number < self._script.num_requests:
            at_s += rng.expovariate(self._script.rate_per_s)
            while poison and poison[0] <= at_s and number < self._script.num_requests:
                for request in self._fan_out(number, at_s, rng):
                    yield Arrival(at_s, request)
                    number += 1
                poison.pop(0)
            if number < self._script.num_requests:
                yield Arrival(at_s, self._request(number, at_s, rng))
                number += 1

    def on_end(self, request: PlannedRequest, outcome: Outcome, now_s: float) -> Sequence[Arrival]:
        if not self._retries.wants_retry(request, outcome):
            return ()
        pause_s = self._retries.pause_s(request, outcome, 0.5)
        return (Arrival(now_s + pause_s, self._retries.repeated(request)),)

    def _fan_out(self, number: int, at_s: float, rng: Random) -> Sequence[PlannedRequest]:
        """Requests with one prompt, which kills replicas."""
        first = self._request(number, at_s, rng, kills_for_s=POISON_DOWN_S)
        numbers = range(number, min(number + rng.randint(1, MOST_CHOICES), self._script.num_requests))
        return [replace(first, request_id=request_id(each, 0), logical_request=each) for each in numbers]

    def _request(self, number: int, at_s: float, rng: Random, kills_for_s: float = 0.0) -> PlannedRequest:
        prompt_tokens = int(rng.choice((20, 200, 1_000)) * (0.5 + rng.random())) if rng.random() < 0.95 else 6_000
        output_tokens = rng.choice((1, 2, 16, 60, 200))
        prefix = rng.randrange(PREFIXES)
        num_units = (prompt_tokens + output_tokens) // UNIT_TOKENS
        content = tuple(prefix * 1_000_000 + unit + (number * 100_000_000) * (unit >= 20) for unit in range(num_units))
        return PlannedRequest(
            request_id=request_id(number, 0),
            logical_request=number,
            scheduled_s=at_s,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            max_output_tokens=output_tokens * rng.choice((1, 4)),
            timeout_s=rng.choice((2.0, 20.0, 60.0)),
            content=content,
            content_unit_tokens=UNIT_TOKENS,
            priority=rng.choice(list(Priority)),
            tenant=rng.choice(("a", "b")),
            kills_for_s=kills_for_s,
        )


def run(script: FaultScript) -> FaultRun:
    """Runs a script to its end; a pure function of it."""
    watch = Invariants(_Users(script), script)
    violations: list[str] = []
    try:
        table = simulate(
            script.fleet,
            script.dispatcher(script.policies),
            watch,
            ("all",),
            seed=script.seed,
            until_s=LATEST_S,
            faults=script.all_faults,
            on_event=watch.on_event,
            at_rest=watch.at_rest,
        )
        watch.look_through(table)
    except Exception as error:  # whatever is raised is a finding
        violations.append(f"{type(error).__name__}: {error}")
    hit = Counter(each.kind for each in script.faults)
    hit[CLOCKS] = len(script.clocks)
    found = [*violations, *watch.violations]
    return FaultRun(script, found, watch.num_requests, hit, watch.outcomes, watch.seen)
