"""Attacks deployments as strangers, clients and tenants would, and holds what comes of it against checks.

``python -m loadtests.studies.adversary [--only NAME ...] [--port N] [--save FOLDER]``
"""

import argparse
import json
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.text import Text

from loadtests.machine.systems import ROOT, provenance
from loadtests.machine.told_steps import Tell, told_steps
from loadtests.simulation.save_folder import make_folder
from loadtests.simulation.verdict import Verdict
from loadtests.studies.adversary.attack import Attack
from loadtests.studies.adversary.attacks import (
    half_requests,
    malformed,
    noisy_neighbour,
    policy_author,
    prefix_oracle,
    replicas_blamed,
    strangers,
)
from loadtests.studies.adversary.finding import Finding, table, verdict_of
from loadtests.studies.adversary.sender import Sender, sender
from loadtests.studies.adversary.target import EMULATED, VLLM, target

INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class _Setup:
    """A deployment, and what is tried against it.

    Args:
        config: What it is made from.
        args: What is laid over that.
        attacks: In this order; the one that is most of a burden for others is the last.
    """

    config: str
    args: Mapping[str, Any]
    attacks: Sequence[Attack]

    def chosen(self, names: Sequence[str]) -> Sequence[Attack]:
        """Those of these names."""
        return [each for each in self.attacks if each.name in names]


SETUPS: Mapping[str, _Setup] = {
    "emulated": _Setup(
        "emulated.yaml",
        EMULATED,
        (strangers.ATTACK, malformed.ATTACK, replicas_blamed.ATTACK, noisy_neighbour.ATTACK, half_requests.ATTACK),
    ),
    "policies": _Setup("emulated.yaml", policy_author.ARGS, (policy_author.ATTACK,)),
    "vllm": _Setup("unified-vllm.yaml", VLLM, (prefix_oracle.ATTACK,)),
}
ATTACKS = tuple(each.name for setup in SETUPS.values() for each in setup.attacks)
EXAMPLES = f"""\
attacks: {", ".join(ATTACKS)}

examples:
  python -m loadtests.studies.adversary
      all of them, against emulated engines and against vLLM; half an hour
  python -m loadtests.studies.adversary --only strangers --only malformed
      two of them, in a minute

It needs the machine to itself: what is measured is how late one tenant's tokens are because of another.

exit status:
  0    every check is met
  1    a check is missed
  2    nothing is proved: a deployment did not start, or nothing was judged
  130  interrupted; nothing that was started is left
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; see ``EXAMPLES`` for the exit status."""
    options = _parse(arguments)
    out, err = Console(highlight=False, width=None if sys.stdout.isatty() else 160), Console(stderr=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    make_folder(options.save)
    findings: list[Finding] = []
    try:
        with told_steps(err, _num_steps(options.only)) as tell, sender() as attacker:
            for name in SETUPS:
                for found in _attack(name, options, attacker, tell):
                    findings += found
    except (RuntimeError, OSError, httpx.HTTPError) as error:
        err.print(Text(f"adversary: {error}", style="bold red"))
        return Verdict.INVALID
    except KeyboardInterrupt:
        err.print("adversary: interrupted")
        return INTERRUPTED
    finally:
        _show(findings, options.save, out)
    return verdict_of(findings)


def _num_steps(names: Sequence[str]) -> int:
    """How often it is told what begins: each start, and each attack's own steps."""
    chosen = [attacks for setup in SETUPS.values() if (attacks := setup.chosen(names))]
    return len(chosen) + sum(each.num_steps for attacks in chosen for each in attacks)


def _attack(name: str, options: argparse.Namespace, attacker: Sender, tell: Tell) -> Iterator[list[Finding]]:
    """What comes of each chosen attack on one deployment; it is not started for none."""
    setup = SETUPS[name]
    chosen = setup.chosen(options.only)
    if not chosen:
        return
    tell(f"{name}: starting")
    with target(name, setup.config, setup.args, options.save, options.port) as attacked:
        for each in chosen:
            yield each.run(attacked, attacker, tell)


def _show(findings: Sequence[Finding], folder: Path, out: Console) -> None:
    if not findings:
        return
    out.print(table(findings))
    document = {**provenance(), "findings": [asdict(each) for each in findings]}
    (folder / "findings.json").write_text(json.dumps(document, indent=1) + "\n")
    out.print(f"adversary: {verdict_of(findings).name}")


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.studies.adversary",
        description=(__doc__ or "").partition("\n")[0],
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", action="append", choices=ATTACKS, metavar="NAME", help="this attack; may come again")
    folder = ROOT / ".run" / "adversary"
    parser.add_argument(
        "--save", type=Path, default=folder, metavar="FOLDER", help="for logs and findings (default: .run/adversary)"
    )
    parser.add_argument("--port", type=int, default=8360, help="where deployments answer (default: 8360)")
    options = parser.parse_args(arguments)
    options.only = options.only or list(ATTACKS)
    return options


if __name__ == "__main__":
    sys.exit(main())
