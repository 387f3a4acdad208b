"""The virtual-time host: simulated gateways and replicas around production dispatchers."""
