"""The data plane: one connection for each pair of a gateway and a replica, which carries all their attempts."""
