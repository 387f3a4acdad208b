"""Balancers of this project behind any Ray Serve deployment."""

from deployments.serve_router.policy_router import PolicyRouter

__all__ = ["PolicyRouter"]
