"""How long replicas take to start, by what is seen of them now and then."""

from deployments.scaling.start_times import StartTimes


def test_a_start_is_from_when_a_replica_was_asked_for_until_it_is_seen_to_be_ready() -> None:
    starts = StartTimes()
    starts.see(1, 0, 0.0)
    starts.ask(2, 10.0)
    starts.see(1, 2, 20.0)
    assert starts.start_s == 0.0
    starts.see(2, 1, 40.0)
    assert starts.start_s == 30.0
    starts.see(3, 0, 60.0)
    assert starts.start_s == 40.0, "half of the last, 50 s, and half of what was known"


def test_of_what_started_before_the_first_look_nobody_knows_since_when() -> None:
    starts = StartTimes()
    starts.see(0, 2, 0.0)
    starts.see(2, 0, 30.0)
    assert starts.start_s == 0.0


def test_the_last_that_was_asked_for_is_the_first_that_does_not_come() -> None:
    starts = StartTimes()
    starts.see(1, 0, 0.0)
    starts.ask(1, 10.0)
    starts.see(1, 1, 11.0)
    starts.ask(1, 30.0)
    starts.see(1, 1, 40.0)
    starts.see(2, 0, 50.0)
    assert starts.start_s == 40.0


def test_a_replica_that_is_replaced_starts_when_that_is_seen() -> None:
    starts = StartTimes()
    starts.see(2, 0, 0.0)
    starts.see(1, 1, 10.0)
    starts.see(2, 0, 25.0)
    assert starts.start_s == 15.0


def test_fewer_are_not_asked_for() -> None:
    starts = StartTimes()
    starts.see(2, 0, 0.0)
    starts.ask(-1, 10.0)
    starts.see(1, 0, 20.0)
    starts.see(2, 0, 25.0)
    assert starts.start_s == 0.0
