"""Engines: what turns token ids into token ids, behind one contract, and the kit that checks any engine against it.

vLLM itself is in :mod:`engines.vllm.engine`, which nothing imports before an engine is started; the emulated engine,
which is the engine model in real time, is in :mod:`engines.emulated.engine`.

Rooms:
    calibration: measures a real engine, or reckons from data sheets, and writes an engine profile.
    emulated: the engine model in real time behind the engine contract: a large engine's behaviour on a small
        machine.
    model: the model of an engine: continuous batching, KV blocks, how long each step takes, the KV that it holds for
        other engines, and claims on both.
    vllm: vLLM behind the engine contract.
"""

from engines.conformance import (
    check_adapter_handoff,
    check_adapters,
    check_engine,
    check_handoff,
    check_kv_events,
    check_pooling,
)
from engines.contract import (
    NO_ADAPTER,
    NO_POOLING,
    ONE_STEP,
    Adapter,
    ChosenLogprob,
    Chunk,
    Engine,
    EngineInfo,
    EngineRequest,
    EngineStats,
    EngineTimes,
    ImageFeatures,
    KvCleared,
    KvDropped,
    KvEvent,
    KvHandle,
    KvStored,
    Pooling,
    PoolingTask,
    Sampling,
    StructuredOutput,
    TiedRequest,
    TokenLogprob,
)
from engines.faults import FaultKind
from engines.model.messages import Happening, StepOutput
from engines.model.profile import EngineProfile, load_profile
from engines.model.sequences import Sequence
from engines.model.step_model import StepModel, StepModelSpec
from engines.vllm.liveness import StallDetector

__all__ = [
    "NO_ADAPTER",
    "NO_POOLING",
    "ONE_STEP",
    "Adapter",
    "ChosenLogprob",
    "Chunk",
    "Engine",
    "EngineInfo",
    "EngineProfile",
    "EngineRequest",
    "EngineStats",
    "EngineTimes",
    "FaultKind",
    "Happening",
    "ImageFeatures",
    "KvCleared",
    "KvDropped",
    "KvEvent",
    "KvHandle",
    "KvStored",
    "Pooling",
    "PoolingTask",
    "Sampling",
    "Sequence",
    "StallDetector",
    "StepModel",
    "StepModelSpec",
    "StepOutput",
    "StructuredOutput",
    "TiedRequest",
    "TokenLogprob",
    "check_adapter_handoff",
    "check_adapters",
    "check_engine",
    "check_handoff",
    "check_kv_events",
    "check_pooling",
    "load_profile",
]
