"""What all gateways are offered together, and who is shed, the same to all of them."""
