"""What a study file is made of, beside what it shares with a scenario."""

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from loadtests.results.checks import Check
from loadtests.scenario.scenario import ProfileName
from loadtests.schema.ranges import require, require_positive
from loadtests.schema.reading import Located, Strict
from loadtests.workloads.clients import Retries
from loadtests.workloads.config import WorkloadConfig

SIMULATED = ", simulated"
"""What follows a variant's name where its runs in virtual time are meant."""


class Cores(Strict):
    """Which cores are whose: a gateway that takes turns with an engine measures the wait for the processor.

    Args:
        engines: The engines'.
        others: Everything else's, the client's included.
    """

    engines: tuple[Annotated[int, Field(ge=0)], ...]
    others: tuple[Annotated[int, Field(ge=0)], ...]


class DeploymentConfig(Strict):
    """What serves.

    Args:
        config: A file in ``deployments/configs``, or a path.
        args: Laid over the file's ``args``; see :func:`loadtests.live.configuration.laid_over`.
        cores: Where processes are pinned; without it all share all cores.
    """

    config: str
    args: dict[str, Any] = Field(default_factory=dict)
    cores: Cores | None = None


class Variant(Strict):
    """What a variant has of its own.

    Args:
        args: Laid over the deployment's.
        proxy_location: In place of the file's: ``Disabled`` for gateways that take requests themselves.
        nodes: Ray nodes, all on this machine; those after the first have the resource ``node1`` and so on.
        workload: In place of the study's.
        clients: Likewise.
        requests_per_s: The capacity that its loads are shares of, in place of the study's; not beside a flood.
        reads_bytes_per_s: How fast clients read answers; as fast as they come when not given.
        reconnects: Whether a client whose connection breaks comes back once, for the rest of its answer.
        driver: ``asyncio``, or ``vllm_bench``: vLLM's own load generator.
    """

    args: dict[str, Any] = Field(default_factory=dict)
    proxy_location: Literal["HeadOnly", "EveryNode", "Disabled"] | None = None
    nodes: int = Field(default=1, ge=1, le=8)
    workload: WorkloadConfig | None = None
    clients: Annotated[Retries, Located()] | None = None
    requests_per_s: Annotated[float, Field(gt=0)] | None = None
    reads_bytes_per_s: Annotated[float, Field(gt=0)] = math.inf
    reconnects: bool = False
    driver: Literal["asyncio", "vllm_bench"] = "asyncio"


class Simulated(Strict):
    """Each variant in virtual time.

    Args:
        profile: Of all engines, by name or path.
    """

    profile: ProfileName


@dataclass(frozen=True, slots=True, kw_only=True)
class Flood:
    """How the capacity is found: what is completed of far more than can be.

    Arrivals are a Poisson process, and nobody in a conversation stops to think, or the flood would not rise.

    Args:
        requests_per_s: What is sent.
        for_s: For so long.
        settles_s: Completions count from then on.
        variant: Which is flooded; without it each is, and has a capacity of its own.
    """

    requests_per_s: float
    for_s: float
    settles_s: float
    variant: str | None = None

    def __post_init__(self) -> None:
        require_positive("requests_per_s", self.requests_per_s)
        require_positive("for_s", self.for_s)
        require(0 <= self.settles_s < self.for_s, "settles_s", self.settles_s, f"less than for_s, {self.for_s:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Usual:
    """What comes before the load, while policies learn what is usual.

    Args:
        load: Share of the capacity.
        for_s: From the run's beginning.
    """

    load: float
    for_s: float

    def __post_init__(self) -> None:
        require_positive("load", self.load)
        require_positive("for_s", self.for_s)


class StudyCheck(Check):
    """A scenario's check, of one variant or each, at one load or each.

    Args:
        variant: Whose metric; without it that of every variant but the one in ``against``. ``NAME, simulated`` is a
            variant's runs in virtual time, here and in ``against``.
        simulated: Compare the variant's runs in virtual time, or each variant's, with its others.
        load: At which load; without it at every one.
    """

    variant: str | None = None
    simulated: bool = False
    load: float | None = None

    def of_counterpart(self, variant: str) -> "StudyCheck":
        """One that is ``simulated``, of one variant."""
        return self.model_copy(update={"variant": f"{variant}{SIMULATED}", "against": variant, "simulated": False})
