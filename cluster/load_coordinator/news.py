"""Tells gateways what the others have waiting and under way, what they have sent, and what they have not answered.

Every gateway asks once in ``SHARE_PERIOD_S`` and says what is new with it. So what one gateway knows of another is two
periods and the way there and back old at the most, and one period in the mean. What one refuses all know before the
openai package's first retry: that comes after 0.375 s at the earliest.
"""

from collections import deque
from collections.abc import Sequence

from routing.request.news import NO_WORK, CacheChange, FirstArrival, GatewayNews, ReplicaWork, SentPrompt, SharedWork

SHARE_PERIOD_S = 0.05
MOST_SHARED = 4096
"""First arrivals that wait for a gateway, or in one; the latest are kept."""
MOST_PROMPTS = 1024
"""Prompts likewise: some kilobytes each."""
SILENT_S = 10.0
"""A gateway that has not asked for so long is gone."""
WORK_VALID_S = 0.5
"""What a gateway said of its work counts for so long."""


class UnsharedNews:
    """What somebody has not been told yet of a gateway, or of several; the latest are kept."""

    def __init__(self) -> None:
        self._arrivals: deque[FirstArrival] = deque(maxlen=MOST_SHARED)
        self._prompts: deque[SentPrompt] = deque(maxlen=MOST_PROMPTS)
        self._cache_changes: deque[CacheChange] = deque(maxlen=MOST_PROMPTS)

    def add_arrival(self, arrival: FirstArrival) -> None:
        """A logical request was not answered."""
        self._arrivals.append(arrival)

    def add_prompt(self, prompt: SentPrompt) -> None:
        """A prompt was sent."""
        self._prompts.append(prompt)

    def add_cache_change(self, change: CacheChange) -> None:
        """A replica has told what has come into its prefix cache and gone from it."""
        self._cache_changes.append(change)

    def add(self, news: GatewayNews) -> None:
        """All that is new with a gateway, but its work: what it has now is told, and not what it had."""
        self._arrivals.extend(news.arrivals)
        self._prompts.extend(news.prompts)
        self._cache_changes.extend(news.cache_changes)

    def take(self, work: SharedWork, at_s: float) -> GatewayNews:
        """All of it, on its way, with the work that there is now."""
        news = GatewayNews(
            arrivals=tuple(self._arrivals),
            prompts=tuple(self._prompts),
            cache_changes=tuple(self._cache_changes),
            work=work,
            at_s=at_s,
        )
        for told in (self._arrivals, self._prompts, self._cache_changes):
            told.clear()
        return news

    def give_back(self, news: GatewayNews) -> None:
        """It did not arrive, and goes with the next."""
        later = self.take(news.work, news.at_s)
        self.add(news)
        self.add(later)


class NewsRelay:
    """Passes on between gateways. It keeps nothing that can't be lost: a retry that nobody knows is served as a request
    like any other, work that nobody knows of is found out when replicas report, and a prompt is computed twice.
    """

    def __init__(self) -> None:
        self._outboxes: dict[str, UnsharedNews] = {}
        self._told: dict[str, GatewayNews] = {}

    def exchange(self, gateway: str, news: GatewayNews, now_s: float) -> GatewayNews:
        """Takes in what is new with a gateway, and gives it what is with the others.

        Args:
            gateway: Names it; unique among those that share the relay.
            news: Its work now, and what it has sent and not answered since it last asked.
            now_s: Now, on the relay's clock.

        Returns:
            Work of all others together; what they have sent and not answered since this one last asked.
        """
        own = self._outboxes.setdefault(gateway, UnsharedNews())
        self._told[gateway] = news = news.on_clock(now_s)
        self._forget_those_gone(now_s)
        for name, outbox in self._outboxes.items():
            if name != gateway:
                outbox.add(news)
        others = [
            each.work for name, each in self._told.items() if name != gateway and each.at_s > now_s - WORK_VALID_S
        ]
        return own.take(_together(others), now_s)

    def _forget_those_gone(self, now_s: float) -> None:
        for name in [name for name, each in self._told.items() if now_s - each.at_s > SILENT_S]:
            del self._told[name], self._outboxes[name]


def _together(works: Sequence[SharedWork]) -> SharedWork:
    waiting: dict[str, tuple[tuple[float, int], ...]] = {}
    replicas: dict[str, ReplicaWork] = {}
    out: dict[str, float] = {}
    for work in works:
        for replica, until_s in work.out.items():
            out[replica] = max(until_s, out.get(replica, until_s))
        for queue, told in work.waiting.items():
            waiting[queue] = (*waiting.get(queue, ()), *told)
        for replica, tokens in work.replicas.items():
            before = replicas.get(replica)
            replicas[replica] = ReplicaWork(*map(sum, zip(before, tokens, strict=True))) if before else tokens
    return SharedWork(waiting=waiting, replicas=replicas, out=out) if works else NO_WORK
