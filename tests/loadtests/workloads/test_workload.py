import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from itertools import islice, pairwise

import pytest

from cluster import PlannedRequest, Seeds
from loadtests.workloads.arrivals import Poisson
from loadtests.workloads.lengths import Constant
from loadtests.workloads.turns import ConstantTurns
from loadtests.workloads.workload import TrafficClass, Workload
from policies import ConfigError
from tests.hash_seeds import printed_under
from tests.loadtests.sample_workloads import BATCH, CHAT, dialogue, every_kind, plan_hash, requests_of
from tests.tables import for_each


def of_class(requests: list[PlannedRequest], index: int) -> list[tuple[object, ...]]:
    """All that a class's users want; the logical requests' numbers depend on the other classes."""
    return [
        (each.scheduled_s, each.prompt_tokens, each.output_tokens, each.max_output_tokens, each.content)
        for each in requests
        if each.traffic_class == index
    ]


def test_the_plan_is_the_same_in_processes_that_hash_strings_differently() -> None:
    here = plan_hash(7)

    assert printed_under("1", "tests.loadtests.sample_workloads", "7") == here
    assert printed_under("2", "tests.loadtests.sample_workloads", "7") == here


def test_another_seed_gives_another_plan() -> None:
    assert plan_hash(7) != plan_hash(8)


def test_the_first_values_are_the_same_for_ever() -> None:
    """Pinned: if they change, every published simulation changes with them."""
    first = requests_of(CHAT, BATCH)[0]

    assert (first.scheduled_s, first.prompt_tokens, first.output_tokens) == (0.02002758043980923, 497, 400)


def test_requests_come_in_order_of_time_and_before_the_end() -> None:
    workload = every_kind()
    arrivals = [planned.arrival for planned in workload.plan(Seeds(7))]

    assert all(left.at_s <= right.at_s for left, right in pairwise(arrivals))
    assert arrivals[0].at_s >= 0
    assert workload.duration_s - 2 < arrivals[-1].at_s < workload.duration_s
    assert all(each.request.scheduled_s == each.at_s for each in arrivals)
    assert {each.request.traffic_class for each in arrivals} == set(range(len(workload.classes)))


def test_logical_requests_are_numbered_in_order_of_time_and_ids_are_short_and_unique() -> None:
    requests = requests_of(CHAT, BATCH)

    assert [each.logical_request for each in requests] == list(range(len(requests)))
    assert [each.request_id for each in requests[:2]] == ["0-0", "1-0"]
    assert len({each.request_id for each in requests}) == len(requests)


def test_a_session_takes_one_number_for_each_of_its_turns() -> None:
    requests = requests_of(dialogue(ConstantTurns(num_turns=3)))

    assert [each.logical_request for each in requests] == list(range(0, 3 * len(requests), 3))


def test_a_session_has_a_name_of_its_own_and_a_request_by_itself_has_none() -> None:
    sessions, alone = requests_of(dialogue(ConstantTurns(num_turns=3))), requests_of(CHAT)

    assert len({each.session_id for each in sessions}) == len(sessions)
    assert all(each.session_id for each in sessions)
    assert not any(each.session_id for each in alone)


def test_other_lengths_in_one_class_change_nothing_else() -> None:
    before = requests_of(CHAT, BATCH)
    after = requests_of(replace(CHAT, prompt_tokens=Constant(num_tokens=1)), BATCH)

    assert of_class(after, 1) == of_class(before, 1)
    assert [each.scheduled_s for each in after] == [each.scheduled_s for each in before]
    assert [each.output_tokens for each in after] == [each.output_tokens for each in before]
    assert [each.prompt_tokens for each in after] != [each.prompt_tokens for each in before]


def test_another_arrival_process_leaves_the_lengths_in_their_order() -> None:
    before = [each.prompt_tokens for each in requests_of(CHAT)]
    after = [each.prompt_tokens for each in requests_of(replace(CHAT, arrivals=Poisson(rate_per_s=3)))]

    assert before[: len(after)] == after


def test_a_class_that_joins_changes_nothing_in_the_others() -> None:
    alone = requests_of(CHAT, BATCH)
    together = requests_of(CHAT, BATCH, dialogue(ConstantTurns(num_turns=3)))

    assert of_class(together, 0) == of_class(alone, 0)
    assert of_class(together, 1) == of_class(alone, 1)


def test_two_classes_with_the_same_settings_draw_apart() -> None:
    requests = requests_of(CHAT, replace(CHAT, name="other"))

    assert of_class(requests, 0)[:5] != of_class(requests, 1)[:5]


def test_a_longer_run_begins_like_a_shorter_one() -> None:
    shorter, longer = requests_of(CHAT, BATCH, duration_s=50), requests_of(CHAT, BATCH, duration_s=100)

    assert longer[: len(shorter)] == shorter


def test_the_limit_on_an_answer_is_never_below_its_length() -> None:
    requests = requests_of(BATCH)

    assert all(each.max_output_tokens >= each.output_tokens for each in requests)
    assert any(each.max_output_tokens > each.output_tokens for each in requests)
    assert any(each.output_tokens > 500 for each in requests), "an answer above the drawn limit raises the limit"


def test_an_exact_limit_is_the_answers_length() -> None:
    assert all(each.max_output_tokens == each.output_tokens for each in requests_of(CHAT))


def test_requests_outside_sessions_share_no_text() -> None:
    assert all(each.content == () for each in requests_of(CHAT))


def test_choices_come_at_once_with_one_prompt_and_each_with_an_answer_of_its_own() -> None:
    chat = replace(CHAT, choices=3)
    requests = requests_of(chat)
    fan_outs = [requests[first : first + 3] for first in range(0, len(requests), 3)]

    assert len(requests) % 3 == 0
    for fan_out in fan_outs:
        assert len({each.scheduled_s for each in fan_out}) == 1
        assert len({(each.prompt_tokens, each.prompt_content) for each in fan_out}) == 1
        assert len({each.prompt_id for each in fan_out}) == (1 if fan_out[0].prompt_content else 3)
    assert len({fan_out[0].prompt_id for fan_out in fan_outs}) == len(fan_outs)
    assert all(len({each.output_tokens for each in fan_out}) > 1 for fan_out in fan_outs[:10])
    alone = requests_of(CHAT)
    assert [each[0].prompt_tokens for each in fan_outs] == [each.prompt_tokens for each in alone]
    assert chat.requests_per_s(20) == 3 * CHAT.requests_per_s(20)


def test_a_class_arrives_in_its_own_window_alone() -> None:
    requests = requests_of(replace(CHAT, from_s=100, for_s=20))
    shifted = [each.scheduled_s - 100 for each in requests]

    assert 100 <= requests[0].scheduled_s < 101
    assert 119 < requests[-1].scheduled_s < 120
    assert shifted == pytest.approx([each.scheduled_s for each in requests_of(CHAT, duration_s=20)])


def test_an_endless_plan_is_generated_as_it_is_read() -> None:
    requests = requests_of(CHAT, BATCH, duration_s=float("inf"), most=10)

    assert len(requests) == 10


def test_a_plan_takes_no_more_memory_the_longer_it_is() -> None:
    """40,000 requests of some 500 bytes would be 20 MB."""
    plan = Workload(classes=(CHAT, BATCH), duration_s=float("inf")).plan(Seeds(7))
    for _ in islice(plan, 5_000):
        pass
    tracemalloc.start()
    try:
        for _ in islice(plan, 40_000):
            pass
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak_bytes < 2_000_000


def test_a_class_that_begins_after_the_end_sends_nothing() -> None:
    assert requests_of(replace(CHAT, from_s=400)) == []


def test_a_plan_can_be_read_again() -> None:
    workload = every_kind()
    first, second = (list(islice(workload.plan(Seeds(7)), 100)) for _ in range(2))

    assert first == second


@for_each(
    ("make", "field"),
    [
        (lambda: replace(CHAT, name=""), "name"),
        (lambda: replace(CHAT, timeout_s=0), "timeout_s"),
        (lambda: replace(CHAT, max_output_tokens="approximate"), "max_output_tokens"),  # type: ignore[arg-type]
        (lambda: replace(CHAT, from_s=-1), "from_s"),
        (lambda: replace(CHAT, for_s=0), "for_s"),
        (lambda: Workload(classes=(), duration_s=1), "classes"),
        (lambda: Workload(classes=(CHAT, CHAT), duration_s=1), "classes"),
        (lambda: Workload(classes=(CHAT,), duration_s=0), "duration_s"),
    ],
)
def test_a_wrong_value_is_named(make: Callable[[], TrafficClass | Workload], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make()

    assert caught.value.field == field
