"""The model of an engine: its steps, the KV that it holds for other engines, and claims on both."""
