from collections import Counter

from cluster import Seeds
from policies.balancing import (
    Card,
    JoinIdleQueue,
    LeastWorkLeft,
    PowerOfTwo,
    PowerOfTwoByWork,
    RandomChoice,
    RoundRobin,
)
from policies.candidates import CandidateList, Candidates
from policies.contracts import Balancer
from tests.policy_doubles import FakeReplica, ScriptedRng, a_request
from tests.tables import for_each


def replicas(*replica_ids: str, **loads: tuple[int, int]) -> Candidates:
    """Idle ones, and those that have so many ongoing requests and tokens of work."""
    busy = [FakeReplica(replica_id=a, num_ongoing_requests=n, kv_tokens=t) for a, (n, t) in loads.items()]
    return CandidateList(sorted([*(FakeReplica(replica_id=a) for a in replica_ids), *busy], key=lambda a: a.replica_id))


def picks(balancer: Balancer, candidates: Candidates, times: int) -> str:
    return "".join(balancer.pick(a_request(), candidates, 0.0).replica_id for _ in range(times))


class TestRoundRobin:
    def test_replicas_take_turns_by_id(self) -> None:
        assert picks(RoundRobin(), replicas("a", "b", "c"), 7) == "abcabca"

    @for_each(
        ("before", "picked", "after", "then"),
        [("abc", "a", "ac", "cac"), ("abc", "ab", "ac", "ca"), ("ac", "a", "abc", "bca")],
        ids=["one that left is skipped", "the last pick has left", "one that joins gets its turn"],
    )
    def test_the_turn_goes_on_when_replicas_come_and_go(self, before: str, picked: str, after: str, then: str) -> None:
        balancer = RoundRobin()
        assert picks(balancer, replicas(*before), len(picked)) == picked
        assert picks(balancer, replicas(*after), len(then)) == then


class TestRandomChoice:
    def test_every_replica_has_the_same_chance(self) -> None:
        """1000 draws of four: each replica's share is within 5 standard deviations (68) of 250."""
        balancer = RandomChoice(rng=Seeds(1).stream("balancing"))
        counts = Counter(picks(balancer, replicas("a", "b", "c", "d"), 1000))
        assert set(counts) == set("abcd")
        assert all(abs(count - 250) < 68 for count in counts.values())

    def test_the_draw_is_the_index(self) -> None:
        assert picks(RandomChoice(rng=ScriptedRng(2, 0)), replicas("a", "b", "c"), 2) == "ca"


class TestPowerOfTwo:
    def test_the_only_replica_is_picked_without_a_draw(self) -> None:
        assert picks(PowerOfTwo(rng=ScriptedRng()), replicas("a"), 1) == "a"

    @for_each(
        ("draws", "pair"),
        [((0, 0), "ab"), ((0, 1), "ac"), ((1, 0), "ba"), ((1, 1), "bc"), ((2, 0), "ca"), ((2, 1), "cb")],
    )
    def test_the_two_drawn_are_always_different(self, draws: tuple[int, int], pair: str) -> None:
        """The first drawn wins a tie, and the second wins when it alone is idle: the two picks show the pair."""
        first, second = tuple(pair)
        idle_second = replicas(second, **{each: (1, 0) for each in "abc" if each != second})
        assert picks(PowerOfTwo(rng=ScriptedRng(*draws)), replicas("a", "b", "c"), 1) == first
        assert picks(PowerOfTwo(rng=ScriptedRng(*draws)), idle_second, 1) == second

    def test_the_one_with_fewer_ongoing_requests_wins_whichever_was_drawn_first(self) -> None:
        assert picks(PowerOfTwo(rng=ScriptedRng(0, 0, 1, 0)), replicas(a=(2, 1), b=(1, 99)), 2) == "bb"


class TestPowerOfTwoByWork:
    def test_the_one_with_less_work_wins_whichever_was_drawn_first(self) -> None:
        assert picks(PowerOfTwoByWork(rng=ScriptedRng(0, 0, 1, 0)), replicas(a=(2, 1), b=(1, 99)), 2) == "aa"

    def test_the_first_drawn_wins_a_tie(self) -> None:
        assert picks(PowerOfTwoByWork(rng=ScriptedRng(2, 0)), replicas("a", "b", "c"), 1) == "c"


def test_least_work_left_goes_by_tokens_and_then_by_requests() -> None:
    assert picks(LeastWorkLeft(), replicas(a=(1, 8000), b=(6, 400)), 1) == "b"
    assert picks(LeastWorkLeft(), replicas(a=(2, 400), b=(1, 400)), 1) == "b"


class TestJoinIdleQueue:
    def test_of_two_drawn_the_first_idle_one_is_taken_without_a_look_at_the_others(self) -> None:
        assert picks(JoinIdleQueue(rng=ScriptedRng(2, 0, 1, 1)), replicas("a", "c", b=(1, 9)), 2) == "cc"

    def test_the_only_idle_replica_is_found_when_it_is_not_drawn(self) -> None:
        assert picks(JoinIdleQueue(rng=ScriptedRng(0, 0)), replicas("c", a=(1, 5), b=(1, 9)), 1) == "c"

    def test_without_an_idle_replica_the_better_of_the_two_is_taken_and_not_the_best_of_all(self) -> None:
        assert picks(JoinIdleQueue(rng=ScriptedRng(0, 0)), replicas(a=(1, 30), b=(1, 20), c=(1, 10)), 1) == "b"

    def test_a_replica_with_work_of_other_gateways_is_not_idle(self) -> None:
        assert picks(JoinIdleQueue(rng=ScriptedRng(0, 0)), replicas("b", a=(0, 50)), 1) == "b"

    def test_gateways_with_the_same_view_do_not_all_pick_the_same_idle_replica(self) -> None:
        """400 draws of four idle ones: each share is within 5 standard deviations (43) of 100."""
        counts = Counter(picks(JoinIdleQueue(rng=Seeds(1).stream("balancing")), replicas("a", "b", "c", "d"), 400))
        assert all(abs(counts[each] - 100) < 43 for each in "abcd")


class TestCard:
    """``a`` to ``c`` are the short replicas, ``d`` is the long one; nine tenths of the work are of 1,000 tokens."""

    SMALL, LARGE = 1_000, 100_000

    def card(self, **params: float) -> Card:
        """One that has seen small requests, and a large one."""
        balancer = Card(**params)
        for _ in range(900):
            self.pick(balancer, self.SMALL, a=1, b=1, c=1, d=2)
        self.pick(balancer, self.LARGE, a=1, b=1, c=1, d=2)
        return balancer

    def pick(self, balancer: Card, tokens: int, **work: int) -> str:
        request = a_request(prompt_tokens=tokens - 1, max_output_tokens=1)
        return balancer.pick(request, replicas(**{each: (1, tokens) for each, tokens in work.items()}), 0.0).replica_id

    def test_small_ones_go_to_the_short_replica_with_the_least_work_and_large_ones_to_the_long_one(self) -> None:
        for tokens, replica_id in ((self.SMALL, "b"), (self.LARGE, "d")):
            assert self.pick(self.card(), tokens, a=900, b=800, c=900, d=9_000) == replica_id

    def test_one_between_goes_to_a_short_replica_as_long_as_that_is_short(self) -> None:
        """Nine tenths of the work is smaller than 2,000 tokens, and between is what has from a quarter to all of it."""
        for short_work, replica_id in ((100, "a"), (8_000, "d")):
            balancer = self.card(medium_fraction=1.0)
            assert self.pick(balancer, 2_000, a=short_work, b=9_000, c=9_000, d=9_000) == replica_id

    def test_whoever_has_less_to_wait_for_at_the_long_replica_goes_there(self) -> None:
        assert self.pick(self.card(), self.SMALL, a=900, b=800, c=900, d=700) == "d"

    def test_with_one_replica_there_is_no_choice(self) -> None:
        assert self.pick(self.card(), self.SMALL, a=900) == "a"
