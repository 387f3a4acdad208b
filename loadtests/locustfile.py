"""Drives a deployment with a scenario through locust: the simulator's plan, open loop, with the times of every stream.

``locust -f loadtests/locustfile.py --scenario ragged --host http://127.0.0.1:8000 [--headless] [--processes 2]``

Locust starts one user in each worker, and that user sends the worker's share of the plan. Every request is one request
event under its traffic class: ``response_time`` is from when it was due to its last token, and ``context`` has the
rest. What the run came to, judged by the scenario's checks, is printed at its end, is written to ``--save``, and is the
exit code: 0 passed, 1 a check is missed, 2 nothing is proved.
"""

import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parent.parent))  # locust takes the first entry, this folder, away again

import logging
import math
import signal
from argparse import Namespace
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import gevent
import gevent.event
import locust.stats
import msgspec
from locust import FastHttpUser, events, task
from locust.runners import STATE_MISSING, MasterRunner, WorkerRunner
from rich.console import Console

from loadtests.drivers.live_run import MAX_IN_FLIGHT, discover_model
from loadtests.drivers.live_table import show
from loadtests.drivers.plan_parts import chosen_classes
from loadtests.drivers.shared_run import RunOrder, SharedRun, WorkerReport
from loadtests.locust_user.page import Seldom, add_tab, refuse_wrong_forms, table_lines
from loadtests.locust_user.shapes import PlanShape, never
from loadtests.locust_user.worker import Worker, timestamp
from loadtests.results.run_folder import LOCUST
from loadtests.scenario.scenario import load
from loadtests.simulation.save_folder import SaveFolder
from loadtests.simulation.verdict import Verdict
from loadtests.watch.deployment_watch import DeploymentWatch
from policies.errors import ConfigError

__all__ = ["PlanShape", "PlanUser", "end_in_order"]

ORDER, REPORT = "spillway_order", "spillway_report"
"""Messages: to a worker, what it is to send; to the master, what it has measured."""
LOCAL = "local"
"""The one worker of a test that is not distributed."""
START_DELAY_S = 2.0
"""From the order to the run's time 0: every worker has read its plan by then."""
GRACE_S = 60.0
"""From the plan's hard end, at which workers stop by themselves, to when nobody waits for their reports any more."""
NO_TIMEOUT_S = 1e6
"""Requests have deadlines of their own; locust's are for the time between two bytes."""
logger = logging.getLogger(__name__)
logging.getLogger("httpx").setLevel(logging.WARNING)


def bucket(response_time_ms: float) -> float:
    """Rounds to three significant digits for locust's histograms, whose own two make 150 ms of 147."""
    return round(response_time_ms, 2 - math.floor(math.log10(response_time_ms))) if response_time_ms > 0 else 0


locust.stats.bucket_response_time = bucket


class PlanUser(FastHttpUser):
    """Sends one worker's share of the plan; it is one user and not one of many, however many requests that is."""

    network_timeout = NO_TIMEOUT_S
    connection_timeout = NO_TIMEOUT_S

    def __init__(self, environment: Any) -> None:
        order = WORKER.order
        self.concurrency = order.max_in_flight if order is not None else 1
        super().__init__(environment)

    @task
    def dispatch(self) -> None:
        """Sends it all, and then waits to be stopped."""
        if WORKER.order is not None:
            WORKER.run(self)
            TEST.report(self.environment)
        gevent.event.Event().wait()


class LiveTest:
    """What locust's events do with a run, in whichever process they come."""

    def __init__(self) -> None:
        self.run: SharedRun | None = None
        self._watch: DeploymentWatch | None = None
        self._last: SharedRun | None = None
        self._lost: list[str] = []
        self._save = SaveFolder()

    def begin(self, environment: Any) -> None:
        """A test starts: on the master, or where there is no other process, the plan is read and split."""
        if isinstance(environment.runner, WorkerRunner):
            return
        try:
            workers = _workers(environment.runner)
            run = SharedRun(_addressed(_order_of(environment.parsed_options, environment.host)), workers)
            self._save.begin(environment.parsed_options.save)
        except ConfigError as error:
            logger.error("%s", error)
            environment.process_exit_code = int(Verdict.INVALID)
            environment.shape_class.is_over = lambda: True
            return
        self.run = run
        environment.shape_class.is_over = lambda: self.is_over(environment)
        self._watch = DeploymentWatch(run.order.base_url, lambda: timestamp() - run.order.begins_at)
        self._watch.start()
        for worker, order in run.orders().items():
            if worker == LOCAL:
                WORKER.take_order(order)
            else:
                environment.runner.send_message(ORDER, msgspec.to_builtins(order), worker)

    def report(self, environment: Any) -> None:
        """This process's share is over, or the test is stopped: what there is goes to whoever judges it."""
        report = WORKER.report()
        if report is None:
            return
        if isinstance(environment.runner, WorkerRunner):
            environment.runner.send_message(REPORT, msgspec.structs.asdict(report))
        elif self.run is not None:
            self.run.absorb(LOCAL, report)

    def absorb(self, worker: str, data: dict[str, Any]) -> None:
        """A report has come from a worker."""
        if self.run is not None:
            self.run.absorb(worker, msgspec.convert(data, WorkerReport))

    def finish(self, environment: Any) -> None:
        """The test has stopped: what it came to is printed, written and becomes the exit code, once."""
        run, self.run = self.run, None
        if run is None:
            return
        self._last = run
        moments, notes = (self._watch.stop(), self._watch.notes()) if self._watch else ((), ())
        saved = run.judged(LOCUST, ("locust", "gevent", "numpy"), self._lost, moments, notes=notes)
        is_saved = self._save.finish(saved)
        environment.process_exit_code = int(Verdict[saved.record.verdict] if is_saved else Verdict.INVALID)
        show(saved, Console(soft_wrap=True, highlight=False, width=None if sys.stdout.isatty() else 160))

    def is_over(self, environment: Any) -> bool:
        """Whether nothing more will come; a worker that is gone by now is lost."""
        if self.run is None:
            return False
        if timestamp() > self.run.order.begins_at + self.run.plan.until_s + GRACE_S:
            return True
        self._lost = [worker for worker in self.run.workers if not _is_there(environment.runner, worker)]
        return self.run.is_over(lambda worker: worker not in self._lost)

    def lines(self, environment: Any) -> list[dict[str, Any]]:
        """How each lane and class has fared so far, or had when the last test stopped, for the page in the browser."""
        if not isinstance(environment.runner, MasterRunner):
            self.report(environment)
        run = self.run or self._last
        return [] if run is None else table_lines(run.log)


WORKER, TEST = Worker(), LiveTest()


def _order_of(options: Namespace, host: str | None) -> RunOrder:
    """What the command line, or the form in the browser, wants; nobody has been asked for anything yet.

    Raises:
        ConfigError: It can't be had; field, value and what is allowed.
    """
    if not host:
        raise ConfigError("--host", host, "the base URL of the deployment, such as http://127.0.0.1:8000")
    if options.max_in_flight < 1:
        raise ConfigError("--max-in-flight", options.max_in_flight, "1 or more")
    known = load(options.scenario).workload.class_names
    order = RunOrder(
        run_id=uuid4().hex,
        scenario=options.scenario,
        seed=options.seed,
        rate_fraction=options.rate_fraction,
        duration_s=options.duration or None,
        classes=chosen_classes(known, options.tags or (), options.exclude_tags or ()),
        base_url=host.rstrip("/"),
        model=options.model,
        asks_token_ids=not options.no_token_ids,
        max_in_flight=options.max_in_flight,
        begins_at=0.0,
    )
    order.plan()
    return order


def _addressed(order: RunOrder) -> RunOrder:
    """The order with the model that the deployment serves, and a time at which it begins.

    Raises:
        ConfigError: The deployment does not say.
    """
    model = order.model or discover_model(order.base_url)
    return msgspec.structs.replace(order, model=model, begins_at=timestamp() + START_DELAY_S)


def _check_form(environment: Any, values: Mapping[str, str]) -> None:
    """What is wrong with the form is said in the form; locust would answer a word for a number with a status of 500.

    Raises:
        ConfigError: It is wrong.
    """
    options = Namespace(**vars(environment.parsed_options))
    for name, kind in {"rate_fraction": float, "duration": float, "seed": int, "max_in_flight": int}.items():
        if name in values:
            setattr(options, name, _number(name, values[name], kind))
    options.scenario = values.get("scenario", options.scenario)
    _order_of(options, values.get("host", environment.host))


def _number(name: str, text: str, kind: type[float]) -> float:
    try:
        return kind(text)
    except ValueError as error:
        raise ConfigError(name, text, "a number" if kind is float else "a whole number") from error


def _workers(runner: Any) -> list[str]:
    return [client.id for client in runner.clients.ready] if isinstance(runner, MasterRunner) else [LOCAL]


def _is_there(runner: Any, worker: str) -> bool:
    return worker == LOCAL or (worker in runner.clients and runner.clients[worker].state != STATE_MISSING)


@events.init_command_line_parser.add_listener
def _add_arguments(parser: Any) -> None:
    """What the command line and the form in the browser ask for beside locust's own."""
    parser.add_argument("--scenario", default="ragged", help="a name in the simulator's library, or a .yaml file")
    parser.add_argument(
        "--rate-fraction", type=float, default=1.0, help="share of the scenario's requests, above 0 and at most 1"
    )
    parser.add_argument("--duration", type=float, default=0.0, help="seconds; 0: the scenario's own")
    parser.add_argument("--seed", type=int, default=1, help="of the plan")
    parser.add_argument("--model", default="", help="the model's name; empty: the first that the deployment serves")
    parser.add_argument("--save", default="", help="folder for run.json, requests.jsonl.gz and junit.xml")
    parser.add_argument(
        "--max-in-flight", type=int, default=MAX_IN_FLIGHT, help="of a worker; what is due beyond it is dropped"
    )
    parser.add_argument("--no-token-ids", action="store_true", help="for servers that don't know return_token_ids")


@events.init.add_listener
def _prepare(environment: Any, runner: Any, web_ui: Any, **_: Any) -> None:
    """Every process gets its part of the talk between master and workers; tags are traffic classes."""
    _let_pass(environment.parsed_options)
    if isinstance(runner, WorkerRunner):
        runner.register_message(ORDER, _take_order)
        environment.process_exit_code = 0  # requests that fail are the master's to judge
        return
    end_in_order()
    if isinstance(runner, MasterRunner):
        runner.register_message(REPORT, lambda environment, msg, **_: TEST.absorb(msg.node_id, msg.data))
    if web_ui is not None:
        add_tab(web_ui, Seldom(lambda: TEST.lines(environment)))
        refuse_wrong_forms(web_ui, lambda values: _check_form(environment, values))


def end_in_order() -> None:
    """SIGTERM and Ctrl-C interrupt the main greenlet.

    locust hears SIGTERM only once a headless test is over, and Python raises a Ctrl-C in whichever greenlet runs, where
    it may end a thread and nothing else.
    """
    for each in (signal.SIGTERM, signal.SIGINT):
        gevent.signal_handler(each, gevent.kill, gevent.getcurrent(), KeyboardInterrupt)


def _let_pass(options: Namespace) -> None:
    """The one task stands for whatever classes were chosen, so locust's filter has to let it pass."""
    PlanUser.dispatch.locust_tag_set = set(options.tags or ()) - set(options.exclude_tags or ())


def _take_order(environment: Any, msg: Any, **_: Any) -> None:
    """A worker is told what to send, before locust tells it to start a user."""
    order = msgspec.convert(msg.data, RunOrder)
    PlanUser.dispatch.locust_tag_set = set(order.classes)
    WORKER.take_order(order)


@events.test_start.add_listener
def _begin(environment: Any, **_: Any) -> None:
    """See :meth:`LiveTest.begin`."""
    TEST.begin(environment)


@events.report_to_master.add_listener
def _add_report(client_id: str, data: dict[str, Any]) -> None:
    """What a worker has measured goes with locust's own statistics, every few seconds."""
    if (report := WORKER.report()) is not None:
        data[REPORT] = msgspec.structs.asdict(report)


@events.worker_report.add_listener
def _take_report(client_id: str, data: dict[str, Any]) -> None:
    """They have come."""
    if REPORT in data:
        TEST.absorb(client_id, data[REPORT])


@events.test_stop.add_listener
def _stop(environment: Any, **_: Any) -> None:
    """Headless, a master's workers only now learn that they are to stop: their last reports are waited for."""
    TEST.report(environment)
    WORKER.order = None
    reports_follow = isinstance(environment.runner, MasterRunner) and environment.web_ui is None
    if TEST.is_over(environment) or not reports_follow:
        TEST.finish(environment)
    if environment.shape_class is not None:
        environment.shape_class.is_over = never  # or the next test in the browser would end as this one did


@events.quitting.add_listener
def _quit_(environment: Any, **_: Any) -> None:
    """Nothing more will come."""
    TEST.finish(environment)
