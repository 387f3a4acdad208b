"""Which requests are retries of one that was not answered: they have what is left of its time, and no more.

A client's retry is known by the idempotency key of its logical request or, where its library sends a count and no key,
by the hash of its body. Requests without a count or a key are never linked, however equal they are.
"""

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from policies.decisions import LOAD_REASONS, Reason
from policies.views import RequestView
from routing.request.effects import ClientRetry, Link, Outcome, OutcomeKind, Record, ShareFirstArrival, ToldBy
from routing.request.news import FirstArrival

MOST_REMEMBERED = 65_536
"""First arrivals; some 20 MB."""
KEY_BYTES = 8
SLO_COUNTS_ON = (LOAD_REASONS - {Reason.QUOTA_EXCEEDED}) | {Reason.DEADLINE_EXCEEDED, Reason.CLIENT_GONE}
"""Reasons after which a retry has the SLO of its first arrival: there was no room for it in time. A fault of the fleet
or a quota says nothing of that."""
OWN_FAULTS = frozenset({Reason.REPLICA_LOST, Reason.ENGINE_ERROR})
"""Reasons for which a request may be given up for good: it may be what replicas die of, or engines fail on."""


class Linked(NamedTuple):
    """A request that has come, as far as it is a retry.

    Args:
        request: With the time that its logical request has left.
        records: Of the retry.
        given_up_for: Why the fleet does not try it again; None: it does.
    """

    request: RequestView
    records: tuple[Record, ...]
    given_up_for: Reason | None = None


class LogicalRequests:
    """First arrivals that were not answered, the latest last.

    Where equal bodies are on their way, a retry is linked to the one of them that arrived last, so a link that is wrong
    gives it more time and not less, as long as its own first arrival is known here.

    Args:
        window_s: How long each is remembered, seconds; 0: nothing is, and no retry is linked.
        is_shared: Whether other gateways are told, and tell.
    """

    def __init__(self, window_s: float, *, is_shared: bool = False) -> None:
        self._window_s = window_s
        self.is_shared = is_shared and window_s > 0
        self._known: OrderedDict[int, tuple[float, FirstArrival]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def link(self, request: RequestView, now_s: float) -> Linked:
        """What is known of a request that has come."""
        first = self._find(_key_of(request), now_s) if self._window_s and _may_be_known(request) else None
        if first is None and not request.retry_count:
            return Linked(request, ())
        told_by = ToldBy.HEADER if request.retry_count else ToldBy.KEY
        if first is None:
            return Linked(request, (_record(request, told_by, Link.NONE, ""),))
        linked = replace(
            request,
            deadline_s=min(request.deadline_s, first.deadline_s),
            first_arrival_s=min(request.arrival_s, first.arrival_s) if first.has_slo else None,
        )
        link = Link.KEY if request.is_keyed else Link.BODY
        return Linked(linked, (_record(request, told_by, link, first.request_id),), first.given_up_for)

    def end(self, request: RequestView, outcome: Outcome, now_s: float) -> tuple[Outcome, Sequence[ShareFirstArrival]]:
        """A request ends, classified or not.

        Returns:
            What its client is told, which is not to come back where it would be too late then; and what the other
            gateways are.
        """
        if not self._window_s or not request.logical_request_id:
            return outcome, ()
        if outcome.kind is OutcomeKind.COMPLETED:
            if _may_be_known(request):
                self._known.pop(_key_of(request), None)
            return outcome, ()
        has_slo = outcome.reason in SLO_COUNTS_ON
        given_up_for = outcome.reason if outcome.reason in OWN_FAULTS and not outcome.may_retry else None
        if outcome.may_retry and is_hopeless(request, now_s + outcome.retry_after_s, has_slo=has_slo):
            outcome = msgspec.structs.replace(outcome, may_retry=False)
        first = FirstArrival(
            key=_key_of(request),
            request_id=request.request_id,
            arrival_s=request.arrival_s,
            deadline_s=request.deadline_s,
            has_slo=has_slo,
            given_up_for=given_up_for,
        )
        return outcome, self._remember_end(request, first, now_s)

    def take_in(self, arrivals: Sequence[FirstArrival], now_s: float) -> None:
        """Other gateways have not answered these."""
        for each in arrivals:
            self._remember(each, now_s)

    def _remember_end(self, request: RequestView, first: FirstArrival, now_s: float) -> Sequence[ShareFirstArrival]:
        """The first arrival counts; that it is given up for good may turn out with a retry."""
        known = self._find(first.key, now_s) if _may_be_known(request) else None
        if known is not None:
            if known.given_up_for is not None or first.given_up_for is None:
                return ()
            first = replace(known, given_up_for=first.given_up_for)
        self._remember(first, now_s)
        return (ShareFirstArrival(arrival=first),) if self.is_shared else ()

    def _find(self, key: int, now_s: float) -> FirstArrival | None:
        at_s, first = self._known.get(key, (-math.inf, None))
        return first if now_s - at_s <= self._window_s else None

    def _remember(self, arrival: FirstArrival, now_s: float) -> None:
        before = self._find(arrival.key, now_s)
        if before is None or before.arrival_s <= arrival.arrival_s:
            self._known[arrival.key] = now_s, arrival
            self._known.move_to_end(arrival.key)
        while self._known:
            at_s, oldest = next(iter(self._known.values()))
            if len(self._known) <= MOST_REMEMBERED and now_s - at_s <= self._window_s:
                break
            del self._known[oldest.key]


def is_hopeless(request: RequestView, at_s: float, *, has_slo: bool = True) -> bool:
    """Whether a request that comes at ``at_s`` can't have its first token in time, even on an idle replica.

    Args:
        request: Classified, or else nothing is known of its prompt's cost.
        at_s: When, seconds.
        has_slo: Whether its SLO counts, and not its deadline alone.
    """
    by_s = request.first_token_by_s if has_slo and request.first_token_by_s else request.deadline_s
    return at_s + request.geometry.prefill_s > by_s


def _may_be_known(request: RequestView) -> bool:
    return bool(request.logical_request_id) and (request.is_keyed or request.retry_count > 0)


def _key_of(request: RequestView) -> int:
    kind = "key" if request.is_keyed else "body"
    name = "\0".join((request.tenant, kind, request.logical_request_id))
    return int.from_bytes(blake2b(name.encode(), digest_size=KEY_BYTES).digest(), "big")


def _record(request: RequestView, told_by: ToldBy, link: Link, first_request_id: str) -> Record:
    decision = ClientRetry(request_id=request.request_id, told_by=told_by, link=link, first_request_id=first_request_id)
    return Record(decision=decision)
