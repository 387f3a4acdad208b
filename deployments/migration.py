"""Rewrites the old names in a YAML file, in place: its comments and its layout stay.

``python -m deployments.config migrate FILE``

Exit status: 0 when the file has the names of now, 1 when it has old ones that have to be changed by hand, 2 when it
can't be read or written.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import yaml

from cluster.config.renamed import has_old_name, modernised, rewritten, without_warnings
from policies.errors import ConfigError


def migrated(text: str) -> tuple[str, list[str]]:
    """A file's text with the names of now, and what was changed, as ``line N: before -> after``.

    Raises:
        ConfigError: Rewriting its lines does not make the document that it has to be.
    """
    lines = text.split("\n")
    changed = [rewritten(line) for line in lines]
    pairs = enumerate(zip(lines, changed, strict=True), start=1)
    changes = [f"line {number}: {old.strip()} -> {new.strip()}" for number, (old, new) in pairs if old != new]
    new_text = "\n".join(changed)
    if _modernised(yaml.safe_load(text)) != yaml.safe_load(new_text):
        numbers = [number for number, line in enumerate(lines, start=1) if has_old_name(line)]
        allowed = "names without quotes and anchors, and in no other section; change these lines by hand"
        raise ConfigError("lines", numbers, allowed)
    return new_text, changes


def _modernised(document: Any) -> Any:
    """Of a Serve configuration what its applications say, of any other file all of it."""
    if not isinstance(document, dict) or not isinstance(document.get("applications"), list):
        return modernised(document)
    return {**document, "applications": [_application(each) for each in document["applications"]]}


def _application(application: Any) -> Any:
    if not isinstance(application, dict):
        return application
    found = dict(application)
    if "args" in found:
        found["args"] = modernised(found["args"])
    if isinstance(found.get("deployments"), list):
        found["deployments"] = [_deployment(each) for each in found["deployments"]]
    return found


def _deployment(deployment: Any) -> Any:
    if not isinstance(deployment, dict) or "user_config" not in deployment:
        return deployment
    return {**deployment, "user_config": modernised(deployment["user_config"])}


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m deployments.config", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    migrate = commands.add_parser("migrate", help="rewrite the old names in a YAML file, in place")
    migrate.add_argument("file", type=Path, metavar="FILE", help="a Serve configuration or a scenario")
    path: Path = parser.parse_args(arguments).file
    try:
        before = path.read_bytes().decode("utf-8")  # its ends of lines stay what they are
        with without_warnings():
            after, changes = migrated(before)
        if changes:
            path.write_bytes(after.encode("utf-8"))
    except ConfigError as error:
        print(f"{path}: {error}", file=sys.stderr)
        return 1
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        print(f"{path}: {error}", file=sys.stderr)
        return 2
    print("\n".join(changes) or f"{path}: nothing to change")
    return 0
