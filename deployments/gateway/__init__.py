"""The deployment that clients talk to: its routes, the host of its dispatcher, and how answers leave."""
