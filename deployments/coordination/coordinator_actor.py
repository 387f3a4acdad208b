"""The load coordinator as a Ray actor: one for all gateways of a deployment, kept alive by Serve's controller.

No request waits for it. When it dies, the controller notices within some seconds and starts another one, which learns
from the gateways what the one before knew.
"""

from collections import defaultdict

import ray
from ray.serve.config import DeploymentActorConfig

from cluster.clock import MonotonicClock
from cluster.load_coordinator.coordinator import LoadCoordinator
from policies.load_reports import AdmissionThresholds, LoadReport
from routing.request.news import GatewayNews

LOAD_COORDINATOR = "load-coordinator"
"""The actor's name within the deployment."""


@ray.remote
class CoordinatorActor:
    """Answers gateways' reports, one after the other. What concerns one model is no other's affair."""

    def __init__(self) -> None:
        self._coordinators: defaultdict[str, LoadCoordinator] = defaultdict(LoadCoordinator)
        self._clock = MonotonicClock()

    def exchange(self, gateway: str, model: str, report: LoadReport) -> AdmissionThresholds:
        """What the gateway is to go by; see :meth:`cluster.load_coordinator.coordinator.LoadCoordinator.exchange`."""
        return self._coordinators[model].exchange(gateway, report, self._clock.now_s())

    def share(self, gateway: str, model: str, news: GatewayNews) -> GatewayNews:
        """What is new with other gateways; see :meth:`cluster.load_coordinator.news.NewsRelay.exchange`."""
        return self._coordinators[model].news.exchange(gateway, news, self._clock.now_s())


def coordinator_actors(is_wanted: bool) -> list[DeploymentActorConfig]:
    """The actors that the gateways' deployment has."""
    if not is_wanted:
        return []
    where = f"{__name__}:CoordinatorActor"
    return [DeploymentActorConfig(name=LOAD_COORDINATOR, actor_class=where, actor_options={"num_cpus": 0})]
