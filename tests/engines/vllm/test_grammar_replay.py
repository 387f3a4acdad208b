"""vLLM's own grammars and scheduler, without an engine: a structured output is resumed where it was interrupted."""

from collections.abc import Sequence
from typing import Any

import pytest

from deployments.config import ROOT
from engines.resumed_text import ANSWERED_TOKENS
from tests.tables import for_each
from tests.waiting import wait_until

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore:max_rollback_tokens is deprecated")]

THINKS, ENDS_THINKING = 900, 901
DIGITS = "[0-9]{4}"


class Thinking:
    """A reasoning parser whose reasoning ends with a token."""

    def __init__(self, tokenizer: Any) -> None: ...

    def is_reasoning_end(self, token_ids: Sequence[int]) -> bool:
        return ENDS_THINKING in token_ids

    def is_reasoning_end_streaming(self, token_ids: Sequence[int], delta_ids: Sequence[int]) -> bool:
        return ENDS_THINKING in token_ids


@pytest.fixture(scope="module")
def config() -> Any:
    from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig

    from engines.vllm.tiny_model import ensure_tiny_model

    model = ROOT / ".models" / "tiny-llama"
    ensure_tiny_model(model)
    config = VllmConfig(
        model_config=ModelConfig(model=str(model), dtype="bfloat16", max_model_len=2048),
        cache_config=CacheConfig(block_size=16),
        scheduler_config=SchedulerConfig(
            max_num_seqs=8, max_model_len=2048, is_encoder_decoder=False, async_scheduling=False
        ),
        device_config=DeviceConfig("cpu"),
    )
    config.cache_config.num_gpu_blocks = 100
    return config


@pytest.fixture
def manager(config: Any) -> Any:
    from vllm.v1.structured_output import StructuredOutputManager

    return StructuredOutputManager(config)


def a_request(prompt: list[int], answered_tokens: int) -> Any:
    from vllm.sampling_params import SamplingParams, StructuredOutputsParams
    from vllm.v1.request import Request

    structured = StructuredOutputsParams(regex=DIGITS)
    structured._backend = "xgrammar"
    params = SamplingParams(structured_outputs=structured, extra_args={ANSWERED_TOKENS: answered_tokens})
    return Request("q", prompt, params, None)


def digits(manager: Any, text: str) -> list[int]:
    return [manager.tokenizer.convert_tokens_to_ids(each) for each in text]


def replay(manager: Any, prompt: list[int], answered: list[int]) -> tuple[Any, Any]:
    """The grammar after an interruption, and what the request knows of its structured output."""
    from engines.vllm.grammar_replay import replayed

    request = a_request([*prompt, *answered], len(answered))
    manager.grammar_init(request)
    structured = request.structured_output_request
    wait_until(lambda: structured.is_grammar_ready, "the grammar is compiled")
    return replayed(manager, request, len(answered), structured.grammar), structured


def test_a_grammar_goes_on_from_what_is_out(manager: Any) -> None:
    one, two, three, four = digits(manager, "1234")

    grammar, structured = replay(manager, [5, 6], [one, two])

    assert structured.reasoning_ended
    assert grammar.accept_tokens("q", [three, four])
    assert not grammar.validate_tokens([one])


@for_each(
    ("prompt", "answered", "ended", "num_matched"),
    [
        ([5, 6], [THINKS, 7], False, 0),
        ([5, 6], [THINKS, ENDS_THINKING], True, 0),
        ([5, 6], [THINKS, 7, ENDS_THINKING, "1", "2"], True, 2),
        ([5, ENDS_THINKING], ["1", "2", "3"], True, 3),
    ],
    ids=["still thinking", "just done", "two digits after it", "the prompt ends it"],
)
def test_what_was_thought_is_not_matched(
    manager: Any, prompt: list[int], answered: list[int | str], ended: bool, num_matched: int
) -> None:
    manager.reasoner_cls = Thinking
    token_ids = [digits(manager, each)[0] if isinstance(each, str) else each for each in answered]

    grammar, structured = replay(manager, prompt, token_ids)

    assert structured.reasoning_ended is ended
    left = digits(manager, "9" * (4 - num_matched))
    assert grammar.validate_tokens([*left, left[0]]) == left


def test_tokens_that_the_grammar_would_not_have_let_through_are_an_error(manager: Any) -> None:
    with pytest.raises(ValueError, match="rejects the 2 tokens that are out"):
        replay(manager, [5, 6], [*digits(manager, "1"), 300])


def a_scheduler(config: Any, manager: Any) -> Any:
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

    from engines.vllm.grammar_replay import ReplayingScheduler

    layer = FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=1, dtype=torch.float32)
    caches = KVCacheConfig(100, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], layer)])
    return ReplayingScheduler(
        vllm_config=config, kv_cache_config=caches, structured_output_manager=manager, block_size=16, log_stats=False
    )


@for_each(("answered", "is_scheduled"), [("12", True), ("", True), ("x", False)])
def test_a_request_is_scheduled_once_its_grammar_has_seen_what_is_out(
    config: Any, manager: Any, answered: str, is_scheduled: bool
) -> None:
    scheduler = a_scheduler(config, manager)
    request = a_request([5, 6, *digits(manager, answered)], len(answered))
    manager.grammar_init(request)
    structured = request.structured_output_request

    scheduler.add_request(request)
    wait_until(lambda: structured.is_grammar_ready, "the grammar is compiled")

    assert bool(scheduler.schedule().num_scheduled_tokens) is is_scheduled
    assert scheduler.grammar_compile_error_reqs == (set() if is_scheduled else {"q"})
    if is_scheduled:
        left = digits(manager, "9" * (4 - len(answered)))
        assert structured.grammar.validate_tokens([*left, left[0]]) == left
