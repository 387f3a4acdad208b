"""Which policies of a dispatcher are behind breakers: those that a configuration names by import path."""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar, cast

from policies.catalog import ALONE, PolicyChoice
from policies.contracts import PolicySet, QueueingPolicy
from policies.views import Role
from routing.breakers.answers import INSTEAD, answers_to
from routing.breakers.breaker import NO_WATCH, AskWatch, Breaker, OnFailure
from routing.breakers.guarded import GuardedPolicy, GuardedQueue, guarded_queue
from routing.config.parts import DispatcherParts
from routing.config.spec import DispatcherSpec
from routing.intake.planning import AlwaysDisaggregated, AlwaysUnified, Planner
from routing.request.stages import stages_served

BUDGET_S = 0.05
"""For a decision: a gateway does nothing else meanwhile, for any of its requests."""
_IMPORT_PATH = re.compile(r"[\w.]+:[\w.]+")


Part = TypeVar("Part")


class NoBreakers:
    """What policies raise is raised: for those who try them."""

    def around(self, parts: DispatcherParts, spec: DispatcherSpec) -> DispatcherParts:
        """The same parts."""
        return parts

    def part(self, question: str, part: Part, choice: PolicyChoice) -> Part:
        """The same part."""
        return part


class Breakers(NoBreakers):
    """A breaker for each policy of somebody's own; built-in ones answer for themselves.

    Args:
        on_failure: Is told of each failure.
        stopwatch: Seconds, monotonic.
        watch: Ends asks that take for ever.
    """

    def __init__(self, on_failure: OnFailure, stopwatch: Callable[[], float], watch: AskWatch = NO_WATCH) -> None:
        self._on_failure = on_failure
        self._stopwatch = stopwatch
        self._watch = watch

    def around(self, parts: DispatcherParts, spec: DispatcherSpec) -> DispatcherParts:
        """Parts whose policies are behind breakers; those that are already stay as they are, with their breakers."""
        return replace(parts, policies=self._policies(parts, spec), planner=self._planner(parts.planner, spec))

    def part(self, question: str, part: Part, choice: PolicyChoice) -> Part:
        """A lane classifier or guard, a length predictor or a prefix tracker; if somebody's own, behind a breaker."""
        return self._guarded(question, part, choice, INSTEAD[question]) if is_own(choice) else part

    def _planner(self, planner: Planner, spec: DispatcherSpec) -> Planner:
        if not is_own(spec.planner):
            return planner
        is_whole = Role.UNIFIED in stages_served(spec.pools, spec.whole_request_pools)
        instead = AlwaysUnified() if is_whole else AlwaysDisaggregated()
        return cast(Planner, self._guarded("planning", planner, spec.planner, instead))

    def _policies(self, parts: DispatcherParts, spec: DispatcherSpec) -> PolicySet:
        policies, chosen = parts.policies, spec.policies
        lanes = tuple(lane.name for lane in parts.access.lanes)
        changed: dict[str, Any] = {}
        for question in ALONE:
            choice: PolicyChoice = getattr(chosen, question)
            if is_own(choice):
                policy = getattr(policies, question)
                changed[question] = self._guarded(question, policy, choice, INSTEAD[question], lanes)
        if is_own(chosen.balancing):
            changed["balancers"] = {
                role: self._guarded("balancing", each, chosen.balancing, INSTEAD["balancing"])
                for role, each in policies.balancers.items()
            }
        if is_own(chosen.queueing):
            changed |= self._queues(policies, chosen.queueing)
        return replace(policies, **changed) if changed else policies

    def _queues(self, policies: PolicySet, choice: PolicyChoice) -> Mapping[str, Any]:
        def another(name: str) -> QueueingPolicy:
            return guarded_queue(policies.another_queue(name), self._breaker("queueing", choice))

        queues = {
            name: queue if isinstance(queue, GuardedQueue) else guarded_queue(queue, self._breaker("queueing", choice))
            for name, queue in policies.queues.items()
        }
        return {"queues": queues, "another_queue": another}

    def _guarded(
        self, question: str, policy: Any, choice: PolicyChoice, instead: Any, lanes: tuple[str, ...] = ()
    ) -> Any:
        if isinstance(policy, GuardedPolicy):
            return policy
        return GuardedPolicy(policy, answers_to(question, lanes), instead, self._breaker(question, choice))

    def _breaker(self, question: str, choice: PolicyChoice) -> Breaker:
        return Breaker(question, choice.name, self._on_failure, self._stopwatch, BUDGET_S, watch=self._watch)


def is_own(choice: PolicyChoice) -> bool:
    """Whether a policy is somebody's own, or has a part that is."""
    return _names_a_path(choice.name) or _names_a_path(choice.params)


def _names_a_path(value: object) -> bool:
    if isinstance(value, str):
        return _IMPORT_PATH.fullmatch(value) is not None
    if isinstance(value, Mapping):
        return any(map(_names_a_path, value.values()))
    return isinstance(value, list | tuple) and any(map(_names_a_path, value))
