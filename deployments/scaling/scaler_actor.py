"""The scaler as a Ray actor: one for all gateways of a deployment, kept alive by Serve's controller.

No request waits for it. When it dies, pools keep their sizes until the controller has started another one, which knows
gateways' demand from their next reports on.
"""

import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve.config import DeploymentActorConfig

from cluster.clock import MonotonicClock
from cluster.scaled_pools import PoolSize
from cluster.scaler import Scaler, scaling_policy
from deployments.config import AppConfig
from deployments.configuration.models import Models, dumped, read
from deployments.scaling.serve_replicas import ServeReplicas
from deployments.wire.serve_internals import check_external_scaler
from policies.capacity.bounds import Bound, added_up, what_binds
from policies.pool_views import PoolLoad

LOGGER = logging.getLogger("ray.serve")
SCALER = "scaler"
"""The actor's name within the deployment."""


@ray.remote
class ScalerActor:
    """Hears gateways, and asks each model's policy once in a period.

    Args:
        models: Those whose pools' sizes may change, as :func:`deployments.configuration.models.dumped` dumps them.

    Raises:
        ConfigError: Serve would not let it change a pool's size.
    """

    def __init__(self, models: Sequence[dict[str, Any]]) -> None:
        application = serve.get_deployment_actor_context().app_name
        check_external_scaler(application)
        self._scalers = {each.model.id: _ModelScaler(application, each) for each in read(models)}

    def hear(
        self, gateway: str, model: str, loads: Mapping[str, PoolLoad], spent_s: Mapping[Bound, float]
    ) -> Mapping[str, PoolSize]:
        """What a gateway has for a model's pools; what they had when the policy was asked last.

        See :meth:`cluster.scaler.Scaler.hear`; ``spent_s`` is what its requests spent their time on of late.
        """
        return self._scalers[model].hear(gateway, loads, spent_s)


class _ModelScaler:
    """Asks the policy of one model, in a thread of its own: Serve's controller may hang."""

    def __init__(self, application: str, config: AppConfig) -> None:
        self._clock = MonotonicClock()
        self._period_s = config.scaling_period_s
        pools = config.scaled_pools()
        self._replicas = ServeReplicas(application, pools)
        policy = scaling_policy(config.dispatcher_spec(), config.provided, config.gateway.seed)
        self._scaler = Scaler(policy, pools, self._replicas, self._clock.now_s())
        self._spent_s: dict[str, Mapping[Bound, float]] = {}
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        threading.Thread(target=self._run, name=f"scaler of {config.model.id}", daemon=True).start()

    def hear(
        self, gateway: str, loads: Mapping[str, PoolLoad], spent_s: Mapping[Bound, float]
    ) -> Mapping[str, PoolSize]:
        with self._lock:
            self._spent_s[gateway] = spent_s
            self._scaler.hear(gateway, loads, self._clock.now_s())
            return self._replicas.sizes

    def _run(self) -> None:
        while not self._is_over.wait(self._period_s):
            try:
                self._replicas.refresh(self._clock.now_s())
                with self._lock:
                    self._scaler.look(self._clock.now_s())
                    spent_s, self._spent_s = self._spent_s, {}
                if self._replicas.wanted:
                    LOGGER.info("%s", what_binds(added_up(spent_s.values())))
                self._replicas.apply()
            except RayError as error:
                LOGGER.warning("the pools keep their sizes: %s: %s", type(error).__name__, str(error))
            except Exception:
                LOGGER.exception("the pools keep their sizes")


def scaler_actors(models: Models) -> list[DeploymentActorConfig]:
    """The actors that the gateways' deployment has; none where no pool's size may change."""
    scaled = tuple(each for each in models if each.policies.spec().is_scaled)
    if not scaled:
        return []
    where, given = f"{__name__}:ScalerActor", (dumped(scaled),)
    return [DeploymentActorConfig(name=SCALER, actor_class=where, init_args=given, actor_options={"num_cpus": 0})]
