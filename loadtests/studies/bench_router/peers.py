"""The routers that are measured, and how each is started with the best settings that its documentation knows."""

import shlex
import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from loadtests.machine.systems import ROOT, System

PEERS = ROOT / "loadtests" / "peers"
MODEL = ROOT / ".models" / "tiny-llama"
WORKER_PORTS = range(19_001, 19_005)
FIRST_PORT, METRICS_PORT = 30_101, 29_101
DIRECT, SPILLWAY, LITELLM = "mock workers, asked directly", "spillway", "LiteLLM"
GATEWAY = "ray::ServeReplica:spillway:gateway"
LITELLM_KEY = "sk-1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Router:
    """One router.

    Args:
        system: How it is started.
        workers: Starts the workers that it wants in the place of the mock ones; empty: it wants those.
        process: The process whose time counts; empty: all that the system has.
        model: What it calls its model.
    """

    system: System
    workers: Sequence[str] = ()
    process: str = ""
    model: str = "tiny-llama"


def routers(folder: Path) -> list[Router]:
    """All of them; spillway's with one gateway and with two."""
    ours = [Router(system=_direct()), _spillway(folder, 1), _spillway(folder, 2)]
    return ours + [_peer(peer, number, folder) for number, peer in enumerate(peers())]


def peers() -> Sequence[Mapping[str, Any]]:
    """Other routers, as ``routers.yaml`` says how to have them."""
    found: list[dict[str, Any]] = yaml.safe_load((PEERS / "routers.yaml").read_text())
    return found


def _direct() -> System:
    """The first mock worker by itself."""
    command = worker(WORKER_PORTS[0])
    return System(name=DIRECT, command=command, port=WORKER_PORTS[0], ready_path="/health", ready_text="ready", env={})


def worker(port: int) -> list[str]:
    """Starts a mock worker."""
    return [sys.executable, "-m", "loadtests.machine.mock_worker", "--port", f"{port}"]


def _spillway(folder: Path, gateways: int) -> Router:
    document = yaml.safe_load((PEERS / "spillway-router.yaml").read_text())
    document["applications"][0]["args"]["gateway"]["replicas"] = gateways
    config = folder / f"spillway-{gateways}.yaml"
    config.write_text(yaml.safe_dump(document, sort_keys=False))
    name = SPILLWAY if gateways == 1 else f"{SPILLWAY}, {gateways} gateways"
    port = FIRST_PORT + 90 + gateways
    command = [sys.executable, "-m", "deployments.launch", str(config), "--port", f"{port}"]
    system = System(name=name, command=command, port=port, ready_path="/ready", ready_text='"ready"', env={})
    return Router(system=system, process=GATEWAY)


def _peer(peer: Mapping[str, Any], number: int, folder: Path) -> Router:
    port = FIRST_PORT + number
    places = {
        "bin": _environment(peer) / "bin",
        "port": port,
        "metrics": METRICS_PORT + number,
        "workers": " ".join(f"http://127.0.0.1:{each}" for each in WORKER_PORTS),
        "folder": folder,
        "model": MODEL,
    }
    env = {name: value.format(**places) for name, value in peer.get("env", {}).items()}
    system = System(
        name=peer["name"],
        command=shlex.split(peer["command"].format(**places)),
        port=port,
        ready_path=peer.get("ready_path", "/health"),
        ready_text=peer.get("ready_text", ""),
        env={"HF_HUB_OFFLINE": "1", **env},
    )
    workers = shlex.split(peer.get("workers", "").format(**places))
    return Router(system=system, workers=workers, model=peer.get("model", "tiny-llama").format(**places))


def _environment(peer: Mapping[str, Any]) -> Path:
    return ROOT / ".peers" / str(peer["name"]).lower()


def install(peer: Mapping[str, Any]) -> str:
    """Has a router in an environment of its own; what is in the way, or nothing."""
    folder = _environment(peer)
    mark = folder / f"installed {peer['requirement']}"
    if mark.exists():
        return ""
    venv.create(folder, with_pip=True)
    command = [
        folder / "bin" / "python",
        "-m",
        "pip",
        "install",
        "--quiet",
        "--only-binary",
        ":all:",
        peer["requirement"],
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["pip failed"])[-1]
    mark.touch()
    return ""


def write_litellm(folder: Path) -> None:
    """LiteLLM's configuration: the mock workers, one model, no database."""
    models = [
        {
            "model_name": "tiny-llama",
            "litellm_params": {"model": "openai/tiny-llama", "api_base": f"http://127.0.0.1:{port}/v1", "api_key": "x"},
        }
        for port in WORKER_PORTS
    ]
    settings = {
        "router_settings": {"routing_strategy": "simple-shuffle"},
        "general_settings": {"master_key": LITELLM_KEY},
    }
    (folder / "litellm.yaml").write_text(yaml.safe_dump({"model_list": models, **settings}))
