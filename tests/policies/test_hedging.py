import math

from policies.hedging import NoHedge
from tests.policy_doubles import FakeFleet, a_request


def test_a_second_attempt_never_comes() -> None:
    assert NoHedge().delay_s(a_request(), FakeFleet(), 0.0) == math.inf
