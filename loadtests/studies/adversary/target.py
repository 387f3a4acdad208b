"""What is attacked: deployments with tenants, of whom two have limits."""

import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import psutil
import yaml

from loadtests.drivers.completions import KEY_VARIABLE
from loadtests.live.configuration import laid_over, read_config
from loadtests.live.deployed import Deployed, deployed

VICTIM, HONEST, ATTACKER, UNLIMITED = "victim", "honest", "attacker", "unlimited"
"""Tenants: the one that is watched, one that keeps to its limits, one that does not, and one that has none."""
LIMITS = {
    "requests_per_min": 3_000,
    "tokens_per_min": 1_000_000,
    "bytes_per_min": 20_000_000,
    "concurrent_requests": 50,
}
"""``tenants.example.yaml`` has the bytes; an honest tenant is to be within its requests and tokens."""
SESSION = re.compile(r"--session[-_]dir=(\S+)")
EMULATED: Mapping[str, Any] = {
    "gateway": {"replicas": 2, "load_coordinator": True},
    "policies": {"ejection": "outlier"},
}
VLLM: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A deployment, and who may use it.

    Args:
        running: The deployment.
        keys: Of each tenant.
    """

    running: Deployed
    keys: Mapping[str, str]

    def logs(self) -> Sequence[Path]:
        """Of all replicas, gateways among them.

        Raises:
            RuntimeError: No process of the deployment's says where its session's files are.
        """
        for each in psutil.Process(self.running.pid).children(recursive=True):
            with suppress(psutil.Error):
                if found := SESSION.search(" ".join(each.cmdline())):
                    return sorted((Path(found[1]) / "logs" / "serve").glob("*.log"))
        raise RuntimeError("no process of the deployment's says where its logs are")

    @property
    def port(self) -> int:
        """Where it answers."""
        return self.running.port

    @property
    def model(self) -> str:
        """What it serves."""
        return self.running.endpoint.model

    def headers(self, tenant: str) -> dict[str, str]:
        """What a tenant's requests say of who they are from."""
        return {"authorization": f"Bearer {self.keys[tenant]}"}


@contextmanager
def target(name: str, config: str, args: Mapping[str, Any], folder: Path, port: int) -> Iterator[Target]:
    """Starts one.

    Args:
        name: Of its files.
        config: What it is made from, by name.
        args: What is laid over that.
        folder: For its files.
        port: Where it is to answer.

    Raises:
        RuntimeError: It does not start; the message names its log.
    """
    keys = {each: secrets.token_urlsafe(32) for each in (VICTIM, HONEST, ATTACKER, UNLIMITED)}
    tenants = folder / f"{name}.tenants.yaml"
    tenants.write_text(yaml.safe_dump({"tenants": [_tenant(each, key) for each, key in keys.items()]}))
    document = read_config(config)
    application = document["applications"][0]
    application["args"] = laid_over(laid_over(application["args"], dict(args)), {"gateway": {"tenants": str(tenants)}})
    document["proxy_location"] = "Disabled"
    with _key_of_its_own(keys[VICTIM]), deployed(name, document, folder, port, None) as running:
        running.at_rest()
        yield Target(running=running, keys=keys)


@contextmanager
def _key_of_its_own(key: str) -> Iterator[None]:
    """What asks for the model's name takes its key from the environment."""
    before = os.environ.get(KEY_VARIABLE)
    os.environ[KEY_VARIABLE] = key
    try:
        yield
    finally:
        os.environ.pop(KEY_VARIABLE)
        if before is not None:
            os.environ[KEY_VARIABLE] = before


def _tenant(name: str, key: str) -> dict[str, Any]:
    hashed = f"sha256:{sha256(key.encode()).hexdigest()}"
    return {"name": name, "keys": [hashed], **({"limits": LIMITS} if name in (HONEST, ATTACKER) else {})}
