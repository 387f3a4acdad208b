"""What goes wrong in a run, on a schedule."""

from dataclasses import dataclass

from engines.faults import FaultKind, check_fault
from policies.errors import ConfigError
from policies.views import Role
from routing.config.spec import DispatcherSpec


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
        _check_times(self.at_s, self.for_s)
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
        _check_times(self.at_s, self.for_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayPause:
    """A gateway stands still: it hears of all that happens meanwhile when it goes on.

    Args:
        at_s: From when on.
        for_s: For how long.
        gateway: Which, counted from 0.

    Raises:
        ConfigError: A number out of range.
    """

    at_s: float
    for_s: float
    gateway: int

    def __post_init__(self) -> None:
        _check_times(self.at_s, self.for_s)
        _check_gateway(self.gateway)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayDeath:
    """A gateway dies with all that it knows. Its clients' connections break; what they send goes to the others, or
    waits where there is none, until another one has its place.

    Args:
        at_s: When.
        for_s: How long until then.
        gateway: Which, counted from 0.

    Raises:
        ConfigError: A number out of range.
    """

    at_s: float
    for_s: float
    gateway: int

    def __post_init__(self) -> None:
        _check_times(self.at_s, self.for_s)
        _check_gateway(self.gateway)


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """Nothing gets through between a gateway and a replica, and both lose what they have of each other.

    Args:
        at_s: From when on.
        for_s: For how long.
        gateway: Which, counted from 0.
        role: In which pool the replica is.
        replica: Which of the pool's replicas, counted from 0.

    Raises:
        ConfigError: A number out of range.
    """

    at_s: float
    for_s: float
    gateway: int
    role: Role
    replica: int

    def __post_init__(self) -> None:
        _check_times(self.at_s, self.for_s)
        if self.gateway < 0 or self.replica < 0:
            raise ConfigError("gateway, replica", (self.gateway, self.replica), "0 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowNetwork:
    """Messages between a gateway and all replicas take longer, as where packets are lost and sent again.

    Args:
        at_s: From when on.
        for_s: For how long.
        gateway: Which, counted from 0.
        extra_s: How much longer, one way.

    Raises:
        ConfigError: A number out of range.
    """

    at_s: float
    for_s: float
    gateway: int
    extra_s: float

    def __post_init__(self) -> None:
        _check_times(self.at_s, self.for_s)
        _check_gateway(self.gateway)
        if self.extra_s <= 0:
            raise ConfigError("extra_s", self.extra_s, "more than 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconfiguration:
    """All gateways go on with other policies, as ``deployments.reload`` has them do.

    Args:
        at_s: When.
        dispatcher: What they go on with; the fleet's pools stay.

    Raises:
        ConfigError: A number out of range.
    """

    at_s: float
    dispatcher: DispatcherSpec

    def __post_init__(self) -> None:
        if self.at_s < 0:
            raise ConfigError("at_s", self.at_s, "0 or more")


AnyFault = Fault | CoordinatorOutage | GatewayDeath | GatewayPause | Partition | SlowNetwork | Reconfiguration


def _check_times(at_s: float, for_s: float) -> None:
    if at_s < 0:
        raise ConfigError("at_s", at_s, "0 or more")
    if for_s <= 0:
        raise ConfigError("for_s", for_s, "more than 0")


def _check_gateway(rank: int) -> None:
    if rank < 0:
        raise ConfigError("gateway", rank, "0 or more")
