"""Replicas that fail now and then: as often as asked for, at times that no policy has a say in."""

from itertools import pairwise

import pytest

from cluster.seeds import Seeds
from engines.faults import FaultKind
from loadtests.scenario.episodes import Episodes
from policies.errors import ConfigError
from policies.views import Role
from tests.tables import for_each

SLOW = Episodes(kind=FaultKind.SLOW, role=Role.PREFILL, share_of_time=0.05, for_s=2.0, factor=10.0)


def test_replicas_fail_for_the_share_of_time_that_was_asked_for() -> None:
    faults = list(SLOW.faults(8, 20_000.0, Seeds(1)))

    assert len(faults) * 2.0 / (8 * 20_000.0) == pytest.approx(0.05, rel=0.05)
    assert {(fault.kind, fault.factor, fault.for_s) for fault in faults} == {(FaultKind.SLOW, 10.0, 2.0)}


def test_a_replica_recovers_before_it_fails_again() -> None:
    faults = list(SLOW.faults(1, 20_000.0, Seeds(1)))

    assert all(later.at_s > earlier.at_s + 2.0 for earlier, later in pairwise(faults))


def test_every_replica_has_times_of_its_own_whatever_the_others_do() -> None:
    few, many = (list(SLOW.faults(number, 1_000.0, Seeds(3))) for number in (2, 8))

    assert [each for each in many if each.replica < 2] == few
    assert {each.at_s for each in few if each.replica == 0} != {each.at_s for each in few if each.replica == 1}


def test_another_seed_gives_other_times() -> None:
    assert list(SLOW.faults(2, 1_000.0, Seeds(1))) != list(SLOW.faults(2, 1_000.0, Seeds(2)))


@for_each(
    ("field", "value"),
    [
        ("share_of_time", 0.0),
        ("share_of_time", 1.0),
        ("for_s", 0.0),
        ("for_s", 1e-9),
        ("share_of_time", 1e-320),
        ("factor", 1.0),
        ("kind", FaultKind.CRASH),
    ],
)
def test_what_would_change_nothing_or_everything_is_refused(field: str, value: object) -> None:
    given = {"kind": FaultKind.SLOW, "role": Role.PREFILL, "share_of_time": 0.05, "for_s": 2.0, "factor": 10.0}

    with pytest.raises(ConfigError) as refused:
        Episodes(**{**given, field: value})  # type: ignore[arg-type]

    assert refused.value.field == field
