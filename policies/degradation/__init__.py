"""Policies that answer: how may this request be answered more cheaply?"""

from policies.degradation.all_of import AllOf
from policies.degradation.cap_output import CapOutput
from policies.degradation.from_cache import FromCache
from policies.degradation.never_degrade import NeverDegrade
from policies.degradation.output_time_limit import OutputTimeLimit
from policies.degradation.to_fallback import ToFallback

__all__ = ["AllOf", "CapOutput", "FromCache", "NeverDegrade", "OutputTimeLimit", "ToFallback"]
