"""What ``args`` say of one model or several, and what of it may change while gateways run."""
