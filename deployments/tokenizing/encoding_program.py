"""The program that makes the token ids of long texts, beside its gateway and not in it.

A thread of the gateway's would share Python's lock with all its streams: a list of 800,000 ids is made in 17 ms, and no
other thread runs meanwhile. Where cores are short and the thread gives way to others, that takes ten times as long, and
everybody waits for who should wait for them. A process shares nothing, and can give way.

``python -m deployments.tokenizing.encoding_program SOCKET PRIORITY KIND SOURCE``: an open socket, by its number, and
what to encode with. The program imports next to nothing where that is ``plain``.
"""

import os
import signal
import socket
import sys
import threading
from array import array
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Protocol

import msgspec

from deployments.tokenizing.encoding_messages import LENGTH, LOADED, Encoded, Priority, Text, Wanted, message

NICENESS = 10
"""With so much of it, a program has a tenth of what others have where cores are short."""
NUM_AT_A_TIME = 2
"""Texts; ``tokenizers`` lets go of Python's lock for batches, so that they are worked on side by side."""
Encode = Callable[[str, bool], "Encoding"]
"""Of a text, and whether special tokens are added."""


class Encoding(Protocol):
    """Of one text."""

    @property
    def ids(self) -> list[int]:
        """Of its tokens; they are made when they are asked for."""
        ...

    def __len__(self) -> int: ...


class Listed:
    """One whose ids are there.

    Args:
        ids: Of its tokens.
    """

    def __init__(self, ids: list[int]) -> None:
        self.ids = ids

    def __len__(self) -> int:
        return len(self.ids)


def plain(file: str) -> Encode:
    """With a tokenizer that is all in JSON.

    Args:
        file: That has the JSON, an open one, by its number. Others read it too, each from its beginning.
    """
    from tokenizers import Tokenizer  # noqa: PLC0415 - gateways import this module, and have theirs already

    said = os.pread(int(file), os.fstat(int(file)).st_size, 0)
    os.close(int(file))
    tokenizer: Any = Tokenizer.from_str(said.decode())
    return lambda text, specials: tokenizer.encode_batch_fast([text], add_special_tokens=specials)[0]


def whole(model_path: str) -> Encode:
    """With whatever tokenizer a checkpoint has.

    Args:
        model_path: Its folder.
    """
    from deployments.tokenizing.checkpoint import load  # noqa: PLC0415 - which takes a second or two

    tokenizer = load(model_path)
    return lambda text, specials: Listed(tokenizer.encode(text, add_special_tokens=specials))


SOURCES: dict[str, Callable[[str], Encode]] = {"plain": plain, "whole": whole}


def encoded(text: Text, encode: Encode) -> Encoded:
    """What comes of a text, whatever becomes of it."""
    try:
        encoding = encode(text.text, text.add_special_tokens)
        ids = b""
        if text.wanted is Wanted.IDS:
            ids = array("I", encoding.ids).tobytes()
        elif text.wanted is Wanted.JSON:
            ids = msgspec.json.encode(encoding.ids)
        return Encoded(text.number, len(encoding), ids)
    except BaseException as error:  # a panic of Rust's is one, and the next text is another
        return Encoded(text.number, error=f"{type(error).__name__}: {error}")


def serve(connection: socket.socket, encode: Encode, executor: Executor) -> None:
    """Encodes what comes, until the other end is closed; some of it may be encoded still."""
    decoder, sending = msgspec.msgpack.Decoder(Text), threading.Lock()

    def answer(text: Text) -> None:
        try:
            said = message(encoded(text, encode))
            with sending:
                connection.sendall(said)
        except BaseException:  # the gateway is gone, or is to hear that no answer comes
            os._exit(1)

    with connection.makefile("rb") as incoming:
        while len(head := incoming.read(LENGTH.size)) == LENGTH.size:
            [length] = LENGTH.unpack(head)
            if len(said := incoming.read(length)) < length:
                break
            executor.submit(answer, decoder.decode(said))
    executor.shutdown(wait=False, cancel_futures=True)


def _give_way(priority: Priority) -> None:
    """This thread takes no more of cores than that, from now on, where the system knows how; else it has its share."""
    if priority is Priority.SPARE:
        with suppress(AttributeError, OSError):  # another system than Linux, or a sandbox
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def main() -> None:
    """What the module says."""
    number, priority, kind, source = sys.argv[1:]
    os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0) + NICENESS)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # from a terminal it is for the gateway, which ends this
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # of one text nothing is parallel
    encode = SOURCES[kind](source)
    executor = ThreadPoolExecutor(NUM_AT_A_TIME, initializer=_give_way, initargs=(Priority(priority),))
    with socket.socket(fileno=int(number)) as connection:
        with suppress(OSError):  # the gateway is gone already
            connection.sendall(message(LOADED))
        serve(connection, encode, executor)
        os._exit(0)  # the gateway is gone, and nobody waits for what is encoded still


if __name__ == "__main__":
    main()
