"""The ledger as a Ray actor: one for all gateways of a deployment, kept alive by Serve's controller.

No request waits for it. When it dies, the controller notices within some seconds and starts another one, which learns
from the gateways what the one before knew.
"""

import ray
from ray.serve.config import DeploymentActorConfig

from cluster.clock import MonotonicClock
from cluster.ledger.ledger import LoadLedger
from policies.coordination import Cutoffs, LoadReport

LEDGER = "ledger"
"""The actor's name within the deployment."""


@ray.remote
class LedgerActor:
    """Answers gateways' reports, one after the other."""

    def __init__(self) -> None:
        self._ledger = LoadLedger()
        self._clock = MonotonicClock()

    def exchange(self, gateway: str, report: LoadReport) -> Cutoffs:
        """What the gateway is to go by; see :meth:`cluster.ledger.ledger.LoadLedger.exchange`."""
        return self._ledger.exchange(gateway, report, self._clock.now_s())


def ledger_actors(is_wanted: bool) -> list[DeploymentActorConfig]:
    """The actors that the gateways' deployment has."""
    if not is_wanted:
        return []
    where = f"{__name__}:LedgerActor"
    return [DeploymentActorConfig(name=LEDGER, actor_class=where, actor_options={"num_cpus": 0})]
