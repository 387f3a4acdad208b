"""Where counts go: to all gateways' page, to Ray's metrics, to the live page."""
