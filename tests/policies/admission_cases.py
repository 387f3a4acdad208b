"""Requests and signals for tests of admission policies."""

from typing import Any

from policies import Admit, Reject
from policies.decisions import AdmissionDecision, SheddingDecision, StartDecision
from policies.signals import Admitted, Answering, Ended, RequestSignal, Started, with_permit
from policies.views import BacklogView, Geometry, RequestView
from tests.policy_doubles import FakeBacklog

EMPTY = FakeBacklog()


def sized(
    request_id: str = "q",
    *,
    prefill_s: float = 0.1,
    decode_s: float = 0.0,
    output_tokens: int = 50,
    high_tokens: int = 100,
    tenant: str = "",
    lane: str = "all",
    arrival_s: float = 0.0,
    due_s: float = 1.0,
) -> RequestView:
    """A request whose first token is due ``due_s`` after it arrives."""
    geometry = Geometry(
        uncached_tokens=80,
        output_tokens=output_tokens,
        output_tokens_high=high_tokens,
        prefill_s=prefill_s,
        decode_s=decode_s,
    )
    return RequestView(
        request_id=request_id,
        prompt_tokens=100,
        max_output_tokens=400,
        arrival_s=arrival_s,
        deadline_s=arrival_s + 60.0,
        tenant=tenant,
        lane=lane,
        geometry=geometry,
        first_token_by_s=arrival_s + due_s,
    )


def admitted(request: RequestView, at_s: float = 0.0) -> Admitted:
    """It was let in."""
    return Admitted(request=request, at_s=at_s)


def started(request: RequestView, at_s: float = 0.0) -> Started:
    """It was sent to a replica."""
    return Started(request=request, at_s=at_s)


def answering(request: RequestView, at_s: float) -> Answering:
    """It has its first token."""
    return Answering(request=request, at_s=at_s)


def completed(request: RequestView, at_s: float, output_tokens: int = 50) -> Ended:
    """It was answered in full."""
    return Ended(request=request, is_completed=True, output_tokens=output_tokens, at_s=at_s)


def broke_off(request: RequestView, at_s: float) -> Ended:
    """It ended otherwise."""
    return Ended(request=request, is_completed=False, output_tokens=0, at_s=at_s)


class _Hosted:
    """Carries permits as a dispatcher does."""

    def __init__(self, policy: Any) -> None:
        self.policy = policy
        self._permits: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.policy, name)

    def decide(self, request: RequestView, backlog: BacklogView, now_s: float) -> AdmissionDecision | SheddingDecision:
        verdict: AdmissionDecision | SheddingDecision = self.policy.decide(request, backlog, now_s)
        if not isinstance(verdict, Reject):
            self._permits[request.request_id] = verdict.permit
        return verdict

    def start(self, request: RequestView, backlog: BacklogView, now_s: float) -> StartDecision:
        answer: StartDecision = self.policy.start(request, backlog, now_s, self._permits.get(request.request_id))
        return answer

    def observe(self, signal: RequestSignal) -> None:
        self.policy.observe(with_permit(signal, self._permits.get(signal.request.request_id)))


def hosted(policy: Any) -> Any:
    """A policy with a host that gives back what it gave to a request, with each later signal and at the start."""
    return _Hosted(policy)


def comes(policy: Any, request: RequestView, now_s: float = 0.0, backlog: BacklogView = EMPTY) -> bool:
    """Whether it is let in; if so, the policy hears of it."""
    verdict = policy.decide(request, backlog, now_s)
    if isinstance(verdict, Admit):
        policy.observe(with_permit(admitted(request, now_s), verdict.permit))
    return isinstance(verdict, Admit)
