"""What vLLM's KV handoff over NIXL has beside vLLM's own code."""
