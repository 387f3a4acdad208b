"""What every attack is: a name, and what carries it out against a deployment."""

from collections.abc import Callable
from dataclasses import dataclass

from loadtests.machine.told_steps import Tell
from loadtests.studies.adversary.finding import Finding
from loadtests.studies.adversary.sender import Sender
from loadtests.studies.adversary.target import Target

Run = Callable[[Target, Sender, Tell], list[Finding]]


@dataclass(frozen=True, slots=True)
class Attack:
    """One of them.

    Args:
        name: Of it.
        num_steps: How often it tells what begins.
        run: Carries it out, and says what came of it.
    """

    name: str
    num_steps: int
    run: Run
