"""What every policy of the catalog keeps. A new policy is tested here as soon as it is in the catalog."""

import importlib
import inspect
import math
import pkgutil
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import policies
from policies import CATALOG, Admit, Eject, Keep, Need, PolicySet, Reject, Role, signals
from policies.candidates import CandidateList
from policies.decisions import Degradation, Reason
from tests.policies.built import built
from tests.policy_doubles import FakeAttempt, FakeBacklog, FakeFleet, FakeReplica, a_request
from tests.tables import for_each

KINDS = (
    *"admission balancing degradation ejection engine_order hedging preemption".split(),
    *"queueing retrying scaling shedding".split(),
)
ENTRIES = [(kind, name) for kind in KINDS for name in sorted(CATALOG[kind])]
NEEDED_PARAMS: dict[str, dict[str, Any]] = {
    "chain": {"policies": ["token_bucket", "codel"]},
    "all_of": {"policies": ["cap_output", "output_time_limit"]},
    "to_fallback": {"lane": "small"},
    "mean_lengths": {"prefill_tokens_per_s": 20_000, "decode_tokens_per_s": 2_000},
    "ratio": {"decode_tokens_per_s": 2_000},
    "scheduled": {"entries": [{"at_s": 0, "replicas": {"unified": 2}}]},
}
"""Of policies that are nothing without them."""
HEADINGS = ("Rule:", "State:", "Consumes:", "Complexity:", "Failure mode:")
SIGNALS: tuple[signals.Signal, ...] = (
    signals.Dispatched(request_id="q", attempt_id="q.0", replica_id="a", work_tokens=150, at_s=0.0),
    signals.FirstToken(request_id="q", attempt_id="q.0", replica_id="a", latency_s=0.5, at_s=0.5),
    signals.Completed(request_id="q", attempt_id="q.0", replica_id="a", latency_s=2.0, output_tokens=50, at_s=2.0),
    signals.Failed(request_id="q", attempt_id="q.1", replica_id="a", reason=Reason.REPLICA_LOST, at_s=2.0),
    signals.Cancelled(request_id="q", attempt_id="q.2", replica_id="a", at_s=2.0),
    signals.Superseded(request_id="q", attempt_id="q.3", replica_id="a", at_s=2.0),
    signals.Offered(request=a_request(), stages=(Role.UNIFIED,), at_s=0.0),
    signals.Admitted(request=a_request(), at_s=0.0),
    signals.Started(request=a_request(), at_s=0.1),
    signals.Answering(request=a_request(), at_s=0.5),
    signals.Ended(request=a_request(), is_completed=True, output_tokens=50, at_s=2.0),
)

every_policy = for_each(("kind", "name"), ENTRIES)
CANDIDATES = st.lists(
    st.builds(
        FakeReplica,
        replica_id=st.text("abcdef0123456789", min_size=1, max_size=8),
        num_ongoing_requests=st.integers(0, 100),
        prefill_tokens=st.integers(0, 10**6),
        kv_tokens=st.integers(0, 10**6),
        kv_cache_usage=st.floats(0.0, 1.0),
    ),
    min_size=1,
    max_size=12,
    unique_by=lambda each: each.replica_id,
).map(lambda found: CandidateList(sorted(found, key=lambda each: each.replica_id)))


def every(kind: str) -> Callable[..., Any]:
    return for_each("name", sorted(CATALOG[kind]))


def build_with(kind: str, name: str, seed: int = 1) -> PolicySet:
    return built(kind, name, NEEDED_PARAMS.get(name, {}), seed=seed)


def classes_on_disk(kind: str) -> Iterator[type[Any]]:
    """Policy classes that are defined in the package of a kind; what a policy is made of has no ``requires``."""
    package = importlib.import_module(f"policies.{kind}")
    for found in pkgutil.iter_modules(package.__path__, f"policies.{kind}."):
        module = importlib.import_module(found.name)
        for each in vars(module).values():
            if inspect.isclass(each) and each.__module__ == found.name and hasattr(each, "requires"):
                yield each


def test_the_catalog_answers_every_question() -> None:
    assert set(CATALOG) == set(KINDS)
    assert all(CATALOG.values())


def test_every_folder_of_policies_is_a_section_of_the_catalog() -> None:
    folders = {each.name for each in pkgutil.iter_modules(policies.__path__) if each.ispkg}
    assert folders - {"capacity", "estimators"} == set(KINDS)


@for_each("kind", KINDS)
def test_the_catalog_has_every_policy_on_disk_and_no_other(kind: str) -> None:
    assert set(CATALOG[kind].values()) == set(classes_on_disk(kind))


@for_each("kind", KINDS)
def test_the_package_of_a_kind_exports_its_policies(kind: str) -> None:
    package = importlib.import_module(f"policies.{kind}")
    assert {each.__name__ for each in classes_on_disk(kind)} == set(package.__all__)


@every_policy
def test_a_policy_declares_what_it_needs(kind: str, name: str) -> None:
    requires = vars(CATALOG[kind][name]).get("requires")
    assert isinstance(requires, frozenset)
    assert requires <= frozenset(Need)


@every_policy
def test_a_policy_declares_and_documents_the_signals_it_consumes(kind: str, name: str) -> None:
    policy = CATALOG[kind][name]
    consumes = vars(policy).get("consumes")

    assert isinstance(consumes, frozenset)
    assert consumes <= signals.SIGNAL_TYPES
    documented = re.findall(r"\w+", (policy.__doc__ or "").partition("Consumes:")[2].partition("Complexity:")[0])
    assert {each for each in signals.SIGNAL_TYPES if each.__name__ in documented} == consumes


@every_policy
def test_a_policy_says_what_it_answers_how_and_when_it_fails(kind: str, name: str) -> None:
    text = CATALOG[kind][name].__doc__ or ""
    assert "?" in text.splitlines()[0], "the first line is the question, and the answer"
    found = [text.find(f"    {heading} ") for heading in HEADINGS]
    assert -1 not in found
    assert found == sorted(found), f"the order is {HEADINGS}"


@every_policy
def test_a_policy_file_is_named_after_its_policy(kind: str, name: str) -> None:
    factory = CATALOG[kind][name]
    snake_case = re.sub(r"(?<!^)(?=[A-Z])", "_", factory.__name__).lower()
    assert factory.__module__ == f"policies.{kind}.{snake_case}"


@every_policy
def test_a_policy_takes_in_every_signal(kind: str, name: str) -> None:
    built = build_with(kind, name)
    for signal in SIGNALS:
        built.observe(signal)


@every("admission")
def test_an_admission_policy_admits_or_rejects(name: str) -> None:
    decision = build_with("admission", name).admission.decide(a_request(), FakeBacklog(), 0.0)
    assert isinstance(decision, Admit | Reject)


@every("degradation")
def test_a_degradation_policy_leaves_something_of_every_request(name: str) -> None:
    policy = build_with("degradation", name).degradation

    for backlog in (FakeBacklog(), FakeBacklog(num_waiting=9, ahead_s=1e6, waiting_s=1e6)):
        answer = policy.decide(a_request(), backlog, 0.0)
        assert isinstance(answer, Degradation)
        assert answer.max_output_tokens >= 1
        assert answer.output_time_limit_s > 0


@every("shedding")
def test_a_shedding_policy_keeps_or_rejects(name: str) -> None:
    policy = build_with("shedding", name).shedding
    assert isinstance(policy.decide(a_request(), FakeBacklog(), 0.0), Keep | Reject)
    assert 0.0 <= policy.shed_fraction(0.0) <= 1.0


@every("hedging")
def test_a_hedging_policy_waits_a_while_or_for_ever(name: str) -> None:
    attempt = FakeAttempt(replica=FakeReplica(replica_id="slow", prefill_tokens=100))
    fleet = FakeFleet(replicas=[attempt.replica, FakeReplica(replica_id="idle")])
    delay_s = build_with("hedging", name).hedging.delay_s(a_request(), attempt, fleet, 0.0)
    assert delay_s >= 0.0
    assert not math.isnan(delay_s)


@given(candidates=CANDIDATES, busy_tokens=st.integers(100, 10**6))
def test_a_hedge_goes_to_a_candidate_or_nowhere(candidates: CandidateList, busy_tokens: int) -> None:
    attempt = FakeAttempt(replica=FakeReplica(replica_id="slow", prefill_tokens=busy_tokens))
    for name in CATALOG["hedging"]:
        policy = build_with("hedging", name).hedging
        policy.delay_s(a_request(), attempt, FakeFleet(replicas=candidates), 0.0)

        target = policy.target(a_request(), attempt, candidates, 1.0)

        assert target is None or candidates.has(target), name


@every("ejection")
@given(failed=st.lists(st.sampled_from("abcd"), max_size=60), seconds=st.sampled_from((0.0, 1.0, 40.0)))
def test_an_ejection_policy_decides_about_replicas_of_the_pool_and_leaves_one(
    name: str, failed: list[str], seconds: float
) -> None:
    policy = build_with("ejection", name)
    pool = CandidateList(FakeReplica(replica_id=each) for each in "abcd")
    out_until_s: dict[str, float] = {}

    for number, replica_id in enumerate(failed):
        now_s, attempt_id = number * seconds, f"q{number}.0"
        if now_s < out_until_s.get(replica_id, 0.0):
            continue
        sent: dict[str, Any] = {
            "request_id": f"q{number}",
            "attempt_id": attempt_id,
            "replica_id": replica_id,
            "at_s": now_s,
        }
        policy.observe(signals.Dispatched(**sent, work_tokens=9, expected_s=0.1))
        policy.observe(signals.Failed(**sent, reason=Reason.ENGINE_ERROR))
        for decision in policy.ejection.decide(pool, now_s):
            assert decision.replica_id in "abcd"
            if isinstance(decision, Eject):
                assert 0 < decision.for_s < math.inf
                out_until_s[decision.replica_id] = now_s + decision.for_s
        assert sum(now_s < until_s for until_s in out_until_s.values()) < len(pool)


@every("queueing")
@settings(max_examples=20)
@given(names=st.lists(st.text("abc", min_size=1, max_size=3), unique=True, max_size=12), data=st.data())
def test_a_queue_gives_back_every_request_once(name: str, names: list[str], data: st.DataObject) -> None:
    queue = build_with("queueing", name).queues[Role.UNIFIED]
    for now_s, request_id in enumerate(names):
        queue.push(a_request(request_id), float(now_s))
    removed = set(data.draw(st.lists(st.sampled_from(names), unique=True))) if names else set()

    assert all(queue.remove(a_request(each)) for each in sorted(removed))
    assert not any(queue.remove(a_request(each)) for each in sorted(removed))
    assert len(queue) == len(names) - len(removed)
    left = [queue.pop(99.0).request_id for _ in range(len(queue))]
    assert sorted(left) == sorted(set(names) - removed)
    with pytest.raises(IndexError, match="no request waits"):
        queue.pop(99.0)


@given(candidates=CANDIDATES)
def test_a_balancer_picks_one_of_its_candidates(candidates: CandidateList) -> None:
    for name in CATALOG["balancing"]:
        balancer = build_with("balancing", name).balancers[Role.UNIFIED]
        for _ in range(5):
            assert balancer.pick(a_request(), candidates, 0.0) in candidates, name


@settings(max_examples=20)
@given(rounds=st.lists(CANDIDATES, min_size=1, max_size=10), seed=st.integers(0, 99))
def test_a_balancer_with_the_same_seed_gives_the_same_picks(rounds: list[CandidateList], seed: int) -> None:
    for name in CATALOG["balancing"]:
        picks = [
            [balancer.pick(a_request(), candidates, float(now_s)) for now_s, candidates in enumerate(rounds)]
            for balancer in (build_with("balancing", name, seed).balancers[Role.UNIFIED] for _ in range(2))
        ]
        assert picks[0] == picks[1], name
