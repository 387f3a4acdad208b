from dataclasses import replace
from pathlib import Path

import pytest

from cluster.event_log.request_log import FinishedRequests, main
from policies import RequestView
from policies.decisions import Reason
from routing import Arrived, AttemptFailed, AttemptFinished, Cancel, Effect, Event, Outcome, OutcomeKind, Respond
from routing.sizing.length_log import LoggedRequest, read_log
from tests.cluster.logged import LogInMemory, a_header
from tests.policy_doubles import a_request


def asked(request_id: str) -> RequestView:
    return replace(a_request(request_id, prompt_tokens=70), tenant="acme", prompt_ngrams=(4, 9))


def respond(request_id: str, kind: OutcomeKind = OutcomeKind.COMPLETED) -> Respond:
    return Respond(request_id=request_id, outcome=Outcome(kind=kind))


def a_log(*records: tuple[Event, list[Effect]]) -> LogInMemory:
    log = LogInMemory(a_header())
    for number, (event, effects) in enumerate(records):
        log.on_event(float(number), event, effects)
    return log


def finished(attempt_id: str, output_tokens: int) -> AttemptFinished:
    return AttemptFinished(attempt_id=attempt_id, output_tokens=output_tokens)


def test_a_completed_request_is_logged_with_the_answer_that_completed_it() -> None:
    log = a_log(
        (Arrived(request=asked("q")), []),
        (finished("q.0", 1), [Cancel(attempt_id="q.3")]),
        (finished("q.1", 33), [respond("q"), Cancel(attempt_id="q.2")]),
        (finished("q.2", 8), []),
    )

    (request,) = FinishedRequests(log.file())

    assert request == LoggedRequest(
        prompt_tokens=70, max_output_tokens=50, output_tokens=33, tenant="acme", ngrams=(4, 9)
    )


def test_what_was_not_answered_in_full_is_left_out() -> None:
    log = a_log(
        (Arrived(request=asked("refused")), [respond("refused", OutcomeKind.REFUSED)]),
        (Arrived(request=asked("failed")), []),
        (AttemptFailed(attempt_id="failed.0", reason=Reason.REPLICA_LOST), [respond("failed", OutcomeKind.FAILED)]),
        (Arrived(request=asked("open")), []),
        (finished("early.0", 5), [respond("early")]),
    )
    log.on_error(9.0, finished("open.0", 4), ValueError())

    assert list(FinishedRequests(log.file())) == []


def test_the_command_writes_what_training_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = a_log((Arrived(request=asked("q")), []), (finished("q.0", 33), [respond("q")]))
    paths = [tmp_path / "one.log", tmp_path / "two.log"]
    for path in paths:
        path.write_bytes(log.whole())
    output = tmp_path / "requests.jsonl"

    assert main([*map(str, paths), "--output", str(output)]) == 0

    assert [each.output_tokens for each in read_log(output)] == [33, 33]
    assert "2 requests" in capsys.readouterr().out


def test_a_log_in_which_nothing_finished_is_said_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = a_log(
        (Arrived(request=asked("refused")), [respond("refused", OutcomeKind.REFUSED)]),
        (Arrived(request=asked("open")), []),
    )
    paths = [tmp_path / "one.log", tmp_path / "two.log"]
    for path in paths:
        path.write_bytes(log.whole())
    output = tmp_path / "requests.jsonl"

    assert main([*map(str, paths), "--output", str(output)]) == 2

    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "4 requests seen, none finished: nothing to write\n")
    assert not output.exists()


@pytest.mark.parametrize("content", [None, b"no log"], ids=["missing", "other"])
def test_the_command_refuses_what_is_no_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None
) -> None:
    path = tmp_path / "gateway.log"
    if content is not None:
        path.write_bytes(content)

    assert main([str(path), "--output", str(tmp_path / "requests.jsonl")]) == 2

    assert capsys.readouterr().err.startswith(f"{path}: ")
