"""What the runs of a study send: its users at shares of a capacity."""

from dataclasses import replace
from typing import Any

from loadtests.drivers.live_run import LivePlan
from loadtests.live.study import Study
from loadtests.workloads.arrivals import FlashCrowd
from loadtests.workloads.clients import Retries
from loadtests.workloads.turns import ConstantThink
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
    classes = tuple(_steady(each, study.duration_s) for each in _at_rate(study, variant, requests_per_s))
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
    users = study.workload_of(variant)
    return users.scaled(requests_per_s / users.requests_per_s(study.duration_s)).classes


def _steady(traffic_class: TrafficClass, duration_s: float) -> TrafficClass:
    """At a constant rate, and without a pause between the turns of a conversation."""
    steady, at_once = traffic_class.steady(duration_s), ConstantThink(duration_s=0.0)
    if steady.agents is not None:
        return replace(steady, agents=replace(steady.agents, tools=at_once))
    return steady if steady.sessions is None else replace(steady, sessions=replace(steady.sessions, think=at_once))


def _after_usual(study: Study, traffic_class: TrafficClass, load: float) -> TrafficClass:
    assert study.usual is not None
    crowd = FlashCrowd(
        rate_per_s=traffic_class.arrivals.mean_per_s(study.duration_s) * study.usual.load / load,
        factor=load / study.usual.load,
        from_s=study.usual.for_s,
        for_s=study.duration_s - study.usual.for_s,
    )
    return replace(traffic_class, arrivals=crowd)
