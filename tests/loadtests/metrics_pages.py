"""A server of metrics pages."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

Pages = list[str] | list[str | int]


class _Pages(BaseHTTPRequestHandler):
    """Gives one page after the other, and the last one from then on; a number is a status without a page."""

    def __init__(self, pages: Pages, *args: Any) -> None:
        self._pages = pages
        super().__init__(*args)

    def do_GET(self) -> None:
        page = self._pages.pop(0) if len(self._pages) > 1 else self._pages[0]
        self.send_response(page if isinstance(page, int) else 200)
        self.end_headers()
        self.wfile.write(b"" if isinstance(page, int) else page.encode())

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def serving(pages: Pages) -> Iterator[str]:
    """Its URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Pages, pages)) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()
