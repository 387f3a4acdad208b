"""Attempts in flight: hedged, recovered when they are lost, preempted."""
