"""How bodies are told apart on a connection between a gateway and a replica; nothing here reads or writes a socket.

A frame is its length, four bytes with the most significant first, and a body, which
:mod:`deployments.data_plane.messages` makes and reads.
"""

from collections.abc import Iterator

LENGTH_BYTES = 4
MAX_FRAME_BYTES = 64 * 1024 * 1024
"""Of a body. No request comes near it: what clients send is limited to a fraction of it, ``gateway.max_body_bytes``."""


class FrameError(ValueError):
    """What has come is no frame, or none that is expected here; the connection is of no more use."""


def frame(body: bytes) -> bytes:
    """A body behind its length.

    Raises:
        FrameError: It is too long.
    """
    if len(body) > MAX_FRAME_BYTES:
        raise FrameError(f"a frame has at most {MAX_FRAME_BYTES} bytes, not {len(body)}")
    return len(body).to_bytes(LENGTH_BYTES) + body


class FrameReader:
    """Cuts what comes from a connection into frames, however the network has cut it.

    Args:
        max_bytes: Longest body; a longer one is refused before it is there.
    """

    def __init__(self, max_bytes: int = MAX_FRAME_BYTES) -> None:
        self.max_bytes = max_bytes
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The bodies of the frames that are complete now, in order.

        Raises:
            FrameError: One is too long; nothing after it can be read.
        """
        self._rest += data
        at = 0
        while (begin := at + LENGTH_BYTES) <= len(self._rest):
            length = int.from_bytes(self._rest[at:begin])
            if length > self.max_bytes:
                raise FrameError(f"a frame of {length} bytes, where {self.max_bytes} are allowed")
            if begin + length > len(self._rest):
                break
            at = begin + length
            yield bytes(self._rest[begin:at])
        del self._rest[:at]
