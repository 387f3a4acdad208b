"""A record and the plain class that is made of it behave alike."""

import ast
import dataclasses
from typing import Any

import pytest

from loadtests.simulation.compiled.native_classes import UnknownRecord, with_native_records
from tests.tables import for_each

STRUCT = """
import msgspec
from collections.abc import Mapping

class Sent(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag=True):
    \"\"\"Something was sent.\"\"\"

    to: str
    tokens: int = 3
    held: dict[str, int] = msgspec.field(default_factory=dict)
    late_s: float

    @property
    def is_late(self) -> bool:
        return self.late_s > 0
"""
DATACLASS = """
from dataclasses import dataclass, field, replace

@dataclass(frozen=True, slots=True)
class Sent:
    to: str
    tokens: int = 3
    permit: object = field(default=None, compare=False)
    cost: int = field(default=7, repr=False)

    def __post_init__(self) -> None:
        if self.tokens < 0:
            raise ValueError(self.tokens)

    def larger(self) -> "Sent":
        return replace(self, tokens=self.tokens + 1)
"""
MUTABLE = """
from dataclasses import dataclass, field

@dataclass(slots=True)
class Sent:
    to: str
    waiting: list[str] = field(default_factory=list)
    seen: dict[str, int] = field(init=False, repr=False, default_factory=dict)
"""


def both(source: str) -> tuple[Any, Any]:
    """The record as it is written, and what is made of it, run by the interpreter."""
    made = []
    for each in (source, with_native_records(source)):
        names: dict[str, Any] = {"__name__": __name__}
        exec(compile(each, "<source>", "exec", dont_inherit=True), names)
        made.append(names["Sent"])
    return made[0], made[1]


@for_each(
    ("source", "given"),
    [
        (STRUCT, {"to": "a", "late_s": 0.5}),
        (STRUCT, {"to": "a", "late_s": 0.0, "tokens": 9, "held": {"x": 1}}),
        (DATACLASS, {"to": "a"}),
        (DATACLASS, {"to": "b", "tokens": 4, "permit": "p", "cost": 2}),
        (MUTABLE, {"to": "a"}),
        (MUTABLE, {"to": "a", "waiting": ["b"]}),
    ],
)
def test_it_is_made_shown_compared_and_replaced_alike(source: str, given: dict[str, Any]) -> None:
    written, native = (cls(**given) for cls in both(source))

    names = [each.name for each in dataclasses.fields(native)]
    assert repr(native) == repr(written)
    assert [getattr(native, name) for name in names] == [getattr(written, name) for name in names]
    assert native == type(native)(**given)
    assert native != dataclasses.replace(native, to="somebody else") if "seen" not in names else True
    assert native != written


def test_what_is_not_compared_makes_no_difference_to_equality_and_hash() -> None:
    for cls in both(DATACLASS):
        assert cls("a", permit=1) == cls("a", permit=2)
        assert hash(cls("a", permit=1)) == hash(cls("a", permit=2))


def test_its_methods_and_its_checks_are_there() -> None:
    _, struct = both(STRUCT)
    _, native = both(DATACLASS)

    assert struct(to="a", late_s=1.0).is_late
    assert native("a").larger().tokens == 4
    with pytest.raises(ValueError, match="-1"):
        native("a", -1)


def test_what_is_made_by_a_factory_belongs_to_one_record() -> None:
    for cls in both(MUTABLE):
        one, other = cls("a"), cls("a")
        one.waiting.append("x")
        one.seen["x"] = 1
        assert (other.waiting, other.seen) == ([], {})


def test_replacing_a_struct_is_replacing_a_record() -> None:
    source = f"{STRUCT}\ndef later(sent: Sent) -> Sent:\n    return msgspec.structs.replace(sent, late_s=9.0)\n"
    names: dict[str, Any] = {"__name__": __name__}
    exec(with_native_records(source), names)

    assert names["later"](names["Sent"](to="a", late_s=0.0)).late_s == 9.0


@for_each(
    "source",
    [
        "import msgspec\nclass Sent(msgspec.Struct, omit_defaults=True):\n    to: str\n",
        "from dataclasses import dataclass\n@dataclass(order=True)\nclass Sent:\n    to: str\n",
        "from dataclasses import dataclass\n@dataclass(frozen=FROZEN)\nclass Sent:\n    to: str\n",
        "from dataclasses import dataclass, field\n@dataclass\nclass Sent:\n    to: str = field(hash=False)\n",
        "from dataclasses import dataclass\n@registered\n@dataclass\nclass Sent:\n    to: str\n",
    ],
)
def test_a_record_that_it_would_make_something_else_of_is_refused(source: str) -> None:
    with pytest.raises(UnknownRecord, match=r"Sent|to"):
        with_native_records(source)


def test_a_module_without_records_stays_as_it_is() -> None:
    source = "class Queue:\n    # waits\n    x = 1\n"

    assert with_native_records(source) == source


@for_each("base", ["list[int]", "dict[str, int]", "Sequence[int]"])
def test_a_class_that_extends_a_built_in_type_stays_pythons(base: str) -> None:
    made = with_native_records(f"from collections.abc import Sequence\nclass Queue({base}):\n    pass\n")

    assert "@_mypyc_attr(native_class=False)\nclass Queue" in made


def test_interpreted_classes_can_inherit_from_others_where_that_is_wanted() -> None:
    source = "from typing import Protocol\nclass View(Protocol):\n    x: int\nclass NoView:\n    pass\n"

    made = ast.parse(with_native_records(source, can_be_extended=True))

    decorated = [each.name for each in made.body if isinstance(each, ast.ClassDef) and each.decorator_list]
    assert decorated == ["NoView"]
    assert "allow_interpreted_subclasses=True" in ast.unparse(made)
