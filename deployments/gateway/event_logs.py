"""Where a gateway's event log goes: nowhere unless the configuration names a folder."""

import errno
import logging
import os
from functools import partial
from io import FileIO

from cluster.event_log.frames import LogHeader, NoEventLog
from cluster.event_log.writer import EventLogFile
from deployments.config import ROOT
from policies.errors import ConfigError

LOGGER = logging.getLogger("ray.serve")
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def open_event_log(folder: str | None, header: LogHeader) -> EventLogFile | NoEventLog:
    """Begins the log ``<folder>/<gateway>-<pid>.log``.

    A folder that can't be written to is a mistake in the configuration. A disk that is full is not, and no reason not
    to serve: that is logged, and there is no event log.

    Args:
        folder: Absolute, or relative to the application's folder; made when it is not there.
        header: What the gateway's dispatcher is made from.

    Raises:
        ConfigError: The folder can't be made or written to.
    """
    if folder is None:
        return NoEventLog()
    path = ROOT / folder / f"{header.gateway}-{os.getpid()}.log"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = FileIO(path, "x", opener=partial(os.open, mode=0o600))  # it has tenants, and hashes of prompts
    except OSError as error:
        if error.errno not in FULL:
            raise ConfigError("gateway.event_log", folder, f"a folder that gateways can write to ({error})") from error
        LOGGER.error("there will be no event log %s: %s", path, str(error))
        return NoEventLog()
    LOGGER.info("event log: %s", path)
    return EventLogFile(file, header, LOGGER.error)
