"""An OpenTelemetry collector in memory: takes OTLP over HTTP and keeps the spans."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Collector:
    """Keeps what it is sent.

    Attributes:
        endpoint: Where to send it.
        may_answer: Cleared by a test that wants its sender to wait.
    """

    def __init__(self, port: int) -> None:
        self.endpoint = f"http://127.0.0.1:{port}/v1/traces"
        self.may_answer = threading.Event()
        self.may_answer.set()
        self._spans: list[Span] = []
        self._resources: list[dict[str, Any]] = []

    def take(self, raw: bytes) -> None:
        for each in ExportTraceServiceRequest.FromString(raw).resource_spans:
            self._resources.append(attributes(each.resource.attributes))
            for scope in each.scope_spans:
                self._spans += scope.spans

    def trace(self, trace_id: str) -> list[Span]:
        """The spans of a trace so far, the request's first and then in order of time."""
        found = [span for span in list(self._spans) if span.trace_id.hex() == trace_id]
        return sorted(found, key=lambda span: (span.name in STAGES, span.start_time_unix_nano))

    @property
    def trace_ids(self) -> set[str]:
        return {span.trace_id.hex() for span in list(self._spans)}

    @property
    def services(self) -> set[str]:
        return {str(each["service.name"]) for each in list(self._resources)}


STAGES = frozenset(
    "parse tokenize classify admit queue dispatch prefill kv_transfer first_token decode egress lost".split()
)


def attributes(pairs: "Iterator[KeyValue] | Any") -> dict[str, Any]:
    """Attributes by name."""
    return {pair.key: getattr(pair.value, str(pair.value.WhichOneof("value"))) for pair in pairs}


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector on a free port of this machine."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            collector.take(self.rfile.read(int(self.headers["content-length"])))
            collector.may_answer.wait()
            self.send_response(200)
            body = ExportTraceServiceResponse().SerializeToString()
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector = Collector(server.server_port)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()
