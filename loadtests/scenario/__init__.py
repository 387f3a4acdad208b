"""A scenario: a fleet, policies, a workload, and what is expected of them."""
