"""Several degradation policies at once."""

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, ClassVar, cast

from policies.contracts import DegradationPolicy, Learner, Need
from policies.decisions import AS_ASKED, Degradation
from policies.degradation.pressure import FIELD
from policies.errors import ConfigError
from policies.signals import Signal
from policies.views import BacklogView, RequestView

MakeLink = Callable[[int, str, Mapping[str, Any]], DegradationPolicy]
"""Makes the policy of a position, name and parameters, as the host makes every policy."""


class AllOf:
    """How may this request be answered more cheaply? In each of the ways that several policies know.

    Rule: all policies are asked, and the strictest of each bound counts: the shortest answer, the shortest time. The
        cache may be used if one of them says so, and the first to name a lane is followed.
    State: that of its policies.
    Consumes: what its policies consume; each hears what it has named, and nothing else.
    Complexity: the sum of its policies'.
    Failure mode: policies know nothing of each other, so what one of them saves has not made the queue any shorter
        when the next one is asked: together they give up more than either had to.
    Source: the conjunction of limits.

    Args:
        policies: Names, or mappings with ``name`` and ``params``.
        make_link: Makes them.

    Raises:
        ConfigError: No policies, or one that can't be made; the field names it.
    """

    requires: ClassVar[frozenset[Need]] = frozenset()
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset()

    observe: Callable[[Signal], None]
    """There if one of them consumes something."""

    def __init__(self, *, policies: Sequence[str | Mapping[str, Any]], make_link: MakeLink) -> None:
        if not isinstance(policies, list | tuple) or not policies:
            raise ConfigError(f"{FIELD}.policies", policies, "a list of at least one policy")
        self._links = [make_link(index, *_name_and_params(index, given)) for index, given in enumerate(policies)]
        needs = frozenset[Need]().union(*(link.requires for link in self._links))
        consumed = frozenset[type[Signal]]().union(*(link.consumes for link in self._links))
        vars(self).update(requires=needs, consumes=consumed)  # its own, in the place of the class's
        if consumed:
            self.observe = self._tell

    def decide(self, request: RequestView, backlog: BacklogView, now_s: float) -> Degradation:
        answers = [link.decide(request, backlog, now_s) for link in self._links]
        return reduce(_both, answers, AS_ASKED)

    def _tell(self, signal: Signal) -> None:
        for link in self._links:
            if type(signal) in link.consumes:
                cast(Learner, link).observe(signal)


def _both(one: Degradation, other: Degradation) -> Degradation:
    if AS_ASKED in (one, other):
        return other if one == AS_ASKED else one
    return Degradation(
        max_output_tokens=min(one.max_output_tokens, other.max_output_tokens),
        output_time_limit_s=min(one.output_time_limit_s, other.output_time_limit_s),
        may_use_cache=one.may_use_cache or other.may_use_cache,
        lane=one.lane or other.lane,
    )


def _name_and_params(index: int, given: object) -> tuple[str, Mapping[str, Any]]:
    if isinstance(given, str):
        return given, {}
    allowed = "a name, or a mapping with `name` and, if need be, `params`"
    if not isinstance(given, Mapping) or "name" not in given or not given.keys() <= {"name", "params"}:
        raise ConfigError(f"{FIELD}.policies.{index}", given, allowed)
    name, params = given["name"], given.get("params", {})
    if not isinstance(name, str) or not isinstance(params, Mapping):
        raise ConfigError(f"{FIELD}.policies.{index}", given, allowed)
    return name, params
