"""vLLM behind the engine contract."""
