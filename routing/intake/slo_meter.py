"""How many requests each stage did within their SLOs: where a fleet is sized by a model, they say how wrong it is."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from policies.contracts import Need
from policies.decisions import Reason
from policies.pool_views import Demand
from policies.signals import Answering, Completed, Ended, FirstToken, Offered, Signal
from policies.views import Role
from routing.intake.slos import Slos
from routing.lanes.lanes import Lane

NOT_YET = -1.0


@dataclass(slots=True)
class _UnderWay:
    """A request that has no verdict yet.

    Args:
        stages: Those that it goes through.
        prompt_done_s: When its prompt had been computed.
        answering_s: When its first token was on its way.
    """

    stages: Sequence[Role]
    prompt_done_s: float = NOT_YET
    answering_s: float = NOT_YET


class SloMeter:
    """Counts requests by stage and lane, and by whether they were in time there. A client's retries don't count.

    The stage that computes the prompt is late with one that has not been computed when the first token is due, and
    with a request that was refused. The one that answers is late with a first token that is due and has its prompt
    computed, with tokens that take longer than their SLO, and with a request that was refused for want of KV. An
    answer that broke off says nothing of its tokens.

    Args:
        slos: What requests are promised.
        lanes: All lanes.
    """

    requires: ClassVar[frozenset[Need]] = frozenset()
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset({Offered, FirstToken, Completed, Answering, Ended})

    def __init__(self, slos: Slos, lanes: Sequence[Lane]) -> None:
        self._slos = slos
        self._lanes: Mapping[str, Lane] = {lane.name: lane for lane in lanes}
        self._under_way: dict[str, _UnderWay] = {}
        self._counts: dict[tuple[Role, str], list[int]] = defaultdict(lambda: [0, 0])

    def observe(self, signal: Signal) -> None:
        """A request has come in, gets its tokens, or is over."""
        if isinstance(signal, Offered):
            self._begin(signal)
        elif isinstance(signal, FirstToken | Completed):
            request = self._under_way.get(signal.request_id)
            if request is not None and request.prompt_done_s == NOT_YET:
                request.prompt_done_s = signal.at_s
        elif isinstance(signal, Answering):
            request = self._under_way.get(signal.request.request_id)
            if request is not None:
                request.answering_s = signal.at_s
        elif isinstance(signal, Ended):
            request = self._under_way.pop(signal.request.request_id, None)
            if request is not None:
                self._end(request, signal)

    def of(self, stage: Role, lane: str) -> Demand:
        """What a stage did for requests of a lane, since the start; nothing else is said."""
        num_in_time, num_late = self._counts[stage, lane]
        return Demand(num_in_time=num_in_time, num_late=num_late)

    def _begin(self, offered: Offered) -> None:
        request = offered.request
        if request.retry_count:
            return
        if offered.refused_for is None:
            self._under_way[request.request_id] = _UnderWay(offered.stages)
        else:
            stage = offered.stages[-1 if offered.refused_for is Reason.KV_FULL else 0]
            self._count(stage, request.lane, is_late=True)

    def _end(self, request: _UnderWay, ended: Ended) -> None:
        view, last = ended.request, request.stages[-1]
        by_s, begun_s = view.first_token_by_s, request.answering_s
        is_prompt_late = request.prompt_done_s == NOT_YET or request.prompt_done_s > by_s
        if len(request.stages) > 1:
            self._count(request.stages[0], view.lane, is_late=is_prompt_late)
            if is_prompt_late:
                return
        is_late = is_prompt_late or begun_s == NOT_YET or begun_s > by_s
        if ended.is_completed and ended.output_tokens > 1:
            tpot_s = self._slos.of(view, self._lanes[view.lane]).tpot_s
            is_late = is_late or ended.at_s - begun_s > tpot_s * (ended.output_tokens - 1)
        self._count(last, view.lane, is_late=is_late)

    def _count(self, stage: Role, lane: str, *, is_late: bool) -> None:
        self._counts[stage, lane][is_late] += 1
