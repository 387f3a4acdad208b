"""The handshake: ends that have the key come together, and nobody else."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.data_plane.endpoint import KEY_BYTES, new_key
from deployments.data_plane.frames import LENGTH_BYTES
from deployments.data_plane.handshake import (
    NONCE_BYTES,
    VERSION,
    GatewayHandshake,
    HandshakeFailed,
    Hello,
    Ready,
    ReplicaHandshake,
    Welcome,
)

KEY = new_key()


def body(frame: bytes) -> bytes:
    return frame[LENGTH_BYTES:]


def hello_to(replica: ReplicaHandshake, key: bytes = KEY) -> bytes:
    """What a gateway with that key says upon a replica's first word."""
    return body(GatewayHandshake(key, "gateway-a").answer(body(replica.opening())))


def test_two_ends_with_the_key_come_together() -> None:
    replica, gateway = ReplicaHandshake(KEY), GatewayHandshake(KEY, "gateway-a")

    hello = gateway.answer(body(replica.opening()))
    assert (replica.gateway, gateway.is_done) == ("", False)
    ready = replica.answer(body(hello))
    assert gateway.answer(body(ready)) == b""

    assert (replica.gateway, gateway.is_done) == ("gateway-a", True)


def test_a_gateway_with_another_key_is_refused() -> None:
    replica = ReplicaHandshake(KEY)
    with pytest.raises(HandshakeFailed, match="does not have this replica's key") as caught:
        replica.answer(hello_to(replica, new_key()))
    assert not caught.value.is_final
    assert replica.gateway == ""


def test_a_replica_with_another_key_is_not_believed() -> None:
    replica, gateway = ReplicaHandshake(new_key()), GatewayHandshake(KEY, "gateway-a")
    gateway.answer(body(replica.opening()))
    with pytest.raises(HandshakeFailed, match="does not have the replica's key"):
        gateway.answer(msgspec.msgpack.encode(Ready(bytes(32))))
    assert not gateway.is_done


def test_what_was_overheard_once_proves_nothing_to_another_connection() -> None:
    first, second = ReplicaHandshake(KEY), ReplicaHandshake(KEY)
    overheard = hello_to(first)
    first.answer(overheard)
    with pytest.raises(HandshakeFailed):
        second.answer(overheard)


def test_a_gateway_is_not_answered_with_its_own_proof() -> None:
    """Whoever has no key can't send a proof back to where it came from."""
    replica, gateway = ReplicaHandshake(KEY), GatewayHandshake(KEY, "gateway-a")
    hello = msgspec.msgpack.decode(body(gateway.answer(body(replica.opening()))), type=Hello)
    with pytest.raises(HandshakeFailed):
        gateway.answer(msgspec.msgpack.encode(Ready(hello.proof)))


def test_ends_of_other_versions_say_so_for_good() -> None:
    with pytest.raises(HandshakeFailed, match=f"replica speaks version 99, this gateway {VERSION}") as at_gateway:
        GatewayHandshake(KEY, "g").answer(msgspec.msgpack.encode(Welcome(99, bytes(NONCE_BYTES))))
    hello = Hello(99, bytes(NONCE_BYTES), b"", "g")
    with pytest.raises(HandshakeFailed, match=f"gateway speaks version 99, this replica {VERSION}") as at_replica:
        ReplicaHandshake(KEY).answer(msgspec.msgpack.encode(hello))
    assert at_gateway.value.is_final
    assert at_replica.value.is_final


def test_a_later_version_may_say_more_and_is_still_understood_as_another_one() -> None:
    later = msgspec.msgpack.encode([0, VERSION + 1, bytes(NONCE_BYTES), "what comes with it"])
    with pytest.raises(HandshakeFailed, match=f"version {VERSION + 1}") as caught:
        GatewayHandshake(KEY, "g").answer(later)
    assert caught.value.is_final


def test_a_refusal_is_told_to_the_gateway_in_its_own_words() -> None:
    replica, gateway = ReplicaHandshake(KEY), GatewayHandshake(KEY, "g")
    gateway.answer(body(replica.opening()))
    with pytest.raises(HandshakeFailed, match="the replica refuses: no room"):
        gateway.answer(body(replica.refusal("no room")))


def test_a_gateway_answers_one_welcome() -> None:
    replica, gateway = ReplicaHandshake(KEY), GatewayHandshake(KEY, "g")
    gateway.answer(body(replica.opening()))
    with pytest.raises(HandshakeFailed):
        gateway.answer(body(replica.opening()))


@given(st.binary(max_size=200))
def test_a_strangers_words_fail_on_either_side(said: bytes) -> None:
    for end in (ReplicaHandshake(KEY), GatewayHandshake(KEY, "g")):
        with pytest.raises(HandshakeFailed):
            end.answer(said)


def test_every_replica_has_a_key_of_its_own() -> None:
    assert len({new_key() for _ in range(10)}) == 10
    assert all(len(new_key()) == KEY_BYTES for _ in range(10))
