"""What answers: vLLM's own server, and deployments of the same model."""

import sys
from dataclasses import dataclass
from pathlib import Path

import yaml

from loadtests.machine.systems import ROOT, System
from loadtests.studies.bench import ENGINE_ENV

MODEL = "tiny-scripts"
FOLDER = ROOT / ".models" / MODEL
VLLM_PORT, PORT = 8130, 8131


@dataclass(frozen=True, slots=True)
class Setup:
    """How both are started.

    Args:
        name: Of it.
        tool_call_parser: vLLM's.
        reasoning_parser: vLLM's, if any: every chat goes through vLLM's layer then.
    """

    name: str
    tool_call_parser: str
    reasoning_parser: str = ""


SETUPS = (Setup("hermes", "hermes"), Setup("llama, reasoning", "llama3_json", "deepseek_r1"))


def vllms_server(setup: Setup) -> System:
    """vLLM's own, with the engine that the deployments have."""
    options = {
        "model": str(FOLDER),
        "served-model-name": MODEL,
        "host": "127.0.0.1",
        "port": str(VLLM_PORT),
        "max-model-len": "8192",
        "dtype": "float32",
        "tool-call-parser": setup.tool_call_parser,
        "structured-outputs-config": '{"backend": "xgrammar", "disable_any_whitespace": true}',
    }
    if setup.reasoning_parser:
        options["reasoning-parser"] = setup.reasoning_parser
    flags = ["--enforce-eager", "--enable-auto-tool-choice", "--enable-prompt-tokens-details"]
    said = [part for name, value in options.items() for part in (f"--{name}", value)]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *said, *flags]
    return System(
        name="vLLM server", command=command, port=VLLM_PORT, ready_path="/v1/models", ready_text=MODEL, env=ENGINE_ENV
    )


def deployment(setup: Setup, name: str, folder: Path) -> System:
    """A configuration that comes along, with the scripted model and vLLM's layer."""
    document = yaml.safe_load((ROOT / "deployments" / "configs" / f"{name}.yaml").read_text())
    args = document["applications"][0]["args"]
    args["model"] = {"id": MODEL, "path": str(FOLDER)}
    layer = {"tool_call_parser": setup.tool_call_parser, "enable_auto_tool_choice": True}
    if setup.reasoning_parser:
        layer["reasoning_parser"] = setup.reasoning_parser
    args["gateway"]["vllm_front_end"] = layer
    config = folder / f"{name}.yaml"
    config.write_text(yaml.safe_dump(document))
    command = [sys.executable, "-m", "deployments.launch", str(config), "--port", str(PORT)]
    return System(name=name, command=command, port=PORT, ready_path="/ready", ready_text='"ready"', env={})
