"""What a pool's engines run with, and what a few of them are tried with: ``user_config`` of the pool's deployment.

Serve hands it to replicas that run, so that a change of it takes no new replicas: each of those that it concerns
finishes what it has, and starts another engine in the place of its own.
"""

from typing import Any

from pydantic import Field, ValidationError

from cluster.config.strict import Strict, refusal
from deployments.config import USER_CONFIG, AppConfig, PoolConfig
from deployments.replica.emulation import check_engines
from deployments.replica.placement import placement_of
from policies.errors import ConfigError


class Canary(Strict):
    """Engines that are tried.

    Args:
        engine_args: What they run with, over the pool's own ``engine_args``.
        replicas: How many there are: those of the lowest ranks, whichever these are.
    """

    engine_args: dict[str, Any]
    replicas: int = Field(ge=1, le=4096)


class EngineVersions(Strict):
    """What the engines of a pool run with.

    Args:
        engine_args: Over the pool's own ``engine_args``; all of them, but for canaries.
        canary: A few that run with something else; left out: none.
    """

    engine_args: dict[str, Any] = Field(default_factory=dict)
    canary: Canary | None = None

    def engine_args_of(self, rank: int) -> dict[str, Any]:
        """What the replica of a rank runs with, over the pool's own."""
        return self.canary.engine_args if self.canary is not None and self.is_canary(rank) else self.engine_args

    def is_canary(self, rank: int) -> bool:
        """Whether the replica of a rank tries other arguments."""
        return self.canary is not None and rank < self.canary.replicas

    def pools(self, pool: PoolConfig) -> list[PoolConfig]:
        """The pool as its replicas have it: all of them, and the canaries if there are any."""
        canaries = [self.canary.engine_args] if self.canary is not None else []
        return [with_engine_args(pool, each) for each in (self.engine_args, *canaries)]


def versions_of(user_config: object, place: str) -> EngineVersions:
    """A pool's ``user_config``; without one, all engines run with the pool's own arguments.

    Args:
        user_config: As the file has it.
        place: Where that is.

    Raises:
        ConfigError: It holds something else.
    """
    try:
        return EngineVersions.model_validate(user_config or {})
    except ValidationError as error:
        raise refusal(error, place) from error


def check_versions(user_config: object, pool: PoolConfig, args: AppConfig) -> None:
    """Whether replicas that run can have these engines.

    Args:
        user_config: Of the pool's deployment.
        pool: The pool.
        args: The application's.

    Raises:
        ConfigError: It holds something else, an engine can't have such arguments, or they take other workers.
    """
    place = f"deployments.{pool.name}.{USER_CONFIG}"
    for each in versions_of(user_config, place).pools(pool):
        check_engines(args.model_copy(update={"pools": (each,)}))
        if placement_of(each, args.engine) != placement_of(pool, args.engine):
            allowed = "as many workers as replicas have; another number takes other replicas"
            raise ConfigError(f"{place}.engine_args", each.engine_args, allowed)


def with_engine_args(pool: PoolConfig, engine_args: dict[str, Any]) -> PoolConfig:
    """A pool whose engines run with these beside, or in the place of, its own."""
    return pool.model_copy(update={"engine_args": {**pool.engine_args, **engine_args}})
