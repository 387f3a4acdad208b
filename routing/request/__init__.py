"""A request on its way: what is told of it, what is asked of a host, its state, its attempts, and how it is refused."""
