"""A tenant guesses what another one has sent, by what an engine has cached: how often is it right?

The victim sends a prompt whose last two tokens nobody else knows; there are a hundred that they may be. The attacker
sends each of them and takes the one with the most cached tokens, and of several the one whose first token came soonest.
Among requests of one tenant's own the same guesses are right: that is the control.
"""

import random
import time
from collections.abc import Sequence

import httpx

from loadtests.machine.told_steps import Tell
from loadtests.studies.adversary.attack import Attack
from loadtests.studies.adversary.finding import Finding
from loadtests.studies.adversary.sender import Sender
from loadtests.studies.adversary.target import UNLIMITED, VICTIM, Target

NAME = "prefix oracle"
NUM_SECRETS, NUM_OF_ONES_OWN = 200, 10
NUM_CANDIDATES = 100
PROMPT_TOKENS = 256
"""A multiple of every block size, so that the secret completes a block."""
MOST_RIGHT = 7
"""Of 200 at one in a hundred; blind guesses are right more often in one of a thousand runs."""
LEAST_RIGHT_OF_ONES_OWN = 9
SEED = 25
PATIENCE_S = 60.0


def run(target: Target, sender: Sender, tell: Tell) -> list[Finding]:
    """Guesses all secrets, and some of the attacker's own."""
    with httpx.Client(base_url=target.running.url, timeout=PATIENCE_S) as http:
        oracle = _Oracle(http, target)
        tell(f"{NAME}: {NUM_OF_ONES_OWN} secrets of one's own")
        own = sum(oracle.is_right(UNLIMITED, SEED * 1000 + number) for number in range(NUM_OF_ONES_OWN))
        tell(f"{NAME}: {NUM_SECRETS} secrets of another tenant")
        others = sum(oracle.is_right(VICTIM, number) for number in range(NUM_SECRETS))
    return [
        Finding(
            attack=NAME,
            measured=f"secrets of its own that it guessed, of {NUM_OF_ONES_OWN}: the control",
            now=own,
            at_least=LEAST_RIGHT_OF_ONES_OWN,
        ),
        Finding(
            attack=NAME,
            measured=f"secrets of another tenant that it guessed, of {NUM_SECRETS}, at one in {NUM_CANDIDATES}",
            before="nearly all",
            now=others,
            at_most=MOST_RIGHT,
        ),
    ]


class _Oracle:
    """The attacker.

    Args:
        http: Its client.
        target: Whom it asks.
    """

    def __init__(self, http: httpx.Client, target: Target) -> None:
        self._http = http
        self._target = target

    def is_right(self, tenant: str, seed: int) -> bool:
        """Has a tenant send a secret, and guesses it."""
        rng = random.Random(seed)
        known = [rng.randrange(5, 1000) for _ in range(PROMPT_TOKENS - 2)]
        candidates = [(rng.randrange(5, 1000), rng.randrange(5, 1000)) for _ in range(NUM_CANDIDATES)]
        secret = rng.choice(candidates)
        self._ask(tenant, [*known, *secret])
        rng.shuffle(candidates)
        told = {each: self._ask(UNLIMITED, [*known, *each]) for each in candidates}
        return min(told, key=lambda each: told[each]) == secret

    def _ask(self, tenant: str, prompt: Sequence[int]) -> tuple[int, float]:
        """How many tokens were not cached, and how long the answer took: the less, the likelier it has been sent."""
        body = {"model": self._target.model, "prompt": [*prompt, 7], "max_tokens": 1, "temperature": 0.0}
        begun_s = time.perf_counter()
        answer = self._http.post("/v1/completions", json=body, headers=self._target.headers(tenant))
        took_s = time.perf_counter() - begun_s
        usage = answer.raise_for_status().json()["usage"]
        cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        return -cached_tokens, took_s


ATTACK = Attack(NAME, 2, run)
