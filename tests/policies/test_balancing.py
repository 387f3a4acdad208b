from collections import Counter

from cluster import Seeds
from policies.balancing import JoinIdleQueue, LeastWorkLeft, PowerOfTwo, PowerOfTwoByWork, RandomChoice, RoundRobin
from policies.contracts import Balancer
from policies.views import CandidateList, Candidates
from tests.policy_doubles import FakeReplica, ScriptedRng, a_request
from tests.tables import for_each


def replicas(*replica_ids: str) -> Candidates:
    return CandidateList(FakeReplica(replica_id=each) for each in replica_ids)


def picks(balancer: Balancer, candidates: Candidates, times: int) -> str:
    return "".join(balancer.pick(a_request(), candidates, 0.0).replica_id for _ in range(times))


class TestRoundRobin:
    def test_replicas_take_turns_by_id(self) -> None:
        assert picks(RoundRobin(), replicas("a", "b", "c"), 7) == "abcabca"

    def test_a_replica_that_left_is_skipped(self) -> None:
        balancer = RoundRobin()

        assert picks(balancer, replicas("a", "b", "c"), 1) == "a"
        assert picks(balancer, replicas("a", "c"), 3) == "cac"

    def test_the_turn_goes_on_when_the_last_pick_has_left(self) -> None:
        balancer = RoundRobin()

        assert picks(balancer, replicas("a", "b", "c"), 2) == "ab"
        assert picks(balancer, replicas("a", "c"), 2) == "ca"

    def test_a_replica_that_joins_gets_its_turn_in_order(self) -> None:
        balancer = RoundRobin()

        assert picks(balancer, replicas("a", "c"), 1) == "a"
        assert picks(balancer, replicas("a", "b", "c"), 3) == "bca"


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
        idle_second = CandidateList(
            FakeReplica(replica_id=each, num_ongoing_requests=0 if each == second else 1) for each in ("a", "b", "c")
        )

        assert picks(PowerOfTwo(rng=ScriptedRng(*draws)), replicas("a", "b", "c"), 1) == first
        assert picks(PowerOfTwo(rng=ScriptedRng(*draws)), idle_second, 1) == second

    def test_the_one_with_fewer_ongoing_requests_wins_whichever_was_drawn_first(self) -> None:
        candidates = CandidateList(
            [
                FakeReplica(replica_id="a", num_ongoing_requests=2, kv_tokens=1),
                FakeReplica(replica_id="b", num_ongoing_requests=1, kv_tokens=99),
            ]
        )

        assert picks(PowerOfTwo(rng=ScriptedRng(0, 0, 1, 0)), candidates, 2) == "bb"

    def test_the_fullest_replica_is_never_picked(self) -> None:
        candidates = CandidateList(FakeReplica(replica_id=each, num_ongoing_requests=n) for n, each in enumerate("abc"))

        assert "c" not in picks(PowerOfTwo(rng=Seeds(1).stream("balancing")), candidates, 200)


class TestPowerOfTwoByWork:
    def test_the_one_with_less_work_wins_whichever_was_drawn_first(self) -> None:
        candidates = CandidateList(
            [
                FakeReplica(replica_id="a", num_ongoing_requests=2, kv_tokens=1),
                FakeReplica(replica_id="b", num_ongoing_requests=1, kv_tokens=99),
            ]
        )

        assert picks(PowerOfTwoByWork(rng=ScriptedRng(0, 0, 1, 0)), candidates, 2) == "aa"

    def test_the_first_drawn_wins_a_tie(self) -> None:
        assert picks(PowerOfTwoByWork(rng=ScriptedRng(2, 0)), replicas("a", "b", "c"), 1) == "c"


class TestLeastWorkLeft:
    def test_tokens_count_and_requests_do_not(self) -> None:
        candidates = CandidateList(
            [
                FakeReplica(replica_id="a", kv_tokens=8000, num_ongoing_requests=1),
                FakeReplica(replica_id="b", kv_tokens=400, num_ongoing_requests=6),
            ]
        )

        assert picks(LeastWorkLeft(), candidates, 1) == "b"

    def test_fewer_ongoing_requests_break_a_tie_in_tokens(self) -> None:
        candidates = CandidateList(
            [
                FakeReplica(replica_id="a", kv_tokens=400, num_ongoing_requests=2),
                FakeReplica(replica_id="b", kv_tokens=400, num_ongoing_requests=1),
            ]
        )

        assert picks(LeastWorkLeft(), candidates, 1) == "b"

    def test_the_lower_id_breaks_a_tie_in_both(self) -> None:
        assert picks(LeastWorkLeft(), replicas("a", "b"), 3) == "aaa"


class TestJoinIdleQueue:
    def test_of_two_drawn_the_first_idle_one_is_taken_without_a_look_at_the_others(self) -> None:
        candidates = CandidateList(
            [
                FakeReplica(replica_id="a"),
                FakeReplica(replica_id="b", kv_tokens=9, num_ongoing_requests=1),
                FakeReplica(replica_id="c"),
            ]
        )

        assert picks(JoinIdleQueue(rng=ScriptedRng(2, 0, 1, 1)), candidates, 2) == "cc"

    def test_the_only_idle_replica_is_found_when_it_is_not_drawn(self) -> None:
        candidates = CandidateList(
            [
                FakeReplica(replica_id="a", kv_tokens=5, num_ongoing_requests=1),
                FakeReplica(replica_id="b", kv_tokens=9, num_ongoing_requests=1),
                FakeReplica(replica_id="c"),
            ]
        )

        assert picks(JoinIdleQueue(rng=ScriptedRng(0, 0)), candidates, 1) == "c"

    def test_without_an_idle_replica_the_better_of_the_two_is_taken_and_not_the_best_of_all(self) -> None:
        candidates = CandidateList(
            FakeReplica(replica_id=each, kv_tokens=tokens, num_ongoing_requests=1)
            for each, tokens in (("a", 30), ("b", 20), ("c", 10))
        )

        assert picks(JoinIdleQueue(rng=ScriptedRng(0, 0)), candidates, 1) == "b"

    def test_a_replica_with_work_of_other_gateways_is_not_idle(self) -> None:
        candidates = CandidateList([FakeReplica(replica_id="a", kv_tokens=50), FakeReplica(replica_id="b")])

        assert picks(JoinIdleQueue(rng=ScriptedRng(0, 0)), candidates, 1) == "b"

    def test_gateways_with_the_same_view_do_not_all_pick_the_same_idle_replica(self) -> None:
        """400 draws of four idle ones: each share is within 5 standard deviations (43) of 100."""
        counts = Counter(picks(JoinIdleQueue(rng=Seeds(1).stream("balancing")), replicas("a", "b", "c", "d"), 400))

        assert all(abs(counts[each] - 100) < 43 for each in "abcd")
