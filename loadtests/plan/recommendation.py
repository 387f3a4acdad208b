"""The cheapest fleet for a scenario's users: of all its policies and pools, on all engines, proven on other seeds."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from rich.console import Console

from loadtests.plan.fleet_search import Candidate, Searched, Trial, searched
from loadtests.plan.verification import Verified, verified
from loadtests.scenario.scenario import Scenario
from loadtests.simulation.parallel import simulate_all
from policies.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """A fleet, and what speaks for it.

    Args:
        candidate: Its policies and pools.
        trial: Its size, as the search simulated it.
        verified: That size, with a replica fewer and with one lost, on seeds that the search did not see.
    """

    candidate: Candidate
    trial: Trial
    verified: Sequence[Verified]

    @property
    def is_proven(self) -> bool:
        """Whether that size keeps the SLOs, and with a replica fewer of any role does not."""
        size, *others = self.verified
        return size.keeps and not any(each.keeps for each in others if each.is_smaller)


def search_all(
    candidates: Sequence[Candidate], attained_fraction: float, jobs: int, console: Console
) -> list[Searched]:
    """The cheapest size of every candidate; see :func:`loadtests.plan.fleet_search.searched`.

    Raises:
        RunFailed: A simulation ended in an error.
    """
    return simulate_all(candidates, partial(searched, attained_fraction=attained_fraction), jobs, console)


def recommended(found: Sequence[Searched], attained_fraction: float, jobs: int, console: Console) -> Recommendation:
    """The cheapest of all, proven; of those that cost the same the one with the most requests within their SLOs.

    Args:
        found: Every candidate.
        attained_fraction: Of the requests, that are to be within their SLOs.
        jobs: Processes at a time.
        console: Shows progress.

    Raises:
        ConfigError: No candidate keeps the SLOs.
        RunFailed: A simulation ended in an error.
    """
    possible = [(each.cheapest, each.candidate) for each in found if each.cheapest is not None]
    if not possible:
        best = max(trial.goodput_fraction for each in found for trial in each.trials)
        raise ConfigError("--attained", attained_fraction, f"at most {best:.4g}, the best of all that was simulated")
    trial, candidate = min(possible, key=lambda pair: (pair[0].dollars_per_h, -pair[0].goodput_fraction))
    proof = verified(_on_other_seeds(candidate.scenario), trial.replicas, attained_fraction, jobs, console)
    return Recommendation(candidate=candidate, trial=trial, verified=proof)


def _on_other_seeds(scenario: Scenario) -> Scenario:
    """As many as the scenario has, that follow the last of them."""
    first = max(scenario.seeds) + 1
    return scenario.changed(seeds=tuple(range(first, first + len(scenario.seeds))))
