"""Policies that answer: may this request come in?"""

from policies.admission.always_admit import AlwaysAdmit
from policies.admission.credit import Credit
from policies.admission.deadline import Deadline

__all__ = ["AlwaysAdmit", "Credit", "Deadline"]
