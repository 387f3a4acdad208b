"""What a scaling policy sees: each pool's replicas, what was asked of them, and what they hold."""

from collections.abc import Mapping
from dataclasses import dataclass, fields

from policies.views import Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What requests asked of a pool, and whether it came in time: refused ones too, and each logical request once,
    without clients' retries.

    Args:
        num_requests: How many.
        added_s: Seconds that their prompts, their answers or both add to the steps that they are in. As many as there
            are seconds fill a replica whose steps took no time of their own.
        prompt_tokens: Prompt tokens to be computed.
        output_tokens: Expected lengths of their answers.
        held_tokens: KV tokens that each holds in a decode step, summed over its steps.
        num_in_time: How many it did within their SLOs.
        num_late: How many it did not, those that were refused or given up before its turn came included.
    """

    num_requests: float = 0.0
    added_s: float = 0.0
    prompt_tokens: float = 0.0
    output_tokens: float = 0.0
    held_tokens: float = 0.0
    num_in_time: float = 0.0
    num_late: float = 0.0

    def since(self, before: "Demand") -> "Demand":
        """What was asked since then, of two sums; nothing, where a sum has begun anew."""
        names = [each.name for each in fields(Demand)]
        return Demand(**{name: max(0.0, getattr(self, name) - getattr(before, name)) for name in names})

    def times(self, factor: float) -> "Demand":
        """A part of it."""
        return Demand(**{each.name: factor * getattr(self, each.name) for each in fields(Demand)})

    def __add__(self, other: "Demand") -> "Demand":
        names = [each.name for each in fields(Demand)]
        return Demand(**{name: getattr(self, name) + getattr(other, name) for name in names})


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLoad:
    """What one gateway has for a pool.

    Args:
        demand: What requests that came to it asked of the pool, since it began.
        num_waiting: Requests that wait there for the pool.
        waiting_s: Service-seconds of theirs.
        oldest_wait_s: How long the first of them has waited.
        num_ongoing: Requests that it has at the pool's ready replicas.
        kv_tokens: KV tokens that those are expected to hold at their longest.
        kv_capacity_tokens: KV tokens that one of these replicas holds; 0 where none is ready.
    """

    demand: Demand = Demand()
    num_waiting: int = 0
    waiting_s: float = 0.0
    oldest_wait_s: float = 0.0
    num_ongoing: int = 0
    kv_tokens: int = 0
    kv_capacity_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolView:
    """One pool, as all gateways together see it.

    Args:
        role: What its replicas do.
        num_ready: Replicas that take requests.
        num_starting: Replicas that were asked for and don't yet.
        num_draining: Replicas that take no more and have requests to finish.
        num_warm: Replicas that have started and take none until there are to be more.
        num_changing: Of those that start, the ones that had another role: they are there as soon as they have finished
            what they have of it.
        min_replicas: The fewest that it may have.
        max_replicas: The most.
        warm_replicas: How many are to be warm beside those.
        changes_roles: Whether its replicas may have the role of the other pool that says so, once they have finished
            what they have.
        start_s: How long a replica takes to start.
        wake_s: How long a warm one takes to be ready.
        dollars_per_h: What a replica costs; 1 where the pool does not say.
        step_s: What a step of its engines takes anyway, for each token that it gives a sequence.
        demand: What was asked of it since the policy was asked last.
        num_waiting: Requests that wait for it at gateways.
        waiting_s: Service-seconds of theirs.
        oldest_wait_s: How long the first of them has waited.
        num_ongoing: Requests that its ready replicas have.
        max_ongoing_requests: Requests that a replica takes.
        max_num_seqs: Sequences of theirs that a step has; the others wait in the engine.
        kv_tokens: KV tokens that those requests are expected to hold at their longest.
        kv_capacity_tokens: KV tokens that a replica holds.
    """

    role: Role
    num_ready: int
    num_starting: int = 0
    num_draining: int = 0
    num_warm: int = 0
    num_changing: int = 0
    min_replicas: int = 1
    max_replicas: int = 4096
    warm_replicas: int = 0
    changes_roles: bool = False
    start_s: float = 0.0
    wake_s: float = 0.0
    dollars_per_h: float = 1.0
    step_s: float = 0.0
    demand: Demand = Demand()
    num_waiting: int = 0
    waiting_s: float = 0.0
    oldest_wait_s: float = 0.0
    num_ongoing: int = 0
    max_ongoing_requests: int = 1
    max_num_seqs: int = 1
    kv_tokens: int = 0
    kv_capacity_tokens: int = 1

    @property
    def num_replicas(self) -> int:
        """Replicas that it has or will have in service: those that drain or are warm are not among them."""
        return self.num_ready + self.num_starting

    @property
    def is_missed(self) -> bool:
        """Whether it has no ready replica and would have had something to do: others do it, so nothing runs or waits
        here. Once its first one starts it is missed until that is ready, whether something more is asked or not: who
        took it back would start it again with the next request, and it would never be there.
        """
        return self.num_ready == 0 and (self.num_starting > 0 or self.demand.num_requests > 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingView:
    """All pools whose size may change.

    Args:
        pools: By name.
        period_s: Seconds since the policy was asked last.
    """

    pools: Mapping[str, PoolView]
    period_s: float
