"""What a deployment with one gateway says of itself on ``/metrics``, as its client reads it."""

import subprocess
import time
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

LOOK_EVERY_S = 0.5
CALL_PATIENCE_S = 10.0
EVERYTHING = ("",)
OPEN = "spillway_requests_open"
"""What every gateway's page has."""


@dataclass(frozen=True, slots=True)
class MetricsPage:
    """One look at the metrics, or what has changed between two.

    Args:
        samples: The value of each sample, by its name and its labels in order.
    """

    samples: Mapping[tuple[str, tuple[tuple[str, str], ...]], float] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str, only: tuple[str, ...] = EVERYTHING) -> "MetricsPage":
        """From the page's text; of its thousands of lines only those that begin with what is asked for are read."""
        lines = [line for line in text.splitlines() if line.startswith(only)]
        families = text_string_to_metric_families("\n".join(lines) + "\n")
        return cls(
            {
                (sample.name, tuple(sorted(sample.labels.items()))): float(sample.value)
                for family in families
                for sample in family.samples
            }
        )

    def sum(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that have these labels; 0 where there are none."""
        return sum(value for found, value in self._of(name) if labels.items() <= found.items())

    def by(self, label: str, name: str, **labels: str) -> dict[str, float]:
        """The same for each value of a label."""
        sums: dict[str, float] = {}
        for found, value in self._of(name):
            if labels.items() <= found.items():
                sums[found[label]] = sums.get(found[label], 0.0) + value
        return sums

    def since(self, before: "MetricsPage") -> "MetricsPage":
        """By how much counters have grown since; what was not there before has grown from 0."""
        return MetricsPage({key: value - before.samples.get(key, 0.0) for key, value in self.samples.items()})

    def _of(self, name: str) -> list[tuple[dict[str, str], float]]:
        return [(dict(labels), value) for (found, labels), value in self.samples.items() if found == name]


class TookTooLong(RuntimeError):
    """What was waited for did not come in time.

    Args:
        what: That.
        patience_s: How long it was waited for.
        page: The last one.
    """

    def __init__(self, what: str, patience_s: float, page: MetricsPage) -> None:
        super().__init__(f"after {patience_s:g} s the gateway's metrics still do not show {what}")
        self.page = page


def read(base_url: str, only: tuple[str, ...] = EVERYTHING) -> MetricsPage:
    """The page as it is now.

    Args:
        base_url: Of the deployment.
        only: Beginnings of the names that are wanted.

    Raises:
        OSError: Nobody answers.
        RuntimeError: Who answers is no gateway of spillway.
    """
    with urllib.request.urlopen(f"{base_url}/metrics", timeout=CALL_PATIENCE_S) as answer:  # noqa: S310 - http alone
        page = MetricsPage.parse(answer.read().decode(), (*only, OPEN))
    if not any(name == OPEN for name, _ in page.samples):
        raise RuntimeError(f"the gateway's metrics have no {OPEN}")
    return page


def wait_for(
    base_url: str,
    process: "subprocess.Popen[bytes]",
    condition: Callable[[MetricsPage], bool],
    patience_s: float,
    what: str,
) -> MetricsPage:
    """The first page for which the condition holds.

    Args:
        base_url: Of the deployment.
        process: That has started it.
        condition: What is waited for.
        patience_s: How long.
        what: The same in words, for the message.

    Raises:
        TookTooLong: There was none in time.
        RuntimeError: The deployment has ended.
    """
    give_up_s = time.monotonic() + patience_s
    while not condition(page := read(base_url)):
        if time.monotonic() >= give_up_s:
            raise TookTooLong(what, patience_s, page)
        with suppress(subprocess.TimeoutExpired):
            process.wait(LOOK_EVERY_S)
            raise RuntimeError("the deployment has ended")
    return page
