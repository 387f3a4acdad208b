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
    door = Door()
    for _ in range(3):
        door.comes()

    assert door.counted == []


def test_a_library_that_counts_its_tries_is_believed() -> None:
    door = Door()
    for count in ("0", "1", "2"):
        door.comes(retry_count=count)

    assert door.counted == [ToldBy.HEADER, ToldBy.HEADER]


def test_a_key_that_comes_again_is_another_try() -> None:
    door = Door()
    for key in ("a", "b", "a"):
        door.comes(key)

    assert door.counted == [ToldBy.KEY]


def test_what_both_tell_is_counted_once() -> None:
    door = Door()
    door.comes("a", retry_count="0")
    door.comes("a", retry_count="1")

    assert door.counted == [ToldBy.HEADER]


def test_two_tenants_may_have_the_same_key() -> None:
    door = Door()
    door.comes("a", tenant="red")
    door.comes("a", tenant="blue")

    assert door.counted == []


def test_a_key_is_forgotten_after_a_while() -> None:
    door = Door()
    door.comes("a")
    door.clock.time_s = REMEMBERED_S + 1

    door.comes("a")

    assert door.counted == []


def test_the_oldest_of_too_many_keys_is_forgotten() -> None:
    door = Door()
    for number in range(MAX_REMEMBERED + 1):
        door.comes(str(number))

    door.comes("0")
    door.comes(str(MAX_REMEMBERED))

    assert door.counted == [ToldBy.KEY]


@for_each("retry_count", ["-1", "one", "1.5", " ", "00"])
def test_a_count_that_is_no_number_says_nothing(retry_count: str) -> None:
    """It is counted and nothing else: no request fails because of it."""
    door = Door()
    door.comes(retry_count=retry_count)

    assert door.counted == []
