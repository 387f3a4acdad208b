"""The shortest script that still breaks something: delta debugging (Zeller and Hildebrandt, 2002) over its faults."""

from collections.abc import Callable, Iterator

import msgspec

from loadtests.fault_simulation.fault_script import FaultScript
from policies.catalog import PolicySpec
from routing.config.spec import LeaderFirst

Fails = Callable[[FaultScript], bool]
MOST_RUNS = 150


def shrink(script: FaultScript, fails: Fails) -> FaultScript:
    """A script that fails, with as few requests and faults as can be found, and defaults where they do.

    Args:
        script: One that fails.
        fails: Whether another one does.
    """
    left = [MOST_RUNS]

    def still_fails(candidate: FaultScript) -> bool:
        left[0] -= 1
        return left[0] >= 0 and fails(candidate)

    before = None
    while before != script and left[0] > 0:
        before = script
        script = _with_fewer_requests(script, still_fails)
        script = _with_fewer_faults(script, still_fails)
        for simpler in _simpler(script):
            if still_fails(simpler):
                script = simpler
    return script


def _with_fewer_requests(script: FaultScript, fails: Fails) -> FaultScript:
    step = script.num_requests // 2
    while step:
        fewer = msgspec.structs.replace(script, num_requests=script.num_requests - step)
        if fewer.num_requests > 0 and fails(fewer):
            script = fewer
        step = min(step // 2, script.num_requests // 2) if step > 1 else 0
    return script


def _with_fewer_faults(script: FaultScript, fails: Fails) -> FaultScript:
    number = len(script.faults)
    while number:
        first = 0
        while first < len(script.faults):
            faults = (*script.faults[:first], *script.faults[first + number :])
            fewer = msgspec.structs.replace(script, faults=faults)
            if fails(fewer):
                script = fewer
            else:
                first += number
        number //= 2
    return script


def _simpler(script: FaultScript) -> Iterator[FaultScript]:
    """The script with clocks that agree, and with one of its policies and limits as it is by default, each in turn."""
    if script.clocks:
        yield msgspec.structs.replace(script, clocks=())
    if script.leader_first is not LeaderFirst.SUSPECT:
        yield msgspec.structs.replace(script, leader_first=LeaderFirst.SUSPECT)
    for question, name in script.policies.items():
        default = getattr(PolicySpec(), question).name
        if name != default:
            policies = {**script.policies, question: default}
            yield msgspec.structs.replace(script, policies=policies)
