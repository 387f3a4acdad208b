import pytest

from tests.policy_doubles import a_request


def test_a_request_holds_its_prompt_and_its_whole_allowed_output() -> None:
    assert a_request(prompt_tokens=100, max_output_tokens=50).kv_tokens == 150


def test_a_view_cannot_be_written_to() -> None:
    with pytest.raises(AttributeError):
        a_request().prompt_tokens = 1  # type: ignore[misc]
