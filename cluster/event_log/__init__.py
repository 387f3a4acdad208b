"""Event logs: written, read, replayed to the byte, and what must hold in them."""
