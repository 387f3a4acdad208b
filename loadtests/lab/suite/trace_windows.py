"""Windows of a recorded trace that the project does not bring along: from a folder that the user names."""

from pathlib import Path
from typing import Any

from pydantic import Field

from cluster.seeds import Seeds
from loadtests.scenario.scenario import Scenario
from loadtests.schema.reading import Strict
from policies.errors import ConfigError

VARIABLE = "SPILLWAY_TRACES"
"""The environment variable with the folder."""


class TraceWindows(Strict):
    """Stretches of a trace, one after the other, each replayed as a whole at the rate that a cell's load asks for.

    Args:
        file: Its name in the folder; one that ends in ``.gz`` is found, too.
        trace_schema: What it means: ``azure`` or ``mooncake``.
        sha256: Of the unpacked file.
        windows: Their numbers; one begins where the one before it ends.
        seen: Those that somebody has looked at already: they are never for judging.
        first_s: Where window 0 begins, in the trace's own seconds after its first row.
        window_s: How long each is, in the trace's own seconds.
        fields_of_trace: What else is said of the trace: fields of :class:`loadtests.workloads.traces.Trace`.
    """

    file: str
    trace_schema: str = Field(alias="schema")
    sha256: str
    windows: tuple[int, ...] = Field(min_length=1)
    seen: tuple[int, ...] = ()
    first_s: float = Field(default=0.0, ge=0)
    window_s: float = Field(gt=0)
    fields_of_trace: dict[str, Any] = Field(default_factory=dict, alias="fields")

    def path(self, folder: Path | None) -> Path | None:
        """The file, where it is there."""
        names = (self.file, f"{self.file}.gz") if folder is not None else ()
        return next((folder / name for name in names if folder is not None and (folder / name).is_file()), None)

    def fields(self, name: str, window: int, folder: Path | None) -> dict[str, Any]:
        """Fields of a scenario, by path.

        Args:
            name: Of the traffic class.
            window: Its number.
            folder: Of traces.

        Raises:
            ConfigError: The folder does not have it.
        """
        path = self.path(folder)
        if path is None:
            allowed = f"a folder with {self.file}, by --traces or {VARIABLE}"
            raise ConfigError("traces", None if folder is None else str(folder), allowed)
        rows = {
            "rows_from_s": self.first_s + window * self.window_s,
            "rows_until_s": self.first_s + (window + 1) * self.window_s,
        }
        its = {"name": name, "path": str(path.resolve()), "schema": self.trace_schema, "sha256": self.sha256}
        return {"workload.traces": [{**its, **rows, **self.fields_of_trace}]}

    def replayed(self, read: Scenario, rate_per_s: float) -> Scenario:
        """A scenario that lasts as long as its window does at a rate; its warm-up is as large a part of it as before.

        Args:
            read: The scenario, its trace at any speed.
            rate_per_s: Logical requests a second.
        """
        (trace,) = read.workload.traces
        duration_s = trace.replay(0, Seeds(0)).report.emitted / rate_per_s
        at_rate = trace.scaled(rate_per_s / trace.replay(0, Seeds(0)).report.source_rate_per_s)
        return read.changed(
            workload=read.workload.model_copy(update={"traces": (at_rate,)}),
            duration_s=duration_s,
            warm_up_s=read.warm_up_s / read.duration_s * duration_s,
        )
