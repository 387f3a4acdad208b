from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from policies import Reason, Reject
from routing.request.refusal import refusal


@given(st.text(), st.floats(0.1, 1e4))
def test_a_client_is_told_to_wait_as_long_as_the_policy_says_or_half_as_long_again(
    request_id: str, retry_after_s: float
) -> None:
    outcome = refusal(request_id, Reject(reason=Reason.SHED, retry_after_s=retry_after_s))

    assert retry_after_s <= outcome.retry_after_s <= 1.5 * retry_after_s
    assert outcome == refusal(request_id, Reject(reason=Reason.SHED, retry_after_s=retry_after_s))


def test_clients_that_are_refused_together_do_not_come_back_together() -> None:
    verdict = Reject(reason=Reason.QUEUE_FULL, retry_after_s=10.0)

    times_s = sorted(refusal(f"q{number}", verdict).retry_after_s for number in range(1000))

    assert max(later - earlier for earlier, later in pairwise(times_s)) < 0.1
