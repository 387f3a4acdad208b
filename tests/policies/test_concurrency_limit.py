from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster import Seeds
from policies import Reason, Reject, RequestView
from policies.admission import ConcurrencyLimit
from policies.admission.limit_algorithms import Aimd, Gradient2, LimitAlgorithm, Vegas
from tests.policies.admission_cases import answering, broke_off, comes, completed, hosted, sized
from tests.policy_doubles import FakeBacklog
from tests.tables import for_each

ALGORITHMS = ("gradient2", "vegas", "aimd")


def limiter(**params: Any) -> Any:
    return hosted(ConcurrencyLimit(rng=Seeds(1).stream("admission"), **params))


def fill(policy: Any, now_s: float = 0.0, **size: Any) -> list[RequestView]:
    """Requests come until one is refused."""
    let_in: list[RequestView] = []
    while comes(policy, request := sized(f"{now_s}.{len(let_in)}", arrival_s=now_s, **size), now_s):
        let_in.append(request)
    return let_in


def limits_under(policy: Any, stretch_of: float, num_windows: int = 40) -> list[float]:
    """The limit after each window in which every first token took ``stretch_of`` a request in flight times as long."""
    limits = []
    for window in range(num_windows):
        let_in = fill(policy, float(window))
        for request in let_in:
            stretch = max(1.0, stretch_of * len(let_in))
            policy.observe(answering(request, request.arrival_s + request.geometry.prefill_s * stretch))
        policy.observe(completed(let_in[0], float(window)))
        limits.append(policy.limit)
    return limits


def test_as_many_come_in_as_the_limit_and_the_next_when_one_has_its_first_token() -> None:
    policy = limiter(initial=5.0)
    let_in = fill(policy)

    assert len(let_in) == 5
    assert policy.decide(sized(), FakeBacklog(waiting_s=3.0), 0.0) == Reject(
        reason=Reason.ADMISSION_REJECTED, retry_after_s=3.0
    )
    policy.observe(answering(let_in[0], 0.1))
    assert comes(policy, sized("next"))
    assert not comes(policy, sized("and another"))


def test_with_tpot_a_request_is_in_flight_until_it_has_ended() -> None:
    policy = limiter(signal="tpot", initial=4.0)
    let_in = fill(policy)

    policy.observe(answering(let_in[0], 0.1))
    assert not comes(policy, sized("next"))
    policy.observe(completed(let_in[0], 0.2))
    assert comes(policy, sized("next"))


def test_who_ends_without_a_first_token_is_not_in_flight_any_more() -> None:
    policy = limiter(initial=4.0)
    let_in = fill(policy)

    policy.observe(broke_off(let_in[0], 0.1))
    policy.observe(broke_off(let_in[0], 0.1))

    assert comes(policy, sized("next"))
    assert not comes(policy, sized("and another"))


def test_by_work_a_long_request_counts_for_many_short_ones() -> None:
    policy = limiter(initial=8.0, least=8.0, most=8.0)
    for index in range(100):
        long = index % 10 == 0
        request = sized(f"warm{index}", prefill_s=1.1 if long else 0.1)
        policy.decide(request, FakeBacklog(), 0.0)

    assert [comes(policy, sized(f"long{index}", prefill_s=1.1)) for index in range(3)] == [True, True, False]


def test_by_requests_a_long_request_is_one() -> None:
    policy = limiter(unit="requests", initial=10.0)
    assert len(fill(policy, prefill_s=7.0)) == 10


@for_each("algorithm", ALGORITHMS)
def test_a_limit_grows_while_the_latency_stays_what_it_was(algorithm: str) -> None:
    limits = limits_under(limiter(algorithm=algorithm), stretch_of=0.0)
    assert limits[-1] > 40.0


@for_each("algorithm", ALGORITHMS)
def test_a_limit_settles_where_the_latency_rises(algorithm: str) -> None:
    """Ten at a time are served without waiting: the limit is above that, and not so much that they wait for long."""
    limits = limits_under(limiter(algorithm=algorithm, most=200.0), stretch_of=0.1, num_windows=120)
    assert all(10.0 <= each <= 50.0 for each in limits[40:])


@for_each("algorithm", ALGORITHMS)
@settings(max_examples=20)
@given(stretch_of=st.floats(0.0, 5.0), least=st.floats(1.0, 20.0), more=st.floats(0.0, 50.0))
def test_the_limit_stays_within_its_bounds(algorithm: str, stretch_of: float, least: float, more: float) -> None:
    policy = limiter(algorithm=algorithm, least=least, initial=least + more / 2, most=least + more, min_samples=1)
    limits = limits_under(policy, stretch_of, num_windows=10)
    assert all(least <= each <= least + more for each in limits)


def test_a_stretch_does_not_depend_on_how_long_prompts_are() -> None:
    """The mix changes from short to ten times as long at the same stretch: a raw latency would cut the limit."""
    short, mixed = (limiter(algorithm="gradient2", smoothing=1.0) for _ in range(2))
    for policy, sizes in ((short, (0.1, 0.1)), (mixed, (0.1, 1.0))):
        for window, prefill_s in enumerate(size for size in sizes for _ in range(5)):
            for request in fill(policy, float(window * 10), prefill_s=prefill_s):
                policy.observe(answering(request, request.arrival_s + 2.0 * prefill_s))

    assert mixed.limit == pytest.approx(short.limit, rel=0.1)


def test_tpot_is_seconds_a_token_after_the_first() -> None:
    policy = limiter(algorithm="aimd", signal="tpot", ceiling=0.03, min_samples=4, initial=4.0, unit="requests")
    for window, tpot_s in enumerate((0.029, 0.031)):
        for request in fill(policy, 10.0 * window):
            policy.observe(answering(request, request.arrival_s + 1.0))
            policy.observe(completed(request, request.arrival_s + 1.0 + 50 * tpot_s, output_tokens=51))
        if window == 0:
            assert policy.limit == 4.0  # the first window began with its first sample, and is not over
    for request in fill(policy, 20.0):
        policy.observe(answering(request, request.arrival_s + 1.0))
        policy.observe(completed(request, request.arrival_s + 1.0 + 50 * 0.031, output_tokens=51))

    assert policy.limit < 5.0


def test_a_step_takes_enough_samples_and_enough_time() -> None:
    policy = limiter(algorithm="aimd", initial=20.0, window_s=1.0, min_samples=10)
    let_in = fill(policy)
    limits = []
    for index, request in enumerate(let_in):
        policy.observe(answering(request, 0.3 * index))
        limits.append(policy.limit)

    assert limits[:9] == [20.0] * 9
    assert limits[9] != 20.0
    assert limits[18] == limits[9] != limits[19]
    assert policy.in_flight == 0.0


def test_who_gives_up_after_its_first_token_was_due_counts_as_slow_and_who_goes_before_not_at_all() -> None:
    patient, impatient = (limiter(algorithm="aimd", initial=20.0, min_samples=1) for _ in range(2))
    for policy, ends_s in ((patient, 1.5), (impatient, 0.5)):
        for window in range(5):
            for request in fill(policy, 10.0 * window):
                policy.observe(broke_off(request, request.arrival_s + ends_s))

    assert patient.limit < 20.0
    assert impatient.limit == 20.0


def step(algorithm: LimitAlgorithm, limit: float, latencies: list[float], in_flight: float) -> float:
    for latency in latencies:
        limit = algorithm.step(limit, latency, in_flight)
    return limit


def test_gradient2_follows_its_formula() -> None:
    """0.2 of the way to ``limit * tolerance * long / short + 4``, where the factor is between 0.5 and 1."""
    algorithm = Gradient2(tolerance=1.5, smoothing=0.2)

    assert step(algorithm, 100.0, [1.0], 100.0) == pytest.approx(100.8)
    assert step(algorithm, 100.0, [3.0], 100.0) == pytest.approx(100.8)  # long is 2: 1.5 * 2 / 3 is 1
    assert step(algorithm, 100.0, [8.0], 100.0) == pytest.approx(0.8 * 100 + 0.2 * (75.0 + 4))  # long is 4
    assert step(algorithm, 100.0, [80.0], 100.0) == pytest.approx(0.8 * 100 + 0.2 * (50.0 + 4))  # a half at most
    assert step(algorithm, 100.0, [1.0], 49.0) == 100.0  # it is not the limit that keeps requests out


def test_gradient2_forgets_bad_times_by_a_twentieth_a_step() -> None:
    algorithm = Gradient2(tolerance=1.0, smoothing=1.0)
    step(algorithm, 10.0, [10.0] * 10, 10.0)

    after = [algorithm.step(10.0, 1.0, 10.0) for _ in range(60)]
    worse = algorithm.step(10.0, 4.0, 10.0)

    assert after == [14.0] * 60
    assert worse < 10.0


@for_each(
    ("latency", "change"),
    [(1.0, 12.0), (1.02, 12.0), (1.04, 2.0), (1.07, 0.0), (1.13, 0.0), (1.15, -2.0), (2.0, -2.0)],
)
def test_vegas_follows_its_formula(latency: float, change: float) -> None:
    """At a limit of 100 the logarithm is 2: a queue to 2 is next to none, to 6 short, and beyond 12 too long."""
    algorithm = Vegas(Seeds(1).stream("admission"))
    algorithm.step(100.0, 1.0, 100.0)
    assert algorithm.step(100.0, latency, 100.0) == 100.0 + change


def test_vegas_stays_where_it_is_while_less_than_half_is_in_flight() -> None:
    algorithm = Vegas(Seeds(1).stream("admission"))
    algorithm.step(100.0, 1.0, 100.0)
    assert algorithm.step(100.0, 1.0, 49.0) == 100.0


def test_vegas_takes_its_least_latency_anew_every_so_often() -> None:
    algorithm = Vegas(Seeds(1).stream("admission"))
    algorithm.step(10.0, 1.0, 10.0)

    changes = [algorithm.step(10.0, 3.0, 10.0) - 10.0 for _ in range(301)]

    probe = changes.index(0.0)
    assert 150 <= probe + 1 <= 300
    assert set(changes[:probe]) == {-1.0}
    assert set(changes[probe + 1 : probe + 100]) == {6.0}


def test_aimd_adds_one_and_takes_a_tenth() -> None:
    algorithm = Aimd(ceiling=4.0, backoff=0.9)
    assert step(algorithm, 20.0, [4.0, 4.0], 20.0) == 22.0
    assert step(algorithm, 20.0, [4.1], 20.0) == 18.0
    assert step(algorithm, 20.0, [4.0], 9.0) == 20.0


def test_an_answer_that_had_begun_before_the_policy_did_teaches_nothing() -> None:
    policy = limiter(signal="tpot", algorithm="aimd", min_samples=1, window_s=1e-9)
    request = sized("q")

    policy.observe(answering(request, 0.5))
    policy.observe(completed(request, 1.0, output_tokens=50))
    assert comes(policy, request)
    policy.observe(answering(request, 2.0))
    policy.observe(completed(request, 3.0, output_tokens=11))

    assert policy._window._num_samples == 1
    assert policy._window._latency_s == 1.0
