"""Whether whole conversations were served, and whether gateways agreed on whom to give up."""

import math
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cluster.sim.run_table import OUTCOMES, REASONS
from loadtests.results.metrics import Figure
from policies.decisions import Reason

SHED = REASONS.index(Reason.SHED.value)
ABANDONED = OUTCOMES.index("abandoned")
Mask = NDArray[np.bool_]


class Tries(Protocol):
    """Columns of tries; see :class:`cluster.sim.run_table.RunTable`."""

    @property
    def intent(self) -> NDArray[np.int64]: ...
    @property
    def session(self) -> NDArray[np.int64]: ...
    @property
    def is_last(self) -> Mask: ...
    @property
    def is_good(self) -> Mask: ...
    @property
    def is_measured(self) -> Mask: ...
    @property
    def try_index(self) -> NDArray[np.int16]: ...
    @property
    def gateway(self) -> NDArray[np.int16]: ...
    @property
    def outcome(self) -> NDArray[np.int8]: ...
    @property
    def reason(self) -> NDArray[np.int8]: ...


def session_goodput(tries: Tries) -> Figure:
    """Conversations whose first intent was wanted in the window and all of whose intents are within their SLO."""
    is_of_session = (tries.session >= 0) & tries.is_last
    counted = np.unique(tries.session[is_of_session & tries.is_measured & (tries.intent == tries.session)])
    missed = np.unique(tries.session[is_of_session & ~tries.is_good])
    num_good = len(np.setdiff1d(counted, missed, assume_unique=True))
    return _ratio(num_good, len(counted))


def shedding_figures(tries: Tries) -> dict[str, Figure]:
    """What was shed of the tries in the window, and whether everybody is told the same.

    Args:
        tries: Those in the window.
    """
    was_sent = tries.outcome != ABANDONED
    is_shed = tries.reason == SHED
    by_gateway = [
        np.count_nonzero(is_shed & (tries.gateway == gateway)) / np.count_nonzero(tries.gateway == gateway)
        for gateway in np.unique(tries.gateway[was_sent & (tries.gateway >= 0)])
    ]
    num_sent = int(np.count_nonzero(was_sent))
    return {
        "shed_fraction": _ratio(int(np.count_nonzero(is_shed)), num_sent),
        "shed_spread": Figure(value=float(np.ptp(by_gateway)) if by_gateway else math.nan, samples=len(by_gateway)),
        "same_answer_fraction": _same_answer(tries, is_shed),
        "tries_per_sent_intent": _ratio(num_sent, len(np.unique(tries.intent[was_sent]))),
    }


def _same_answer(tries: Tries, is_shed: Mask) -> Figure:
    """Of two tries of an intent in a row that came to different gateways: whether both were shed, or neither."""
    order = np.lexsort((tries.try_index, tries.intent))
    intent, gateway, shed = tries.intent[order], tries.gateway[order], is_shed[order]
    is_pair = (intent[1:] == intent[:-1]) & (gateway[1:] != gateway[:-1]) & (shed[1:] | shed[:-1])
    num_same = int(np.count_nonzero(is_pair & (shed[1:] == shed[:-1])))
    return _ratio(num_same, int(np.count_nonzero(is_pair)))


def _ratio(part: int, whole: int) -> Figure:
    return Figure(value=part / whole if whole else math.nan, samples=whole)
