import pytest

from policies.queueing import Fcfs
from tests.policy_doubles import a_request


def queue_of(*request_ids: str) -> Fcfs:
    queue = Fcfs()
    for now_s, request_id in enumerate(request_ids):
        queue.push(a_request(request_id), float(now_s))
    return queue


def pop_all(queue: Fcfs) -> list[str]:
    return [queue.pop(9.0).request_id for _ in range(len(queue))]


def test_requests_leave_in_the_order_they_came() -> None:
    assert pop_all(queue_of("c", "a", "b")) == ["c", "a", "b"]


def test_a_request_taken_out_of_turn_leaves_the_order_of_the_others() -> None:
    queue = queue_of("a", "b", "c")

    assert queue.remove("b")
    assert pop_all(queue) == ["a", "c"]


def test_a_request_that_does_not_wait_cannot_be_taken_out() -> None:
    queue = queue_of("a")

    assert not queue.remove("b")
    assert len(queue) == 1


def test_a_request_that_comes_back_goes_to_the_end() -> None:
    queue = queue_of("a", "b")

    queue.push(queue.pop(2.0), 3.0)

    assert pop_all(queue) == ["b", "a"]


def test_an_empty_queue_has_nothing_to_give() -> None:
    with pytest.raises(IndexError, match="no request waits"):
        Fcfs().pop(0.0)
