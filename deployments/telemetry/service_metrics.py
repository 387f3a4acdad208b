"""What a gateway counts that belongs to no model: error responses and changes of the configuration."""

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import Metric


class ServiceMetrics:
    """The counters of one gateway replica, beside those of its models."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._errors = Counter(
            "spillway_http_errors_total",
            "Error responses; a stream that breaks is none.",
            ("status", "code"),
            registry=self._registry,
        )
        self._reloads = Counter(
            "spillway_reloads_total",
            "Changes of user_config while the gateway ran: applied, or refused and without effect.",
            ("result",),
            registry=self._registry,
        )

    def count_error(self, status: int, code: str) -> None:
        """One request got an error response."""
        self._errors.labels(str(status), code).inc()

    def count_reload(self, *, is_applied: bool) -> None:
        """The configuration was to change while this gateway runs."""
        self._reloads.labels("applied" if is_applied else "refused").inc()

    def own(self) -> Sequence[Metric]:
        """Everything that is counted here, as it is now."""
        return tuple(self._registry.collect())
