"""How often a client's retry is linked to a logical request that is not its own, and what that costs it.

``python -m loadtests.studies.retry_links``

``overload-ragged`` behind four gateways with ``deadline`` and ``edf``, its clients those of the openai package: a count
and no key. They are told not to come back and come nevertheless, so that there are many retries to be linked. Some send
what somebody else sends, word for word: the one before them, or again and again one of ten prompts that they have in
common. The simulator knows whose retry is whose.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from cluster.seeds import Seeds
from cluster.sim.simulator import simulate
from cluster.sim.traffic import Arrival, PlannedRequest
from loadtests.scenario.scenario import POLICY, Scenario, load
from loadtests.workloads.clients import OFFICIAL_CLIENTS, Clients
from policies.views import RequestView
from routing.request.effects import ClientRetry, Link, Outcome, Record
from routing.request.events import Arrived, Event

FRACTIONS = (0.0, 0.01, 0.05, 0.2, 0.5)
SETTINGS = {
    "fleet.num_gateways": 4,
    "policies.admission": "deadline",
    "policies.queueing": "edf",
    "baselines": {},
    "checks": [],
}
NUM_COMMON = 10
TOLERANCE_S = 0.05
"""A link to another first arrival that is no further away changes nothing for the request."""


class EqualBodies:
    """Clients of whom some send what others send.

    Args:
        clients: The clients.
        fraction: How many, 0 to 1.
        num_common: How many prompts these have; 0: each sends that of the one before.
        seed: Of the choice.
    """

    def __init__(self, clients: Clients, fraction: float, num_common: int, seed: int) -> None:
        self._clients = clients
        self._fraction = fraction
        self._num_common = num_common
        self._choice = Seeds(seed).stream("equal bodies")

    def arrivals(self) -> Iterator[Arrival]:
        before = 0
        for arrival in self._clients.arrivals():
            body = before
            if self._choice.random() >= self._fraction:
                body = before = arrival.request.logical_request
            elif self._num_common:
                body = self._choice.randrange(self._num_common)
            yield Arrival(arrival.at_s, msgspec.structs.replace(arrival.request, equal_to=body))

    def on_end(self, request: PlannedRequest, outcome: Outcome, now_s: float) -> Sequence[Arrival]:
        return self._clients.on_end(request, outcome, now_s)


@dataclass(slots=True)
class Links:
    """What became of the retries of a run.

    Args:
        num_retries: All of them.
        num_linked: To whichever first arrival.
        num_wrong: To that of another logical request.
        num_longer: Of these, how many have got more time by it than they had left.
        num_shorter: Likewise, less.
    """

    num_retries: int = 0
    num_linked: int = 0
    num_wrong: int = 0
    num_longer: int = 0
    num_shorter: int = 0
    _arrived_s: dict[str, float] = field(default_factory=dict)

    def note(self, _: int, now_s: float, event: Event, effects: Any) -> None:
        """Hears everything that gateways are told and answer."""
        if not isinstance(event, Arrived):
            return
        request = event.request
        self._arrived_s[request.request_id] = request.arrival_s
        for effect in effects:
            if isinstance(effect, Record) and isinstance(effect.decision, ClientRetry):
                self._note_retry(request, effect.decision)

    def _note_retry(self, request: RequestView, retry: ClientRetry) -> None:
        self.num_retries += 1
        if retry.link is Link.NONE:
            return
        self.num_linked += 1
        own_id = f"{request.request_id.partition('-')[0]}-0"
        if retry.first_request_id == own_id:
            return
        self.num_wrong += 1
        given_s = self._arrived_s[retry.first_request_id] - self._arrived_s[own_id]
        self.num_longer += given_s > TOLERANCE_S
        self.num_shorter += given_s < -TOLERANCE_S

    def row(self, what: str, fraction: float) -> str:
        """Of a table in Markdown."""
        shares = (self.num_linked, self.num_wrong, self.num_longer, self.num_shorter)
        cells = (f"{each / max(1, self.num_retries):.2%}" for each in shares)
        return f"| {what} | {fraction:.0%} | {self.num_retries:,} | {' | '.join(cells)} |"


def links_of(scenario: Scenario, fraction: float, seed: int, num_common: int = 0) -> Links:
    """Runs the scenario with so many users who send what others send; see :class:`EqualBodies`."""
    retries = replace(OFFICIAL_CLIENTS["openai"], honours_no_retry=False)
    clients = Clients(scenario.workload.build(scenario.duration_s), Seeds(seed), retries)
    links = Links()
    simulate(
        scenario.fleet_spec(),
        scenario.dispatcher_spec(POLICY),
        EqualBodies(clients, fraction, num_common, seed),
        scenario.workload.class_names,
        seed=seed,
        on_event=links.note,
    )
    return links


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.studies.retry_links", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--seed", type=int, default=1, help="of all random streams")
    seed = parser.parse_args(arguments).seed
    scenario = load("overload-ragged", SETTINGS)
    print("| Equal bodies | of all | retries | linked | to another's | more time by it | less time by it |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for num_common, what in ((0, "the one before"), (NUM_COMMON, f"{NUM_COMMON} common ones")):
        for fraction in FRACTIONS:
            print(links_of(scenario, fraction, seed, num_common).row(what, fraction), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
