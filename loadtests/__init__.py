"""Everything that drives a deployment from outside, over HTTP only: the benchmark, later scenarios and locust."""
