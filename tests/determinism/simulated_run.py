"""Simulates a small fleet with faults and prints a hash of all that its dispatchers were told and answered."""

import hashlib
import sys
from dataclasses import replace
from typing import Any

from cluster.sim.faults import Fault
from cluster.sim.simulator import simulate
from engines.faults import FaultKind
from policies import PolicyChoice
from policies.views import Role
from routing.request.events import Event
from tests.cluster.simulated import dispatcher, fleet, poisson


def log_hash(balancing: str) -> str:
    """Two gateways, three prefill and three decode replicas, a crash and a slow one."""
    spec = fleet(3, is_disaggregated=True, num_gateways=2)
    faults = [
        Fault(kind=FaultKind.CRASH, at_s=2.0, for_s=3.0, role=Role.DECODE, replica=1),
        Fault(kind=FaultKind.SLOW, at_s=4.0, for_s=3.0, role=Role.PREFILL, replica=0, factor=3.0),
    ]
    made_from = dispatcher(spec, balancing)
    ejection = PolicyChoice(name="outlier", params={"num_slow": 1, "factor": 1.5, "base_s": 1.0})
    made_from = replace(made_from, policies=replace(made_from.policies, ejection=ejection))
    digest = hashlib.sha256()

    def listen(gateway: int, now_s: float, event: Event, effects: Any) -> None:
        digest.update(repr((gateway, now_s, event, list(effects))).encode())

    table = simulate(spec, made_from, poisson(300, 30.0, 5), ["all"], seed=5, faults=faults, on_event=listen)
    digest.update(table.end_s.tobytes())
    return digest.hexdigest()


if __name__ == "__main__":
    for each in sys.argv[1:]:
        print(log_hash(each))
