"""A gateway reports to the scaler, on a real event loop, with an actor that is the test."""

from collections.abc import Mapping
from typing import Any

from ray.exceptions import ActorDiedError

from cluster.scaled_pools import PoolSize
from deployments.scaling.scaler_client import NoScaler, ScalerClient
from policies.capacity.bounds import Bound
from policies.pool_views import Demand, PoolLoad
from tests.waiting import until

LOADS = {"decode": PoolLoad(demand=Demand(added_s=3.0), num_waiting=2)}

SPENT_S = {Bound.QUEUE: 2.0}


class Actor:
    """Answers with what the test has put there, and then with a pool of three."""

    def __init__(self, *answers: Exception) -> None:
        self.heard: list[tuple[Any, ...]] = []
        self._answers = list(answers)
        self.is_dead = False
        self.hear = self

    def remote(self, *told: Any) -> Any:
        self.heard.append(told)
        return self._answer()

    async def _answer(self) -> Mapping[str, PoolSize]:
        if self.is_dead:
            raise ActorDiedError
        if self._answers:
            raise self._answers.pop(0)
        return {"decode": PoolSize(num_ready=2, num_starting=1, num_draining=4)}


async def test_the_scaler_hears_a_gateways_loads_and_says_what_pools_have() -> None:
    actor = Actor()
    client = ScalerClient("g", "llama", lambda: LOADS, lambda: SPENT_S, find=lambda: actor, period_s=0.0)
    assert client.gauges() == {}
    await until(lambda: bool(client.gauges()), "it has answered")
    client.close()
    assert actor.heard[0] == ("g", "llama", LOADS, SPENT_S)
    assert client.gauges() == {
        "target_replicas:decode": 3,
        "starting_replicas:decode": 1,
        "draining_replicas:decode": 4,
        "warm_replicas:decode": 0,
        "changing_replicas:decode": 0,
    }


async def test_a_scaler_that_dies_is_looked_for_again_and_meanwhile_nobody_knows_what_pools_have() -> None:
    first, second = Actor(), Actor()
    actors = [first]
    client = ScalerClient("g", "llama", lambda: LOADS, lambda: SPENT_S, find=lambda: actors[-1], period_s=0.0)
    await until(lambda: bool(client.gauges()), "it has answered")
    first.is_dead = True
    await until(lambda: not client.gauges(), "its loss is noticed")
    actors.append(second)
    await until(lambda: bool(client.gauges()), "the other one has answered")
    client.close()
    assert second.heard


def test_where_pools_keep_their_sizes_there_is_nothing_to_say() -> None:
    assert NoScaler().gauges() == {}
    NoScaler().close()
