"""Keeps NIXL's progress thread from burning a core in every engine that takes part in a KV handoff.

NIXL polls its transports in a thread of its own and, as its Python API makes it, never pauses: 0.84 to 0.98 of a core
per engine, idle or not, measured on CPU nodes. A pause of a millisecond brings that to 0.013; an event on a transport
ends the pause early. vLLM has no setting for it, but imports a class of the user's choice into each worker process
(``worker_extension_cls``) before NIXL starts; importing this module sets the pause.
"""

import os
from typing import Any

from nixl._api import nixlBind


class NixlPolling:
    """The class that vLLM asks for; the module's import has done the work."""


def _pause_between_polls(interval_s: float) -> None:
    make_agent = nixlBind.nixlAgent

    def agent(name: str, config: Any) -> Any:
        config.pthrDelay = int(interval_s * 1e6)
        return make_agent(name, config)

    nixlBind.nixlAgent = agent


_pause_between_polls(float(os.environ.get("SPILLWAY_KV_POLL_INTERVAL_S", "0")))
