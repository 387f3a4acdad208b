"""The same seed gives the same effects on every machine."""
