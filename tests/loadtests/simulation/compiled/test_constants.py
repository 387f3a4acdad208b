"""Constants that compiled code does not have to look for."""

from pathlib import Path
from typing import Any

from loadtests.simulation.compiled.constants import enums_of, with_final_constants

ENUMS = {"fleet.roles": {"Role": frozenset({"PREFILL", "DECODE"})}}
SOURCE = """
import math
from typing import Any
from fleet.roles import Role, other

MOST = 5
LIMITS: tuple[int, ...] = (1, 2)
Plan = tuple[int, ...]
_by_id = other
ROLES = (Role.PREFILL,)


class Queue:
    ROLE = Role.PREFILL

    def takes(self, role: Role = Role.PREFILL) -> bool:
        NEAR = 3

        def inner() -> bool:
            return role is Role.DECODE

        return inner() or role is Role.PREFILL or Role.of(role) or self.Role.DECODE or NEAR > math.inf
"""


def test_constants_are_final_and_nothing_else_is() -> None:
    lines = with_final_constants(SOURCE, ENUMS).splitlines()

    assert "MOST: _Final = 5" in lines
    assert "LIMITS: _Final[tuple[int, ...]] = (1, 2)" in lines
    assert "Plan = tuple[int, ...]" in lines
    assert "_by_id = other" in lines
    assert "    ROLE = Role.PREFILL" in lines
    assert "        NEAR = 3" in lines


def test_members_that_functions_name_become_constants_behind_the_imports() -> None:
    lines = with_final_constants(SOURCE, ENUMS).splitlines()

    imported = lines.index("from fleet.roles import Role, other")
    assert lines[imported + 2 : imported + 4] == [
        "_Role_DECODE: _Final = Role.DECODE",
        "_Role_PREFILL: _Final = Role.PREFILL",
    ]
    assert "            return role is _Role_DECODE" in lines
    assert (
        "        return inner() or role is _Role_PREFILL or Role.of(role) or self.Role.DECODE or (NEAR > math.inf)"
        in lines
    )
    assert "    def takes(self, role: Role=Role.PREFILL) -> bool:" in lines


def test_the_enums_of_a_package_are_found_with_their_members(tmp_path: Path) -> None:
    (tmp_path / "fleet").mkdir()
    (tmp_path / "fleet/roles.py").write_text(
        "from enum import IntEnum, StrEnum\nclass Role(StrEnum):\n    A = 'a'\n    B = 'b'\nclass Rank(IntEnum):\n"
        "    FIRST = 0\n    @property\n    def next(self): return 1\nclass Queue:\n    LONG = 1\n",
        "utf-8",
    )

    enums = enums_of(tmp_path, ("fleet",))

    assert enums == {"fleet.roles": {"Role": frozenset({"A", "B"}), "Rank": frozenset({"FIRST"})}}


def test_a_module_does_what_it_did() -> None:
    source = "from enum import StrEnum\nMOST = 2\ndef twice(n: int) -> int:\n    return min(MOST, 2 * n)\n"
    names: dict[str, Any] = {}

    exec(with_final_constants(source, {}), names)

    assert [names["twice"](n) for n in (0, 1, 5)] == [0, 2, 2]
