from dataclasses import replace

from policies import CATALOG, PolicyChoice, PolicySpec
from policies.views import Role
from routing import DispatcherParams, DispatcherSpec
from routing.config.combinations import losing

WINDOW = DispatcherParams(prefill_window_tokens=4096)
SPEC = DispatcherSpec(planner=PolicyChoice(name="always_unified"), pools={"unified": Role.UNIFIED})


def choices(**names: str) -> PolicySpec:
    return PolicySpec(**{question: PolicyChoice(name=name) for question, name in names.items()})


def in_a_window(**names: str) -> DispatcherSpec:
    """Where ``deadline`` refuses what will be late, if nothing else is said."""
    return replace(SPEC, policies=choices(**{"admission": "deadline", **names}), params=WINDOW)


def test_the_defaults_lose_nothing_together() -> None:
    assert losing(SPEC) == ()


def test_balancers_that_choose_by_prefix_among_replicas_with_room_are_named_beside_a_window() -> None:
    warned = {name for name in CATALOG["balancing"] if losing(in_a_window(balancing=name))}
    assert warned == {"least_cost", "lmetric", "longest_prefix", "prefix_affinity", "scored"}
    assert not any(losing(replace(SPEC, policies=choices(balancing=name))) for name in CATALOG["balancing"])


def test_gateways_that_admit_by_waits_and_do_not_tell_of_theirs_are_warned_of() -> None:
    several = replace(in_a_window(), num_gateways=4)
    (warning,) = losing(several)
    assert "deadline with 4 gateways" in warning
    assert losing(replace(several, has_load_coordinator=True)) == losing(replace(several, num_gateways=1)) == ()


def test_a_queue_that_learns_is_named_beside_a_balancer_that_would_have_one_for_each_replica() -> None:
    (warning,) = losing(in_a_window(balancing="least_delay", queueing="vtc"))
    assert "least_delay" in warning
    assert "vtc" in warning


def test_a_window_that_nothing_is_refused_from_is_named_unless_it_gives_shares() -> None:
    (warning,) = losing(in_a_window(admission="always_admit", queueing="edf"))
    assert "4096 with policies.admission always_admit" in warning
    for its in ({"queueing": "vtc"}, {"shedding": "priority_threshold"}):
        assert losing(in_a_window(admission="always_admit", **its)) == ()


def test_admission_by_waits_that_it_cannot_order_is_named() -> None:
    (warning,) = losing(replace(SPEC, policies=choices(admission="deadline")))
    assert "deadline without gateway.prefill_window_tokens" in warning
    assert losing(in_a_window()) == ()


def test_shedding_by_waits_that_are_in_the_engines_is_named() -> None:
    (warning,) = losing(replace(SPEC, policies=choices(shedding="shared_fraction")))
    assert "shared_fraction without gateway.prefill_window_tokens" in warning
    (warning,) = losing(in_a_window(admission="codel", shedding="shared_fraction"))
    assert "shared_fraction with prefill_window_tokens 4096" in warning
    assert "served to their end" in warning


def test_a_bounded_queue_that_counts_what_caches_have_is_named() -> None:
    (warning,) = losing(in_a_window(admission="bounded_queue"))
    assert "no policies.prefixes" in warning
    assert losing(replace(in_a_window(admission="bounded_queue"), prefixes=PolicyChoice(name="block_hash"))) == ()


def test_shedding_sessions_before_an_admission_that_would_serve_their_calls_is_named() -> None:
    (warning,) = losing(in_a_window(shedding="shared_fraction"))
    assert "shared_fraction with policies.admission deadline" in warning
    assert losing(in_a_window(shedding="pid")) == ()
