"""A server of metrics pages."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any


class _Pages(BaseHTTPRequestHandler):
    """Gives one page after the other, and the last one from then on."""

    def __init__(self, pages: list[str], *args: Any) -> None:
        self._pages = pages
        super().__init__(*args)

    def do_GET(self) -> None:
        text = self._pages.pop(0) if len(self._pages) > 1 else self._pages[0]
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def serving(pages: list[str]) -> Iterator[str]:
    """Its URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Pages, pages)) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()
