"""Everything that drives the service from outside: workloads and their clients, and the benchmark over HTTP."""
