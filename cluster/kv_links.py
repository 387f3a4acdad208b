"""Links between replicas: how fast KV comes from one that is on the same node, in the same rack, or somewhere else."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from policies.errors import ConfigError

ANYWHERE = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class KvLink:
    """Between replicas that have something in common.

    Args:
        same: A label, such as ``node`` or ``rack``: the link is between replicas for which it has the same value.
            Empty: between any.
        bandwidth_bytes_per_s: Of a transfer of KV.

    Raises:
        ConfigError: A bandwidth that is not above 0.
    """

    same: str = ""
    bandwidth_bytes_per_s: float

    def __post_init__(self) -> None:
        if not 0.0 < self.bandwidth_bytes_per_s < math.inf:
            raise ConfigError("bandwidth_bytes_per_s", self.bandwidth_bytes_per_s, "more than 0")


def check_links(links: Sequence[KvLink]) -> None:
    """Raises ``ConfigError`` for a label that two links have, and for links behind the one between any replicas."""
    labels = [each.same for each in links]
    if len(set(labels)) != len(labels) or "" in labels[:-1]:
        raise ConfigError("kv_links", labels, "each label once, the nearest first, and the one without a label last")


def place_of(labels: Mapping[str, str], links: Sequence[KvLink]) -> tuple[str, ...]:
    """What a replica has in common with others of its labels, link by link; empty where it has no such label."""
    return tuple(labels.get(each.same, "") if each.same else ANYWHERE for each in links)


def slowdowns_of(links: Sequence[KvLink], bandwidth_bytes_per_s: float) -> tuple[float, ...]:
    """How many times as long as by an engine's own link KV takes by each of these."""
    return tuple(bandwidth_bytes_per_s / each.bandwidth_bytes_per_s for each in links)
