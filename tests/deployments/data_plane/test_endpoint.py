"""Where a replica is found, and that connections are encrypted where Ray is."""

import asyncio
from pathlib import Path

import pytest

from deployments.data_plane import replica_connection
from deployments.data_plane.endpoint import Endpoint, new_key, tls_contexts
from deployments.data_plane.replica_connection import ConnectionState, ReplicaConnection
from policies.errors import ConfigError
from tests.deployments.data_plane.certificates import make_certificates
from tests.deployments.data_plane.ends import END, Ends, Heard, an_order
from tests.waiting import until_here


def test_what_a_replica_says_is_found_again() -> None:
    endpoint = Endpoint("10.0.0.7", 40_123, new_key())
    assert Endpoint.from_metadata({"role": "unified", **endpoint.to_metadata()}) == endpoint
    assert Endpoint.from_metadata({"role": "unified"}) is None


@pytest.mark.parametrize("environment", [{}, {"RAY_USE_TLS": "0"}, {"RAY_USE_TLS": "false"}])
def test_where_ray_does_not_encrypt_nothing_is(environment: dict[str, str]) -> None:
    assert tls_contexts(environment) is None


@pytest.mark.parametrize("missing", ["RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT"])
def test_a_file_that_is_not_there_is_refused_at_the_start(missing: str, tmp_path: Path) -> None:
    environment = make_certificates(tmp_path)
    del environment[missing]
    with pytest.raises(ConfigError, match="RAY_USE_TLS") as caught:
        tls_contexts(environment)
    assert missing in str(caught.value)


async def test_ends_with_certificates_of_one_authority_talk_encrypted(tmp_path: Path) -> None:
    contexts = tls_contexts(make_certificates(tmp_path))
    assert contexts is not None
    async with Ends.connected(contexts) as ends:
        heard = Heard()
        ends.connection.call(an_order("q", bytes(1_000_000)), heard)
        ends.engine.gives("q", END)
        await until_here(lambda: heard.items == [END])
        assert ends.connection._wire is not None
        assert ends.connection._wire._transport.get_extra_info("cipher")[1] == "TLSv1.3"


async def test_a_gateway_without_a_certificate_or_with_a_strangers_gets_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_connection, "CONNECT_PATIENCE_S", 0.2)
    (tmp_path / "ours").mkdir()
    (tmp_path / "theirs").mkdir()
    ours, theirs = (tls_contexts(make_certificates(tmp_path / whose)) for whose in ("ours", "theirs"))
    assert ours is not None
    assert theirs is not None
    async with Ends.connected(ours, waits=False) as ends:
        for context in (None, theirs[1]):
            stranger = ReplicaConnection(ends.server.endpoint, "stranger", context)
            heard = Heard()
            stranger.call(an_order("q"), heard)
            await until_here(lambda heard=heard: heard.failures)  # type: ignore[misc]
            assert stranger.state is not ConnectionState.READY
            stranger.close()
        await asyncio.sleep(0)
        assert ends.engine.orders == {}
