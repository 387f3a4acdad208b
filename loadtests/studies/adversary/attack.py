"""What every attack is: a name, and something that tries it against a deployment."""

from collections.abc import Callable
from dataclasses import dataclass

from loadtests.machine.told_steps import Tell
from loadtests.studies.adversary.finding import Finding
from loadtests.studies.adversary.sender import Sender
from loadtests.studies.adversary.target import Target

Try = Callable[[Target, Sender, Tell], list[Finding]]


@dataclass(frozen=True, slots=True)
class Attack:
    """One of them.

    Args:
        name: Of it.
        num_steps: How often it tells what begins.
        attempt: Tries it, and says what came of it.
    """

    name: str
    num_steps: int
    attempt: Try
