"""What the runs of a study send: its users at shares of a capacity."""

from dataclasses import replace
from typing import Any

from loadtests.drivers.live_run import LivePlan
from loadtests.live.study import Study
from loadtests.workloads.arrivals import FlashCrowd, Gamma, Poisson
from loadtests.workloads.clients import Retries
from loadtests.workloads.turns import ConstantThink, ConstantTurns, GeometricTurns
from loadtests.workloads.workload import TrafficClass


def run_plan(study: Study, variant: str, load: float, capacity_rps: float, seed: int) -> LivePlan:
    """What is sent in one run; no two runs share any text.

    Args:
        study: Which.
        variant: What of it serves.
        load: In capacities.
        capacity_rps: The capacity, requests per second.
        seed: Of the plan.
    """
    classes = _at_rate(study, variant, load * capacity_rps)
    if study.usual is not None:
        classes = tuple(_after_usual(study, each, load) for each in classes)
    title = study.name if len(study.loads) == 1 else f"{study.name}-{load:g}x"
    clients = study.variants[variant].clients or study.clients
    salt = f"{variant}/{load:g}/{seed}"
    return _plan(study, classes, seed, salt, variant=variant, name=title, clients=clients)


def steady_plan(
    study: Study, variant: str, requests_per_s: float, duration_s: float, salt: str, *, drain_s: float
) -> LivePlan:
    """The same users at a constant rate, without bursts, think times and client retries: a warm-up, or a flood.

    Args:
        study: Which.
        variant: What of it serves.
        requests_per_s: Of all classes together.
        duration_s: For how long.
        salt: Of the prompts.
        drain_s: How long answers are waited for; the rest is given up.
    """
    times: dict[str, Any] = {"duration_s": duration_s, "warm_up_s": 0.0, "windows": {}, "drain_s": drain_s}
    classes = tuple(map(_steady, _at_rate(study, variant, requests_per_s)))
    return _plan(study, classes, 0, salt, variant=variant, clients=Retries(), **times)


def _plan(
    study: Study, classes: tuple[TrafficClass, ...], seed: int, salt: str, *, variant: str, **changes: Any
) -> LivePlan:
    workload = study.workload.model_copy(update={"classes": classes})
    slos = {name: study.slos[name] for name in workload.class_names}
    return LivePlan(
        scenario=study.model_copy(update={**changes, "workload": workload, "slos": slos}),
        seed=seed,
        rate_fraction=1.0,
        classes=frozenset(workload.class_names),
        salt=salt,
        variant=variant,
    )


def _at_rate(study: Study, variant: str, requests_per_s: float) -> tuple[TrafficClass, ...]:
    """A variant's traffic classes at so many requests a second in all, each turn of a conversation being one."""
    classes = study.workload_of(variant).classes
    factor = requests_per_s / sum(_arrivals(each).rate_per_s * _mean_turns(each) for each in classes)
    return tuple(
        replace(each, arrivals=replace(_arrivals(each), rate_per_s=factor * _arrivals(each).rate_per_s))
        for each in classes
    )


def _steady(traffic_class: TrafficClass) -> TrafficClass:
    sessions = traffic_class.sessions
    if sessions is not None:
        sessions = replace(sessions, think=ConstantThink(duration_s=0.0))
    arrivals = Poisson(rate_per_s=_arrivals(traffic_class).rate_per_s)
    return replace(traffic_class, arrivals=arrivals, sessions=sessions)


def _after_usual(study: Study, traffic_class: TrafficClass, load: float) -> TrafficClass:
    assert study.usual is not None
    crowd = FlashCrowd(
        rate_per_s=_arrivals(traffic_class).rate_per_s * study.usual.load / load,
        factor=load / study.usual.load,
        from_s=study.usual.for_s,
        for_s=study.duration_s - study.usual.for_s,
    )
    return replace(traffic_class, arrivals=crowd)


def _arrivals(traffic_class: TrafficClass) -> Poisson | Gamma:
    assert isinstance(traffic_class.arrivals, Poisson | Gamma)
    return traffic_class.arrivals


def _mean_turns(traffic_class: TrafficClass) -> float:
    turns = traffic_class.sessions.turns if traffic_class.sessions else None
    if isinstance(turns, ConstantTurns):
        return turns.num_turns
    return turns.mean_turns if isinstance(turns, GeometricTurns) else 1.0
