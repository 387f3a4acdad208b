"""What policies learn from what they see: estimates that forget."""

from policies.estimators.change import ChangeTest
from policies.estimators.fading import FadingLine, FadingMean, FadingRate
from policies.estimators.kv_forecast import KvForecast, KvUse
from policies.estimators.later_work import LaterWork
from policies.estimators.margin import Margin
from policies.estimators.recent import RecentQuantile, RecentValues
from policies.estimators.trend import Trend

__all__ = [
    "ChangeTest",
    "FadingLine",
    "FadingMean",
    "FadingRate",
    "KvForecast",
    "KvUse",
    "LaterWork",
    "Margin",
    "RecentQuantile",
    "RecentValues",
    "Trend",
]
