"""What answers: vLLM's own server, and deployments of the same model."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from engines.vllm.scripted_model import ensure_scripted_model
from engines.vllm.tiny_model import ensure_tiny_model, ensure_tiny_reranker
from loadtests.machine.systems import ROOT, System
from loadtests.studies.bench import ENGINE_ENV
from loadtests.studies.openai_surface.cases import Case, cases, embedding_cases, score_cases

VLLM_PORT, PORT = 8130, 8131
ONE_ENGINE, HANDOFF = "unified-vllm", "local-vllm"


@dataclass(frozen=True, slots=True)
class Setup:
    """How both are started, and what they are asked.

    Args:
        name: Of it.
        model: Folder in ``.models``, and the model's name.
        make: Makes it.
        cases: What is asked.
        tool_call_parser: vLLM's, if any.
        reasoning_parser: vLLM's, if any: every chat goes through vLLM's layer then.
        pools: Whether the model makes vectors.
    """

    name: str
    model: str
    make: Callable[[Path], object]
    cases: Callable[[], Iterator[Case]]
    tool_call_parser: str = ""
    reasoning_parser: str = ""
    pools: bool = False

    @property
    def folder(self) -> Path:
        """Of the checkpoint."""
        return ROOT / ".models" / self.model

    @property
    def deployments(self) -> tuple[str, ...]:
        """Configurations that are compared; a vector has no KV to hand over."""
        return (ONE_ENGINE,) if self.pools else (ONE_ENGINE, HANDOFF)


SCRIPTS = ("tiny-scripts", ensure_scripted_model, cases)
SETUPS = (
    Setup("hermes", *SCRIPTS, "hermes"),
    Setup("llama, reasoning", *SCRIPTS, "llama3_json", "deepseek_r1"),
    Setup("embedder", "tiny-llama", ensure_tiny_model, embedding_cases, pools=True),
    Setup("reranker", "tiny-reranker", ensure_tiny_reranker, score_cases, pools=True),
)


def vllms_server(setup: Setup) -> System:
    """vLLM's own, with the engine that the deployments have."""
    options = {
        "model": str(setup.folder),
        "served-model-name": setup.model,
        "host": "127.0.0.1",
        "port": str(VLLM_PORT),
        "max-model-len": "8192",
        "dtype": "float32",
        "structured-outputs-config": '{"backend": "xgrammar", "disable_any_whitespace": true}',
    }
    flags = ["--enforce-eager", "--enable-prompt-tokens-details"]
    if setup.tool_call_parser:
        options["tool-call-parser"] = setup.tool_call_parser
        flags.append("--enable-auto-tool-choice")
    if setup.reasoning_parser:
        options["reasoning-parser"] = setup.reasoning_parser
    if setup.pools:
        options["runner"] = "pooling"
    said = [part for name, value in options.items() for part in (f"--{name}", value)]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *said, *flags]
    return System(
        name="vLLM server",
        command=command,
        port=VLLM_PORT,
        ready_path="/v1/models",
        ready_text=setup.model,
        env=ENGINE_ENV,
    )


def deployment(setup: Setup, name: str, folder: Path) -> System:
    """A configuration that comes along, with the setup's model and vLLM's layer."""
    document = yaml.safe_load((ROOT / "deployments" / "configs" / f"{name}.yaml").read_text())
    args = document["applications"][0]["args"]
    args["model"] = {"id": setup.model, "path": str(setup.folder)}
    layer: dict[str, Any] = {}
    if setup.tool_call_parser:
        layer = {"tool_call_parser": setup.tool_call_parser, "enable_auto_tool_choice": True}
    if setup.pools:
        args["pools"][0]["role"] = "pooling"
    if setup.reasoning_parser:
        layer["reasoning_parser"] = setup.reasoning_parser
    args["gateway"]["vllm_front_end"] = layer
    config = folder / f"{name}.yaml"
    config.write_text(yaml.safe_dump(document))
    command = [sys.executable, "-m", "deployments.launch", str(config), "--port", str(PORT)]
    return System(name=name, command=command, port=PORT, ready_path="/ready", ready_text='"ready"', env={})
