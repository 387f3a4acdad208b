"""Measures what a request costs on its way to an engine: spillway's gateway and other routers, in one run.

``python -m loadtests.studies.bench_router [--systems ...] [--rates 500 1000 2000] [--json FILE]``

Other routers get four mock workers that answer HTTP at a fixed pace; spillway's gateway four emulated engines, since
what it talks to is its own data plane. The same client asks for chat completions: whole answers of one token, and
streams of 16. What counts is processor time by request, of the router's own processes; on a small machine the client
and the workers have the same cores, so that rates say less. What is added to the 99th percentile is beside the mock
workers asked directly.

Routers are installed into environments of their own under ``.peers`` (:file:`loadtests/peers/routers.yaml`); one that
can't be is left out, and said so.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console

from loadtests.machine.cpu_by_process import CLIENT, cpu_s_by_process
from loadtests.machine.paced_client import Answers, Request, at_a_rate, in_a_loop
from loadtests.machine.systems import ROOT, System, provenance, up
from loadtests.machine.told_steps import Tell, told_steps
from loadtests.studies.bench_router.costs import MOST_ADDED_S, RouterCosts, table
from loadtests.studies.bench_router.peers import (
    DIRECT,
    LITELLM,
    LITELLM_KEY,
    WORKER_PORTS,
    Router,
    install,
    peers,
    routers,
    worker,
    write_litellm,
)

WARM_UP, UNARY, STREAMS, AT_A_TIME, STREAM_TOKENS = 200, 1_500, 400, 16, 16
RATE_FOR_S = 4.0
LADDER = (250, 500, 1_000, 1_500, 2_000, 3_000)


@contextmanager
def _workers(router: Router, folder: Path) -> Iterator[None]:
    """The mock workers, or those that it wants, for as long as the block lasts."""
    with ExitStack() as stack:
        if router.workers:
            log = stack.enter_context((folder / "workers.log").open("wb"))
            env = {**os.environ, **router.system.env}
            own = subprocess.Popen(router.workers, env=env, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT)
            stack.callback(own.wait)
            stack.callback(own.terminate)
        elif not router.process:
            for port in WORKER_PORTS[1 if router.system.name == DIRECT else 0 :]:
                system = System(
                    name="mock worker", command=worker(port), port=port, ready_path="/health", ready_text="", env={}
                )
                stack.enter_context(up(system, folder / f"worker-{port}.log"))
        yield


def measure(router: Router, rates: Sequence[int], folder: Path, tell: Tell) -> RouterCosts:
    """Starts a router before its workers and measures it."""
    system = router.system
    tell(f"starting {system.name}")
    log = folder / f"{system.name.replace(' ', '-')}.log"
    with _workers(router, folder), up(system, log) as process:
        meter = _Meter(router, process.pid)
        asked = _asked(router, max_tokens=1, streams=False)
        asyncio.run(in_a_loop(asked, WARM_UP, AT_A_TIME))
        tell(f"{system.name}: whole answers and streams, {AT_A_TIME} at a time")
        unary_us = meter.of(in_a_loop(asked, UNARY, AT_A_TIME))
        stream_us = meter.of(in_a_loop(_asked(router, STREAM_TOKENS, streams=True), STREAMS, AT_A_TIME))
        costs = RouterCosts(system=system.name, unary_us=unary_us, stream_us=stream_us)
        for rate in sorted({*LADDER, *rates}):
            tell(f"{system.name}: {rate} requests a second")
            costs.at_rate_us[rate] = meter.of(at_a_rate(asked, rate, RATE_FOR_S))
            costs.p99_ms[rate] = 1e3 * meter.answers.quantile_s(0.99)
            if costs.p99_ms[rate] > 1e3 * 10 * MOST_ADDED_S:
                break  # it can't keep up, and what is asked beyond that only queues
    return replace(costs, num_failed=meter.num_failed)


def _asked(router: Router, max_tokens: int, *, streams: bool) -> Request:
    headers = (("authorization", f"Bearer {LITELLM_KEY}"),) if router.system.name == LITELLM else ()
    return Request(url=router.system.url, max_tokens=max_tokens, streams=streams, headers=headers, model=router.model)


class _Meter:
    """Processor time of a router while something is asked of it."""

    def __init__(self, router: Router, pid: int) -> None:
        self._process = router.process
        self._pid = pid
        self.answers = Answers()
        self.num_failed = 0

    def of(self, asking: Coroutine[None, None, Answers]) -> float:
        """Microseconds for each answer."""
        before_s = cpu_s_by_process(self._pid)
        self.answers = asyncio.run(asking)
        after_s = cpu_s_by_process(self._pid)
        self.num_failed += self.answers.num_failed
        spent_s = {name: s - before_s.get(name, 0.0) for name, s in after_s.items() if name != CLIENT}
        own_s = spent_s.get(self._process, 0.0) if self._process else sum(spent_s.values())
        return 1e6 * own_s / max(1, len(self.answers.took_s))


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.studies.bench_router", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--systems", nargs="+", metavar="NAME", help="measure these alone")
    parser.add_argument(
        "--rates", nargs="+", type=int, default=[500, 1_000, 2_000], help="requests a second, in columns"
    )
    parser.add_argument("--json", type=Path, help="writes all figures there, too")
    options = parser.parse_args(arguments)
    console = Console(width=200 if not sys.stdout.isatty() else None)
    with tempfile.TemporaryDirectory(prefix="bench-router-") as place:
        folder = Path(place)
        write_litellm(folder)
        chosen = [each for each in routers(folder) if not options.systems or each.system.name in options.systems]
        missing = _installed(chosen, console)
        chosen = [each for each in chosen if each.system.name not in missing]
        with told_steps(console, len(chosen) * 2 + sum(len(LADDER) for _ in chosen)) as tell:
            rows = [measure(router, options.rates, folder, tell) for router in chosen]
    console.print(table(rows, options.rates))
    if options.json:
        told = {"provenance": provenance(), "rows": [asdict(row) for row in rows], "missing": missing}
        options.json.write_text(json.dumps(told, indent=1))
    return 0


def _installed(chosen: Sequence[Router], console: Console) -> dict[str, str]:
    """Installs what is missing; what could not be, and why."""
    names = {each.system.name for each in chosen}
    missing = {}
    for peer in peers():
        if peer["name"] in names:
            console.print(f"{peer['name']}: {peer['requirement']}", highlight=False)
            if why := install(peer):
                missing[peer["name"]] = why
                console.print(f"[red]{peer['name']} is left out: {why}[/]")
    return missing


if __name__ == "__main__":
    sys.exit(main())
