"""What policies may look at. Every attribute is read-only and carries its unit in its name.

Views are protocols, not copies: the fleet hands out its own records behind these read-only faces, and its own
lists of them, so that a decision over hundreds of replicas costs no allocation. A policy keeps nothing of a view beyond
the call, lists included: both change with the next event.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol


class Role(StrEnum):
    """What a replica's engine does: the whole request, or one side of the KV handoff."""

    UNIFIED = "unified"
    PREFILL = "prefill"
    DECODE = "decode"


class Priority(StrEnum):
    """How much a request matters when there is not room for all; the first is the last to be given up."""

    CRITICAL = "critical"
    STANDARD = "standard"
    SHEDDABLE = "sheddable"

    @property
    def rank(self) -> int:
        """0 for the class that goes first."""
        return _RANKS[self]


_RANKS = {priority: rank for rank, priority in enumerate(Priority)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """What a request is expected to cost: known at intake where it can be, predicted where it can't.

    All zeros stands for a request that nobody has classified yet.

    Args:
        uncached_tokens: Prompt tokens that the replica with the longest matching prefix would have to compute.
        output_tokens: Expected length of the answer.
        output_tokens_high: A high quantile of it; which one is the predictor's configuration.
        prefill_s: Service-seconds of computing the uncached part of the prompt, on an engine that does nothing else.
        decode_s: Service-seconds of its share of the decode steps, at the batch that the profile's engine is planned
            for.
    """

    uncached_tokens: int = 0
    output_tokens: int = 0
    output_tokens_high: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0

    def work_s(self, stage: Role) -> float:
        """Service-seconds of a stage: the whole request's, its prefill's or its decode's."""
        if stage is Role.PREFILL:
            return self.prefill_s
        return self.decode_s if stage is Role.DECODE else self.prefill_s + self.decode_s


UNCLASSIFIED = Geometry()


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestView:
    """One request as policies see it: what the client sent, and what the router makes of it.

    Args:
        request_id: Unique in the gateway's lifetime.
        prompt_tokens: Length of the prompt, exact.
        max_output_tokens: Upper bound of the output.
        arrival_s: When the gateway took it in.
        deadline_s: Absolute time after which nobody waits for it any more.
        priority: Its class, as far as its tenant is entitled to it.
        tenant: Who pays for it; empty when nobody said.
        session_id: The conversation that it belongs to; empty when nobody said.
        logical_request_id: What a client's own retries of it have in common with it: its idempotency key or a hash of
            its body; empty when nobody can tell.
        is_keyed: Whether that is an idempotency key, which no other logical request of the tenant has.
        retry_count: How often its client has sent the same before, as the client says.
        first_arrival_s: When its logical request arrived, for a retry of it that counts as late as that; ``None``: it
            is as old as it is.
        prefix_blocks: Identity of the prompt, one number for each full ``prefix_block_tokens`` tokens of it; equal
            numbers mean equal text up to and including that block. Empty when nothing looks at prefixes.
        prefix_block_tokens: Tokens in such a block; 0 when there are none.
        prompt_id: Stands for the whole prompt, within those who share KV of equal ones: equal numbers mean equal text;
            0 where nothing looks at it.
        prompt_ngrams: Hashed n-grams of the prompt, for a predictor that looks at its words; else empty.
        has_cached_answer: Whether the host has the answer that an equal request was given.
        lane: The lane that it was put in; empty before it is classified.
        geometry: What it is expected to cost.
        first_token_by_s: Absolute time of the first token by its SLO, its deadline where there is none; 0 before it is
            classified.
        is_resumable: Whether an answer that was stopped in the middle can be resumed from the prompt and the tokens
            given so far, as if nothing had happened.
        kv_place: Where the KV of its prompt is, once it is computed for another replica: the ``place`` of the one that
            holds it.
        adapter: The LoRA adapter that it is computed with; empty: none.
    """

    request_id: str
    prompt_tokens: int
    max_output_tokens: int
    arrival_s: float
    deadline_s: float
    priority: Priority = Priority.STANDARD
    tenant: str = ""
    session_id: str = ""
    logical_request_id: str = ""
    is_keyed: bool = False
    retry_count: int = 0
    first_arrival_s: float | None = None
    prefix_blocks: tuple[int, ...] = ()
    prefix_block_tokens: int = 0
    prompt_id: int = 0
    prompt_ngrams: tuple[int, ...] = ()
    has_cached_answer: bool = False
    lane: str = ""
    geometry: Geometry = UNCLASSIFIED
    first_token_by_s: float = 0.0
    is_resumable: bool = True
    kv_place: tuple[str, ...] = ()
    adapter: str = ""

    def classified(self, geometry: Geometry, lane: str, first_token_by_s: float) -> "RequestView":
        """The same request, with its cost estimate and in a lane; field by field, because every request comes through
        here.
        """
        return RequestView(
            request_id=self.request_id,
            prompt_tokens=self.prompt_tokens,
            max_output_tokens=self.max_output_tokens,
            arrival_s=self.arrival_s,
            deadline_s=self.deadline_s,
            priority=self.priority,
            tenant=self.tenant,
            session_id=self.session_id,
            logical_request_id=self.logical_request_id,
            is_keyed=self.is_keyed,
            retry_count=self.retry_count,
            first_arrival_s=self.first_arrival_s,
            prefix_blocks=self.prefix_blocks,
            prefix_block_tokens=self.prefix_block_tokens,
            prompt_id=self.prompt_id,
            prompt_ngrams=self.prompt_ngrams,
            has_cached_answer=self.has_cached_answer,
            lane=lane,
            geometry=geometry,
            first_token_by_s=first_token_by_s,
            is_resumable=self.is_resumable,
            kv_place=self.kv_place,
            adapter=self.adapter,
        )

    def held_at(self, place: tuple[str, ...]) -> "RequestView":
        """The same request, with its prompt's KV at a place."""
        return replace(self, kv_place=place)

    def limited_to(self, max_output_tokens: int) -> "RequestView":
        """The same request, with a shorter answer at the most."""
        return replace(self, max_output_tokens=min(self.max_output_tokens, max_output_tokens))

    @property
    def kv_tokens(self) -> int:
        """KV tokens that it is expected to hold at its longest: the prompt and the answer."""
        return self.prompt_tokens + (self.geometry.output_tokens or self.max_output_tokens)


class ReplicaView(Protocol):
    """One replica as this gateway sees it, slightly stale where other gateways are concerned."""

    @property
    def replica_id(self) -> str: ...

    @property
    def role(self) -> Role: ...

    @property
    def num_ongoing_requests(self) -> int:
        """Attempts that this gateway has open on the replica."""
        ...

    @property
    def max_ongoing_requests(self) -> int:
        """Attempts that the replica takes at a time, from all gateways."""
        ...

    @property
    def pool(self) -> str:
        """The pool that it belongs to; replicas of one pool are alike, and a role may have several pools."""
        ...

    @property
    def prefill_tokens(self) -> int:
        """Uncached prompt tokens of the attempts that have no first token yet; a decode adds none.

        The replica's last report, corrected by what this gateway has sent and finished since.
        """
        ...

    @property
    def kv_tokens(self) -> int:
        """KV tokens that its open attempts are expected to hold at their longest; a prefill adds none.

        As old as ``prefill_tokens``.
        """
        ...

    @property
    def waiting_tokens(self) -> int:
        """Uncached prompt tokens of requests that wait for this replica, because it has their prefix."""
        ...

    @property
    def waiting_tokens_elsewhere(self) -> int:
        """Those of them that wait at other gateways, where these tell it."""
        ...

    @property
    def work_tokens(self) -> int:
        """Work left on the replica: ``prefill_tokens + kv_tokens``."""
        ...

    @property
    def kv_capacity_tokens(self) -> int:
        """KV tokens that the engine can hold, as the engine itself says."""
        ...

    @property
    def kv_cache_usage(self) -> float:
        """Fraction of KV blocks in use at the last report, 0 to 1."""
        ...

    @property
    def failure_domain(self) -> str:
        """What it shares its troubles with, such as the node that it is on; empty when nobody said."""
        ...

    def has_slot_for(self, adapter: str) -> bool:
        """Whether its engine can compute with an adapter beside those that requests have there."""
        ...

    def has_loaded(self, adapter: str) -> bool:
        """Whether its engine has an adapter, or has been asked for it: by its last report and by what was sent since.

        No adapter needs no load.
        """
        ...

    @property
    def place(self) -> tuple[str, ...]:
        """Where it is, such as its node and its rack, an element for each link that is told of; empty where none is."""
        ...


def level_in_common(place: Sequence[str], other: Sequence[str]) -> int | None:
    """The first level at which two replicas are at the same place, ``None`` where there is none."""
    pairs = enumerate(zip(place, other, strict=False))
    return next((level for level, (here, there) in pairs if here == there != ""), None)


class PrefixView(Protocol):
    """What this gateway believes to be in the replicas' prefix caches."""

    def cached_tokens(self, request: RequestView) -> Mapping[str, int]:
        """Leading tokens of the prompt that each replica has in its cache, by replica id, the longest match first.

        Replicas with too short a match to matter are left out. Asking twice for one request costs one look.
        """
        ...


class NoPrefixes:
    """Nobody keeps track of prefixes: nothing is ever cached."""

    def cached_tokens(self, request: RequestView) -> Mapping[str, int]:
        return {}


NO_PREFIXES = NoPrefixes()


class FirstTokenView(Protocol):
    """How long a request takes at a replica, in seconds, on an engine that is as busy as the replica is now.

    That is ``ahead_s + own_s`` to its first token, and then ``answer_s``. All are 0 without an engine
    profile: a policy that goes by them names ``Need.SERVICE_RATES``.
    """

    def ahead_s(self, replica: ReplicaView) -> float:
        """Prompts before it: those that the replica has and that are not computed yet, and those that wait for it."""
        ...

    def level_s(self, live: Sequence[ReplicaView], ahead_s: Sequence[float], anywhere_tokens: int) -> float:
        """Until a replica is free once prompts that wait for any of them are computed, each by the first that is free:
        the level to which so much water rises in vessels that are filled to what each has ahead, ``ahead_s`` in the
        order of ``live``; 0 without water.
        """
        ...

    def own_s(self, request: RequestView, replica: ReplicaView) -> float:
        """The part of its own prompt that the replica has not cached, where links are known its KV's way there, and
        where its adapter is not loaded its load, and the wait for a slot of its own where others need them all.
        """
        ...

    def load_s(self, request: RequestView, replica: ReplicaView) -> float:
        """The part of ``own_s`` in which the replica computes nothing, as it loads the request's adapter."""
        ...

    def answer_s(self, request: RequestView, replica: ReplicaView) -> float:
        """From its first token to its last, in the batch that the replica has now; 0 where answers are elsewhere."""
        ...


class NoFirstTokens:
    """Nobody has said how fast engines are."""

    def ahead_s(self, replica: ReplicaView) -> float:
        return 0.0

    def level_s(self, live: Sequence[ReplicaView], ahead_s: Sequence[float], anywhere_tokens: int) -> float:
        return 0.0

    def own_s(self, request: RequestView, replica: ReplicaView) -> float:
        return 0.0

    def load_s(self, request: RequestView, replica: ReplicaView) -> float:
        return 0.0

    def answer_s(self, request: RequestView, replica: ReplicaView) -> float:
        return 0.0


NO_FIRST_TOKENS = NoFirstTokens()


class FleetView(Protocol):
    """All replicas that can take work now."""

    def live(self, stage: Role, now_s: float) -> Sequence[ReplicaView]:
        """Replicas that serve a stage and are not in quarantine, in order of replica id."""
        ...


class BacklogView(Protocol):
    """What a request finds before it: at the first stage of its plan, in the queue that it would wait in.

    Work is in service-seconds: what one replica needs for it that does nothing else. Without an engine profile it is
    0 throughout, so a policy that goes by it names ``Need.SERVICE_RATES``.
    """

    @property
    def stage(self) -> Role:
        """The first stage of the request's plan."""
        ...

    @property
    def num_waiting(self) -> int:
        """Requests in the queue."""
        ...

    @property
    def waiting_s(self) -> float:
        """Their work."""
        ...

    @property
    def ahead_s(self) -> float:
        """Work of those in the queue that would go before the request if it stood there now."""
        ...

    @property
    def oldest_arrival_s(self) -> float:
        """When the one that has waited longest came in; now, when nobody waits."""
        ...

    @property
    def first_token_s(self) -> float:
        """Seconds from now until the request's first token if it is let in: those in the queue that go before it, the
        prompts at the replica where it would be served, and its own; ``math.inf`` without a replica.
        """
        ...

    def first_token_behind_s(self, work_s: float) -> float:
        """The same if so much more work came in before the request and went where least is to be done."""
        ...

    @property
    def shared_kv_fraction(self) -> float:
        """Of the KV tokens that this gateway's requests hold, each counted by itself, the part that another one has on
        the same replica too: an engine holds it once. 0 without ``policies.prefixes``.
        """
        ...

    @property
    def num_replicas(self) -> int:
        """Replicas that are worth waiting for."""
        ...

    @property
    def ongoing_s(self) -> float:
        """Work of this gateway's requests on such replicas that have no first token yet."""
        ...

    @property
    def num_ongoing(self) -> int:
        """Requests of this gateway that have been sent to a replica and have no verdict yet, whatever their lane."""
        ...

    @property
    def work_per_s(self) -> float:
        """Service-seconds a second that have left the line of late, while there was somebody in it.

        One for each replica, until that has been seen.
        """
        ...

    @property
    def kv_tokens(self) -> int:
        """KV tokens that open attempts are expected to hold at their longest, where the request's answer would be."""
        ...

    @property
    def kv_capacity_tokens(self) -> int:
        """KV tokens that the replicas there can hold together."""
        ...

    @property
    def waiting_kv_tokens(self) -> int:
        """KV tokens that those in the queue are expected to hold at their longest."""
        ...


def drain_s(backlog: BacklogView) -> float:
    """How long it takes until what waits now has been sent, at the drain rate of late: what a refused client is
    told.
    """
    return backlog.waiting_s / max(backlog.work_per_s, 1e-9)
