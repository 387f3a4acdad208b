"""The simulator against queueing theory, where theory is exact.

One replica that serves one request at a time, whose only cost is its prompt's tokens, is a single-server queue. Means
of waiting times converge slowly (at a load of 0.8 eight million customers give 0.6%), so the proof has two steps: every
single wait in the simulator is the one that Lindley's recursion gives for the same arrivals and services; and the
recursion, over millions of customers, has the mean that Pollaczek and Khinchine's formula says.
"""

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from cluster.sim.simulator import simulate
from cluster.sim.topology import FleetSpec
from cluster.sim.traffic import Arrival, PlannedRequest
from engines.model.cost_model import StepCoefficients
from engines.model.profile import EngineProfile
from tests.cluster.simulated import PROFILE, PlainTraffic, dispatcher, fleet
from tests.tables import for_each

TOKEN_S = 1e-6
MEAN_TOKENS = 20_000
MEAN_SERVICE_S = MEAN_TOKENS * TOKEN_S
MOST_TOKENS = 4_000_000
Samples = NDArray[np.float64]
SERVICES = ["deterministic", "exponential", "two_point"]
SQUARED_CVS = {"deterministic": 0.0, "exponential": 1.0, "two_point": 7.29 / 1.9**2}
LOADS = [0.3, 0.5, 0.8]


def single_server() -> EngineProfile:
    """A prompt token costs a microsecond, and nothing else costs anything."""
    step = StepCoefficients(step_s=0.0, new_token_s=TOKEN_S, attention_pair_s=0.0, sequence_s=0.0, context_token_s=0.0)
    kv = msgspec.structs.replace(PROFILE.kv, capacity_tokens=2 * MOST_TOKENS)
    return msgspec.structs.replace(
        PROFILE, step=step, kv=kv, context_tokens=2 * MOST_TOKENS, max_num_seqs=1, max_num_batched_tokens=MOST_TOKENS
    )


@for_each("load", LOADS)
@for_each("service", SERVICES)
def test_every_wait_is_the_one_of_lindleys_recursion(service: str, load: float) -> None:
    rng = np.random.default_rng(7)
    gaps_s = rng.exponential(MEAN_SERVICE_S / load, 4_000)
    tokens = np.ceil(_service_tokens(service, rng, 4_000)).astype(int)

    waits_s = _simulated_waits_s(np.cumsum(gaps_s), tokens)

    np.testing.assert_allclose(waits_s, _lindley(gaps_s, tokens * TOKEN_S), atol=1e-8)


@for_each("load", LOADS)
@for_each("service", SERVICES)
def test_the_recursions_mean_wait_is_within_two_percent_of_the_formula(service: str, load: float) -> None:
    rng = np.random.default_rng(11)
    num_customers = 8_000_000
    services_s = _service_tokens(service, rng, num_customers) * TOKEN_S

    waits_s = _lindley(rng.exponential(MEAN_SERVICE_S / load, num_customers), services_s)

    formula_s = load * MEAN_SERVICE_S * (1 + SQUARED_CVS[service]) / (2 * (1 - load))
    assert waits_s.mean() == pytest.approx(formula_s, rel=0.02)


def test_knowing_more_of_the_replicas_makes_waits_shorter() -> None:
    """Eight servers on the same arrivals; most requests wait in the gateway, whoever picks, so the gaps are small."""
    rng = np.random.default_rng(3)
    arrivals_s = np.cumsum(rng.exponential(MEAN_SERVICE_S / (8 * 0.8), 10_000))
    tokens = np.ceil(_service_tokens("two_point", rng, 10_000)).astype(int)

    means_s = [
        _simulated_waits_s(arrivals_s, tokens, replicas=8, balancing=name).mean()
        for name in ("least_work_left", "power_of_two", "random")
    ]

    assert means_s == sorted(means_s)
    assert means_s[0] < 0.7 * means_s[2]


def _simulated_waits_s(
    arrivals_s: Samples, tokens: NDArray[np.int_], replicas: int = 1, balancing: str = "least_work_left"
) -> Samples:
    spec = _instant(replicas)
    plan = [
        Arrival(
            at_s,
            PlannedRequest(
                request_id=str(number),
                logical_request=number,
                scheduled_s=at_s,
                prompt_tokens=num_tokens,
                output_tokens=1,
                max_output_tokens=1,
                timeout_s=1e6,
            ),
        )
        for number, (at_s, num_tokens) in enumerate(zip(arrivals_s.tolist(), tokens.tolist(), strict=True))
    ]
    table = simulate(spec, dispatcher(spec, balancing), PlainTraffic(plan), ["all"], seed=1)
    order = np.argsort(table.logical_request)
    waits_s: Samples = (table.end_s - table.scheduled_s)[order] - tokens * TOKEN_S
    return waits_s


def _instant(replicas: int) -> FleetSpec:
    """A fleet without delays, so that a wait is a wait for the server alone."""
    return fleet(
        replicas,
        profile=single_server(),
        network_delay_s=0.0,
        ingress_delay_s=0.0,
        report_delay_s=0.0,
        flush_interval_s=0.0,
    )


def _service_tokens(service: str, rng: np.random.Generator, num: int) -> Samples:
    """Service times in tokens, all with the same mean; the two points are 1 : 10 at nine to one."""
    if service == "deterministic":
        return np.full(num, float(MEAN_TOKENS))
    if service == "exponential":
        return rng.exponential(MEAN_TOKENS, num)
    short_tokens = MEAN_TOKENS / 1.9
    return np.where(rng.random(num) < 0.9, short_tokens, 10 * short_tokens)


def _lindley(gaps_s: Samples, services_s: Samples) -> Samples:
    """W(n+1) = max(0, W(n) + S(n) - A(n+1)), as a running minimum of a random walk."""
    walk = np.concatenate(([0.0], np.cumsum(services_s[:-1] - gaps_s[1:])))
    waits_s: Samples = walk - np.minimum.accumulate(walk)
    return waits_s
