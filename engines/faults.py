"""What can go wrong with an engine, as a closed list that the emulated engine and the simulator share."""

from enum import StrEnum

from policies.errors import ConfigError
from policies.views import Role

MOST_FACTOR = 10_000


class FaultKind(StrEnum):
    """A way to fail.

    ``SLOW``: steps take a factor longer. ``STALL``: no step is made. ``CRASH``: the engine dies with all it holds.
    ``REFUSE``: new requests are turned away. ``FAIL``: new requests end at once in an error of the engine. ``DROP_KV``:
    what a prefill holds can't be pulled.
    """

    SLOW = "slow"
    STALL = "stall"
    CRASH = "crash"
    REFUSE = "refuse"
    FAIL = "fail"
    DROP_KV = "drop_kv"


def check_fault(kind: FaultKind, role: Role, factor: float) -> None:
    """Whether a fault would change anything; one that would not proves nothing in silence.

    Args:
        kind: Which.
        role: Of the replica.
        factor: How many times as long a step takes, for ``SLOW``; 1 for the others.

    Raises:
        ConfigError: It would not, or the factor is out of range.
    """
    if not 0 < factor <= MOST_FACTOR:
        raise ConfigError("factor", factor, f"more than 0, at most {MOST_FACTOR:,}")
    if (kind is FaultKind.SLOW) == (factor == 1.0):
        raise ConfigError("factor", factor, "another number than 1 for slow, and none for other faults")
    if kind is FaultKind.DROP_KV and role is not Role.PREFILL:
        raise ConfigError("role", role.value, "prefill for drop_kv: only such a replica holds KV for others")
