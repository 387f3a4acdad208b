"""Where the local launcher keeps the files of each deployment. Imports no Ray, which reads its environment at once."""

import os
import tempfile
from pathlib import Path

from policies.errors import ConfigError


def place_of(port: int) -> Path:
    """The folder for temporary files of the deployment on this HTTP port; short, because socket paths must be."""
    return Path(tempfile.gettempdir()) / f"spillway-{os.getuid()}" / str(port)


def ray_address(port: int) -> str:
    """Where the Ray cluster of the deployment on this HTTP port is found; Ray leaves its own port in its folder.

    Raises:
        ConfigError: The launcher has run nothing there.
    """
    ports = sorted(place_of(port).glob("ray/session_latest/gcs_server_port_*"))
    if not ports:
        raise ConfigError("port", port, "the HTTP port of a deployment that the launcher runs here")
    return f"127.0.0.1:{ports[0].read_text().strip()}"
