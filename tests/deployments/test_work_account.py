import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.work_account import WorkAccount


def state(account: WorkAccount) -> tuple[int, int, int]:
    return account.num_open, account.open_tokens, account.attempts_total


def test_a_new_account_is_empty() -> None:
    assert state(WorkAccount()) == (0, 0, 0)


def test_an_attempt_counts_while_it_is_open() -> None:
    account = WorkAccount()

    with account.doing("q.0", 100):
        assert state(account) == (1, 100, 1)

    assert state(account) == (0, 0, 1)


def test_attempts_that_overlap_add_up() -> None:
    account = WorkAccount()

    with account.doing("q.0", 100), account.doing("r.0", 30):
        assert state(account) == (2, 130, 2)


def test_an_attempt_that_raises_is_closed_too() -> None:
    account = WorkAccount()

    with pytest.raises(RuntimeError), account.doing("q.0", 100):
        raise RuntimeError

    assert state(account) == (0, 0, 1)


@given(attempts=st.lists(st.integers(min_value=0, max_value=10_000), max_size=20), data=st.data())
def test_in_whatever_order_they_end_the_account_is_the_sum_of_what_is_open(
    attempts: list[int], data: st.DataObject
) -> None:
    account = WorkAccount()
    opened = {f"q.{n}": account.doing(f"q.{n}", tokens) for n, tokens in enumerate(attempts)}
    for each in opened.values():
        each.__enter__()
    left = dict(zip(opened, attempts, strict=True))

    for attempt_id in data.draw(st.permutations(list(opened))):
        opened[attempt_id].__exit__(None, None, None)
        del left[attempt_id]
        assert (account.num_open, account.open_tokens) == (len(left), sum(left.values()))

    assert account.attempts_total == len(attempts)
