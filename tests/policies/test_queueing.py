from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies import ConfigError, RequestView
from policies.queueing import Fcfs, SjfAged
from policies.views import Geometry
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


def sized(request_id: str, arrival_s: float, prefill_s: float) -> RequestView:
    """A request that came then and takes so long."""
    return replace(a_request(request_id), arrival_s=arrival_s, geometry=Geometry(prefill_s=prefill_s))


def popped(queue: SjfAged, *requests: RequestView) -> list[str]:
    for each in requests:
        queue.push(each, each.arrival_s)
    return [queue.pop(9.0).request_id for _ in range(len(queue))]


def test_short_jobs_go_first() -> None:
    assert popped(SjfAged(), sized("long", 0.0, 2.0), sized("short", 0.1, 0.1)) == ["short", "long"]


def test_a_long_job_that_came_early_enough_goes_before_a_short_one() -> None:
    long, short = sized("long", 0.0, 2.0), sized("short", 5.8, 0.1)

    assert popped(SjfAged(factor=3.0), long, short) == ["long", "short"]
    assert popped(SjfAged(factor=4.0), long, short) == ["short", "long"]


def test_with_a_factor_of_nothing_the_first_to_come_is_the_first_to_go() -> None:
    assert popped(SjfAged(factor=0.0), sized("long", 0.0, 9.0), sized("short", 0.1, 0.1)) == ["long", "short"]


def test_where_the_engines_rates_are_unknown_tokens_stand_for_work() -> None:
    long, short = a_request("long", prompt_tokens=40_000), a_request("short", prompt_tokens=100)

    assert popped(SjfAged(), long, short) == ["short", "long"]
    assert popped(SjfAged(token_s=1e-6), long, replace(short, arrival_s=1.0)) == ["long", "short"]


@given(jobs=st.lists(st.tuples(st.floats(0, 100), st.floats(0, 10), st.booleans()), max_size=60))
def test_jobs_leave_in_the_order_of_arrival_plus_aged_work(jobs: list[tuple[float, float, bool]]) -> None:
    queue = SjfAged()
    requests = [sized(f"{number}", *job[:2]) for number, job in enumerate(jobs)]
    for each in requests:
        queue.push(each, each.arrival_s)
    gone = {each.request_id for each, job in zip(requests, jobs, strict=True) if job[2]}
    assert all(queue.remove(each) for each in gone)

    left = [queue.pop(0.0) for _ in range(len(queue))]

    keys = [each.arrival_s + 3.0 * (each.geometry.prefill_s or 100 * 1e-4) for each in left]
    assert keys == sorted(keys)
    assert {each.request_id for each in left} == {each.request_id for each in requests} - gone


def test_a_request_that_left_and_came_back_is_there_once() -> None:
    queue = SjfAged()
    request = sized("q", 0.0, 1.0)
    queue.push(request, 0.0)
    queue.remove("q")

    assert popped(queue, request) == ["q"]


@pytest.mark.parametrize("params", [{"factor": -1.0}, {"factor": float("inf")}, {"token_s": 0.0}])
def test_parameters_of_aging_out_of_range_are_refused(params: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(params))):
        SjfAged(**params)
