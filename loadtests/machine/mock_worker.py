"""A worker for routers to route to: answers OpenAI's completions at a fixed pace, and computes nothing.

``python -m loadtests.machine.mock_worker --port N [--step-s 0.002]``

A token takes a step, of one that is asked for as of each of many. What it costs itself is little, so that what a router
costs can be told.
"""

import argparse
import asyncio
from collections.abc import Sequence

import httptools
import msgspec

FIRST_TOKEN_STEPS = 2
MODEL = "tiny-llama"
EVENT = (
    b'data: {"id":"c","object":"text_completion","created":1,"model":"tiny-llama",'
    b'"choices":[{"index":0,"text":" word","logprobs":null,"finish_reason":null}]}\n\n'
)
CHAT_EVENT = (
    b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"tiny-llama",'
    b'"choices":[{"index":0,"delta":{"content":" word"},"finish_reason":null}]}\n\n'
)
USAGE = (
    b'data: {"id":"c","object":"text_completion","created":1,"model":"tiny-llama","choices":[],'
    b'"usage":{"prompt_tokens":64,"completion_tokens":%d,"total_tokens":%d}}\n\ndata: [DONE]\n\n'
)
WHOLE = (
    b'{"id":"c","object":"text_completion","created":1,"model":"tiny-llama",'
    b'"choices":[{"index":0,"text":" word","message":{"role":"assistant","content":" word"},"finish_reason":"length"}],'
    b'"usage":{"prompt_tokens":64,"completion_tokens":%d,"total_tokens":%d}}'
)
CARDS = b'{"object":"list","data":[{"id":"tiny-llama","object":"model","created":1,"owned_by":"mock"}]}'
SERVER_INFO = b'{"model_path":"tiny-llama","served_model_name":"tiny-llama","model_id":"tiny-llama","status":"ready"}'
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\n%b\r\n"


class MockWorker(asyncio.Protocol):
    """One connection; requests on it are answered one after the other.

    Args:
        step_s: How long a token takes.
    """

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._body = bytearray()
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.close()  # such as a probe for HTTP/2

    def on_url(self, url: bytes) -> None:
        self._url = url
        self._body.clear()

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        if not self._url.endswith(b"/completions"):
            self._send_whole(CARDS if self._url.startswith(b"/v1/models") else SERVER_INFO)
            return
        asked = msgspec.json.decode(bytes(self._body))
        tokens = int(asked.get("max_tokens") or 16)
        if asked.get("stream"):
            self._transport.write(HEAD % (b"text/event-stream", b"transfer-encoding: chunked\r\n"))
            event = CHAT_EVENT if b"/chat/" in self._url else EVENT
            self._loop.call_later(FIRST_TOKEN_STEPS * self._step_s, self._stream, event, 1, tokens)
        else:
            delay_s = (FIRST_TOKEN_STEPS + tokens - 1) * self._step_s
            self._loop.call_later(delay_s, self._send_whole, WHOLE % (tokens, 64 + tokens))

    def _stream(self, event: bytes, number: int, tokens: int) -> None:
        self._chunk(event)
        if number < tokens:
            self._loop.call_later(self._step_s, self._stream, event, number + 1, tokens)
        else:
            self._chunk(USAGE % (tokens, 64 + tokens))
            self._write(b"0\r\n\r\n")

    def _chunk(self, data: bytes) -> None:
        self._write(b"%x\r\n%b\r\n" % (len(data), data))

    def _send_whole(self, body: bytes) -> None:
        self._write(HEAD % (b"application/json", b"content-length: %d\r\n" % len(body)) + body)

    def _write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)


async def _serve(port: int, step_s: float) -> None:
    server = await asyncio.get_running_loop().create_server(lambda: MockWorker(step_s), "127.0.0.1", port)
    await server.serve_forever()


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: serves until it is terminated."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.machine.mock_worker", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--port", type=int, required=True, help="where it listens, at 127.0.0.1")
    parser.add_argument("--step-s", type=float, default=0.002, help="how long a token takes, in seconds")
    options = parser.parse_args(arguments)
    asyncio.run(_serve(options.port, options.step_s))


if __name__ == "__main__":
    main()
