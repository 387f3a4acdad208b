"""What a gateway and the process that encodes its long texts say to each other."""

import struct
from enum import StrEnum

import msgspec

LENGTH = struct.Struct("<Q")
"""How long a message is; it comes first."""


class Wanted(StrEnum):
    """What is to come of a text."""

    COUNT = "count"
    """How many tokens it has."""
    IDS = "ids"
    """Their ids, four bytes for each."""
    JSON = "json"
    """Their ids, as a list in JSON."""


class Priority(StrEnum):
    """What a process has of cores that others want."""

    SPARE = "spare"
    """For texts next to nothing: others find the core free."""
    SHARE = "share"
    """A tenth of what others have."""


class Text(msgspec.Struct, frozen=True, array_like=True):
    """A text to encode.

    Args:
        number: The answer has the same.
        text: Itself.
        add_special_tokens: Whether those are added that begin a text.
        wanted: What is to come of it.
    """

    number: int
    text: str
    add_special_tokens: bool
    wanted: Wanted


class Encoded(msgspec.Struct, frozen=True, array_like=True):
    """What came of one.

    Args:
        number: Of the text.
        num_tokens: That it has.
        ids: As they were wanted.
        error: Why there are none.
    """

    number: int
    num_tokens: int = 0
    ids: bytes = b""
    error: str = ""


LOADED = Encoded(0)
"""The process says so when it can encode; texts have other numbers."""


def message(content: Text | Encoded) -> bytes:
    """What is sent of one."""
    encoded = msgspec.msgpack.encode(content)
    return LENGTH.pack(len(encoded)) + encoded
