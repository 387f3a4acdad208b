"""Every host's event log replays: what serves is what was tested."""
