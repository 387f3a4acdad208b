"""Traces of requests: what a tracer is told, and the one that makes none; see :mod:`deployments.gateway.otlp`."""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from cluster.latency_budget import Timeline
from deployments.config import TracingConfig
from deployments.gateway.open_request import ServeOpenRequest


class FinishedRequest(NamedTuple):
    """A request whose answer has left.

    Args:
        opened: The request.
        operation: What was asked for, as OpenTelemetry's conventions for generative AI call it.
        model: The model's id.
        headers: The client's, by names in lower case.
        timeline: Where its time went; ends now.
    """

    opened: ServeOpenRequest
    operation: str
    model: str
    headers: Mapping[str, str]
    timeline: Timeline


class Tracer(Protocol):
    """Is told of every request once it is over."""

    def record(self, finished: FinishedRequest) -> None:
        """Makes a trace of it, or not."""
        ...

    def close(self) -> None:
        """Sends what there is, as far as that can be done in a few seconds."""
        ...


class NoTracer:
    """Makes no traces."""

    def record(self, finished: FinishedRequest) -> None: ...

    def close(self) -> None: ...


def tracer_for(config: TracingConfig | None, gateway: str) -> Tracer:
    """The tracer of one gateway replica; one that does nothing where no traces are wanted.

    Args:
        config: Where traces go, if they are wanted.
        gateway: The gateway replica's id.
    """
    if config is None:
        return NoTracer()
    from deployments.gateway.otlp import OtlpTracer  # noqa: PLC0415 - only gateways that trace load OpenTelemetry

    return OtlpTracer(config, gateway)
