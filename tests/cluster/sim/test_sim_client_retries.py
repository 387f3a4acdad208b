"""A client's retry is known at whichever simulated gateway it comes to, unless there was nobody to tell it."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from cluster.sim.faults import CoordinatorOutage
from cluster.sim.simulator import simulate
from cluster.sim.traffic import Arrival, PlannedRequest
from policies.catalog import PolicyChoice
from routing.request.effects import ClientRetry, Link, Outcome, OutcomeKind, Record
from routing.request.events import Event
from tests.cluster.simulated import PlainTraffic, dispatcher, fleet, planned

NUM_REQUESTS = 60
RETRIES_AFTER_S = 0.375
"""The openai package's shortest pause."""


class Insistent(PlainTraffic):
    """Every refused request is sent once more, with a count."""

    def on_end(self, request: PlannedRequest, outcome: Outcome, now_s: float) -> Sequence[Arrival]:
        super().on_end(request, outcome, now_s)
        if outcome.kind is not OutcomeKind.REFUSED or request.retry_index:
            return ()
        again = msgspec.structs.replace(request, request_id=f"{request.request_id}+", retry_index=1, retry_count=1)
        return (Arrival(now_s + RETRIES_AFTER_S, again),)


def links(outages: Sequence[CoordinatorOutage] = ()) -> Counter[Link]:
    """How retries at four gateways were linked that let hardly anybody in."""
    spec = fleet(1, num_gateways=4)
    bucket = PolicyChoice(name="token_bucket", params={"rate_per_s": 0.001, "burst_s": 1.0})
    plain = dispatcher(spec)
    found: Counter[Link] = Counter()

    def note(_: int, now_s: float, event: Event, effects: Any) -> None:
        decisions = [each.decision for each in effects if isinstance(each, Record)]
        found.update(each.link for each in decisions if isinstance(each, ClientRetry))

    plan = [Arrival(each / 10, planned(each, scheduled_s=each / 10)) for each in range(NUM_REQUESTS)]
    several = replace(
        plain,
        policies=replace(plain.policies, admission=bucket),
        num_gateways=4,
        has_load_coordinator=True,
    )
    simulate(
        spec, several, Insistent(plan), ["all"], seed=1, until_s=math.inf, on_event=note,
        faults=outages,
    )  # fmt: skip
    return found


def test_a_retry_is_known_at_every_gateway() -> None:
    found = links()
    assert set(found) == {Link.BODY}
    assert found[Link.BODY] >= NUM_REQUESTS / 2


def test_without_a_load_coordinator_it_is_known_where_it_was_before() -> None:
    found = links([CoordinatorOutage(at_s=0.0, for_s=1000.0)])
    assert 0.1 < found[Link.BODY] / found.total() < 0.4  # one of four gateways
