"""Everything that drives a deployment from outside, over HTTP only: the benchmark and its client."""
