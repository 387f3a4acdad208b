"""vLLM's own OpenAI layer, without an engine of its own: what it asks of one goes to the gateway's dispatcher."""
