"""Tier 1: lanes, the classes of geometry that keep short requests from waiting behind long ones.

A lane is a range of prompt lengths, and for the decode a range of expected answer lengths, with the pools that serve
it. What a request costs decides its lane; who sent it, and how important it is, does not.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from policies.errors import ConfigError
from policies.views import Role
from routing.request.stages import NO_POOLS, PoolNames, pools_serving

FIELD = "policies.lanes.lanes"
"""Where a configuration lists them, for error messages."""


class TokenRange(NamedTuple):
    """Lengths from ``at_least`` to less than ``below``."""

    at_least: float = 0
    below: float = math.inf

    def __contains__(self, num_tokens: object) -> bool:
        return isinstance(num_tokens, int) and self.at_least <= num_tokens < self.below


ANY_LENGTH = TokenRange()
ONE_LANE = "all"
"""The lane of everything, where there are no lanes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One lane.

    Args:
        name: Names it in metrics, logs and the configuration.
        prompt_tokens: Prompts that belong here.
        output_tokens: Expected answers that belong here.
        pools: Pools that serve it: for every stage of a plan at least one.
        borrows_from: Lanes of longer requests whose idle replicas it may use when none of its own is idle.
        reserve: How many idle replicas of a role it keeps for itself: it lends only what is idle beyond them.
        fallback: Requests come here only when a degradation policy sends them; then ranges say nothing.
        ttft_slo_s: Time to first token, in seconds, that is promised to requests that have no SLO of their own.
        tpot_slo_s: Time per further token, likewise.
    """

    name: str
    prompt_tokens: TokenRange = ANY_LENGTH
    output_tokens: TokenRange = ANY_LENGTH
    pools: tuple[str, ...]
    borrows_from: tuple[str, ...] = ()
    reserve: int = 0
    fallback: bool = False
    ttft_slo_s: float = math.inf
    tpot_slo_s: float = math.inf

    def fits(self, prompt_tokens: int, output_tokens: int) -> bool:
        """Whether a request of this geometry belongs here."""
        return prompt_tokens in self.prompt_tokens and output_tokens in self.output_tokens


def chosen_among(lanes: Iterable[Lane]) -> tuple[Lane, ...]:
    """The lanes that requests are put in for what they are: all but fallbacks."""
    return tuple(lane for lane in lanes if not lane.fallback)


def lane_limits_tokens(lane: Lane, lanes: Sequence[Lane]) -> tuple[int, ...]:
    """Answer lengths, ascending, at which a request of a lane exceeds its length, and then each lane that it is demoted
    to.
    """
    alike = (each.output_tokens.below for each in lanes if each.prompt_tokens == lane.prompt_tokens)
    first = lane.output_tokens.below
    return tuple(sorted({int(below) for below in alike if first <= below < math.inf}))


def demoted(lane: Lane, lanes: Sequence[Lane], output_tokens: int) -> Lane:
    """The lane for the same prompts and an answer that has become so long; ``lane`` itself when there is none."""
    alike = (each for each in lanes if each.prompt_tokens == lane.prompt_tokens)
    return next((each for each in alike if output_tokens in each.output_tokens), lane)


def one_lane(pools: Mapping[str, Role]) -> tuple[Lane, ...]:
    """No lanes: everything may go everywhere."""
    return (Lane(name=ONE_LANE, pools=tuple(pools)),)


def check_lanes(lanes: Sequence[Lane], pools: Mapping[str, Role], whole_request_pools: PoolNames = NO_POOLS) -> None:
    """Whether lanes fit the pools and one another.

    Args:
        lanes: In the order of the configuration.
        pools: Role of every pool, by name.
        whole_request_pools: Prefill and decode pools whose replicas also take whole requests.

    Raises:
        ConfigError: No lane, a name twice, an empty range, a negative reserve, a pool or lane that does not exist, a
            stage that a lane has no pool for, a pool that no lane uses, borrowing from shorter requests, or lanes that
            would need the predicted answer to choose among prefill or unified pools.
    """
    names = [lane.name for lane in lanes]
    if not chosen_among(lanes) or len(set(names)) != len(names):
        raise ConfigError(FIELD, names, "at least one lane that is no fallback, each name once")
    for number, lane in enumerate(lanes):
        _check_lane(f"{FIELD}.{number}", lane, lanes, pools)
        _check_stages(f"{FIELD}.{number}.pools", lane, pools, whole_request_pools)
    unused = sorted(set(pools) - {pool for lane in lanes for pool in lane.pools})
    if unused:
        raise ConfigError(FIELD, unused, "pools that at least one lane uses")
    for number, lane in enumerate(lanes):
        for other in lanes[:number]:
            own, others = (_early(each, pools, whole_request_pools) for each in (lane, other))
            is_fallback = lane.fallback or other.fallback
            if lane.prompt_tokens == other.prompt_tokens and own != others and not is_fallback:
                allowed = f"those of {other.name!r}: the same prompts, and the answer's length is not known yet"
                raise ConfigError(f"{FIELD}.{number}.pools", sorted(own), allowed)


def _check_lane(field: str, lane: Lane, lanes: Sequence[Lane], pools: Mapping[str, Role]) -> None:
    for name in ("prompt_tokens", "output_tokens"):
        lengths: TokenRange = getattr(lane, name)
        if not 0 <= lengths.at_least < lengths.below:
            raise ConfigError(f"{field}.{name}", tuple(lengths), "from 0 or more to less than something above it")
    unknown = [pool for pool in lane.pools if pool not in pools]
    if unknown:
        raise ConfigError(f"{field}.pools", unknown, f"of the pools {sorted(pools)}")
    _check_lending(field, lane, lanes)


def _check_lending(field: str, lane: Lane, lanes: Sequence[Lane]) -> None:
    if lane.reserve < 0:
        raise ConfigError(f"{field}.reserve", lane.reserve, "0 or more")
    by_name = {each.name: each for each in lanes}
    for lender in lane.borrows_from:
        if lender not in by_name or lender == lane.name or lane.fallback or by_name[lender].fallback:
            raise ConfigError(f"{field}.borrows_from", lender, "another lane's name; fallbacks neither lend nor borrow")
        if by_name[lender].prompt_tokens.at_least < lane.prompt_tokens.at_least:
            raise ConfigError(f"{field}.borrows_from", lender, "a lane of longer prompts: short may borrow from long")


def _check_stages(field: str, lane: Lane, pools: Mapping[str, Role], whole_request_pools: PoolNames) -> None:
    serving = {stage: pools_serving(stage, pools, whole_request_pools) for stage in Role}
    missing = sorted(stage for stage, those in serving.items() if those and not set(those) & set(lane.pools))
    if missing:
        raise ConfigError(field, list(lane.pools), f"also a pool for {', '.join(missing)}")


def _early(lane: Lane, pools: Mapping[str, Role], whole_request_pools: PoolNames) -> frozenset[str]:
    """The lane's pools that start a request, when nobody knows how long its answer will be."""
    return frozenset(pool for pool in lane.pools if pools[pool] is not Role.DECODE or pool in whole_request_pools)
