"""A gateway's end of the process that makes the token ids of its long texts."""

import asyncio
import logging
import os
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, Self
from weakref import finalize

import msgspec

from deployments.tokenizing.checkpoint import plain_rust
from deployments.tokenizing.encoding_messages import LENGTH, LOADED, Encoded, Priority, Text, Wanted, message

LOGGER = logging.getLogger("ray.serve")
PROGRAM = "deployments.tokenizing.encoding_program"
MOST_TRIES = 2
"""Of a text that the process ends with, or beside another one that it does."""
READ_BYTES = 1 << 20


class EncodingLost(Exception):
    """The process has ended before it answered."""


class EncodingFailed(Exception):
    """The tokenizer can't encode the text; the message says why."""


class Source:
    """What texts are encoded with.

    Args:
        tokenizer: Of a checkpoint.
        model_path: Its folder.

    Attributes:
        arguments: Of the program.
        files: Which it is to have, by their numbers.
    """

    def __init__(self, tokenizer: Any, model_path: str) -> None:
        self.arguments = ("whole", model_path)
        self.files: tuple[int, ...] = ()
        if said := _as_json(tokenizer):
            file = _in_memory(said.encode())
            self.files = (file,)
            self.arguments = ("plain", str(file))
        self._close = finalize(self, _close_all, self.files)

    def close(self) -> None:
        """No more processes are started."""
        self._close()


def _as_json(tokenizer: Any) -> str:
    """All that there is to the tokenizer; empty, where JSON does not have that."""
    rust = plain_rust(tokenizer)
    if rust is None or rust.encode_special_tokens:
        return ""
    try:
        said: str = rust.to_str()
    except Exception:  # it has parts in Python, and tokenizers no class of its own
        return ""
    return said


def _in_memory(said: bytes) -> int:
    """An open file that is nowhere."""
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("spillway-tokenizer")
    else:
        with tempfile.TemporaryFile() as temporary:
            file = os.dup(temporary.fileno())
    with os.fdopen(file, "wb", closefd=False) as opened:
        opened.write(said)
    return file


def _close_all(files: tuple[int, ...]) -> None:
    for each in files:
        os.close(each)


class EncodingProcess:
    """The process, which is started when there is something for it, and again when it has ended.

    Args:
        source: What it encodes with.
        priority: What it has of cores that others want.
    """

    def __init__(self, source: Source, priority: Priority) -> None:
        self._source = source
        self._priority = priority
        self._starting = asyncio.Lock()
        self._is_closed = False
        self._running: _NoProcess = _NoProcess()

    async def encode(self, text: str, add_special_tokens: bool, wanted: Wanted) -> Encoded:
        """What comes of a text.

        Args:
            text: Which.
            add_special_tokens: Whether those are added that begin a text.
            wanted: What is to come of it.

        Raises:
            EncodingFailed: The tokenizer can't.
            EncodingLost: The process has ended with it twice, or can't be started, or is closed.
        """
        for tried in range(1, MOST_TRIES + 1):
            try:
                found = await (await self._started()).encode(text, add_special_tokens, wanted)
            except EncodingLost:
                LOGGER.warning("the process that encodes long texts is lost, with one of %d characters", len(text))
                if tried == MOST_TRIES:
                    raise
            else:
                break
        if found.error:
            raise EncodingFailed(found.error)
        return found

    async def loaded(self) -> None:
        """Waits until there is one that has its tokenizer; where that comes to nothing, texts hear of it."""
        with suppress(EncodingLost):
            await (await self._started()).loaded()

    def close(self) -> None:
        """Ends it; nothing is encoded any more."""
        self._is_closed = True
        self._running.close()
        self._source.close()

    async def _started(self) -> "_NoProcess":
        async with self._starting:
            if self._running.is_over and not self._is_closed:
                try:
                    self._running = await _Running.start(self._source, self._priority)
                except OSError as error:
                    LOGGER.warning("the process that encodes long texts can't be started: %s", str(error))
                    raise EncodingLost from error
            if self._is_closed:
                self._running.close()
                raise EncodingLost
            return self._running


class _NoProcess:
    """None has been started.

    Attributes:
        is_over: There is none any more.
        pid: Its number.
    """

    is_over = True
    pid = 0

    async def loaded(self) -> None:
        """It has its tokenizer, or has ended."""

    def encode(self, text: str, add_special_tokens: bool, wanted: Wanted) -> "asyncio.Future[Encoded]":
        """What comes of a text; ``EncodingLost``, if there is no process, or it ends before."""
        made: asyncio.Future[Encoded] = asyncio.get_running_loop().create_future()
        made.set_exception(EncodingLost())
        return made

    def close(self) -> None:
        """Ends it at once."""


class _Running(_NoProcess):
    """One process, from its start to its end."""

    def __init__(
        self, process: "subprocess.Popen[bytes]", reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._process = process
        self._reader, self._writer = reader, writer
        self._numbers = count(LOADED.number + 1)
        self._has_loaded = asyncio.Event()
        self._asked: dict[int, asyncio.Future[Encoded]] = {}
        self.is_over = False
        self.pid = process.pid
        self._hearing = asyncio.create_task(self._hear())

    @classmethod
    async def start(cls, source: Source, priority: Priority) -> Self:
        """Starts one, which has the other end of a pair of sockets."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                process = _process(source, priority, theirs)
        except BaseException:
            ours.close()
            raise
        try:
            return cls(process, *await asyncio.open_connection(sock=ours, limit=READ_BYTES))
        except BaseException:
            ours.close()
            _kill(process)
            raise

    def encode(self, text: str, add_special_tokens: bool, wanted: Wanted) -> "asyncio.Future[Encoded]":
        if self.is_over:
            return super().encode(text, add_special_tokens, wanted)
        made: asyncio.Future[Encoded] = asyncio.get_running_loop().create_future()
        number = next(self._numbers)
        self._asked[number] = made
        self._writer.write(message(Text(number, text, add_special_tokens, wanted)))
        return made

    async def loaded(self) -> None:
        await self._has_loaded.wait()

    def close(self) -> None:
        self._hearing.cancel()
        self._end()

    async def _hear(self) -> None:
        decoder = msgspec.msgpack.Decoder(Encoded)
        try:
            while True:
                [length] = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
                self._hear_of(decoder.decode(await self._reader.readexactly(length)))
        except (asyncio.IncompleteReadError, OSError):
            pass  # it has ended
        except (msgspec.MsgspecError, KeyError) as error:
            LOGGER.error("the process that encodes long texts says what nobody understands: %s", repr(error))
        finally:
            self._end()

    def _hear_of(self, found: Encoded) -> None:
        if found == LOADED:
            self._has_loaded.set()
            return
        made = self._asked.pop(found.number)
        if not made.done():
            made.set_result(found)

    def _end(self) -> None:
        if self.is_over:
            return
        self.is_over = True
        self._has_loaded.set()
        for made in self._asked.values():
            if not made.done():
                made.set_exception(EncodingLost())
        self._asked.clear()
        self._writer.close()
        _kill(self._process)


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """Ends it at once, and hears the kernel's word that it has."""
    process.kill()
    with suppress(RuntimeError):  # no thread is to be had: the next process that is started hears it
        threading.Thread(target=process.wait, daemon=True).start()


def _process(source: Source, priority: Priority, connection: socket.socket) -> "subprocess.Popen[bytes]":
    """A process with one end of a connection; not one of the event loop's, which would watch it from its own thread."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", PROGRAM, str(connection.fileno()), priority, *source.arguments],
        pass_fds=[connection.fileno(), *source.files],
        stdin=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(each or str(Path.cwd()) for each in sys.path)},
    )
