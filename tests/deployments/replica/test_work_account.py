import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.replica.work_account import OpenWork, WorkAccount


def state(account: WorkAccount) -> tuple[int, int, int, int]:
    return account.num_open, account.prefill_tokens, account.kv_tokens, account.attempts_total


def test_a_new_account_is_empty() -> None:
    assert state(WorkAccount()) == (0, 0, 0, 0)


def test_an_attempt_counts_while_it_is_open() -> None:
    account = WorkAccount()
    with account.doing(OpenWork(100, 150)):
        assert state(account) == (1, 100, 150, 1)
    assert state(account) == (0, 0, 0, 1)


def test_from_its_first_token_on_an_attempt_counts_without_its_prompt() -> None:
    account, work = WorkAccount(), OpenWork(100, 150)

    with account.doing(work):
        account.end_prefill(work)
        assert state(account) == (1, 0, 150, 1)
        account.end_prefill(work)
        assert state(account) == (1, 0, 150, 1), "the next tokens take nothing off"

    assert state(account) == (0, 0, 0, 1)


def test_attempts_that_overlap_add_up() -> None:
    account = WorkAccount()
    with account.doing(OpenWork(100, 150)), account.doing(OpenWork(30, 0)):
        assert state(account) == (2, 130, 150, 2)


def test_an_attempt_that_raises_is_closed_too() -> None:
    account = WorkAccount()
    with pytest.raises(RuntimeError), account.doing(OpenWork(100, 150)):
        raise RuntimeError
    assert state(account) == (0, 0, 0, 1)


WORK = st.builds(OpenWork, st.integers(min_value=0, max_value=10_000), st.integers(min_value=0, max_value=10_000))


@given(attempts=st.lists(WORK, max_size=20), data=st.data())
def test_in_whatever_order_they_end_the_account_is_the_sum_of_what_is_open(
    attempts: list[OpenWork], data: st.DataObject
) -> None:
    account = WorkAccount()
    opened = [account.doing(work) for work in attempts]
    for each in opened:
        each.__enter__()
    left = dict(enumerate(attempts))

    for number in data.draw(st.permutations(list(left))):
        if data.draw(st.booleans()):
            account.end_prefill(attempts[number])
        opened[number].__exit__(None, None, None)
        del left[number]
        sums = sum(work.prefill_tokens for work in left.values()), sum(work.kv_tokens for work in left.values())
        assert (account.num_open, account.prefill_tokens, account.kv_tokens) == (len(left), *sums)

    assert account.attempts_total == len(attempts)
