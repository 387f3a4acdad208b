import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies import Admit, Reason, Reject, RequestView
from policies.admission import Deadline
from policies.signals import Answering, Ended, Started
from policies.views import Geometry
from tests.policies.admission_cases import comes, hosted
from tests.policy_doubles import FakeBacklog, a_request

NEVER_PROBES = 0.0


def deadline(**params: Any) -> Any:
    return hosted(Deadline(**{"probe_fraction": NEVER_PROBES, "safety": 1.0, **params}))


def due(by_s: float, *, lane: str = "chat", work_s: float = 0.1, arrival_s: float = 0.0) -> RequestView:
    """A request whose prefill takes ``work_s`` and whose first token is due at ``by_s``."""
    return replace(a_request(), arrival_s=arrival_s).classified(Geometry(prefill_s=work_s), lane, by_s)


def served(policy: Any, request: RequestView, *, start_s: float, answer_s: float) -> None:
    """Tells of a request that was started and answered."""
    assert comes(policy, request, request.arrival_s)
    policy.observe(Started(request=request, at_s=start_s))
    policy.observe(Answering(request=request, at_s=answer_s))
    policy.observe(Ended(request=request, is_completed=True, output_tokens=10, at_s=answer_s + 1.0))


def test_a_request_comes_in_when_its_turn_comes_in_time() -> None:
    assert deadline().decide(due(1.0), FakeBacklog(first_token_s=0.9), 0.0) == Admit()


def test_a_request_that_would_be_late_is_refused_and_told_when_its_turn_would_have_come() -> None:
    verdict = deadline().decide(due(1.0), FakeBacklog(first_token_s=1.1), 0.0)
    assert verdict == Reject(reason=Reason.DEADLINE_UNREACHABLE, retry_after_s=1.0)


def test_predictions_are_multiplied_by_the_safety() -> None:
    backlog = FakeBacklog(first_token_s=0.88)
    assert deadline(safety=1.1).decide(due(1.0), backlog, 0.0) == Admit()
    assert isinstance(deadline(safety=1.2).decide(due(1.0), backlog, 0.0), Reject)


def test_a_refusal_at_the_head_of_the_queue_makes_waits_count_for_more_and_early_ones_for_less() -> None:
    policy, request, backlog = deadline(), due(10.0), FakeBacklog(first_token_s=9.7)
    assert comes(policy, request, backlog=backlog)

    assert isinstance(policy.start(request, FakeBacklog(first_token_s=0.2), 9.9), Reject)
    assert not comes(policy, due(10.0), backlog=backlog)

    for _ in range(300):
        assert not comes(policy, due(10.0), backlog=FakeBacklog(first_token_s=11.0))
    assert comes(policy, due(10.0), backlog=backlog)


def test_several_gateways_have_a_margin_for_what_others_let_in_and_none_for_waits() -> None:
    policy, request, backlog = deadline(num_gateways=4), due(10.0), FakeBacklog(first_token_s=9.7)
    assert comes(policy, request, backlog=backlog)
    assert isinstance(policy.start(request, FakeBacklog(first_token_s=0.2), 9.9), Reject)
    assert comes(policy, due(20.0, arrival_s=10.0), 10.0, backlog)


def late(policy: Any, *, at_s: float) -> None:
    """One comes whose first token is a tenth of a second late."""
    served(policy, due(at_s + 1.0, arrival_s=at_s), start_s=at_s + 0.1, answer_s=at_s + 1.1)


def test_first_tokens_that_come_late_make_estimates_longer_and_those_in_time_shorter_again() -> None:
    policy, backlog = deadline(), FakeBacklog(first_token_s=0.8)
    for number in range(3):
        late(policy, at_s=2.0 * number)
    assert not comes(policy, due(1.0), backlog=backlog)

    for _ in range(60):
        served(policy, due(20.0, arrival_s=10.0), start_s=10.1, answer_s=11.1)
    assert comes(policy, due(1.0), backlog=backlog)


def test_of_many_late_first_tokens_that_one_moment_was_wrong_about_one_counts() -> None:
    policy = deadline()
    for _ in range(50):
        late(policy, at_s=0.0)

    assert comes(policy, due(1.0), backlog=FakeBacklog(first_token_s=0.88))


def test_however_many_first_tokens_are_late_estimates_are_no_more_than_twice_as_long() -> None:
    policy = deadline()
    for number in range(100):
        late(policy, at_s=2.0 * number)

    then = due(201.0, arrival_s=200.0)
    assert comes(policy, then, 200.0, backlog=FakeBacklog(first_token_s=0.95 / 2.0))
    assert not comes(policy, then, 200.0, backlog=FakeBacklog(first_token_s=1.01 / 2.0))


def test_estimates_find_back_though_nobody_comes_in_from_whom_to_learn() -> None:
    policy = deadline()
    for number in range(30):
        late(policy, at_s=2.0 * number)
    backlog = FakeBacklog(first_token_s=0.8)

    assert not comes(policy, due(61.0, arrival_s=60.0), 60.0, backlog=backlog)
    assert comes(policy, due(201.0, arrival_s=200.0), 200.0, backlog=backlog)


def test_a_probe_that_is_late_says_nothing_of_estimates() -> None:
    policy = deadline(probe_fraction=1.0)
    hopeless = FakeBacklog(first_token_s=5.0)
    for _ in range(20):
        served(policy, due(100.0), start_s=0.1, answer_s=1.1)
        assert comes(policy, due(1.0), backlog=hopeless), "a probe"
        policy.observe(Answering(request=due(1.0), at_s=5.0))

    assert comes(policy, due(1.0), backlog=FakeBacklog(first_token_s=0.95))


def test_one_wrong_estimate_that_many_have_gone_by_does_not_keep_everybody_out() -> None:
    policy, requests = deadline(), [replace(due(10.0), request_id=str(number)) for number in range(50)]
    assert all(comes(policy, each, backlog=FakeBacklog(first_token_s=5.0)) for each in requests)
    for each in requests:
        assert isinstance(policy.start(each, FakeBacklog(first_token_s=0.2), 9.9), Reject)

    assert comes(policy, due(10.0), backlog=FakeBacklog(first_token_s=9.4))


def crowded(**params: Any) -> Any:
    """A policy that has let in half a service-second a second, due within a second, up to 100 s."""
    policy = deadline(**params)
    for number in range(1000):
        now_s = number * 0.1
        comes(policy, due(now_s + 1.0, work_s=0.05, arrival_s=now_s), now_s)
    return policy


def test_what_will_come_with_tighter_slos_goes_first() -> None:
    loose, backlog = due(100.0 + 9.0, arrival_s=100.0), FakeBacklog(first_token_s=6.0)

    assert isinstance(crowded().decide(loose, backlog, 100.0), Reject)  # 6 s, and 4 s of work are yet to come
    assert crowded(order="arrival").decide(loose, backlog, 100.0) == Admit()


def test_one_of_several_gateways_leaves_room_for_what_the_others_let_in_at_the_same_moment() -> None:
    """A second of work was let in here; as far as is known, so it was at three other gateways."""
    backlog = FakeBacklog(first_token_s=0.5)
    for num_gateways, verdict in ((1, Admit), (4, Reject)):
        policy = deadline(num_gateways=num_gateways)
        comes(policy, due(9.0, work_s=1.0), 0.0)

        assert isinstance(policy.decide(due(1.5), backlog, 0.0), verdict)
        assert isinstance(policy.decide(due(2.5, arrival_s=1.0), backlog, 1.0), Admit), "they have told meanwhile"


def test_a_request_that_need_not_wait_is_overtaken_by_nobody() -> None:
    soon = due(100.0 + 9.0, arrival_s=100.0, work_s=8.5)

    assert crowded().decide(soon, FakeBacklog(first_token_s=8.5), 100.0) == Admit()


def test_a_long_prompt_leaves_more_room_where_sizes_are_not_to_be_treated_alike() -> None:
    long, short = (due(100.0 + 3.0, arrival_s=100.0, work_s=work_s) for work_s in (0.5, 0.05))
    waits_a_second = FakeBacklog(first_token_s=1.0)

    assert crowded(size_fairness=1.0).decide(long, waits_a_second, 100.0) == Admit()
    assert isinstance(crowded(size_fairness=0.0).decide(long, waits_a_second, 100.0), Reject)
    assert crowded(size_fairness=0.0).decide(short, waits_a_second, 100.0) == Admit()
    assert crowded(size_fairness=0.0).decide(long, FakeBacklog(first_token_s=0.5), 100.0) == Admit()  # it need not wait


def test_a_request_that_has_become_hopeless_never_starts() -> None:
    policy = deadline()
    assert policy.start(due(1.0), FakeBacklog(first_token_s=0.1), 0.9) == Admit()
    verdict = policy.start(due(1.0), FakeBacklog(first_token_s=0.1, waiting_s=4.0, work_per_s=2.0), 0.95)
    assert verdict == Reject(reason=Reason.DEADLINE_UNREACHABLE, retry_after_s=2.0)


def test_a_request_for_whose_answer_there_is_no_kv_is_refused() -> None:
    policy = deadline(kv_ceiling=0.9)
    request = due(10.0)  # 150 KV tokens

    assert policy.decide(request, FakeBacklog(kv_tokens=700, kv_capacity_tokens=1000), 0.0) == Admit()
    full = FakeBacklog(kv_tokens=700, waiting_kv_tokens=100, kv_capacity_tokens=1000)
    verdict = policy.decide(request, full, 0.0)
    assert isinstance(verdict, Reject)
    assert verdict.reason is Reason.KV_FULL


def test_kv_that_requests_have_in_common_counts_once() -> None:
    full = FakeBacklog(kv_tokens=2000, kv_capacity_tokens=1000)
    assert isinstance(deadline().decide(a_request(), full, 0.0), Reject)
    shared = FakeBacklog(kv_tokens=2000, kv_capacity_tokens=1000, shared_kv_fraction=0.6)
    assert isinstance(deadline().decide(a_request(), shared, 0.0), Admit)


def test_kv_that_will_have_been_released_by_then_counts() -> None:
    policy = deadline()
    for number in range(1000):  # 1,500 KV tokens a second
        served(policy, due(999.0), start_s=number * 0.1, answer_s=number * 0.1 - 1.0)
    full = FakeBacklog(kv_tokens=2000, kv_capacity_tokens=1000, first_token_s=1.0)
    assert policy.decide(due(110.0, arrival_s=99.9), full, 99.9) == Admit()


HOPELESS = FakeBacklog(first_token_s=1e6)


def ask(policy: Any, name: str, backlog: FakeBacklog, now_s: float) -> bool:
    return comes(policy, replace(due(now_s + 1.0, arrival_s=now_s), request_id=name), now_s, backlog)


@pytest.mark.parametrize("size_fairness", [0.5, 1.0])
def test_where_there_is_no_replica_it_judges_nothing(size_fairness: float) -> None:
    policy, request = deadline(size_fairness=size_fairness), due(1.0)
    nothing = FakeBacklog(first_token_s=math.inf, num_replicas=0)
    assert policy.decide(request, nothing, 0.0) == Admit()
    assert policy.start(request, nothing, 0.5) == Admit()
    assert policy.start(request, FakeBacklog(first_token_s=0.6), 0.5) != Admit()


def test_for_so_many_that_are_let_in_one_comes_in_that_would_be_refused() -> None:
    policy = deadline(probe_fraction=0.05)
    hopeless = []
    for number in range(400):  # half of them have no hope
        ask(policy, f"q{number}", FakeBacklog(), 0.001 * number)
        hopeless.append(ask(policy, f"p{number}", HOPELESS, 0.001 * number))

    assert sum(hopeless) == 20


def test_who_refuses_everybody_lets_one_in_now_and_then() -> None:
    policy = deadline(probe_fraction=0.005)
    let_in = [0.1 * number for number in range(1000) if ask(policy, f"q{number}", HOPELESS, 0.1 * number)]
    assert len(let_in) == 9
    assert min(later - earlier for earlier, later in pairwise(let_in)) >= 10.0


def test_gateways_together_let_as_many_in_as_one_would() -> None:
    policies = [deadline(probe_fraction=0.005, num_gateways=4) for _ in range(4)]
    let_in = [ask(policies[number % 4], f"q{number}", HOPELESS, 0.1 * number) for number in range(1000)]
    assert sum(let_in) == 8


def test_a_probe_is_not_asked_again_at_the_head_of_the_line() -> None:
    policy = deadline(probe_fraction=1.0)
    request, other = due(1.0), replace(due(1.0), request_id="other")
    assert comes(policy, other)
    assert comes(policy, request, 0.0, HOPELESS)

    assert policy.start(request, FakeBacklog(), 5.0) == Admit()
    assert isinstance(policy.start(other, FakeBacklog(), 5.0), Reject)


@given(st.floats(0, 100), st.floats(0, 10))
def test_a_later_first_token_never_lets_a_request_in_that_an_earlier_one_would_not(
    until_s: float, more_s: float
) -> None:
    less = deadline().decide(due(5.0), FakeBacklog(first_token_s=until_s), 0.0)
    more = deadline().decide(due(5.0), FakeBacklog(first_token_s=until_s + more_s), 0.0)
    assert isinstance(more, Reject) or isinstance(less, Admit)
