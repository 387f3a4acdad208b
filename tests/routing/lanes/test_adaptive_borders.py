from collections.abc import Iterable
from dataclasses import replace

import pytest

from policies import ConfigError, PolicyChoice, RequestView, Role
from policies.views import Geometry
from routing.config.catalog import build_classifier
from routing.lanes.adaptive_borders import AdaptiveLaneBorders
from routing.lanes.lanes import Lane, TokenRange
from tests import policy_doubles
from tests.policy_doubles import FakeFleet, FakeReplica
from tests.tables import for_each

SHORT = Lane(name="short", prompt_tokens=TokenRange(0, 1000), pools=("short",), borrows_from=("long",))
LONG = Lane(name="long", prompt_tokens=TokenRange(1000), pools=("long",))
LANES = (SHORT, LONG)
FLEET = FakeFleet(
    replicas=[FakeReplica(replica_id=f"s{n}", pool="short") for n in range(2)]
    + [FakeReplica(replica_id=f"l{n}", pool="long") for n in range(6)]
)
CHATS = (100, 200, 300, 100, 200, 300, 8_000)
DOCUMENTS = (300, 2_000, 3_000, 2_000, 3_000, 9_000, 12_000)


def a_request(prompt_tokens: int, output_tokens: int = 10) -> RequestView:
    work = Geometry(uncached_tokens=prompt_tokens, output_tokens=output_tokens, prefill_s=prompt_tokens * 4e-5)
    return policy_doubles.a_request(prompt_tokens=prompt_tokens, geometry=work)


class Stream:
    """Prompts that come one after another, at 40 a second."""

    def __init__(self, classifier: AdaptiveLaneBorders, *lanes: Lane, fleet: FakeFleet = FLEET) -> None:
        self.classifier = classifier
        self.fleet = fleet
        self.lanes = lanes or LANES
        self.now_s = 0.0

    def of(self, prompts: Iterable[int], for_s: float) -> None:
        sizes = list(prompts)
        for number in range(round(for_s * 40)):
            self.now_s += 0.025
            self.lane_of(sizes[number % len(sizes)])

    def lane_of(self, prompt_tokens: int) -> str:
        return self.classifier.classify(a_request(prompt_tokens), self.lanes, self.fleet, self.now_s).name

    @property
    def border_tokens(self) -> float:
        return self.classifier.gauges()["lane_border_tokens:long"]


def test_until_enough_have_come_the_configured_ranges_hold() -> None:
    stream = Stream(AdaptiveLaneBorders(refresh_s=10))
    stream.of(CHATS, for_s=5)

    assert stream.lane_of(999) == "short"
    assert stream.lane_of(1000) == "long"
    assert stream.classifier.gauges() == {
        "prompt_drift": 0.0,
        "lane_border_tokens:short": 0.0,
        "lane_border_tokens:long": 1000.0,
    }


def test_cutoffs_follow_the_prompts_from_chats_to_documents() -> None:
    stream = Stream(AdaptiveLaneBorders(refresh_s=10))
    stream.of(CHATS, for_s=30)
    before = stream.border_tokens
    stream.of(DOCUMENTS, for_s=60)

    assert 300 < before <= 8_000
    assert stream.border_tokens > 2_000, "2,000 tokens are a short prompt among documents"
    assert stream.lane_of(2_000) == "short"
    assert stream.lane_of(12_000) == "long"


def test_drift_shows_when_the_mix_changes_and_the_cutoffs_stay() -> None:
    stream = Stream(AdaptiveLaneBorders(refresh_s=10, hysteresis=0.99))
    stream.of(CHATS, for_s=30)
    before = stream.classifier.gauges()["prompt_drift"]
    stream.of([*CHATS, 30], for_s=21)

    assert before < 0.05
    assert stream.classifier.gauges()["prompt_drift"] > 0.2


def test_a_small_gain_does_not_move_a_cutoff() -> None:
    strict = replace(SHORT, borrows_from=())
    moved, kept = (Stream(AdaptiveLaneBorders(refresh_s=10, hysteresis=each), strict, LONG) for each in (0.0, 0.9))
    for stream in (moved, kept):
        stream.of((300, 1_200, 1_800, 2_400, 7_000), for_s=60)

    assert kept.border_tokens == 1000.0, "the configured one"
    assert moved.border_tokens != kept.border_tokens


def rarely(stream: Stream, for_s: float) -> None:
    """Thirty prompts in a burst, half a minute apart: less than 2% of what three replicas could do."""
    for number in range(round(for_s / 30) * 30):
        stream.now_s += 0.01 if number % 30 else 29.71
        stream.lane_of((300, 600, 900, 900, 2_700)[number % 5])


def test_where_there_is_next_to_nothing_to_do_the_configured_ranges_hold() -> None:
    small = FakeFleet(
        replicas=[
            FakeReplica(replica_id=name, pool=pool) for name, pool in (("a", "short"), ("b", "long"), ("c", "long"))
        ]
    )
    stream = Stream(AdaptiveLaneBorders(refresh_s=300), SHORT, replace(LONG, reserve=1), fleet=small)
    rarely(stream, for_s=1800)

    assert stream.border_tokens == 1000.0
    assert (stream.lane_of(999), stream.lane_of(1000)) == ("short", "long")


@for_each("silence_s", [0.0, 3600.0])
def test_borders_go_back_to_the_configured_ranges_when_the_load_is_gone(silence_s: float) -> None:
    stream = Stream(AdaptiveLaneBorders(refresh_s=10))
    stream.of(DOCUMENTS, for_s=60)
    moved = stream.border_tokens
    stream.now_s += silence_s
    rarely(stream, for_s=30 if silence_s else 300)

    assert moved > 2_000
    assert stream.border_tokens == 1000.0, "as configured, not the next edge of a bin"
    assert stream.classifier.gauges()["prompt_drift"] < 0.5


def test_a_load_that_is_low_for_a_moment_does_not_move_borders_back() -> None:
    stream = Stream(AdaptiveLaneBorders(refresh_s=10))
    stream.of(DOCUMENTS, for_s=60)
    before = stream.border_tokens
    for _ in range(80):
        stream.now_s += 0.5
        stream.of(DOCUMENTS, for_s=0.05)

    assert stream.border_tokens == before


def test_lanes_of_the_same_prompts_share_an_interval_and_are_told_apart_by_their_answers() -> None:
    quick = Lane(name="quick", prompt_tokens=TokenRange(0, 1000), output_tokens=TokenRange(0, 50), pools=("short",))
    slow = Lane(name="slow", prompt_tokens=TokenRange(0, 1000), output_tokens=TokenRange(50), pools=("short",))
    classifier = AdaptiveLaneBorders(refresh_s=1)
    for number in range(400):
        lane = classifier.classify(a_request(CHATS[number % 7], 80), (quick, slow, LONG), FLEET, number / 40)

    assert lane is slow
    assert classifier.classify(a_request(100, 20), (quick, slow, LONG), FLEET, 10.0) is quick
    assert classifier.classify(a_request(9000, 20), (quick, slow, LONG), FLEET, 10.0) is LONG


def test_without_a_single_replica_the_cutoffs_stay() -> None:
    classifier = AdaptiveLaneBorders(refresh_s=1)
    for number in range(400):
        classifier.classify(a_request(CHATS[number % 7]), LANES, FakeFleet(), number / 40)

    assert classifier.gauges()["lane_border_tokens:long"] == 1000.0


@for_each("params", [{"refresh_s": 0}, {"hysteresis": 1}, {"min_requests": 0}, {"num_gateways": 0}])
def test_parameters_out_of_range_are_refused(params: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(params))):
        build_classifier(PolicyChoice(name="adaptive_lane_borders", params=params), LANES)


def test_it_is_found_by_name() -> None:
    assert isinstance(build_classifier(PolicyChoice(name="adaptive_lane_borders"), LANES), AdaptiveLaneBorders)
    assert FLEET.live(Role.UNIFIED, 0.0)
