"""The listening socket of a node, which its gateways share where Serve runs no proxy."""
