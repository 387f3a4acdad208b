"""Sends traces of requests to an OpenTelemetry collector, by OTLP over HTTP.

A trace is made when its request is over, of the times that were taken anyway: one span for the request, and below it
one for each part of its way. The client's ``traceparent`` says what it hangs below and whether it is kept; without one
a draw does. A thread of its own sends them. A collector that can't be reached costs lines in the log and no request.
"""

import logging
import random
import threading
from collections.abc import Mapping, Sequence

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.propagators.textmap import Getter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, get_current_span, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from cluster.clock import unix_s
from cluster.latency_budget import Timeline
from deployments.config import TracingConfig
from deployments.gateway.tracing import FinishedRequest
from routing.request.effects import OutcomeKind

EXPORT_TIMEOUT_S = 5.0
"""How long a batch is tried to be sent; then its spans are lost."""
EXPORT_PERIOD_S = 1.0
FLUSH_PATIENCE_S = 3.0
"""How long a gateway that is taken away waits for the last batch."""
NANOSECONDS = 1_000_000_000
PARENT_HEADER = "traceparent"
EXPORTER_LOGGER = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
logger = logging.getLogger(__name__)
BAD_OUTCOMES = (OutcomeKind.REFUSED, OutcomeKind.FAILED)


class _EveryHeader(Getter[Mapping[str, str]]):
    """All headers of a name: a client, and proxies on its way, may each send a ``tracestate`` of their own."""

    def get(self, carrier: Mapping[str, str], key: str) -> list[str] | None:
        return [value for name, value in carrier.items() if name == key] or None

    def keys(self, carrier: Mapping[str, str]) -> list[str]:
        return list(carrier)


EVERY_HEADER = _EveryHeader()


class _Exporter(SpanExporter):
    """Says of a batch that is lost where it was to go and how many spans are lost by now, in one line."""

    def __init__(self, endpoint: str) -> None:
        logging.getLogger(EXPORTER_LOGGER).setLevel(logging.CRITICAL)  # it has a line for each request
        self._endpoint = endpoint
        self._exporter = OTLPSpanExporter(endpoint=endpoint, timeout=EXPORT_TIMEOUT_S)
        self._num_lost = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        if result is not SpanExportResult.SUCCESS:
            self._num_lost += len(spans)
            logger.error(
                "%d spans could not be sent to %s; lost so far: %d", len(spans), self._endpoint, self._num_lost
            )
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)


class OtlpTracer:
    """Makes traces of a part of the requests.

    Args:
        config: Where to, and of how many.
        gateway: This gateway replica's id.
    """

    def __init__(self, config: TracingConfig, gateway: str) -> None:
        exporter = _Exporter(config.endpoint)
        self._provider = TracerProvider(
            sampler=ALWAYS_ON,  # it was decided before, at a tenth of the price
            resource=Resource.create({"service.name": config.service_name, "service.instance.id": gateway}),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=1e3 * EXPORT_PERIOD_S))
        self._tracer = self._provider.get_tracer("spillway")
        self._propagator = TraceContextTextMapPropagator()
        self._sampled_fraction = config.sampled_fraction
        self._draw = random.Random().random

    def record(self, finished: FinishedRequest) -> None:
        context = Context()
        if PARENT_HEADER in finished.headers:
            context = self._propagator.extract(finished.headers, context, EVERY_HEADER)
        parent = get_current_span(context).get_span_context()
        if parent.trace_flags.sampled if parent.is_valid else self._draw() < self._sampled_fraction:
            self._trace(finished, context)

    def _trace(self, finished: FinishedRequest, context: Context) -> None:
        timeline = finished.timeline
        zero_s = unix_s() - timeline[-1].ends_s
        span = self._tracer.start_span(
            f"{finished.operation} {finished.model}",
            context=context,
            kind=SpanKind.SERVER,
            start_time=_ns(zero_s + timeline[0].begins_s),
        )
        _describe(span, finished)
        self._trace_stages(timeline, set_span_in_context(span, context), zero_s)
        span.end(_ns(zero_s + timeline[-1].ends_s))

    def _trace_stages(self, timeline: Timeline, below: Context, zero_s: float) -> None:
        for part in timeline:
            attributes = {"spillway.replica": part.replica_id} if part.replica_id else None
            start = _ns(zero_s + part.begins_s)
            child = self._tracer.start_span(part.stage, context=below, attributes=attributes, start_time=start)
            child.end(_ns(zero_s + part.ends_s))

    def close(self) -> None:
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(FLUSH_PATIENCE_S)


def _ns(time_s: float) -> int:
    return int(time_s * NANOSECONDS)


def _describe(span: Span, finished: FinishedRequest) -> None:
    """What is known of the request, by the names of OpenTelemetry's conventions where they have one."""
    opened, outcome = finished.opened, finished.opened.stream.outcome
    view = opened.view
    span.set_attributes(
        {
            "gen_ai.operation.name": finished.operation,
            "gen_ai.provider.name": "spillway",
            "gen_ai.request.model": finished.model,
            "gen_ai.response.model": finished.model,
            "gen_ai.response.id": view.request_id,
            "gen_ai.request.max_tokens": view.max_output_tokens,
            "gen_ai.usage.input_tokens": view.prompt_tokens,
            "gen_ai.usage.output_tokens": max(opened.output_tokens, len(opened.emitted)),
            "spillway.class": view.priority.value,
            "spillway.lane": opened.lane,
            "spillway.replica": opened.budget.replica_id,
        }
    )
    if outcome is None:
        return
    reason = outcome.reason.value if outcome.reason else ""
    span.set_attributes({"spillway.outcome": outcome.kind.value, "spillway.reason": reason})
    if outcome.kind in BAD_OUTCOMES:
        span.set_status(Status(StatusCode.ERROR, reason))
        span.set_attribute("error.type", reason)
