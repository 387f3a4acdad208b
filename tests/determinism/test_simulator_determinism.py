"""Same seed, processes that hash strings differently: the same simulated log, byte for byte."""

import pytest

from tests.determinism.simulated_run import log_hash
from tests.hash_seeds import printed_under


@pytest.mark.parametrize("balancing", ["least_work_left", "power_of_two"])
def test_the_log_does_not_depend_on_how_strings_are_hashed(balancing: str) -> None:
    here = log_hash(balancing)

    assert {printed_under(hash_seed, "tests.determinism.simulated_run", balancing) for hash_seed in ("1", "2")} == {
        here
    }
