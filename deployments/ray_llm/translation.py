"""What the builders of Ray Serve LLM take, as ``args`` of an application of this project's.

Ray's own ``LLMConfig`` has read it before. A field that has a meaning here is translated, one that only tunes how Ray
does its part is left out with a note, and what can't be served is refused by its name.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from deployments.configuration.models import GATEWAY, MODELS, POLICIES
from deployments.ray_llm.pools import TranslatedPool, pool_of
from deployments.ray_llm.taken_fields import TakenFields
from policies.errors import ConfigError
from policies.views import Role

OVERLAY = "spillway"
"""Beside Ray's fields: what is laid over the translation, in this project's own words."""
ENGINE, FRONT_END, SCALING = "engine", "vllm_front_end", "scaling"
LAID_OVER = (ENGINE, GATEWAY, POLICIES)
"""Sections of ``spillway`` that are laid over field by field; what else it has takes its place in ``args``."""
OF_A_MODEL = (ENGINE, POLICIES)
"""Those that are laid over one model's."""
NOTHING: Mapping[str, Any] = {name: {} for name in OF_A_MODEL}
"""The overlay of a model that has none."""
GATEWAYS_OWN = "gateways have their own"
EMULATED = "emulated"
PORTS = ("NIXL_SIDE_CHANNEL_PORT_BASE", "MORIIO_HANDSHAKE_PORT_BASE", "MORIIO_NOTIFY_PORT_BASE")


class RayLlmTranslation:
    """One application of Ray Serve LLM.

    Args:
        overlay: What its ``spillway`` says: fields of ``args``, and ``models``: what is laid over each, by its id.
        emulated_args: Engine arguments that emulated engines heed; those that they don't are left out.
        scales: Whether pools whose size may change are to be scaled, which takes ``external_scaler_enabled`` beside
            ``args``; else they keep the size that they start with.

    Raises:
        ConfigError: An overlay that is no mapping.
    """

    def __init__(self, overlay: Mapping[str, Any] | None, emulated_args: Collection[str], *, scales: bool) -> None:
        self.notes: list[str] = []
        """What is left out without harm, a line each."""
        self.scales = False
        """Whether a pool may have several sizes."""
        given = TakenFields(OVERLAY, overlay, self.notes)
        of_models = given.take(MODELS, {}, dict)
        self._of_models = {
            name: _overlay_of(f"{OVERLAY}.{MODELS}.{name}", each, OF_A_MODEL) for name, each in of_models.items()
        }
        self._overlay = _overlay_of(OVERLAY, given.take_rest(), LAID_OVER)
        self._emulated_args = emulated_args
        self._may_scale = scales
        self._gateway: dict[str, Any] = {FRONT_END: {}}

    def openai_app(self, configs: Sequence[Any], ingress: Mapping[str, Any]) -> dict[str, Any]:
        """``args`` for what ``build_openai_app`` takes.

        Args:
            configs: Each an ``LLMConfig``.
            ingress: The other fields of ``LLMServingArgs``.

        Raises:
            ConfigError: A field that can't be served, by its name.
        """
        entries = []
        for number, config in enumerate(configs):
            fields = self._fields_of(f"llm_configs.{number}", config)
            pool = pool_of(fields, config.model_id, Role.UNIFIED, self._heeded_by(config.model_id))
            entries.append(self._entry(self._source(fields), [pool], {"planning": "always_unified"}))
        return self._args(entries, ingress)

    def prefill_decode_app(self, prefill: Any, decode: Any, ingress: Mapping[str, Any]) -> dict[str, Any]:
        """``args`` for what ``build_pd_openai_app`` takes.

        Args:
            prefill: The ``LLMConfig`` of the replicas that compute prompts.
            decode: That of those that go on.
            ingress: The other fields of ``PDServingArgs``.

        Raises:
            ConfigError: A field that can't be served, by its name.
        """
        both = {Role.PREFILL: prefill, Role.DECODE: decode}
        fields = [self._fields_of(f"{role}_config", config) for role, config in both.items()]
        pools = [
            pool_of(its, f"{config.model_id}-{role}", role, self._heeded_by(config.model_id))
            for its, (role, config) in zip(fields, both.items(), strict=True)
        ]
        _check_same("decode_config: what engines share", *(each.engine for each in pools))
        _check_same("decode_config.lora_config", *({"dynamic_lora_loading_path": each.adapter_store} for each in pools))
        paths = [self._source(its) for its in fields]
        _check_same("decode_config.model_loading_config", *paths)
        entry = self._entry(paths[0], pools, {"planning": "always_disaggregated"})
        return self._args([entry], ingress)

    def _heeded_by(self, model: str) -> Collection[str] | None:
        """Engine arguments that emulated engines heed, if the model's are emulated."""
        engine = {**self._overlay[ENGINE], **self._of_models.get(model, NOTHING)[ENGINE]}
        return self._emulated_args if engine.get("kind") == EMULATED else None

    def _fields_of(self, place: str, config: Any) -> TakenFields:
        given = {name: getattr(config, name) for name in type(config).model_fields}
        return TakenFields(place, given, self.notes)

    # -- models -------------------------------------------------------------------------------------------------------

    def _source(self, fields: TakenFields) -> dict[str, str]:
        """The model's name and place, once its pools have taken what is theirs."""
        loading = fields.take_inner("model_loading_config")
        model_id = loading.take("model_id")
        path = loading.take("model_source", model_id)
        if not isinstance(path, str):
            raise ConfigError(loading.place_of("model_source"), path, "a hub's name, or a folder that every node has")
        if (tokenizer := loading.take("tokenizer_source", path)) != path:
            raise ConfigError(loading.place_of("tokenizer_source"), tokenizer, f"what model_source is: {path}")
        loading.close()
        self._leave_rest(fields)
        return {"id": model_id, "path": path}

    def _leave_rest(self, fields: TakenFields) -> None:
        """What is left of an ``LLMConfig``."""
        experimental = fields.take_inner("experimental_configs")
        if (interval_ms := experimental.take("stream_batching_interval_ms", kind=float)) is not None:
            self._set_gateway(experimental.place, "flush_interval_s", interval_ms / 1000.0)
        if (number := experimental.take("num_ingress_replicas", kind=int)) is not None:
            self._set_gateway(experimental.place, "replicas", number)
        experimental.take_those_there(*PORTS)
        experimental.close()
        callback = fields.take("callback_config")
        if callback.callback_kwargs or getattr(callback.callback_class, "__name__", "") != "CallbackBase":
            raise ConfigError(fields.place_of("callback_config"), callback, "nothing: engines start without callbacks")
        fields.refuse("server_cls", allowed="nothing: replicas are this project's own")
        fields.take("llm_engine")  # Ray knows vLLM alone
        fields.close()

    def _entry(
        self, source: Mapping[str, str], pools: list[TranslatedPool], policies: dict[str, Any]
    ) -> dict[str, Any]:
        """One of ``models``."""
        own = dict(self._of_models.get(source["id"], NOTHING))
        for each in pools:
            policies |= each.policies
        its_engine, its_policies = own.pop(ENGINE), own.pop(POLICIES)
        policies |= self._scaled(source["id"], pools, {**self._overlay[POLICIES], **its_policies})
        front_end = {name: value for each in pools for name, value in each.front_end.items()}
        store = pools[0].adapter_store
        entry = {
            **source,
            **({} if store is None else {"adapter_store": store}),
            ENGINE: {**pools[0].engine, **its_engine},
            "pools": [each.pool for each in pools],
            POLICIES: {**policies, **its_policies},
        }
        return {**entry, **({FRONT_END: front_end} if front_end else {}), **own}

    def _scaled(self, model: str, pools: list[TranslatedPool], overlay: Mapping[str, Any]) -> dict[str, Any]:
        """``policies.scaling``, where a pool's size may change and the overlay does not say who changes it."""
        scaled = [each for each in pools if each.scaling is not None]
        self.scales |= bool(scaled)
        if not scaled or SCALING in overlay:
            return {}
        if not self._may_scale:
            sizes = ", ".join(f"{each.pool['name']} at {each.pool['replicas']}" for each in scaled)
            self.notes.append(
                f"{model}: autoscaling_config: pools keep their sizes ({sizes}): that takes policies.scaling in "
                "spillway, and external_scaler_enabled: true beside args"
            )
            return {}
        params = {name: value for each in scaled for name, value in (each.scaling or {}).items()}
        return {SCALING: {"name": "queue_depth", "params": params} if params else "queue_depth"}

    # -- the application ----------------------------------------------------------------------------------------------

    def _args(self, entries: list[dict[str, Any]], ingress: Mapping[str, Any]) -> dict[str, Any]:
        self._take_ingress(ingress)
        known = [each["id"] for each in entries]
        for name, each in self._of_models.items():
            if name not in known:
                raise ConfigError(f"{OVERLAY}.{MODELS}.{name}", each, f"one of {', '.join(known)}")
        args = {MODELS: entries, **self._overlay, GATEWAY: {**self._gateway, **self._overlay[GATEWAY]}}
        return {name: value for name, value in args.items() if value or name == POLICIES}

    def _take_ingress(self, ingress: Mapping[str, Any]) -> None:
        """What Ray's ingress is told, for gateways."""
        given = TakenFields("", ingress, self.notes)
        cls = given.take("ingress_cls_config")
        if cls.ingress_extra_kwargs or cls.ingress_cls.__name__ != "OpenAiIngress":
            raise ConfigError(
                "ingress_cls_config", cls.ingress_cls.__name__, "nothing: gateways are this project's own"
            )
        options = given.take_inner("ingress_deployment_config")
        scaled = options.take_inner("autoscaling_config")
        sizes = scaled.take_those_there("initial_replicas", "min_replicas")
        for name in scaled.take_rest():
            scaled.note(name, "the number of gateways stays")
        number = options.take("num_replicas", next(iter(sizes.values()), None))
        if number is not None:
            self._set_gateway(options.place, "replicas", number)
        actor = options.take_inner("ray_actor_options")
        self._gateway |= actor.take_those_there("num_cpus", "resources", "label_selector")
        actor.close()
        self._gateway |= options.take_those_there("graceful_shutdown_timeout_s")
        options.leave_out("max_ongoing_requests", "health_check_period_s", "health_check_timeout_s", why=GATEWAYS_OWN)
        options.close()

    def _set_gateway(self, place: str, name: str, value: Any) -> None:
        """One of several models may say it, or all the same."""
        known = self._gateway.setdefault(name, value)
        if known != value:
            raise ConfigError(f"{place}: gateway.{name}", value, f"what another one says: {known}")


def _overlay_of(place: str, given: object, sections: Sequence[str]) -> dict[str, Any]:
    """An overlay whose sections are mappings, empty ones where it has none."""
    fields = TakenFields(place, given, [])
    return {**{name: fields.take(name, {}, dict) for name in sections}, **fields.take_rest()}


def _check_same(place: str, of_prefill: Mapping[str, Any], of_decode: Mapping[str, Any]) -> None:
    for name, value in of_decode.items():
        if of_prefill[name] != value:
            raise ConfigError(f"{place}: {name}", value, f"what prefill_config says: {of_prefill[name]}")
