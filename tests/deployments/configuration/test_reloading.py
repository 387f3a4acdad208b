"""What may change while gateways run is laid over the configuration; anything else is refused with its place."""

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from deployments import reload
from deployments.config import ROOT, validated
from deployments.configuration.reloading import laid_over, user_config_in
from deployments.launch import load
from deployments.reload import check_rest, in_place
from policies.errors import ConfigError
from tests.deployments.app_args import args, error_of
from tests.tables import for_each

EMULATED = ROOT / "deployments" / "configs" / "emulated.yaml"


def document(**user_config: Any) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(EMULATED.read_text())
    if user_config:
        found["applications"][0]["deployments"] = [{"name": "gateway", "user_config": user_config}]
    return found


def test_what_is_not_named_stays_as_it_was() -> None:
    base = validated(
        args(gateway={"quarantine_s": 3, "replicas": 2}, policies={"planning": "always_unified", "queueing": "edf"})
    )
    (changed,) = laid_over((base,), {"policies": {"admission": "codel"}, "gateway": {"max_attempts": 7}})

    assert (changed.policies.admission.name, changed.policies.queueing.name) == ("codel", "edf")
    assert (changed.gateway.max_attempts, changed.gateway.quarantine_s, changed.gateway.replicas) == (7, 3.0, 2)
    assert laid_over((base,), {}) == laid_over((base,), {"revision": "tuesday"}) == (base,)


@for_each(
    ("user_config", "field", "allowed"),
    [
        ({"pools": []}, "user_config.pools", "one of policies, gateway, models, revision"),
        ({"gateway": {"replicas": 3}}, "user_config.gateway.replicas", "takes a restart"),
        ({"gateway": {"max_attempts": 1}}, "user_config.gateway.max_attempts", "2 or more"),
        ({"gateway": {"tenants": None}}, "user_config.gateway.tenants", "anybody could use the deployment"),
        ({"gateway": 7}, "user_config.gateway", "a mapping with max_attempts"),
        ({"policies": "codel"}, "user_config.policies", "a mapping from questions"),
        ({"policies": {"admision": "codel"}}, "user_config.policies.admision", "admission, if that is meant"),
        ({"policies": {"scaling": "ratio"}}, "user_config.policies.scaling", "takes a restart"),
        ({"policies": 0}, "user_config.policies", "a mapping from questions"),
        ({"policies": []}, "user_config.policies", "a mapping from questions"),
        ({"gateway": []}, "user_config.gateway", "a mapping with max_attempts"),
        ({"gateway": ""}, "user_config.gateway", "a mapping with max_attempts"),
        (["policies"], "user_config", "a mapping with policies"),
    ],
)
def test_what_cannot_change_is_named_with_its_place(user_config: Any, field: str, allowed: str) -> None:
    error = error_of(laid_over, (validated(args()),), user_config)
    assert error.field == field
    assert allowed in error.allowed


def test_the_gateways_part_of_a_file_is_found() -> None:
    assert user_config_in(document()["applications"][0]) == {}
    assert user_config_in(document(revision=2)["applications"][0]) == {"revision": 2}
    assert user_config_in({"deployments": [{"name": "decode", "user_config": {"a": 1}}, {"name": "gateway"}]}) == {}


@for_each(
    "deployments",
    [
        "gateway",
        {"name": "gateway"},
        [None],
        ["gateway"],
        [{"name": "gateway", "user_config": {}}, {"name": "gateway", "user_config": {"policies": {}}}],
    ],
    ids=["text", "mapping", "nothing", "names", "twice"],
)
def test_deployments_that_serve_would_read_otherwise_are_refused(deployments: object) -> None:
    with pytest.raises(ConfigError, match="deployments"):
        user_config_in({"deployments": deployments})


@for_each("key", ["http_options", "applications"])
def test_a_file_of_the_wrong_shape_is_refused_in_a_sentence(tmp_path: Path, key: str) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text(yaml.safe_dump({**document(), key: "x"}))
    with pytest.raises(ConfigError, match=f"{key}: got 'x'; allowed: a "):
        load(file)


@for_each("user_config", [{"policies": {"admission": "bouncer"}}, {"speed": 7}])
def test_the_launcher_does_not_start_what_gateways_would_refuse(tmp_path: Path, user_config: dict[str, Any]) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text(yaml.safe_dump(document(**user_config)))
    with pytest.raises(ConfigError):
        load(file)


def resized(replicas: int, number: int = 1) -> dict[str, Any]:
    found = document(revision=2)
    found["applications"][0]["args"]["pools"][number]["replicas"] = replicas
    return found


def test_nothing_but_the_user_config_and_sizes_of_pools_may_differ_from_what_runs() -> None:
    check_rest(document(revision=2), document())
    check_rest(document(), document(revision=1))
    check_rest(resized(7), document())
    other = copy.deepcopy(document(revision=2))
    other["applications"][0]["args"]["gateway"]["num_cpus"] = 2
    error = error_of(check_rest, other, document())

    assert (error.field, error.value) == ("applications.0.args.gateway.num_cpus", 2)


def test_other_engine_arguments_of_a_pool_are_refused_by_name_and_those_that_run_stay() -> None:
    versions = {"name": "decode", "user_config": {"engine_args": {"seed": 3}}}
    changed, running = resized(7), document()
    changed["applications"][0]["deployments"] += [versions]
    error = error_of(check_rest, changed, running)
    assert error.value == [versions]
    assert "python -m deployments.roll replaces the rest" in error.allowed

    running["applications"][0]["deployments"] = [versions]
    check_rest(changed, running)
    resized_pool = in_place(changed, running)["applications"][0]["deployments"][-1]
    assert resized_pool == {**versions, "num_replicas": 7}


def test_a_pool_is_resized_beside_args_that_stay_as_they_are() -> None:
    first = document()
    grown = in_place(resized(7), first)
    decode = {"name": "decode", "num_replicas": 7}
    gateway = {"name": "gateway", "user_config": {"revision": 2}}
    assert grown["applications"][0]["args"] == first["applications"][0]["args"]
    assert grown["applications"][0]["deployments"] == [gateway, decode]

    check_rest(resized(8), grown)
    assert in_place(resized(8), grown)["applications"][0]["deployments"] == [gateway, {**decode, "num_replicas": 8}]
    assert in_place(resized(4), grown)["applications"][0]["deployments"] == [gateway], "what args have said before"


def test_the_size_that_a_rolled_pool_began_with_stays_where_a_policy_scales_it() -> None:
    first = document()
    first["applications"][0]["args"]["pools"][1]["autoscaling"] = {"max_replicas": 9}
    rolled = copy.deepcopy(first)
    rolled["applications"][0]["deployments"] = [{"name": "decode", "num_replicas": 6}]
    assert in_place(first, rolled) == rolled


def test_a_size_beside_args_goes_before_theirs() -> None:
    wanted = resized(7)
    wanted["applications"][0]["deployments"].append({"name": "decode", "num_replicas": 2})
    assert in_place(wanted, document())["applications"][0]["deployments"][1] == {"name": "decode", "num_replicas": 2}


def test_ray_is_imported_once_its_environment_is_set() -> None:
    script = "import sys, deployments.reload; print('ray' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"


def test_where_nothing_runs_there_is_nothing_to_change(capsys: pytest.CaptureFixture[str]) -> None:
    assert reload.main([str(EMULATED), "--port", "8099"]) == 2
    assert "port: got 8099" in capsys.readouterr().err
