"""A load is told to all replicas, and taken back everywhere where one can't."""

import asyncio
from typing import Any

import pytest
from ray.exceptions import ActorDiedError
from ray.serve._private.common import DeploymentID
from ray.serve.exceptions import DeploymentUnavailableError

from deployments.adapters.loading import AdapterLoading
from deployments.adapters.registry import AdapterRegistry
from engines import NO_ADAPTER, Adapter
from policies.errors import RequestInvalid

REPLICAS = {"pool": ("a", "b")}


class Pool:
    """A pool's handle: each replica has a registry, and ``b`` can't load what is nowhere.

    Attributes:
        fails: With what calls of ``b`` end, if they do.
    """

    def __init__(self) -> None:
        self.fails: list[Exception] = []
        self.replicas = {name: AdapterRegistry([LISTED]) for name in REPLICAS["pool"]}

    def options(self, **_: Any) -> "Pool":
        return self

    @property
    def change_adapter(self) -> "Pool":
        return self

    async def remote(self, name: str, path: str, at_unix_s: float, *, target: str) -> str:
        if self.fails and target == "b":
            raise self.fails[0]
        if (target, path) == ("b", "/nowhere"):
            return "it is nowhere"
        self.replicas[target].say(name, path, at_unix_s)
        return ""


LISTED = Adapter("listed", "/adapters/listed")


class Told:
    """A gateway and its replicas."""

    def __init__(self) -> None:
        self.pool, self.gateway = Pool(), AdapterRegistry([LISTED])
        self._registries = [self.gateway, *self.pool.replicas.values()]
        self._loading: Any = AdapterLoading(self.gateway, {"pool": self.pool})

    def load(self, adapter: Adapter) -> None:
        asyncio.run(self._loading.load(adapter, REPLICAS, 100.0))

    def known(self, name: str) -> list[Adapter]:
        """What each of them has of that name, once all have heard of all."""
        for each in self._registries:
            for other in self._registries:
                each.hear(other.said())
        return [each.get(name) for each in self._registries]


def test_what_all_can_load_is_known_everywhere() -> None:
    told = Told()
    told.load(Adapter("more", "/more"))
    assert told.known("more") == [Adapter("more", "/more")] * 3


@pytest.mark.parametrize(
    "fails", [ActorDiedError(), DeploymentUnavailableError(DeploymentID("pool", "app")), TimeoutError()]
)
def test_one_that_does_not_answer_hears_of_it_from_the_others(fails: Exception) -> None:
    told = Told()
    told.pool.fails.append(fails)
    told.load(Adapter("more", "/more"))
    assert told.known("more") == [Adapter("more", "/more")] * 3


@pytest.mark.parametrize("name", ["more", "listed"])
def test_what_one_cannot_load_is_what_it_was_everywhere_though_another_one_has_loaded_it(name: str) -> None:
    told = Told()
    with pytest.raises(RequestInvalid, match="it is nowhere"):
        told.load(Adapter(name, "/nowhere"))
    assert told.known(name) == [{"more": NO_ADAPTER, "listed": LISTED}[name]] * 3
