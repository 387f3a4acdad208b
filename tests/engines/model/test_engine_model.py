"""What an engine holds, has promised and remembers beside its steps, told by messages and without a host."""

import math
from collections.abc import Sequence as Ordered

import pytest

from engines.faults import FaultKind
from engines.model.batching import BatchLimits
from engines.model.cost_model import StepCoefficients
from engines.model.engine_model import REMEMBERED, EngineModel
from engines.model.messages import (
    Abort,
    AskClaim,
    BeginFault,
    Begun,
    ClaimKv,
    EndFault,
    Failed,
    Finished,
    FirstToken,
    GrantClaim,
    KvClaimed,
    KvClaimEnded,
    KvGone,
    KvHolderLost,
    KvPulled,
    Meet,
    Message,
    Submit,
    Withdrawn,
)
from engines.model.sequences import ExecutionClaim, Sequence
from engines.model.step_model import StepModelSpec
from policies.decisions import Reason

LEASE_S = 30.0


class Talk:
    """An engine whose steps and transfers take a second each."""

    def __init__(self) -> None:
        coefficients = StepCoefficients(
            step_s=1.0, new_token_s=0.0, attention_pair_s=0.0, sequence_s=0.0, context_token_s=0.0
        )
        limits = BatchLimits(max_num_seqs=8, max_num_batched_tokens=100)
        spec = StepModelSpec(
            coefficients=coefficients, limits=limits, num_kv_blocks=100, kv_transfer_overhead_s=1.0, max_steps_per_run=1
        )
        self.engine = EngineModel(spec, LEASE_S)
        self.now_s = 0.0

    def tell(self, *messages: Message) -> list[Message]:
        told: list[Message] = []
        for each in messages:
            told += self.engine.handle(each, self.now_s)
        return told

    def until(self, now_s: float) -> list[Message]:
        told: list[Message] = []
        while (next_s := self.engine.next_event_s) <= now_s and next_s < math.inf:
            told += self.engine.advance(next_s)
        self.now_s = now_s
        return told

    @property
    def kv_usage(self) -> float:
        return self.engine.steps.batch.blocks.usage_fraction


@pytest.fixture
def talk() -> Talk:
    return Talk()


@pytest.fixture
def holder(talk: Talk) -> Talk:
    """One that holds a prefill's KV since 1 s."""
    assert talk.tell(prefill()) == []
    assert talk.until(1.0) == [FirstToken("p", 1.0), Finished("p", 1.0)]
    return talk


def prefill() -> Submit:
    return Submit(Sequence("p", 10, 1, holds_kv=True))


def decode() -> Submit:
    return Submit(Sequence("d", 10, 2, pulls_kv=True))


def whole(name: str = "q.0") -> Submit:
    return Submit(Sequence(name, 10, 2))


def second(name: str = "q.1") -> Submit:
    return Submit(Sequence(name, 10, 2, claim=ExecutionClaim.WANTED))


# -- KV that it holds -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what_happens", "freed_at_s"),
    [
        ([], 31.0),
        ([(30.0, ClaimKv("p")), (50.0, KvPulled("p"))], 50.0),
        ([(20.0, ClaimKv("p")), (40.0, KvClaimEnded("p"))], 70.0),
        ([(20.0, ClaimKv("p")), (25.0, KvClaimEnded("p")), (40.0, ClaimKv("p")), (41.0, KvPulled("p"))], 41.0),
        ([(5.0, ClaimKv("p")), (6.0, ClaimKv("p")), (7.0, KvPulled("p")), (60.0, KvPulled("p"))], 60.0),
        ([(5.0, ClaimKv("p")), (6.0, ClaimKv("p")), (7.0, KvPulled("p")), (60.0, KvClaimEnded("p"))], 60.0),
        ([(5.0, ClaimKv("p")), (6.0, ClaimKv("p")), (7.0, KvClaimEnded("p")), (60.0, KvPulled("p"))], 60.0),
        ([(5.0, KvPulled("p"))], 31.0),
        ([(5.0, Abort("p"))], 5.0),
        ([(5.0, ClaimKv("p")), (6.0, Abort("p")), (7.0, KvPulled("p"))], 7.0),
    ],
    ids=[
        "no claim",
        "a claim stops the lease",
        "a lease begins anew after a claim that came to nothing",
        "and another claim stops it again",
        "two claims: with the last one",
        "which is lost, but one has pulled it",
        "the first of which is lost",
        "a pull without a claim",
        "nobody has its handle",
        "who has claimed it keeps it",
    ],
)
def test_kv_is_held_until(holder: Talk, what_happens: Ordered[tuple[float, Message]], freed_at_s: float) -> None:
    for at_s, message in what_happens:
        holder.until(at_s)
        assert holder.kv_usage > 0
        holder.tell(message)
    if holder.now_s < freed_at_s:
        holder.until(freed_at_s - 1e-9)
        assert holder.kv_usage > 0

    holder.until(freed_at_s)

    assert (holder.kv_usage, dict(holder.engine.held)) == (0, {})
    assert holder.tell(ClaimKv("p")) == [KvGone("p")]


def test_kv_that_is_dropped_cannot_be_claimed(holder: Talk) -> None:
    assert holder.tell(BeginFault(FaultKind.DROP_KV), ClaimKv("p")) == [KvGone("p")]
    assert holder.tell(EndFault(FaultKind.DROP_KV), ClaimKv("p")) == [KvClaimed("p")]


def test_a_request_of_a_name_that_is_open_or_held_is_refused(holder: Talk) -> None:
    holder.tell(whole())

    told = holder.tell(prefill(), whole())

    assert [(each.request_id, each.reason) for each in told if isinstance(each, Failed)] == [
        ("p", Reason.ENGINE_ERROR),
        ("q.0", Reason.ENGINE_ERROR),
    ]


# -- KV that another engine holds -------------------------------------------------------------------------------------


def test_a_decode_claims_its_kv_and_says_when_it_has_it(talk: Talk) -> None:
    assert talk.tell(decode()) == [ClaimKv("d")]
    assert talk.until(5.0) == []
    assert talk.tell(KvClaimed("d")) == []

    assert talk.until(20.0) == [KvPulled("d", 6.0), FirstToken("d", 7.0), Finished("d", 8.0)]
    assert talk.engine.kv_tokens_received == 10


def test_a_decode_whose_kv_is_gone_fails(talk: Talk) -> None:
    talk.tell(decode())

    assert talk.tell(KvGone("d", "it is gone")) == [Failed("d", Reason.KV_TRANSFER_FAILED, "it is gone")]
    assert (talk.engine.num_unfinished, talk.engine.kv_transfer_failures) == (0, 1)


def test_a_decode_that_is_stopped_before_the_answer_gives_its_claim_back(talk: Talk) -> None:
    talk.tell(decode(), Abort("d"))
    assert talk.engine.num_unfinished == 1

    assert talk.tell(KvClaimed("d")) == [KvPulled("d", 0.0)]
    assert talk.engine.num_unfinished == 0


def test_a_decode_that_is_stopped_in_its_queue_gives_its_claim_back(talk: Talk) -> None:
    talk.tell(BeginFault(FaultKind.STALL), decode(), KvClaimed("d"))
    talk.until(1.0)

    assert talk.tell(Abort("d")) == [KvPulled("d", 1.0)]


def test_a_decode_that_is_stopped_while_it_pulls_keeps_its_blocks_until_they_are_there(talk: Talk) -> None:
    talk.tell(decode(), KvClaimed("d"))
    talk.until(0.5)

    assert talk.tell(Abort("d")) == []

    assert (talk.kv_usage > 0, talk.engine.num_unfinished) == (True, 1)
    assert talk.until(5.0) == [KvPulled("d", 1.0)]
    assert (talk.kv_usage, talk.engine.num_unfinished, talk.engine.kv_tokens_received) == (0, 0, 10)


def test_a_decode_whose_holder_dies_during_the_transfer_fails(talk: Talk) -> None:
    talk.tell(decode(), KvClaimed("d"))
    talk.until(0.5)

    told = talk.tell(KvHolderLost("d"))

    assert [(each.request_id, each.reason) for each in told if isinstance(each, Failed)] == [
        ("d", Reason.KV_TRANSFER_FAILED)
    ]
    assert talk.until(5.0) == []
    assert talk.kv_usage == 0


# -- tied requests ----------------------------------------------------------------------------------------------------


def test_a_second_one_asks_when_its_turn_comes_and_begins_when_it_may(talk: Talk) -> None:
    talk.tell(second())
    assert talk.until(1.0) == [AskClaim("q.1")]

    assert talk.tell(GrantClaim("q.1")) == []

    assert talk.until(5.0) == [FirstToken("q.1", 2.0), Finished("q.1", 3.0)]


def test_a_second_one_leaves_its_queue_when_the_first_one_has_begun(talk: Talk) -> None:
    talk.tell(second())
    talk.until(1.0)

    assert talk.tell(Begun("q.1")) == [Withdrawn("q.1")]
    assert talk.until(5.0) == []


def test_a_second_one_that_has_begun_goes_on_whatever_it_hears(talk: Talk) -> None:
    talk.tell(second(), GrantClaim("q.1"))
    talk.until(0.5)

    assert talk.tell(Begun("q.1")) == []
    assert talk.until(5.0)[-1] == Finished("q.1", 2.0)


def test_a_first_one_says_when_it_begins_to_one_that_it_has_met(talk: Talk) -> None:
    talk.tell(BeginFault(FaultKind.STALL), whole())
    assert talk.tell(Meet("q.0")) == []
    talk.until(1.0)

    talk.tell(EndFault(FaultKind.STALL))

    assert talk.until(1.5) == [Begun("q.0")]


def test_a_first_one_that_comes_after_the_second_one_was_met_says_when_it_begins(talk: Talk) -> None:
    assert talk.tell(Meet("q.0"), whole()) == []

    assert talk.until(0.5) == [Begun("q.0")]


def test_a_first_one_that_has_not_begun_withdraws_when_it_is_asked(talk: Talk) -> None:
    talk.tell(BeginFault(FaultKind.STALL), whole(), Meet("q.0"))

    assert talk.tell(AskClaim("q.0")) == [Withdrawn("q.0"), GrantClaim("q.0")]
    assert talk.engine.num_unfinished == 0


@pytest.mark.parametrize("until_s", [0.5, 10.0], ids=["under way", "done"])
@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_second_one_that_meets_a_first_one_that_has_begun_has_lost(
    talk: Talk, until_s: float, is_stopped: bool
) -> None:
    talk.tell(whole())
    talk.until(until_s)
    if is_stopped:
        talk.tell(Abort("q.0"))

    assert talk.tell(Meet("q.0"), AskClaim("q.0")) == [Begun("q.0"), Begun("q.0")]


def test_a_second_one_whose_first_one_was_stopped_in_its_queue_computes_the_prompt(talk: Talk) -> None:
    talk.tell(BeginFault(FaultKind.STALL), whole(), Meet("q.0"), Abort("q.0"))

    assert talk.tell(AskClaim("q.0")) == [GrantClaim("q.0")]


def test_a_first_one_that_comes_after_its_claim_was_given_away_does_nothing(talk: Talk) -> None:
    talk.tell(Meet("q.0"), AskClaim("q.0"))

    assert talk.tell(whole()) == [Withdrawn("q.0")]
    assert talk.until(5.0) == []


def test_what_is_remembered_of_attempts_that_are_over_is_bounded(talk: Talk) -> None:
    for number in range(REMEMBERED + 1):
        talk.tell(AskClaim(f"q{number}"))

    assert talk.tell(whole(f"q{REMEMBERED}"), whole("q1")) == [Withdrawn(f"q{REMEMBERED}"), Withdrawn("q1")]
    assert talk.tell(whole("q0")) == []


# -- faults -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "reason"), [(FaultKind.REFUSE, Reason.REPLICA_LOST), (FaultKind.FAIL, Reason.ENGINE_ERROR)], ids=str
)
def test_an_engine_that_takes_nothing_goes_on_with_what_it_has(talk: Talk, kind: FaultKind, reason: Reason) -> None:
    talk.tell(whole("old"))

    (told,) = talk.tell(BeginFault(kind), whole("new"))

    assert isinstance(told, Failed)
    assert told.reason is reason
    assert talk.until(5.0)[-1] == Finished("old", 2.0)
    assert talk.tell(EndFault(kind), whole("newer")) == []


def test_a_request_that_never_fits_is_invalid(talk: Talk) -> None:
    (told,) = talk.tell(Submit(Sequence("huge", 2000, 1)))

    assert isinstance(told, Failed)
    assert told.reason is Reason.INVALID_REQUEST


def test_a_dead_engine_has_nothing_and_says_nothing(holder: Talk) -> None:
    holder.tell(whole(), decode())

    assert holder.tell(BeginFault(FaultKind.CRASH), EndFault(FaultKind.CRASH)) == []

    assert (holder.engine.is_dead, holder.engine.num_unfinished, dict(holder.engine.held)) == (True, 0, {})
    assert holder.until(100.0) == []
    assert holder.tell(Meet("q.0"), AskClaim("q.0"), KvPulled("p"), Abort("q.0")) == []
    assert holder.tell(ClaimKv("p"), KvClaimed("d")) == [KvGone("p"), KvClaimEnded("d")]
    (told,) = holder.tell(whole("late"))
    assert isinstance(told, Failed)
    assert told.reason is Reason.REPLICA_LOST
