"""Whether a replica's engine stands still: looked at several times a second, and probed once its requests have gone."""

import asyncio
import itertools
import logging
from collections.abc import Callable

from cluster.clock import Clock
from engines.contract import Engine
from engines.probe_request import probe_request
from engines.vllm.liveness import StallDetector
from policies.errors import ServingError

LOGGER = logging.getLogger("ray.serve")
PROMPT_TOKENS = 8
"""Of a probe."""
BEAT_EVERY_S = 0.5


class EngineWatch:
    """Of one replica. All methods belong to one event loop.

    Requests that wait while no step is made give a stall away. Gateways take them elsewhere then, and an engine without
    requests makes no step either: so it gets one of its own, a prompt of a few tokens and an answer of one, and stands
    still until it makes a step.

    Args:
        engine: Gives the engine.
        stall_after_s: How long it makes no step, above 0.
        clock: What time it is.

    Attributes:
        is_stalled: Whether it stood still at the last look.
    """

    def __init__(self, engine: Callable[[], Engine], stall_after_s: float, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock
        self._detector = StallDetector(stall_after_s)
        self._num_steps = -1
        self._numbers = itertools.count()
        self._probe: asyncio.Task[None] | None = None
        self.is_stalled = False

    def close(self) -> None:
        """It is probed no more."""
        if self._probe is not None:
            self._probe.cancel()

    def look(self) -> None:
        """How the engine stands now."""
        stats = self._engine().stats()
        if stats.num_steps != self._num_steps:
            self._num_steps, self.is_stalled = stats.num_steps, False
        if self._detector.is_stalled(stats.num_steps, stats.num_requests_unfinished, self._clock.now_s()):
            self.is_stalled = True
        if self.is_stalled and self._probe is None:
            LOGGER.warning("the engine has requests and makes no step; it is probed until it does")
            self._probe = asyncio.get_running_loop().create_task(self._ask(f"probe-{next(self._numbers)}"))

    async def _ask(self, request_id: str) -> None:
        engine = self._engine()
        try:
            async for _ in engine.generate(probe_request(request_id, engine.info.pooling_tasks, PROMPT_TOKENS, 1)):
                pass
        except ServingError as error:
            LOGGER.warning("a probe of the engine has failed: %s", str(error))
        finally:
            self._probe = None


class NoEngineWatch:
    """Nobody looks."""

    is_stalled = False

    def look(self) -> None:
        """Nothing is seen."""

    def close(self) -> None:
        """There is no probe."""


class Beats:
    """Calls something twice a second.

    Args:
        beat: What; an exception of its own ends no beats.
    """

    def __init__(self, beat: Callable[[], None]) -> None:
        self._beat = beat
        self._task = asyncio.get_running_loop().create_task(self._run())

    def close(self) -> None:
        """It is over."""
        self._task.cancel()

    async def _run(self) -> None:
        while True:
            try:
                self._beat()
            except Exception:
                LOGGER.exception("a replica could not look at its engine")
            await asyncio.sleep(BEAT_EVERY_S)
