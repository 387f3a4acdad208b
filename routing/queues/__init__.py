"""Where requests wait for a replica."""
