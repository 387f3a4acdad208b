from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from policies import RequestView
from policies.balancing import LeastDelay
from policies.candidates import CandidateList
from policies.views import ReplicaView
from tests.policies.test_affinity import Known
from tests.policy_doubles import FakeReplica, a_request

NAMES = "abcd"
SECONDS = st.floats(0.0, 10.0, allow_nan=False)
NO_ANSWERS = dict.fromkeys(NAMES, 0.0)
BY_NAME = st.fixed_dictionaries(dict.fromkeys(NAMES, SECONDS))


class Told:
    """First tokens as the test says."""

    def __init__(
        self,
        ahead_s: Mapping[str, float],
        own_s: Mapping[str, float],
        level_s: float = 0.0,
        answer_s: Mapping[str, float] = NO_ANSWERS,
        load_s: float = 0.0,
    ) -> None:
        self._ahead_s, self._own_s, self._level_s, self._answer_s = ahead_s, own_s, level_s, answer_s
        self._load_s = load_s

    def ahead_s(self, replica: ReplicaView) -> float:
        return self._ahead_s[replica.replica_id]

    def own_s(self, request: RequestView, replica: ReplicaView) -> float:
        return self._own_s[replica.replica_id]

    def answer_s(self, request: RequestView, replica: ReplicaView) -> float:
        return self._answer_s[replica.replica_id]

    def load_s(self, request: RequestView, replica: ReplicaView) -> float:
        return 0.0 if replica.has_loaded(request.adapter) else self._load_s

    def level_s(self, live: Sequence[ReplicaView], ahead_s: Sequence[float], anywhere_tokens: int) -> float:
        return self._level_s


def fleet(num_busy: int = 0) -> CandidateList:
    return CandidateList(
        FakeReplica(replica_id=name, prefill_tokens=1 if index < num_busy else 0) for index, name in enumerate(NAMES)
    )


def balancer(told: Told, **matches: int) -> LeastDelay:
    return LeastDelay(first_tokens=told, prefixes=Known(matches))


def a_prompt() -> RequestView:
    return replace(a_request(prompt_tokens=1000), prefix_blocks=(1, 2), prefix_block_tokens=500)


def seen_busy(policy: LeastDelay, num_busy: int) -> LeastDelay:
    for number in range(100):
        policy.home(a_request(), fleet(num_busy), 0, float(number))
    return policy


@given(ahead_s=BY_NAME, own_s=BY_NAME)
def test_on_an_idle_fleet_the_earliest_first_token_wins(ahead_s: Any, own_s: Any) -> None:
    chosen = balancer(Told(ahead_s, own_s)).pick(a_prompt(), fleet(), 0.0).replica_id
    assert ahead_s[chosen] + own_s[chosen] == min(ahead_s[each] + own_s[each] for each in NAMES)


def test_the_busier_the_fleet_the_more_its_own_part_of_a_prompt_counts() -> None:
    told = Told(dict.fromkeys(NAMES, 0.0) | {"b": 1.0}, dict.fromkeys(NAMES, 0.9) | {"b": 0.1})
    assert seen_busy(balancer(told), 0).pick(a_prompt(), fleet(), 100.0).replica_id == "a"
    assert seen_busy(balancer(told), 2).pick(a_prompt(), fleet(), 100.0).replica_id == "b"


def test_an_answer_that_would_take_longer_in_a_full_batch_is_worth_a_later_first_token() -> None:
    ahead_s, own_s = dict.fromkeys(NAMES, 0.1) | {"b": 0.0}, dict.fromkeys(NAMES, 0.1)
    slower_by = {"b": 0.05}, {"b": 0.15}
    chosen = [
        balancer(Told(ahead_s, own_s, answer_s=NO_ANSWERS | each)).pick(a_prompt(), fleet(), 0.0).replica_id
        for each in slower_by
    ]
    assert chosen == ["b", "a"]


def test_a_request_waits_only_for_a_replica_that_has_part_of_its_prompt() -> None:
    told = Told(dict.fromkeys(NAMES, 1.0) | {"a": 0.0}, dict.fromkeys(NAMES, 1.0))
    assert balancer(told, b=500).home(a_prompt(), fleet(), 0, 0.0) is None
    assert balancer(told).home(a_prompt(), fleet(), 0, 0.0) is None


def test_a_request_waits_for_its_prefix_until_another_would_be_free_and_done_before() -> None:
    ahead_s, own_s = dict.fromkeys(NAMES, 0.0) | {"b": 1.0}, dict.fromkeys(NAMES, 1.2) | {"b": 0.1}
    home = balancer(Told(ahead_s, own_s), b=900).home(a_prompt(), fleet(), 0, 0.0)
    assert home is not None
    assert home.replica_id == "b"
    assert balancer(Told(ahead_s | {"b": 1.2}, own_s), b=900).home(a_prompt(), fleet(), 0, 0.0) is None


def test_what_waits_for_any_replica_makes_waiting_for_the_prefix_cheaper() -> None:
    ahead_s, own_s = dict.fromkeys(NAMES, 0.0) | {"b": 1.2}, dict.fromkeys(NAMES, 1.2) | {"b": 0.1}
    home = balancer(Told(ahead_s, own_s, level_s=0.5), b=900).home(a_prompt(), fleet(), 9000, 0.0)
    assert home is not None
    assert home.replica_id == "b"


def adapted(loaded_at: str, **num_open: int) -> CandidateList:
    """Replicas of which one has the adapter ``x``, with so many requests each."""
    return CandidateList(
        FakeReplica(
            replica_id=name,
            adapters=("x",) if name == loaded_at else ("y",),
            num_ongoing_requests=num_open.get(name, 0),
            max_adapters=1,
        )
        for name in NAMES
    )


def test_an_adapter_is_loaded_anew_only_where_that_holds_few_up() -> None:
    idle, busy = dict.fromkeys(NAMES, 0.0), {**dict.fromkeys(NAMES, 0.0), "b": 0.5}
    request = replace(a_request(), adapter="x")

    def picked(ahead_s: Mapping[str, float], **num_open: int) -> str:
        told = Told(ahead_s, dict.fromkeys(NAMES, 0.05), load_s=0.1)
        return balancer(told).pick(request, adapted("b", **num_open), 0.0).replica_id

    assert picked(idle) == "b"
    assert picked(busy) == "a", "0.5 s behind others take longer than two loads of 0.1 s"
    assert picked(busy, a=9, c=9, d=9) == "b", "nine answers would stand still"
    plain = balancer(Told(busy, dict.fromkeys(NAMES, 0.05), load_s=0.1))
    assert plain.pick(a_request(), adapted("b"), 0.0).replica_id == "a"
