"""A scenario against a live deployment, open loop, in one process or several."""
