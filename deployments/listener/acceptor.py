"""A gateway's end: takes its share of the connections that come to a node.

The first one to accept has a connection, so a gateway that stands still gets none. A gateway with more to do than
another one waits ``GRACE_S`` for the others before it takes what is left: the least busy one goes first, and nothing
depends on whether it lives. Where more connections wait than make the others as busy, or hundreds, no gateway waits.
"""

import asyncio
import logging
import select
import socket
import struct
from collections.abc import Callable
from typing import Self

from deployments.listener.address import Address
from deployments.listener.handover import is_of_this_user, new_socket, receive, send
from deployments.listener.load_page import LoadPage, load_of
from deployments.listener.messages import Joined, Joining, Refused
from policies.errors import ConfigError, ServingError

LOGGER = logging.getLogger("ray.serve")
GRACE_S = 0.005
"""A gateway that has less to do comes round in less, unless it stands still."""
MAX_AT_ONCE = 16
"""Connections that are taken before the event loop does something else."""
MAX_LEFT = 4
"""Connections that are taken without a look at the others' loads, once the grace is over: 800 a second."""
CROWD = 256
"""Connections that wait: so many that it matters little who takes them, and much that somebody does."""
PAUSE_S = 1.0
"""Other gateways may have descriptors left."""
NO_COUNT = -1
"""Never a number of connections: nothing is taken when such a wait ends."""
RETRY_S = 0.1
ANSWER_S = 8.0
"""More than a listener waits for a port that is taken."""
START_S = 30.0
"""How long a listener may take to start, a process of Ray's, on a machine that is busy."""
ACCEPT_BACKLOG = struct.Struct("24xI")
"""``tcpi_unacked`` of Linux' ``tcp_info``: of a listening socket, connections that wait to be accepted."""
Take = Callable[[socket.socket], None]
"""Serves a connection that was accepted, and never blocks."""
Ensure = Callable[[], object]
"""Starts the listener if there is none; blocks."""


class NoListener(ServingError):
    """There is no listener, or it says nothing."""


class Acceptor:
    """Takes connections for one gateway. Make it with :meth:`open`; everything happens on that event loop.

    Args:
        address: Where clients connect.
        take: Serves what it accepts.
        ensure: Starts the listener; raises ``NoListener`` where it can't.
    """

    def __init__(self, address: Address, take: Take, ensure: Ensure) -> None:
        self._loop = asyncio.get_running_loop()
        self._address = address
        self._take = take
        self._ensure = ensure
        self._num_requests = self._num_connections = 0
        self._grace: asyncio.TimerHandle | None = None
        self._rejoining: asyncio.Task[None] | None = None
        self._end: socket.socket
        self._listening: socket.socket
        self._page: LoadPage
        self._slot: int | None = None

    @classmethod
    async def open(cls, address: Address, take: Take, ensure: Ensure) -> Self:
        """Takes connections from now on.

        Args:
            address: Where clients connect.
            take: Serves a connection; from its accept on that is a request under way, see :meth:`count`.
            ensure: Starts the listener if there is none; blocks, in a thread.

        Raises:
            ConfigError: Another program listens there, or the address is none of this node's.
            NoListener: It does not start.
        """
        acceptor = cls(address, take, ensure)
        await acceptor._join(START_S)
        return acceptor

    def count(self, *, requests: int = 0, connections: int = 0) -> None:
        """So many more requests are under way, or fewer, and connections open."""
        self._num_requests += requests
        self._num_connections += connections
        if self._slot is not None:
            self._page.say(self._slot, self._load)

    @property
    def _load(self) -> int:
        return load_of(self._num_requests, self._num_connections)

    def close(self) -> None:
        """Accepts no more connections; open ones are served to their end."""
        if self._rejoining is not None:
            self._rejoining.cancel()
        if self._slot is not None:
            self._leave()
            self._end.close()

    async def _join(self, patience_s: float) -> None:
        give_up_at_s = self._loop.time() + patience_s
        while True:
            try:
                await asyncio.to_thread(self._ensure)
                return await self._ask()
            except (NoListener, OSError) as error:
                if self._loop.time() >= give_up_at_s:
                    raise NoListener(f"no listener for {self._address.host}:{self._address.port}: {error}") from error
            await asyncio.sleep(RETRY_S)

    async def _ask(self) -> None:
        end = new_socket()
        try:
            end.connect(self._address.meeting_point())
            if not is_of_this_user(end):
                raise NoListener("another user has its name")
            brought = () if self._slot is None else (self._listening.fileno(), self._page.fd)
            send(end, Joining(self._slot), brought)
            await self._until_it_speaks(end)
            self._hear_the_answer(end)
        except BaseException:
            end.close()
            raise

    async def _until_it_speaks(self, end: socket.socket) -> None:
        spoken = asyncio.Event()
        self._loop.add_reader(end, spoken.set)
        try:
            async with asyncio.timeout(ANSWER_S):
                await spoken.wait()
        except TimeoutError as error:
            raise NoListener("it does not answer") from error
        finally:
            self._loop.remove_reader(end)

    def _hear_the_answer(self, end: socket.socket) -> None:
        received = receive(end)
        if received is None:
            raise NoListener("it has gone")
        if isinstance(received.message, Refused):
            raise ConfigError(
                "http_options.port",
                self._address.port,
                f"a port that is free at {self._address.host} ({received.message.why})",
            )
        assert isinstance(received.message, Joined)
        if self._slot is not None:
            self._leave()
        listening, page = received.descriptors
        self._end, self._listening, self._page = end, socket.socket(fileno=listening), LoadPage(page)
        self._listening.setblocking(False)
        self._slot = received.message.slot
        self.count()
        self._loop.add_reader(self._end, self._listener_has_gone)
        self._loop.add_reader(self._listening, self._on_readable)

    def _listener_has_gone(self) -> None:
        """Its end of the connection says nothing once the gateway has joined, so that it is closed."""
        LOGGER.warning("the listener of %s:%s has gone; connections are taken as before", *self._address[:2])
        self._loop.remove_reader(self._end)
        self._end.close()
        self._rejoining = self._loop.create_task(self._rejoin())

    async def _rejoin(self) -> None:
        while True:
            try:
                return await self._join(START_S)
            except ServingError as error:
                LOGGER.warning("%s", str(error))

    def _leave(self) -> None:
        """Has the socket no more."""
        if self._grace is not None:
            self._grace.cancel()
            self._grace = None
        self._loop.remove_reader(self._end)
        self._loop.remove_reader(self._listening)
        self._listening.close()
        self._page.close()
        self._slot = None

    def _on_readable(self) -> None:
        for _ in range(MAX_AT_ONCE):
            num_taken = self._page.num_taken()
            if self._load > self._page.least() and not self._is_enough_for_all():
                if somebody_waits(self._listening):  # or the grace would be over too soon for the next one
                    self._wait(GRACE_S, num_taken)
                return
            if not self._accept():
                return

    def _is_enough_for_all(self) -> bool:
        """Whether the others have all that they should have of what waits if this gateway takes one."""
        return num_waiting(self._listening) > min(CROWD, self._page.room_below(self._load))

    def _wait(self, for_s: float, num_taken: int) -> None:
        self._loop.remove_reader(self._listening)
        self._grace = self._loop.call_later(for_s, self._end_grace, num_taken)

    def _end_grace(self, num_taken: int) -> None:
        """Takes what is left, unless somebody has taken connections meanwhile: these are others then."""
        self._grace = None
        self._loop.add_reader(self._listening, self._on_readable)
        if self._page.num_taken() == num_taken:
            for _ in range(MAX_LEFT):
                if not self._accept():
                    return

    def _accept(self) -> bool:
        assert self._slot is not None
        try:
            connection, _ = self._listening.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return False
        except OSError as error:  # no descriptors are left, or no memory
            LOGGER.warning("no connection can be taken for %g s: %s", PAUSE_S, str(error))
            self._wait(PAUSE_S, NO_COUNT)
            return False
        connection.setblocking(False)
        self._page.count(self._slot)
        self.count(requests=1, connections=1)
        self._take(connection)
        return True


def somebody_waits(listening: socket.socket) -> bool:
    """Whether a connection waits to be accepted."""
    poll = select.poll()
    poll.register(listening, select.POLLIN)
    return bool(poll.poll(0))


def num_waiting(listening: socket.socket) -> int:
    """Connections that wait to be accepted; 0 where the kernel does not say."""
    if not hasattr(socket, "TCP_INFO"):
        return 0
    waiting: int = ACCEPT_BACKLOG.unpack(
        listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, ACCEPT_BACKLOG.size)
    )[0]
    return waiting
