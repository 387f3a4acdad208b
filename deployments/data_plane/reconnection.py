"""Clients that come back for the rest of an answer whose gateway is gone, by way of any other one.

Who sends an ``idempotency-key`` with a request that streams has an id on each event, and the replicas keep the answer's
tokens. The same request with ``Last-Event-ID`` beside the key then gets what follows that event, each token once. What
the client has is the end of the prompt of a request like any other: it is admitted, placed and resumed as such.
"""

from collections.abc import Callable
from hashlib import blake2b

from fastapi import Request

from deployments.data_plane.connections import NoConnections
from deployments.data_plane.kept_answers import KeptAnswer
from deployments.openai.errors import NO_RETRY, ApiError, invalid
from deployments.openai.event_ids import LAST_EVENT_HEADER, NO_EVENT, EventId, digest_of
from deployments.openai.identity import LOGICAL_REQUEST_HEADER, Terms, header_of
from deployments.wire.attempt_call import NO_KEEPING, AnswerKeeping
from engines.contract import Chunk, EngineRequest

NAME_BYTES = 16
CountReconnection = Callable[[str], None]
"""By what has come of it: ``resumed``, ``finished`` or ``not_found``."""


def last_event_of(request: Request, *, is_keyed: bool, streams: bool) -> EventId:
    """The event that a client has come back after; ``NO_EVENT``: it has not.

    Raises:
        ApiError: 400, that is no id, or an answer that nobody goes on with.
    """
    said = header_of(request, LAST_EVENT_HEADER)
    if not said:
        return NO_EVENT
    if not is_keyed:
        raise invalid(f"{LAST_EVENT_HEADER} goes with the request's {LOGICAL_REQUEST_HEADER}", LAST_EVENT_HEADER)
    if not streams:
        raise invalid(f"{LAST_EVENT_HEADER} is for streams; send it with stream: true", LAST_EVENT_HEADER)
    return EventId.parse(said)


def refuse_reconnection(request: Request) -> None:
    """For answers whose events have no ids.

    Raises:
        ApiError: 400, the client says that it has the beginning.
    """
    if header_of(request, LAST_EVENT_HEADER):
        message = f"this answer can't be gone on with; send the request without {LAST_EVENT_HEADER} to begin it anew"
        raise invalid(message, LAST_EVENT_HEADER)


class Reconnections:
    """Those of one model's clients.

    Args:
        connections: The way to its replicas.
        count: Is told what has come of each.
    """

    def __init__(self, connections: NoConnections, count: CountReconnection) -> None:
        self._connections = connections
        self._count = count

    def keeping(
        self, answer: str, terms: Terms, body_digest: str, wanted: EngineRequest, kept_for_s: float
    ) -> AnswerKeeping:
        """How replicas are to keep an answer: under a name that nobody knows without its tenant, key and body."""
        can_resume = terms.is_keyed and wanted.sampling.is_resumable and self._connections.can_recall
        if not (can_resume and kept_for_s):
            return NO_KEEPING
        named = "\0".join((answer, terms.tenant, terms.logical_request_id, body_digest))
        return AnswerKeeping(blake2b(named.encode(), digest_size=NAME_BYTES).hexdigest(), kept_for_s)

    async def rest_of(self, wanted: EngineRequest, last: EventId, keeping: AnswerKeeping) -> EngineRequest | Chunk:
        """What is left of a request after an event: to be generated, or the end of an answer that was whole.

        Raises:
            ApiError: 404, no replica has that answer for this tenant, key and body.
        """
        kept = await self._connections.recall(keeping.name, lambda answer: _is_it(answer, last)) if keeping else None
        if kept is not None and kept.last.finish_reason and len(kept.token_ids) == last.tokens:
            text = kept.last.text[len(kept.last.text) - (kept.chars - last.chars) :] if kept.chars > last.chars else ""
            self._count("finished")
            return Chunk(text, (), kept.last.finish_reason, kept.last.stop_reason)
        if kept is None or last.tokens >= wanted.sampling.max_tokens:
            self._count("not_found")
            message = f"nothing is kept of the answer that {LAST_EVENT_HEADER} names; send the request without it"
            raise ApiError(404, message, "answer_not_found", LAST_EVENT_HEADER, headers=dict(NO_RETRY))
        self._count("resumed")
        return wanted.after(kept.token_ids[: last.tokens], last.chars)


def _is_it(answer: KeptAnswer, last: EventId) -> bool:
    """Whether an answer begins with what the client has."""
    begins = answer.token_ids[: last.tokens]
    return len(begins) == last.tokens and last.chars <= answer.chars and digest_of(begins) == last.digest
