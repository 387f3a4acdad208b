import pytest

from policies import InvariantViolation, Role
from routing.attempts.open_attempts import OpenAttempts
from routing.request.attempt import Attempt


def an_attempt() -> Attempt:
    return Attempt(
        attempt_id="q.0",
        request_id="q",
        stage=Role.UNIFIED,
        replica_id="a",
        prefill_tokens=1,
        kv_tokens=0,
        sent_at_s=0.0,
    )


def test_an_attempt_can_be_closed_once() -> None:
    open_attempts, attempt = OpenAttempts(), an_attempt()
    open_attempts.open(attempt)
    assert (len(open_attempts), open_attempts.get("q.0")) == (1, attempt)

    assert open_attempts.close("q.0") is attempt
    assert open_attempts.close("q.0") is None
    assert (len(open_attempts), open_attempts.get("q.0")) == (0, None)


def test_an_attempt_id_that_is_open_cannot_be_opened_again() -> None:
    open_attempts = OpenAttempts()
    open_attempts.open(an_attempt())

    with pytest.raises(InvariantViolation, match=r"attempt q\.0 is open already"):
        open_attempts.open(an_attempt())
