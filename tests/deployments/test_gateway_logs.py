"""What a gateway has logged that does not hold fails the tests that deployed it, and so does one that logs nothing."""

from pathlib import Path

import pytest

from cluster.event_log.frames import CLOSED
from routing import Arrived, SetTimer
from tests.cluster.logged import LogInMemory, a_header
from tests.deployments.gateway_logs import GatewayLogs, check_logs
from tests.policy_doubles import a_request


def a_log_with_an_open_request(end: str | None) -> bytes:
    log = LogInMemory(a_header())
    log.on_event(1.0, Arrived(request=a_request("q")), [SetTimer(token="q:deadline", at_s=60.0)])
    return log.whole(end)


def test_what_does_not_hold_is_an_error_that_says_what_and_where(tmp_path: Path) -> None:
    path = tmp_path / "gw-1.log"
    path.write_bytes(a_log_with_an_open_request(CLOSED))

    with pytest.raises(AssertionError) as failed:
        check_logs(tmp_path)

    assert str(failed.value).startswith("what must hold in any conversation of a dispatcher's does not:\n")
    assert f"{path}, record 1, 1.000 s: q is left without an outcome" in str(failed.value)


def test_a_gateway_that_writes_still_may_have_something_open(tmp_path: Path) -> None:
    (tmp_path / "gw-1.log").write_bytes(a_log_with_an_open_request(None))
    (tmp_path / "gw-2.log").write_bytes(b"")  # it is about to begin

    check_logs(tmp_path)


def test_a_gateway_that_logs_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="no gateway has written an event log"):
        check_logs(tmp_path / "nothing")


def test_an_application_that_has_an_event_log_keeps_it_and_it_is_looked_at(tmp_path: Path) -> None:
    logs = GatewayLogs(tmp_path)
    own = {"gateway": {"event_log": str(tmp_path / "own"), "replicas": 2}}

    assert logs.added_to(own, "one") is own
    assert logs.added_to({"model": {}}, "other") == {
        "model": {},
        "gateway": {"event_log": str(tmp_path / "other")},
    }
    with pytest.raises(AssertionError, match="own"):
        logs.check("one")
