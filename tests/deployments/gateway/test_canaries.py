"""What a gateway counts of canaries: it judges them by what they do, not by what their clients notice of it."""

from typing import Any

from deployments.wire.inner_hop import Failure
from engines.contract import Chunk, KvHandle
from policies import PolicyChoice, Reason, Role
from tests.deployments.host_dialogue import HostDialogue
from tests.deployments.metrics_text import text_of
from tests.routing.dialogue import NO_HEDGE, completed, hedge_after
from tests.tables import for_each

HELLO, END = Chunk("Hello", (1, 2)), Chunk(".", (3,), "stop")


def counted(talk: HostDialogue) -> dict[str, float]:
    """Attempts of canaries by result, and ejections by why."""
    samples = [
        line.rpartition(" ") for line in text_of(talk.metrics).splitlines() if line.startswith("spillway_canary")
    ]
    return {name.partition('"')[2].partition('"')[0]: float(value) for name, _, value in samples if "_total{" in name}


def a_canary_and_another(canary: str = "a", hedging: PolicyChoice = NO_HEDGE) -> HostDialogue:
    idle: dict[str, Any] = {"prefill_tokens": 0, "kv_tokens": 0, "kv_cache_usage": 0.0}
    return HostDialogue(hedging=hedging).replicas(Role.UNIFIED, "a", "b", canaries=(canary,), **idle)


async def test_an_answer_counts_where_a_canary_has_given_it() -> None:
    talk = a_canary_and_another()
    opened, call = await talk.opens("q")
    _, elsewhere = await talk.opens("r")
    elsewhere.answers(END)
    assert (call.target, elsewhere.target) == ("a", "b")
    assert await talk.answered(opened, call, HELLO, END) == ("Hello.", completed())
    await talk.until(lambda: talk.is_over)
    assert counted(talk) == {"finished": 1.0}


async def test_a_failure_counts_that_the_client_does_not_notice() -> None:
    talk = a_canary_and_another()
    opened, call = await talk.opens("q")
    call.answers(Failure(Reason.ENGINE_ERROR, "it went wrong"))
    assert await talk.answered(opened, await talk.call("q.1"), HELLO, END) == ("Hello.", completed())
    await talk.until(lambda: talk.is_over)
    assert counted(talk) == {"failed": 1.0}


@for_each("reason", [Reason.INVALID_REQUEST, Reason.DEADLINE_EXCEEDED])
async def test_what_a_request_is_itself_to_blame_for_says_nothing_of_a_canary(reason: Reason) -> None:
    talk = a_canary_and_another()
    opened, call = await talk.opens("q")
    call.answers(Failure(reason, "no"))
    await talk.answer(opened)
    await talk.until(lambda: talk.is_over)
    assert counted(talk) == {}


async def test_a_client_that_goes_says_nothing_of_a_canary() -> None:
    talk = a_canary_and_another()
    await talk.opens("q")
    talk.host.abandon("q")
    await talk.until(lambda: talk.is_over)
    assert counted(talk) == {}


@for_each(
    ("canary", "winner", "expected"), [("a", "q.1", {"beaten": 1.0}), ("a", "q.0", {"finished": 1.0}), ("b", "q.0", {})]
)
async def test_a_canary_that_a_hedge_elsewhere_has_beaten_counts_and_a_hedge_of_its_own_does_not(
    canary: str, winner: str, expected: dict[str, float]
) -> None:
    talk = a_canary_and_another(canary, hedging=hedge_after(0.0))
    opened = await talk.arrives("q")
    calls = {name: await talk.call(name) for name in ("q.0", "q.1")}
    assert [calls[name].target for name in ("q.0", "q.1")] == ["a", "b"]
    assert await talk.answered(opened, calls[winner], HELLO, END) == ("Hello.", completed())
    await talk.until(lambda: talk.is_over)
    assert counted(talk) == expected


async def test_a_prefill_that_beats_a_canarys_counts_that_and_its_decode_follows() -> None:
    """Its first word is its last one: it has ended when its race is counted."""
    talk = HostDialogue(planner="always_disaggregated", hedging=hedge_after(0.0))
    talk.replicas(Role.PREFILL, "p", "q", canaries=("p",)).replicas(Role.DECODE, "d")
    opened = await talk.arrives("r")
    calls = {name: await talk.call(name) for name in ("r.0", "r.1")}
    assert [calls[name].target for name in ("r.0", "r.1")] == ["p", "q"]
    calls["r.1"].answers(KvHandle({}, 3))
    assert await talk.answered(opened, await talk.call("r.2"), HELLO, END) == ("Hello.", completed())
    await talk.until(lambda: talk.is_over)
    assert counted(talk) == {"beaten": 1.0}


async def test_a_canary_that_stands_still_is_counted_though_its_requests_are_answered_elsewhere() -> None:
    talk = a_canary_and_another()
    opened, _ = await talk.opens("q")
    talk.host.take_in_stall("a", True)
    assert await talk.answered(opened, await talk.call("q.1"), HELLO, END) == ("Hello.", completed())
    await talk.until(lambda: talk.is_over)
    assert counted(talk) == {"stalled": 1.0}
