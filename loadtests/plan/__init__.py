"""Capacity planning: how many replicas a traffic needs, and what a formula is worth."""
