"""What a deployment says of itself while it is driven."""

from itertools import count

import pytest

from loadtests.watch import deployment_watch
from loadtests.watch.deployment_watch import DeploymentWatch, gauges_in
from tests.deployments.exported_metrics import exported_page
from tests.loadtests.metrics_pages import serving
from tests.waiting import wait_until

PAGE = """
# TYPE spillway_queue_work_seconds gauge
spillway_queue_work_seconds{class="critical",gateway="a",line="prefill"} 1.0
spillway_queue_work_seconds{class="standard",gateway="b",line="prefill"} 2.0
spillway_queue_requests{class="standard",gateway="b",line="prefill"} 4.0
spillway_shed_fraction{gateway="a"} 0.2
spillway_shed_fraction{gateway="b"} 0.4
spillway_requests_open{gateway="a"} 3.0
spillway_requests_waiting{gateway="a"} 4.0
"""


def test_queues_are_added_up_and_shed_fractions_are_averaged_over_gateways() -> None:
    assert gauges_in(PAGE) == {
        "queue_requests": 4.0,
        "queue_work_s": 3.0,
        "requests_open": 3.0,
        "requests_waiting": 4.0,
        "shed_fraction": pytest.approx(0.3),
    }


SCALED = """
spillway_requests_open{gateway="a"} 0.0
spillway_replicas{pool="decode"} 2.0
spillway_replicas{pool="prefill"} 3.0
spillway_target_replicas{gateway="a",pool="decode"} 2.0
spillway_target_replicas{gateway="b",pool="decode"} 5.0
spillway_draining_replicas{gateway="a",pool="decode"} 1.0
spillway_warm_replicas{gateway="a",pool="decode"} 4.0
"""


def test_a_pool_holds_the_replicas_that_start_drain_or_are_warm_too_as_the_gateway_knows_that_heard_last() -> None:
    gauges = gauges_in(SCALED)
    assert (gauges["ready_replicas_decode"], gauges["ready_replicas_prefill"]) == (2.0, 3.0)
    assert gauges["held_replicas"] == 5.0 + 1.0 + 4.0 + 3.0


def test_a_real_gateways_page_has_all_of_them() -> None:
    replicas = {"ready_replicas_decode", "held_replicas"}
    assert set(gauges_in(exported_page())) == {*deployment_watch.SUMS, "shed_fraction", *replicas}


def test_somebody_elses_page_has_none() -> None:
    assert gauges_in("vllm:num_requests_running 1.0\n") == {}


def test_moments_carry_the_runs_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployment_watch, "LOOK_EVERY_S", 0.001)
    ticks = count()
    with serving([PAGE]) as url, DeploymentWatch(url, lambda: float(next(ticks))) as watch:
        wait_until(lambda: len(watch.moments) > 2, "three looks")
    assert [moment.at_s for moment in watch.moments[:3]] == [0.0, 1.0, 2.0]


def test_what_requests_lost_meanwhile_is_said_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployment_watch, "LOOK_EVERY_S", 0.001)
    spent = 'spillway_request_bound_seconds_total{{bound="{}",gateway="a",lane=""}} {}\n'
    before = PAGE + spent.format("engine", 50.0) + spent.format("queue", 100.0) + spent.format("memory", 10.0)
    after = PAGE + spent.format("engine", 60.0) + spent.format("queue", 101.0) + spent.format("memory", 25.0)
    with serving([before, after]) as url, DeploymentWatch(url, lambda: 0.0) as watch:
        wait_until(lambda: len(watch.moments) > 1, "two looks")
    assert watch.notes()[0].startswith("what binds: memory, 94% of the time that requests lose")


def test_a_server_without_such_metrics_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployment_watch, "LOOK_EVERY_S", 0.0)
    pages = ["up 1.0\n", PAGE]
    with serving(pages) as url, DeploymentWatch(url, lambda: 0.0) as watch:
        wait_until(lambda: pages == [PAGE], "it has looked")
    assert watch.moments == [], "a second look would have found some"


@pytest.mark.parametrize("status", [404, 405])
def test_a_server_without_a_page_is_asked_once(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    monkeypatch.setattr(deployment_watch, "LOOK_EVERY_S", 0.0)
    pages: list[str | int] = [status, PAGE]
    with serving(pages) as url, DeploymentWatch(url, lambda: 0.0) as watch:
        watch._looks._thread.join(60)
        assert not watch._looks._thread.is_alive()
    assert (pages, watch.moments, watch.notes()) == ([PAGE], [], [])


def test_a_look_that_is_refused_is_lost_and_the_timeline_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployment_watch, "LOOK_EVERY_S", 0.001)
    ticks = count()
    pages: list[str | int] = [PAGE, 503, "spillway_requests_open{} no number\n", PAGE]
    with serving(pages) as url, DeploymentWatch(url, lambda: float(next(ticks))) as watch:
        wait_until(lambda: len(watch.moments) > 1, "two looks that are answered")
    assert [moment.at_s for moment in watch.moments[:2]] == [0.0, 3.0]
    assert watch.notes() == [
        "looks at the deployment's metrics that were lost: 2, first HTTPError: HTTP Error 503: Service Unavailable"
    ]


def test_nobody_there_is_no_error() -> None:
    with DeploymentWatch("http://127.0.0.1:9", lambda: 0.0) as watch:
        wait_until(lambda: watch.num_lost > 0, "a look at nobody")
    assert watch.moments == []
    assert "looks at the deployment's metrics that were lost" in watch.notes()[0]
