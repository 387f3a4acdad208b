"""Whether gateways give up the same: chance is told apart from a difference, and what they say is read."""

import math
import random

import pytest

from cluster.sim.run_table import RunTable
from loadtests.results.metrics import Window
from loadtests.watch import shed_divergence as gateway_spread
from loadtests.watch.shed_divergence import FractionWatch, least_spread
from tests.loadtests.metrics_pages import serving
from tests.loadtests.run_tables import RequestRow, run_table
from tests.tables import for_each
from tests.waiting import wait_until

WINDOW = Window(from_s=0.0, until_s=100.0)


def requests(shed_fractions: tuple[float, ...], number: int, *, per_session: int = 4) -> RunTable:
    """So many conversations; each comes to a gateway by chance, and all of its requests share their fate."""
    draw = random.Random(1)
    rows = []
    for session in range(number):
        gateway = draw.randrange(len(shed_fractions))
        is_shed = draw.random() < shed_fractions[gateway]
        rows += [
            RequestRow(
                logical_request=session,
                session=session,
                retry_index=index,
                gateway=gateway,
                outcome="refused" if is_shed else "completed",
                reason="shed" if is_shed else "",
                e2e_s=1.0,
            )
            for index in range(per_session)
        ]
    return run_table(*rows)


def test_what_chance_makes_of_few_conversations_is_no_spread() -> None:
    assert least_spread(requests((0.4, 0.4), 100), WINDOW) == 0.0


def test_a_difference_that_chance_does_not_make_is_one() -> None:
    assert 0.2 < least_spread(requests((0.2, 0.6), 1_000), WINDOW) < 0.4


def test_the_order_of_the_gateways_does_not_matter() -> None:
    assert 0.2 < least_spread(requests((0.6, 0.2), 1_000), WINDOW) < 0.4


@for_each("fractions", [(0.4,), (0.4, 0.4, 0.4)], ids=["one", "three"])
def test_other_numbers_of_gateways_have_no_metric(fractions: tuple[float, ...]) -> None:
    assert math.isnan(least_spread(requests(fractions, 50), WINDOW))


def test_requests_outside_the_window_do_not_count() -> None:
    assert math.isnan(least_spread(requests((0.2, 0.6), 100), Window(from_s=50.0, until_s=100.0)))


def test_the_watch_reads_what_gateways_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_spread, "LOOK_EVERY_S", 0.001)
    lines = ["spillway_requests_open 0.0"]
    lines += [f'spillway_shed_fraction{{gateway="{name}"}} {value}' for name, value in (("a", 0.5), ("b", 0.4))]
    with serving(["\n".join(lines) + "\n"]) as url:
        watch = FractionWatch(url, Window(from_s=0.0, until_s=10.0))
        with watch:
            wait_until(lambda: len(watch.by_gateway.get("b", ())) > 2, "some looks")
    assert watch.spread == pytest.approx(0.1)


def test_a_deployment_that_does_not_answer_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks that are lost count, too: it is not asked beyond the window."""
    monkeypatch.setattr(gateway_spread, "LOOK_EVERY_S", 0.001)
    with FractionWatch("http://127.0.0.1:9", Window(from_s=0.0, until_s=0.005)) as watch:
        watch._looks._thread.join(60)
    assert watch.num_lost == 5
    assert math.isnan(watch.spread)


def test_what_is_no_gateways_page_loses_a_look_and_not_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_spread, "LOOK_EVERY_S", 0.001)
    said = 'spillway_requests_open 0.0\nspillway_shed_fraction{gateway="a"} 0.5\n'
    with (
        serving(["<html>starting</html>\n", said]) as url,
        FractionWatch(url, Window(from_s=0.0, until_s=10.0)) as watch,
    ):
        wait_until(lambda: "a" in watch.by_gateway, "a look that is answered")
    assert watch.num_lost == 1
