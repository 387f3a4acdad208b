"""What gateways tell the load coordinator of their load, and what it tells them: the only state that they share.

Exchanged every so often beside the requests' way, never on it. All numbers are for one gateway and one period, so a
report that is lost costs a period and nothing else.
"""

from dataclasses import dataclass

from policies.views import Priority

NUM_CLASSES = len(Priority)
PerClass = tuple[float, ...]
"""A number for each class, in the order of :class:`policies.views.Priority`."""
NOTHING_PER_CLASS: PerClass = (0.0,) * NUM_CLASSES


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlLaw:
    """How the load coordinator comes to its admission thresholds; see :mod:`policies.shedding.fraction_law`.

    Args:
        period_s: Between two exchanges of a gateway.
        target_s: How long requests may wait.
        proportional_gain: Fraction that is shed on top, for each ``target_s`` that the wait is above its target.
        integral_gain_per_s: The same for every second in which it is.
        salt_period_s: How long who is shed first is shed first.
    """

    period_s: float
    target_s: float
    proportional_gain: float
    integral_gain_per_s: float
    salt_period_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetEstimate:
    """What a load coordinator has learned; gateways keep it for the next one.

    Args:
        demand_per_s: Service-seconds a second that would come if nobody were shed, by class, sessions in full.
        first_per_s: Service-seconds a second of first requests that are let in, by class.
        work_per_session: Work of whole sessions over that of their first requests, by class; 1 without sessions.
        capacity_per_s: Service-seconds a second that the fleet does.
        integral: Of the control law.
        wait_ratio: How long requests wait, over the target.
    """

    demand_per_s: PerClass = NOTHING_PER_CLASS
    first_per_s: PerClass = NOTHING_PER_CLASS
    work_per_session: PerClass = (1.0,) * NUM_CLASSES
    capacity_per_s: float = 0.0
    integral: float = 0.0
    wait_ratio: float = 0.0


UNKNOWN_FLEET = FleetEstimate()


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionThresholds:
    """Who is shed, the same for every gateway: who ranks below the admission threshold of its class.

    Args:
        epoch: Of the load coordinator; one that was started later has a higher one.
        version: Counts within the epoch.
        valid_for_s: How long a gateway goes by them, from when they arrive.
        salt: Decides where in [0, 1) each session ranks.
        by_class: The admission thresholds, 0 to 1.
        estimate: What they follow from.
        session_passes: Sessions that other gateways have let in since the last exchange.
    """

    epoch: int = 0
    version: int = 0
    valid_for_s: float = 0.0
    salt: int = 0
    by_class: PerClass = NOTHING_PER_CLASS
    estimate: FleetEstimate = UNKNOWN_FLEET
    session_passes: tuple[int, ...] = ()

    @property
    def age(self) -> tuple[int, int]:
        """Orders admission thresholds: what is newer is greater."""
        return self.epoch, self.version


NO_THRESHOLDS = AdmissionThresholds()
"""Before there was a load coordinator: nobody is shed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """What one gateway has seen since its last report. Work is in service-seconds of requests' first stages.

    Args:
        interval_s: How long a time it is about.
        demand_s: Work of requests that were let in and are nobody's later ones, by class, each divided by the share of
            its class that is let in: what would have come in if nobody had been shed, retries not counted.
        first_s: Work of the same requests as it is.
        num_first: How many they were.
        later_s: Work of sessions' later requests, by class, each divided by the ``first_per_s`` that was known when
            its session began: whether many sessions or few begin, a second of it is what sessions bring on top.
        started_s: Work that was sent to replicas.
        saturated_fraction: Of the requests that came, how many found others waiting, or were refused at intake.
        wait_ratio: How long requests have to wait, in the queue and in replicas, over the target; mean over those who
            came.
        num_replicas: Replicas that serve what it asks for.
        law: How the load coordinator is to come to admission thresholds.
        known: The admission thresholds that it goes by.
        session_passes: Sessions that it has let in.
    """

    interval_s: float
    demand_s: PerClass
    first_s: PerClass
    num_first: int
    later_s: PerClass
    started_s: float
    saturated_fraction: float
    wait_ratio: float
    num_replicas: int
    law: ControlLaw
    known: AdmissionThresholds = NO_THRESHOLDS
    session_passes: tuple[int, ...] = ()
