"""Who keeps track of what is in the replicas' prefix caches, as the dispatcher needs it."""

from typing import Protocol

from policies.views import NoPrefixes, PrefixView, RequestView, Role


class PrefixTracker(PrefixView, Protocol):
    """A :class:`policies.views.PrefixView` that is told where prompts go."""

    def sent(self, request: RequestView, replica_id: str) -> None:
        """A replica computes this prompt now, and will have it in its cache."""
        ...

    def sent_elsewhere(self, blocks: tuple[int, ...], replica_id: str) -> None:
        """Another gateway has sent a prompt with these blocks to a replica, a moment ago."""
        ...

    def cache_changed(self, replica_id: str, stored: tuple[int, ...], dropped: tuple[int, ...]) -> None:
        """A replica's engine has said which blocks have come into its cache and gone from it, a moment ago."""
        ...

    def forget(self, replica_id: str) -> None:
        """A replica has gone, and its cache with it."""
        ...


class NoPrefixTracker(NoPrefixes):
    """Nobody keeps track."""

    def sent(self, request: RequestView, replica_id: str) -> None:
        """Forgotten at once."""

    def sent_elsewhere(self, blocks: tuple[int, ...], replica_id: str) -> None:
        """Likewise."""

    def cache_changed(self, replica_id: str, stored: tuple[int, ...], dropped: tuple[int, ...]) -> None:
        """Likewise."""

    def forget(self, replica_id: str) -> None:
        """Nothing was known."""


def note_prompt(prefixes: PrefixTracker, request: RequestView, stage: Role, replica_id: str) -> int:
    """Notes that a stage of a request goes to a replica; returns the tokens of its prompt that are cached there."""
    if stage is Role.DECODE:
        return 0
    cached_tokens = prefixes.cached_tokens(request).get(replica_id, 0)
    prefixes.sent(request, replica_id)
    return cached_tokens
