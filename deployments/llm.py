"""Ray Serve LLM's builders: its configurations run here when ``import_path`` says ``deployments.llm`` in the place of
``ray.serve.llm``.

``python -m deployments.llm CONFIG`` prints what a configuration file of Ray Serve LLM is in this project's words.
"""

import argparse
import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from ray.serve import Application

from cluster.config.strict import refusal
from cluster.config.yaml_text import parse_yaml
from deployments.app import build
from deployments.configuration.models import models_in
from deployments.ray_llm.translation import OVERLAY, RayLlmTranslation
from deployments.replica.emulation import EmulatedArgs
from deployments.wire.serve_internals import EXTERNAL_SCALER, llm_serving_args
from policies.errors import ConfigError

LOGGER = logging.getLogger(__name__)
OPENAI, PREFILL_DECODE = "build_openai_app", "build_pd_openai_app"
BUILD = "deployments.app:build"
MODULES = ("ray.serve.llm", "deployments.llm")


def build_openai_app(args: Mapping[str, Any] | BaseModel) -> Application:
    """An application of models with one pool each, behind gateways.

    Args:
        args: As Ray's builder of this name takes them, and perhaps ``spillway``: what is laid over the translation.

    Raises:
        ConfigError: A field that can't be served, by its name, or as :func:`deployments.app.build`.
    """
    return _built(OPENAI, args)


def build_pd_openai_app(args: Mapping[str, Any] | BaseModel) -> Application:
    """An application of one model, of which some replicas compute prompts and others answers, behind gateways.

    Args:
        args: As Ray's builder of this name takes them, and perhaps ``spillway``.

    Raises:
        ConfigError: As :func:`build_openai_app`.
    """
    return _built(PREFILL_DECODE, args)


def translated(document: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """A Serve configuration whose applications of Ray Serve LLM are this project's, and what is left out of them.

    Raises:
        ConfigError: A field that can't be served, by its name.
    """
    notes: list[str] = []
    given = document.get("applications")
    if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
        return dict(document), notes
    return {**document, "applications": [_translated_application(each, notes) for each in given]}, notes


def _translated_application(application: dict[str, Any], notes: list[str]) -> dict[str, Any]:
    module, _, builder = str(application.get("import_path")).partition(":")
    if module not in MODULES or builder not in (OPENAI, PREFILL_DECODE):
        return application
    args, translation = _args(builder, application.get("args") or {}, scales=True)
    notes += translation.notes
    scaled = {EXTERNAL_SCALER: True} if translation.scales else {}
    return {**application, "import_path": BUILD, **scaled, "args": args}


def _built(builder: str, given: Mapping[str, Any] | BaseModel) -> Application:
    args, translation = _args(builder, given, scales=False)
    for note in translation.notes:
        LOGGER.warning("%s", note)
    return build(args)


def _args(
    builder: str, given: Mapping[str, Any] | BaseModel, *, scales: bool
) -> tuple[dict[str, Any], RayLlmTranslation]:
    overlay, read = _read(llm_serving_args(disaggregated=builder == PREFILL_DECODE), given)
    translation = RayLlmTranslation(overlay, EmulatedArgs.model_fields, scales=scales)
    fields = {name: getattr(read, name) for name in type(read).model_fields}
    if builder == OPENAI:
        return translation.openai_app(fields.pop("llm_configs"), fields), translation
    prefill, decode = fields.pop("prefill_config"), fields.pop("decode_config")
    return translation.prefill_decode_app(prefill, decode, fields), translation


def _read(schema: type[BaseModel], given: Mapping[str, Any] | BaseModel) -> tuple[Any, BaseModel]:
    """What is laid over the translation, and what Ray has validated."""
    if isinstance(given, BaseModel):
        return None, given
    if not isinstance(given, Mapping):
        raise ConfigError("args", given, "a mapping")
    try:
        read = schema.model_validate({name: value for name, value in given.items() if name != OVERLAY})
    except ValidationError as error:
        raise refusal(error) from error
    except (AttributeError, TypeError) as error:  # of a validator that takes the value for what it should be
        raise ConfigError("args", given, f"what ray.serve.llm takes ({error})") from error
    return given.get(OVERLAY), read


def main(arguments: list[str] | None = None) -> int:
    """Command line: prints the translation; what is left out goes to standard error."""
    parser = argparse.ArgumentParser(prog="python -m deployments.llm", description=__doc__.rpartition("\n\n")[2])
    parser.add_argument("config", type=Path, help="a Serve configuration of ray.serve.llm, as `serve run` takes it")
    path: Path = parser.parse_args(arguments).config
    try:
        document, notes = translated(parse_yaml(path.read_text()))
        for application in document["applications"]:
            models_in(application["args"])
    except (ConfigError, OSError, yaml.YAMLError, AttributeError, KeyError, TypeError) as error:
        print(f"{path}: {error}", file=sys.stderr)
        return 1
    print(yaml.safe_dump(document, sort_keys=False, allow_unicode=True), end="")
    for note in notes:
        print(f"# {note}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
