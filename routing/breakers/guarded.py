"""Policies behind breakers: one of any kind, and a queue, which would lose its requests without a list of them."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

from policies.contracts import QueueingPolicy
from policies.queueing.fcfs import Fcfs
from policies.views import RequestView
from routing.breakers.answers import ALSO_INSTEAD, MayAnswer
from routing.breakers.breaker import Breaker


def _anything(_: object) -> bool:
    return True


class GuardedPolicy:
    """A policy that is asked through a breaker. What else it has it still has.

    Args:
        policy: The policy.
        answers: What it may answer, by method.
        instead: Who answers in its place.
        breaker: Its breaker.
    """

    def __init__(self, policy: Any, answers: Mapping[str, MayAnswer], instead: Any, breaker: Breaker) -> None:
        self._policy = policy
        self._breaker = breaker
        for name, may_answer in answers.items():
            if callable(method := getattr(policy, name, None)):
                setattr(self, name, self._asked(method, may_answer, _method_of(instead, name)))
        if callable(observe := getattr(policy, "observe", None)):
            self.observe = partial(_told, breaker, observe)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def _asked(
        self, method: Callable[..., Any], may_answer: MayAnswer, instead: Callable[..., Any]
    ) -> Callable[..., Any]:
        breaker, (is_allowed, read) = self._breaker, may_answer

        def ask(*arguments: Any) -> Any:
            return breaker.ask(
                lambda: read(method(*arguments)),
                lambda answer: is_allowed(answer, *arguments),
                lambda: instead(*arguments),
            )

        return ask


def _method_of(instead: Any, name: str) -> Callable[..., Any]:
    method: Callable[..., Any] | None = getattr(instead, name, None)
    return method if method is not None else lambda *_: ALSO_INSTEAD[name]


def _told(breaker: Breaker, observe: Callable[..., None], *what: Any) -> None:
    breaker.tell(lambda: observe(*what))


class GuardedQueue:
    """A queue's policy that is asked through a breaker, and a list of the requests that it has.

    Once it fails it is asked nothing any more: what it has by then, and whether that is all, nobody knows. The queue is
    first come, first served from there on, until its policy is another one.

    Args:
        queue: The policy.
        breaker: Its breaker.
    """

    def __init__(self, queue: Any, breaker: Breaker) -> None:
        self._queue = queue
        self._breaker = breaker
        self._waiting = Fcfs()
        self._by_id: dict[str, RequestView] = {}
        self._is_given_up = False
        self.requires, self.consumes = queue.requires, queue.consumes
        if callable(observe := getattr(queue, "observe", None)):
            self.observe = partial(_told, breaker, observe)
        if callable(getattr(queue, "work_ahead_s", None)):
            self.work_ahead_s = self._work_ahead_s

    def push(self, request: RequestView, now_s: float) -> None:
        self._by_id[request.request_id] = request
        self._waiting.push(request, now_s)
        self._ask(lambda queue: queue.push(request, now_s), _anything, None)

    def peek(self, now_s: float) -> RequestView:
        first = self._waiting.peek(now_s)
        return self._by_id[self._ask(lambda queue: queue.peek(now_s), self._is_here, first).request_id]

    def pop(self, now_s: float) -> RequestView:
        first = self._waiting.peek(now_s)
        popped = self._by_id[self._ask(lambda queue: queue.pop(now_s), self._is_here, first).request_id]
        self._leave(popped)
        return popped

    def remove(self, request: RequestView) -> bool:
        is_here = request.request_id in self._by_id
        self._ask(lambda queue: queue.remove(request), lambda answer: bool(answer) is is_here, is_here)
        if is_here:
            self._leave(request)
        return is_here

    def __len__(self) -> int:
        return len(self._by_id)

    def _work_ahead_s(self, request: RequestView) -> float:
        ahead_s: float = self._ask(lambda queue: float(queue.work_ahead_s(request)), lambda said: said >= 0.0, 0.0)
        return ahead_s

    def _leave(self, request: RequestView) -> None:
        self._waiting.remove(request)
        del self._by_id[request.request_id]

    def _is_here(self, answer: Any) -> bool:
        return isinstance(answer, RequestView) and answer.request_id in self._by_id

    def _ask(self, call: Callable[[Any], Any], is_allowed: Callable[[Any], bool], instead: Any) -> Any:
        if self._is_given_up:
            return instead

        def give_up() -> Any:
            self._is_given_up = True
            return instead

        return self._breaker.ask(lambda: call(self._queue), is_allowed, give_up)


def guarded_queue(queue: QueueingPolicy, breaker: Breaker) -> QueueingPolicy:
    """A queue's policy behind a breaker."""
    return cast(QueueingPolicy, GuardedQueue(queue, breaker))
