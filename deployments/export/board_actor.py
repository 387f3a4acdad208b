"""The board of metrics as a Ray actor: one for all gateways of a deployment, kept alive by Serve's controller.

A board that dies takes nothing with it: the next one has every gateway's counts as soon as each has told it once.
"""

from collections.abc import Sequence

import ray
from prometheus_client.core import Metric
from ray.serve.config import DeploymentActorConfig

from cluster.clock import MonotonicClock
from deployments.telemetry.board import MetricsBoard, Snapshot
from deployments.telemetry.digest import GatewayDigest

BOARD = "metrics-board"
"""The actor's name within the deployment."""


@ray.remote
class BoardActor:
    """Takes gateways' counts in and makes pages of them, off the gateways' event loops."""

    def __init__(self) -> None:
        self._board = MetricsBoard()
        self._clock = MonotonicClock()

    def put(self, gateway: str, own: Sequence[Metric]) -> None:
        """See :meth:`deployments.telemetry.board.MetricsBoard.put`."""
        self._board.put(gateway, own, self._clock.now_s())

    def page(self, gateway: str, snapshot: Snapshot) -> bytes:
        """See :meth:`deployments.telemetry.board.MetricsBoard.page`."""
        return self._board.page(gateway, snapshot, self._clock.now_s())

    def digests(self, gateway: str, own: GatewayDigest) -> dict[str, GatewayDigest]:
        """See :meth:`deployments.telemetry.board.MetricsBoard.digests`."""
        return self._board.digests(gateway, own, self._clock.now_s())


def board_actors(num_gateways: int) -> list[DeploymentActorConfig]:
    """The actors that the gateways' deployment has; a gateway by itself needs none."""
    if num_gateways == 1:
        return []
    where = f"{__name__}:BoardActor"
    return [DeploymentActorConfig(name=BOARD, actor_class=where, actor_options={"num_cpus": 0})]
