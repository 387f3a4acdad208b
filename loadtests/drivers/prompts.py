"""Token ids for planned requests: the text that their content numbers stand for, made when it is sent.

A plan says how long a prompt is and which of its units are whose text; a real engine wants tokens. Equal content
numbers become equal tokens, and everything else is text that nobody shares, so that a real prefix cache finds what a
simulated one finds.
"""

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from cluster.sim.traffic import Arrival, PlannedRequest, Traffic
from loadtests.schema.ranges import require
from loadtests.workloads.content import key_of, mixed
from routing.request.effects import Outcome

ORDINARY_TOKENS = range(5, 1000)
"""Token ids that stand for text in every vocabulary that is likely to be met, also in the tiny model's 1,024."""


class PromptTokens:
    """Makes prompts.

    Args:
        vocabulary: The ordinary tokens of the served model: ids that stand for text and for nothing special.
        salt: Names the run. Two runs with different salts share no text, so the second meets no warm prefix cache.

    Raises:
        ConfigError: Fewer than two tokens to choose from, or a step other than 1.
    """

    def __init__(self, vocabulary: range, salt: object = "") -> None:
        is_usable = vocabulary.step == 1 and len(vocabulary) > 1 and vocabulary.start >= 0
        require(is_usable, "vocabulary", vocabulary, "a range of at least two token ids, by steps of 1")
        self._first = vocabulary.start
        self._num = np.uint64(len(vocabulary))
        self._salt = salt
        self._content_key = np.uint64(key_of("content", salt))

    def of(self, request: PlannedRequest) -> list[int]:
        """The prompt of a request: the same for every request, the same in every process."""
        unit_tokens = request.content_unit_tokens
        num_units = min(len(request.content), request.prompt_tokens // unit_tokens) if unit_tokens else 0
        shared = np.array(request.content[:num_units], dtype=np.uint64) ^ self._content_key
        own = np.array([key_of("own", self._salt, request.logical_request)], dtype=np.uint64)
        num_shared_tokens = num_units * unit_tokens
        return [
            *self._tokens(shared, unit_tokens),
            *self._tokens(own, request.prompt_tokens - num_shared_tokens),
        ]

    def _tokens(self, keys: "np.ndarray[tuple[int], np.dtype[np.uint64]]", num_each: int) -> list[int]:
        numbers = (mixed(keys, 0, num_each) >> np.uint64(32)) % self._num
        tokens: list[int] = (numbers.astype(np.int64) + self._first).ravel().tolist()
        return tokens


class PromptsAlone:
    """Traffic whose content ends with its prompts: nobody's answer is found in a prefix cache.

    A real engine answers something else than the plan has its users repeat in their next turn. Simulated engines that
    are compared with real ones must not find planned answers either.

    Args:
        traffic: The clients.
    """

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic

    def arrivals(self) -> Iterator[Arrival]:
        """As the clients send them."""
        return map(_prompt_alone, self._traffic.arrivals())

    def on_end(self, request: PlannedRequest, outcome: Outcome, now_s: float) -> Sequence[Arrival]:
        """What follows, likewise."""
        return tuple(map(_prompt_alone, self._traffic.on_end(request, outcome, now_s)))


def _prompt_alone(arrival: Arrival) -> Arrival:
    request = arrival.request
    if not request.content:
        return arrival
    num_units = request.prompt_tokens // request.content_unit_tokens
    return Arrival(arrival.at_s, msgspec.structs.replace(request, content=request.content[:num_units]))
