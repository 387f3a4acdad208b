import pytest

from loadtests.scenario.lane_classifiers import Misclassifying, SetByHand
from policies import ConfigError
from routing.lanes.lanes import Lane, TokenRange
from tests.policy_doubles import FakeFleet, a_request

SHORT = Lane(name="short", prompt_tokens=TokenRange(0, 1000), pools=("short",))
LONG = Lane(name="long", prompt_tokens=TokenRange(1000), pools=("long",))
LANES = (SHORT, LONG)


def wrong_ones(fraction: float, prompt_tokens: int) -> set[str]:
    """Which of 2,000 requests end up in the wrong lane."""
    classifier, right = Misclassifying(fraction=fraction), SHORT if prompt_tokens < 1000 else LONG
    requests = [a_request(f"{number}-0", prompt_tokens=prompt_tokens) for number in range(2000)]
    return {each.request_id for each in requests if classifier.classify(each, LANES, FakeFleet(), 0.0) is not right}


def test_as_many_requests_go_wrong_as_were_asked_for() -> None:
    assert 160 <= len(wrong_ones(0.1, 20)) <= 240
    assert wrong_ones(0.0, 20) == set()
    assert len(wrong_ones(1.0, 20)) == 2000


def test_the_same_requests_go_wrong_every_time_whatever_they_are() -> None:
    assert wrong_ones(0.1, 20) == wrong_ones(0.1, 20) == wrong_ones(0.1, 5000)


def test_a_share_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="fraction"):
        Misclassifying(fraction=1.1)


def test_a_cutoff_that_was_set_by_hand_changes_when_it_was_meant_to() -> None:
    classifier = SetByHand(first_tokens=500, then_tokens=4000, at_s=10.0)
    request = a_request(prompt_tokens=1000)

    assert classifier.classify(request, LANES, FakeFleet(), 9.9) is LONG
    assert classifier.classify(request, LANES, FakeFleet(), 10.0) is SHORT
