"""How large a part of the demand is shed: what follows from the demand, put right by what the queues say."""

from policies.errors import ConfigError
from policies.load_reports import ControlLaw, FleetEstimate
from policies.params import SHEDDING

MOST_FRACTION = 0.98
MOST_ERROR = 0.5
"""Of the wait, in targets: a queue that is full drains as fast as a small correction drains it, and no faster."""
MOST_INTEGRAL = 0.2
PERIODS_OF_DELAY = 2.0
"""From something's happening to its effect: half a period until it is reported, half until others hear, and one over
which the reports are means."""
PHASE_PROPORTIONAL = 0.52
PHASE_INTEGRAL = 0.27
"""With these a loop of a queue and a delay has 45 degrees of phase margin."""
FIELD = "policies.shedding.params"


def check_law(law: ControlLaw, most_load: float) -> None:
    """Whether the loop is stable up to a load.

    A queue that is ``most_load`` times its service rate is offered is an integrator with a delay; its crossover is at
    ``most_load * proportional_gain / target_s``.

    Args:
        law: The gains.
        most_load: Demand over capacity, at the most.

    Raises:
        ConfigError: A number out of range, or a gain beyond the bound.
    """
    for name in ("period_s", "target_s", "salt_period_s"):
        SHEDDING.check_positive(name, getattr(law, name))
    SHEDDING.check_positive("most_load", most_load)
    delay_s = PERIODS_OF_DELAY * law.period_s
    bound = PHASE_PROPORTIONAL * law.target_s / (most_load * delay_s)
    gain = law.proportional_gain
    if not 0 <= gain <= bound:
        allowed = f"0 to {bound:.3g}: more is unstable at {most_load:g} times the capacity"
        raise ConfigError(f"{FIELD}.proportional_gain", gain, allowed)
    crossover_per_s = most_load * gain / law.target_s
    bound = PHASE_INTEGRAL * gain * crossover_per_s
    if not 0 <= law.integral_gain_per_s <= bound:
        allowed = f"0 to {bound:.3g}: more is unstable at {most_load:g} times the capacity"
        raise ConfigError(f"{FIELD}.integral_gain_per_s", law.integral_gain_per_s, allowed)


def error_of(estimate: FleetEstimate) -> float:
    """By how much waits are above the target, in targets; below 0 when they are shorter."""
    return min(estimate.wait_ratio - 1.0, MOST_ERROR)


def fraction_of(estimate: FleetEstimate, law: ControlLaw) -> float:
    """The part of all work that is to go now, 0 to 1.

    What is offered over what can be done says it exactly as long as both are known; the wait says by how much they are
    not.
    """
    demand_per_s = sum(estimate.demand_per_s)
    if demand_per_s <= 0.0:
        return 0.0
    wanted = 1.0 - estimate.capacity_per_s / demand_per_s
    wanted += law.proportional_gain * error_of(estimate) + estimate.integral
    return min(MOST_FRACTION, max(0.0, wanted))


def integral_after(estimate: FleetEstimate, law: ControlLaw, passed_s: float) -> float:
    """The integral when ``passed_s`` have passed; it stands still while the fraction is at its bounds."""
    step = law.integral_gain_per_s * passed_s * error_of(estimate)
    fraction = fraction_of(estimate, law)
    if (fraction <= 0.0 and step < 0.0) or (fraction >= MOST_FRACTION and step > 0.0):
        return estimate.integral
    return min(MOST_INTEGRAL, max(-MOST_INTEGRAL, estimate.integral + step))
