"""What a request is promised, and where that is written."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from cluster.config.slos import SlosConfig
from policies.views import Priority
from routing.intake.slos import NO_SLO, NO_SLOS, Slo, Slos
from routing.lanes.lanes import Lane
from tests.policy_doubles import a_request
from tests.tables import for_each

LANE = Lane(name="all", pools=("p",), ttft_slo_s=5.0)
CRITICAL, ACME, EVERYBODY = (Slo(ttft_s=seconds) for seconds in (0.5, 0.1, 2.0))


@for_each(
    ("slos", "priority", "ttft_s"),
    [
        (NO_SLOS, Priority.CRITICAL, 5.0),
        (Slos(default=EVERYBODY), Priority.CRITICAL, 2.0),
        (Slos(default=EVERYBODY, by_class={Priority.CRITICAL: CRITICAL}), Priority.CRITICAL, 0.5),
        (Slos(by_class={Priority.CRITICAL: CRITICAL}), Priority.SHEDDABLE, 5.0),
        (Slos(by_class={Priority.CRITICAL: CRITICAL}, by_tenant={"acme": ACME}), Priority.CRITICAL, 0.1),
    ],
)
def test_the_nearest_promise_counts(slos: Slos, priority: Priority, ttft_s: float) -> None:
    request = a_request(tenant="acme", priority=priority, arrival_s=100.0, deadline_s=1_000.0)

    assert slos.first_token_by_s(request, LANE) == 100.0 + ttft_s


@given(ttft_s=st.floats(0.01, 10), per_1k_s=st.floats(0.01, 10), prompt_tokens=st.integers(1, 200_000))
def test_the_longer_limit_counts_and_a_longer_prompt_never_has_less_time(
    ttft_s: float, per_1k_s: float, prompt_tokens: int
) -> None:
    slo = Slo(ttft_s=ttft_s, ttft_s_per_1k_prompt_tokens=per_1k_s)

    limit_s = slo.first_token_s(prompt_tokens)

    assert limit_s == max(ttft_s, per_1k_s * prompt_tokens / 1000)
    assert slo.first_token_s(prompt_tokens + 1) >= limit_s
    assert Slo(ttft_s_per_1k_prompt_tokens=per_1k_s).first_token_s(prompt_tokens) <= limit_s
    assert Slo(tpot_s=1.0).first_token_s(prompt_tokens) == math.inf


def test_nobody_is_promised_a_first_token_after_the_deadline() -> None:
    request = a_request(prompt_tokens=50_000, arrival_s=0.0, deadline_s=3.0)

    assert Slos(default=Slo(ttft_s_per_1k_prompt_tokens=1.0)).first_token_by_s(request, LANE) == 3.0


def test_a_file_says_the_same() -> None:
    said = {"ttft_s": 2.0, "by_class": {"critical": {"ttft_s": 0.5}}, "by_tenant": {"acme": {"ttft_s": 0.1}}}

    slos = SlosConfig.model_validate(said).slos()

    assert slos == Slos(default=EVERYBODY, by_class={Priority.CRITICAL: CRITICAL}, by_tenant={"acme": ACME})
    assert SlosConfig().slos() == NO_SLOS
    assert NO_SLO.limits_s(100) == {}


@for_each(
    ("said", "field"),
    [
        ({"ttft_s": 0}, "ttft_s"),
        ({"tpot_s": math.inf}, "tpot_s"),
        ({"by_class": {"urgent": {"ttft_s": 1}}}, "by_class"),
        ({"by_tenant": {"acme": {}}}, "by_tenant.acme"),
    ],
)
def test_what_can_not_be_promised_is_refused_by_name(said: dict[str, object], field: str) -> None:
    with pytest.raises(ValidationError) as error:
        SlosConfig.model_validate(said)

    assert field in ".".join(str(part) for part in error.value.errors()[0]["loc"])
