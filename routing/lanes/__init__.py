"""Lanes: who goes into which, which replicas each may use, and whether they help now."""
