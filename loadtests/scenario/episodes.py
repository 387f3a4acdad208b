"""Replicas that fail now and then: faults by how much of the time there are any, not by the clock."""

from collections.abc import Iterator
from dataclasses import dataclass

from cluster.seeds import Seeds
from cluster.sim.faults import Fault
from engines.faults import FaultKind, check_fault
from policies.errors import ConfigError
from policies.views import Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Episodes:
    """Every replica of a role fails for a while, again and again, at times of its own.

    Args:
        kind: How.
        role: Whose.
        share_of_time: How much of the time a replica fails; 0.0001 to 0.99.
        for_s: How long each time; 0.01 s to a day.
        factor: How much slower, for ``SLOW``.

    Raises:
        ConfigError: A number out of range, or a fault that would change nothing.
    """

    kind: FaultKind
    role: Role
    share_of_time: float
    for_s: float
    factor: float = 1.0

    def __post_init__(self) -> None:
        if not 0.0001 <= self.share_of_time <= 0.99:
            raise ConfigError("share_of_time", self.share_of_time, "0.0001 to 0.99")
        if not 0.01 <= self.for_s <= 86_400:
            raise ConfigError("for_s", self.for_s, "0.01 to 86400 seconds")
        if self.kind is FaultKind.CRASH:
            raise ConfigError("kind", self.kind.value, "a fault that ends; a replica that crashes is gone")
        check_fault(self.kind, self.role, self.factor)

    def faults(self, num_replicas: int, duration_s: float, seeds: Seeds) -> Iterator[Fault]:
        """The faults of a run: on each replica, the times between two have an exponential distribution.

        Args:
            num_replicas: Of the role.
            duration_s: They begin before this time.
            seeds: Of the run. Each replica has a stream of its own, which no policy draws from.
        """
        pause_s = self.for_s * (1 - self.share_of_time) / self.share_of_time
        for replica in range(num_replicas):
            rng = seeds.stream(f"episodes.{self.kind.value}.{self.role.value}.{replica}")
            at_s = rng.expovariate(1 / pause_s)
            while at_s < duration_s:
                yield Fault(
                    kind=self.kind, at_s=at_s, for_s=self.for_s, role=self.role, replica=replica, factor=self.factor
                )
                at_s += self.for_s + rng.expovariate(1 / pause_s)
