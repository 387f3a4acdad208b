"""The load coordinator adds up, says the same to everybody, and knows after a restart what it knew before."""

from dataclasses import replace
from typing import Any

import pytest

from cluster.load_coordinator.capacity import FleetCapacity
from cluster.load_coordinator.coordinator import LoadCoordinator
from policies.load_reports import NO_THRESHOLDS, NUM_CLASSES, AdmissionThresholds, ControlLaw, LoadReport
from tests.tables import for_each

LAW = ControlLaw(period_s=0.25, target_s=0.5, proportional_gain=0.1, integral_gain_per_s=0.01, salt_period_s=1800.0)
GATEWAYS = ("a", "b", "c", "d")
REPLICAS = 4


def report(
    load: float,
    known: AdmissionThresholds = NO_THRESHOLDS,
    *,
    wait_ratio: float = 1.0,
    per_session: float = 1.0,
    **more: Any,
) -> LoadReport:
    """A quarter of what comes to a fleet that does four service-seconds a second, all of the class ``standard``.

    With ``per_session``, sessions are so many times their first requests.
    """
    demand = 0.25 * load * REPLICAS / len(GATEWAYS) / per_session
    first = demand * (1.0 - known.by_class[1])
    return LoadReport(
        **{
            "interval_s": 0.25,
            "demand_s": (0.0, demand, 0.0),
            "first_s": (0.0, first, 0.0),
            "num_first": 40,
            "later_s": (0.0, 0.25 * (per_session - 1.0) / len(GATEWAYS), 0.0),
            "started_s": 0.25 * min(load, 1.0) * REPLICAS / len(GATEWAYS),
            "saturated_fraction": 1.0 if load > 1 else 0.1,
            "wait_ratio": wait_ratio,
            "num_replicas": REPLICAS,
            "law": LAW,
            "known": known,
            **more,
        }
    )


class Fleet:
    """Gateways that report in turn."""

    def __init__(
        self, coordinator: LoadCoordinator, now_s: float = 0.0, known: AdmissionThresholds = NO_THRESHOLDS
    ) -> None:
        self.coordinator = coordinator
        self.now_s = now_s
        self.known = dict.fromkeys(GATEWAYS, known)

    def run(self, seconds: float, load: float, **more: Any) -> AdmissionThresholds:
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            for number, gateway in enumerate(GATEWAYS):
                known = self.known[gateway]
                answer = self.coordinator.exchange(gateway, report(load, known, **more), self.now_s + 0.06 * number)
                self.known[gateway] = max(known, answer, key=lambda each: each.age)
            self.now_s += 0.25
        return self.known["a"]


def test_nobody_is_given_up_below_the_capacity() -> None:
    assert Fleet(LoadCoordinator()).run(10.0, 0.8, wait_ratio=0.1).by_class == (0.0, 0.0, 0.0)


@for_each(("load", "threshold"), [(1.5, 1 / 3), (2.0, 0.5), (3.0, 2 / 3)])
def test_what_is_more_than_the_capacity_is_given_up(load: float, threshold: float) -> None:
    assert Fleet(LoadCoordinator()).run(10.0, load).by_class[1] == pytest.approx(threshold, abs=0.03)


def test_a_step_is_answered_within_some_periods_and_without_overshoot() -> None:
    fleet = Fleet(LoadCoordinator())
    fleet.run(20.0, 0.8, wait_ratio=0.1)
    thresholds = [fleet.run(0.25, 3.0).by_class[1] for _ in range(40)]

    assert thresholds[20] == pytest.approx(2 / 3, abs=0.05)
    assert max(thresholds) <= 2 / 3 * 1.15


def test_sessions_count_in_full_when_they_begin() -> None:
    """Of four calls each, twice the capacity: their first ones alone are half of it."""
    assert Fleet(LoadCoordinator()).run(90.0, 2.0, per_session=4.0).by_class[1] == pytest.approx(0.5, abs=0.04)


def test_all_gateways_are_told_the_same() -> None:
    fleet = Fleet(LoadCoordinator())
    fleet.run(5.0, 2.0)
    thresholds = [each.by_class[1] for each in fleet.known.values()]

    assert max(thresholds) - min(thresholds) < 0.01
    assert len({each.salt for each in fleet.known.values()}) == 1


def test_answers_are_numbered_and_hold_for_three_periods() -> None:
    coordinator = LoadCoordinator()
    answers = [coordinator.exchange("a", report(1.0), 0.25 * number) for number in range(3)]

    assert [each.version for each in answers] == [1, 2, 3]
    assert {each.valid_for_s for each in answers} == {0.75}


def test_a_ledger_that_starts_anew_goes_on_from_what_gateways_know() -> None:
    fleet = Fleet(LoadCoordinator())
    before = fleet.run(60.0, 2.0, per_session=4.0)
    fleet.coordinator = LoadCoordinator()
    first = fleet.run(0.25, 2.0, per_session=4.0)

    assert first.epoch == before.epoch + 1
    assert first.salt == before.salt
    assert first.by_class[1] == pytest.approx(before.by_class[1], abs=0.05)
    assert first.estimate.work_per_session[1] == pytest.approx(before.estimate.work_per_session[1], rel=0.05)
    assert fleet.run(2.0, 2.0, per_session=4.0).by_class[1] == pytest.approx(0.5, abs=0.05)


def test_a_ledger_that_learns_of_a_later_one_has_nothing_to_say_any_more() -> None:
    earlier, later = LoadCoordinator(), LoadCoordinator()
    known = earlier.exchange("a", report(2.0), 0.0)
    newer = later.exchange("a", report(2.0, known), 1.0)

    assert newer.epoch > known.epoch
    assert earlier.exchange("a", report(2.0, newer), 2.0) == NO_THRESHOLDS
    assert earlier.exchange("b", report(2.0, known), 2.1) == NO_THRESHOLDS


def test_a_ledger_outbids_what_any_gateway_knows_when_the_first_to_report_knows_nothing() -> None:
    """A gateway that has just been started comes first, and the others know of an older load coordinator's later
    answers.
    """
    coordinator, known = LoadCoordinator(), AdmissionThresholds(epoch=3, version=5000, by_class=(0.0, 0.5, 0.9))
    coordinator.exchange("new", report(2.0), 0.0)
    answers = [coordinator.exchange("old", report(2.0, known), 0.1), coordinator.exchange("new", report(2.0), 0.2)]

    assert all(each.age > known.age for each in answers)


def test_a_ledger_of_the_same_epoch_does_not_wait_until_it_has_said_as_much() -> None:
    coordinator, known = LoadCoordinator(), AdmissionThresholds(epoch=1, version=5000)
    coordinator.exchange("new", report(2.0), 0.0)

    assert coordinator.exchange("old", report(2.0, known), 0.1).age > known.age


def test_a_ledger_that_is_still_asked_after_its_silence_is_the_only_one() -> None:
    coordinator, known = LoadCoordinator(), AdmissionThresholds(epoch=7, version=3)
    coordinator.exchange("a", report(2.0), 0.0)
    silent = [coordinator.exchange("b", report(2.0, known), at_s) for at_s in (2.0, 6.9)]

    assert silent == [NO_THRESHOLDS, NO_THRESHOLDS]
    assert coordinator.exchange("b", report(2.0, known), 7.1).age > known.age


def test_tickets_reach_every_other_gateway_once() -> None:
    coordinator = LoadCoordinator()
    for gateway in ("a", "b", "c"):
        coordinator.exchange(gateway, report(1.0), 0.0)
    assert coordinator.exchange("a", report(1.0, session_passes=(1, 2)), 0.1).session_passes == ()

    assert coordinator.exchange("b", report(1.0), 0.2).session_passes == (1, 2)
    assert coordinator.exchange("b", report(1.0), 0.3).session_passes == ()
    assert coordinator.exchange("c", report(1.0, session_passes=(3,)), 0.3).session_passes == (1, 2)


def test_a_gateway_that_reports_no_more_is_forgotten() -> None:
    coordinator = LoadCoordinator()
    coordinator.exchange("gone", report(1.0, wait_ratio=9.0), 0.0)
    early = coordinator.exchange("here", report(1.0, wait_ratio=1.0), 0.1)
    late = coordinator.exchange("here", report(1.0, wait_ratio=1.0), 5.0)

    assert (early.estimate.wait_ratio, late.estimate.wait_ratio) == (5.0, 1.0)


def test_the_salt_changes_when_its_time_is_over() -> None:
    coordinator = LoadCoordinator()
    salts = [coordinator.exchange("a", report(1.0), at_s).salt for at_s in (0.0, 1000.0, 1800.0, 1801.0, 3600.0)]

    assert salts == [0, 0, 1, 1, 2]


def test_capacity_is_one_for_each_replica_until_others_wait() -> None:
    capacity = FleetCapacity()
    capacity.add(replace(report(0.5), started_s=0.01), 4)

    assert capacity.per_s == REPLICAS


def test_capacity_is_what_is_sent_while_others_wait() -> None:
    capacity = FleetCapacity()
    for _ in range(400):
        capacity.add(replace(report(2.0), started_s=0.2), 4)

    assert capacity.per_s == pytest.approx(4 * 0.2 / 0.25, rel=0.02)


def test_every_class_has_a_cutoff() -> None:
    assert len(LoadCoordinator().exchange("a", report(1.0), 0.0).by_class) == NUM_CLASSES
