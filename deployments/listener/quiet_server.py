"""uvicorn without its listening sockets: it serves connections that were accepted elsewhere."""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import uvicorn


class QuietServer(uvicorn.Server):
    """A server that leaves signals to Ray; each accepted connection gets a :meth:`protocol`."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        config.load()
        self._serving = asyncio.get_running_loop().create_task(self.serve(sockets=[]))

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def protocol(self, **more: Any) -> Any:
        """One for a connection."""
        kind: Any = self.config.http_protocol_class
        return kind(config=self.config, server_state=self.server_state, app_state={}, **more)

    async def close(self, patience_s: float) -> None:
        """Waits so long for the answers that are under way."""
        self.should_exit = True
        await asyncio.wait([self._serving], timeout=patience_s)
        self._serving.cancel()
        await asyncio.wait([self._serving])
