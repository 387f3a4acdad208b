"""What can be wrong with an engine on purpose: the emulated engine and the simulator know the same kinds."""

from enum import StrEnum


class FaultKind(StrEnum):
    """A fault that can be switched on while an engine runs.

    ``SLOW``: every step takes a factor longer. ``STALL``: no step begins, and nothing else gives it away.
    ``CRASH``: the engine is dead and stays so. ``REFUSE``: what runs goes on, what is new is turned away as by a dead
    engine. ``DROP_KV``: nobody can claim the KV blocks that the engine holds.
    """

    SLOW = "slow"
    STALL = "stall"
    CRASH = "crash"
    REFUSE = "refuse"
    DROP_KV = "drop_kv"
