"""The KV between a prefill and its decode: how long it may be pulled, when another decode tries, when it is given up.

A prefill engine holds KV blocks for a lease, and for longer while a decode engine that has the request renews that. An
engine that pulls blocks by address, as NIXL does, is not told that they have been freed: it gets another prompt's. So a
decode is sent only while the lease has time left for it to reach its engine.
"""

from policies.decisions import Reason
from policies.views import Role
from routing.fleet.fleet import Fleet
from routing.lanes.access import LaneAccess
from routing.request.effects import Effect
from routing.request.request import Attempt, Request

SENDING_FRACTION = 2 / 3
"""Of a lease, in which decodes are sent. The rest is for their way, and for the engine to renew the lease."""


class Handoff:
    """What becomes of held KV.

    Args:
        access: Which replicas a lane may use.
        fleet: All replicas.
        kv_lease_s: How long a prefill engine holds blocks that nobody pulls.

    Attributes:
        sending_s: How long after a prefill a decode may be sent for its blocks.
    """

    def __init__(self, access: LaneAccess, fleet: Fleet, kv_lease_s: float) -> None:
        self._access = access
        self._fleet = fleet
        self.sending_s = kv_lease_s * SENDING_FRACTION

    def can_pull_elsewhere(self, request: Request, attempt: Attempt, now_s: float) -> bool:
        """Whether a decode whose pull has failed may be sent to another replica, with the KV where it is.

        Once: should that one fail as well, it is the KV or who holds it.
        """
        if not request.has_idle_kv or request.num_pulls > 1 or not request.can_pull(now_s):
            return False
        if not self._is_live(request.kv_replica_id, now_s):
            return False
        live = self._access.live(Role.DECODE, request.view.lane, self._fleet, now_s)
        return any(each.replica_id != attempt.replica_id for each in live)

    def _is_live(self, replica_id: str, now_s: float) -> bool:
        replica = self._fleet.get(replica_id)
        pool = () if replica is None else self._fleet.live_in((replica.pool,), now_s)
        return any(each.replica_id == replica_id for each in pool)

    def ended(self, request: Request, attempt: Attempt, reason: Reason, *, was_taken: bool) -> None:
        """A decode has ended without a token of its own. Unless it can have pulled nothing, nobody knows what is held:
        its engine may be pulling, or may have pulled and had the blocks freed.
        """
        if attempt.stage is Role.DECODE and (reason is Reason.KV_TRANSFER_FAILED or not was_taken):
            request.leave_kv(attempt)

    def release(self, request: Request, now_s: float) -> tuple[Effect, ...]:
        """Frees KV that no decode has pulled and none will. With no decode replica alive its lease does that."""
        if not request.has_idle_kv or not request.can_pull(now_s):
            return ()
        live = self._access.live(Role.DECODE, request.view.lane, self._fleet, now_s)
        via = next((each for each in live if each.replica_id not in request.failed_replicas), None)
        return () if via is None else (request.give_kv_up(via.replica_id),)
