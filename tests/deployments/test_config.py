import copy
import math
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster import Seeds
from cluster.scaled_pools import Autoscaling
from deployments import launch
from deployments.app import check_models, check_policies
from deployments.config import (
    ROOT,
    START_S,
    AppConfig,
    EngineConfig,
    GatewayConfig,
    ModelConfig,
    PoolConfig,
    PoolRole,
    validated,
)
from deployments.configuration.models import models_in
from deployments.replica.emulation import check_engines, emulated_settings
from engines.model.profile import load_profile
from engines.vllm.connectors import Connector
from policies import Need, Role, TenantTerms, build
from routing import build_planner
from tests.deployments.app_args import args, error_of
from tests.tables import for_each

CONFIGS = ROOT / "deployments" / "configs"
SHIPPED = sorted(path for path in CONFIGS.glob("*.yaml") if path.name != "tenants.example.yaml")


def pools(*pairs: tuple[str, str]) -> dict[str, Any]:
    return args(pools=[{"name": name, "role": role} for name, role in pairs])


def put(document: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    """The document with one value at a dotted path."""
    *way, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    place: Any = document
    for part in way:
        place = place[part] if isinstance(part, int) else place.setdefault(part, {})
    place[last] = value
    return document


def test_what_is_left_out_has_a_default() -> None:
    config = validated(args())
    assert config.gateway == GatewayConfig()
    assert config.policies.balancing.name == "least_work_left"
    assert config.roles == {Role.UNIFIED}


def test_engines_parse_reasoning_as_the_front_end_does() -> None:
    """A structured output begins where the reasoning ends."""
    parser = {"vllm_front_end": {"reasoning_parser": "deepseek_r1"}}

    assert validated(args(gateway=parser)).engine.args["reasoning_parser"] == "deepseek_r1"
    own = validated(args(gateway=parser, engine={"args": {"reasoning_parser": "qwen3"}}))
    assert own.engine.args["reasoning_parser"] == "qwen3"
    assert "reasoning_parser" not in validated(args(gateway={"vllm_front_end": {}})).engine.args
    emulated = {"kind": "emulated", "emulation": {"profile": "h100-llama3-8b"}}
    assert validated(args(gateway=parser, engine=emulated)).engine.args == {}


@for_each(
    ("pool", "field"),
    [
        ({"num_cpus": math.inf}, "pools.0.num_cpus"),
        ({"num_gpus": math.nan}, "pools.0.num_gpus"),
        ({"resources": {"rack": math.inf}}, "pools.0.resources.rack"),
        ({"resources": {"rack": -1}}, "pools.0.resources.rack"),
        ({"graceful_shutdown_timeout_s": math.inf}, "pools.0.graceful_shutdown_timeout_s"),
    ],
)
def test_what_ray_could_never_place_is_refused(pool: dict[str, object], field: str) -> None:
    error = error_of(lambda: validated(args(pools=[{"name": "u", "role": "unified", **pool}])))
    assert error.field == field


def test_tools_are_called_freely_only_where_calls_can_be_read() -> None:
    error = error_of(lambda: validated(args(gateway={"vllm_front_end": {"enable_auto_tool_choice": True}})))
    assert str(error).endswith("enable_auto_tool_choice: got True; allowed: false without a tool_call_parser")


APART = [{"name": "p", "role": "prefill"}, {"name": "d", "role": "decode", "whole_requests": True}]


def test_decode_replicas_can_be_told_to_take_whole_requests() -> None:
    spec = validated(args(pools=APART)).dispatcher_spec()
    assert (spec.pools, spec.whole_request_pools) == ({"p": Role.PREFILL, "d": Role.DECODE}, ("d",))
    check_policies(validated(args(pools=APART)))


def scaled(*, scaling: str = "queue_depth", engine: dict[str, Any] | None = None, **pool: Any) -> AppConfig:
    """One pool of a deployment whose pools' sizes may change."""
    policies = {"planning": "always_unified", "scaling": scaling}
    pool = {"name": "unified", "role": "unified", "autoscaling": {"max_replicas": 4}, **pool}
    return validated(args(pools=[pool, {"name": "other", "role": "unified"}], policies=policies, engine=engine or {}))


def test_pools_with_autoscaling_are_the_scalers_and_go_by_the_profile_that_the_router_goes_by() -> None:
    emulation = {"profile": "h100-llama3-8b", "speed": 0.5, "start_s": 20, "kv_capacity_tokens": 1000}
    emulated = scaled(engine={"kind": "emulated", "emulation": emulation}).scaled_pools()
    profile = load_profile("h100-llama3-8b")
    assert list(emulated) == ["unified"]
    pool = emulated["unified"]
    assert pool.autoscaling == Autoscaling(min_replicas=1, max_replicas=4)
    assert (pool.start_s, pool.wake_s, pool.kv_capacity_tokens) == (40.0, profile.wake_s / 0.5, 1000)
    assert pool.step_s == profile.step.step_s / 0.5
    assert scaled(engine={"profile": "h100-llama3-8b"}).scaled_pools()["unified"].start_s == profile.start_s
    assert scaled(engine={"profile": "h100-llama3-8b"}, start_s=7).scaled_pools()["unified"].start_s == 7
    assert scaled().scaled_pools()["unified"].start_s == START_S


def test_bounds_of_a_pools_size_fit_together() -> None:
    error = error_of(lambda: scaled(autoscaling={"min_replicas": 5, "max_replicas": 4}))
    assert (error.field, "0 to max_replicas, which is 4" in error.allowed) == ("pools.0.autoscaling.min_replicas", True)
    error = error_of(lambda: scaled(replicas=5))
    assert (error.field, "1 to 4, which autoscaling says" in error.allowed) == ("pools.0.replicas", True)


def test_a_scaling_policy_needs_a_pool_to_scale_and_what_it_reckons_with() -> None:
    check_policies(scaled())
    check_policies(scaled(scaling="fixed"))
    assert "one with autoscaling at least" in error_of(check_policies, scaled(autoscaling=None)).allowed
    assert error_of(check_policies, scaled(scaling="abacus")).field == "policies.scaling"
    assert "service_rates" in str(error_of(check_policies, scaled(scaling="joint_by_work")))
    check_policies(scaled(scaling="joint_by_work", engine={"profile": "h100-llama3-8b"}))


def test_warm_replicas_need_a_policy_that_says_when_they_are_needed() -> None:
    bounds = {"max_replicas": 4, "warm_replicas": 2}
    check_policies(scaled(autoscaling=bounds))
    error = error_of(check_policies, scaled(scaling="fixed", autoscaling=bounds))
    assert (error.field, error.value) == ("pools.unified.autoscaling.warm_replicas", 2)


BOTH_ROLES = [
    {"name": role, "role": role, "replicas": 2, "autoscaling": {"max_replicas": 4, "changes_roles": True}}
    for role in ("prefill", "decode")
]


def test_replicas_of_both_sides_of_the_handoff_may_change_roles() -> None:
    policies = {"planning": "always_disaggregated", "scaling": "queue_depth"}
    config = validated(args(pools=BOTH_ROLES, policies=policies))
    check_policies(config)
    assert config.role_pairs == {"prefill": "decode", "decode": "prefill"}
    assert config.scaled_pools()["decode"].autoscaling.changes_roles
    assert validated(args(pools=APART)).role_pairs == {}
    error = error_of(check_policies, validated(args(pools=BOTH_ROLES, policies={**policies, "scaling": "fixed"})))
    assert error.field == "pools.prefill.autoscaling.changes_roles"


@for_each(
    ("laid_over", "says"),
    [
        ({"max_num_seqs": 8}, "pools.decode.max_num_seqs: got 8; allowed: 128, as in prefill"),
        ({"engine_args": {"max_num_batched_tokens": 512}}, "pools.decode.engine_args"),
        ({"num_gpus": 1}, "pools.decode.num_gpus: got 1.0"),
        ({"autoscaling": {"max_replicas": 4}}, "changes_roles: got ['prefill']; allowed: true in one prefill"),
        ({"autoscaling": {"max_replicas": 4, "changes_roles": True, "warm_replicas": 1}}, "warm_replicas: got 1"),
    ],
    ids=["sequences", "engine_args", "gpus", "one_side", "warm"],
)
def test_replicas_that_change_roles_are_alike(laid_over: dict[str, Any], says: str) -> None:
    prefill, decode = BOTH_ROLES
    policies = {"planning": "always_disaggregated", "scaling": "queue_depth"}
    error = error_of(validated, args(pools=[prefill, {**decode, **laid_over}], policies=policies))
    assert says in str(error)


def test_a_pool_that_begins_with_all_it_may_have_still_keeps_warm_ones_later() -> None:
    [pool, _] = scaled(replicas=4, autoscaling={"max_replicas": 4, "warm_replicas": 2}).pools
    assert (pool.num_warm_at_first, pool.keeps_warm) == (0, True)


def test_a_pool_may_have_no_replica_where_others_serve_in_its_place() -> None:
    none = {"min_replicas": 0, "max_replicas": 4}
    check_policies(scaled(autoscaling=none))
    alone = [{"name": "unified", "role": "unified", "autoscaling": none}]
    policies = {"planning": "always_unified", "scaling": "queue_depth"}
    error = error_of(check_policies, validated(args(pools=alone, policies=policies)))
    assert (error.field, error.value) == ("pools.unified.autoscaling.min_replicas", 0)


def test_a_combination_that_loses_is_warned_of_by_name(caplog: pytest.LogCaptureFixture) -> None:
    policies = {"planning": "always_unified", "balancing": "prefix_affinity", "prefixes": "block_hash"}
    policies |= {"queueing": "vtc"}
    check_policies(validated(args(gateway={"prefill_window_tokens": 4096}, policies=policies)))
    assert [each.message.split(":")[0] for each in caplog.records] == [
        "policies.balancing prefix_affinity with prefill_window_tokens 4096"
    ]


def test_engines_that_nobody_listens_to_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    engine = {"profile": "h100-llama3-8b", "kv_events": True}
    check_policies(validated(args(engine=engine, policies={"planning": "always_unified", "prefixes": "block_hash"})))
    assert not caplog.records

    check_policies(validated(args(engine={**engine, "kv_links": [{"bandwidth_bytes_per_s": 1e9}]})))
    assert [each.message.split(":")[0] for each in caplog.records] == ["engine.kv_links", "engine.kv_events"]


def test_policies_are_told_of_all_gateways_and_of_the_tenants_terms() -> None:
    terms = {"shop": TenantTerms(weight=2.0)}
    spec = validated(args(gateway={"replicas": 3})).dispatcher_spec(terms)
    assert (spec.num_gateways, spec.tenants) == (3, terms)


def test_tenants_whose_terms_do_not_fit_the_policies_keep_the_application_from_starting(tmp_path: Path) -> None:
    file = tmp_path / "tenants.yaml"
    file.write_text(f"tenants: [{{name: shop, keys: ['sha256:{'0' * 64}'], weight: 2}}]")
    queueing = {"name": "vtc", "params": {"weights": {"shop": 3}}}
    config = args(gateway={"tenants": str(file)}, policies={"planning": "always_unified", "queueing": queueing})
    error = error_of(check_models, models_in(config))

    assert (error.field, error.value) == ("policies.queueing.params.weights", {"shop": 3})
    assert error.allowed == "nothing: weights are the tenants' own, of ['shop']"


def test_a_planner_that_reckons_in_seconds_needs_an_engine_profile() -> None:
    conditional = args(pools=APART, policies={"planning": "conditional"})
    check_policies(validated({**conditional, "engine": {"profile": "h100-llama3-8b"}}))
    error = error_of(check_policies, validated(conditional))
    assert (error.field, error.value) == ("policies.planning", "conditional")


def test_a_config_survives_the_way_into_a_replica() -> None:
    config = validated(args(gateway={"seed": 7}, policies={"planning": "always_unified", "balancing": "random"}))
    assert AppConfig.model_validate(config.model_dump(mode="json")) == config


@for_each(
    "path",
    "speed model.speed engine.speed pools.0.speed gateway.speed policies.speed policies.hedging.speed".split(),
)
def test_an_unknown_field_is_refused_and_named(path: str) -> None:
    document = put(args(policies={"planning": "always_unified", "hedging": {"name": "no_hedge"}}), path, 7)
    error = error_of(validated, document)
    assert (error.field, error.value) == (path, 7)
    assert "one of the fields " in error.allowed


WRONG: dict[str, list[object]] = yaml.safe_load("""
{model.id: [''], model.path: [''], engine.kind: [abacus], engine.kv_buffer_device: [tape],
  engine.kv_lease_s: [5, 3601], engine.kv_poll_interval_s: [0.2], engine.stall_after_s: [0], pools: [[]],
  pools.0.name: [1st, ''], pools.0.role: [spare], pools.0.replicas: [0, 4097], pools.0.max_num_seqs: [0],
  pools.0.autoscaling.max_replicas: [0, 4097], pools.0.start_s: [-1], scaling_period_s: [0.5],
  pools.0.num_cpus: [-1], pools.0.num_gpus: [-0.1], pools.0.health_check_period_s: [0], gateway.replicas: [0],
  gateway.max_body_bytes: [1023], gateway.request_timeout_s: [0, 86401], gateway.flush_interval_s: [1.1],
  gateway.max_attempts: [1, 17], gateway.quarantine_s: [-1], gateway.retry_after_s: [0], gateway.seed: [lucky],
  policies.planning: [7]}
""")


@for_each(("path", "values"), WRONG.items())
def test_a_value_out_of_range_is_refused_and_told_what_is_allowed(path: str, values: list[object]) -> None:
    for value in values:
        error = error_of(validated, put(args(), path, value))
        assert (error.field, error.value) == (path, value)
        assert error.allowed
        assert str(error).startswith(f"{path}: got {value!r}; allowed: ")


@for_each("name", ["model", "pools", "policies"])
def test_a_missing_section_is_named(name: str) -> None:
    document = args()
    del document[name]
    assert error_of(validated, document).field == name


@for_each(
    ("document", "words"),
    [
        (pools(("a", "prefill"), ("a", "decode")), "pools: got ['a', 'a']; allowed: each name once"),
        (pools(("a", "prefill")), "pools: got ['prefill']; allowed: prefill and decode, both or neither"),
        (pools(("a", "decode"), ("b", "unified")), "pools: got ['decode', 'unified']; allowed: prefill and decode"),
    ],
    ids=["same_name", "prefill_alone", "decode_alone"],
)
def test_pools_that_do_not_fit_together_are_refused(document: dict[str, Any], words: str) -> None:
    assert words in str(error_of(validated, document))


@for_each(
    ("changes", "words"),
    [
        ({"pools": [{"name": "p", "role": "pooling"}, {"name": "u", "role": "unified"}]}, "pooling alone"),
        ({"gateway": {}}, "gateway.vllm_front_end"),
        ({"engine": {"args": {"runner": "generate"}}}, "engine.args.runner"),
        (
            {"pools": [{"name": "p", "role": "unified"}], "engine": {"args": {"runner": "pooling"}}},
            "engine.args.runner",
        ),
        ({"pools": [{"name": "p", "role": "embedding"}]}, "pools.0.role"),
    ],
)
def test_what_does_not_go_with_pooling_is_refused(changes: dict[str, Any], words: str) -> None:
    whole = args(pools=[{"name": "p", "role": "pooling"}], gateway={"vllm_front_end": {}}) | changes
    assert words in str(
        error_of(lambda: [pool.args_over(read.engine) for read in [validated(whole)] for pool in read.pools])
    )


def test_a_pool_that_pools_is_a_unified_one_to_dispatchers_and_a_pooling_one_to_engines() -> None:
    config = validated(args(pools=[{"name": "p", "role": "pooling"}], gateway={"vllm_front_end": {}}))
    assert config.dispatcher_spec().pools == {"p": Role.UNIFIED}
    assert config.pools[0].args_over(config.engine)["runner"] == "pooling"


def test_three_roles_fit_together() -> None:
    assert validated(pools(("p", "prefill"), ("d", "decode"), ("u", "unified"))).roles == set(Role)


def test_a_role_may_have_several_pools() -> None:
    spec = validated(pools(("short", "unified"), ("long", "unified"))).dispatcher_spec()
    assert spec.pools == {"short": Role.UNIFIED, "long": Role.UNIFIED}


def test_a_policys_name_alone_is_short_for_a_policy_without_parameters() -> None:
    short = validated(args(policies={"planning": "always_unified", "balancing": "random"}))
    long = validated(args(policies={"planning": "always_unified", "balancing": {"name": "random", "params": {}}}))
    assert short == long


@for_each(("num_seqs", "ongoing"), [(1, 2), (4, 5), (128, 160), (3, 4)])
def test_a_replica_takes_a_quarter_more_than_fits_into_a_step(num_seqs: int, ongoing: int) -> None:
    assert (
        PoolConfig(name="p", role=PoolRole.UNIFIED, max_num_seqs=num_seqs).max_ongoing_requests(EngineConfig())
        == ongoing
    )


def test_a_folder_of_the_application_is_found_from_everywhere_and_another_name_is_left_alone() -> None:
    there = validated(args(model={"id": "m", "path": "deployments/configs"}))
    elsewhere = validated(args(model={"id": "m", "path": "organisation/model"}))
    assert there.model.resolved_path() == str(ROOT / "deployments" / "configs")
    assert elsewhere.model.resolved_path() == "organisation/model"


def emulated(**changes: Any) -> dict[str, Any]:
    engine = {"kind": "emulated", "emulation": {"profile": "h100-llama3-8b"}}
    return put_all(args(engine=copy.deepcopy(engine)), changes)


def put_all(document: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    for path, value in changes.items():
        put(document, path.replace("__", "."), value)
    return document


def test_the_router_reckons_with_the_step_limits_that_the_engines_have() -> None:
    pool = {"name": "u", "role": "unified", "max_num_seqs": 64}
    engine = {"profile": "h100-llama3-8b", "args": {"max_num_batched_tokens": 4096}}
    common = validated(args(engine=engine, pools=[pool])).dispatcher_spec().rates
    own = validated(args(engine=engine, pools=[{**pool, "engine_args": {"max_num_batched_tokens": 1024}}]))

    assert (common.step_tokens, common.decode_batch) == (4096, 16)
    assert own.dispatcher_spec().rates.step_tokens == 1024


def test_the_router_knows_how_fast_emulated_engines_are() -> None:
    real = validated(emulated()).dispatcher_spec().rates
    slow = validated(emulated(engine__emulation__speed=0.25)).dispatcher_spec().rates

    assert slow.prefill_s(1000, 1000) == pytest.approx(4 * real.prefill_s(1000, 1000))
    assert slow.decode_s(1000, 100) == pytest.approx(4 * real.decode_s(1000, 100))
    assert slow.handoff_s == pytest.approx(4 * real.handoff_s)
    assert (slow.step_tokens, slow.decode_batch) == (real.step_tokens, real.decode_batch)


def test_the_router_reckons_with_the_draft_tokens_that_decode_replicas_verify() -> None:
    drafts = {"method": "eagle3", "model": "some/draft", "num_speculative_tokens": 3}
    pools = [
        {"name": "prefill", "role": "prefill"},
        {"name": "decode", "role": "decode", "engine_args": {"speculative_config": drafts}},
    ]
    config = validated(emulated(pools=pools, policies__planning="always_disaggregated"))

    check_engines(config)
    rates = config.service_rates()
    assert rates.draft_tokens == 3
    assert rates.tokens_a_step == pytest.approx(2.533)
    settings = emulated_settings(config.pools[1], config.engine, "model", "192.0.2.1")
    assert settings.spec().speculation.num_speculative_tokens == 3


@for_each(
    ("profile", "speculative_config", "field"),
    [
        ("h100-llama3-8b", {"method": "ngram"}, "engine.args.speculative_config"),
        ("h100-llama3-8b", {"num_speculative_tokens": "three"}, "engine.args.speculative_config"),
        ("h100-llama3-8b", {"num_speculative_tokens": 16}, "pools.unified.num_speculative_tokens"),
        ("vllm-cpu-tiny", {"num_speculative_tokens": 3}, "pools.unified.num_speculative_tokens"),
    ],
)
def test_drafts_that_the_router_can_not_reckon_with_are_refused_before_anything_starts(
    profile: str, speculative_config: dict[str, Any], field: str
) -> None:
    config = validated(args(engine={"profile": profile, "args": {"speculative_config": speculative_config}}))
    assert error_of(check_policies, config).field == field


def test_a_step_limit_that_is_no_number_is_refused_before_anything_starts() -> None:
    config = validated(args(engine={"profile": "h100-llama3-8b", "args": {"max_num_batched_tokens": "2k"}}))
    error = error_of(check_policies, config)
    assert (error.field, error.value) == ("engine.args.max_num_batched_tokens", "2k")


def test_an_emulated_engine_is_limited_by_its_pool_its_arguments_and_its_profile() -> None:
    config = validated(
        emulated(
            engine__kv_lease_s=7,
            engine__args={"max_model_len": 4096, "scheduling_policy": "priority"},
            engine__emulation__speed=3.0,
            pools__0__max_num_seqs=9,
            pools__0__engine_args={"max_num_batched_tokens": 512, "enable_prefix_caching": False},
        )
    )
    settings = emulated_settings(config.pools[0], config.engine, "model", "192.0.2.1")

    assert settings.limits == settings.profile.limits(
        max_num_seqs=9, max_num_batched_tokens=512, priority_scheduling=True
    )
    assert (settings.context_tokens, settings.kv_lease_s, settings.speed) == (4096, 7, 3.0)
    assert (settings.host, settings.prefix_caching) == ("192.0.2.1", False)
    assert settings.info().kv_capacity_tokens > 100_000


@for_each(
    ("changes", "field", "message"),
    [
        ({"engine": {"kind": "emulated"}}, "engine.emulation", "a mapping with a profile"),
        ({"engine": {"emulation": {"profile": "h100-llama3-8b"}}}, "engine.emulation", "unless kind is emulated"),
        ({"engine__kv_buffer_device": "cuda"}, "engine.kv_buffer_device", "'cpu'"),
        ({"engine__emulation__speed": 0}, "engine.emulation.speed", "or more"),
        ({"engine__emulation__mean_output_tokens": 0}, "engine.emulation.mean_output_tokens", "1 or more"),
        ({"engine__emulation__pace": 1}, "engine.emulation.pace", "one of the fields "),
        ({"engine__emulation__profile": "abacus"}, "engine.emulation.profile", "one of"),
        ({"engine__args": {"enforce_eager": True}}, "engine.args.enforce_eager", "one of the fields "),
        ({"engine__args": {"max_num_batched_tokens": 4}}, "engine.args.max_num_batched_tokens", "128 or more"),
        ({"engine__args": {"max_model_len": 10_000_000}}, "engine.args.max_model_len", "at most the KV cache's"),
        ({"pools__0__engine_args": {"scheduling_policy": "lifo"}}, "pools.unified.engine_args.scheduling_policy", ""),
    ],
)
def test_what_cannot_be_emulated_is_refused_before_anything_starts(
    changes: dict[str, Any], field: str, message: str
) -> None:
    error = error_of(lambda: check_engines(validated(emulated(**changes))))
    assert error.field == field
    assert message in error.allowed


shipped = for_each("path", SHIPPED)


@shipped
def test_a_shipped_configuration_is_valid_and_builds_its_policies(path: Any) -> None:
    (application,) = launch.load(path)["applications"]
    for config in models_in(application["args"]):
        build(config.policies.spec(), rng_for=Seeds(0).stream, provided=frozenset(Need))
        build_planner(config.policies.planning.choice(), config.roles)


@shipped
def test_a_shipped_configuration_starts_this_application(path: Any) -> None:
    assert [each["import_path"] for each in launch.load(path)["applications"]] == ["deployments.app:build"]
    assert path.read_text().startswith("# ")


def test_there_is_something_shipped() -> None:
    assert {"local-vllm", "unified-vllm"} <= {path.stem for path in SHIPPED}


def test_a_pool_may_have_a_checkpoint_of_its_own_under_the_name_that_all_have() -> None:
    model = ModelConfig(id="m", path="org/large")
    assert (model.at(None), model.at("org/small")) == (model, ModelConfig(id="m", path="org/small"))


def test_what_gateways_provide_depends_on_whether_they_keep_answers() -> None:
    without, with_cache = validated(args()), validated(args(gateway={"response_cache": {}}))
    assert with_cache.provided - without.provided == {Need.RESPONSE_CACHE}


def with_ties(engine: dict[str, Any]) -> AppConfig:
    return validated(args(engine=engine, policies={"planning": "always_unified", "hedging": "tied"}))


def test_attempts_cannot_be_tied_where_no_engine_asks_for_a_claim() -> None:
    error = error_of(check_policies, with_ties({"kind": "vllm"}))
    assert (error.field, error.value) == ("policies.hedging", "tied")
    assert re.search(r"missing: \['claims'\]; .*vLLM does not; slowdown needs no execution claims", error.allowed)


def test_attempts_of_emulated_engines_can_be_tied() -> None:
    check_policies(with_ties({"kind": "emulated", "emulation": {"profile": "h100-llama3-8b"}}))


@for_each(
    ("engine_args", "pool_args", "is_allowed"),
    [
        ({}, {}, False),
        ({"scheduling_policy": "priority"}, {}, True),
        ({"scheduling_policy": "priority"}, {"scheduling_policy": "fcfs"}, False),
    ],
    ids=["engines go by arrival", "engines go by priority", "but for those of a pool"],
)
def test_short_prompts_go_first_only_where_every_engine_that_computes_prompts_goes_by_priority(
    engine_args: dict[str, Any], pool_args: dict[str, Any], is_allowed: bool
) -> None:
    pools = [{"name": "all", "role": "unified", "engine_args": pool_args}]
    policies = {"planning": "always_unified", "engine_order": "shortest_prompt"}
    config = validated(args(engine={"args": engine_args}, pools=pools, policies=policies))
    if is_allowed:
        check_policies(config)
        return
    error = error_of(check_policies, config)
    assert (error.field, error.value) == ("policies.engine_order", "shortest_prompt")
    assert "scheduling_policy: priority" in error.allowed


def test_a_connectors_name_alone_is_short_for_one_without_settings() -> None:
    config = validated(args(engine={"kv_connectors": ["NixlConnector", {"name": "LMCacheConnectorV1"}]}))
    assert [each.connector() for each in config.engine.kv_connectors] == [
        Connector("NixlConnector"),
        Connector("LMCacheConnectorV1"),
    ]


@for_each(
    ("engine", "words"),
    [
        ({"kv_connectors": ["Nixl"]}, "OffloadingConnector"),
        ({"kv_connectors": ["OffloadingConnector"]}, "NixlConnector among them, which hands KV over"),
        ({"args": {"kv_offloading_size": 8}}, "engine.kv_connectors has them all"),
        ({"args": {"kv_transfer_config": {"kv_connector": "NixlConnector"}}}, "engine.kv_connectors has them all"),
        (
            {
                "kind": "emulated",
                "profile": None,
                "emulation": {"profile": "h100-llama3-8b"},
                "kv_connectors": ["NixlConnector", "OffloadingConnector"],
            },
            "NixlConnector alone, when kind is emulated",
        ),
    ],
)
def test_connectors_that_would_not_hand_over_are_refused(engine: dict[str, Any], words: str) -> None:
    error = error_of(lambda: check_policies(validated(args(engine={"profile": "vllm-cpu-tiny", **engine}))))
    assert words in str(error)


def test_links_between_replicas_reach_estimates_and_emulated_engines() -> None:
    links = [{"same": "rack", "bandwidth_bytes_per_s": 80e9}, {"bandwidth_bytes_per_s": 4e9}]
    config = validated(emulated(engine__kv_links=links))
    settings = emulated_settings(config.pools[0], config.engine, "model", "192.0.2.1", ("a", "*"))

    assert (settings.place, settings.link_slowdowns) == (("a", "*"), (0.5, 10.0))
    rates = config.service_rates()
    assert rates.links == pytest.approx((rates.handoff_token_s / 2, rates.handoff_token_s * 10))


def test_links_of_which_one_could_never_be_taken_are_refused() -> None:
    error = error_of(lambda: validated(emulated(engine__kv_links=[{"bandwidth_bytes_per_s": 1}] * 2)))
    assert "kv_links" in str(error)
