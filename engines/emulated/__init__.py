"""The engine model in real time behind the engine contract: a large engine's behaviour on a small machine."""
