"""Whole deployments, started as a user starts them."""
