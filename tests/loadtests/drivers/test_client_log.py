"""What clients note down, and what of it survives the way to another process."""

import numpy as np
import pytest

from cluster.sim.run_table import OUTCOMES, ROW_TYPE
from cluster.sim.traffic import PlannedRequest
from loadtests.drivers.answer_stream import AnswerStream
from loadtests.drivers.client_log import ClientLog
from loadtests.drivers.completions import NO_HEAD, Head, head_of
from loadtests.drivers.endings import COMPLETED, Ending
from loadtests.workloads.clients import AbandonedRequest
from policies.decisions import Reason
from routing.request.effects import Outcome, OutcomeKind
from tests.cluster.simulated import planned
from tests.loadtests.completion_server import event, token

SHED = Ending(outcome=Outcome(kind=OutcomeKind.REFUSED, reason=Reason.SHED), error="HTTP 503 shed")


def request(logical_request: int) -> PlannedRequest:
    return planned(logical_request, scheduled_s=float(logical_request), timeout_s=10.0)


def answer(*times_s: float) -> AnswerStream:
    stream = AnswerStream()
    for now_s in times_s:
        stream.feed(token(), now_s)
    usage = {"completion_tokens": len(times_s), "prompt_tokens_details": {"cached_tokens": 16}}
    stream.feed(event({"choices": [], "usage": usage}), 99.0)
    return stream


def served(log: ClientLog, logical_request: int, head: Head = NO_HEAD) -> None:
    sent_s = logical_request + 0.001
    log.add_sent(float(logical_request), sent_s)
    stream = answer(logical_request + 0.2, logical_request + 0.3, logical_request + 0.6)
    ending = Ending(outcome=COMPLETED)
    log.add_ended(
        request(logical_request), stream, ending, sent_s=sent_s, ended_s=logical_request + 0.7, is_last=True, head=head
    )


def refused(log: ClientLog, logical_request: int) -> None:
    log.add_sent(float(logical_request), float(logical_request))
    log.add_ended(
        request(logical_request),
        AnswerStream(),
        SHED,
        sent_s=float(logical_request),
        ended_s=logical_request + 0.1,
        is_last=False,
    )


def test_a_request_that_was_served_leaves_its_times_its_lane_and_its_longest_gap() -> None:
    log = ClientLog(("all",))
    served(log, 1, Head(gateway="g1", lane="short"))

    table, (details,) = log.table(), log.details()
    assert (table.sent_s[0], table.first_token_s[0], table.end_s[0]) == (1.001, 1.2, 1.6)
    assert (table.output_tokens[0], table.cached_tokens[0], table.gateway[0]) == (3, 16, 0)
    assert details.lane == "short"
    assert details.longest_gap_s == pytest.approx(0.3)


def test_a_refusal_is_counted_under_its_error() -> None:
    log = ClientLog(("all",))
    refused(log, 1)

    assert log.health().errors == {"HTTP 503 shed": 1}
    assert np.isnan(log.details()[0].longest_gap_s)


def test_what_two_processes_took_down_comes_together() -> None:
    """Rows, health and gateways, although each process has numbers of its own for those."""
    one, other, whole = ClientLog(("all",)), ClientLog(("all",)), ClientLog(("all",))
    one.cpu_fraction, other.cpu_fraction = 0.2, 0.5
    served(one, 1, Head(gateway="a"))
    served(other, 2, Head(gateway="b"))
    served(other, 3, Head(gateway="a"))
    refused(other, 4)
    other.add_dropped()
    other.abandoned.append(
        AbandonedRequest(
            logical_request=5, session=4, traffic_class=0, scheduled_s=5.0, abandoned_s=4.1, prompt_tokens=9
        )
    )

    whole.absorb(one.take())
    whole.absorb(other.take())

    table = whole.table()
    assert table.logical_request.tolist() == [1, 2, 3, 4]
    assert table.gateway.tolist() == [0, 1, 0, -1]
    assert [OUTCOMES[number] for number in table.outcome] == ["completed"] * 3 + ["refused"]
    assert table.duration_s == 4.1
    assert len(whole.details()) == 4
    assert [each.logical_request for each in whole.abandoned] == [5]
    health = whole.health()
    assert (health.sent, health.cpu_fraction, health.client_dropped) == (4, 0.5, 1)
    assert (health.cached_tokens, health.errors) == (48, {"HTTP 503 shed": 1})
    assert health.send_lag_p99_s == pytest.approx(0.001, abs=1e-4)


def test_what_was_taken_is_taken_once() -> None:
    """In instalments or at once, the same comes out."""
    log, whole, at_once = ClientLog(("all",)), ClientLog(("all",)), ClientLog(("all",))
    for logical_request in range(3):
        served(log, logical_request, Head(gateway=f"g{logical_request % 2}"))
        served(at_once, logical_request, Head(gateway=f"g{logical_request % 2}"))
        whole.absorb(log.take())
    whole.absorb(log.take())

    for name in ROW_TYPE.names or ():
        np.testing.assert_array_equal(getattr(whole.table(), name), getattr(at_once.table(), name), err_msg=name)
    assert whole.health() == at_once.health()


def test_where_the_time_went_is_kept_as_the_service_says_it() -> None:
    """At the end of a stream; in the head of what was refused."""
    log = ClientLog(("all",))
    stream = answer(0.2)
    stream.feed(event({"choices": [], "spillway": {"latency_budget_s": {"queue": 0.1, "prefill": 0.2}}}), 1.0)
    ending = Ending(outcome=COMPLETED)
    head = head_of({"server-timing": 'cache;desc="hit", queue;dur=1500.5, proxy;dur=x'}.get)
    log.add_ended(request(0), stream, ending, sent_s=0.0, ended_s=0.3, is_last=True, head=head)
    log.add_ended(request(1), AnswerStream(), SHED, sent_s=0.0, ended_s=0.3, is_last=True, head=head)

    assert [each.stages_s for each in log.details()] == [{"queue": 0.1, "prefill": 0.2}, {"queue": 1.5005}]
