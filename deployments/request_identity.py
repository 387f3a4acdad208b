"""Who a request belongs to, as its headers say."""

from fastapi import Request

from deployments.openai_errors import invalid

SESSION_HEADER = "x-session-id"
TENANT_HEADER = "x-tenant-id"
MAX_LENGTH = 128
"""Characters in an identity: it is kept, logged and hashed."""


def identity_of(request: Request, header: str) -> str:
    """What a header names; empty when it is not there.

    Repeats that say the same count as one.

    Raises:
        ApiError: It is longer than ``MAX_LENGTH``, or its repeats differ: nobody knows which of them is meant.
    """
    values = dict.fromkeys(request.headers.getlist(header))
    if len(values) > 1:
        message = f"the header {header} is there {len(values)} times with different values; send it once"
        raise invalid(message, header)
    value = next(iter(values), "")
    if len(value) > MAX_LENGTH:
        message = f"the header {header} has {len(value)} characters; at most {MAX_LENGTH} are allowed"
        raise invalid(message, header)
    return value
