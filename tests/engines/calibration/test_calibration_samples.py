"""What is read out of an engine's log."""

import pytest

from engines.calibration.overheads import delivery_delays
from engines.calibration.runner import Measurement, RequestTiming
from engines.calibration.samples import Region, StepSample, samples_of, traffic_steps_of, works_of
from engines.calibration.step_groups import group
from engines.model.cost_model import StepCoefficients, StepWork, attention_pairs
from engines.vllm.step_log import EngineStep, SequenceOutput


def request(name: str, prompt_tokens: int, submitted_s: float = 0.0, finished_s: float = 9.0) -> RequestTiming:
    return RequestTiming(
        request_id=name, prompt_tokens=prompt_tokens, submitted_s=submitted_s, first_token_s=1.0, finished_s=finished_s
    )


def first(name: str, queued_s: float, cached_tokens: int = 0, *, is_last: bool = False) -> SequenceOutput:
    return SequenceOutput(name, 1, is_last, cached_tokens, queued_s)


def later(name: str, *, is_last: bool = False) -> SequenceOutput:
    return SequenceOutput(name, 1, is_last)


def by_region(sample: StepSample) -> bool:
    return sample.region is Region.DECODE


TWO_PROMPTS_IN_CHUNKS = Measurement(
    "two prompts",
    (
        EngineStep(0.1, 2048, 1, 0, ()),
        EngineStep(0.2, 2048, 2, 0, (first("long", 0.001),)),
        EngineStep(0.25, 52, 1, 1, (later("long", is_last=True), first("short", 0.002, 128))),
        EngineStep(0.26, 0, 0, 1, (later("short"),)),
        EngineStep(0.28, 0, 0, 1, (later("short"),)),
        EngineStep(0.29, 0, 0, 1, (later("short"),)),
        EngineStep(0.305, 0, 0, 1, (later("short", is_last=True),)),
    ),
    (request("short", 228), request("long", 4048)),
)


def test_prompts_are_computed_in_the_order_in_which_the_scheduler_got_them() -> None:
    assert works_of(TWO_PROMPTS_IN_CHUNKS) == [
        StepWork(2048, attention_pairs(2048, 0), 1, 0, 1),
        StepWork(2048, attention_pairs(2000, 2048) + attention_pairs(48, 128), 2, 0, 1),
        StepWork(53, attention_pairs(52, 176), 2, 4049),
        *(StepWork(1, 0, 1, 229 + step) for step in range(4)),
    ]


def test_a_step_lasts_from_the_end_of_the_one_before() -> None:
    samples = samples_of(TWO_PROMPTS_IN_CHUNKS)

    assert [each.region for each in samples] == [Region.PREFILL, Region.MIXED, Region.DECODE]
    assert [each.seconds for each in samples] == pytest.approx([0.1, 0.05, 0.015])


def test_the_step_that_an_idle_engine_begins_with_is_no_sample() -> None:
    steps = (
        EngineStep(0.1, 16, 1, 0, (first("one", 0.09, is_last=True),)),
        EngineStep(0.5, 16, 1, 0, (first("two", 0.49, is_last=True),)),
    )

    assert not samples_of(Measurement("idle between", steps, (request("one", 16), request("two", 16, 0.48))))


def test_a_step_in_the_middle_of_which_a_request_arrives_is_no_sample() -> None:
    """The core unpacks the request meanwhile; the step that then takes it in is one."""
    steps = (
        EngineStep(0.07, 16, 1, 0, (first("one", 0.0),)),
        EngineStep(0.08, 0, 0, 1, (later("one"),)),
        EngineStep(0.09, 0, 0, 1, (later("one"),)),
        EngineStep(0.10, 0, 0, 1, (later("one"),)),
        EngineStep(0.11, 0, 0, 1, (later("one"),)),
        EngineStep(0.20, 0, 0, 1, (later("one"),)),
        EngineStep(0.25, 16, 1, 1, (later("one", is_last=True), first("two", 0.2001, is_last=True))),
    )

    samples = samples_of(Measurement("joins", steps, (request("one", 16), request("two", 16, submitted_s=0.15))))

    assert [each.seconds for each in samples] == pytest.approx([0.01, 0.01, 0.05])


def test_decode_steps_shortly_after_a_sequence_came_or_went_are_no_samples() -> None:
    steps = (
        EngineStep(0.10, 32, 2, 0, (first("one", 0.0), first("two", 0.0))),
        *(EngineStep(0.10 + 0.01 * step, 0, 0, 2, (later("one"), later("two"))) for step in (1, 2, 3)),
        EngineStep(0.14, 0, 0, 2, (later("one", is_last=True), later("two"))),
        *(EngineStep(0.14 + 0.02 * step, 0, 0, 1, (later("two"),)) for step in (1, 2, 3, 4)),
    )

    samples = samples_of(Measurement("comes and goes", steps, (request("one", 16), request("two", 16))))

    assert [each.seconds for each in samples] == pytest.approx([0.01, 0.01, 0.02])


def test_traffic_has_the_steps_that_requests_disturb_but_not_those_after_idleness() -> None:
    steps = (
        EngineStep(0.10, 16, 1, 0, (first("one", 0.0),)),
        *(EngineStep(0.10 + 0.01 * step, 0, 0, 1, (later("one"),)) for step in (1, 2, 3)),
        EngineStep(0.15, 0, 0, 1, (later("one"),)),
        EngineStep(0.19, 16, 1, 1, (later("one", is_last=True), first("two", 0.1501, is_last=True))),
        EngineStep(0.90, 16, 1, 0, (first("three", 0.88, is_last=True),)),
    )
    requests = (request("one", 16), request("two", 16, submitted_s=0.142), request("three", 16, submitted_s=0.87))

    traffic = traffic_steps_of(Measurement("traffic", steps, requests))

    assert [each.seconds for each in traffic] == pytest.approx([0.01, 0.01, 0.01, 0.02, 0.04])
    assert [each.is_settled for each in traffic] == [False, False, True, False, False]
    assert [each.work.admitted for each in traffic] == [0, 0, 0, 0, 1]


def test_a_step_whose_tokens_do_not_add_up_is_no_sample() -> None:
    """As after a preemption, when a prompt is computed again."""
    steps = (
        EngineStep(0.10, 16, 1, 0, (first("one", 0.0),)),
        EngineStep(0.11, 17, 1, 0, (later("one"),)),
        *(EngineStep(0.11 + 0.01 * step, 0, 0, 1, (later("one"),)) for step in (1, 2, 3)),
    )

    samples = samples_of(Measurement("preempted", steps, (request("one", 16),)))

    assert [each.region for each in samples] == [Region.DECODE]


JOINS_AN_ENGINE_THAT_RUNS_AHEAD = Measurement(
    "joins",
    (
        EngineStep(0.10, 16, 1, 0, (first("one", 0.05),)),
        *(EngineStep(0.10 + 0.01 * step, 0, 0, 1, (later("one"),)) for step in range(1, 5)),
        EngineStep(0.17, 0, 0, 1, (later("one"),)),
        EngineStep(0.18, 64, 1, 1, (later("one"), first("two", 0.141, is_last=True))),
        *(EngineStep(0.18 + 0.01 * step, 0, 0, 1, (later("one"),)) for step in range(1, 5)),
    ),
    (request("one", 16), request("two", 64, submitted_s=0.14)),
)


def test_of_an_engine_that_runs_ahead_a_step_whose_end_is_told_late_goes_with_the_next_one() -> None:
    mixed, *decode = sorted(samples_of(JOINS_AN_ENGINE_THAT_RUNS_AHEAD, since_s=0.1, runs_ahead=True), key=by_region)

    assert (mixed.region, mixed.num_steps) == (Region.MIXED, 2)
    assert mixed.seconds == pytest.approx(0.04)
    assert mixed.work == StepWork(1 + 65, attention_pairs(64, 0), 1 + 2, 21 + 22, 1)
    assert [each.seconds for each in decode] == pytest.approx([0.01, 0.01, 0.01])
    assert {each.num_steps for each in decode} == {1}


def test_an_engine_that_runs_ahead_begins_a_run_of_steps_with_the_first_request_after_idleness() -> None:
    idle = Measurement("idle", (EngineStep(0.1, 16, 1, 0, (first("one", 0.06, is_last=True),)),), (request("one", 16),))

    (sample,) = samples_of(idle, runs_ahead=True)

    assert (sample.region, sample.num_steps) == (Region.PREFILL, 1)
    assert sample.seconds == pytest.approx(0.04)


def test_what_began_before_a_point_was_set_up_is_no_sample() -> None:
    samples = samples_of(JOINS_AN_ENGINE_THAT_RUNS_AHEAD, since_s=0.175, runs_ahead=True)

    assert {each.region for each in samples} == {Region.DECODE}
    assert not samples_of(TWO_PROMPTS_IN_CHUNKS, since_s=1.0)


def test_a_run_of_steps_has_the_constant_of_each_of_them() -> None:
    (step_run,) = group([StepSample("point", Region.MIXED, StepWork(66, 0, 3, 43), 0.04, num_steps=2)])
    coefficients = StepCoefficients(
        step_s=0.01, new_token_s=1e-4, attention_pair_s=0.0, sequence_s=0.0, context_token_s=0.0
    )

    assert step_run.modelled_s(coefficients) == pytest.approx(2 * 0.01 + 66 * 1e-4)


def test_steps_alike_become_their_median() -> None:
    decode = [StepSample("point", Region.DECODE, StepWork(4, 0, 4, 400 + number), 0.01) for number in range(4)]
    slow = StepSample("point", Region.DECODE, StepWork(4, 0, 4, 404), 0.5)
    lonely = StepSample("point", Region.PREFILL, StepWork(16, 136, 1, 0), 0.02)

    groups = group([*decode, slow, lonely], at_least=2)

    assert len(groups) == 1
    assert groups[0].seconds == 0.01
    assert groups[0].work == StepWork(4, 0, 4, 402)
    assert groups[0].number == 5
    assert len(group([*decode, slow, lonely])) == 2
    assert group([slow, *decode], quantile=0.99)[0].seconds > 0.4


def test_a_delivery_is_timed_from_the_end_of_the_last_step() -> None:
    steps = (EngineStep(0.1, 16, 1, 3, (first("one", 0.0, is_last=True),)),)

    ((num_sequences, delay_s),) = delivery_delays(Measurement("one", steps, (request("one", 16, finished_s=0.1004),)))

    assert num_sequences == 4
    assert delay_s == pytest.approx(0.0004)
