import pytest

from cluster.kv_links import KvLink, check_links, place_of, slowdowns_of
from engines.model.sequences import slowdown_between
from policies.errors import ConfigError
from tests.tables import for_each

NODE, RACK = KvLink(same="node", bandwidth_bytes_per_s=200e9), KvLink(same="rack", bandwidth_bytes_per_s=50e9)
ANY = KvLink(bandwidth_bytes_per_s=5e9)
LINKS = (NODE, RACK, ANY)


@for_each(
    ("other", "slowdown"),
    [
        ({"node": "1", "rack": "a"}, 0.25),
        ({"node": "2", "rack": "a"}, 1.0),
        ({"node": "2", "rack": "b"}, 10.0),
        ({}, 10.0),
    ],
)
def test_kv_takes_the_nearest_link_that_two_places_have_in_common(other: dict[str, str], slowdown: float) -> None:
    here, there = place_of({"node": "1", "rack": "a"}, LINKS), place_of(other, LINKS)
    assert slowdown_between(here, there, slowdowns_of(LINKS, 50e9)) == slowdown


def test_two_replicas_without_a_label_do_not_have_it_in_common() -> None:
    nowhere = place_of({}, (NODE, RACK))
    assert slowdown_between(nowhere, nowhere, slowdowns_of((NODE, RACK), 50e9)) == 1.0


@for_each("links", [(NODE, NODE), (ANY, RACK), (ANY, ANY)])
def test_links_that_could_never_be_taken_are_refused(links: tuple[KvLink, ...]) -> None:
    with pytest.raises(ConfigError, match="kv_links"):
        check_links(links)


@for_each("bandwidth", [0.0, -1.0, float("inf")])
def test_a_bandwidth_that_is_none_is_refused(bandwidth: float) -> None:
    with pytest.raises(ConfigError, match="bandwidth_bytes_per_s"):
        KvLink(same="rack", bandwidth_bytes_per_s=bandwidth)
