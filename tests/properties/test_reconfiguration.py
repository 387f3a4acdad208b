"""Whatever policies take the place of others, and whenever: all requests end once, and no account goes wrong."""

import io
import math
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from cluster import GatewayStreams, LogHeader, Seeds
from cluster.event_log.replay import replay
from policies import CATALOG, PolicyChoice, Quota, TenantTerms
from policies.admission import BoundedQueue, Chain, ConcurrencyLimit, Credit
from policies.catalog import PolicySpec
from policies.tenancy import quotas_of
from routing import DispatcherSpec
from tests.cluster.logged import LogInMemory
from tests.determinism.scripted_run import change_fleet, next_event
from tests.properties.scripted_host import DOUBLES, HostParams, ScriptedHost
from tests.tables import for_each

SEED = 3
PARAMS: dict[str, list[dict[str, Any]]] = {
    "chain": [{"policies": ["token_bucket", "bounded_queue", "credit", "codel"]}],
    "concurrency_limit": [{}, {"signal": "tpot", "algorithm": "vegas", "min_samples": 1, "window_s": 0.1}],
    "bounded_queue": [{}, {"unit": "count"}],
}
CHOICES = {
    question: [
        PolicyChoice(name=name, params=params)
        for name in sorted(CATALOG[question])
        for params in PARAMS.get(name, [{}])
    ]
    for question in (each.name for each in fields(PolicySpec))
    if question not in ("shedding", "degradation")  # the one records the signals, the other remembers nothing
}
CHOICES["hedging"].append(PolicyChoice(name=f"{DOUBLES}:HedgeAfter", params={"delay_s": 0.5}))
TERMS: tuple[dict[str, TenantTerms], ...] = (
    {},
    {"t1": TenantTerms(weight=3.0)},
    {"t2": TenantTerms(quota=Quota(work_per_s=0.5, burst_s=1.0))},
)
CHANGES = st.one_of(
    *(st.tuples(st.just(question), st.sampled_from(choices)) for question, choices in CHOICES.items()),
    st.tuples(st.just("tenants"), st.sampled_from(TERMS)),
)


def changed(spec: DispatcherSpec, what: str, to: Any) -> DispatcherSpec:
    if what == "tenants":
        new = replace(spec, tenants=to)
    else:
        new = replace(spec, policies=replace(spec.policies, **{what: to}))
    if quotas_of(new.tenants) and "token_bucket" not in repr(new.policies.admission):  # nobody else looks at them
        return replace(new, policies=replace(new.policies, admission=PolicyChoice(name="token_bucket")))
    return new


def admission_policies(policy: Any) -> Iterator[Any]:
    yield policy
    if isinstance(policy, Chain):
        yield from policy.links


def check_accounts(policy: Any) -> None:
    """Nothing that is counted up and down is below 0."""
    if isinstance(policy, Credit):
        assert policy._num_held_tokens >= 0
    elif isinstance(policy, BoundedQueue):
        assert policy._held >= -1e-9
    elif isinstance(policy, ConcurrencyLimit):
        assert policy.in_flight >= -1e-9
        assert math.isfinite(policy.limit)


def names_in(memory: object) -> set[str]:
    """Whatever a policy uses as a key, however deep."""
    if isinstance(memory, dict):
        return {str(key) for key in memory}.union(*(names_in(each) for each in memory.values()), set())
    return set()


def play(seed: int, script_changes: list[tuple[int, tuple[str, Any]]], log: LogInMemory | None = None) -> ScriptedHost:
    """A run in which everything that can happen does, and policies change on the way."""
    planner = ("always_unified", "always_disaggregated")[seed % 2]
    host = ScriptedHost(HostParams(planner=planner, has_rates=True, hedge_delay_s=0.5, seed=SEED), log)
    script = Seeds(seed).stream("script")
    change_fleet(host, script)
    for wait, (what, to) in script_changes:
        for _ in range(wait):
            host.now_s += 0.2 * script.random()
            next_event(host, script)
            for policy in admission_policies(host.dispatcher.policies.admission):
                check_accounts(policy)
        host.reconfigure(changed(host.spec, what, to))
    host.wind_up()
    host.check_the_end()
    return host


def check_nothing_is_left(host: ScriptedHost) -> None:
    """Policies remember no request and no attempt that has ended."""
    policies = host.dispatcher.policies
    everyone = [*admission_policies(policies.admission), *policies.balancers.values(), *policies.queues.values()]
    for policy in everyone:
        check_accounts(policy)
        memory = {name: each for name, each in vars(policy).items() if isinstance(each, dict)}
        ids = {*host.stories, *host.ended}
        assert not {name for name, each in memory.items() if names_in(each) & ids}, type(policy).__name__
    assert all(len(queue) == 0 for queue in policies.queues.values())


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 999), changes=st.lists(st.tuples(st.integers(0, 40), CHANGES), min_size=1, max_size=6))
def test_policies_may_change_at_any_moment(seed: int, changes: list[tuple[int, tuple[str, Any]]]) -> None:
    check_nothing_is_left(play(seed, changes))


@for_each("question", sorted(CHOICES))
def test_every_policy_may_take_the_place_of_every_other(question: str) -> None:
    for seed, choice in enumerate(CHOICES[question]):
        others = [each for each in CHOICES[question] if each != choice]
        back_and_forth = [each for other in others for each in ((25, (question, choice)), (25, (question, other)))]
        check_nothing_is_left(play(seed, back_and_forth))


def test_a_run_with_changes_replays_byte_for_byte() -> None:
    spec = HostParams(planner="always_unified", has_rates=True, hedge_delay_s=0.5, seed=SEED).spec
    log = LogInMemory(LogHeader(gateway="gw", streams=GatewayStreams(seed=SEED), dispatcher=spec))
    changes = [(40, (question, choice)) for question, choices in CHOICES.items() for choice in choices]

    play(2, [*changes, (40, ("tenants", TERMS[2]))], log)

    result = replay(io.BytesIO(log.whole()))
    assert result.is_same, result.difference
    assert result.num_records > 1000
