"""A small scenario of chats that plans are made for."""

from typing import Any


def document(*, rate_per_s: float = 40.0, **changes: Any) -> dict[str, Any]:
    return {
        "version": 1, "name": "chats", "description": "Chats.", "profile": "h100-llama3-8b",
        "fleet": {"pools": [{"role": "unified", "replicas": 2, "max_num_batched_tokens": 2048}]},
        "policies": {"planning": "always_unified"},
        "workload": {"classes": [{
            "name": "chat", "arrivals": {"poisson": {"rate_per_s": rate_per_s}}, "timeout_s": 60,
            "prompt_tokens": {"log_normal": {"median_tokens": 800, "sigma": 0.8, "most_tokens": 8000}},
            "output_tokens": {"log_normal": {"median_tokens": 60, "sigma": 0.7, "most_tokens": 400}},
        }]},
        "duration_s": 40, "warm_up_s": 5, "seeds": [1, 2], "slos": {"chat": {"ttft_s": 0.3, "tpot_s": 0.05}},
        **changes,
    }  # fmt: skip
