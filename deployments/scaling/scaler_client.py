"""A gateway's reports to the scaler: what it has for each pool, every so often.

What goes wrong here is no error: a scaler that does not answer is started anew by Serve, and pools keep their sizes
until then.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from ray import serve

from cluster.scaled_pools import PoolSize
from deployments.scaling.scaler_actor import SCALER
from deployments.wire.actor_client import ActorClient, NoAnswerError
from policies.capacity.bounds import Bound
from policies.pool_views import PoolLoad

PERIOD_S = 1.0
"""Between two reports."""
PATIENCE_S = 2.0
"""An answer that takes longer is as good as lost."""


class ScalerClient:
    """Reports once in a period, one report at a time.

    Args:
        gateway: Names this gateway to the scaler.
        model: Whose pools these are.
        loads: Gives what this gateway has for each pool.
        spent_s: Gives what its requests spent their time on of late, which the scaler says when it changes a size.
        find: Gives a handle of the scaler's actor; blocks; see :class:`deployments.wire.actor_client.ActorClient`.
        period_s: Pause between an answer and the next report, seconds.
    """

    def __init__(
        self,
        gateway: str,
        model: str,
        loads: Callable[[], Mapping[str, PoolLoad]],
        spent_s: Callable[[], Mapping[Bound, float]],
        *,
        find: Callable[[], Any] = lambda: serve.get_deployment_actor(SCALER),
        period_s: float = PERIOD_S,
    ) -> None:
        self._gateway = gateway
        self._model = model
        self._loads = loads
        self._spent_s = spent_s
        self._period_s = period_s
        self._scaler = ActorClient("the scaler", find)
        self._sizes: Mapping[str, PoolSize] = {}
        self._task = asyncio.get_running_loop().create_task(self._run())

    def close(self) -> None:
        """Nothing is reported any more."""
        self._task.cancel()

    @property
    def targets(self) -> Mapping[str, int]:
        """Replicas that pools have or will have, as far as the scaler says."""
        return {pool: size.num_replicas for pool, size in self._sizes.items()}

    def gauges(self) -> dict[str, float]:
        """What pools had when the policy was asked last, as :class:`deployments.telemetry.collectors` takes it."""
        said: dict[str, float] = {f"target_replicas:{pool}": number for pool, number in self.targets.items()}
        for pool, size in self._sizes.items():
            said[f"starting_replicas:{pool}"] = size.num_starting
            said[f"draining_replicas:{pool}"] = size.num_draining
            said[f"warm_replicas:{pool}"] = size.num_warm
            said[f"changing_replicas:{pool}"] = size.num_changing
        return said

    async def _run(self) -> None:
        while True:
            try:
                told = self._gateway, self._model, self._loads(), self._spent_s()
                self._sizes = await self._scaler.ask("hear", *told, patience_s=PATIENCE_S)
            except NoAnswerError:
                self._sizes = {}
            await asyncio.sleep(self._period_s)


class NoScaler:
    """For gateways whose pools keep their sizes."""

    targets: ClassVar[Mapping[str, int]] = {}

    def close(self) -> None:
        """Nothing was reported."""

    def gauges(self) -> dict[str, float]:
        """Nothing that the fleet does not say itself."""
        return {}
