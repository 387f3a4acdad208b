from loadtests.studies.microbench.sim_bench import SimBenchCase, measure
from tests.tables import for_each


@for_each("replicas", [1, 4])
def test_a_measured_case_simulates_about_what_it_was_asked_to(replicas: int) -> None:
    measured = measure(SimBenchCase(replicas, 400))

    assert 300 < measured.num_requests < 500
    assert measured.virtual_s > 400 / (10 * replicas) * 0.8
    assert measured.wall_s > 0
    assert measured.peak_bytes >= measured.start_bytes > 0
