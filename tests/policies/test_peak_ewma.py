from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cluster import Seeds
from policies.balancing import PeakEwma
from policies.candidates import CandidateList
from policies.decisions import Reason
from policies.signals import Cancelled, Completed, Dispatched, Failed, FirstToken, Superseded
from tests.policy_doubles import FakeReplica, ScriptedRng, a_request
from tests.tables import for_each

DECAY_S = 10.0


class Talk:
    """A balancer, and the signals that a dispatcher would give it."""

    def __init__(self, *, decay_s: float = DECAY_S, compare_at_most: int = 16) -> None:
        self.balancer = PeakEwma(
            rng=Seeds(1).stream("b"), decay_s=decay_s, base_tokens=100, compare_at_most=compare_at_most
        )
        self.now_s = 0.0
        self._count = 0

    def pick(self, *replica_ids: str, **work_tokens: int) -> str:
        """Of idle replicas, and of those that have work."""
        loads = {**dict.fromkeys(replica_ids, 0), **work_tokens}
        candidates = CandidateList(FakeReplica(replica_id=each, kv_tokens=loads[each]) for each in sorted(loads))
        return self.balancer.pick(a_request(f"q{self._count}"), candidates, self.now_s).replica_id

    def send(self, replica_id: str, work_tokens: int = 900) -> str:
        """An attempt goes to the one replica that there is."""
        self._count += 1
        self.pick(replica_id)
        self.told(Dispatched, f"q{self._count}", replica_id, work_tokens=work_tokens)
        return f"q{self._count}"

    def told(self, kind: type[Any], request_id: str, replica_id: str, **more: Any) -> None:
        """What became of the request's attempt, now."""
        attempt_id = f"{request_id}.0"
        self.balancer.observe(
            kind(request_id=request_id, attempt_id=attempt_id, replica_id=replica_id, at_s=self.now_s, **more)
        )

    def first_token(self, request_id: str, replica_id: str, latency_s: float) -> None:
        self.told(FirstToken, request_id, replica_id, latency_s=latency_s)

    def completes(self, request_id: str, replica_id: str, latency_s: float) -> None:
        self.told(Completed, request_id, replica_id, latency_s=latency_s, output_tokens=5)

    def fails(self, request_id: str, replica_id: str) -> None:
        self.told(Failed, request_id, replica_id, reason=Reason.ENGINE_ERROR)

    def gives(self, replica_id: str, latency_s: float, work_tokens: int = 900) -> None:
        """A whole attempt whose first token takes so long."""
        request_id = self.send(replica_id, work_tokens)
        self.first_token(request_id, replica_id, latency_s)
        self.completes(request_id, replica_id, latency_s + 1)


def alike(times: int) -> Talk:
    """Two replicas that have been equally quick so far."""
    talk = Talk()
    for replica_id in ("a", "b") * times:
        talk.gives(replica_id, 0.1)
    return talk


def test_of_two_with_the_same_work_the_one_that_has_been_quicker_is_taken() -> None:
    talk = Talk()
    talk.gives("a", 0.5)
    talk.gives("b", 0.1)
    assert talk.pick("a", "b") == "b"


def test_a_quicker_replica_with_much_more_work_is_not() -> None:
    talk = Talk()
    talk.gives("a", 0.2)
    talk.gives("b", 0.1)
    assert talk.pick(a=0, b=100) == "b"
    assert talk.pick(a=0, b=2000) == "a"


def test_a_long_prompt_does_not_make_its_replica_look_slow() -> None:
    """A latency of its length, ten times as long as the other's."""
    talk = Talk()
    talk.gives("a", 1.0, work_tokens=9_900)
    talk.gives("b", 0.1, work_tokens=900)
    talk.gives("b", 0.12, work_tokens=900)
    assert talk.pick("a", "b") == "a"


def test_one_peak_counts_at_once_and_one_quick_answer_does_not_make_up_for_it() -> None:
    talk = alike(5)
    talk.gives("a", 1.0)
    assert talk.pick("a", b=500) == "b"
    talk.gives("a", 0.1)
    assert talk.pick("a", b=500) == "b"


def test_a_peak_is_forgotten_with_time() -> None:
    talk = alike(5)
    talk.gives("a", 1.0)
    talk.now_s = 6 * DECAY_S
    assert talk.pick("a", b=500) == "a"


def test_a_replica_that_nobody_has_measured_counts_as_an_average_one() -> None:
    talk = Talk()
    talk.gives("a", 0.1)
    talk.gives("b", 1.0)
    assert talk.pick("b", "new") == "new"
    assert talk.pick("a", "new") == "a"


@for_each("has_begun", [False, True])
def test_a_quick_failure_is_not_a_quick_answer_even_in_the_middle_of_one(has_begun: bool) -> None:
    talk = alike(3)
    request_id = talk.send("a")
    if has_begun:
        talk.first_token(request_id, "a", 0.1)
    talk.fails(request_id, "a")

    assert talk.pick("a", b=500) == "b"


def test_failures_add_up_to_no_more_than_one() -> None:
    """A replica that fails for an hour is tried again as soon as one that failed once."""
    talk = alike(3)
    for _ in range(2_000):
        talk.fails(talk.send("a"), "a")
    talk.now_s = 6 * DECAY_S
    assert talk.pick("a", b=500) == "a"


def test_an_attempt_that_tells_no_first_token_is_measured_by_its_end() -> None:
    talk = Talk()
    talk.completes(talk.send("a"), "a", 0.5)
    talk.completes(talk.send("b"), "b", 0.1)
    assert talk.pick("a", "b") == "b"


def test_an_answer_that_goes_on_for_long_after_its_first_token_is_no_peak() -> None:
    talk = Talk()
    talk.gives("b", 0.2)
    request_id = talk.send("a")
    talk.first_token(request_id, "a", 0.1)
    talk.completes(request_id, "a", 60.0)

    assert talk.pick("a", "b") == "a"


def test_attempts_that_another_balancer_has_placed_teach_nothing() -> None:
    talk = Talk()
    talk.gives("a", 0.1)
    talk.told(Dispatched, "other", "decode-7", work_tokens=10)
    talk.first_token("other", "decode-7", 99.0)

    assert talk.pick("a", "decode-7") == "a"
    assert talk.pick(a=1, new=0) == "new", "an average replica is still as quick as a"


def test_nothing_is_kept_of_replicas_that_went_and_of_attempts_that_ended() -> None:
    talk = Talk()
    for number in range(1_000):
        talk.now_s = float(number)
        replica_id = f"r{number}"
        talk.gives(replica_id, 0.1)
        for ending in (Cancelled, Superseded):
            talk.told(ending, talk.send(replica_id), replica_id)
        talk.fails(talk.send(replica_id), replica_id)

    assert talk.balancer._open == {}
    assert len(talk.balancer._paces) <= 8 * DECAY_S + 2


def test_of_many_candidates_two_at_random_and_the_one_with_the_least_work_are_compared() -> None:
    balancer = PeakEwma(rng=ScriptedRng(0, 0), compare_at_most=3)
    candidates = CandidateList(
        FakeReplica(replica_id=each, kv_tokens=tokens) for each, tokens in zip("abcd", (9, 8, 7, 6), strict=True)
    )
    assert balancer.pick(a_request(), candidates, 0.0).replica_id == "d"


@given(
    latencies_s=st.lists(st.tuples(st.sampled_from("ab"), st.floats(0.001, 100.0), st.floats(0.0, 20.0)), max_size=40)
)
def test_a_pace_is_never_below_the_quickest_sample_nor_above_the_slowest(
    latencies_s: list[tuple[str, float, float]],
) -> None:
    talk = Talk()
    seen = [latency_s / 1000 for _, latency_s, _ in latencies_s]

    for replica_id, latency_s, pause_s in latencies_s:
        talk.now_s += pause_s
        talk.gives(replica_id, latency_s)
        paces = [talk.balancer._pace_at(each, talk.now_s) for each in ("a", "b", "c")]
        assert all(min(seen) * (1 - 1e-9) <= pace <= max(seen) * (1 + 1e-9) for pace in paces)
