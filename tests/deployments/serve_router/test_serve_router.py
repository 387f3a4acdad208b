"""The router without Serve: what it chooses, what it counts, and that it never raises."""

import asyncio
import inspect
import logging
import pydoc
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import yaml
from ray.serve.config import RequestRouterConfig
from ray.serve.request_router import FIFOMixin, PendingRequest, RequestRouter, RunningReplica

from deployments.config import ROOT
from deployments.serve_router.call_placement import CallPlacement
from deployments.serve_router.policy_router import PolicyRouter
from policies import PolicyChoice
from tests.deployments.call_balancers import Recorder
from tests.deployments.serve_fakes import FakeReplica, FakeReplicaId, FakeRoutingContext, choices
from tests.tables import for_each

BALANCER = "tests.deployments.call_balancers"


@dataclass(slots=True)
class FakeMetadata:
    internal_request_id: str
    session_id: str = ""


@dataclass(slots=True)
class FakePending:
    metadata: FakeMetadata
    args: list[Any] = field(default_factory=list)
    kwargs: dict[str, Any] = field(default_factory=dict)
    future: asyncio.Future[Any] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    routing_context: FakeRoutingContext = field(default_factory=FakeRoutingContext)


class FakeResult:
    """A call under way."""

    def __init__(self) -> None:
        self._callbacks: list[Callable[[object], None]] = []

    def add_done_callback(self, callback: Callable[[object], None]) -> None:
        self._callbacks.append(callback)

    def ends(self, outcome: object) -> None:
        for callback in self._callbacks:
            callback(outcome)


class Router:
    """Plays Serve's part."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
        monkeypatch.setattr(RequestRouter, "update_replicas", lambda *_: None)
        monkeypatch.setattr(RequestRouter, "on_replica_actor_died", lambda *_: None)
        monkeypatch.setattr(RequestRouter, "on_replica_actor_unavailable", lambda *_: None)
        self.router = PolicyRouter.__new__(PolicyRouter)
        self.router.initialize_state(**settings)
        self.replicas: list[FakeReplica] = []

    def has(self, *names: str, slots: int = 8, **stats: Any) -> None:
        """These replicas run; ``stats`` are the first one's."""
        self.replicas = [FakeReplica(FakeReplicaId(name), slots) for name in names]
        if stats:
            self.replicas[0].routing_stats = stats
        self.router.update_replicas(self.replicas)

    async def chooses(self, pending: object) -> list[list[str]]:
        return await choices(self.router, self.replicas, pending)

    async def sends(self, pending: FakePending, to: str) -> FakeResult:
        """A replica has been found, and accepts."""
        await self.finds(pending, to)
        result = FakeResult()
        self.router.on_request_routed(pending, FakeReplicaId(to), result)
        return result

    async def finds(self, pending: FakePending, to: str) -> None:
        pending.future.set_result(next(each for each in self.replicas if each.replica_id.unique_id == to))
        await asyncio.sleep(0)

    def ends(self, pending: FakePending, at: str) -> None:
        self.router.on_request_completed(FakeReplicaId(at), pending.metadata.internal_request_id)

    @property
    def work(self) -> dict[str, int]:
        assert self.router._placement is not None
        left: dict[str, int] = self.router._placement.work_left()
        return left

    @property
    def is_over(self) -> bool:
        """Nothing is remembered of any call."""
        return not self.router._looking and not self.router._sent and not any(self.work.values())


async def placed(router: Router, name: str = "q", tokens: int = 500) -> FakePending:
    """A call for which a replica has been chosen."""
    one = call(name, tokens)
    await router.chooses(one)
    return one


def call(name: str, tokens: int = 100) -> FakePending:
    return FakePending(FakeMetadata(name), kwargs={"prompt": [1] * tokens})


@pytest.fixture
def router(monkeypatch: pytest.MonkeyPatch) -> Router:
    made = Router(monkeypatch, balancing="least_work_left")
    made.has("a", "b", "c")
    return made


async def test_the_balancers_pick_is_asked_alone(router: Router) -> None:
    assert await router.chooses(call("q")) == [["a"]]


async def test_behind_a_pick_that_was_full_a_moment_ago_stand_two_at_random(router: Router) -> None:
    one = await placed(router)
    first, behind = await router.chooses(one)
    assert first == ["a"]
    assert len(set(behind)) == 2


async def test_a_call_whose_pick_went_to_an_older_call_gets_another_one(router: Router) -> None:
    """First come, first served: what was found for the younger call is given to the older, whose own is still asked."""
    older, younger = call("older", 6000), call("younger", 2)
    assert await router.chooses(older) == [["a"]]
    assert await router.chooses(younger) == [["b"]]
    older.future.set_result(router.replicas[1])

    assert await router.chooses(younger) == [["a"]], "and not b, which has the older one now"

    assert router.work == {"a": 2, "b": 6000, "c": 0}


async def test_calls_that_are_not_sent_yet_count_already(router: Router) -> None:
    """Ten calls are looked for at once; nothing has been sent."""
    chosen = [(await router.chooses(call(f"q{number}", 1000 if number == 0 else 100)))[0][0] for number in range(9)]
    assert chosen[0] == "a"
    assert chosen.count("a") == 1
    assert chosen.count("b") == chosen.count("c") == 4


async def test_work_counts_until_the_call_has_ended_and_is_then_forgotten(router: Router) -> None:
    one = await placed(router)
    result = await router.sends(one, "a")
    assert router.work == {"a": 500, "b": 0, "c": 0}

    router.ends(one, "a")
    result.ends(None)

    assert router.is_over


async def test_work_is_counted_where_serve_really_sent_the_call(router: Router) -> None:
    one = await placed(router)
    await router.sends(one, "c")
    assert router.work == {"a": 0, "b": 0, "c": 500}


async def test_a_call_that_got_a_replica_before_one_was_looked_for_is_counted(router: Router) -> None:
    """First come, first served: a replica that is found goes to the oldest call."""
    one = call("q", 500)
    await router.sends(one, "b")
    assert router.work == {"a": 0, "b": 500, "c": 0}
    router.ends(one, "b")
    assert router.is_over


async def test_a_call_that_a_replica_had_no_room_for_is_placed_again(router: Router) -> None:
    one = await placed(router)
    await router.finds(one, "a")
    one.future = asyncio.get_running_loop().create_future()

    await router.chooses(one)
    router.ends(one, "a")

    assert sum(router.work.values()) == 500
    await router.sends(one, "b")
    assert router.work == {"a": 0, "b": 500, "c": 0}


async def test_a_call_that_is_cancelled_while_a_replica_is_looked_for_leaves_nothing_behind(router: Router) -> None:
    one = await placed(router)
    one.future.cancel()
    await asyncio.sleep(0)
    assert router.is_over


async def test_a_call_that_has_its_replica_already_is_not_placed_again(
    router: Router, caplog: pytest.LogCaptureFixture
) -> None:
    """The task that looks for it may not have heard of it yet."""
    one = await placed(router)
    one.future.set_result(router.replicas[2])

    assert len(await router.chooses(one)) == 1

    await asyncio.sleep(0)
    assert router.work == {"a": 0, "b": 0, "c": 500}
    assert caplog.records == []


async def test_looking_again_for_the_same_call_counts_it_once(router: Router) -> None:
    one = call("q", 500)
    for _ in range(5):
        await router.chooses(one)
    assert sum(router.work.values()) == 500


async def test_calls_of_one_parent_that_share_an_id_are_kept_apart(router: Router) -> None:
    calls = [call("parent", 100) for _ in range(3)]
    for one, name in zip(calls, "abc", strict=True):
        await router.chooses(one)
        await router.sends(one, name)
    assert router.work == {"a": 100, "b": 100, "c": 100}

    for one, name in zip(calls, "abc", strict=True):
        router.ends(one, name)

    assert router.is_over


async def test_a_call_on_a_replica_that_has_just_gone_leaves_nothing_behind(router: Router) -> None:
    one, gone = call("q"), FakeReplica(FakeReplicaId("z"))
    one.future.set_result(gone)
    router.router.on_request_routed(one, gone.replica_id, FakeResult())
    router.ends(one, "z")
    assert router.is_over


async def test_an_end_that_is_told_twice_counts_once(router: Router) -> None:
    one, other = call("q", 500), call("r", 300)
    for each in (one, other):
        await router.chooses(each)
        await router.sends(each, "a")

    router.ends(one, "a")
    router.ends(one, "a")

    assert router.work["a"] == 300


async def test_what_replicas_report_corrects_the_account_once(router: Router) -> None:
    router.has("a", "b", prefill_tokens=100, kv_tokens=900)
    assert (await router.chooses(call("q", 200)))[0] == ["b"]
    assert router.work == {"a": 1000, "b": 200}


async def test_a_replica_that_went_or_died_is_not_chosen(router: Router) -> None:
    router.has("b", "c")
    assert (await router.chooses(call("q")))[0] == ["b"]
    router.router.on_replica_actor_died(FakeReplicaId("c"))
    router.replicas = router.replicas[:1]
    assert (await router.chooses(call("r")))[0] == ["b"]


async def test_a_replica_that_does_not_answer_is_spared(router: Router) -> None:
    router.router.on_replica_actor_unavailable(FakeReplicaId("a"))
    assert (await router.chooses(call("q")))[0] == ["b"]


async def test_when_nobody_has_room_two_at_random_are_asked_and_serve_backs_off(router: Router) -> None:
    router.has("a", "b", slots=1)
    pending = [call(f"q{number}") for number in range(3)]
    ranks = [await router.chooses(each) for each in pending]

    assert ranks[:2] == [[["a"]], [["b"]]]
    assert [sorted(rank) for rank in ranks[2]] == [["a", "b"]]
    assert all(each.routing_context.should_backoff for each in pending)


async def test_a_balancer_that_learns_is_told_how_calls_went(monkeypatch: pytest.MonkeyPatch) -> None:
    router = Router(monkeypatch, balancing=f"{BALANCER}:Recorder")
    router.has("a")
    outcomes: list[object] = [b"an answer", ValueError("no"), None]

    for number, outcome in enumerate(outcomes):
        one = call(f"q{number}")
        await router.chooses(one)
        result = await router.sends(one, "a")
        router.ends(one, "a")
        result.ends(outcome)
        await asyncio.sleep(0)
    cancelled = call("gone")
    await router.chooses(cancelled)
    cancelled.future.cancel()
    await asyncio.sleep(0)

    assert router.router._placement is not None
    recorder = router.router._placement._balancer
    assert isinstance(recorder, Recorder)
    assert recorder.seen[::2] == ["Dispatched"] * 4
    assert recorder.seen[1::2] == ["Completed", "Failed", "Completed", "Cancelled"]


class TestNothingRaises:
    @pytest.mark.parametrize(
        "settings",
        [
            {},
            {"balancing": "no_such_policy"},
            {"balancing": "least_work_left", "params": {"speed": 3}},
            {"balancing": "least_work_left", "sped": 3},
            {"balancing": 7},
            {"balancing": f"{BALANCER}:NeedsPrefixes"},
        ],
        ids=["none", "unknown", "params", "setting", "number", "needs"],
    )
    async def test_settings_that_make_no_balancer_are_logged_once_and_calls_go_by_power_of_two(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, settings: dict[str, Any]
    ) -> None:
        with caplog.at_level(logging.ERROR, "ray.serve"):
            router = Router(monkeypatch, **settings)
            router.has("a", "b", "c")
            ranks = [await router.chooses(call(f"q{number}")) for number in range(30)]

        assert all(len(set(rank)) == 2 for (rank,) in ranks)
        assert {each for (rank,) in ranks for each in rank} == set("abc")
        assert len(caplog.records) == 1

    @pytest.mark.parametrize("balancer", ["Raises", "PicksNothing"])
    async def test_a_balancer_that_breaks_is_logged_once_and_calls_go_by_power_of_two(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, balancer: str
    ) -> None:
        router = Router(monkeypatch, balancing=f"{BALANCER}:{balancer}")
        router.has("a", "b", "c")

        with caplog.at_level(logging.ERROR, "ray.serve"):
            for number in range(10):
                one = call(f"q{number}")
                (rank,) = await router.chooses(one)
                assert len(set(rank)) == 2
                assert one.routing_context.should_backoff
                await router.sends(one, rank[0])
                router.ends(one, rank[0])

        assert len(caplog.records) == 1
        assert router.is_over

    @pytest.mark.parametrize("pending", [None, object()], ids=["none", "no_fields"])
    async def test_an_odd_request_is_routed_by_chance(self, router: Router, pending: object) -> None:
        (rank,) = await router.chooses(pending)
        assert len(set(rank)) == 2

    async def test_no_replicas_give_empty_ranks(self, router: Router) -> None:
        router.has()
        assert await router.chooses(call("q")) == [[]]

    @pytest.mark.parametrize("stats", [{"kv_tokens": "many"}, {"kv_tokens": None}])
    async def test_a_report_that_is_none_leaves_the_account_as_it_is(self, router: Router, stats: Any) -> None:
        router.has("a", "b", **stats)
        assert (await router.chooses(call("q")))[0] == ["a"]

    async def test_hooks_for_calls_and_replicas_that_nobody_knows(self, router: Router) -> None:
        router.router.on_request_completed(FakeReplicaId("z"), "unknown")
        router.router.on_replica_actor_died(FakeReplicaId("z"))
        router.router.on_replica_actor_unavailable(FakeReplicaId("z"))
        router.router.on_request_routed(call("q"), FakeReplicaId("z"), FakeResult())
        assert (await router.chooses(call("r")))[0] == ["a"]


class TestContractOfThePinnedRay:
    """What the router relies on. When this fails, Ray has changed; read its notes before mending it."""

    @for_each(
        ("method", "parameters"),
        [
            ("initialize_state", ["self", "kwargs"]),
            ("update_replicas", ["self", "replicas"]),
            ("choose_replicas", ["self", "candidate_replicas", "pending_request"]),
            ("on_request_routed", ["self", "pending_request", "replica_id", "result"]),
            ("on_request_completed", ["self", "replica_id", "internal_request_id"]),
            ("on_replica_actor_died", ["self", "replica_id"]),
            ("on_replica_actor_unavailable", ["self", "replica_id"]),
        ],
    )
    def test_a_hook_has_the_parameters_that_it_had(self, method: str, parameters: list[str]) -> None:
        assert list(inspect.signature(getattr(RequestRouter, method)).parameters) == parameters
        mixed_in = getattr(FIFOMixin, method, getattr(RequestRouter, method))
        assert list(inspect.signature(mixed_in).parameters) == parameters
        ours = list(inspect.signature(getattr(PolicyRouter, method)).parameters)
        assert ours == parameters or method == "initialize_state"

    def test_a_pending_request_has_what_is_read_of_it(self) -> None:
        from ray.serve._private.common import RequestMetadata
        from ray.serve._private.request_router.common import RequestRoutingContext

        fields = set(PendingRequest.__dataclass_fields__)
        assert {"args", "kwargs", "metadata", "future", "routing_context"} <= fields
        assert {"internal_request_id", "session_id"} <= set(RequestMetadata.__dataclass_fields__)
        assert "should_backoff" in RequestRoutingContext.__dataclass_fields__

    def test_a_running_replica_has_what_is_read_of_it(self) -> None:
        assert all(hasattr(RunningReplica, name) for name in ("replica_id", "max_ongoing_requests", "routing_stats"))

    def test_hooks_run_on_the_routers_loop_and_not_in_the_threads_of_ray(self) -> None:
        from ray.serve._private import router

        source = inspect.getsource(router.AsyncioRouter._register_completion_callback)
        assert "self._event_loop.call_soon_threadsafe(cb" in source


def test_serve_takes_the_router_as_its_page_configures_it() -> None:
    """``LLMConfig`` hands ``deployment_config`` on as it is, so what has to be right is Serve's own part of it."""
    page = (ROOT / "docs" / "how-to" / "serve-router.md").read_text(encoding="utf-8")
    found = re.search(r"```yaml\n(applications:\n  - name: llm\n.*?)```", page, re.DOTALL)
    assert found is not None
    (application,) = yaml.safe_load(found.group(1))["applications"]
    (model,) = application["args"]["llm_configs"]
    config = RequestRouterConfig(**model["deployment_config"]["request_router_config"])

    assert pydoc.locate(config.request_router_class) is PolicyRouter
    CallPlacement(PolicyChoice(name=config.request_router_kwargs["balancing"]))
    assert set(config.request_router_kwargs) <= {"balancing", "params", "work_from"}
