"""How long requests wait now, wherever they do."""

from policies.views import BacklogView


def queue_delay_s(backlog: BacklogView, now_s: float) -> float:
    """How long the one at the head of the queue has waited, and what replicas then have before it, in seconds."""
    return now_s - backlog.oldest_arrival_s + backlog.ongoing_s / max(1, backlog.num_replicas)
