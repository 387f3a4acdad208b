"""What goes wrong in a run, on a schedule."""

from dataclasses import dataclass

from engines.faults import FaultKind, check_fault
from policies.errors import ConfigError
from policies.views import Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One replica fails for a while.

    Args:
        kind: How.
        at_s: From when on.
        for_s: For how long. A crashed replica's place stays empty for so long; then a new replica starts there, and is
            ready when the profile's ``start_s`` has gone by too.
        role: In which pool.
        replica: Which of the pool's replicas, counted from 0.
        factor: How much slower, for ``SLOW``.

    Raises:
        ConfigError: A number out of range, or a fault that would change nothing.
    """

    kind: FaultKind
    at_s: float
    for_s: float
    role: Role
    replica: int
    factor: float = 1.0

    def __post_init__(self) -> None:
        if self.at_s < 0:
            raise ConfigError("at_s", self.at_s, "0 or more")
        if self.for_s <= 0:
            raise ConfigError("for_s", self.for_s, "more than 0")
        if self.replica < 0:
            raise ConfigError("replica", self.replica, "0 or more")
        check_fault(self.kind, self.role, self.factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorOutage:
    """The load coordinator of the gateways' load dies; another one starts later, which knows nothing.

    Args:
        at_s: From when on there is none.
        for_s: For how long.

    Raises:
        ConfigError: A number out of range.
    """

    at_s: float
    for_s: float

    def __post_init__(self) -> None:
        if self.at_s < 0:
            raise ConfigError("at_s", self.at_s, "0 or more")
        if self.for_s <= 0:
            raise ConfigError("for_s", self.for_s, "more than 0")
