import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies import ConfigError, PolicyChoice, RequestView, Role
from policies.views import Geometry
from routing.config.catalog import build_classifier
from routing.lanes.classifiers import FirstThatFits
from routing.lanes.lanes import Lane, TokenRange, check_lanes, one_lane
from tests import policy_doubles
from tests.policy_doubles import FakeFleet
from tests.tables import for_each

POOLS = {
    "prefill-short": Role.PREFILL,
    "prefill-long": Role.PREFILL,
    "decode-quick": Role.DECODE,
    "decode-slow": Role.DECODE,
}
INTERACTIVE = Lane(
    name="interactive",
    prompt_tokens=TokenRange(0, 1000),
    output_tokens=TokenRange(0, 200),
    pools=("prefill-short", "decode-quick"),
    borrows_from=("long-context",),
)
THROUGHPUT = Lane(
    name="throughput",
    prompt_tokens=TokenRange(0, 1000),
    output_tokens=TokenRange(200),
    pools=("prefill-short", "decode-slow"),
)
LONG_CONTEXT = Lane(name="long-context", prompt_tokens=TokenRange(1000), pools=("prefill-long", "decode-slow"))
LANES = (INTERACTIVE, THROUGHPUT, LONG_CONTEXT)


def a_request(prompt_tokens: int, output_tokens: int) -> RequestView:
    return policy_doubles.a_request(prompt_tokens=prompt_tokens, geometry=Geometry(output_tokens=output_tokens))


@for_each(
    ("prompt_tokens", "output_tokens", "lane"),
    [(20, 50, INTERACTIVE), (999, 199, INTERACTIVE), (20, 200, THROUGHPUT), (1000, 1, LONG_CONTEXT)],
)
def test_a_request_goes_to_the_lane_whose_ranges_it_is_in(prompt_tokens: int, output_tokens: int, lane: Lane) -> None:
    assert FirstThatFits().classify(a_request(prompt_tokens, output_tokens), LANES, FakeFleet(), 0.0) is lane


@given(prompt_tokens=st.integers(1, 100_000), output_tokens=st.integers(1, 100_000))
def test_every_request_has_a_lane(prompt_tokens: int, output_tokens: int) -> None:
    lanes = (INTERACTIVE, THROUGHPUT)

    assert FirstThatFits().classify(a_request(prompt_tokens, output_tokens), lanes, FakeFleet(), 0.0) in lanes


def test_the_lanes_of_the_example_fit() -> None:
    check_lanes(LANES, POOLS)
    check_lanes(one_lane(POOLS), POOLS)


def changed(lane: Lane, **changes: object) -> tuple[Lane, ...]:
    fields = {name: getattr(lane, name) for name in Lane.__slots__} | changes
    return tuple(Lane(**fields) if each is lane else each for each in LANES)


@for_each(
    ("lanes", "field", "words"),
    [
        ((), "lanes", "at least one lane"),
        ((INTERACTIVE, INTERACTIVE), "lanes", "each name once"),
        (changed(INTERACTIVE, prompt_tokens=TokenRange(9, 9)), "lanes.0.prompt_tokens", "less than something above"),
        (changed(LONG_CONTEXT, output_tokens=TokenRange(-1)), "lanes.2.output_tokens", "from 0 or more"),
        (changed(INTERACTIVE, pools=("nowhere",)), "lanes.0.pools", "of the pools ['decode-quick'"),
        (changed(INTERACTIVE, pools=("prefill-short",)), "lanes.0.pools", "also a pool for decode"),
        (changed(INTERACTIVE, borrows_from=("nobody",)), "lanes.0.borrows_from", "another lane's name"),
        (changed(INTERACTIVE, borrows_from=("interactive",)), "lanes.0.borrows_from", "another lane's name"),
        (changed(LONG_CONTEXT, borrows_from=("interactive",)), "lanes.2.borrows_from", "short may borrow from long"),
        ((LONG_CONTEXT,), "lanes", "at least one lane uses"),
        (
            changed(THROUGHPUT, pools=("prefill-long", "decode-slow")),
            "lanes.1.pools",
            "those of 'interactive': the same prompts",
        ),
    ],
)
def test_lanes_that_do_not_fit_are_refused(lanes: tuple[Lane, ...], field: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_lanes(lanes, POOLS)

    assert caught.value.field == f"policies.lanes.{field}"
    assert words in caught.value.allowed


def test_a_classifier_can_be_named_by_import_path() -> None:
    classifier = build_classifier(PolicyChoice(name=f"{__name__}:FirstThatFits"), LANES)

    assert classifier.classify(a_request(20, 50), LANES, FakeFleet(), 0.0) is INTERACTIVE


def test_a_range_without_an_end_has_every_length_from_its_beginning() -> None:
    assert (999 in TokenRange(1000), 1000 in TokenRange(1000), 10**9 in TokenRange(1000)) == (False, True, True)
    assert TokenRange() == (0, math.inf)


def prompts(*ranges: tuple[float, float]) -> tuple[Lane, ...]:
    return tuple(Lane(name=str(n), prompt_tokens=TokenRange(*each), pools=("p",)) for n, each in enumerate(ranges))


@for_each(
    ("lanes", "field"),
    [
        (prompts((0, 3000), (2000, math.inf)), "lanes.prompt_tokens"),
        (prompts((0, 1000), (2000, math.inf)), "lanes.prompt_tokens"),
        (prompts((0, 1000), (1000, 5000)), "lanes.prompt_tokens"),
        (prompts((5, math.inf)), "lanes.prompt_tokens"),
        (prompts((0, math.inf), (0, math.inf)), "lanes"),
        ((INTERACTIVE, LONG_CONTEXT), "lanes.interactive.output_tokens"),
    ],
    ids=["overlap", "gap", "nothing_above", "nothing_below", "the_same_twice", "long_answers_left_out"],
)
@for_each("classifier", ["first_that_fits", "adaptive_lane_borders"])
def test_a_built_in_classifier_needs_a_place_for_every_request(
    classifier: str, lanes: tuple[Lane, ...], field: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        build_classifier(PolicyChoice(name=classifier), lanes)

    assert caught.value.field == f"policies.lanes.{field}"


def test_somebody_elses_classifier_may_go_by_anything() -> None:
    build_classifier(PolicyChoice(name=f"{__name__}:FirstThatFits"), prompts((0, 3000), (2000, math.inf)))
