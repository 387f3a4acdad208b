import pytest

from policies import InvariantViolation, Role
from routing.request.attempt import Attempt, AttemptLedger


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
    ledger, attempt = AttemptLedger(), an_attempt()
    ledger.open(attempt)
    assert (len(ledger), ledger.get("q.0")) == (1, attempt)

    assert ledger.close("q.0") is attempt
    assert ledger.close("q.0") is None
    assert (len(ledger), ledger.get("q.0")) == (0, None)


def test_an_attempt_id_that_is_open_cannot_be_opened_again() -> None:
    ledger = AttemptLedger()
    ledger.open(an_attempt())

    with pytest.raises(InvariantViolation, match=r"attempt q\.0 is open already"):
        ledger.open(an_attempt())
