"""Event logs of gateways that tests deploy, and whether all held in them that must."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cluster.event_log.invariants import hear_log

LATE_S = 20.0
"""An event loop waits for a core for seconds where tests run side by side."""


def check_logs(folder: Path) -> None:
    """Fails where something does not hold, as far as the logs of a folder go; a gateway that runs writes still."""
    paths = sorted(each for each in folder.iterdir() if each.stat().st_size) if folder.is_dir() else []
    assert paths, f"no gateway has written an event log into {folder}"
    broken = [each for path in paths for each in _broken_in(path)]
    assert not broken, "what must hold in any conversation of a dispatcher's does not:\n" + "\n".join(broken)


def _broken_in(path: Path) -> Iterator[str]:
    with path.open("rb") as file:
        heard = hear_log(file, LATE_S).heard
    yield from (f"{path}, {each}" for each in heard.violations)


class GatewayLogs:
    """The logs of all applications of a cluster.

    Args:
        root: Each application has a folder there, unless its configuration says otherwise.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._folders: dict[str, Path] = {}

    def folder(self, name: str) -> str:
        """Where the gateways of an application log to; it is looked at from now on."""
        return str(self._folders.setdefault(name, self._root / name))

    def added_to(self, args: dict[str, Any], name: str) -> dict[str, Any]:
        """The configuration of an application with an event log, if it has none."""
        gateway = args.get("gateway", {})
        if "event_log" in gateway:
            self._folders[name] = Path(gateway["event_log"])
            return args
        return {**args, "gateway": {**gateway, "event_log": self.folder(name)}}

    def check(self, name: str) -> None:
        """What an application's gateways have logged so far holds."""
        check_logs(self._folders[name])

    def check_all(self) -> None:
        """The same for all of them, when their gateways are gone: where they have closed a log nothing is open."""
        for name in self._folders:
            self.check(name)
