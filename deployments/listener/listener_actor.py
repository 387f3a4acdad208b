"""A node's listener as a Ray actor. Gateways start it, and start it again; it ends by itself when there are none."""

import ray
from ray import serve
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from deployments.listener.acceptor import NoListener
from deployments.listener.address import Address
from deployments.listener.listener import Listener

NAMESPACE = "spillway"


@ray.remote(num_cpus=0, max_concurrency=100)
class ListenerActor:
    """Runs a listener for as long as there are gateways.

    Args:
        address: Where clients connect.
    """

    def __init__(self, address: Address) -> None:
        self._listener = Listener(address)
        self._is_running = False

    async def run(self) -> None:
        """Listens, and ends this process afterwards; a second call changes nothing."""
        if self._is_running:
            return
        self._is_running = True
        try:
            await self._listener.run()
        finally:
            ray.actor.exit_actor()


def address_of(host: str, port: int) -> Address:
    """Where this application takes requests; another one gets nothing of its socket."""
    cluster, application = ray.get_runtime_context().gcs_address, serve.get_replica_context().app_name
    return Address(host, port, f"{cluster} {application}")


def ensure_listener(address: Address) -> None:
    """Starts the listener of this node if there is none; in a gateway.

    Raises:
        NoListener: Ray can't start it now.
    """
    try:
        _start(address)
    except Exception as error:  # Ray's own, and those of a cluster that is just being started anew
        raise NoListener(f"Ray starts no actor: {error}") from error


def _start(address: Address) -> None:
    node = ray.get_runtime_context().get_node_id()
    actor = ListenerActor.options(  # type: ignore[attr-defined]
        name=f"listener-{node}-{address.meeting_point()[-32:]}",
        namespace=NAMESPACE,
        get_if_exists=True,
        lifetime="detached",
        scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
    ).remote(address)
    actor.run.remote()
