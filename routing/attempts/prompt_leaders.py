"""Requests with one prompt, such as the choices of one: while nobody knows that it does no harm, one leads the others.

A prompt that replicas die of takes one with each request that has it. Where they come together, as a fan-out, each goes
to another replica, and no count of a request's own losses says in time that it was the prompt.
"""

import math
from collections import OrderedDict, deque
from enum import Enum, auto

from policies.views import Priority
from routing.config.spec import LeaderFirst
from routing.request.request import Attempt, Request

REMEMBERED_S = 120.0
"""How long after it was last heard of a prompt is remembered."""
MOST_PROMPTS = 65_536
"""Some 20 MB."""


class Turn(Enum):
    """What becomes of a request whose turn it would be to be enqueued."""

    GOES = auto()
    FOLLOWS = auto()
    """It waits until the leader has got further."""
    CONDEMNED = auto()
    """Replicas have died of its prompt."""


class _Prompt:
    """What is known of a prompt, and who waits for whom.

    Attributes:
        heard_at_s: When that was last changed.
        leader: The request that goes first; empty: the next one that comes does.
        followers: Those that wait for it.
        num_strikes: Replicas that were lost with it, one after the other, since it last did no harm.
        struck_at_s: When the last of them was.
        is_harmless: Whether it has been computed since then.
    """

    __slots__ = ("followers", "heard_at_s", "is_harmless", "leader", "num_strikes", "struck_at_s")

    def __init__(self, now_s: float) -> None:
        self.heard_at_s = now_s
        self.leader = ""
        self.followers: dict[str, Request] = {}
        self.num_strikes = 0
        self.struck_at_s = -math.inf
        self.is_harmless = False

    @property
    def is_needed(self) -> bool:
        """Whether a request leads or follows."""
        return bool(self.leader or self.followers)


_Key = tuple[int, Priority]
"""A prompt, and the class of its requests: none waits for one that matters less."""


class PromptLeaders:
    """Which of the requests with one prompt goes first.

    With ``SUSPECT`` requests go as they come until a replica is lost with one of them, or stands still with it, before
    it has got any further. From then on the prompt is a suspect: one request goes on with it and leads, and the others
    follow when its answer is complete. With ``ALWAYS`` the first one leads until its prompt is computed, whatever is
    known. A prompt that ``most_strikes`` replicas were lost with is condemned, and its requests are given up. Attempts
    that were under way together count as one: what took their replicas may have been something else, such as a rack.

    It knows the requests of its own gateway. Those that lead others wait in queues as all do; followers are in none.

    Args:
        mode: When a prompt's requests go one at a time.
        most_strikes: Replicas that a prompt may take.

    Attributes:
        is_on: Whether a request's turn depends on another one at all: it does on none as long as no replica is lost.
        released: Those that need not follow any longer, the first one first; whoever takes them places them anew.
    """

    def __init__(self, mode: LeaderFirst, most_strikes: int) -> None:
        self._prompts: OrderedDict[_Key, _Prompt] = OrderedDict()
        self.released: deque[Request] = deque()
        self.use(mode, most_strikes)

    def use(self, mode: LeaderFirst, most_strikes: int) -> None:
        """From here on these count; where nobody leads any more all followers are released."""
        self._mode = mode
        self._most_strikes = most_strikes
        if mode is LeaderFirst.NEVER:
            for prompt in self._prompts.values():
                self._release(prompt)
            self._prompts.clear()
        self.is_on = mode is LeaderFirst.ALWAYS or bool(self._prompts)

    @property
    def num_followers(self) -> int:
        """Requests that wait for another one with their prompt; O(prompts)."""
        return sum(len(prompt.followers) for prompt in self._prompts.values())

    def turn_of(self, request: Request, now_s: float) -> Turn:
        """Whether a request may be enqueued; one that follows is kept until it is released, or leaves."""
        if not request.view.prompt_id or request.is_answering or request.stage_index:
            return Turn.GOES
        prompt, request_id = self._find(request, now_s), request.view.request_id
        if prompt is None and self._mode is LeaderFirst.ALWAYS:
            prompt = self._remember(request, now_s)
        if prompt is None or prompt.is_harmless:
            return Turn.GOES
        if prompt.num_strikes >= self._most_strikes:
            return Turn.CONDEMNED
        if prompt.leader not in ("", request_id):
            prompt.followers[request_id] = request
            return Turn.FOLLOWS
        prompt.leader = request_id
        return Turn.GOES

    def is_suspect(self, request: Request, now_s: float) -> bool:
        """Whether replicas were lost with its prompt, and it has done no harm since."""
        prompt = self._find(request, now_s)
        return prompt is not None and prompt.num_strikes > 0

    def is_condemned(self, request: Request, now_s: float) -> bool:
        """Whether its prompt may take no more replicas."""
        prompt = self._find(request, now_s)
        return prompt is not None and prompt.num_strikes >= self._most_strikes

    def strike(self, request: Request, attempt: Attempt, now_s: float) -> None:
        """A replica was lost with an attempt, or stands still with it, before its request has got any further."""
        if self._mode is LeaderFirst.NEVER or not request.view.prompt_id:
            return
        prompt = self._find(request, now_s) or self._remember(request, now_s)
        if attempt.sent_at_s < prompt.struck_at_s:
            return
        prompt.num_strikes += 1
        prompt.struck_at_s = prompt.heard_at_s = now_s
        prompt.is_harmless = False
        prompt.leader = prompt.leader or request.view.request_id
        if prompt.num_strikes >= self._most_strikes:
            self._release(prompt)

    def get_further(self, request: Request, now_s: float, *, is_complete: bool) -> None:
        """A request's prompt is computed, or its answer is complete: a suspect is not cleared by less."""
        prompt = self._find(request, now_s)
        if prompt is None or prompt.is_harmless or (prompt.num_strikes and not is_complete):
            return
        self._release(prompt)
        if self._mode is LeaderFirst.ALWAYS:
            prompt.num_strikes, prompt.is_harmless, prompt.heard_at_s = 0, True, now_s
        else:
            self._drop(_key_of(request))

    def leave(self, request: Request) -> None:
        """A request is answered, or given up: if it was to go first, the next one is."""
        prompt = self._prompts.get(_key_of(request))
        if prompt is None or prompt.followers.pop(request.view.request_id, None) is not None:
            return
        if prompt.leader != request.view.request_id:
            return
        prompt.leader = next(iter(prompt.followers), "")
        if prompt.leader:
            self.released.append(prompt.followers.pop(prompt.leader))
        elif not prompt.num_strikes and not prompt.is_harmless:
            self._drop(_key_of(request))

    def _release(self, prompt: _Prompt) -> None:
        self.released.extend(prompt.followers.values())
        prompt.followers.clear()
        prompt.leader = ""

    def _find(self, request: Request, now_s: float) -> _Prompt | None:
        prompt = self._prompts.get(_key_of(request))
        if prompt is None or prompt.is_needed or now_s - prompt.heard_at_s <= REMEMBERED_S:
            return prompt
        self._drop(_key_of(request))
        return None

    def _remember(self, request: Request, now_s: float) -> _Prompt:
        prompt = self._prompts[_key_of(request)] = _Prompt(now_s)
        self.is_on = True
        self._forget(now_s)
        return prompt

    def _forget(self, now_s: float) -> None:
        """The oldest ones, as long as they are too old or too many; those that requests wait for stay."""
        while len(self._prompts) > 1:
            key, oldest = next(iter(self._prompts.items()))
            if oldest.is_needed:
                self._prompts.move_to_end(key)
                return
            if now_s - oldest.heard_at_s <= REMEMBERED_S and len(self._prompts) <= MOST_PROMPTS:
                return
            self._drop(key)

    def _drop(self, key: _Key) -> None:
        del self._prompts[key]
        self.is_on = self._mode is LeaderFirst.ALWAYS or bool(self._prompts)


def _key_of(request: Request) -> _Key:
    return request.view.prompt_id, request.view.priority
