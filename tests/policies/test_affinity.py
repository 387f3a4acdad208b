"""Balancers that send a request to where its text is."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from policies import RequestView
from policies.balancing import LeastCost, Lmetric, LongestPrefix, PrefixAffinity, Scored, SessionAffinity
from policies.balancing.hash_ring import HashRing
from policies.candidates import CandidateList, Candidates, load_of
from tests.policy_doubles import FakeReplica, a_request

Matches = dict[str, int]
NAMES = "abcdefgh"
FLEETS = st.dictionaries(st.sampled_from(NAMES), st.integers(0, 60_000), min_size=1)
MATCHES = st.dictionaries(st.sampled_from(NAMES), st.integers(1, 40).map(lambda blocks: blocks * 512))
SESSIONS = [f"session-{number}" for number in range(2000)]


class Known:
    """Prefixes that the test says are there, the longest first, as the index gives them."""

    def __init__(self, matches: Matches) -> None:
        self._matches = dict(sorted(matches.items(), key=lambda each: -each[1]))

    def cached_tokens(self, request: RequestView) -> Mapping[str, int]:
        return self._matches


def fleet(work: Mapping[str, int]) -> Candidates:
    return CandidateList(FakeReplica(replica_id=name, kv_tokens=work[name]) for name in sorted(work))


def a_prompt(**changes: Any) -> RequestView:
    return replace(
        a_request(prompt_tokens=40 * 512), **{"prefix_blocks": (1, 2, 3), "prefix_block_tokens": 512, **changes}
    )


def pick(balancer: Any, work: Mapping[str, int], **changes: Any) -> str:
    replica_id: str = balancer.pick(a_prompt(**changes), fleet(work), 0.0).replica_id
    return replica_id


def limit(work: Mapping[str, int], bound_factor: float, slack_tokens: int) -> float:
    return bound_factor * sum(work.values()) / len(work) + slack_tokens


def least(work: Mapping[str, int]) -> str:
    return fleet(work).least_work_left().replica_id


@given(work=FLEETS, matches=MATCHES)
def test_the_longest_match_wins_however_busy_it_is(work: dict[str, int], matches: Matches) -> None:
    chosen = pick(LongestPrefix(prefixes=Known(matches)), work)
    there = {name: matches[name] for name in work if name in matches}
    assert matches[chosen] == max(there.values()) if there else chosen == least(work)


@given(work=FLEETS, matches=MATCHES, bound_factor=st.floats(1.0, 3.0), slack_tokens=st.integers(0, 20_000))
def test_prefix_affinity_is_the_longest_match_within_the_bound(
    work: dict[str, int], matches: Matches, bound_factor: float, slack_tokens: int
) -> None:
    balancer = PrefixAffinity(prefixes=Known(matches), bound_factor=bound_factor, slack_tokens=slack_tokens)
    chosen = pick(balancer, work)

    limit_tokens = limit(work, bound_factor, slack_tokens)
    within = {name: matches.get(name, 0) for name in work if work[name] <= limit_tokens}
    assert work[chosen] <= limit_tokens
    assert matches.get(chosen, 0) == max(within.values())
    as_good = [each for each in fleet(work) if within.get(each.replica_id) == within[chosen]]
    assert chosen == min(as_good, key=load_of).replica_id


@given(work=FLEETS, matches=MATCHES, match_weight=st.sampled_from([0.0, 0.5, 1.0, 4.0]))
def test_least_cost_is_the_least_sum_of_work_and_uncached_prompt(
    work: dict[str, int], matches: Matches, match_weight: float
) -> None:
    chosen = pick(LeastCost(prefixes=Known(matches), match_weight=match_weight), work)
    costs = {name: work[name] - match_weight * matches.get(name, 0) for name in work}
    assert costs[chosen] == min(costs.values())
    assert match_weight > 0 or chosen == least(work)


BATCHES = st.dictionaries(st.sampled_from(NAMES), st.tuples(st.integers(0, 60_000), st.integers(0, 64)), min_size=1)


@given(batches=BATCHES, matches=MATCHES)
def test_lmetric_is_the_least_product_of_new_tokens_and_batch(
    batches: dict[str, tuple[int, int]], matches: Matches
) -> None:
    replicas = CandidateList(
        FakeReplica(replica_id=name, prefill_tokens=batches[name][0], num_ongoing_requests=batches[name][1])
        for name in sorted(batches)
    )
    prompt = a_prompt()

    chosen = Lmetric(prefixes=Known(matches)).pick(prompt, replicas, 0.0).replica_id

    products = {
        name: (tokens + prompt.prompt_tokens - matches.get(name, 0)) * (ongoing + 1)
        for name, (tokens, ongoing) in batches.items()
    }
    assert products[chosen] == min(products.values())


def test_new_text_goes_to_the_same_place_from_every_gateway() -> None:
    work = dict.fromkeys(NAMES, 1000)
    one, other = (PrefixAffinity(prefixes=Known({}), hash_new_text=True) for _ in range(2))
    prompts = [{"prefix_blocks": (0, number, 7)} for number in range(100)]

    chosen = [pick(one, work, **each) for each in prompts]
    assert chosen == [pick(other, work, **each) for each in reversed(prompts)][::-1]
    assert len(set(chosen)) > len(NAMES) / 2
    assert pick(one, work, prefix_blocks=(0,)) == "a"


@given(work=FLEETS, bound_factor=st.floats(1.0, 2.0), slack_tokens=st.integers(0, 5000))
def test_a_session_never_goes_where_the_work_is_above_the_bound(
    work: dict[str, int], bound_factor: float, slack_tokens: int
) -> None:
    balancer = SessionAffinity(bound_factor=bound_factor, slack_tokens=slack_tokens)
    for session in SESSIONS[:20]:
        assert work[pick(balancer, work, session_id=session)] <= limit(work, bound_factor, slack_tokens)


def test_a_session_stays_and_overflows_to_the_next_on_the_ring() -> None:
    balancer = SessionAffinity()
    idle = dict.fromkeys(NAMES, 0)
    home = pick(balancer, idle, session_id="s")
    busy = {**idle, home: 10**6}
    without = {name: 0 for name in NAMES if name != home}

    assert {pick(balancer, idle, session_id="s") for _ in range(5)} == {home}
    assert pick(balancer, busy, session_id="s") == pick(SessionAffinity(), without, session_id="s") != home


def test_who_has_no_session_goes_where_the_least_work_is() -> None:
    assert pick(SessionAffinity(), {"a": 3, "b": 1, "c": 2}) == "b"


def test_when_a_replica_goes_only_its_own_sessions_move_and_they_spread() -> None:
    """Of 2,000 sessions on 8 replicas an eighth moves, give or take half: shares of 128 points are that uneven."""
    balancer = SessionAffinity()
    before = {each: pick(balancer, dict.fromkeys(NAMES, 0), session_id=each) for each in SESSIONS}
    after = {each: pick(balancer, dict.fromkeys(NAMES[1:], 0), session_id=each) for each in SESSIONS}

    moved = [each for each in SESSIONS if before[each] != after[each]]
    assert moved == [each for each in SESSIONS if before[each] == NAMES[0]]
    assert 1 / 16 < len(moved) / len(SESSIONS) < 3 / 16
    assert len({after[each] for each in moved}) == len(NAMES) - 1
    assert max(Counter(before.values()).values()) < 1.5 * len(SESSIONS) / len(NAMES)


@given(steps=st.lists(st.sets(st.integers(0, 60), min_size=1), min_size=1, max_size=12))
def test_what_else_was_on_the_ring_before_changes_nothing(steps: list[set[int]]) -> None:
    ring = HashRing(4)
    for step in steps:
        candidates = fleet({f"r{number}": 0 for number in step})
        ring.cover(candidates)
        fresh = HashRing(4)
        fresh.cover(candidates)
        here = [name for name in ring.order("s") if candidates.find(name)]
        assert here == list(fresh.order("s"))
        assert len(ring) <= 2 * len(step) + 16


@given(work=FLEETS, matches=MATCHES)
def test_a_score_alone_is_the_policy_of_that_name(work: dict[str, int], matches: Matches) -> None:
    prefixes = Known(matches)

    by_load = pick(Scored(prefixes=prefixes, weights={"load": 1.0}), work)
    assert work[by_load] == min(work.values())
    by_prefix = pick(Scored(prefixes=prefixes, weights={"prefix": 2.0, "load": 0.0}), work)
    assert matches.get(by_prefix, 0) == max(matches.get(name, 0) for name in work)
    by_session = pick(Scored(prefixes=prefixes, weights={"session": 1.0}), work, session_id="s")
    assert by_session == pick(SessionAffinity(slack_tokens=10**6), work, session_id="s")


def test_scores_are_weighed() -> None:
    work, prefixes = {"a": 0, "b": 10_000}, Known({"b": 20 * 512})
    assert pick(Scored(prefixes=prefixes, weights={"load": 1.0, "prefix": 1.0}), work) == "a"
    assert pick(Scored(prefixes=prefixes, weights={"load": 1.0, "prefix": 3.0}), work) == "b"
    assert pick(Scored(prefixes=prefixes, weights={"session": 1.0, "load": 0.1}), work) == "a"


def test_a_free_kv_cache_counts() -> None:
    candidates = CandidateList(
        [FakeReplica(replica_id="a", kv_cache_usage=0.9), FakeReplica(replica_id="b", kv_cache_usage=0.2)]
    )
    assert Scored(prefixes=Known({}), weights={"kv_usage": 1.0}).pick(a_prompt(), candidates, 0.0).replica_id == "b"
