"""The shed rank of a session: the number in [0, 1) that decides who is given up first.

It belongs to the session, or to what a client's own retries share, and never to a request by itself: who asks again is
given the same answer, here and at every other gateway.
"""

from hashlib import blake2b

from policies.views import RequestView

KEY_BYTES = 8


def key_of(request: RequestView) -> int:
    """Who asks, as 64 bits: its session; alone, what its retries share; else nothing but itself.

    Each tenant has its own: a session that is called like another tenant's has not that one's standing.
    """
    asker = request.session_id or request.logical_request_id or request.request_id
    whole = f"{request.tenant}\0{asker}" if request.tenant else asker
    return int.from_bytes(blake2b(whole.encode("utf-8", "surrogatepass"), digest_size=KEY_BYTES).digest(), "big")


def salt_at(now_s: float, unix_ahead_s: float, period_s: float) -> int:
    """The salt of a period; the same at every gateway, whenever its clock has begun.

    Args:
        now_s: Now, on a gateway's clock.
        unix_ahead_s: How far the time of day is ahead of that.
        period_s: How long a salt lasts.
    """
    return int((now_s + unix_ahead_s) / period_s)


def shed_rank(key: int, salt: int) -> float:
    """The shed rank of a key under a salt, uniform in [0, 1); another salt has everybody somewhere else."""
    digest = blake2b(key.to_bytes(KEY_BYTES, "big"), digest_size=KEY_BYTES, salt=salt.to_bytes(KEY_BYTES, "big"))
    return int.from_bytes(digest.digest(), "big") / 2.0 ** (8 * KEY_BYTES)
