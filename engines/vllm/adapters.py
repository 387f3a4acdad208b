"""LoRA adapters of one vLLM engine: loaded before the first request that has one, so that one that can't be is an error
of that request and not the end of the engine.

vLLM loads an adapter that it has not, or not any more, inside a step, and its engine core dies where that fails.
"""

import json
import tempfile
from asyncio import Lock
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from vllm.lora.request import LoRARequest
from vllm.lora.utils import get_adapter_absolute_path
from vllm.v1.engine.async_llm import AsyncLLM

from engines.contract import Adapter
from engines.vllm.liveness import answered
from policies.errors import EngineUnavailable, RequestInvalid

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
"""Files of a PEFT checkpoint."""
SLOTS = ("max_loras", "max_cpu_loras")
"""vLLM's arguments for the number of adapters in a step, and of those in memory."""


class EngineAdapters:
    """The adapters that an engine has loaded, and how requests name them to it.

    Args:
        llm: The engine.
        max_adapters: As many as it keeps in memory; 0: it takes none.
        check_health: Raises ``EngineUnavailable`` if it is dead.
        needs_stand_in: Whether requests without an adapter need one that changes nothing, beside requests with one: on
            CPUs vLLM computes them with the adapter in its last slot.

    Attributes:
        num_loads: Times that one was loaded.
    """

    def __init__(
        self, llm: AsyncLLM, max_adapters: int, check_health: Callable[[], None], *, needs_stand_in: bool
    ) -> None:
        self._llm = llm
        self._max_adapters = max_adapters
        self._check_health = check_health
        self._needs_stand_in = needs_stand_in
        self._known: dict[str, LoRARequest] = {}
        self._loaded: dict[str, LoRARequest] = {}
        self._in_use: Counter[str] = Counter()
        self._stand_in: LoRARequest | None = None
        self._lock = Lock()
        self._folder = tempfile.TemporaryDirectory(prefix="spillway-adapter-")
        self.num_loads = 0

    @property
    def in_use(self) -> tuple[str, ...]:
        """Those of requests that are under way."""
        return tuple(self._in_use)

    @property
    def names(self) -> tuple[str, ...]:
        """Those that are loaded, the last one used first."""
        return tuple(reversed(self._loaded))

    @asynccontextmanager
    async def used_for(self, adapter: Adapter) -> AsyncIterator[LoRARequest | None]:
        """What vLLM is told of a request with an adapter, which stays loaded meanwhile if it can.

        Raises:
            RequestInvalid: The engine takes none, or this one can't be loaded.
            EngineUnavailable: It is dead.
        """
        if not adapter:
            yield self._stand_in
            return
        await self.load(adapter)
        request = self._loaded[adapter.name]
        self._in_use[adapter.name] += 1
        try:
            yield request
        finally:
            self._in_use[adapter.name] -= 1
            self._in_use += Counter()  # which leaves out those that nobody uses

    def _use(self, adapter: Adapter) -> bool:
        """Makes it the last one used; whether it is loaded at all."""
        known = self._loaded.get(adapter.name)
        if known is None or known.lora_path != adapter.path:
            return False
        self._loaded[adapter.name] = self._loaded.pop(adapter.name)
        return True

    async def load(self, adapter: Adapter) -> None:
        """Loads an adapter.

        Raises:
            RequestInvalid: The engine takes none, or this one can't be loaded.
            EngineUnavailable: It is dead.
        """
        if not self._max_adapters:
            message = f"this engine takes no adapters such as {adapter.name}: its enable_lora is off"
            raise RequestInvalid(message, "model")
        if self._use(adapter):
            return
        async with self._lock:
            if self._use(adapter):
                return
            await self.unload(adapter.name)
            if len(self._loaded) >= self._max_adapters:
                idle = (name for name in self._loaded if not self._in_use[name])
                await self.unload(next(idle, next(iter(self._loaded))))
            request = self._request_for(f"{adapter.name}:{adapter.path}", adapter.path)
            await self._add(request)
            await self._stand_in_for(request)
            self._loaded[adapter.name] = request
            self.num_loads += 1

    async def unload(self, name: str) -> None:
        """Forgets an adapter, if it is there; a step that still needs it loads it once more.

        Raises:
            EngineUnavailable: The engine is dead.
        """
        request = self._loaded.pop(name, None)
        if request is not None:
            await answered(self._llm.remove_lora(request.lora_int_id), self._check_health)

    def close(self) -> None:
        """Removes what was written."""
        self._folder.cleanup()

    def _request_for(self, name: str, path: str) -> LoRARequest:
        """One for each adapter for good: to vLLM adapters are the same whose names are, in its prefix cache and in a
        step, where the second of two numbers of one name is nobody's and ends the engine core.
        """
        return self._known.setdefault(name, LoRARequest(name, len(self._known) + 1, path))

    async def _add(self, request: LoRARequest) -> None:
        try:
            await answered(self._llm.add_lora(request), self._check_health)
        except EngineUnavailable:
            raise
        except Exception as error:  # whatever a worker raised of it comes as this
            said = str(error).removeprefix("Call to add_lora method failed: ").partition(", please check")[0]
            name, _, path = request.lora_name.partition(":")
            raise RequestInvalid(f"the adapter {name} can't be loaded from {path}: {said}", "model") from error

    async def _stand_in_for(self, request: LoRARequest) -> None:
        if not self._needs_stand_in or self._stand_in is not None:
            return
        folder = Path(self._folder.name)
        _write_zeros_like(Path(get_adapter_absolute_path(request.lora_path)), folder)
        stand_in = self._request_for("no adapter", str(folder))
        await self._add(stand_in)  # not pinned: a step may need its slot
        self._stand_in = stand_in


def with_stand_in_slots(given: Mapping[str, Any], *, needs_stand_in: bool) -> dict[str, Any]:
    """The engine's arguments, with room for the adapter that changes nothing where one is needed."""
    if not needs_stand_in or not given.get("enable_lora"):
        return dict(given)
    in_step = given.get("max_loras", 1)
    in_memory = given.get("max_cpu_loras") or in_step
    return {**given, **dict(zip(SLOTS, (in_step + 1, in_memory + 1), strict=True))}


def num_slots(config: Any, *, needs_stand_in: bool) -> int:
    """Adapters that an engine keeps in memory, by vLLM's configuration of them."""
    if config is None:
        return 0
    return int(config.max_cpu_loras) - needs_stand_in


def _write_zeros_like(source: Path, folder: Path) -> None:
    """An adapter of the same shape that changes nothing."""
    weights = load_file(source / WEIGHTS)
    save_file({name: torch.zeros_like(each) for name, each in weights.items()}, folder / WEIGHTS)
    config = json.loads((source / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps(config))
