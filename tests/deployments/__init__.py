"""Tests of the Serve deployment."""
