"""Models and devices that analytic profiles are made of: public shapes and data sheets, nothing measured."""

from collections.abc import Mapping
from dataclasses import dataclass

BYTES_PER_VALUE = 2
"""bf16, weights and KV alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A dense decoder-only transformer.

    Args:
        title: For people.
        num_parameters: All of them.
        num_layers: Transformer blocks.
        num_heads: Query heads.
        num_kv_heads: Key and value heads.
        head_dim: Size of one head.
        context_tokens: Longest prompt and output together.
        vocabulary_tokens: Different tokens that there are.
    """

    title: str
    num_parameters: float
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context_tokens: int
    vocabulary_tokens: int

    @property
    def weight_bytes(self) -> float:
        """Bytes of all weights."""
        return self.num_parameters * BYTES_PER_VALUE

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of one token, in all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * BYTES_PER_VALUE

    @property
    def flops_per_token(self) -> float:
        """A multiplication and an addition with each parameter."""
        return 2 * self.num_parameters

    @property
    def flops_per_attention_pair(self) -> int:
        """Query times key, weight times value: a multiplication and an addition in each dimension of each head."""
        return 4 * self.num_layers * self.num_heads * self.head_dim

    @property
    def num_draft_parameters(self) -> float:
        """Of a draft as EAGLE has it (Li et al., ICML 2024): one transformer block, and the model's own head."""
        return self.num_parameters / self.num_layers + self.vocabulary_tokens * self.num_heads * self.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One GPU.

    Args:
        title: For people.
        flops_per_s: Peak in bf16, dense.
        memory_bytes_per_s: Peak bandwidth of its memory.
        memory_bytes: Size of its memory.
    """

    title: str
    flops_per_s: float
    memory_bytes_per_s: float
    memory_bytes: float


MODELS: Mapping[str, ModelShape] = {
    "llama3-8b": ModelShape(  # config.json of Meta-Llama-3.1-8B
        title="Llama-3.1-8B",
        num_parameters=8.03e9,
        num_layers=32,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        context_tokens=131_072,
        vocabulary_tokens=128_256,
    ),
    "llama3-70b": ModelShape(  # config.json of Meta-Llama-3.1-70B
        title="Llama-3.1-70B",
        num_parameters=70.6e9,
        num_layers=80,
        num_heads=64,
        num_kv_heads=8,
        head_dim=128,
        context_tokens=131_072,
        vocabulary_tokens=128_256,
    ),
    "qwen2.5-7b": ModelShape(  # config.json of Qwen2.5-7B-Instruct
        title="Qwen2.5-7B",
        num_parameters=7.62e9,
        num_layers=28,
        num_heads=28,
        num_kv_heads=4,
        head_dim=128,
        context_tokens=32_768,
        vocabulary_tokens=152_064,
    ),
}

DEVICES: Mapping[str, Device] = {
    "h100-sxm": Device(  # NVIDIA H100 data sheet: 1,979 TFLOPS in bf16 with sparsity
        title="NVIDIA H100 SXM 80 GB", flops_per_s=989e12, memory_bytes_per_s=3.35e12, memory_bytes=80e9
    ),
    "h200": Device(  # NVIDIA H200 data sheet: 1,979 TFLOPS in bf16 with sparsity
        title="NVIDIA H200 SXM 141 GB", flops_per_s=989e12, memory_bytes_per_s=4.8e12, memory_bytes=141e9
    ),
    "a100-80g": Device(  # NVIDIA A100 data sheet, SXM
        title="NVIDIA A100 SXM 80 GB", flops_per_s=312e12, memory_bytes_per_s=2.039e12, memory_bytes=80e9
    ),
}
