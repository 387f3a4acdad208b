"""The deployment that runs one engine."""
