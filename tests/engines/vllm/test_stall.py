from engines import StallDetector


class Watch:
    """A detector that has looked at a busy engine at 0 s, and at its tenth step."""

    def __init__(self) -> None:
        self._detector = StallDetector(stall_after_s=30.0)
        assert not self.looks(at_s=0.0, num_steps=10)

    def looks(self, *, at_s: float, num_steps: int, num_requests: int = 1) -> bool:
        return self._detector.is_stalled(num_steps, num_requests, at_s)


def test_an_engine_with_requests_and_without_steps_has_stalled_when_the_time_is_up() -> None:
    watch = Watch()

    assert not watch.looks(at_s=29.9, num_steps=10)
    assert watch.looks(at_s=30.0, num_steps=10)


def test_it_stays_stalled_until_it_makes_a_step() -> None:
    watch = Watch()

    assert watch.looks(at_s=31.0, num_steps=10)
    assert watch.looks(at_s=32.0, num_steps=10)
    assert not watch.looks(at_s=33.0, num_steps=11)


def test_every_step_starts_the_time_anew() -> None:
    watch = Watch()

    assert not watch.looks(at_s=29.0, num_steps=11)
    assert not watch.looks(at_s=58.0, num_steps=11)
    assert watch.looks(at_s=59.0, num_steps=11)


def test_an_idle_engine_makes_no_steps_and_has_not_stalled() -> None:
    watch = Watch()

    assert not watch.looks(at_s=1000.0, num_steps=10, num_requests=0)
    assert not watch.looks(at_s=2000.0, num_steps=10, num_requests=0)


def test_time_spent_idle_does_not_count() -> None:
    watch = Watch()
    watch.looks(at_s=1000.0, num_steps=10, num_requests=0)

    assert not watch.looks(at_s=1029.0, num_steps=10)
    assert watch.looks(at_s=1030.0, num_steps=10)


def test_the_first_look_is_never_a_stall() -> None:
    assert not StallDetector(stall_after_s=1.0).is_stalled(num_steps=0, num_requests=5, now_s=10_000.0)
