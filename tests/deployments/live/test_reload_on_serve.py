"""Policies change under open streams on Ray Serve, in front of an emulated engine."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.deployments.live_cluster import Live, replicas_of
from tests.deployments.reloadable import NUM_SEQS, Reloadable, headers_of
from tests.deployments.streams import TOKENS, Streams
from tests.plain_http import HTTP
from tests.waiting import wait_until

pytestmark = pytest.mark.ray

SLOTS = 3
WAITING = 20
"""As many as it takes for some of them to wait yet when a gateway that is short of processor time has reloaded."""
LONG_ANSWER_TOKENS = 800
"""Some seven seconds of an engine."""
RUNNING = "spillway_replica_num_requests_running"
REFUSE_SHEDDABLE = "tests.policy_doubles:RefuseSheddable"


@pytest.fixture
def streams(reloadable: Reloadable) -> Iterator[Streams]:
    reloadable.use()
    options: Any = {"timeout": 120, "limits": httpx.Limits(max_connections=64), "headers": headers_of("shop")}
    with (
        httpx.Client(base_url=reloadable.live.url, **options) as http,
        ThreadPoolExecutor(max_workers=32) as pool,
    ):
        yield Streams(http, pool)


def began_at(live: Live) -> int:
    """When the gateway that answers was made."""
    answer = HTTP.get(f"{live.url}/v1/models", headers=headers_of("shop"), timeout=60)
    found: int = answer.json()["data"][0]["created"]
    return found


def test_policies_change_under_open_streams_and_all_of_them_complete(reloadable: Reloadable, streams: Streams) -> None:
    """Sheddable requests wait in order of arrival; with ``priority`` a critical one that comes last goes first."""
    live = reloadable.live
    began, completed = began_at(live), live.metric("spillway_requests_total", outcome="completed")
    long_ones = streams.begin("standard", SLOTS, LONG_ANSWER_TOKENS)
    wait_until(lambda: streams.num_begun >= NUM_SEQS, "answers are under way")
    answers = streams.begin("sheddable", WAITING)
    wait_until(lambda: live.metric("spillway_requests_waiting") > WAITING - SLOTS, "most of them wait")

    reloadable.use(queueing="priority", admission=REFUSE_SHEDDABLE)
    assert streams.status_of("sheddable") == 429
    answers += streams.begin("critical")

    assert [each.result(timeout=120) for each in answers] == [TOKENS] * (WAITING + 1)
    assert [each.result(timeout=120) for each in long_ones] == [LONG_ANSWER_TOKENS] * SLOTS
    assert "critical" not in streams.ended[-SLOTS:], "it overtook some who had waited before it came"
    assert began_at(live) == began, "no gateway was restarted"
    assert live.metric("spillway_requests_total", outcome="completed") == completed + SLOTS + WAITING + 1
    wait_until(lambda: live.metric("spillway_requests_open") == 0, "nothing is left open")


def test_a_pool_is_resized_in_place_under_open_streams_and_all_of_them_complete(
    reloadable: Reloadable, streams: Streams
) -> None:
    live = reloadable.live
    began, completed = began_at(live), live.metric("spillway_requests_total", outcome="completed")
    answers = streams.begin("standard", 2 * SLOTS, LONG_ANSWER_TOKENS)
    reloadable.resize(2)
    wait_until(lambda: replicas_of(live.url) == {"unified": 2}, "the second replica is warm")
    answers += streams.begin("standard", SLOTS, LONG_ANSWER_TOKENS)
    wait_until(lambda: all(running > 0 for _, running in live.samples(RUNNING)), "both have something to do")
    reloadable.resize(1)
    wait_until(lambda: replicas_of(live.url) == {"unified": 1}, "one is taken away")

    assert [each.result(timeout=120) for each in answers] == [LONG_ANSWER_TOKENS] * (3 * SLOTS)
    assert began_at(live) == began, "no gateway was restarted"
    assert live.metric("spillway_requests_total", outcome="completed") == completed + 3 * SLOTS


def test_what_cannot_be_changes_nothing_and_no_stream_breaks(reloadable: Reloadable, streams: Streams) -> None:
    reloadable.use(admission=REFUSE_SHEDDABLE)
    under_way = streams.begin("standard")
    wait_until(lambda: streams.num_begun == 1, "it is under way")

    reloadable.reload({"policies": {"admission": "bouncer"}}, "refused")

    assert under_way[0].result(timeout=120) == TOKENS
    assert streams.status_of("sheddable") == 429


def test_without_user_config_what_the_arguments_say_holds_again(reloadable: Reloadable, streams: Streams) -> None:
    reloadable.use(admission=REFUSE_SHEDDABLE)
    assert streams.status_of("sheddable") == 429

    reloadable.reload(None)

    assert streams.status_of("sheddable") == 4
