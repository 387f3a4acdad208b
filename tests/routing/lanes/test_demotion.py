"""A request whose answer exceeds its lane's length goes on where it is, and counts for what it is."""

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from cluster import Seeds
from policies import Need, PolicyChoice, RequestView, Role
from policies.views import Geometry
from routing import (
    Arrived,
    AttemptFinished,
    Demotion,
    DispatcherSpec,
    Effect,
    FirstTokenReceived,
    FleetChanged,
    LaneLengthExceeded,
    Record,
    Send,
    build_dispatcher,
)
from routing.config.spec import LanesSpec
from routing.lanes.lanes import Lane, TokenRange, demoted, lane_limits_tokens
from routing.sizing.length_prediction import OutputEstimate
from tests.policy_doubles import a_request, replica_info
from tests.tables import for_each

POOLS = {"prefill": Role.PREFILL, "quick": Role.DECODE, "slow": Role.DECODE}
QUICK = Lane(name="quick", output_tokens=TokenRange(0, 100), pools=("prefill", "quick"))
LETTER = Lane(name="letter", output_tokens=TokenRange(100, 400), pools=("prefill", "slow"))
BOOK = Lane(name="book", output_tokens=TokenRange(400), pools=("prefill", "slow"))
LANES = (QUICK, LETTER, BOOK)


class AlwaysFifty:
    """Fifty tokens are expected of everybody."""

    wants_ngrams = None

    def predict(self, request: RequestView) -> OutputEstimate:
        return OutputEstimate(50, 80)

    def observe(self, request: RequestView, output_tokens: int) -> None: ...


class Talk:
    """A dispatcher whose decode replicas are in lanes."""

    def __init__(self, lanes: Sequence[Lane] = LANES) -> None:
        spec = DispatcherSpec(
            planner=PolicyChoice(name="always_disaggregated"),
            pools=POOLS,
            lanes=LanesSpec(lanes=tuple(lanes)),
            length_prediction=PolicyChoice(name=f"{__name__}:AlwaysFifty"),
        )
        self.dispatcher = build_dispatcher(spec, rng_for=Seeds(1).stream, provided=frozenset(Need))
        for pool, role in POOLS.items():
            info = replica_info(pool, role, pool=pool)
            self.dispatcher.handle(FleetChanged(pool=pool, role=role, replicas=(info,)), 0.0)

    def decodes(self, max_output_tokens: int = 2000) -> list[Send]:
        """A request of 100 tokens arrives and is decoding; both its sends."""
        request = a_request(prompt_tokens=100, max_output_tokens=max_output_tokens)
        effects = [*self.dispatcher.handle(Arrived(request=request), 0.0)]
        effects += self.dispatcher.handle(AttemptFinished(attempt_id="q.0", output_tokens=1), 0.0)
        effects += self.dispatcher.handle(FirstTokenReceived(attempt_id="q.1"), 0.0)
        return [each for each in effects if isinstance(each, Send)]

    def outgrows(self, output_tokens: int, attempt_id: str = "q.1") -> list[Effect]:
        return [*self.dispatcher.handle(LaneLengthExceeded(attempt_id=attempt_id, output_tokens=output_tokens), 1.0)]

    @property
    def kv_tokens(self) -> dict[str, int]:
        live = self.dispatcher.fleet.live(Role.DECODE, 1.0)
        return {each.replica_id: each.kv_tokens for each in live}


def test_the_host_is_told_at_which_lengths_the_dispatcher_wants_to_hear_of_a_decode() -> None:
    prefill, decode = Talk().decodes()

    assert (prefill.lane_limits_tokens, decode.lane_limits_tokens) == ((), (100, 400))
    assert decode.pool == "quick"


def test_an_answer_that_outgrows_its_lane_is_demoted_and_not_stopped() -> None:
    talk = Talk()
    talk.decodes()

    effects = talk.outgrows(100)

    demotion = Demotion(request_id="q", attempt_id="q.1", from_lane="quick", to_lane="letter", output_tokens=100)
    assert effects == [Record(decision=demotion)]
    assert talk.dispatcher.num_open_attempts == 1


def test_its_replica_counts_for_what_the_answer_is_expected_to_become() -> None:
    talk = Talk()
    talk.decodes()
    assert talk.kv_tokens == {"quick": 150, "slow": 0}

    talk.outgrows(100)
    assert talk.kv_tokens == {"quick": 300, "slow": 0}, "the prompt, and twice what there is already"
    talk.outgrows(400)
    assert talk.kv_tokens == {"quick": 900, "slow": 0}
    talk.dispatcher.handle(AttemptFinished(attempt_id="q.1", output_tokens=450), 2.0)

    assert talk.kv_tokens == {"quick": 0, "slow": 0}
    assert talk.dispatcher.num_open_requests == 0


def test_no_more_is_expected_than_the_client_allows() -> None:
    talk = Talk()
    talk.decodes(max_output_tokens=120)

    talk.outgrows(100)

    assert talk.kv_tokens["quick"] == 220


def test_demotions_are_counted_by_the_lane_that_was_outgrown() -> None:
    talk = Talk()
    talk.decodes()
    talk.outgrows(100)
    talk.outgrows(400)

    gauges = talk.dispatcher.gauges(0.0)

    assert [gauges[f"lane_demotions_total:{lane}"] for lane in ("quick", "letter", "book")] == [1, 1, 0]


def test_news_of_an_attempt_that_has_ended_changes_nothing() -> None:
    talk = Talk()
    talk.decodes()
    talk.dispatcher.handle(AttemptFinished(attempt_id="q.1", output_tokens=99), 0.5)

    assert talk.outgrows(100) == []
    assert talk.outgrows(100, "nobody") == []


def test_without_lanes_nobody_is_asked_to_count() -> None:
    sends = Talk(lanes=()).decodes()

    assert [each.lane_limits_tokens for each in sends] == [(), ()]


@for_each(("lane", "lengths"), [(QUICK, (100, 400)), (LETTER, (400,)), (BOOK, ())])
def test_a_lane_is_outgrown_at_its_own_bound_and_at_those_of_the_lanes_after_it(
    lane: Lane, lengths: tuple[int, ...]
) -> None:
    assert lane_limits_tokens(lane, LANES) == lengths


@given(output_tokens=st.integers(1, 10_000))
def test_the_lane_of_a_demoted_request_takes_answers_of_that_length(output_tokens: int) -> None:
    assert output_tokens in demoted(QUICK, LANES, output_tokens).output_tokens


def test_lanes_for_other_prompts_are_no_place_to_be_demoted_to() -> None:
    documents = Lane(name="documents", prompt_tokens=TokenRange(1000), pools=("prefill", "slow"))

    assert demoted(QUICK, (QUICK, documents), 500) is QUICK
    assert lane_limits_tokens(QUICK, (QUICK, documents)) == (100,)


def test_a_high_quantile_above_twice_the_answer_is_expected_instead() -> None:
    known = Geometry(output_tokens=50, output_tokens_high=600)
    request = replace(a_request(prompt_tokens=100, max_output_tokens=2000), lane="quick", geometry=known)

    request = Talk().dispatcher.request_classifier.demote(request, 100)

    assert (request.lane, request.geometry.output_tokens) == ("letter", 600)
