"""The Serve host when a replica is ejected: nothing is sent there until its time is over."""

from deployments.wire.inner_hop import Failure
from engines.contract import Chunk
from policies import PolicyChoice, Reason, Role
from tests.deployments.host_dialogue import HostDialogue
from tests.deployments.metrics_text import text_of
from tests.routing.dialogue import completed

END = Chunk(".", (9,), "stop")


async def test_a_replica_that_fails_is_out_and_counted() -> None:
    choice = PolicyChoice(name="outlier", params={"signs": ["failures"], "max_failures": 1, "base_s": 0.02})
    talk = HostDialogue(ejection=choice).replicas(Role.UNIFIED, "a", "b")
    await talk.arrives("broken")
    call = await talk.call("broken.0")
    call.answers(Failure(Reason.ENGINE_ERROR, "it went wrong"))
    await talk.until(lambda: talk.is_over)
    page = text_of(talk.metrics)
    assert 'spillway_ejections_total{pool="unified-pool",reason="failures"} 1.0' in page
    assert talk.host.live_replicas()["unified-pool"] == 1

    for name in ("q1", "q2"):
        opened = await talk.arrives(name)
        call = await talk.call(f"{name}.0")
        assert call.target == "b"
        call.answers(END)
        assert await talk.answer(opened) == (".", completed())

    talk.clock.time_s += 1.0
    await talk.until(lambda: talk.host.live_replicas()["unified-pool"] == 2)
    assert talk.is_over
