"""Engines without vLLM: the contract's types, the conformance kit, and the small parts around an engine."""
