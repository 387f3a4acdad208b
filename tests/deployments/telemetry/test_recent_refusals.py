"""What a gateway remembers of requests that got no answer: from the host that gave them up, and from its errors."""

from dataclasses import asdict

from deployments.telemetry.refusals import INVALID, NUM_KEPT, RecentRefusals
from engines.contract import Chunk
from policies import Reason, Role
from routing import Outcome, OutcomeKind
from routing.lanes.lanes import Lane, TokenRange
from tests.deployments.host_dialogue import HostDialogue
from tests.policy_doubles import a_request
from tests.tables import for_each

REFUSED = Outcome(kind=OutcomeKind.REFUSED, reason=Reason.SHED)


async def test_a_request_that_is_refused_is_remembered_with_its_class_and_its_lane() -> None:
    pools = tuple(f"{role}-pool" for role in Role)
    short = Lane(name="short", pools=pools, prompt_tokens=TokenRange(below=100))
    talk = HostDialogue(lanes=(short, Lane(name="long", pools=pools, prompt_tokens=TokenRange(at_least=100))))
    talk.clock.time_s = 3.0

    await talk.arrives("q", priority="critical")

    (refusal,) = talk.refusals.latest()
    assert (refusal.kind, refusal.reason, refusal.at_s) == ("refused", "no_replica_available", 3.0)
    assert (refusal.priority, refusal.lane) == ("critical", "short")
    assert refusal.says == "no replica can take this request now; try again later"


async def test_requests_that_were_answered_or_left_alone_by_their_clients_are_not() -> None:
    talk = HostDialogue().replicas(Role.UNIFIED, "a")
    await talk.serves("answered", Chunk("Hello", (1,)), Chunk("", (), "stop"))
    await talk.arrives("left")
    talk.host.abandon("left")
    assert not talk.refusals.latest()


def test_an_error_before_the_dispatcher_is_remembered_and_one_for_an_outcome_is_no_second_time() -> None:
    refusals = RecentRefusals(lambda: 1.0)

    refusals.note_outcome(a_request(), "", REFUSED)
    refusals.note_error(429, "shed")
    refusals.note_error(400, "context_length_exceeded")

    assert [(each.number, each.kind, each.reason) for each in refusals.latest()] == [
        (1, "refused", "shed"),
        (2, INVALID, "context_length_exceeded"),
    ]


@for_each(("status", "kind"), [(400, INVALID), (401, INVALID), (429, INVALID), (500, "failed"), (503, "failed")])
def test_what_goes_wrong_here_is_not_the_clients_mistake(status: int, kind: str) -> None:
    refusals = RecentRefusals(lambda: 1.0)
    refusals.note_error(status, "some_code")
    assert [(each.kind, each.reason) for each in refusals.latest()] == [(kind, "some_code")]


def test_the_oldest_are_forgotten_and_numbers_go_on() -> None:
    refusals = RecentRefusals(lambda: 1.0)
    for _ in range(NUM_KEPT + 7):
        refusals.note_outcome(a_request(), "", REFUSED)
    assert [each.number for each in refusals.latest()] == list(range(8, NUM_KEPT + 8))


def test_neither_who_asked_nor_what_is_remembered() -> None:
    refusals = RecentRefusals(lambda: 1.0)
    refusals.note_outcome(a_request("cmpl-7"), "", REFUSED)
    (refusal,) = refusals.latest()
    assert set(asdict(refusal)) == {"number", "at_s", "kind", "reason", "says", "priority", "lane"}
    assert "cmpl-7" not in str(refusal)
