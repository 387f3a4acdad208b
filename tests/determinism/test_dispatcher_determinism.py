"""Same seed, two processes that hash strings differently: the same effects, byte for byte."""

from typing import get_args

from policies import CATALOG
from routing import CancelProbe, Effect, Probe, PushLoad, ShareCacheChange, ShareFirstArrival, SharePrompt
from tests.determinism.scripted_run import effect_hash, run
from tests.hash_seeds import printed_under
from tests.tables import for_each


def test_the_effects_do_not_depend_on_how_strings_are_hashed() -> None:
    """Strings are hashed at random here, and by one seed there."""
    balancers, how = sorted(CATALOG["balancing"]), ("always_disaggregated", "7")

    hashes = printed_under("1", "tests.determinism.scripted_run", *how, *balancers).splitlines()

    here = {each: effect_hash(each, "always_disaggregated", 7) for each in balancers}
    assert dict(zip(balancers, hashes, strict=True)) == here


@for_each("balancing", ["random", "power_of_two"])
def test_another_seed_gives_other_effects(balancing: str) -> None:
    assert effect_hash(balancing, "always_unified", 7) != effect_hash(balancing, "always_unified", 8)


def test_balancers_differ_on_the_same_scripts() -> None:
    """The hash sees the picks: a run that ignored the balancer would pass everything else here. On one script alone two
    that are closely related may well do the same."""
    hashes = {tuple(effect_hash(each, "always_unified", seed) for seed in (7, 11, 13)) for each in CATALOG["balancing"]}

    assert len(hashes) == len(CATALOG["balancing"])


def test_the_script_leads_to_every_kind_of_effect() -> None:
    seen = {type(each) for each in run("random", "always_disaggregated", 16)}

    told_to_others = {PushLoad, ShareFirstArrival, SharePrompt, ShareCacheChange}
    assert seen == set(get_args(Effect)) - told_to_others - {Probe, CancelProbe}, "gateways that decide alone"
