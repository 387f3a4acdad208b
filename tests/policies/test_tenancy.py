"""What tenants are entitled to reaches the policies that look at it, and is said in one place."""

from dataclasses import replace
from typing import Any

import pytest

from policies import PolicySet, Quota, Role, TenantTerms
from policies.admission import Chain, Credit, TokenBucket
from policies.tenancy import quotas_of, weights_of
from tests.policies.admission_cases import comes, sized
from tests.policies.built import built, refusal_of
from tests.policy_doubles import FakeBacklog, a_request
from tests.tables import for_each

TERMS = {
    "heavy": TenantTerms(weight=3.0),
    "limited": TenantTerms(quota=Quota(work_per_s=0.5, burst_s=2.0)),
    "usual": TenantTerms(),
}


def terms_of(question: str) -> dict[str, TenantTerms]:
    """Quotas are for an admission policy that looks at them."""
    return TERMS if question == "admission" else {"heavy": TERMS["heavy"]}


def with_terms(question: str, name: str, num_gateways: int = 1, **params: Any) -> PolicySet:
    return built(question, name, params, tenants=terms_of(question), num_gateways=num_gateways)


def let_in_at_once(policy: Any, tenant: str) -> float:
    """Service-seconds of a tenant's requests that come in at the start."""
    requests = (sized(f"{tenant}{number}", prefill_s=0.125, tenant=tenant) for number in range(1000))
    return 0.125 * next(number for number, request in enumerate(requests) if not comes(policy, request))


def order_of(policies: PolicySet, *tenants: str, each: int = 30) -> list[str]:
    """Whose turn it is, when everybody has the same requests and all wait."""
    queue = policies.queues[Role.UNIFIED]
    for number in range(each):
        for tenant in tenants:
            request = a_request(f"{tenant}{number}").classified(sized(prefill_s=0.5).geometry, "all", 1.0)
            queue.push(replace(request, tenant=tenant), 0.0)
    return [queue.pop(0.0).tenant for _ in range(len(queue))]


def test_only_what_differs_from_everybody_elses_is_told() -> None:
    assert weights_of(TERMS) == {"heavy": 3.0}
    assert quotas_of(TERMS) == {"limited": Quota(work_per_s=0.5, burst_s=2.0)}


def test_quotas_that_no_policy_looks_at_are_refused() -> None:
    error = refusal_of("admission", "bounded_queue", tenants=TERMS)
    assert (error.field, error.value) == ("policies.admission", "bounded_queue")
    assert "token_bucket" in error.allowed
    assert "limited" in error.allowed
    in_a_chain = {"policies": [{"name": "bounded_queue"}, {"name": "token_bucket"}]}
    assert isinstance(built("admission", "chain", in_a_chain, tenants=TERMS).admission, Chain)


@for_each("name", ["drr", "vtc"])
def test_a_fair_queue_divides_by_the_tenants_weights(name: str) -> None:
    order = order_of(with_terms("queueing", name), "heavy", "usual")
    assert order[:32].count("heavy") == 24


def test_quotas_hold_for_those_who_have_one_and_the_policys_own_rate_for_all_others() -> None:
    policy = with_terms("admission", "token_bucket", rate_per_s=1.0, burst_s=4.0).admission
    assert [let_in_at_once(policy, tenant) for tenant in ("limited", "usual", "heavy", "unknown")] == [2, 4, 4, 4]


def test_a_quota_fills_again_at_its_own_rate() -> None:
    policy = with_terms("admission", "token_bucket").admission
    assert let_in_at_once(policy, "limited") == 2.0
    verdict = policy.decide(sized("next", prefill_s=0.25, tenant="limited"), FakeBacklog(), 0.0)
    assert getattr(verdict, "retry_after_s", 0.0) == pytest.approx(0.5)


def test_each_of_several_gateways_has_its_part_of_a_quota_and_of_the_rate() -> None:
    policy = with_terms("admission", "token_bucket", num_gateways=4, rate_per_s=1.0, burst_s=4.0).admission
    assert [let_in_at_once(policy, tenant) for tenant in ("limited", "usual")] == [0.5, 1.0]
    verdict = policy.decide(sized("next", prefill_s=0.125, tenant="limited"), FakeBacklog(), 0.0)
    assert getattr(verdict, "retry_after_s", 0.0) == pytest.approx(1.0)


def test_a_link_of_a_chain_is_given_the_quotas_and_the_number_of_gateways() -> None:
    chain = with_terms("admission", "chain", num_gateways=2, policies=["credit", "token_bucket"]).admission

    assert isinstance(chain, Chain)
    assert isinstance(chain.links[0], Credit)
    assert isinstance(chain.links[1], TokenBucket)
    assert let_in_at_once(chain.links[1], "limited") == 1.0
    assert chain.links[0]._share == pytest.approx(0.55)


@for_each(
    ("question", "name", "params", "field"),
    [
        ("queueing", "vtc", {"weights": {"a": 2.0}}, "policies.queueing.params.weights"),
        ("queueing", "drr", {"weights": {"a": 2.0}}, "policies.queueing.params.weights"),
        ("admission", "token_bucket", {"tenants": {"a": {"burst_s": 1}}}, "policies.admission.params.tenants"),
        ("admission", "token_bucket", {"unit": "tokens"}, "policies.admission.params.unit"),
        ("admission", "token_bucket", {"quotas": {}}, "policies.admission.params.quotas"),
        (
            "admission",
            "chain",
            {"policies": ["codel", {"name": "token_bucket", "params": {"unit": "tokens"}}]},
            "policies.admission.params.policies.1.params.unit",
        ),
    ],
)
def test_what_the_tenants_say_a_policys_parameters_may_not_say_too(
    question: str, name: str, params: dict[str, Any], field: str
) -> None:
    error = refusal_of(question, name, params, tenants=terms_of(question))
    assert error.field == field
    assert "tenants" in error.allowed


@for_each(
    ("question", "name", "params"),
    [
        ("queueing", "vtc", {"weights": {"a": 2.0}}),
        ("admission", "token_bucket", {"tenants": {"a": {"burst_s": 1}}}),
        ("admission", "token_bucket", {"unit": "tokens"}),
        ("balancing", "scored", {"weights": {"load": 1.0}}),
    ],
)
def test_where_the_tenants_say_nothing_of_it_the_parameters_hold(
    question: str, name: str, params: dict[str, Any]
) -> None:
    """Tenants of the file may all be alike; and a balancer's weights are others."""
    terms = terms_of(question) if question == "balancing" else {"usual": TenantTerms()}
    assert built(question, name, params, tenants=terms)


def test_the_number_of_gateways_is_not_a_parameter() -> None:
    assert refusal_of("admission", "credit", {"num_gateways": 2}).allowed == "parameters ['overcommit']"
