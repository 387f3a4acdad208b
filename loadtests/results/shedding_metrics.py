"""Whether whole conversations were served, and whether gateways agreed on whom to give up."""

import math
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cluster.sim.run_table import OUTCOMES, REASONS
from loadtests.results.metrics import MetricValue
from policies.decisions import Reason

SHED = REASONS.index(Reason.SHED.value)
ABANDONED = OUTCOMES.index("abandoned")
Mask = NDArray[np.bool_]


class RequestColumns(Protocol):
    """Columns of requests; see :class:`cluster.sim.run_table.RunTable`."""

    @property
    def logical_request(self) -> NDArray[np.int64]: ...
    @property
    def session(self) -> NDArray[np.int64]: ...
    @property
    def is_last(self) -> Mask: ...
    @property
    def is_good(self) -> Mask: ...
    @property
    def is_measured(self) -> Mask: ...
    @property
    def retry_index(self) -> NDArray[np.int16]: ...
    @property
    def gateway(self) -> NDArray[np.int16]: ...
    @property
    def outcome(self) -> NDArray[np.int8]: ...
    @property
    def reason(self) -> NDArray[np.int8]: ...


def session_goodput(requests: RequestColumns) -> MetricValue:
    """Conversations whose first logical request was wanted in the window and all of whose logical requests are within
    their SLO.
    """
    is_of_session = (requests.session >= 0) & requests.is_last
    counted = np.unique(
        requests.session[is_of_session & requests.is_measured & (requests.logical_request == requests.session)]
    )
    missed = np.unique(requests.session[is_of_session & ~requests.is_good])
    num_good = len(np.setdiff1d(counted, missed, assume_unique=True))
    return _ratio(num_good, len(counted))


def shedding_metrics(requests: RequestColumns) -> dict[str, MetricValue]:
    """What was shed of the requests in the window, and whether everybody is told the same.

    Args:
        requests: Those in the window.
    """
    was_sent = requests.outcome != ABANDONED
    is_shed = requests.reason == SHED
    by_gateway = [
        np.count_nonzero(is_shed & (requests.gateway == gateway)) / np.count_nonzero(requests.gateway == gateway)
        for gateway in np.unique(requests.gateway[was_sent & (requests.gateway >= 0)])
    ]
    num_sent = int(np.count_nonzero(was_sent))
    return {
        "shed_fraction": _ratio(int(np.count_nonzero(is_shed)), num_sent),
        "shed_spread": MetricValue(
            value=float(np.ptp(by_gateway)) if by_gateway else math.nan, samples=len(by_gateway)
        ),
        "same_answer_fraction": _same_answer(requests, is_shed),
        "sends_per_sent_request": _ratio(num_sent, len(np.unique(requests.logical_request[was_sent]))),
    }


def _same_answer(requests: RequestColumns, is_shed: Mask) -> MetricValue:
    """Of two requests of a logical request in a row that came to different gateways: whether both were shed, or
    neither.
    """
    order = np.lexsort((requests.retry_index, requests.logical_request))
    logical_request, gateway, shed = requests.logical_request[order], requests.gateway[order], is_shed[order]
    is_pair = (logical_request[1:] == logical_request[:-1]) & (gateway[1:] != gateway[:-1]) & (shed[1:] | shed[:-1])
    num_same = int(np.count_nonzero(is_pair & (shed[1:] == shed[:-1])))
    return _ratio(num_same, int(np.count_nonzero(is_pair)))


def _ratio(part: int, whole: int) -> MetricValue:
    return MetricValue(value=part / whole if whole else math.nan, samples=whole)
