from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from policies import RequestView, Role
from policies.queueing import Edf, Fcfs, PriorityAged, SjfAged
from policies.views import Geometry, Priority
from tests.policy_doubles import a_request
from tests.tables import for_each

AnyQueue = Fcfs | SjfAged | Edf | PriorityAged


def sized(request_id: str, arrival_s: float, prefill_s: float) -> RequestView:
    """A request that came then and takes so long."""
    return replace(a_request(request_id), arrival_s=arrival_s, geometry=Geometry(prefill_s=prefill_s))


def popped(queue: AnyQueue, *requests: RequestView) -> list[str]:
    """Pushes all, and tells in which order they leave."""
    for each in requests:
        queue.push(each, each.arrival_s)
    return [queue.pop(9.0).request_id for _ in range(len(queue))]


def test_requests_leave_in_the_order_they_came_and_who_comes_back_is_last() -> None:
    queue, requests = Fcfs(), [a_request(each) for each in "cabd"]
    for each in requests:
        queue.push(each, 0.0)
    assert queue.remove(requests[1])
    assert popped(queue, queue.pop(2.0)) == ["b", "d", "c"]


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
    assert all(queue.remove(each) for each in requests if each.request_id in gone)

    left = [queue.pop(0.0) for _ in range(len(queue))]

    keys = [each.arrival_s + 3.0 * (each.geometry.prefill_s or 100 * 1e-4) for each in left]
    assert keys == sorted(keys)
    assert {each.request_id for each in left} == {each.request_id for each in requests} - gone


def test_a_request_that_left_and_came_back_is_there_once() -> None:
    queue = SjfAged()
    request = sized("q", 0.0, 1.0)
    queue.push(request, 0.0)
    queue.remove(request)
    assert popped(queue, request) == ["q"]


def of_class(request_id: str, arrival_s: float, priority: Priority) -> RequestView:
    """A request of a class that came then and takes a second."""
    return replace(sized(request_id, arrival_s, 1.0), priority=priority)


def due(request_id: str, arrival_s: float, first_token_by_s: float) -> RequestView:
    """A request that came then, whose first token is due then, and that takes a second."""
    return replace(sized(request_id, arrival_s, 1.0), first_token_by_s=first_token_by_s)


def test_the_more_important_class_goes_first() -> None:
    classes = (Priority.SHEDDABLE, Priority.STANDARD, Priority.CRITICAL)
    requests = [of_class(each, number, each) for number, each in enumerate(classes)]
    assert popped(PriorityAged(), *requests) == ["critical", "standard", "sheddable"]


def test_inside_a_class_the_first_to_come_is_the_first_to_go() -> None:
    requests = [of_class(f"{arrival_s:g}", arrival_s, Priority.CRITICAL) for arrival_s in (2.0, 0.0, 1.0)]
    assert popped(PriorityAged(), *requests) == ["0", "1", "2"]


@for_each(("later_s", "first"), [(29.0, "critical"), (31.0, "standard")])
def test_a_class_that_has_waited_for_tau_goes_before_the_next_better_one(later_s: float, first: str) -> None:
    standard = of_class("standard", 0.0, Priority.STANDARD)
    assert popped(PriorityAged(), standard, of_class("critical", later_s, Priority.CRITICAL))[0] == first


def test_without_aging_classes_are_strict() -> None:
    sheddable, critical = of_class("sheddable", 0.0, Priority.SHEDDABLE), of_class("critical", 1e6, Priority.CRITICAL)
    assert popped(PriorityAged(aging_tau_s=float("inf")), sheddable, critical) == ["critical", "sheddable"]


ARRIVALS = st.lists(st.tuples(st.floats(0, 3), st.sampled_from(Priority)), min_size=1, max_size=80)


@given(gaps=ARRIVALS, tau_s=st.floats(0.5, 30), served_s=st.floats(0.5, 4))
def test_nobody_waits_longer_than_for_those_before_it_and_better_ones_of_its_time(
    gaps: list[tuple[float, Priority]], tau_s: float, served_s: float
) -> None:
    """One server, and requests of ``served_s`` each, at any load: the bound on the wait that aging is for."""
    arrivals, now_s = [], 0.0
    for number, (gap_s, priority) in enumerate(gaps):
        now_s += gap_s
        arrivals.append(of_class(f"{number}", now_s, priority))
    queue, started_s, coming, now_s = PriorityAged(aging_tau_s=tau_s), dict[str, float](), list(arrivals), 0.0
    while coming or queue:
        if not queue:
            now_s = max(now_s, coming[0].arrival_s)
        while coming and coming[0].arrival_s <= now_s:
            queue.push(coming.pop(0), now_s)
        started_s[queue.pop(now_s).request_id] = now_s
        now_s += served_s

    for each in arrivals:
        passing_s = each.priority.rank * tau_s
        before = [one for one in arrivals if one.arrival_s <= each.arrival_s + passing_s and one is not each]
        assert started_s[each.request_id] <= each.arrival_s + served_s * (len(before) + 1) + 1e-6


def test_whose_first_token_is_due_first_goes_first() -> None:
    requests = due("late", 0.0, 6.0), due("soon", 0.5, 1.5), due("sooner", 0.2, 1.2)
    assert popped(Edf(), *requests) == ["sooner", "soon", "late"]


def test_of_those_due_at_the_same_time_the_first_to_come_goes_first() -> None:
    assert popped(Edf(), due("b", 1.0, 5.0), due("a", 0.0, 5.0), due("c", 1.0, 5.0)) == ["a", "b", "c"]


def test_where_nothing_is_promised_deadlines_say_who_goes_first() -> None:
    patient, hasty = replace(a_request("patient"), deadline_s=60.0), replace(a_request("hasty"), deadline_s=5.0)
    assert popped(Edf(), patient, hasty) == ["hasty", "patient"]


JOBS = st.lists(
    st.builds(
        lambda number, arrival_s, due_in_s, prefill_s, priority: replace(
            due(f"{number}", arrival_s, arrival_s + due_in_s),
            geometry=Geometry(prefill_s=prefill_s, decode_s=2 * prefill_s),
            priority=priority,
        ),
        number=st.integers(0, 10**9),
        arrival_s=st.integers(0, 100),
        due_in_s=st.integers(1, 20),
        prefill_s=st.integers(1, 30),
        priority=st.sampled_from(Priority),
    ),
    min_size=1,
    max_size=60,
    unique_by=lambda each: each.request_id,
)


@for_each("policy", [SjfAged, Edf, PriorityAged])
@for_each("stage", list(Role))
@given(jobs=JOBS, data=st.data())
def test_the_work_ahead_is_that_of_those_who_go_before(
    policy: type[SjfAged | Edf | PriorityAged], stage: Role, jobs: list[RequestView], data: st.DataObject
) -> None:
    newcomer, *others = jobs
    queue = policy(stage=stage)
    for each in others:
        queue.push(each, 0.0)
    for each in data.draw(st.lists(st.sampled_from(others), unique=True)) if others else ():
        queue.remove(each)
    expected_s = queue.work_ahead_s(newcomer)
    queue.push(newcomer, 0.0)

    assert queue.work_ahead_s(newcomer) == expected_s
    ahead_s = 0.0
    while (first := queue.pop(0.0)) is not newcomer:
        ahead_s += first.geometry.work_s(stage)
    assert ahead_s == expected_s
