"""Reading a foreign configuration field by field, so that nothing of it is passed over in silence."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from policies.errors import ConfigError

KINDS: Mapping[type, tuple[Any, str]] = {
    int: (int, "a whole number"),
    float: ((int, float), "a number"),
    str: (str, "a text"),
    list: (list, "a list"),
    dict: (Mapping, "a mapping"),
}
"""What a field may be, and how that is said."""
NO_COUNTERPART = "nothing: it has no counterpart here"


def _as_mapping(given: object) -> object:
    """A pydantic model is the mapping of what was set in it."""
    return given.model_dump(exclude_unset=True) if isinstance(given, BaseModel) else given


class TakenFields:
    """A mapping whose fields are taken one by one; what nobody has taken in the end is an error.

    Args:
        place: Where a user finds it; empty at the top.
        given: The mapping; nothing is an empty one.
        notes: Gets a line for each field that is left out without harm.

    Raises:
        ConfigError: It is no mapping.
    """

    def __init__(self, place: str, given: object, notes: list[str]) -> None:
        if given is not None and not isinstance(given, Mapping):
            raise ConfigError(place, given, "a mapping")
        self.place = place
        self._left = dict(given or {})
        self._notes = notes

    def place_of(self, name: str) -> str:
        """Where a user finds a field."""
        return ".".join(filter(None, (self.place, name)))

    def take(self, name: str, default: Any = None, kind: type = object) -> Any:
        """The field's value, of one kind of ``KINDS`` where one is given.

        Raises:
            ConfigError: Another kind.
        """
        value = self._left.pop(name, None)
        if value is None:
            return default
        if kind is not object and (isinstance(value, bool) or not isinstance(value, KINDS[kind][0])):
            raise ConfigError(self.place_of(name), value, KINDS[kind][1])
        return value

    def take_inner(self, name: str) -> "TakenFields":
        """A field that is a mapping itself."""
        return self.at(self.place_of(name), _as_mapping(self._left.pop(name, None)))

    def take_those_there(self, *names: str) -> dict[str, Any]:
        """Those of the fields that are given."""
        return {name: self._left.pop(name) for name in names if self._left.get(name) is not None}

    def take_rest(self) -> dict[str, Any]:
        """All that is left."""
        left, self._left = self._left, {}
        return left

    def at(self, place: str, given: object) -> "TakenFields":
        """Another mapping, whose notes are kept with these."""
        return TakenFields(place, given, self._notes)

    def note(self, name: str, why: str) -> None:
        """A field is left out without harm."""
        self._notes.append(f"{self.place_of(name)} is left out: {why}")

    def leave_out(self, *names: str, why: str) -> None:
        """Fields that change nothing here; a note says so where one is given."""
        for name in names:
            if self.take(name) is not None:
                self.note(name, why)

    def refuse(self, *names: str, allowed: str) -> None:
        """Raises ``ConfigError`` where one of these is given."""
        for name in names:
            value = self.take(name)
            if value is not None:
                raise ConfigError(self.place_of(name), value, allowed)

    def close(self, allowed: str = NO_COUNTERPART) -> None:
        """Raises ``ConfigError`` where a field is left."""
        self.refuse(*self._left, allowed=allowed)
