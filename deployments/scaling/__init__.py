"""How many replicas pools have: one actor for all gateways asks the policy and has Serve start and drain them."""
