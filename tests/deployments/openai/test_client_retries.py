"""Requests that are another try of their client's are recognised, and counted once."""

from deployments.openai.client_retries import MAX_REMEMBERED, REMEMBERED_S, ClientRetries, ToldBy
from tests.deployments.host_dialogue import FixedClock
from tests.tables import for_each


class Door:
    """Where requests come in, the clock that it goes by, and what it has counted."""

    def __init__(self) -> None:
        self.clock = FixedClock()
        self.counted: list[ToldBy] = []
        self._retries = ClientRetries(self.clock.now_s, self.counted.append)

    def comes(self, key: str = "", *, retry_count: str = "", tenant: str = "") -> None:
        self._retries.note(retry_count, tenant, key)


def test_a_request_that_says_nothing_is_no_retry_however_often_it_comes() -> None:
    request_classifier = Door()
    for _ in range(3):
        request_classifier.comes()

    assert request_classifier.counted == []


def test_a_library_that_counts_its_tries_is_believed() -> None:
    request_classifier = Door()
    for count in ("0", "1", "2"):
        request_classifier.comes(retry_count=count)

    assert request_classifier.counted == [ToldBy.HEADER, ToldBy.HEADER]


def test_a_key_that_comes_again_is_another_try() -> None:
    request_classifier = Door()
    for key in ("a", "b", "a"):
        request_classifier.comes(key)

    assert request_classifier.counted == [ToldBy.KEY]


def test_what_both_tell_is_counted_once() -> None:
    request_classifier = Door()
    request_classifier.comes("a", retry_count="0")
    request_classifier.comes("a", retry_count="1")

    assert request_classifier.counted == [ToldBy.HEADER]


def test_two_tenants_may_have_the_same_key() -> None:
    request_classifier = Door()
    request_classifier.comes("a", tenant="red")
    request_classifier.comes("a", tenant="blue")

    assert request_classifier.counted == []


def test_a_key_is_forgotten_after_a_while() -> None:
    request_classifier = Door()
    request_classifier.comes("a")
    request_classifier.clock.time_s = REMEMBERED_S + 1

    request_classifier.comes("a")

    assert request_classifier.counted == []


def test_the_oldest_of_too_many_keys_is_forgotten() -> None:
    request_classifier = Door()
    for number in range(MAX_REMEMBERED + 1):
        request_classifier.comes(str(number))

    request_classifier.comes("0")
    request_classifier.comes(str(MAX_REMEMBERED))

    assert request_classifier.counted == [ToldBy.KEY]


@for_each("retry_count", ["-1", "one", "1.5", " ", "00"])
def test_a_count_that_is_no_number_says_nothing(retry_count: str) -> None:
    """It is counted and nothing else: no request fails because of it."""
    request_classifier = Door()
    request_classifier.comes(retry_count=retry_count)

    assert request_classifier.counted == []
