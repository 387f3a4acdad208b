"""A change of the adapters that a model has: told to all of its replicas, or to none."""

import asyncio
import logging
import math
from collections.abc import Mapping, Sequence

from ray.serve.handle import DeploymentHandle

from deployments.adapters.registry import AdapterRegistry
from deployments.wire.handle_calls import UNANSWERED
from deployments.wire.serve_internals import use_own_internal_request_id
from engines.contract import Adapter
from policies.errors import RequestInvalid

LOGGER = logging.getLogger("ray.serve")
CALL_PATIENCE_S = 60.0
"""How long a replica may take to load an adapter, from wherever that is."""


class AdapterLoading:
    """Has a model's replicas load and unload adapters.

    Args:
        registry: The gateway's; it has a change once the replicas have.
        pools: The handle of each pool, by name.
    """

    def __init__(self, registry: AdapterRegistry, pools: Mapping[str, DeploymentHandle]) -> None:
        self._registry = registry
        self._callers = {name: handle.options(_by_reference=False) for name, handle in pools.items()}

    async def load(self, adapter: Adapter, replicas: Mapping[str, Sequence[str]], at_unix_s: float) -> None:
        """Loads an adapter at every replica that can be reached; others load it with their first request for it.

        Args:
            adapter: Which.
            replicas: Ids of those that there are, by pool.
            at_unix_s: Now.

        Raises:
            RequestInvalid: A replica can't load it; it is unloaded where it was.
        """
        answers = await self._tell_all(adapter, replicas, at_unix_s)
        refused = next((each for each in answers if each is not None), None)
        if refused is not None:
            before = self._registry.get(adapter.name)
            taken_back_s = math.nextafter(at_unix_s, math.inf)  # a later word than those that have loaded it go by
            await self.unload(adapter.name, replicas, taken_back_s, path=before.path)
            raise refused
        self._registry.say(adapter.name, adapter.path, at_unix_s)

    async def unload(
        self, name: str, replicas: Mapping[str, Sequence[str]], at_unix_s: float, *, path: str = ""
    ) -> None:
        """Has replicas forget an adapter, or go back to where it was before; requests that have it finish."""
        await self._tell_all(Adapter(name, path), replicas, at_unix_s)
        self._registry.say(name, path, at_unix_s)

    async def _tell_all(
        self, adapter: Adapter, replicas: Mapping[str, Sequence[str]], at_unix_s: float
    ) -> list[RequestInvalid | None]:
        """What each of them says."""
        told = [(pool, replica) for pool, ids in replicas.items() for replica in ids]
        return await asyncio.gather(*(self._tell(*each, adapter, at_unix_s) for each in told))

    async def _tell(self, pool: str, replica: str, adapter: Adapter, at_unix_s: float) -> RequestInvalid | None:
        """Why a replica can't, if it said so; one that says nothing will hear of it from others."""
        use_own_internal_request_id()  # by which Ray's router tells one call of a client's request from another
        call = self._callers[pool].change_adapter
        said = call.remote(adapter.name, adapter.path, at_unix_s, target=replica)
        try:
            refused: str = await asyncio.wait_for(said, CALL_PATIENCE_S)
        except UNANSWERED as error:
            LOGGER.warning("pool %s: replica %s was not told of %s: %s", pool, replica, adapter, type(error).__name__)
            return None
        return RequestInvalid(refused, "lora_path") if refused else None
