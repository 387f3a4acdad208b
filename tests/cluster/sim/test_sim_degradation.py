"""Degraded requests in virtual time."""

from dataclasses import replace

import pytest

from cluster.sim.run_table import OUTCOMES, RunTable
from cluster.sim.simulator import simulate
from policies.catalog import PolicyChoice
from tests.cluster.simulated import PlainTraffic, dispatcher, fleet, request
from tests.tables import for_each


def run(*output_tokens: int, is_disaggregated: bool = False, **bounds: object) -> RunTable:
    """Requests a second apart, all of them degraded."""
    spec = fleet(1, is_disaggregated=is_disaggregated)
    how = dispatcher(spec)
    less = PolicyChoice(name="tests.policy_doubles:DegradeTo", params=bounds)
    how = replace(how, policies=replace(how.policies, degradation=less))
    plan = PlainTraffic([request(n, float(n), output_tokens=each) for n, each in enumerate(output_tokens)])
    return simulate(spec, how, plan, ["all"], seed=1)


@for_each("is_disaggregated", [False, True], ids=["unified", "prefill_decode"])
def test_an_answer_ends_at_its_cap_and_what_it_would_have_been_is_known(is_disaggregated: bool) -> None:
    table = run(20, 200, is_disaggregated=is_disaggregated, max_output_tokens=50)

    assert {OUTCOMES[index] for index in table.outcome} == {"completed"}
    assert table.output_tokens.tolist() == [20, 50]
    assert table.full_output_tokens.tolist() == [20, 200]
    computed = sum(each.output_tokens for each in table.replicas)
    assert computed == 70, "what is not given is not computed either"


@for_each("is_disaggregated", [False, True], ids=["unified", "prefill_decode"])
def test_an_answer_ends_when_its_time_is_up_with_the_tokens_that_there_are(is_disaggregated: bool) -> None:
    table = run(10, 2_000, is_disaggregated=is_disaggregated, output_time_limit_s=0.5)

    assert {OUTCOMES[index] for index in table.outcome} == {"completed"}
    assert (table.end_s - table.first_token_s)[1] == pytest.approx(0.5)
    assert table.output_tokens[0] == 10
    assert 100 < table.output_tokens[1] < 130, "steps of some 4 ms each"
    assert table.full_output_tokens.tolist() == [10, 2_000]
    computed = sum(each.output_tokens for each in table.replicas if each.role != "prefill")
    assert computed <= table.output_tokens.sum() + 2, "the engine stops as soon as it is told"
