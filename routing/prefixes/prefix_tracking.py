"""Who keeps track of what is in the replicas' prefix caches, as the dispatcher needs it."""

from collections.abc import Mapping
from typing import Protocol

from policies.catalog import Factory, PolicyChoice, make_policy
from policies.views import NoPrefixes, PrefixView, RequestView, Role
from routing.prefixes.prefix_index import PrefixIndex


class PrefixTracker(PrefixView, Protocol):
    """A :class:`policies.views.PrefixView` that is told where prompts go."""

    def sent(self, request: RequestView, replica_id: str) -> None:
        """A replica computes this prompt now, and will have it in its cache."""
        ...

    def forget(self, replica_id: str) -> None:
        """A replica has gone, and its cache with it."""
        ...


class NoPrefixTracker(NoPrefixes):
    """Nobody keeps track."""

    def sent(self, request: RequestView, replica_id: str) -> None:
        """Forgotten at once."""

    def forget(self, replica_id: str) -> None:
        """Nothing was known."""


TRACKERS: Mapping[str, Factory] = {"block_hash": PrefixIndex, "none": NoPrefixTracker}


def build_tracker(choice: PolicyChoice) -> PrefixTracker:
    """Builds a prefix tracker: a key of ``TRACKERS``, or ``package.module:factory``.

    Raises:
        ConfigError: See :func:`policies.catalog.make_policy`.
    """
    tracker: PrefixTracker = make_policy("policies.prefixes", choice, TRACKERS, ("cached_tokens", "sent", "forget"))
    return tracker


def note_prompt(prefixes: PrefixTracker, request: RequestView, stage: Role, replica_id: str) -> int:
    """Notes that a stage of a request goes to a replica; returns the tokens of its prompt that are cached there."""
    if stage is Role.DECODE or not request.prefix_blocks:
        return 0
    cached_tokens = prefixes.cached_tokens(request).get(replica_id, 0)
    prefixes.sent(request, replica_id)
    return cached_tokens
