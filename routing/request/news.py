"""What gateways tell one another, so that they act as one: work, prompts that were sent, requests not answered."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from policies.decisions import Reason


class ReplicaWork(NamedTuple):
    """What gateways have for one replica, in tokens.

    Args:
        prefill_tokens: Prompt tokens that are sent and have no first token yet.
        kv_tokens: KV tokens that attempts under way are expected to hold.
        waiting_tokens: Prompt tokens that wait for it, because it has their prefix.
    """

    prefill_tokens: int = 0
    kv_tokens: int = 0
    waiting_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedWork:
    """What one gateway, or several together, have waiting and under way.

    Args:
        waiting: By queue, when first tokens are due, on the clock of whoever tells, and the prompt tokens of those that
            wait for whichever replica has room first.
        replicas: By replica.
        out: Replicas that are kept out by what was seen of them, and until when, on the same clock.
    """

    waiting: Mapping[str, tuple[tuple[float, int], ...]] = field(default_factory=dict)
    replicas: Mapping[str, ReplicaWork] = field(default_factory=dict)
    out: Mapping[str, float] = field(default_factory=dict)

    def later_by(self, seconds: float) -> "SharedWork":
        """The same on a clock that is so far ahead."""
        waiting = {
            queue: tuple((due_s + seconds, tokens) for due_s, tokens in told) for queue, told in self.waiting.items()
        }
        out = {replica: until_s + seconds for replica, until_s in self.out.items()}
        return SharedWork(waiting=waiting, replicas=self.replicas, out=out)


NO_WORK = SharedWork()


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstArrival:
    """A logical request that was not answered: whichever gateway its client's retry goes to has to know of it.

    Times are on the clock of whoever has it; what tells it to somebody else puts it on theirs.

    Args:
        key: Stands for the logical request, 64 bits of a hash.
        request_id: The request that came first.
        arrival_s: When that arrived, seconds.
        deadline_s: After which nobody waits for the answer any more, seconds.
        has_slo: Whether a retry has the SLO of that arrival. Not where the fleet lost the request, or where its
            tenant was over its quota: a retry then has its own, and the deadline of the first.
        given_up_for: Why the fleet is not to try it again, whoever sends it: replicas were lost with it, or engines
            failed on it. None: it may come again.
    """

    key: int
    request_id: str
    arrival_s: float
    deadline_s: float
    has_slo: bool = True
    given_up_for: Reason | None = None

    def later_by(self, seconds: float) -> "FirstArrival":
        """The same on a clock that is so far ahead."""
        return replace(self, arrival_s=self.arrival_s + seconds, deadline_s=self.deadline_s + seconds)


class SentPrompt(NamedTuple):
    """A prompt that a gateway has sent: its replica will have it in its prefix cache.

    Args:
        replica_id: The replica.
        blocks: The prompt, as :attr:`policies.views.RequestView.prefix_blocks` has it.
    """

    replica_id: str
    blocks: tuple[int, ...]


class CacheChange(NamedTuple):
    """What has come into a replica's prefix cache and gone from it, as its engine says.

    Args:
        replica_id: The replica.
        stored: Blocks that it has now, numbered as :attr:`policies.views.RequestView.prefix_blocks` numbers them, each
            after those before it.
        dropped: Blocks that it has no more.
    """

    replica_id: str
    stored: tuple[int, ...]
    dropped: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayNews:
    """What is new with a gateway, or with all others.

    Args:
        arrivals: Logical requests that were not answered since it last told; times are on the clock of whoever tells.
        prompts: Those that were sent since it last told.
        cache_changes: Those that replicas told it since then.
        work: What it has waiting and under way.
        at_s: Now, on that clock, seconds.
    """

    arrivals: tuple[FirstArrival, ...] = ()
    prompts: tuple[SentPrompt, ...] = ()
    cache_changes: tuple[CacheChange, ...] = ()
    work: SharedWork = NO_WORK
    at_s: float

    def on_clock(self, now_s: float) -> "GatewayNews":
        """The same on the clock of whoever hears it now; times become as much later as they were under way."""
        later_s = now_s - self.at_s
        arrivals = tuple(each.later_by(later_s) for each in self.arrivals)
        return replace(self, arrivals=arrivals, work=self.work.later_by(later_s), at_s=now_s)
