"""Prompts to token ids: short ones on the gateway's event loop, long ones in a process beside it, tenant by tenant."""
