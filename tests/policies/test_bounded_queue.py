from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster import Seeds
from policies import Admit, Reason, Reject, Role
from policies.admission import BoundedQueue
from tests.policies.admission_cases import answering, broke_off, comes, hosted, sized, started
from tests.policy_doubles import FakeBacklog
from tests.tables import for_each


def queue(**params: object) -> Any:
    return hosted(BoundedQueue(rng=Seeds(1).stream("admission"), **params))  # type: ignore[arg-type]


def holding(policy: Any, *works_s: float) -> Any:
    """The same, after replicas were sent requests of so much work."""
    for index, work_s in enumerate(works_s):
        request = sized(f"held{index}", prefill_s=work_s)
        assert comes(policy, request)
        policy.observe(started(request))
    return policy


def refused_of(policy: Any, backlog: FakeBacklog, num_asked: int = 1000, due_s: float = 1e9) -> float:
    verdicts = [policy.decide(sized(due_s=due_s), backlog, 0.0) for _ in range(num_asked)]
    return sum(isinstance(each, Reject) for each in verdicts) / num_asked


def waiting(work_s: float, num_waiting: int = 5) -> FakeBacklog:
    return FakeBacklog(num_waiting=num_waiting, waiting_s=work_s, ahead_s=work_s)


def test_an_empty_line_takes_everybody() -> None:
    assert queue(max_wait_s=0.1).decide(sized(prefill_s=99.0), FakeBacklog(), 0.0) == Admit()


@for_each(("waits_s", "refused"), [(1.9, 0.0), (2.0, 0.0), (2.25, 0.25), (2.75, 0.75), (3.0, 1.0), (9, 1)])
def test_refusals_rise_from_none_at_twice_what_replicas_hold_to_all_at_three_times(
    waits_s: float, refused: float
) -> None:
    policy = holding(queue(max_wait_s=1e6), 0.4, 0.6)
    assert refused_of(policy, waiting(waits_s)) == pytest.approx(refused, abs=0.05)  # 1,000 draws, sigma 0.014


def test_a_refusal_says_how_long_the_line_takes() -> None:
    verdict = holding(queue(), 0.5).decide(sized(), FakeBacklog(num_waiting=1, waiting_s=6.0, work_per_s=2.0), 0.0)
    assert verdict == Reject(reason=Reason.QUEUE_FULL, retry_after_s=3.0)


def test_what_has_its_first_token_or_has_ended_is_not_held_any_more() -> None:
    policy = holding(queue(max_wait_s=1e6), 1.0, 1.0)
    assert refused_of(policy, waiting(3.0)) == 0.0

    policy.observe(answering(sized("held0"), 1.0))
    policy.observe(broke_off(sized("held0"), 2.0))
    assert refused_of(policy, waiting(3.0)) == 1.0
    policy.observe(broke_off(sized("held1"), 2.0))
    assert refused_of(policy, waiting(0.2)) == 1.0


def test_a_replica_counts_as_holding_a_little_at_least() -> None:
    policy = queue(max_wait_s=1e6, least_s=0.5)
    assert refused_of(policy, FakeBacklog(num_waiting=1, waiting_s=1.9, num_replicas=2)) == 0.0
    assert refused_of(policy, FakeBacklog(num_waiting=1, waiting_s=1.9, num_replicas=1)) == 1.0
    assert refused_of(policy, FakeBacklog(num_waiting=1, waiting_s=1.9, num_replicas=0)) == 1.0


def test_requests_that_wait_and_those_that_another_policy_refuses_are_not_held() -> None:
    policy = holding(queue(max_wait_s=1e6), 1.0)
    policy.decide(sized("elsewhere", prefill_s=50.0), FakeBacklog(), 0.0)
    assert comes(policy, sized("waits", prefill_s=70.0))
    assert refused_of(policy, waiting(3.0)) == 1.0


def test_nothing_is_remembered_of_requests_that_have_ended() -> None:
    policy = holding(queue(), 1.0)
    for request in (sized("held0"), sized("waits")):
        assert comes(policy, request)
        policy.observe(broke_off(request, 1.0))

    assert (policy._num_sent, policy._held) == (1, 1.0)


def test_a_line_that_takes_longer_than_half_of_the_promise_takes_nobody() -> None:
    policy = holding(queue(), 100.0)
    assert refused_of(policy, waiting(0.45), due_s=1.0) == 0.0
    assert refused_of(policy, waiting(0.55), due_s=1.0) == 1.0
    assert refused_of(policy, waiting(0.55), due_s=2.0) == 0.0


def test_only_the_work_that_goes_first_is_waited_for() -> None:
    policy = holding(queue(max_wait_s=1.0), 100.0)
    assert refused_of(policy, FakeBacklog(num_waiting=9, waiting_s=9.0, ahead_s=1.9, work_per_s=2.0)) == 0.0
    assert refused_of(policy, FakeBacklog(num_waiting=9, waiting_s=9.0, ahead_s=2.1, work_per_s=2.0)) == 1.0


def test_by_count_requests_take_the_place_of_work_and_the_wait_is_not_predicted() -> None:
    policy = holding(queue(unit="count"), 100.0, 0.01)
    assert refused_of(policy, waiting(1e6, num_waiting=4)) == 0.0
    assert refused_of(policy, waiting(1e6, num_waiting=5)) == pytest.approx(0.5, abs=0.05)
    assert refused_of(policy, waiting(1e6, num_waiting=6)) == 1.0


def test_work_is_that_of_the_stage_that_is_waited_for() -> None:
    policy = queue(max_wait_s=1e6)
    request = sized(prefill_s=1.0, decode_s=9.0)
    assert comes(policy, request, backlog=FakeBacklog(stage=Role.PREFILL))
    policy.observe(started(request))

    assert refused_of(policy, waiting(2.0)) == 0.0
    assert refused_of(policy, waiting(3.0)) == 1.0


@given(
    soft=st.floats(0.1, 10.0),
    width=st.floats(0.0, 10.0),
    held=st.floats(0.01, 100.0),
    waits=st.lists(st.floats(0.0, 1000.0), min_size=2, max_size=20),
)
def test_the_more_waits_the_more_is_refused(soft: float, width: float, held: float, waits: list[float]) -> None:
    policy = queue(soft_factor=soft, hard_factor=soft + width)
    refused = [policy.refused_fraction(each, held) for each in sorted(waits)]

    assert refused == sorted(refused)
    assert all(0.0 <= each <= 1.0 for each in refused)
    assert policy.refused_fraction(held * (soft + width) * 1.001 + 1e-6, held) == 1.0
    assert policy.refused_fraction(held * soft * 0.999, held) == 0.0
