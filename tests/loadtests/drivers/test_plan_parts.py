"""Parts of a plan: thinned, shared among workers, some classes; always with the whole plan's times and numbers."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.seeds import Seeds
from loadtests.drivers.plan_parts import PartOfWorkload, Share, chosen_classes
from loadtests.workloads.clients import Clients
from loadtests.workloads.workload import Planned, Workload
from policies.errors import ConfigError
from tests.loadtests.sample_workloads import COMPLETED, every_kind
from tests.tables import for_each

WORKLOAD = every_kind()
ALL_CLASSES = frozenset(WORKLOAD.class_names)


def part(workload: Workload = WORKLOAD, fraction: float = 1.0, share: Share | None = None) -> PartOfWorkload:
    return PartOfWorkload(whole=workload, fraction=fraction, classes=ALL_CLASSES, share=share or Share())


def planned(plan: PartOfWorkload | Workload, seed: int = 3) -> list[Planned]:
    return list(plan.plan(Seeds(seed)))


@settings(max_examples=20, deadline=None)
@given(num_shares=st.integers(1, 7), fraction=st.floats(0.05, 1.0), seed=st.integers(0, 1000))
def test_shares_are_a_partition_of_the_plan(num_shares: int, fraction: float, seed: int) -> None:
    """Whatever the number of workers: nothing is sent twice, nothing is left out, and everything at its time."""
    shares = [planned(part(fraction=fraction, share=Share(index, num_shares)), seed) for index in range(num_shares)]
    together = sorted(
        (each for share in shares for each in share), key=lambda each: each.arrival.request.logical_request
    )

    assert together == planned(part(fraction=fraction), seed)


def test_a_conversation_stays_with_one_worker() -> None:
    """Its later turns follow from its first one's end, on the worker that saw it."""
    turns_of: dict[int, set[int]] = {}
    for index in range(3):
        clients = Clients(part(share=Share(index, 3)), Seeds(3))
        for arrival in clients.arrivals():
            pending = [arrival]
            while pending:
                at_s, request = pending.pop()
                turns_of.setdefault(request.session, set()).add(index)
                pending.extend(clients.on_end(request, COMPLETED, at_s))

    del turns_of[-1]
    assert len(turns_of) > 20
    assert all(len(workers) == 1 for workers in turns_of.values())


def test_thinning_takes_the_share_that_it_says_and_no_other_requests_than_the_plans() -> None:
    """About a fifth of each class, and each as the whole plan has it."""
    whole, thin = planned(WORKLOAD), planned(part(fraction=0.2))

    assert set(thin) <= set(whole)
    assert len(thin) == pytest.approx(0.2 * len(whole), rel=0.15)


def test_a_higher_fraction_sends_more_of_the_same() -> None:
    assert {each.arrival for each in planned(part(fraction=0.1))} <= {
        each.arrival for each in planned(part(fraction=0.3))
    }


@for_each(
    ("tags", "excluded", "chosen"),
    [
        ((), (), ("chat", "batch", "code")),
        (("code", "chat"), (), ("code", "chat")),
        ((), ("batch",), ("chat", "code")),
        (("chat", "batch"), ("batch",), ("chat",)),
    ],
)
def test_tags_choose_classes_and_excluded_ones_take_them_away(
    tags: tuple[str, ...], excluded: tuple[str, ...], chosen: tuple[str, ...]
) -> None:
    assert chosen_classes(("chat", "batch", "code"), tags, excluded) == chosen


@for_each(("tags", "excluded"), [((), ("tall",)), ((), ("chat", "batch")), (("chat",), ("chat",))])
def test_to_leave_out_everything_or_what_is_not_there_is_refused(
    tags: tuple[str, ...], excluded: tuple[str, ...]
) -> None:
    """An empty choice would stand for all of them."""
    with pytest.raises(ConfigError, match=r"--exclude-tags: .* some of chat, batch, and not all that are sent"):
        chosen_classes(("chat", "batch"), tags, excluded)


def test_only_the_chosen_classes_are_sent() -> None:
    chosen = PartOfWorkload(whole=WORKLOAD, fraction=1.0, classes=frozenset({"chat"}))

    assert {each.arrival.request.traffic_class for each in planned(chosen)} == {0}


@for_each("fraction", [0.0, -1.0, 1.1])
def test_a_fraction_that_is_none_is_refused(fraction: float) -> None:
    with pytest.raises(ConfigError, match="above 0 and at most 1"):
        part(fraction=fraction)


@for_each("classes", [frozenset({"chat", "nobody"}), frozenset()], ids=["unknown", "none"])
def test_classes_that_are_none_are_refused(classes: frozenset[str]) -> None:
    with pytest.raises(ConfigError, match="one or several of the traffic classes"):
        PartOfWorkload(whole=WORKLOAD, fraction=1.0, classes=classes)


def test_a_share_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="0 to 1, the number of shares less one"):
        Share(2, 2)
