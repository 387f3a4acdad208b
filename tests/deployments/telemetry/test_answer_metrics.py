"""What is counted of a request when it has been answered, and what its work was."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from deployments.telemetry.answer_metrics import COUNTERS, HISTOGRAMS, Answered, AnswerMetrics
from deployments.telemetry.work.work_meter import NO_WORK, AttemptWork, WorkMeter
from policies.decisions import Reason
from policies.views import Role
from routing.request.effects import Outcome, OutcomeKind
from routing.sizing.geometry import ServiceRates

RATES = ServiceRates(step_s=0.01, new_token_s=1e-5, context_token_s=1e-8, admission_s=0.002, decode_batch=32)
COMPLETED = Outcome(kind=OutcomeKind.COMPLETED)
SHED = Outcome(kind=OutcomeKind.REFUSED, reason=Reason.SHED)


def answered(outcome: Outcome = COMPLETED, **changes: Any) -> Answered:
    values: dict[str, Any] = {
        "lane": "short",
        "priority": "standard",
        "outcome": outcome,
        "prompt_tokens": 100,
        "cached_tokens": 40,
        "expected_cached_tokens": 30,
        "output_tokens": 11,
        "waited_s": 0.2,
        "ttft_s": 0.5,
        "longest_gap_s": 0.3,
        "e2e_s": 1.5,
        "is_computed": True,
    }
    return Answered(**values | changes)


def attempt(stage: Role, prompt: int, computed: int, output: int) -> AttemptWork:
    return AttemptWork(stage=stage, prompt_tokens=prompt, computed_tokens=computed, output_tokens=output)


class Counted:
    """What the metrics say after some requests."""

    def __init__(self, *requests: Answered, rates: ServiceRates = RATES) -> None:
        self._registry = CollectorRegistry()
        metrics = AnswerMetrics(self._registry, WorkMeter(rates))
        for each in requests:
            metrics.count(each)
            metrics.count_attempt(each.lane, each.priority, 0.2)

    def __call__(self, name: str, lane: str = "short", priority: str = "standard", **labels: str) -> float:
        found = self._registry.get_sample_value(f"spillway_{name}", {"lane": lane, "class": priority, **labels})
        return 0.0 if found is None else found


def test_a_completed_request_is_in_every_histogram_and_counter() -> None:
    counted = Counted(answered())
    assert {name for name in HISTOGRAMS if counted(f"{name}_count") != 1} == set()
    assert {name for name in COUNTERS if not counted(name)} == set()
    assert counted("requests_total", outcome="completed", reason="") == 1
    assert counted("request_time_per_output_token_seconds_sum") == pytest.approx(0.1)
    assert counted("request_slowdown_sum") == pytest.approx(1.5 / WorkMeter(RATES).answer(100, 40, 11).alone_s)
    assert counted("request_decode_time_seconds_squared_total") == pytest.approx(1.0)


def test_lanes_and_classes_are_told_apart() -> None:
    counted = Counted(answered(), answered(lane="long"), answered(priority="critical"))
    for key in (("short",), ("long",), ("short", "critical")):
        assert counted("request_prompt_tokens_count", *key) == 1


def test_a_refused_request_waited_and_has_its_reason_and_no_latencies() -> None:
    counted = Counted(
        answered(SHED, ttft_s=math.inf, output_tokens=0, longest_gap_s=0.0, cached_tokens=0, is_computed=False)
    )
    assert counted("requests_total", outcome="refused", reason="shed") == 1
    assert counted("request_queue_time_seconds_sum") == pytest.approx(0.2)
    assert counted("work_done_seconds_total") == pytest.approx(0.2)
    assert counted("work_needed_seconds_total") == 0
    for name in ("time_to_first_token_seconds", "e2e_request_latency_seconds", "request_slowdown"):
        assert counted(f"{name}_count") == 0, name


def test_a_request_that_broke_off_has_a_first_token_and_no_latency() -> None:
    counted = Counted(answered(Outcome(kind=OutcomeKind.FAILED, reason=Reason.REPLICA_LOST)))
    assert counted("time_to_first_token_seconds_sum") == 0.5
    assert counted("e2e_request_latency_seconds_count") == 0
    assert counted("requests_total", outcome="failed", reason="replica_lost") == 1


def test_one_token_has_no_time_between_tokens() -> None:
    counted = Counted(answered(output_tokens=1, e2e_s=0.5, longest_gap_s=0.0))
    assert counted("request_time_per_output_token_seconds_count") == 0
    assert counted("request_longest_gap_seconds_count") == 0
    assert counted("request_generation_tokens_sum") == 1


def test_the_variance_of_decode_times_follows_from_what_is_exported() -> None:
    counted = Counted(*(answered(e2e_s=0.5 + decode_s) for decode_s in (1.0, 2.0, 6.0)))
    number = counted("request_decode_time_seconds_count")
    mean = counted("request_decode_time_seconds_sum") / number
    assert counted("request_decode_time_seconds_squared_total") / number - mean**2 == pytest.approx(14 / 3)


def test_without_a_profile_there_is_no_work_and_no_slowdown() -> None:
    meter = WorkMeter(ServiceRates())
    assert meter.attempt_s(attempt(Role.UNIFIED, 100, 100, 10)) == 0.0
    assert meter.answer(100, 0, 10) == NO_WORK
    counted = Counted(answered(), rates=ServiceRates())
    assert counted("request_slowdown_count") == 0
    assert counted("e2e_request_latency_seconds_count") == 1


def test_an_answer_that_was_known_before_and_one_that_got_nothing_needed_nothing() -> None:
    assert Counted(answered(is_computed=False))("work_needed_seconds_total") == 0
    assert WorkMeter(RATES).answer(100, 0, 0) == NO_WORK


def test_an_attempt_that_does_one_stage_has_that_stages_work() -> None:
    meter = WorkMeter(RATES)
    roles = (Role.PREFILL, Role.DECODE, Role.UNIFIED)
    prefill, decode, whole = (meter.attempt_s(attempt(role, 100, 100, 10)) for role in roles)
    assert prefill > 0 < decode
    assert whole == pytest.approx(prefill + decode)


def test_an_attempt_that_goes_on_computes_what_has_been_given_out_as_well() -> None:
    meter = WorkMeter(RATES)
    whole, rest = (meter.attempt_s(attempt(Role.UNIFIED, prompt, prompt, 10)) for prompt in (100, 150))
    assert rest > whole


@given(prompt=st.integers(1, 10_000), output=st.integers(1, 1_000), data=st.data())
def test_a_request_that_needed_one_attempt_has_no_debt(prompt: int, output: int, data: st.DataObject) -> None:
    cached = data.draw(st.integers(0, prompt - 1))
    meter = WorkMeter(RATES)
    work = meter.answer(prompt, cached, output)
    assert meter.attempt_s(attempt(Role.UNIFIED, prompt, prompt - cached, output)) == pytest.approx(work.needed_s)
    handoff = attempt(Role.PREFILL, prompt, prompt - cached, 0), attempt(Role.DECODE, prompt, 0, output)
    assert sum(map(meter.attempt_s, handoff)) == pytest.approx(work.needed_s)
    assert work.alone_s > 0
    assert meter.attempt_s(attempt(Role.UNIFIED, prompt, prompt, 0)) > 0, "so a hedge makes one"
