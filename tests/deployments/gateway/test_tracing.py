"""Traces of requests, as a collector gets them."""

import socket
from collections.abc import Callable, Iterator, Mapping

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from starlette.datastructures import Headers

from cluster.latency_budget import LatencyBudget, LatencyStage
from deployments.config import TracingConfig, validated
from deployments.gateway import otlp
from deployments.gateway.open_request import ServeOpenRequest
from deployments.gateway.otlp import OtlpTracer
from deployments.gateway.tracing import FinishedRequest, NoTracer, tracer_for
from engines.contract import EngineTimes
from policies import Reason
from routing.request.effects import Outcome, OutcomeKind
from tests.deployments.app_args import args, error_of
from tests.deployments.otlp_collector import Collector, attributes, collecting
from tests.policy_doubles import a_request
from tests.routing.dialogue import completed
from tests.tables import for_each
from tests.waiting import wait_until

TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED, UNSAMPLED = ({"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-{flags}"} for flags in ("01", "00"))


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as made:
        yield made


def ticking(step_s: float) -> Callable[[], float]:
    times = iter(range(1000))
    return lambda: step_s * next(times)


def a_finished_request(headers: Mapping[str, str], outcome: Outcome | None = None) -> FinishedRequest:
    """A handoff, whose every step took a tenth of a second."""
    budget = LatencyBudget(ticking(0.1))
    opened = ServeOpenRequest(
        view=a_request(prompt_tokens=100), payload=b"", budget=budget, lane="short", output_tokens=7
    )
    budget.parsed()
    budget.tokenized()
    budget.arrived()
    budget.admitted()
    if outcome is None:
        for number, engine in enumerate((EngineTimes(prefill_s=0.05), EngineTimes(kv_transfer_s=0.05))):
            budget.sent(f"q.{number}", f"replica-{number}", f"q.{number - 1}" if number else None)
            budget.accepted(f"q.{number}", f"replica-{number}")
            budget.took(f"q.{number}", engine)
            budget.ended(f"q.{number}")
        budget.committed("q.1")
    budget.answered()
    opened.stream.finish(outcome or completed())
    return FinishedRequest(opened=opened, operation="chat", model="tiny", headers=headers, timeline=budget.timeline())


def traced(collector: Collector, finished: FinishedRequest, fraction: float = 0.0) -> list[Span]:
    tracer = tracer_for(TracingConfig(endpoint=collector.endpoint, sampled_fraction=fraction), "gw-1")
    tracer.record(finished)
    tracer.close()
    return [span for trace_id in collector.trace_ids for span in collector.trace(trace_id)]


def test_a_request_is_a_span_below_the_clients_and_its_stages_are_below_it(collector: Collector) -> None:
    request, *stages = traced(collector, a_finished_request(SAMPLED))

    assert (request.name, request.kind) == ("chat tiny", Span.SPAN_KIND_SERVER)
    assert (request.trace_id.hex(), request.parent_span_id.hex()) == (TRACE_ID, PARENT_ID)
    assert {(span.trace_id, span.parent_span_id) for span in stages} == {(request.trace_id, request.span_id)}
    assert {span.name for span in stages} == {each.value for each in LatencyStage} - {"lost"}
    assert [span.start_time_unix_nano for span in stages[1:]] == [span.end_time_unix_nano for span in stages[:-1]]
    assert stages[0].start_time_unix_nano == request.start_time_unix_nano
    assert stages[-1].end_time_unix_nano == request.end_time_unix_nano
    assert collector.services == {"spillway"}


def test_a_span_says_what_was_asked_and_what_came_of_it_in_the_conventions_words(collector: Collector) -> None:
    request, *stages = traced(collector, a_finished_request(SAMPLED))

    said = attributes(request.attributes)
    assert said["gen_ai.operation.name"] == "chat"
    assert said["gen_ai.request.model"] == "tiny"
    assert (said["gen_ai.usage.input_tokens"], said["gen_ai.usage.output_tokens"]) == (100, 7)
    assert (said["spillway.class"], said["spillway.lane"]) == ("standard", "short")
    assert (said["spillway.outcome"], said["spillway.reason"]) == ("completed", "")
    assert said["spillway.replica"] == "replica-1"
    where = {span.name: attributes(span.attributes).get("spillway.replica") for span in stages}
    assert (where["prefill"], where["kv_transfer"], where["queue"]) == ("replica-0", "replica-1", None)
    assert request.status.code == Status.STATUS_CODE_UNSET


def test_a_refusal_is_an_error_with_its_reason(collector: Collector) -> None:
    refused = Outcome(kind=OutcomeKind.REFUSED, reason=Reason.SHED)
    request, *_ = traced(collector, a_finished_request(SAMPLED, refused))
    assert (request.status.code, request.status.message) == (Status.STATUS_CODE_ERROR, "shed")
    assert attributes(request.attributes)["error.type"] == "shed"


@pytest.mark.parametrize(
    ("headers", "fraction", "is_kept"),
    [
        (SAMPLED, 0.0, True),
        (UNSAMPLED, 1.0, False),
        ({}, 1.0, True),
        ({}, 0.0, False),
        ({"traceparent": "x"}, 1.0, True),
    ],
    ids=["client_yes", "client_no", "all", "none", "malformed"],
)
def test_the_client_decides_what_is_kept_and_without_it_the_fraction_does(
    collector: Collector, headers: dict[str, str], fraction: float, is_kept: bool
) -> None:
    assert bool(traced(collector, a_finished_request(headers), fraction)) == is_kept


def test_every_tracestate_on_the_way_is_carried_along(collector: Collector) -> None:
    """A proxy may have added its own to the client's."""
    parent = b"traceparent", SAMPLED["traceparent"].encode()
    several = Headers(raw=[parent, (b"tracestate", b"a=1"), (b"tracestate", b"b=2")])
    request, *_ = traced(collector, a_finished_request(several))
    assert request.trace_state == "a=1,b=2"


@for_each(
    "endpoint",
    ["http://127.0.0.1:99999/v1/traces", "http://127.0.0.1:abc/v1", "http://[::1/v1", "http://:4318/v1", "ftp://a/b"],
)
def test_a_url_that_leads_nowhere_is_refused_at_the_start(endpoint: str) -> None:
    with pytest.raises(ValueError, match="endpoint"):
        TracingConfig(endpoint=endpoint)


def test_a_collector_that_is_not_there_costs_a_line_in_the_log_for_each_batch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(otlp, "EXPORT_TIMEOUT_S", 0.2)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{nobody.getsockname()[1]}/v1/traces"
        tracer = OtlpTracer(TracingConfig(endpoint=endpoint, sampled_fraction=1.0), "gw-1")
        for _ in range(10):
            tracer.record(a_finished_request({}))
        tracer.close()

    num_spans = 10 * (1 + len(a_finished_request({}).timeline))
    said = [line.getMessage() for line in caplog.records]  # the exporter's time may have come among the requests
    assert 1 <= len(said) <= 2
    assert all(f"spans could not be sent to {endpoint}" in each for each in said)
    assert said[-1].endswith(f"; lost so far: {num_spans}")


def test_a_collector_that_does_not_answer_does_not_keep_a_gateway_from_ending(
    monkeypatch: pytest.MonkeyPatch, collector: Collector
) -> None:
    monkeypatch.setattr(otlp, "FLUSH_PATIENCE_S", 0.05)
    collector.may_answer.clear()
    tracer = OtlpTracer(TracingConfig(endpoint=collector.endpoint), "gw-1")
    tracer.record(a_finished_request(SAMPLED))
    tracer.close()

    assert not collector.may_answer.is_set(), "and yet it has returned"
    collector.may_answer.set()
    wait_until(lambda: TRACE_ID in collector.trace_ids, "what was on its way arrives")


def test_without_a_configuration_there_is_no_trace() -> None:
    assert isinstance(tracer_for(None, "gw-1"), NoTracer)


def test_a_part_of_the_requests_is_traced_unless_told_otherwise() -> None:
    assert validated(args()).tracing is None
    wanted = validated(args(tracing={"endpoint": "http://collector:4318/v1/traces"})).tracing
    assert wanted is not None
    assert (wanted.sampled_fraction, wanted.service_name) == (0.01, "spillway")
    for endpoint in ("collector:4318", "http://collector:4318", "grpc://collector:4317/v1/traces"):
        assert error_of(validated, args(tracing={"endpoint": endpoint})).field == "tracing.endpoint"
