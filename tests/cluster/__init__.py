"""Clocks and random streams."""
