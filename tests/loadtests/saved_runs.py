"""Folders of runs to report on: made up, but with everything in them that a run may have."""

from collections.abc import Sequence
from dataclasses import replace
from math import nan
from pathlib import Path
from typing import Any

import numpy as np

from cluster.sim.run_table import UNKNOWN
from loadtests.results.analysis import analyse
from loadtests.results.metrics import Window
from loadtests.results.run_folder import ASYNCIO, SIMULATOR, SavedRun, write
from loadtests.results.run_record import CheckResult, Moment, RequestDetails, RunRecord, defined
from loadtests.results.slo import ClassSlo
from tests.loadtests.live_scenarios import health
from tests.loadtests.run_tables import RequestRow, run_table

CLASSES = ("chat", "document")
SLOS = {"chat": ClassSlo(ttft_s=0.3, tpot_s=0.05), "document": ClassSlo(ttft_s=1.0)}
WARM_UP_S, DURATION_S = 5.0, 60.0
CHECK = CheckResult(text="goodput_fraction of chat >= 0.9", value=0.95, verdict="met")
HEALTH = health(errors={"HTTP 503 shed": 12})


def requests(seed: int, number: int, *, slowness: float = 1.0) -> list[RequestRow]:
    """Nine chats to a document; one in twenty is refused and not tried again."""
    rng = np.random.default_rng(seed)
    made = []
    for logical_request in range(number):
        kind = int(rng.random() < 0.1)
        at_s = DURATION_S * logical_request / number
        ttft_s = slowness * float(rng.lognormal(-3 + kind, 0.6))
        tokens = int(rng.integers(2, 40))
        is_refused = rng.random() < 0.05
        made.append(
            RequestRow(
                logical_request=logical_request,
                at_s=at_s,
                ttft_s=nan if is_refused else ttft_s,
                e2e_s=0.001 if is_refused else ttft_s + 0.02 * tokens * slowness,
                output_tokens=0 if is_refused else tokens,
                outcome="refused" if is_refused else "completed",
                reason="shed" if is_refused else "",
                traffic_class=kind,
                attempts=0 if is_refused else 1,
            )
        )
    return made


def details_of(made: Sequence[RequestRow]) -> list[RequestDetails]:
    """Lanes, gaps and stages as a deployment tells them."""
    return [
        RequestDetails(
            lane=("short", "long")[each.traffic_class],
            longest_gap_s=0.03 if each.output_tokens else nan,
            stages_s={"parse": 0.0002, "queue": 0.4 * each.ttft_s, "prefill": 0.6 * each.ttft_s, "decode": 0.4}
            if each.output_tokens
            else {},
        )
        for each in made
    ]


def saved_run(made: Sequence[RequestRow], *, is_told: bool = True, **changes: Any) -> SavedRun:
    """A run over HTTP of these requests.

    Args:
        made: What was sent.
        is_told: Whether the deployment said anything of lanes, stages and queues.
        changes: Fields of the record with other values.
    """
    if changes.get("driver") != SIMULATOR:
        made = [replace(each, attempts=UNKNOWN, hedges=UNKNOWN, computed_prompt_tokens=UNKNOWN) for each in made]
    table = run_table(*made, classes=CLASSES, duration_s=max((each.at_s + each.e2e_s for each in made), default=0.0))
    moments = [
        Moment(at_s=float(second), gauges={"queue_work_s": 1.0 + second % 7, "shed_fraction": 0.05, "replicas": 4.0})
        for second in range(int(DURATION_S))
    ]
    values: dict[str, Any] = {
        "scenario": "two-lanes",
        "description": "Do chats wait behind documents?",
        "driver": ASYNCIO,
        "variant": "policy",
        "target": "http://127.0.0.1:8000",
        "seed": 1,
        "started_at": "2026-01-01T00:00:00+00:00",
        "duration_s": DURATION_S,
        "warm_up_s": WARM_UP_S,
        "rate_fraction": 1.0,
        "traffic_classes": CLASSES,
        "slos": SLOS,
        "metrics": defined(analyse(table, SLOS, Window(from_s=WARM_UP_S, until_s=DURATION_S))),
        "checks": (CHECK,),
        "verdict": "PASS",
        "problems": (),
        "notes": (),
        "health": HEALTH,
        "moments": tuple(moments) if is_told else (),
        "versions": {"python": "3.11"},
    }
    record = RunRecord(**values | changes)
    return SavedRun(record=record, table=table, details=details_of(made) if is_told else ())


def save(folder: Path, *, seed: int = 1, number: int = 1200, slowness: float = 1.0, **changes: Any) -> Path:
    """Writes a run, and returns where."""
    write(folder, saved_run(requests(seed, number, slowness=slowness), seed=seed, **changes))
    return folder


def save_simulated(folder: Path, *, variant: str = "policy", seed: int = 1, number: int = 1200, **changes: Any) -> Path:
    """Writes a run as the simulator leaves it."""
    slowness = changes.pop("slowness", 1.0)
    of_simulator = {"driver": SIMULATOR, "target": "h100: 4 unified, 1 gateway", "health": None, "started_at": ""}
    made = saved_run(
        requests(seed, number, slowness=slowness),
        is_told=False,
        seed=seed,
        variant=variant,
        **of_simulator | {"checks": (CHECK,) if variant == "policy" else ()} | changes,
    )
    write(folder, made)
    return folder
