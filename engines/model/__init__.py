"""The model of an engine: continuous batching, KV blocks, and how long each step takes."""
