from typing import Any

import pytest
from pydantic import BaseModel

from deployments.openai.errors import ApiError
from deployments.openai.validation import validated
from tests.tables import for_each


class Order(BaseModel):
    """What is asked for."""

    dish: str
    number: int = 1


def test_fields_that_are_right_are_a_model() -> None:
    assert validated(Order, {"dish": "soup", "number": 2}) == Order(dish="soup", number=2)


@for_each(
    ("fields", "code", "param"),
    [
        ({}, "missing_required_parameter", "dish"),
        ({"dish": "soup", "number": "many"}, "invalid_value", "number"),
        ([], "invalid_value", None),
    ],
    ids=["missing", "wrong", "no_object"],
)
def test_a_field_that_is_not_there_or_wrong_is_named(fields: Any, code: str, param: str | None) -> None:
    with pytest.raises(ApiError) as caught:
        validated(Order, fields)
    assert (caught.value.status, caught.value.code, caught.value.param) == (400, code, param)
