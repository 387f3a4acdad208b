"""Hypothesis draws the same examples every time, and no example fails for being slow on a busy machine."""

from hypothesis import HealthCheck, settings

from tests.browser import browser

__all__ = ["browser"]

settings.register_profile(
    "spillway", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=50
)
settings.load_profile("spillway")
