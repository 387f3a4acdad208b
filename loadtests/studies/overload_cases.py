"""What ``loadtests.studies.overload`` overloads: deployments, users, and the policies that they are tried with."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from loadtests.machine.systems import ROOT
from loadtests.results.slo import ClassSlo
from loadtests.workloads.arrivals import Poisson
from loadtests.workloads.lengths import Constant
from loadtests.workloads.workload import TrafficClass, Workload

NONE = "none"
POLICIES: Mapping[str, Mapping[str, Any]] = {
    NONE: {"admission": "always_admit", "queueing": "fcfs"},
    "bounded_queue": {"admission": "bounded_queue", "queueing": "fcfs"},
    "codel": {"admission": "codel", "queueing": "fcfs"},
    "concurrency_limit": {"admission": "concurrency_limit", "queueing": "fcfs"},
    "deadline": {"admission": "deadline", "queueing": "edf"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Users:
    """One kind of request: how many of all, and how long.

    Args:
        name: The traffic class.
        share: Of all requests.
        prompt_tokens: Length of each prompt.
        output_tokens: Length of each answer.
    """

    name: str
    share: float
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OverloadCase:
    """What is overloaded.

    Args:
        config: File in ``deployments/configs``.
        users: Who sends.
        slo: What counts as good.
        engine: Laid over the configuration's ``engine``.
        prefill_window_tokens: Of the gateway.
        flood_rps: More than it can serve, to find its capacity.
        flood_s: For so long.
        goodput: Least goodput over offered requests that ``deadline`` must reach, by load.
        kept_fraction: Least share of those admitted by ``deadline`` that must be good, by load.
        pins: Whether engines get core 0 to themselves and everything else, this client included, has core 1: where a
            gateway has to take turns with an engine, what is measured is the wait for the processor.
    """

    config: str
    users: Sequence[Users]
    slo: ClassSlo
    engine: Mapping[str, Any]
    prefill_window_tokens: int
    flood_rps: float
    flood_s: float
    goodput: Mapping[float, float]
    kept_fraction: Mapping[float, float]
    pins: bool = False


CASES = {
    "emulated": OverloadCase(
        config="emulated.yaml",
        users=(Users(name="chat", share=1.0, prompt_tokens=1200, output_tokens=60),),
        slo=ClassSlo(ttft_s=2.0),
        engine={"emulation": {"profile": "h100-llama3-8b", "speed": 0.15, "mean_output_tokens": 200}},
        prefill_window_tokens=8192,
        flood_rps=80.0,
        flood_s=25.0,
        goodput={},
        kept_fraction={3.0: 0.95},
    ),
    "vllm": OverloadCase(
        config="unified-vllm.yaml",
        users=(
            Users(name="short", share=0.9, prompt_tokens=20, output_tokens=32),
            Users(name="long", share=0.1, prompt_tokens=4000, output_tokens=32),
        ),
        slo=ClassSlo(ttft_s=1.0, tpot_s=0.2),
        engine={"profile": "vllm-cpu-tiny"},
        prefill_window_tokens=4096,
        flood_rps=24.0,
        flood_s=40.0,
        goodput={1.5: 0.57, 3.0: 0.28},
        kept_fraction={},
        pins=True,
    ),
}


def document_of(case: OverloadCase, policy: str) -> dict[str, Any]:
    """The configuration with a policy; all policies have the same lane, window and length prediction."""
    document: dict[str, Any] = yaml.safe_load((ROOT / "deployments" / "configs" / case.config).read_text())
    args = document["applications"][0]["args"]
    args["engine"] = {**args["engine"], **copy.deepcopy(dict(case.engine))}
    args["gateway"] = {**args.get("gateway", {}), "prefill_window_tokens": case.prefill_window_tokens}
    lane = {"name": "all", "pools": [pool["name"] for pool in args["pools"]], "ttft_slo_s": case.slo.ttft_s}
    args["policies"] = {
        **args["policies"],
        **POLICIES[policy],
        "length_prediction": "log2_histogram",
        "lanes": {"lanes": [lane]},
    }
    return document


def workload_of(case: OverloadCase, requests_per_s: float, duration_s: float) -> Workload:
    """All users of a case together."""
    classes = tuple(
        TrafficClass(
            name=users.name,
            arrivals=Poisson(rate_per_s=users.share * requests_per_s),
            prompt_tokens=Constant(num_tokens=users.prompt_tokens),
            output_tokens=Constant(num_tokens=users.output_tokens),
            timeout_s=30.0,
        )
        for users in case.users
    )
    return Workload(classes=classes, duration_s=duration_s)
