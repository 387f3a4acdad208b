"""The way to an actor of this deployment, which may be slow, dead, or not there yet.

Serve starts a dead actor anew within seconds, under the same name but behind another handle. So whoever gets no answer
looks for the actor again with the next question.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ray.exceptions import RayError

LOGGER = logging.getLogger("ray.serve")


class NoAnswerError(Exception):
    """The actor was not found, is dead, took too long, or said nothing of use. The log has had it."""


def _take(answer: Any) -> None:
    """Any answer will do."""


class ActorClient:
    """Asks an actor, and looks for it where it has to.

    Looking may block for as long as Ray's control store hangs. It is done in a thread of this client's own, one
    look-up at a time: all questions wait for the same one, each until its own time is up, and what comes of it then
    is there for the next question.

    Args:
        what: What the log calls the actor.
        find: Gives the actor's handle; blocks.
        check: Raises ``ValueError`` for an answer that is of no use, and as lost as none.
    """

    def __init__(self, what: str, find: Callable[[], Any], check: Callable[[Any], None] = _take) -> None:
        self._what = what
        self._find = find
        self._check = check
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"find {what}")
        self._looking: asyncio.Future[Any] | None = None
        self._actor: Any = None
        self._is_lost = False

    async def ask(self, method: str, *arguments: object, patience_s: float) -> Any:
        """The answer of one of the actor's methods, within so many seconds.

        Raises:
            NoAnswerError: There is none. The first of several in a row is in the log.
        """
        actor = self._actor
        try:
            async with asyncio.timeout(patience_s):
                if actor is None:
                    actor = await asyncio.shield(self._look_up())
                answer = await getattr(actor, method).remote(*arguments)
            self._check(answer)
        except (RayError, ValueError, TimeoutError) as error:
            self._lose(actor, error)
            raise NoAnswerError(self._what) from error
        if self._is_lost:
            self._is_lost = False
            LOGGER.info("%s answers again", self._what)
        return answer

    def _look_up(self) -> "asyncio.Future[Any]":
        """The look-up that is under way."""
        if self._looking is None:
            self._looking = asyncio.get_running_loop().run_in_executor(self._thread, self._find)
            self._looking.add_done_callback(self._found)
        return self._looking

    def _found(self, looking: "asyncio.Future[Any]") -> None:
        """A look-up has ended, perhaps after all who waited for it had given up."""
        self._looking = None
        if not looking.cancelled() and looking.exception() is None:
            self._actor = looking.result()

    def _lose(self, actor: Any, error: Exception) -> None:
        """The actor may be dead, and another one there; one that was found meanwhile is kept."""
        if self._actor is actor:
            self._actor = None
        if not self._is_lost:
            self._is_lost = True
            LOGGER.warning("%s does not answer: %s: %s", self._what, type(error).__name__, str(error))
