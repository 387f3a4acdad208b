"""Checks at start-up that every package of this application comes from one folder.

The packages have generic names (``cluster``, ``policies``), and another distribution may ship one of the same name;
running half of each would fail in ways that take a day to understand.
"""

import importlib
from pathlib import Path

from policies.errors import ConfigError

PACKAGES = ("policies", "routing", "engines", "cluster", "deployments")


def check_single_root() -> None:
    """Raises ``ConfigError`` when a package comes from another folder than this file's."""
    root = Path(__file__).resolve().parent.parent
    for name in PACKAGES:
        found = importlib.import_module(name).__file__
        if found is None or Path(found).resolve().parent.parent != root:
            raise ConfigError(f"package {name}", found, f"a package under {root}; set PYTHONPATH to it on every node")
