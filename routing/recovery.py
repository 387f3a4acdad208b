"""What becomes of a request whose attempt was lost: it is tried again elsewhere, or goes on there."""

from collections.abc import Sequence

from policies.decisions import Reason
from routing.attempts import Attempt
from routing.dispatcher_params import DispatcherParams
from routing.door import Door
from routing.effects import Effect
from routing.events import AttemptFailed
from routing.fleet import Fleet
from routing.lane_access import LaneAccess
from routing.life import RequestLife


class Recovery:
    """Puts lives back on their way.

    Args:
        door: Sizes up what is left of an answer.
        access: Which replicas a lane may use.
        fleet: All replicas.
        params: How many attempts a request has.
    """

    def __init__(self, door: Door, access: LaneAccess, fleet: Fleet, params: DispatcherParams) -> None:
        self._door = door
        self._access = access
        self._fleet = fleet
        self._max_attempts = params.max_attempts

    def can_help(self, life: RequestLife, reason: Reason) -> bool:
        """Whether another attempt may follow one that failed for ``reason``."""
        return life.can_recover(reason) and life.num_tries < self._max_attempts

    def prepare(self, life: RequestLife, attempt: Attempt, event: AttemptFailed, now_s: float) -> Sequence[Effect]:
        """Has the request at the stage that it goes on with; after its first token, with the answer so far."""
        if life.committed is not None:
            return self._resume(life, attempt, event.output_tokens)
        if event.reason is Reason.KV_TRANSFER_FAILED:
            self._start_over(life, now_s)
        return ()

    def _resume(self, life: RequestLife, attempt: Attempt, output_tokens: int) -> Sequence[Effect]:
        """Back to the first stage, on any replica but the one that was lost; the answer so far is prompt now."""
        life.go_on(self._door.rest_of(life.request, output_tokens), output_tokens)
        life.failed_replicas = frozenset({attempt.replica_id})
        return (attempt.resumption(output_tokens),)

    def _start_over(self, life: RequestLife, now_s: float) -> None:
        """Back to the prefill, on another replica than the one whose blocks were not to be had, if there is one."""
        held_by = life.start_over()
        live = self._access.live(life.stage, life.request.lane, self._fleet, now_s)
        if any(each.replica_id != held_by for each in live):
            life.failed_replicas = frozenset({held_by})
