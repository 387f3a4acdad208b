"""What a request will cost: its geometry, and how long its answer may be."""
