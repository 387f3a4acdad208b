"""One long random run of the dispatcher: ``python -m tests.determinism.scripted_run always_unified 7 random``.

It prints the hash of the effects.
"""

import hashlib
import random
import sys

from cluster import DispatcherListener, Seeds
from policies import Reason
from routing import Effect
from tests.properties.scripted_host import HostParams, ScriptedHost

REPLICAS = ("a", "b", "c", "d", "e")
NUM_EVENTS = 2000


def params_of(balancing: str, planner: str, seed: int) -> HostParams:
    """What a run is made of; with a handoff, answers are degraded too."""
    return HostParams(
        planner=planner,
        balancing=balancing,
        hedge_delay_s=0.5,
        degrades=planner == "always_disaggregated",
        ejects=True,
        seed=seed,
    )


def run(balancing: str, planner: str, seed: int, listener: DispatcherListener | None = None) -> list[Effect]:
    """Effects of a run in which everything that can happen does."""
    host = ScriptedHost(params_of(balancing, planner, seed), listener)
    script = Seeds(seed).stream("script")
    change_fleet(host, script)
    for _ in range(NUM_EVENTS):
        host.now_s += script.random()
        next_event(host, script)
    host.wind_up()
    host.check_the_end()
    return host.log


def effect_hash(balancing: str, planner: str, seed: int) -> str:
    """The same for the same arguments, on every machine."""
    return hashlib.sha256("\n".join(map(repr, run(balancing, planner, seed))).encode()).hexdigest()


def next_event(host: ScriptedHost, script: random.Random) -> None:
    """One of all the things that can happen."""
    dice = script.random()
    if dice < 0.02:
        change_fleet(host, script)
    elif dice < 0.05 and host.stories:
        host.client_goes(script.choice(sorted(host.stories)))
    elif dice < 0.10:
        host.report(f"{script.choice(host.roles)}-{script.choice(REPLICAS)}", script.randrange(30_000))
    elif dice < 0.12 and (boxes := [token for token in host.timers if token.endswith(":output_time_limit")]):
        host.fire(boxes[-1])
    elif dice < 0.30 and host.timers:
        host.fire(min(host.timers, key=lambda token: (host.timers[token], token)))
    elif dice < 0.60 and host.open:
        _progress(host, script, script.choice(sorted(host.open)))
    else:
        host.arrive(1 + script.randrange(4000), 1 + script.randrange(500), 20.0)


def _progress(host: ScriptedHost, script: random.Random, attempt_id: str) -> None:
    dice = script.random()
    if dice < 0.4:
        host.first_token(attempt_id)
    elif dice < 0.6 and attempt_id in host.undecided:
        host.give_way(attempt_id)
    elif dice < 0.8:
        host.finish(attempt_id)
    else:
        host.fail(attempt_id, script.choice((Reason.REPLICA_LOST, Reason.ENGINE_ERROR)))


def change_fleet(host: ScriptedHost, script: random.Random) -> None:
    """Two to five replicas of each role are up from now on."""
    for role in host.roles:
        up = script.sample(REPLICAS, 2 + script.randrange(4))
        host.change_fleet(role, {f"{role}-{name}": 4 for name in up})


if __name__ == "__main__":
    planner, seed, *balancers = sys.argv[1:]
    for each in balancers:
        print(effect_hash(each, planner, int(seed)))
