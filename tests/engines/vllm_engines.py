"""Real vLLM engines of the tiny model, in a test's own process."""

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import psutil
import yaml

from deployments.config import ROOT
from engines import Engine
from engines.vllm.connectors import HANDOFF, Connector
from policies.views import Role

CONFIG = yaml.safe_load((ROOT / "deployments" / "configs" / "local-vllm.yaml").read_text())["applications"][0]["args"]

MODEL = str(ROOT / CONFIG["model"]["path"])
NIXL = (Connector(HANDOFF),)


@asynccontextmanager
async def engine_environment() -> AsyncIterator[None]:
    """What a replica's process has in its environment before it starts; vLLM adds to it, which is taken back."""
    from engines.vllm.tiny_model import ensure_tiny_model

    ensure_tiny_model(ROOT / CONFIG["model"]["path"])
    before = dict(os.environ)
    os.environ.update({**CONFIG["engine"]["env"], "PYTHONPATH": str(ROOT)})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@asynccontextmanager
async def running(
    role: Role,
    *,
    model: str = MODEL,
    changes_roles: bool = False,
    kv_events: bool = False,
    kv_connectors: Sequence[Connector] = NIXL,
    **more: Any,
) -> AsyncIterator[Engine]:
    from engines.vllm.engine import VllmEngine, VllmSettings

    settings = VllmSettings(
        model=model,
        role=role,
        changes_roles=changes_roles,
        engine_args={**CONFIG["engine"]["args"], **more},
        kv_events=kv_events,
        kv_connectors=kv_connectors,
    )
    engine = await VllmEngine.start(settings)
    try:
        await engine.warm_up()
        yield engine
    finally:
        await engine.shutdown()


def is_engine_core(process: psutil.Process) -> bool:
    """Whether a process is one in which an engine makes its steps; one that has ended is none."""
    try:
        return "EngineCore" in process.name() + " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return False
