from policies import Admit
from policies.admission import AlwaysAdmit
from tests.policy_doubles import FakeBacklog, a_request


def test_a_request_comes_in_even_when_no_replica_is_up() -> None:
    assert AlwaysAdmit().decide(a_request(), FakeBacklog(), 0.0) == Admit()
