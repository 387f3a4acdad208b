"""What can go wrong with an engine, as a closed list that the emulated engine and the simulator share."""

from enum import StrEnum


class FaultKind(StrEnum):
    """A way to fail.

    ``SLOW``: steps take a factor longer. ``STALL``: no step is made. ``CRASH``: the engine dies with all it holds.
    ``REFUSE``: new requests are turned away. ``DROP_KV``: what a prefill holds can't be pulled.
    """

    SLOW = "slow"
    STALL = "stall"
    CRASH = "crash"
    REFUSE = "refuse"
    DROP_KV = "drop_kv"
