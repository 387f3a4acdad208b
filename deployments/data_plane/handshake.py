"""How the two ends of a connection make sure of each other before the first attempt; nothing here does I/O.

Each replica has a key of its own, which it says together with its address: in what Serve keeps of it, where only
members of the Ray cluster can ask. Both ends prove by an HMAC over two nonces that they have it, one of each end, so
that what was overheard once proves nothing a second time. Then the gateway knows that it talks to the replica that it
means, and the replica that it talks to a member of its cluster::

    replica   Welcome(version, nonce)
    gateway   Hello(version, nonce, proof, gateway)
    replica   Ready(proof), or Refused(why)

An end that has proved nothing can make the other one keep a kilobyte, for a few seconds.
"""

import hmac
import secrets

import msgspec

from deployments.data_plane.frames import FrameError, frame

VERSION = 4
"""Of all that is said over a connection. Ends that differ don't talk: the gateway goes by Ray's handles then."""
MAX_HANDSHAKE_BYTES = 1024
NONCE_BYTES = 32


class Welcome(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """The replica's first word."""

    version: int
    nonce: bytes


class Hello(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The gateway's, with the proof that it has the key."""

    version: int
    nonce: bytes
    proof: bytes
    gateway: str


class Ready(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The replica has the key, too, and attempts may come."""

    proof: bytes


class Refused(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """The replica wants nothing to do with it."""

    why: str


class HandshakeFailed(FrameError):
    """The ends don't come together.

    Args:
        why: What is in the way.
        is_final: Whether it stays so, however often it is tried.
    """

    def __init__(self, why: str, *, is_final: bool = False) -> None:
        super().__init__(why)
        self.is_final = is_final


_encode = msgspec.msgpack.Encoder().encode
_from_replica = msgspec.msgpack.Decoder(Welcome | Ready | Refused).decode
_from_gateway = msgspec.msgpack.Decoder(Hello).decode


class ReplicaHandshake:
    """The replica's side.

    Args:
        key: Its own.

    Attributes:
        gateway: Who is at the other end, once that is proved.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self.gateway = ""

    def opening(self) -> bytes:
        """The first frame."""
        return frame(_encode(Welcome(VERSION, self._nonce)))

    def answer(self, body: bytes) -> bytes:
        """The frame that answers what the gateway has said; attempts may follow it.

        Raises:
            HandshakeFailed: It has not proved anything. :meth:`refusal` says so to it.
        """
        try:
            hello = _from_gateway(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise HandshakeFailed(f"not a hello: {error}") from error
        if hello.version != VERSION:
            raise HandshakeFailed(f"the gateway speaks version {hello.version}, this replica {VERSION}", is_final=True)
        nonces = self._nonce + hello.nonce
        is_proved = hmac.compare_digest(hello.proof, _proof(self._key, "gateway", nonces))
        if len(hello.nonce) != NONCE_BYTES or not is_proved or not hello.gateway:
            raise HandshakeFailed("the gateway does not have this replica's key")
        self.gateway = hello.gateway
        return frame(_encode(Ready(_proof(self._key, "replica", nonces))))

    @staticmethod
    def refusal(why: str) -> bytes:
        """The frame that ends it."""
        return frame(_encode(Refused(why)))


class GatewayHandshake:
    """The gateway's side.

    Args:
        key: The replica's.
        gateway: Who this is.

    Attributes:
        is_done: Whether attempts may go out.
    """

    def __init__(self, key: bytes, gateway: str) -> None:
        self._key = key
        self._gateway = gateway
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self._nonces = b""
        self.is_done = False

    def answer(self, body: bytes) -> bytes:
        """What goes out upon what the replica has said; nothing, after its last word.

        Raises:
            HandshakeFailed: It refuses, or has not proved anything.
        """
        try:
            said = _from_replica(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise HandshakeFailed(f"not a replica's word: {error}") from error
        match said:
            case Welcome() if not self._nonces:
                return self._hello(said)
            case Ready() if self._nonces and hmac.compare_digest(
                said.proof, _proof(self._key, "replica", self._nonces)
            ):
                self.is_done = True
                return b""
            case Refused():
                raise HandshakeFailed(f"the replica refuses: {said.why}")
        raise HandshakeFailed("the other end does not have the replica's key")

    def _hello(self, welcome: Welcome) -> bytes:
        if welcome.version != VERSION:
            raise HandshakeFailed(
                f"the replica speaks version {welcome.version}, this gateway {VERSION}", is_final=True
            )
        if len(welcome.nonce) != NONCE_BYTES:
            raise HandshakeFailed(f"a nonce of {len(welcome.nonce)} bytes, not {NONCE_BYTES}")
        self._nonces = welcome.nonce + self._nonce
        proof = _proof(self._key, "gateway", self._nonces)
        return frame(_encode(Hello(VERSION, self._nonce, proof, self._gateway)))


def _proof(key: bytes, side: str, nonces: bytes) -> bytes:
    return hmac.digest(key, side.encode() + nonces, "sha256")
