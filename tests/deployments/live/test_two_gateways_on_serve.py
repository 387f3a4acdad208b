"""Two gateways, the load coordinator's actor and the aggregator's on Ray Serve, in front of an emulated engine."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from deployments.coordination.coordinator_actor import LOAD_COORDINATOR
from deployments.export.aggregator_actor import AGGREGATOR
from policies import ConfigError
from tests.deployments.live_cluster import Live, RayNodes, actor_of, application, emulated_args, in_ray
from tests.plain_http import HTTP
from tests.waiting import wait_until

pytestmark = pytest.mark.ray

APPLICATION = "ledger"
SERVED_BY: list[str] = []
"""A gateway's name for each request that was served: what all gateways together have to count in the end."""
BODY = {"model": "tiny-llama", "prompt": "Hello", "max_tokens": 4}


def application_args(*, has_ledger: bool = True) -> dict[str, Any]:
    args = emulated_args(replicas=2, ledger=has_ledger)
    args["policies"]["shedding"] = "shared_fraction"
    return args


@pytest.fixture(scope="module")
def running(nodes: RayNodes) -> Iterator[Live]:
    with application(nodes, APPLICATION, application_args()) as live:
        yield live


def gateways(running: Live) -> set[str]:
    """Those whose counts are on the page."""
    return {labels["gateway"] for labels, _ in running.samples("spillway_requests_open")}


def completed_in_ray(running: Live) -> float:
    """By the gateways that there are."""
    ours = gateways(running)
    found = in_ray("spillway_requests_total", outcome="completed")
    return sum(value for labels, value in found if labels["gateway"] in ours)


def answered(running: Live) -> float:
    """By all gateways."""
    return running.metric("spillway_load_coordinator_exchanges_total", result="answered")


def is_served(running: Live) -> bool:
    """And the response says by which gateway."""
    answer = HTTP.post(f"{running.url}/v1/completions", json=BODY, timeout=60)
    if answer.status_code == 200:
        SERVED_BY.append(answer.headers["x-spillway-gateway"])
    return answer.status_code == 200


def test_without_a_ledger_the_policy_is_refused_at_the_start() -> None:
    from deployments.app import build

    with pytest.raises(ConfigError, match="missing: \\['load_coordinator'\\]"):
        build(application_args(has_ledger=False))


def test_gateways_go_by_the_ledger_and_by_themselves_while_it_is_gone(running: Live) -> None:
    import ray

    wait_until(lambda: answered(running) > 4, "the load coordinator answers")
    assert is_served(running)
    assert running.metric("spillway_shed_fraction") == 0.0

    ray.kill(actor_of(APPLICATION, LOAD_COORDINATOR))
    wait_until(
        lambda: running.metric("spillway_load_coordinator_exchanges_total", result="lost") > 0, "its loss is noticed"
    )
    assert is_served(running)

    before = answered(running)
    wait_until(lambda: answered(running) > before + 4, "another one has been started")
    assert is_served(running)


def test_the_page_counts_what_all_gateways_have_served_whichever_is_asked(running: Live) -> None:
    wait_until(lambda: len(gateways(running)) == 2, "both gateways are on the page")
    assert all(is_served(running) for _ in range(4))
    wait_until(
        lambda: running.metric("spillway_requests_total", outcome="completed") == len(SERVED_BY),
        "all are on the page of the gateway that is asked",
    )
    wait_until(lambda: completed_in_ray(running) == len(SERVED_BY), "Ray's agents have them too")


def test_replicas_tell_rays_agents_what_they_tell_gateways(running: Live) -> None:
    assert is_served(running)
    name = "spillway_replica_output_tokens_total"
    [(labels, _)] = running.samples(name)
    wait_until(
        lambda: [value for _, value in in_ray(name, replica=labels["replica"])] == [running.metric(name)],
        "both have the same",
    )
    ours = next(iter(gateways(running)))
    assert not in_ray(name, gateway=ours), "or a sum would count it once for each gateway"
    wait_until(
        lambda: [value for _, value in in_ray("spillway_replicas", gateway=ours)] == [1.0],
        "Ray's agents have what only a gateway knows, however long it has been the same",
    )


def test_the_live_page_has_the_counts_of_all_gateways_whichever_it_watches(running: Live) -> None:
    wait_until(lambda: len(gateways(running)) == 2, "both gateways are on the aggregator")
    assert all(is_served(running) for _ in range(4))

    def state() -> dict[str, Any]:
        with httpx.stream("GET", f"{running.url}/live/events", timeout=30) as answer:
            said: dict[str, Any] = json.loads(next(answer.iter_lines()).removeprefix("data: "))
        (model,) = said.pop("models")
        return {**said, **model}

    wait_until(
        lambda: sum(each["requests"].get("completed", 0) for each in state()["gateways"].values()) == len(SERVED_BY),
        "the page counts what all have answered",
    )
    last = state()
    assert set(last["gateways"]) == gateways(running)
    assert last["gateway"] in last["gateways"]


def test_a_board_that_dies_is_replaced_and_until_then_each_gateway_shows_its_own(running: Live) -> None:
    import ray

    wait_until(lambda: len(gateways(running)) == 2, "both gateways are on the page")
    ray.kill(actor_of(APPLICATION, AGGREGATOR))
    wait_until(lambda: len(gateways(running)) == 1, "its loss shows")
    assert is_served(running)
    wait_until(lambda: len(gateways(running)) == 2, "another one has been started")
