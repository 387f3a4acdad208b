from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies import ConfigError
from routing.sizing.length_log import LoggedRequest, read_log, write_log
from tests.routing.length_cases import LOGGED
from tests.tables import for_each

WHOLE = '{"prompt_tokens": 5, "max_output_tokens": 10, "output_tokens": 3}'


def is_writable(request: LoggedRequest) -> bool:
    return request.tenant.isprintable() and request.output_tokens <= request.max_output_tokens


@given(requests=st.lists(LOGGED.filter(is_writable), max_size=5))
def test_a_log_comes_back_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, requests: list[LoggedRequest]
) -> None:
    path = tmp_path_factory.mktemp("log") / "log.jsonl"
    write_log(path, requests)

    assert read_log(path) == requests


def test_tenant_and_words_may_be_left_out(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(f"{WHOLE}\n\n{WHOLE}", encoding="utf-8")

    assert read_log(path) == [LoggedRequest(prompt_tokens=5, max_output_tokens=10, output_tokens=3)] * 2


@for_each(
    "line",
    [
        "no JSON",
        "[]",
        WHOLE.replace("5", "0"),
        WHOLE.replace("3", "-1"),
        WHOLE.replace("3", "3.5"),
        WHOLE.replace("3", "11"),
        WHOLE.replace("prompt_tokens", "prompt"),
        WHOLE.replace("}", ', "user": "a"}'),
        WHOLE.replace("}", ', "ngrams": [-1]}'),
    ],
)
def test_a_line_that_is_no_request_is_refused_by_its_number(tmp_path: Path, line: str) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(f"{WHOLE}\n{line}\n", encoding="utf-8")

    with pytest.raises(ConfigError) as caught:
        read_log(path)

    assert (caught.value.field, caught.value.value) == (f"{path}, line 2", line[:80])


def test_an_answer_beyond_its_bound_is_called_by_its_numbers(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(f"{WHOLE.replace('3', '10')}\n{WHOLE.replace('3', '11')}", encoding="utf-8")

    with pytest.raises(ConfigError, match=r"line 2: .*an answer of 11 tokens where 10 were allowed"):
        read_log(path)


def test_a_log_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read_log(tmp_path / "none.jsonl")

    assert caught.value.field == "log"
