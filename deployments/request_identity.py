"""Who a request belongs to, as its headers say."""

from fastapi import Request

from deployments.openai_errors import invalid

SESSION_HEADER = "x-session-id"
TENANT_HEADER = "x-tenant-id"
MAX_LENGTH = 128
"""Characters in an identity: it is kept, logged and hashed."""


def identity_of(request: Request, header: str) -> str:
    """What a header names; empty when it is not there.

    Raises:
        ApiError: It is longer than ``MAX_LENGTH``.
    """
    value = request.headers.get(header, "")
    if len(value) > MAX_LENGTH:
        message = f"the header {header} has {len(value)} characters; at most {MAX_LENGTH} are allowed"
        raise invalid(message, header)
    return value
