"""Policies that answer: may this request come in?"""

from policies.admission.always_admit import AlwaysAdmit

__all__ = ["AlwaysAdmit"]
