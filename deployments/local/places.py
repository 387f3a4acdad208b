"""Where the local launcher keeps the files of each deployment. Imports Ray late: it reads its environment at once."""

import os
from pathlib import Path

from cluster.private_folder import private_folder
from policies.errors import ConfigError


def place_of(port: int) -> Path:
    """The folder for temporary files of the deployment on this HTTP port.

    Raises:
        ConfigError: Somebody else has made the folder that it is in.
    """
    return private_folder() / str(port)


def config_of(port: int) -> Path:
    """The file that Serve has of the deployment on this HTTP port.

    Raises:
        ConfigError: The launcher runs nothing there.
    """
    written = place_of(port) / "serve.yaml"
    if not written.is_file():
        raise ConfigError("port", port, "the HTTP port of a deployment that the launcher runs here")
    return written


def ports_files(port: int) -> list[Path]:
    """Where Ray has left its own port, of the newest start of the deployment on this HTTP port."""
    return sorted(place_of(port).glob("ray/session_latest/gcs_server_port_*"))


def ray_address(port: int) -> str:
    """Where the Ray cluster of the deployment on this HTTP port is found; Ray leaves its own port in its folder.

    Raises:
        ConfigError: The launcher has run nothing there.
    """
    ports = ports_files(port)
    if not ports:
        raise ConfigError("port", port, "the HTTP port of a deployment that the launcher runs here")
    return f"127.0.0.1:{ports[0].read_text().strip()}"


def prepare_to_join(address: str | None = None) -> None:
    """Sets what Ray reads from the environment when it is imported; call it before that."""
    os.environ.setdefault("RAY_SERVE_LOG_TO_STDERR", "0")
    os.environ["RAY_SERVE_THROUGHPUT_OPTIMIZED"] = (
        "0"  # in that mode a handle wants an event loop, which no command has
    )
    if address is None:
        os.environ["RAY_AUTH_MODE"] = "token"  # what the launcher starts Ray with


def join(port: int, address: str | None = None) -> None:
    """Joins the Ray cluster at an address, or the one that the launcher runs for an HTTP port.

    Raises:
        ConfigError: There is none.
    """
    prepare_to_join(address)
    address = address or ray_address(port)
    os.environ["RAY_ADDRESS"] = address
    import ray  # noqa: PLC0415 - it reads its environment when it is imported

    try:
        ray.init(address=address, log_to_driver=False, configure_logging=False)
    except (ConnectionError, RuntimeError) as error:
        raise ConfigError("address", address, f"a Ray cluster that can be joined ({error})") from error
