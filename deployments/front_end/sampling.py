"""What vLLM's layer asks of an engine, in the terms of ours; what ours have no word for is refused by name."""

from typing import Any

import msgspec
from vllm.pooling_params import PoolingParams
from vllm.sampling_params import SamplingParams
from vllm.v1.structured_output.request import get_structured_output_key

from deployments.openai.errors import invalid
from engines.contract import Pooling, Sampling, StructuredOutput

SAME = tuple(name for name in Sampling.__struct_fields__ if name in SamplingParams.__struct_fields__)
"""What has one name here and there."""
HEEDED = {*SAME, "n", "structured_outputs", "output_kind"}
HARMLESS = {"skip_clone", "stream_interval", "detokenize", "output_text_buffer_length", "skip_reading_prefix_cache"}
"""What vLLM's layer sets for itself, or an engine may do without."""
_DEFAULTS = SamplingParams()
SECOND_AT = "compressed_token_type_ids"
"""Where vLLM says at which token the second of two texts begins."""


def samplings_of(
    params: SamplingParams, reasoning_ended: bool | None, reasoning_options: dict[str, Any] | None
) -> list[Sampling]:
    """One for each choice; a seed's random stream is another in each.

    Args:
        params: vLLM's.
        reasoning_ended: Whether the prompt has ended the reasoning; ``None``: the engine finds out.
        reasoning_options: What vLLM's reasoning parser is made with there.

    Raises:
        ApiError: 400, they ask for what the contract of engines has no word for.
    """
    _refuse_others(params)
    values = {name: getattr(params, name) for name in SAME}
    for name in ("stop", "stop_token_ids", "bad_words"):
        values[name] = tuple(values[name] or ())
    if values["allowed_token_ids"] is not None:
        values["allowed_token_ids"] = tuple(values["allowed_token_ids"])
    structured = None
    if params.structured_outputs is not None and not params.structured_outputs.all_constraints_none():
        option, spec = get_structured_output_key(params.structured_outputs)
        structured = StructuredOutput(option.name.lower(), spec, reasoning_ended, reasoning_options)
    sampling = Sampling(**values, structured_output=structured)
    if params.seed is None:
        return [sampling] * params.n
    if params.seed + params.n > 1 << 63:
        raise invalid(f"seed {params.seed} leaves none for n {params.n}: a choice's is one more", "seed")
    return [msgspec.structs.replace(sampling, seed=params.seed + number) for number in range(params.n)]


def _refuse_others(params: SamplingParams) -> None:
    for name in SamplingParams.__struct_fields__:
        if name.startswith("_") or name in HEEDED or name in HARMLESS:
            continue
        if (getattr(params, name) or None) != (getattr(_DEFAULTS, name) or None):
            raise invalid(f"{name} is not served", name, "unsupported_value")
    for name in ("logprobs", "prompt_logprobs"):
        if getattr(params, name) == -1:
            raise invalid(f"{name} of all tokens are not served", name, "unsupported_value")


def pooling_of(params: PoolingParams) -> Pooling:
    """What vLLM's layer wants to have of a prompt.

    Raises:
        ApiError: 400, it asks for what the contract of engines has no word for.
    """
    extra = dict(params.extra_kwargs or {})
    second_at = extra.pop(SECOND_AT, None)
    others = [params.late_interaction_params, params.step_tag_id, params.returned_token_ids]
    if extra or any(others) or params.task not in ("embed", "classify"):
        raise invalid(f"{params.task} is not served in this way", "model", "unsupported_value")
    return Pooling(params.task, params.dimensions, params.use_activation, second_at)
