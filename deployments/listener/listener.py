"""Holds the socket that clients connect to, so that it stays when gateways come and go.

All gateways of a node accept from one socket: a connection waits in the kernel until one of them takes it, so one that
is gone, stands still or is about to end gets none. The listener accepts nothing while any gateway does. Where
none does, connections wait for half a minute, which a gateway starts in, and are then refused.

When the listener dies, gateways go on with the socket that they have, and bring it to the next one.
"""

import asyncio
import logging
import select
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from deployments.listener.address import Address
from deployments.listener.handover import NUM_DESCRIPTORS, is_of_this_user, new_socket, receive, send
from deployments.listener.load_page import LoadPage
from deployments.listener.messages import Joined, Joining, Message, Refused
from deployments.listener.refusing import Refusals

LOGGER = logging.getLogger("ray.serve")
BACKLOG = 2048
LOOK_S = 0.25
"""How often it looks whether connections are taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a listener waits.

    Args:
        refuse_after_s: For a gateway to take what has come, before it refuses.
        bring_s: For gateways to bring the socket that they have, where the port is taken.
        end_after_s: Without any gateway, before it gives the port back.
    """

    refuse_after_s: float = 30.0
    bring_s: float = 5.0
    end_after_s: float = 300.0


class Listener:
    """The one of a node and an address. Everything happens on one event loop.

    Args:
        address: Where clients connect.
        patience: How long it waits.
    """

    def __init__(self, address: Address, patience: Patience = Patience()) -> None:
        self._address = address
        self._patience = patience
        self._listening: socket.socket | None = None
        self._page = LoadPage.create()
        self._gateways: dict[socket.socket, int] = {}
        self._waiting: list[socket.socket] = []
        self._why_not = ""
        self._looks_in_vain = 0
        self._is_refusing = False

    async def run(self) -> None:
        """Listens until there has been no gateway for a while.

        Raises:
            OSError: Another listener of this application is there already.
        """
        loop = asyncio.get_running_loop()
        with self._meeting() as meeting:
            loop.add_reader(meeting, self._meet, meeting)
            refusals = Refusals()
            try:
                await self._open()
                await self._look_after(refusals)
            finally:
                loop.remove_reader(meeting)
                self._close()
                await refusals.close()

    @contextmanager
    def _meeting(self) -> Iterator[socket.socket]:
        with new_socket() as meeting:
            meeting.bind(self._address.meeting_point())
            meeting.listen()
            yield meeting

    async def _open(self) -> None:
        """Binds the port, or waits for a gateway that brings it."""
        loop = asyncio.get_running_loop()
        give_up_at_s = loop.time() + self._patience.bring_s
        while self._listening is None:
            try:
                self._has(listening_at(self._address), self._page)
            except OSError as error:
                self._why_not = error.strerror or str(error)
                if loop.time() >= give_up_at_s:
                    self._refuse_gateways()
                    give_up_at_s = loop.time() + self._patience.bring_s
                await asyncio.sleep(LOOK_S)

    def _refuse_gateways(self) -> None:
        """The port is another program's."""
        for end in [*self._waiting]:
            with suppress(OSError):
                send(end, Refused(self._why_not))
            self._lose(end)

    def _has(self, listening: socket.socket, page: LoadPage) -> None:
        self._listening = listening
        if page is not self._page:
            self._page.close()
            self._page = page
        waiting, self._waiting = self._waiting, []
        for end in waiting:
            self._admit(end, None)

    def _meet(self, meeting: socket.socket) -> None:
        with suppress(OSError):
            end, _ = meeting.accept()
            end.setblocking(False)
            if not is_of_this_user(end):
                LOGGER.warning("a process of another user asked for the socket of %s", self._address)
                end.close()
                return
            asyncio.get_running_loop().add_reader(end, self._hear, end)

    def _hear(self, end: socket.socket) -> None:
        try:
            received = receive(end)
        except BlockingIOError:
            return
        if received is None or not isinstance(received.message, Joining):
            if received is not None:
                received.drop()
            self._lose(end)
            return
        slot = received.message.slot
        if self._listening is None and slot is not None and len(received.descriptors) == NUM_DESCRIPTORS:
            self._gateways[end] = slot
            self._adopt(*received.descriptors)
            self._admit(end, slot)
            return
        received.drop()
        if self._listening is None:
            self._waiting.append(end)
        else:
            self._admit(end, slot)

    def _adopt(self, listening: int, page: int) -> None:
        """A gateway has the socket from the listener before, and other gateways are on their way."""
        LOGGER.info("the listener of %s:%s continues with the socket that gateways have", *self._address[:2])
        self._has(socket.socket(fileno=listening), LoadPage(page))
        asyncio.get_running_loop().call_later(self._patience.bring_s, self._forget_the_dead)

    def _forget_the_dead(self) -> None:
        """Gateways that have not come by now died while there was no listener."""
        self._page.free_all_but({*self._gateways.values()})

    def _admit(self, end: socket.socket, slot: int | None) -> None:
        assert self._listening is not None
        if slot is None or slot in {has for other, has in self._gateways.items() if other is not end}:
            slot = self._page.claim()
        answer: Message = Refused("too many gateways on one node") if slot is None else Joined(slot)
        try:
            send(end, answer, [self._listening.fileno(), self._page.fd] if slot is not None else [])
        except OSError:
            self._lose(end)
            return
        if slot is not None:
            self._gateways[end] = slot
            self._is_refusing, self._looks_in_vain = False, 0

    def _lose(self, end: socket.socket) -> None:
        """A gateway has gone."""
        asyncio.get_running_loop().remove_reader(end)
        end.close()
        if end in self._waiting:
            self._waiting.remove(end)
        if (slot := self._gateways.pop(end, None)) is not None:
            self._page.free(slot)

    async def _look_after(self, refusals: Refusals) -> None:
        """Refuses what no gateway takes, until there has been none for a while.

        Looks are counted and not seconds, as a listener that stood still has not seen anybody wait.
        """
        assert self._listening is not None
        looks_without_gateway, taken = 0, self._page.num_taken()
        while looks_without_gateway * LOOK_S < self._patience.end_after_s:
            await asyncio.sleep(LOOK_S)
            looks_without_gateway = 0 if self._gateways else looks_without_gateway + 1
            is_waiting = is_anybody_waiting(self._listening)
            if taken != (taken := self._page.num_taken()):
                self._is_refusing = is_waiting = False
            self._looks_in_vain = self._looks_in_vain + 1 if is_waiting else 0
            if is_waiting and (self._is_refusing or self._looks_in_vain * LOOK_S > self._patience.refuse_after_s):
                self._is_refusing = True
                number = await refusals.answer_all(self._listening)
                LOGGER.warning("%d connections to %s:%s refused: no gateway took them", number, *self._address[:2])

    def _close(self) -> None:
        for end in [*self._gateways, *self._waiting]:
            self._lose(end)
        if self._listening is not None:
            self._listening.close()
        self._page.close()


def listening_at(address: Address) -> socket.socket:
    """A socket that clients can connect to.

    Raises:
        OSError: Another program listens there, or the address is none of this node's.
    """
    listening = socket.socket(socket.AF_INET6 if ":" in address.host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.setblocking(False)
        listening.bind(address[:2])
        listening.listen(BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening


def is_anybody_waiting(listening: socket.socket) -> bool:
    """Whether a connection is there to be accepted."""
    poll = select.poll()
    poll.register(listening, select.POLLIN)
    return bool(poll.poll(0))
