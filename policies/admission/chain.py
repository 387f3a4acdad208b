"""Several admission policies in a row."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, cast

from policies.contracts import AdmissionPolicy, Learner, Need, StartPolicy
from policies.decisions import ADMIT, AdmissionDecision, Admit, Reject, StartDecision, Wait
from policies.errors import ConfigError
from policies.signals import NO_PERMITS, Permits, RequestSignal, Signal, permit_of, with_permit
from policies.views import BacklogView, RequestView

MakeLink = Callable[[int, str, Mapping[str, Any]], AdmissionPolicy]
"""Makes the link of a position, name and parameters, as the host makes every policy."""
FIELD = "policies.admission.params.policies"


class Chain:
    """May this request come in? Yes, if each of several policies says so.

    Rule: the policies are asked in order, and the first to refuse is the last to be asked. At the head of a queue
        those are asked that have something to say there: the first refusal counts, and if there is none, anybody's
        wish to wait does.
    State: that of its links.
    Consumes: what its links consume; each hears what it has named, and nothing else.
    Complexity: the sum of its links'.
    Failure mode: links know nothing of each other. One that learns from what it has let in learns from what all others
        have let in as well, so behind a strict link a lax one never sees the overload that it is there for.
    Source: the filter chains of servers and proxies.

    Args:
        policies: The links: names, or mappings with ``name`` and ``params``.
        make_link: Makes them.

    Raises:
        ConfigError: No links, or one that can't be made; the field names it.
    """

    requires: ClassVar[frozenset[Need]] = frozenset()
    consumes: ClassVar[frozenset[type[Signal]]] = frozenset()

    observe: Callable[[Signal], None]
    """There if a link consumes something."""
    start: Callable[[RequestView, BacklogView, float, Any], StartDecision]
    """There if a link has something to say at the head of a queue."""

    def __init__(self, *, policies: Sequence[str | Mapping[str, Any]], make_link: MakeLink) -> None:
        if not isinstance(policies, list | tuple) or not policies:
            raise ConfigError(FIELD, policies, "a list of at least one policy")
        self.links = [make_link(index, *_name_and_params(index, given)) for index, given in enumerate(policies)]
        self._starts = [cast(StartPolicy, link) for link in self.links if hasattr(link, "start")]
        self._observers: dict[type[Signal], list[Learner]] = {}
        for link in self.links:
            for kind in link.consumes:
                self._observers.setdefault(kind, []).append(cast(Learner, link))
        needs = frozenset[Need]().union(*(link.requires for link in self.links))
        vars(self).update(requires=needs, consumes=frozenset(self._observers))  # its own, in the place of the class's
        if self._observers:
            self.observe = self._tell
        if self._starts:
            self.start = self._may_start

    def decide(self, request: RequestView, backlog: BacklogView, now_s: float) -> AdmissionDecision:
        permits: Permits = NO_PERMITS
        for link in self.links:
            verdict = link.decide(request, backlog, now_s)
            if isinstance(verdict, Reject):
                return verdict
            if verdict.permit is not None:
                permits += ((link, verdict.permit),)
        return Admit(permits) if permits else ADMIT

    def _may_start(self, request: RequestView, backlog: BacklogView, now_s: float, permit: Any) -> StartDecision:
        answer: StartDecision = ADMIT
        for link in self._starts:
            verdict = link.start(request, backlog, now_s, permit_of(link, permit or NO_PERMITS))
            if isinstance(verdict, Reject):
                return verdict
            if isinstance(verdict, Wait):
                answer = verdict
        return answer

    def _tell(self, signal: Signal) -> None:
        for link in self._observers.get(type(signal), ()):
            if isinstance(signal, RequestSignal):
                link.observe(with_permit(signal, permit_of(link, signal.permit or NO_PERMITS)))
            else:
                link.observe(signal)


def _name_and_params(index: int, given: object) -> tuple[str, Mapping[str, Any]]:
    if isinstance(given, str):
        return given, {}
    allowed = "a name, or a mapping with `name` and, if need be, `params`"
    if not isinstance(given, Mapping) or "name" not in given or not given.keys() <= {"name", "params"}:
        raise ConfigError(f"{FIELD}.{index}", given, allowed)
    name, params = given["name"], given.get("params", {})
    if not isinstance(name, str) or not isinstance(params, Mapping):
        raise ConfigError(f"{FIELD}.{index}", given, allowed)
    return name, params
