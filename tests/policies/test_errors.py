import pickle

from policies import errors
from policies.errors import ConfigError, EngineError, InvariantViolation, RequestInvalid, ServingError
from tests.tables import for_each

ALL_ERRORS = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, ServingError)]


def test_a_config_error_names_field_value_and_what_is_allowed_and_survives_pickling() -> None:
    copy = pickle.loads(pickle.dumps(ConfigError("pools.decode", 0, "1 or more")))

    assert isinstance(copy, ConfigError)
    assert (copy.field, copy.value, copy.allowed) == ("pools.decode", 0, "1 or more")
    assert str(copy) == "pools.decode: got 0; allowed: 1 or more"


@for_each("param", ["max_tokens", None])
def test_an_invalid_request_survives_pickling(param: str | None) -> None:
    copy = pickle.loads(pickle.dumps(RequestInvalid("too long", param)))
    assert isinstance(copy, RequestInvalid)
    assert (copy.message, copy.param, str(copy)) == ("too long", param, "too long")


@for_each("kind", [*EngineError.__subclasses__(), EngineError, InvariantViolation, ServingError])
def test_every_other_error_survives_pickling_with_its_type(kind: type[ServingError]) -> None:
    copy = pickle.loads(pickle.dumps(kind("what happened")))
    assert type(copy) is kind
    assert str(copy) == "what happened"


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    assert errors.__doc__ is not None
    drawn = {word for line in errors.__doc__.splitlines() for word in line.split()[:2]}
    assert {each.__name__ for each in ALL_ERRORS} <= drawn
