"""A gateway's own small request to a replica whose engine has failed, on its way and back."""

import pytest

from deployments.wire.handle_calls import METHODS
from deployments.wire.inner_hop import Failure, Item, WithCacheChange, decode_request
from engines.contract import Chunk
from policies import Reason, Role
from routing import DispatcherParams
from routing.fleet.probes import SMALL_PROMPT_TOKENS
from routing.request.news import CacheChange
from tests.deployments.host_dialogue import Call, HostDialogue
from tests.deployments.metrics_text import text_of
from tests.tables import for_each

HELLO, END = Chunk("Hello", (1, 2)), Chunk(".", (3,), "stop")
FAILED = Failure(Reason.ENGINE_ERROR, "it went wrong")
PROBE = "/a.1"


def results(talk: HostDialogue) -> dict[str, float]:
    """Probes by what has come of them."""
    lines = [line for line in text_of(talk.metrics).splitlines() if line.startswith("spillway_probes_total")]
    return {line.partition('result="')[2].partition('"')[0]: float(line.rpartition(" ")[2]) for line in lines}


async def probed() -> tuple[HostDialogue, Call]:
    """The engine of a has failed on what the other's has done; its time is over, and it is probed."""
    talk = HostDialogue(params=DispatcherParams(quarantine_s=1000.0, probe_s=1000.0))
    talk.replicas(Role.UNIFIED, "a", "b")
    opened, call = await talk.opens("q")
    assert call.target == "a"
    call.answers(FAILED)
    await talk.answered(opened, await talk.call("q.1"), HELLO, END)
    talk.clock.time_s += 1000.0
    talk.host._fire("q.1/a:quarantine")
    return talk, await talk.call(PROBE)


async def test_it_is_a_small_whole_request() -> None:
    talk, probe = await probed()
    assert (probe.target, probe.method) == ("a", METHODS[Role.UNIFIED])
    request = decode_request(probe.arguments[0])
    assert request.request_id == PROBE
    assert (len(request.prompt_token_ids), request.sampling.max_tokens) == (SMALL_PROMPT_TOKENS, 1)
    probe.answers(END)
    await talk.until(lambda: results(talk) == {"well": 1.0})


@for_each(
    ("item", "result"),
    [
        (Chunk("x", (1,), "length"), "well"),
        (Chunk("", (), "abort"), "failed"),
        (Failure(Reason.INVALID_REQUEST, "no"), "well"),
        (FAILED, "failed"),
    ],
)
async def test_what_comes_of_it_is_told_and_counted(item: Item, result: str) -> None:
    talk, probe = await probed()
    probe.answers(item)
    await talk.until(lambda: results(talk) == {result: 1.0})
    assert talk.host.live_replicas()["unified-pool"] == (2 if result == "well" else 1)


async def test_what_a_replica_tells_of_its_cache_on_that_occasion_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    talk, probe = await probed()
    told: list[CacheChange] = []
    monkeypatch.setattr(talk.dispatcher._prefixes, "cache_changed", lambda *change: told.append(CacheChange(*change)))
    probe.answers(WithCacheChange(Chunk("x", (1,), "length"), (1, 2), (3,)))
    await talk.until(lambda: results(talk) == {"well": 1.0})
    assert told == [CacheChange("a", (1, 2), (3,))]


async def test_a_probe_that_takes_too_long_is_cancelled() -> None:
    talk, probe = await probed()
    talk.clock.time_s += 1000.0
    talk.host._fire("a.1:probe")
    await talk.until(lambda: probe.num_cancels == 1)
    assert results(talk) == {"cancelled": 1.0}
    assert talk.host.live_replicas()["unified-pool"] == 1
