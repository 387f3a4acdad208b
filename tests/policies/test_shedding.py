from policies import Keep
from policies.shedding import NeverShed
from tests.policy_doubles import a_request


def test_a_request_is_kept_even_after_its_deadline() -> None:
    request = a_request()

    assert NeverShed().decide(request, request.deadline_s + 1.0) == Keep()
