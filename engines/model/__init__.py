"""The model of an engine: its steps, and what it holds and has promised beside them."""
