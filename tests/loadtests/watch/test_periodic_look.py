"""Looking again and again: until there is nothing more to see, or until nobody wants to know."""

from http.client import IncompleteRead

from loadtests.watch.periodic_look import PeriodicLook
from tests.waiting import wait_until


def test_who_has_seen_enough_looks_no_more() -> None:
    seen: list[int] = []

    def look() -> bool:
        seen.append(len(seen))
        return len(seen) < 3

    looks = PeriodicLook(look, every_s=0.0)
    looks.start()
    looks._thread.join(60)
    assert (seen, looks._thread.is_alive()) == ([0, 1, 2], False)


def test_a_look_that_raises_is_lost_and_the_next_one_follows() -> None:
    """Whatever it raises: the thread would end, and what is looked at would seem to have nothing to say."""
    errors = iter([IncompleteRead(b""), RuntimeError("no gateway"), ValueError("no number")])
    seen: list[int] = []

    def look() -> bool:
        if error := next(errors, None):
            raise error
        seen.append(1)
        return False

    looks = PeriodicLook(look, every_s=0.0)
    looks.start()
    looks._thread.join(60)
    assert (seen, looks.num_lost) == ([1], 3)
    assert looks.first_error == "IncompleteRead: IncompleteRead(0 bytes read)"


def test_who_is_stopped_looks_no_more() -> None:
    seen: list[int] = []

    def look() -> bool:
        seen.append(len(seen))
        return True

    looks = PeriodicLook(look, every_s=0.001)
    looks.start()
    wait_until(lambda: len(seen) > 2, "some looks")
    looks.stop()
    assert not looks._thread.is_alive()


def test_who_is_stopped_before_the_first_look_sees_nothing() -> None:
    seen: list[int] = []

    def look() -> bool:
        seen.append(1)
        return False

    looks = PeriodicLook(look, every_s=0.0, first_after_s=600.0)
    looks.start()
    looks.stop()
    assert seen == []
