"""spillway on Ray Serve: the gateway, the pools of engine replicas, and the host that carries out effects."""
