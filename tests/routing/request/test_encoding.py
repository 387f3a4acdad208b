"""Events and effects can be written down and read back."""

from collections.abc import Mapping
from enum import Enum
from inspect import signature
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing import Effect, Event, FirstTokenReceived
from tests.tables import for_each

FORMS = (msgspec.msgpack, msgspec.json)
KINDS = [*get_args(Event), *get_args(Effect)]
PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    str: st.text(max_size=8),
    bool: st.booleans(),
    int: st.integers(-(2**63), 2**64 - 1),
    float: st.floats(allow_nan=False, allow_infinity=False),
    type(None): st.none(),
}


def anything_of(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a type, every field of it drawn, those with defaults included."""
    if kind in PLAIN:
        return PLAIN[kind]
    if isinstance(kind, UnionType):
        return st.one_of([anything_of(each) for each in get_args(kind)])
    if get_origin(kind) is Mapping:
        return st.dictionaries(*map(anything_of, get_args(kind)), max_size=2)
    if get_origin(kind) is tuple:
        return _any_tuple(*get_args(kind))
    if issubclass(kind, Enum):
        return st.sampled_from(kind)
    hints = get_type_hints(kind)
    return st.builds(kind, **{name: anything_of(hints[name]) for name in signature(kind).parameters})


def _any_tuple(first: Any, *others: Any) -> st.SearchStrategy[Any]:
    if others == (Ellipsis,):
        return st.lists(anything_of(first), max_size=2).map(tuple)
    return st.tuples(*map(anything_of, (first, *others)))


def an_example_of(kind: Any) -> Any:
    """The same one every time."""
    fixed: dict[Any, Any] = {str: "q", bool: True, int: 7, float: 1 / 3}
    if kind in fixed:
        return fixed[kind]
    if isinstance(kind, UnionType):
        return an_example_of(get_args(kind)[0])
    if get_origin(kind) is Mapping:
        return {an_example_of(get_args(kind)[0]): an_example_of(get_args(kind)[1])}
    if get_origin(kind) is tuple:
        return tuple(an_example_of(each) for each in get_args(kind) if each is not Ellipsis)
    if issubclass(kind, Enum):
        return next(iter(kind))
    hints = get_type_hints(kind)
    return kind(**{name: an_example_of(hints[name]) for name in signature(kind).parameters})


ONE_OF_EACH = st.tuples(*map(anything_of, KINDS))


@given(values=ONE_OF_EACH)
def test_each_comes_back_as_it_was(values: tuple[Event | Effect, ...]) -> None:
    """Equal, of the same type, and encoded again to the same bytes."""
    for value in values:
        union: Any = Event if type(value) in get_args(Event) else Effect
        for form in FORMS:
            encoded = form.encode(value)
            decoded = form.decode(encoded, type=union)

            assert type(decoded) is type(value)
            assert decoded == value
            assert form.encode(decoded) == encoded


@for_each("kind", KINDS)
def test_nobody_can_write_to_it(kind: Any) -> None:
    assert kind.__struct_config__.frozen
    with pytest.raises(AttributeError):
        setattr(kind(**dict.fromkeys(kind.__struct_fields__)), next(iter(kind.__struct_fields__), "anything"), None)


@for_each("form", FORMS)
def test_it_is_written_down_under_its_name(form: Any) -> None:
    assert form.decode(form.encode(FirstTokenReceived(attempt_id="q.0"))) == {
        "type": "FirstTokenReceived",
        "attempt_id": "q.0",
    }
