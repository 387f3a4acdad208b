"""Policies that answer: an attempt was lost before anybody had a token of it; is the request tried again, and when?"""

from policies.retrying.at_once import AtOnce
from policies.retrying.backoff import Backoff
from policies.retrying.never_retry import NeverRetry

__all__ = ["AtOnce", "Backoff", "NeverRetry"]
