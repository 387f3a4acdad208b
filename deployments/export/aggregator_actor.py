"""The metrics aggregator as a Ray actor: one for all gateways of a deployment, kept alive by Serve's controller.

An aggregator that dies takes nothing with it: the next one has every gateway's counts as soon as each has told it once.
"""

import ray
from ray.serve.config import DeploymentActorConfig

from cluster.clock import MonotonicClock
from deployments.telemetry.aggregation import ByModel, MetricsAggregator, Snapshot
from deployments.telemetry.summary import SummaryByModel

AGGREGATOR = "metrics-aggregator"
"""The actor's name within the deployment."""


@ray.remote
class AggregatorActor:
    """Takes gateways' counts in and makes pages of them, off the gateways' event loops."""

    def __init__(self) -> None:
        self._aggregator = MetricsAggregator()
        self._clock = MonotonicClock()

    def put(self, gateway: str, own: ByModel) -> None:
        """See :meth:`deployments.telemetry.aggregation.MetricsAggregator.put`."""
        self._aggregator.put(gateway, own, self._clock.now_s())

    def page(self, gateway: str, snapshot: Snapshot) -> bytes:
        """See :meth:`deployments.telemetry.aggregation.MetricsAggregator.page`."""
        return self._aggregator.page(gateway, snapshot, self._clock.now_s())

    def summaries(self, gateway: str, own: SummaryByModel) -> dict[str, SummaryByModel]:
        """See :meth:`deployments.telemetry.aggregation.MetricsAggregator.summaries`."""
        return self._aggregator.summaries(gateway, own, self._clock.now_s())


def aggregator_actors(num_gateways: int) -> list[DeploymentActorConfig]:
    """The actors that the gateways' deployment has; a gateway by itself needs none."""
    if num_gateways == 1:
        return []
    where = f"{__name__}:AggregatorActor"
    return [DeploymentActorConfig(name=AGGREGATOR, actor_class=where, actor_options={"num_cpus": 0})]
