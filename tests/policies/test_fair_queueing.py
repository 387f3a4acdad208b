"""Tenants that share a line: deficit round robin, and the virtual token counter."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import inf

from hypothesis import given
from hypothesis import strategies as st

from policies import RequestView
from policies.queueing import Drr, Vtc
from policies.signals import Answering, Ended, Started
from policies.views import Geometry
from tests.policy_doubles import a_request
from tests.tables import for_each


def of(tenant: str, number: int = 0, *, prompt: int = 100, answer: int = 50, work_s: float = 1.0) -> RequestView:
    """A request of a tenant, whose answer is expected to have the length that it is allowed."""
    request = a_request(f"{tenant}{number}", prompt_tokens=prompt, max_output_tokens=answer)
    return replace(request, tenant=tenant, geometry=Geometry(output_tokens=answer, prefill_s=work_s))


def push_all(queue: Drr | Vtc, *requests: RequestView) -> None:
    for each in requests:
        queue.push(each, 0.0)


def filled(queue: Drr | Vtc, *requests: RequestView) -> list[str]:
    """Pushes all, and tells in which order they leave."""
    push_all(queue, *requests)
    return [queue.pop(0.0).request_id for _ in range(len(queue))]


def backlog(tenant: str, num: int, *, prompt: int = 100, work_s: float = 1.0) -> list[RequestView]:
    return [of(tenant, number, prompt=prompt, work_s=work_s) for number in range(num)]


def ends(queue: Vtc, request: RequestView, output_tokens: int | None) -> None:
    """A request that has left is answered in full; ``None``: it broke off, or was refused."""
    is_completed = output_tokens is not None
    queue.observe(Ended(request=request, is_completed=is_completed, output_tokens=output_tokens or 0, at_s=0.0))


# -- deficit round robin ----------------------------------------------------------------------------------------------


def test_tenants_take_turns() -> None:
    assert filled(Drr(quantum_s=1.0), *backlog("a", 3), *backlog("b", 2)) == ["a0", "b0", "a1", "b1", "a2"]


def test_a_turn_is_worth_work_and_no_number_of_requests() -> None:
    short, long = backlog("s", 4, work_s=1.0), backlog("l", 2, work_s=2.0)
    assert filled(Drr(quantum_s=2.0), *long, *short) == ["l0", "s0", "s1", "l1", "s2", "s3"]


def test_what_a_turn_leaves_over_is_kept_for_the_next() -> None:
    threes, ones = backlog("t", 2, work_s=3.0), backlog("o", 6, work_s=1.0)
    assert filled(Drr(quantum_s=2.0), *threes, *ones) == ["o0", "o1", "t0", "o2", "o3", "t1", "o4", "o5"]


def test_a_request_that_costs_far_more_than_a_quantum_gets_its_turn_at_once_when_alone() -> None:
    assert filled(Drr(quantum_s=0.001), of("a", work_s=1000.0), of("b", work_s=2000.0)) == ["a0", "b0"]


def test_who_has_nothing_waiting_saves_nothing_up() -> None:
    queue = Drr(quantum_s=100.0)
    assert filled(queue, *backlog("a", 1)) == ["a0"]
    assert filled(queue, *backlog("b", 1), *backlog("a", 2)) == ["b0", "a0", "a1"]


def test_when_the_turn_ends_by_somebody_giving_up_the_next_tenant_has_it() -> None:
    queue = Drr(quantum_s=2.0)
    push_all(queue, *backlog("a", 1), *backlog("b", 2), *backlog("c", 2))
    queue.remove(backlog("a", 1)[0])
    assert filled(queue) == ["b0", "b1", "c0", "c1"]


SIZES = st.lists(st.tuples(st.sampled_from("abc"), st.floats(0.01, 3.0)), max_size=120)


@given(jobs=SIZES, quantum_s=st.floats(0.05, 4.0), weights=st.tuples(*[st.floats(0.2, 5.0)] * 3))
def test_two_backlogged_tenants_get_the_same_work_but_for_a_quantum_and_their_largest_requests(
    jobs: list[tuple[str, float]], quantum_s: float, weights: tuple[float, float, float]
) -> None:
    weight = dict(zip("abc", weights, strict=True))
    queue = Drr(quantum_s=quantum_s, weights=weight)
    requests = [of(tenant, number, work_s=work_s) for number, (tenant, work_s) in enumerate(jobs)]
    push_all(queue, *requests)
    largest = {name: max((work_s for tenant, work_s in jobs if tenant == name), default=0.0) for name in "abc"}
    left = Counter(tenant for tenant, _ in jobs)
    served = dict.fromkeys("abc", 0.0)
    seen: dict[tuple[str, str], list[float]] = {pair: [] for pair in (("a", "b"), ("a", "c"), ("b", "c"))}
    while queue:
        for (one, other), leads in seen.items():
            if left[one] and left[other]:
                leads.append(served[one] / weight[one] - served[other] / weight[other])
        went = queue.pop(0.0)
        left[went.tenant] -= 1
        served[went.tenant] += went.geometry.prefill_s

    for (one, other), leads in seen.items():
        bound_s = quantum_s + largest[one] / weight[one] + largest[other] / weight[other]
        assert not leads or max(leads) - min(leads) <= bound_s + 1e-6


# -- virtual token counter --------------------------------------------------------------------------------------------


def test_the_tenant_that_was_given_least_goes_first() -> None:
    order = filled(Vtc(), *backlog("a", 6), *backlog("b", 2))
    assert order == ["a0", "b0", "a1", "b1", "a2", "a3", "a4", "a5"]


def test_long_prompts_count_for_more() -> None:
    order = filled(Vtc(output_weight=0.0), *backlog("l", 3, prompt=300), *backlog("s", 9, prompt=100))
    assert Counter(each[0] for each in order[:8]) == {"l": 2, "s": 6}


def test_idleness_is_not_saved_up() -> None:
    queue = Vtc()
    filled(queue, *backlog("busy", 50))
    again = (replace(each, request_id=f"again{each.request_id}") for each in backlog("busy", 10))
    order = filled(queue, *backlog("new", 10), *again)
    assert Counter(each.rstrip("0123456789") for each in order[:10]) == {"new": 5, "againbusy": 5}


def test_a_tenant_that_comes_to_a_line_begins_where_the_others_are() -> None:
    queue = Vtc()
    push_all(queue, *backlog("old", 60))
    for _ in range(40):
        queue.pop(0.0)
    order = filled(queue, *backlog("new", 10))

    assert Counter(each[:3] for each in order[:10]) == {"new": 5, "old": 5}


def test_a_lead_is_remembered_over_a_pause_and_halved_with_time() -> None:
    """Who got 1,000 tokens in one go lets ten of 100 pass, of a tenant that has been there all the time."""

    def lead(pause_s: float) -> int:
        queue = Vtc(output_weight=0.0, half_life_s=10.0)
        push_all(queue, *backlog("steady", 30), of("greedy", 99, prompt=1000))
        went = [queue.pop(0.0).request_id for _ in range(2)]
        assert went == ["steady0", "greedy99"]
        queue.push(of("greedy"), pause_s)
        return [queue.pop(pause_s).request_id for _ in range(len(queue))].index("greedy0")

    assert [lead(0.0), lead(10.0), lead(1000.0)] == [10, 5, 0]


def answered(queue: Vtc, output_tokens: int | None, *, signals: int = 2) -> int:
    """How many requests of another tenant go before the next one of a tenant that had one answered."""
    first, second = of("a", 0, prompt=1000, answer=500), of("a", 1)
    others = (replace(each, max_output_tokens=0, geometry=Geometry()) for each in backlog("b", 30, prompt=200))
    push_all(queue, first, second, *others)
    assert queue.pop(0.0) is first
    told = Started(request=first, at_s=0.0), Answering(request=first, at_s=0.0)
    for signal in told[:signals]:
        queue.observe(signal)
    ends(queue, first, output_tokens)
    return filled(queue).index("a1")


@for_each(
    ("output_tokens", "signals", "behind"),
    [(500, 2, 10), (0, 2, 5), (100, 2, 6), (1000, 2, 15), (None, 2, 10), (None, 1, 5), (None, 0, 0)],
    ids=["as expected", "empty", "shorter", "longer", "broke off", "no token", "refused at the head"],
)
def test_a_tenant_is_charged_in_the_end_for_what_was_spent(
    output_tokens: int | None, signals: int, behind: int
) -> None:
    assert answered(Vtc(), output_tokens, signals=signals) == behind


def test_a_request_that_is_lined_up_again_is_charged_once() -> None:
    once, twice = Vtc(), Vtc()
    for queue in (once, twice):
        push_all(queue, *backlog("a", 5), *backlog("b", 5))
    first = twice.pop(0.0)
    twice.push(first, 0.0)
    orders = [[queue.pop(0.0).tenant for _ in range(len(queue))] for queue in (once, twice)]

    assert orders[0] == orders[1]


def test_requests_that_never_waited_here_change_nothing() -> None:
    queue = Vtc()
    stranger = of("a", 77, prompt=9000)
    queue.observe(Started(request=stranger, at_s=0.0))
    ends(queue, stranger, 5000)
    assert filled(queue, *backlog("a", 1), *backlog("b", 1)) == ["a0", "b0"]


def test_tenants_who_are_idle_and_not_ahead_are_forgotten() -> None:
    queue = Vtc()
    for number in range(500):
        filled(queue, of(f"tenant{number}-"))
    assert queue.num_tenants <= 2


def test_at_most_so_many_idle_tenants_are_remembered() -> None:
    queue = Vtc(max_tenants=10, half_life_s=inf)
    push_all(queue, *backlog("steady", 1), *(of(f"tenant{number}-", prompt=1) for number in range(100)))
    for _ in range(100):
        queue.pop(0.0)
    assert queue.num_tenants <= 11


class Rivals:
    """Three tenants at a line: requests come, are taken off it while there is room, and end in any order.

    Args:
        seed: Of their sizes.
        low: Expected answers are at least so many of the true ones.
        high: And at most so many.
    """

    def __init__(self, seed: int, low: float, high: float) -> None:
        self.queue = Vtc(half_life_s=inf)
        self.widest_lead = 0
        self._rng = random.Random(seed)
        self._error = low, high
        self._answers: dict[str, int] = {}
        self._under_way: list[RequestView] = []
        self._waiting, self._served = Counter[str](), Counter[str]()
        self._leads: dict[tuple[str, str], list[int]] = {}
        self._most_kv_tokens = self._longest_prompt = 0
        for tenant in "aabb":
            self.arrive(tenant)

    @property
    def bound(self) -> float:
        return 2.0 * max(self._longest_prompt, 2 * self._most_kv_tokens)

    def arrive(self, tenant: str) -> None:
        prompt, answer = self._rng.choice([10, 100, 1000]), self._rng.choice([1, 50, 400])
        expected = max(1, round(answer * self._rng.uniform(*self._error)))
        request = of(tenant, len(self._answers), prompt=prompt, answer=expected)
        self._answers[request.request_id] = answer
        self._longest_prompt = max(self._longest_prompt, prompt)
        self._waiting[tenant] += 1
        self.queue.push(request, 0.0)

    def start(self) -> None:
        if not self.queue or len(self._under_way) >= 10:
            return
        request = self.queue.pop(0.0)
        self.queue.observe(Started(request=request, at_s=0.0))
        self.queue.observe(Answering(request=request, at_s=0.0))
        self._under_way.append(request)
        self._waiting[request.tenant] -= 1
        self._served[request.tenant] += request.prompt_tokens + 2 * self._answers[request.request_id]
        held = sum(
            each.prompt_tokens + max(self._answers[each.request_id], each.geometry.output_tokens)
            for each in self._under_way
        )
        self._most_kv_tokens = max(self._most_kv_tokens, held)

    def end(self, index: int) -> None:
        if self._under_way:
            request = self._under_way.pop(index % len(self._under_way))
            ends(self.queue, request, self._answers[request.request_id])

    def look(self) -> None:
        """How far is one ahead of another, since both have been waiting?"""
        for one, other in (("a", "b"), ("a", "c"), ("b", "c")):
            if self._waiting[one] and self._waiting[other]:
                seen = self._leads.setdefault((one, other), [])
                seen.append(self._served[one] - self._served[other])
                self.widest_lead = max(self.widest_lead, max(seen) - min(seen))
            else:
                self._leads.pop((one, other), None)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("start"), st.just(0)),
        st.tuples(st.just("start"), st.just(0)),
        st.tuples(st.just("end"), st.integers(0, 9)),
        st.tuples(st.sampled_from("abc"), st.just(0)),
    ),
    min_size=20,
    max_size=200,
)


def rivals_after(steps: Sequence[tuple[str, int]], seed: int, *, low: float, high: float) -> Rivals:
    rivals = Rivals(seed, low, high)
    for step, value in steps:
        if step == "start":
            rivals.start()
        elif step == "end":
            rivals.end(value)
        else:
            rivals.arrive(step)
        rivals.look()
    return rivals


@given(steps=STEPS, seed=st.integers(0, 10**6))
def test_two_backlogged_tenants_get_the_same_service_but_for_what_is_under_way(
    steps: list[tuple[str, int]], seed: int
) -> None:
    rivals = rivals_after(steps, seed, low=1.0, high=4.0)
    assert rivals.widest_lead <= rivals.bound


@given(steps=STEPS, seed=st.integers(0, 10**6))
def test_answers_that_are_longer_than_expected_widen_the_bound_by_twice_what_is_under_way(
    steps: list[tuple[str, int]], seed: int
) -> None:
    rivals = rivals_after(steps, seed, low=0.2, high=4.0)
    assert rivals.widest_lead <= 2 * rivals.bound


@for_each("policy", [Drr, Vtc])
@given(
    jobs=st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 300)), max_size=60),
    given_up=st.sets(st.integers(0, 59)),
)
def test_a_tenants_requests_leave_in_the_order_they_came_and_nobody_is_lost(
    policy: type[Drr | Vtc], jobs: list[tuple[str, int]], given_up: set[int]
) -> None:
    queue = policy()
    requests = [of(tenant, number, prompt=size, work_s=0.01 * size) for number, (tenant, size) in enumerate(jobs)]
    push_all(queue, *requests)
    gone = {each.request_id for number, each in enumerate(requests) if number in given_up}
    assert all(queue.remove(each) for each in requests if each.request_id in gone)

    left = []
    while queue:
        expected = queue.peek(0.0)
        assert queue.work_ahead_s(expected) == 0.0
        assert queue.pop(0.0) is expected
        left.append(expected)

    for tenant in "abc":
        came = [each for each in requests if each.tenant == tenant and each.request_id not in gone]
        assert [each for each in left if each.tenant == tenant] == came


@for_each("policy", [Drr, Vtc])
@given(
    jobs=st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 100)), max_size=80),
    newcomer=st.tuples(st.sampled_from("abcde"), st.integers(1, 100)),
    num_gone=st.integers(0, 40),
)
def test_the_estimate_of_the_work_ahead_is_off_by_little_for_each_tenant(
    policy: type[Drr | Vtc], jobs: list[tuple[str, int]], newcomer: tuple[str, int], num_gone: int
) -> None:
    """All wait already, sizes are known: what is left is a quantum and the largest requests, for each other tenant."""
    queue = Drr(quantum_s=1.0) if policy is Drr else Vtc(output_weight=0.0)
    push_all(queue, *(of(name, number, prompt=size, work_s=0.01 * size) for number, (name, size) in enumerate(jobs)))
    for _ in range(min(num_gone, len(jobs))):
        queue.pop(0.0)
    request = of(newcomer[0], 999, prompt=newcomer[1], work_s=0.01 * newcomer[1])
    estimate_s = queue.work_ahead_s(request)
    queue.push(request, 0.0)

    ahead_s = 0.0
    while (first := queue.pop(0.0)) is not request:
        ahead_s += first.geometry.prefill_s
    assert abs(ahead_s - estimate_s) <= 3.0 * 4
