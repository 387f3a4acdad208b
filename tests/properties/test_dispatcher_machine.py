"""Whatever happens, in whatever order: one answer for each request, and every slot comes back."""

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from policies import CATALOG, Priority, Reason, Role
from routing.request.request import PROGRESS_TOKENS
from tests.properties.scripted_host import HostParams, ScriptedHost

REPLICAS = ("a", "b", "c")
TOKENS = st.integers(min_value=1, max_value=5000)
POOL = st.dictionaries(st.sampled_from(REPLICAS), st.integers(min_value=1, max_value=2))
FAILURES = (Reason.REPLICA_LOST, Reason.ENGINE_ERROR, Reason.INVALID_REQUEST)


class DispatcherMachine(RuleBasedStateMachine):
    """Drives a dispatcher through a host that keeps its obligations and nothing else."""

    planner = "always_unified"
    whole_request_pools: tuple[str, ...] = ()
    ties = False

    @initialize(
        options=st.fixed_dictionaries(
            {
                "balancing": st.sampled_from(("least_work_left", "power_of_two", "random", "round_robin")),
                "queueing": st.sampled_from(sorted(CATALOG["queueing"])),
                "hedge_delay_s": st.sampled_from((None, 0.0, 0.5)),
                "degrades": st.booleans(),
                "preempts": st.booleans(),
                "ejects": st.booleans(),
                "ramp_stage_s": st.sampled_from((0.0, 0.4)),
                "waiting_room_s": st.sampled_from((0.0, 5.0)),
                "max_attempts": st.integers(min_value=1, max_value=5),
                "max_fruitless_losses": st.integers(min_value=1, max_value=5),
                "given_out_tokens": st.sampled_from((2, PROGRESS_TOKENS)),
                "retry_after_s": st.sampled_from((0.0, 0.7)),
            }
        ),
        data=st.data(),
    )
    def start(self, options: dict[str, Any], data: st.DataObject) -> None:
        pools = self.whole_request_pools
        self.host = ScriptedHost(HostParams(planner=self.planner, whole_request_pools=pools, ties=self.ties, **options))
        for role in self.host.roles:
            self._change(role, data.draw(POOL))

    @rule(prompt_tokens=TOKENS, max_output_tokens=TOKENS, budget_s=st.sampled_from((0.0, 1.0, 30.0)))
    def arrive(self, prompt_tokens: int, max_output_tokens: int, budget_s: float) -> None:
        self.host.arrive(prompt_tokens, max_output_tokens, budget_s)

    @precondition(lambda self: self.host.open)
    @rule(data=st.data())
    def accept(self, data: st.DataObject) -> None:
        attempt_id = self._draw_attempt(data)
        self.host.accept(attempt_id, self.host.open[attempt_id].replica_id)

    @precondition(lambda self: self.host.open)
    @rule(data=st.data())
    def accept_elsewhere(self, data: st.DataObject) -> None:
        attempt_id = self._draw_attempt(data)
        pool = self.host.replicas_beside(attempt_id)
        if pool:
            self.host.accept(attempt_id, data.draw(st.sampled_from(pool)))

    @precondition(lambda self: self.host.open)
    @rule(data=st.data())
    def first_token(self, data: st.DataObject) -> None:
        self.host.first_token(self._draw_attempt(data))

    @precondition(lambda self: self.host.decodes)
    @rule(data=st.data())
    def begin_answer(self, data: st.DataObject) -> None:
        self.host.begin_answer(data.draw(st.sampled_from(self.host.decodes)))

    @precondition(lambda self: self.host.open)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        self.host.finish(self._draw_attempt(data))

    @precondition(lambda self: self.host.open)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        attempt_id = self._draw_attempt(data)
        sent = self.host.open[attempt_id]
        reasons: tuple[Reason, ...] = FAILURES
        if sent.send.stage is Role.DECODE:
            reasons += (Reason.KV_TRANSFER_FAILED,)
        if sent.is_cancelled:
            reasons += (Reason.CLIENT_GONE,)
        self.host.fail(attempt_id, data.draw(st.sampled_from(reasons)), was_taken=data.draw(st.booleans()))

    @precondition(lambda self: self.host.undecided)
    @rule(data=st.data())
    def give_way(self, data: st.DataObject) -> None:
        self.host.give_way(data.draw(st.sampled_from(self.host.undecided)))

    @precondition(lambda self: self.host.ended)
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        self.host.repeat(data.draw(st.sampled_from(sorted(self.host.ended))))

    @precondition(lambda self: self.host.stories)
    @rule(data=st.data())
    def client_goes(self, data: st.DataObject) -> None:
        self.host.client_goes(data.draw(st.sampled_from(sorted(self.host.stories))))

    @precondition(lambda self: self.host.timers)
    @rule(data=st.data())
    def fire(self, data: st.DataObject) -> None:
        self.host.fire(data.draw(st.sampled_from(sorted(self.host.timers))))

    @rule(data=st.data(), slots_by_name=POOL)
    def change_fleet(self, data: st.DataObject, slots_by_name: dict[str, int]) -> None:
        self._change(data.draw(st.sampled_from(self.host.roles)), slots_by_name)

    @rule(data=st.data(), work_tokens=TOKENS)
    def report(self, data: st.DataObject, work_tokens: int) -> None:
        role = data.draw(st.sampled_from(self.host.roles))
        self.host.report(f"{role}-{data.draw(st.sampled_from(REPLICAS))}", work_tokens)

    @rule(seconds=st.sampled_from((0.1, 1.0, 6.0)))
    def pass_time(self, seconds: float) -> None:
        self.host.now_s += seconds

    @invariant()
    def both_sides_agree(self) -> None:
        self.host.check()

    def teardown(self) -> None:
        if hasattr(self, "host") and self.host.is_intact:
            self.host.wind_up()
            self.host.check_the_end()

    def _draw_attempt(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(self.host.open)))

    def _change(self, role: Role, slots_by_name: dict[str, int]) -> None:
        self.host.change_fleet(role, {f"{role}-{name}": slots for name, slots in slots_by_name.items()})


class DisaggregatedMachine(DispatcherMachine):
    """The same with a handoff in every request."""

    planner = "always_disaggregated"


class MixedMachine(DispatcherMachine):
    """Long prompts are handed off, and replicas of every pool take short ones whole."""

    planner = "tests.policy_doubles:LongPromptsApart"
    whole_request_pools = ("prefill", "decode")


class PreemptingMachine(DispatcherMachine):
    """One place on a replica, and every other request is sheddable."""

    @initialize(
        options=st.fixed_dictionaries(
            {
                "hedge_delay_s": st.sampled_from((None, 0.0)),
                "max_attempts": st.integers(1, 3),
                "retry_after_s": st.sampled_from((0.0, 0.7)),
                "degrades": st.booleans(),
            }
        )
    )
    def start(self, options: dict[str, Any]) -> None:
        two = (Priority.SHEDDABLE, Priority.CRITICAL)
        self.host = ScriptedHost(
            HostParams(
                planner=self.planner, queueing="priority", preempts=True, ties=self.ties, priorities=two, **options
            )
        )
        for role in self.host.roles:
            self._change(role, {"a": 1, "b": 1})

    @rule()
    def arrive_and_answer(self) -> None:
        """What it takes for there to be somebody to stop: prompts are computed, and all that is open answers."""
        self.host.arrive(100, 50, 30.0)
        for attempt_id in sorted(name for name, each in self.host.open.items() if each.send.stage is Role.PREFILL):
            self.host.finish(attempt_id)
        for attempt_id in sorted(self.host.open):
            self.host.first_token(attempt_id)

    @precondition(lambda self: any(each.is_preempted for each in self.host.open.values()))
    @rule(data=st.data())
    def stop(self, data: st.DataObject) -> None:
        told = sorted(name for name, each in self.host.open.items() if each.is_preempted)
        self.host.fail(data.draw(st.sampled_from(told)), Reason.CLIENT_GONE)


class PreemptingDecodesMachine(PreemptingMachine):
    """The same with a handoff in every request."""

    planner = "always_disaggregated"


class TiedMachine(DispatcherMachine):
    """Second attempts share a claim with the first, and one of the two is withdrawn."""

    ties = True


class TiedPrefillsMachine(TiedMachine):
    """The same with a handoff in every request."""

    planner = "always_disaggregated"


class TiedAndPreemptedMachine(PreemptingMachine):
    """Pairs, one place on a replica, and every other request is sheddable."""

    ties = True


SETTINGS = settings(
    max_examples=200,
    stateful_step_count=60,
    derandomize=True,
    deadline=None,
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)


MACHINES = (
    DispatcherMachine,
    DisaggregatedMachine,
    MixedMachine,
    PreemptingMachine,
    PreemptingDecodesMachine,
    TiedMachine,
    TiedPrefillsMachine,
    TiedAndPreemptedMachine,
)


@pytest.mark.timeout(900)  # seconds when it passes; a failure takes minutes to be reduced to its shortest dialogue
@pytest.mark.parametrize("machine", MACHINES, ids=lambda each: each.__name__)
def test_every_request_is_answered_once_and_every_slot_comes_back(machine: type[DispatcherMachine]) -> None:
    run_state_machine_as_test(machine, settings=SETTINGS)


def test_blocks_that_were_not_to_be_had_are_made_anew_elsewhere_even_if_that_takes_waiting() -> None:
    host = ScriptedHost(HostParams(planner="always_disaggregated", hedge_delay_s=0.0))
    host.change_fleet(Role.PREFILL, {"prefill-a": 1, "prefill-b": 1})
    host.change_fleet(Role.DECODE, {"decode-a": 1})
    host.arrive(prompt_tokens=1, max_output_tokens=1, budget_s=30.0)
    host.fire("r0.0:hedge")
    host.finish("r0.0")
    host.fail("r0.2", Reason.KV_TRANSFER_FAILED)
    host.check()
    assert list(host.open) == ["r0.1"], "the beaten one, which holds the other replica's slot"

    host.fail("r0.1", Reason.CLIENT_GONE)

    assert host.open["r0.3"].replica_id == "prefill-b"
    host.wind_up()
    host.check_the_end()
