"""What gateways tell the load coordinator of their load, and what they hear from it."""
