import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.local import inner_ports
from deployments.local.inner_ports import NUM_SHARES, InnerPorts, own_inner_ports
from policies.errors import ConfigError
from tests.tables import for_each

SHARES = st.integers(min_value=0, max_value=NUM_SHARES - 1)


@pytest.fixture
def taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Ports that somebody listens at, on a machine without launchers."""
    ports: set[int] = set()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(inner_ports, "is_free", lambda port: port not in ports)
    return ports


def all_of(ports: InnerPorts) -> set[int]:
    """Each of them."""
    return {*ports.ingress_http, *ports.ingress_grpc, *ports.proxy}


@for_each("ports", [(36_297, 46_197), (8000, 8100), (8099, 8199)])
def test_two_deployments_that_start_together_share_no_inner_port(ports: tuple[int, int], taken: set[int]) -> None:
    one_port, other_port = ports
    with own_inner_ports(one_port) as one, own_inner_ports(other_port) as other:
        assert all_of(one).isdisjoint(all_of(other))
        assert one.share == one_port % NUM_SHARES
    with own_inner_ports(other_port) as again:
        assert again.share == other_port % NUM_SHARES, "the first has stopped"


def test_a_deployment_whose_launcher_was_killed_keeps_its_inner_ports(taken: set[int]) -> None:
    with own_inner_ports(8000) as of_the_first:
        taken |= set(of_the_first.proxy)
    with own_inner_ports(8100) as ports:
        assert all_of(ports).isdisjoint(all_of(of_the_first))


def test_a_machine_full_of_deployments_takes_no_other(taken: set[int]) -> None:
    taken |= set(range(1 << 16))
    with pytest.raises(ConfigError, match="free inner ports"), own_inner_ports(8000):
        raise AssertionError("there are none")


@given(one=SHARES, other=SHARES)
def test_shares_overlap_nowhere_and_leave_the_ports_of_others_alone(one: int, other: int) -> None:
    ports = all_of(InnerPorts(one))
    assert len(ports) == 104
    assert all(19_999 < port < 32_768 for port in ports)
    assert one == other or ports.isdisjoint(all_of(InnerPorts(other)))
