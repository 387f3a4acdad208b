import math
from typing import Any

import pytest

from cluster.sim.faults import Fault
from engines.faults import FaultKind
from policies.errors import ConfigError
from policies.views import Role
from tests.tables import for_each

SLOW = {"kind": FaultKind.SLOW, "at_s": 1.0, "for_s": 2.0, "role": Role.UNIFIED, "replica": 0, "factor": 3.0}


@for_each(
    ("field", "changes"),
    [
        ("at_s", {"at_s": -1.0}),
        ("for_s", {"for_s": 0.0}),
        ("replica", {"replica": -1}),
        ("factor", {"factor": 0.0}),
        ("factor", {"factor": math.inf}),
        ("factor", {"factor": 1.0}),
        ("factor", {"kind": FaultKind.CRASH}),
        ("role", {"kind": FaultKind.DROP_KV, "factor": 1.0}),
    ],
    ids=["past", "no_time", "no_replica", "no_speed", "endless", "as_before", "slow_crash", "kv_of_nobody"],
)
def test_a_fault_that_cannot_be_or_would_change_nothing_is_refused(field: str, changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as refused:
        Fault(**{**SLOW, **changes})

    assert refused.value.field == field


@for_each("role", list(Role))
def test_every_other_fault_is_possible_on_every_replica(role: Role) -> None:
    for kind in set(FaultKind) - {FaultKind.SLOW, FaultKind.DROP_KV}:
        assert Fault(kind=kind, at_s=0.0, for_s=1.0, role=role, replica=0).factor == 1.0
