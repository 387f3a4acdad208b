"""Event logs: written, read, and replayed to the byte."""
