"""What gateways tell the ledger of their load, and what they hear from it."""
