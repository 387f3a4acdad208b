"""What a gateway and the listener of its node say to each other, and what they pass along::

gateway    Joining(slot)  + listening socket, page    or, the first time, Joining(None)
listener   Joined(slot)   + listening socket, page    or Refused(why)
"""

import msgspec


class Joining(msgspec.Struct, frozen=True, tag=True):
    """A gateway that wants to take connections; with a slot, it brings what it has."""

    slot: int | None = None


class Joined(msgspec.Struct, frozen=True, tag=True):
    """It may, and has this slot."""

    slot: int


class Refused(msgspec.Struct, frozen=True, tag=True):
    """It may not."""

    why: str


Message = Joining | Joined | Refused
