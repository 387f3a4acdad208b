"""Measures a real engine, or reckons from data sheets, and writes an engine profile."""
