"""Same seed, processes that hash strings differently: the same simulated log, byte for byte."""

from tests.determinism.simulated_run import log_hash
from tests.hash_seeds import printed_under

BALANCERS = ("least_work_left", "power_of_two")


def test_the_log_does_not_depend_on_how_strings_are_hashed() -> None:
    printed = {printed_under(seed, "tests.determinism.simulated_run", *BALANCERS) for seed in ("1", "2")}

    assert printed == {"\n".join(map(log_hash, BALANCERS))}
