"""What one gateway says of each pool: what was asked of it, what waits, and what runs."""

import pytest

from policies import PolicyChoice, Role
from policies.pool_views import Demand, PoolLoad
from routing.sizing.geometry import ServiceRates
from tests.routing.dialogue import ALWAYS_ADMIT, DOUBLES, Dialogue

RATES = ServiceRates(step_s=0.01, new_token_s=1e-3, sequence_s=1e-4, context_token_s=1e-6, step_tokens=1000)
SCALED = PolicyChoice(name="joint_by_work")


def dialogue(planner: str = "always_unified", admission: PolicyChoice = ALWAYS_ADMIT) -> Dialogue:
    return Dialogue(planner=planner, rates=RATES, admission=admission, scaling=SCALED)


def loads(talk: Dialogue) -> dict[str, PoolLoad]:
    return dict(talk.dispatcher.pool_loads(talk.now_s))


def test_a_unified_pool_is_asked_for_prompts_and_answers() -> None:
    talk = dialogue().replicas(Role.UNIFIED, "a")
    talk.arrives("q", prompt_tokens=100, max_output_tokens=50)
    asked = loads(talk)["unified"].demand
    held_tokens = 50 * (100 + 25)
    added_s = 100 * 1e-3 + 50 * (1e-3 + 1e-4) + held_tokens * 1e-6
    assert (asked.num_requests, asked.prompt_tokens, asked.output_tokens, asked.held_tokens) == (
        1,
        100,
        50,
        held_tokens,
    )
    assert asked.added_s == pytest.approx(added_s)


def test_prefill_makes_the_steps_for_its_prompts_and_decode_has_the_answers() -> None:
    talk = dialogue("always_disaggregated").replicas(Role.PREFILL, "p").replicas(Role.DECODE, "d")
    talk.arrives("q", prompt_tokens=100, max_output_tokens=50)
    prefill, decode = (loads(talk)[name].demand for name in ("prefill", "decode"))
    assert prefill.added_s == pytest.approx(100 * 1e-3 + 0.01 * 100 / 1000)
    assert (prefill.prompt_tokens, prefill.output_tokens, prefill.held_tokens) == (100, 0, 0)
    assert decode.added_s == pytest.approx(50 * (1e-3 + 1e-4) + 50 * 125 * 1e-6)
    assert (decode.prompt_tokens, decode.output_tokens) == (0, 50)


def test_what_admission_refuses_was_asked_for_and_what_a_client_tries_again_was_not() -> None:
    full = PolicyChoice(name=f"{DOUBLES}:AdmitNone")
    talk = dialogue(admission=full).replicas(Role.UNIFIED, "a")
    talk.arrives("q", prompt_tokens=100)
    talk.arrives("again", prompt_tokens=100, retry_count=1)
    assert loads(talk)["unified"].demand.num_requests == 1
    assert loads(talk)["unified"].num_ongoing == 0


def test_what_waits_and_what_runs_is_told_by_pool() -> None:
    talk = dialogue().replicas(Role.UNIFIED, "a", slots=2)
    for number in range(5):
        talk.at(float(number)).arrives(f"q{number}", prompt_tokens=100, max_output_tokens=50)
    found = loads(talk)["unified"]
    assert (found.num_ongoing, found.num_waiting, found.oldest_wait_s, found.kv_tokens) == (2, 3, 2.0, 300)
    assert found.waiting_s > 0.0


def test_without_a_scaling_policy_nothing_is_added_up() -> None:
    talk = Dialogue(rates=RATES).replicas(Role.UNIFIED, "a")
    talk.arrives("q")
    assert loads(talk)["unified"].demand == Demand()
