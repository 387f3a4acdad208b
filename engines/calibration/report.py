"""What calibration tells people while it runs, and the tables at its end."""

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from engines.calibration.fit import TERMS, Link, contributions, relative_error
from engines.calibration.samples import Region
from engines.calibration.study import CalibrationFindings

WORST = 5
PLAIN_LINES = 20


class Narrator:
    """A progress bar on a terminal, a line now and then elsewhere.

    Args:
        console: Where to.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> "Narrator":
        if self.console.is_terminal:
            columns = (TextColumn("{task.description:32}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._progress = Progress(*columns, console=self.console)
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def say(self, line: str) -> None:
        """A line that stays."""
        self.console.print(line, highlight=False)

    def at(self, what: str, done: int, total: int) -> None:
        """How far it is."""
        if self._progress is None:
            if done % max(1, total // PLAIN_LINES) == 0 or done == total:
                self.say(f"[{done}/{total}] {what}")
            return
        if self._task is None or done == 0:
            if self._task is not None:
                self._progress.remove_task(self._task)
            self._task = self._progress.add_task(what, total=total)
        self._progress.update(self._task, description=what, completed=done)


def show(console: Console, findings: CalibrationFindings, link: Link | None) -> None:
    """Coefficients, what each is for, and how far the fit is off."""
    console.print(_coefficients(findings))
    console.print(_errors(findings))
    console.print(_worst(findings))
    overheads, extra_s = findings.overheads, findings.coefficients.admission_s - findings.alone.admission_s
    console.print(
        f"engine: {extra_s * 1e3:.2f} ms a request beside its steps, with which the steps of traffic come out "
        f"{findings.residuals['traffic_bias']:+.1%}",
        highlight=False,
    )
    saving_s = findings.coefficients.shared_token_saving_s
    console.print(
        f"engine: {saving_s * 1e6:.2f} us less for a KV token that was read in the same step", highlight=False
    )
    console.print(
        f"front end: {overheads.request_s * 1e3:.2f} ms a request, "
        f"{overheads.token_s * 1e6:.0f} us for each sequence in a step",
        highlight=False,
    )
    if link is not None:
        console.print(f"KV transfer: {link[0] * 1e3:.1f} ms and {link[1] / 1e9:.2f} GB/s", highlight=False)


def _coefficients(findings: CalibrationFindings) -> Table:
    shares = contributions(findings.alone, findings.groups)
    table = Table("coefficient", "microseconds", *(f"share of {region}" for region in shares), title="step time")
    for name in TERMS:
        value = getattr(findings.coefficients, name)
        table.add_row(name, f"{value * 1e6:.4g}", *(f"{shares[region][name]:.0%}" for region in shares))
    return table


def _errors(findings: CalibrationFindings) -> Table:
    table = Table("steps", "groups", "median", "p90", "bias", title="error of the fit, and on the held-out grid")
    for name, groups in (("fit", findings.groups), ("held_out", findings.held_out)):
        for region in Region:
            number = sum(each.region is region for each in groups)
            if number:
                values = [findings.residuals[f"{name}_{region}_{measure}"] for measure in ("median", "p90", "bias")]
                sizes = [f"{value:.1%}" for value in values[:2]]
                table.add_row(f"{name} {region}", str(number), *sizes, f"{values[2]:+.1%}")
    return table


def _worst(findings: CalibrationFindings) -> Table:
    table = Table("step", "tokens", "pairs", "sequences", "context", "measured", "error", title="worst fitted")
    errors = sorted(((relative_error(findings.alone, each), each) for each in findings.groups), key=_size)
    for error, each in errors[-WORST:]:
        work = each.work
        numbers = (work.new_tokens, work.attention_pairs, work.sequences, work.context_tokens)
        table.add_row(
            f"{each.region} in {each.point}", *map(str, numbers), f"{each.seconds * 1e3:.2f} ms", f"{error:+.0%}"
        )
    return table


def _size(error: tuple[float, object]) -> float:
    return abs(error[0])
