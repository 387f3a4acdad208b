"""Which models an application serves: one, or several behind one endpoint.

Each model has pools, policies and a dispatcher of its own in every gateway; a request's ``model`` says which.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, NamedTuple

from pydantic import Field, ValidationError

from cluster.config.strict import Strict, refusal
from deployments.config import AppConfig, VllmFrontEndConfig, validated
from policies.errors import ConfigError

MODEL, MODELS, POOLS, POLICIES, GATEWAY = "model", "models", "pools", "policies", "gateway"
OF_ONE_MODEL = (MODEL, POOLS)
"""What stands in ``args`` where there is one model, and in each of ``models`` where there are several."""
Models = tuple[AppConfig, ...]
"""The configuration of each model, as if it were served alone; what concerns gateways is the same in all."""


class ModelEntry(Strict):
    """One of several models behind one endpoint.

    Args:
        id: Its name in the API.
        aliases: Other names that it answers to.
        path: Folder of the checkpoint, absolute or relative to the application's folder, or a model hub's name.
        adapters: LoRA adapters of it, as ``model`` has them.
        adapter_store: Likewise, where further ones are.
        pools: Its replicas; no other model has a pool with the same name.
        engine: Laid over ``engine``, field by field.
        policies: Laid over ``policies``, question by question.
        vllm_front_end: In the place of ``gateway.vllm_front_end``, as parsers and templates are a model's.
    """

    id: str = Field(min_length=1)
    aliases: list[Annotated[str, Field(min_length=1)]] = Field(default_factory=list)
    path: str = Field(min_length=1)
    adapters: list[dict[str, Any]] = Field(default_factory=list)
    adapter_store: str | None = None
    pools: list[dict[str, Any]] = Field(min_length=1)
    engine: dict[str, Any] = Field(default_factory=dict)
    policies: dict[str, Any] = Field(default_factory=dict)
    vllm_front_end: VllmFrontEndConfig | None = None

    def alone(self, shared: Mapping[str, Any]) -> dict[str, Any]:
        """The document of an application that serves it alone.

        Args:
            shared: What ``args`` say for all models.
        """
        laid_over = {name: {**(shared.get(name) or {}), **getattr(self, name)} for name in ("engine", POLICIES)}
        own = ("id", "aliases", "path", "adapters", "adapter_store")
        model = {name: getattr(self, name) for name in own}
        document = {**shared, **laid_over, MODEL: model, POOLS: self.pools}
        if "vllm_front_end" in self.model_fields_set:
            front_end = None if self.vllm_front_end is None else self.vllm_front_end.model_dump()
            document[GATEWAY] = {**(shared.get(GATEWAY) or {}), "vllm_front_end": front_end}
        return document


class _Place(NamedTuple):
    """Where one model's part of ``args`` stands, and what it is."""

    prefix: str
    entry: Mapping[str, Any]

    def of(self, field: str) -> str:
        """Where a user finds what an application with that model alone would call ``field``."""
        first, _, rest = field.partition(".")
        if first == MODEL:
            return ".".join(filter(None, (self.prefix, rest)))
        is_own = first == POOLS or rest.partition(".")[0] in self.entry.get(first, {})
        return f"{self.prefix}.{field}" if is_own else field


def models_in(document: Mapping[str, Any]) -> Models:
    """The models that ``args`` of an application name: ``model``, or each of ``models``.

    Raises:
        ConfigError: Field, value and what is allowed.
    """
    has_several = isinstance(document, Mapping) and MODELS in document
    models = tuple(_each_of(document)) if has_several else (validated(document),)
    _check_names(models, MODELS if has_several else MODEL)
    return models


@contextmanager
def of_model(config: AppConfig, models: Models) -> Iterator[None]:
    """Where there are several models, an error that is raised meanwhile says of which of them it is.

    Raises:
        ConfigError: The one that was raised.
    """
    try:
        yield
    except ConfigError as error:
        if len(models) == 1:
            raise
        raise ConfigError(f"model {config.model.id}: {error.field}", error.value, error.allowed) from error


def dumped(models: Models) -> list[dict[str, Any]]:
    """As another process is given them; it reads each with ``AppConfig.model_validate``."""
    return [each.model_dump(mode="json") for each in models]


def read(documents: Sequence[Mapping[str, Any]]) -> Models:
    """What :func:`dumped` has written."""
    return tuple(map(AppConfig.model_validate, documents))


def pools_of(args: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The pools of all models, as they stand in ``args`` that have been validated."""
    for place in (args, *args.get(MODELS, ())):
        yield from place.get(POOLS, ())


def _each_of(document: Mapping[str, Any]) -> Iterator[AppConfig]:
    for name in OF_ONE_MODEL:
        if name in document:
            raise ConfigError(name, document[name], "nothing beside models, each of which has its own")
    entries = document[MODELS]
    if not isinstance(entries, list | tuple) or not entries:
        raise ConfigError(MODELS, entries, "a list of models")
    shared = {name: value for name, value in document.items() if name != MODELS}
    for number, entry in enumerate(entries):
        yield _one_of(entry, shared, f"{MODELS}.{number}")


def _one_of(entry: Any, shared: Mapping[str, Any], prefix: str) -> AppConfig:
    try:
        alone = ModelEntry.model_validate(entry).alone(shared)
    except ValidationError as error:
        raise refusal(error, prefix) from error
    except TypeError as error:
        raise ConfigError("args", sorted(shared), f"mappings under engine, policies and gateway ({error})") from error
    try:
        return validated(alone)
    except ConfigError as error:
        raise ConfigError(_Place(prefix, entry).of(error.field), error.value, error.allowed) from error


def _check_names(models: Models, field: str) -> None:
    """Whether it is clear which model a name is, and which pool a deployment."""
    names = [name for each in models for name in (*each.model.ids, *each.model.aliases)]
    if len(set(names)) < len(names):
        raise ConfigError(f"{field}: ids, aliases and adapters", names, "each name once")
    pools = [pool.name for each in models for pool in each.pools]
    if len(set(pools)) < len(pools):
        raise ConfigError(f"{field}: {POOLS}", pools, "each name once, as each pool is a deployment")
    if GATEWAY in pools:
        raise ConfigError(POOLS, pools, f"another name than {GATEWAY}, which is the deployment that clients talk to")
