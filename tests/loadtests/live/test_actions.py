"""What is done to a deployment, and when: the times are virtual, and the processes the test's own."""

from types import SimpleNamespace
from typing import cast

import psutil
import pytest

from loadtests.live.actions import Action, Doings, SlowEngine, Stop, _carry_out, _kill, _stop
from loadtests.live.deployed import REST_LOOKS, AtRest, Deployed
from loadtests.watch.gateway_page import MetricsPage
from policies.errors import ConfigError
from tests.loadtests.child_process import child_process
from tests.tables import for_each
from tests.waiting import wait_until

CHILD = "import sys; print('up', flush=True); sys.stdin.read()"
COORDINATOR = (
    f"import subprocess; subprocess.run(['ray::CoordinatorActor', '-c', {CHILD!r}], "
    "executable=__import__('sys').executable)"
)


def kill_at(at_s: float) -> Action:
    return Action.model_validate({"at_s": at_s, "kill": {"process": "load_coordinator"}})


def test_actions_happen_in_order_of_their_times_and_not_after_the_end() -> None:
    waited, done, doings = list[float](), list[float](), Doings()

    def is_over_at(at_s: float) -> bool:
        waited.append(at_s)
        return at_s > 20.0

    def do(action: Action) -> str:
        done.append(action.at_s)
        return "killed"

    _carry_out([kill_at(each) for each in (30.0, 5.0, 20.0, 25.0)], is_over_at, do, doings)

    assert (waited, done, doings.num_done) == ([5.0, 20.0, 25.0], [5.0, 20.0], 2)
    assert doings.notes == ["at 5 s: killed", "at 20 s: killed"]


def test_what_goes_wrong_is_noted_and_the_next_action_happens() -> None:
    doings = Doings()

    def do(action: Action) -> str:
        if action.at_s == 1.0:
            raise RuntimeError("no such process")
        return "killed"

    _carry_out([kill_at(1.0), kill_at(2.0)], lambda _: False, do, doings)

    assert doings.num_done == 1
    assert doings.notes == ["at 1 s: nothing happened: no such process", "at 2 s: killed"]


SIX = [{"name": "prefill", "role": "prefill", "replicas": 3}, {"name": "decode", "role": "decode", "replicas": 3}]


def test_replicas_are_killed_again_and_again_and_the_seed_draws_which() -> None:
    kills = Action.model_validate(
        {"at_s": 60, "every_s": 30, "until_s": 1770, "kill": {"among": ["prefill", "decode"]}}
    )
    kills.check({"pools": SIX}, 1800.0)
    one, again, other = ([*kills.each_time(SIX, 1800.0, seed)] for seed in (1, 1, 2))

    assert one == again != other
    assert [each.at_s for each in one] == [60.0 + 30.0 * number for number in range(57)]
    assert {(each.place.pool, each.place.replica) for each in one} == {
        (pool, number) for pool in ("prefill", "decode") for number in range(3)
    }


def test_what_is_done_once_is_done_once() -> None:
    assert [*kill_at(3.0).each_time(SIX, 80.0, 1)] == [kill_at(3.0)]


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({"at_s": 60, "until_s": 90, "kill": {"process": "gateway"}}, "until_s"),
        ({"at_s": 60, "every_s": 30, "until_s": 60, "kill": {"process": "gateway"}}, "until_s"),
        ({"at_s": 60, "every_s": 30, "slow_engine": {"pool": "prefill", "factor": 2, "for_s": 1}}, "every_s"),
        ({"at_s": 60, "every_s": 30, "kill": {"among": ["prefil"]}}, "pool"),
    ],
)
def test_what_can_not_be_done_again_and_again_is_refused(document: dict[str, object], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Action.model_validate(document).check({"pools": SIX}, 1800.0)
    assert caught.value.field == field


def test_an_engine_is_slow_at_times_that_depend_on_the_seed_alone() -> None:
    engine = SlowEngine(pool="unified", factor=20, for_s=2, share_of_time=0.1)
    one, again, other = (engine.faults(8.0, 80.0, seed) for seed in (1, 1, 2))

    assert one == again != other
    assert all(8.0 <= each.at_s < 80.0 and each.for_s == 2.0 and each.factor == 20.0 for each in one)
    assert [each.at_s for each in SlowEngine(pool="unified", factor=20, for_s=2).faults(8.0, 80.0, 1)] == [8.0]


def deployed(pid: int, replica_pid: int = 0) -> Deployed:
    pools = [{"name": "decode", "role": "decode", "replicas": 1}]
    return cast("Deployed", SimpleNamespace(pid=pid, pools=pools, replica=lambda *_: ("decode-0", replica_pid)))


def test_the_load_coordinators_process_is_found_by_its_name_and_killed() -> None:
    with child_process(COORDINATOR) as parent:
        (coordinator,) = parent.children()
        assert _kill(kill_at(0.0).kill, deployed(parent.pid)) == "load_coordinator was killed"  # type: ignore[arg-type]
        assert not psutil.wait_procs([coordinator], timeout=30)[1]
        with pytest.raises(RuntimeError, match="no process of load_coordinator"):
            _kill(kill_at(0.0).kill, deployed(parent.pid))  # type: ignore[arg-type]


def test_a_process_that_the_deployment_has_not_started_is_left_alone() -> None:
    decode = Action.model_validate({"at_s": 0, "kill": {"role": "decode"}}).kill
    assert decode is not None
    with child_process(CHILD) as stranger, child_process(CHILD) as root:
        with pytest.raises(RuntimeError, match="no process of decode-0"):
            _kill(decode, deployed(root.pid, stranger.pid))
        assert stranger.is_running()


REPLICA_OF_VLLM = (
    f"import subprocess, sys; subprocess.run(['VLLM::EngineCore', '-c', {CHILD!r}], executable=sys.executable)"
)
LAUNCHER = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {REPLICA_OF_VLLM!r}])"


def test_an_engine_is_killed_and_its_replica_is_not() -> None:
    decode = Action.model_validate({"at_s": 0, "kill": {"role": "decode", "engine": True}}).kill
    assert decode is not None
    with child_process(LAUNCHER) as root:
        (replica,) = root.children()
        (engine,) = replica.children()
        assert _kill(decode, deployed(root.pid, replica.pid)) == "the engine of decode-0 was killed"
        assert not psutil.wait_procs([engine], timeout=30)[1]


def test_a_replica_without_an_engine_of_its_own_is_left_alone() -> None:
    action = Action.model_validate({"at_s": 0, "kill": {"role": "decode", "engine": True}})
    assert action.kill is not None
    with child_process(LAUNCHER.replace("VLLM::EngineCore", "python")) as root:
        (replica,) = root.children()
        with pytest.raises(RuntimeError, match="no engine"):
            _kill(action.kill, deployed(root.pid, replica.pid))
        assert replica.is_running()
    with pytest.raises(ConfigError, match=r"kill\.engine"):
        action.check({"pools": SIX, "engine": {"kind": "emulated"}}, 80.0)


def test_a_process_that_is_stopped_stands_still_for_so_long_and_goes_on() -> None:
    with child_process(COORDINATOR) as parent:
        (coordinator,) = parent.children()
        what = Stop(process="load_coordinator", for_s=0.5)
        assert _stop(what, deployed(parent.pid)) == "load_coordinator stands still for 0.5 s"
        wait_until(lambda: coordinator.status() == psutil.STATUS_STOPPED, "it stands still")
        wait_until(lambda: coordinator.status() != psutil.STATUS_STOPPED, "it goes on")


@for_each("held", ["spillway_requests_open 1", "spillway_replica_kv_cache_usage 0.1"])
def test_a_deployment_is_at_rest_when_nothing_has_changed_for_so_long_that_every_report_is_in(held: str) -> None:
    """Between two requests a replica's last report may be one of an idle replica."""
    looks = [f"spillway_requests_open 0\nspillway_replica_attempts_total {number}\n" for number in (5.0, 6.0)]
    before, after = map(MetricsPage.parse, looks)
    at_rest = AtRest()

    assert [at_rest(before) for _ in range(REST_LOOKS)] == [False] * REST_LOOKS
    assert [at_rest(after) for _ in range(REST_LOOKS + 1)] == [False] * REST_LOOKS + [True]
    assert not at_rest(MetricsPage.parse(f"{looks[1].partition(chr(10))[2]}{held}\n"))
