"""Policies that answer: may this request come in?"""

from policies.admission.always_admit import AlwaysAdmit
from policies.admission.bounded_queue import BoundedQueue
from policies.admission.chain import Chain
from policies.admission.codel import Codel
from policies.admission.concurrency_limit import ConcurrencyLimit
from policies.admission.credit import Credit
from policies.admission.deadline import Deadline
from policies.admission.token_bucket import TokenBucket

__all__ = ["AlwaysAdmit", "BoundedQueue", "Chain", "Codel", "ConcurrencyLimit", "Credit", "Deadline", "TokenBucket"]
