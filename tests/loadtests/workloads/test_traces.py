import gzip
import hashlib
import json
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster import Seeds
from loadtests.workloads.clients import Clients
from loadtests.workloads.lengths import Uniform
from loadtests.workloads.traces import Trace, TraceReplay
from loadtests.workloads.workload import Workload
from policies import ConfigError
from tests.loadtests.sample_workloads import CHAT, requests_of
from tests.tables import for_each

TRACES = Path(__file__).parents[4] / "shared" / "traces"
HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
AZURE = (
    "2023-11-16 18:15:46.6805900,374,44",
    "2023-11-16 18:15:50.9951690,396,109",
    "2023-11-16 18:15:51.2224670,879,0",
    "2023-11-16 18:16:06.6805901,91,16",
)


def azure(folder: Path, *rows: str, header: str = HEADER, **options: Any) -> Trace:
    path = folder / "azure.csv"
    path.write_text("\r\n".join((header, *rows)) + "\r\n", encoding="utf-8", newline="")
    return Trace(name="azure", path=str(path), schema="azure", timeout_s=30, **options)


def mooncake_row(at_ms: float, prompt: object, output: object, ids: object) -> dict[str, object]:
    return {"timestamp": at_ms, "input_length": prompt, "output_length": output, "hash_ids": ids}


MOONCAKE = (
    mooncake_row(0, 1300, 500, [0, 1, 2]),
    mooncake_row(0, 1024, 490, [0, 3]),
    mooncake_row(3000, 600, 0, [0, 4]),
    mooncake_row(3000, 2000, 20, [0, 1, 5, 6]),
)


def mooncake(folder: Path, *rows: object, **options: Any) -> Trace:
    path = folder / "mooncake.jsonl"
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows), encoding="utf-8")
    return Trace(**{"name": "mooncake", "path": str(path), "schema": "mooncake", "timeout_s": 30, **options})


def replay(trace: Trace, until_s: float = inf, seed: int = 7) -> TraceReplay:
    return trace.replay(0, Seeds(seed), until_s)


def times_of(trace: Trace, seed: int = 7) -> list[float]:
    return [logical_request[0] for logical_request in replay(trace, seed=seed).logical_requests]


def test_azure_rows_become_requests_at_their_own_times(tmp_path: Path) -> None:
    requests = requests_of(azure(tmp_path, *AZURE))

    assert [each.scheduled_s for each in requests] == pytest.approx([0.0, 4.314579, 20.0000001], abs=1e-9)
    assert [each.prompt_tokens for each in requests] == [374, 396, 91]
    assert [each.output_tokens for each in requests] == [each.max_output_tokens for each in requests] == [44, 109, 16]
    assert all((each.timeout_s, each.content) == (30, ()) for each in requests)


def test_columns_are_found_by_name(tmp_path: Path) -> None:
    trace = azure(tmp_path, "44,x,374,2023-11-16 18:15:46", header="GeneratedTokens,Model, ContextTokens,TIMESTAMP")

    (request,) = requests_of(trace)

    assert (request.prompt_tokens, request.output_tokens) == (374, 44)


def test_mooncake_rows_become_requests_inside_their_bins(tmp_path: Path) -> None:
    requests = requests_of(mooncake(tmp_path, *MOONCAKE))
    by_prompt = {each.prompt_tokens: each for each in requests}

    assert sorted(by_prompt) == [1024, 1300, 2000]
    assert all(0 <= by_prompt[prompt].scheduled_s < 3 for prompt in (1024, 1300))
    assert 3 <= by_prompt[2000].scheduled_s < 6
    assert by_prompt[1300].output_tokens == 500


def test_equal_blocks_become_equal_content_for_whole_blocks_alone(tmp_path: Path) -> None:
    by_prompt = {each.prompt_tokens: each for each in requests_of(mooncake(tmp_path, *MOONCAKE))}
    first, second, third = (by_prompt[prompt].content for prompt in (1300, 1024, 2000))

    assert [len(first), len(second), len(third)] == [2, 2, 3]
    assert first[0] == second[0] == third[0]
    assert first[1] == third[1] != second[1]
    assert all(each.content_unit_tokens == 512 for each in by_prompt.values())
    assert all(0 <= unit < 2**60 for unit in first)


def test_two_traces_share_no_text(tmp_path: Path) -> None:
    one = {unit for each in requests_of(mooncake(tmp_path, *MOONCAKE)) for unit in each.content}
    other = {unit for each in requests_of(mooncake(tmp_path, *MOONCAKE, name="other")) for unit in each.content}

    assert len(one) == len(other) > 0
    assert not one & other


def test_jitter_is_seeded_uniform_and_in_order(tmp_path: Path) -> None:
    trace = mooncake(tmp_path, *(mooncake_row(3000 * (row // 100), 1, 1, [0]) for row in range(10_000)))

    times_s = times_of(trace)

    assert times_s == sorted(times_s)
    assert times_s == times_of(trace)
    assert times_s != times_of(trace, seed=8)
    assert np.histogram(np.array(times_s) % 3, 6, (0, 3))[0] == pytest.approx([1_667] * 6, abs=160)
    assert np.histogram(times_s, 100, (0, 300))[0].tolist() == [100] * 100


def test_a_row_that_is_dropped_moves_no_other(tmp_path: Path) -> None:
    whole = times_of(mooncake(tmp_path, *MOONCAKE[:2], mooncake_row(3000, 600, 9, [0, 4]), MOONCAKE[3]))
    dropped = times_of(mooncake(tmp_path, *MOONCAKE))

    assert set(dropped) < set(whole)


def test_every_row_is_accounted_for(tmp_path: Path) -> None:
    report = replay(azure(tmp_path, *AZURE, for_s=10.0, max_context_tokens=450)).report

    assert (report.rows_read, report.emitted, report.clamped) == (4, 2, 1)
    assert report.dropped == {"zero_tokens": 1, "after_end": 1}


@given(
    lengths=st.lists(st.tuples(st.integers(0, 3_000), st.integers(0, 500)), min_size=1, max_size=20),
    for_s=st.floats(0.1, 20),
    max_context_tokens=st.none() | st.integers(2, 3_000),
)
def test_rows_read_are_rows_emitted_and_dropped(
    tmp_path_factory: pytest.TempPathFactory,
    lengths: list[tuple[int, int]],
    for_s: float,
    max_context_tokens: int | None,
) -> None:
    rows = [
        mooncake_row(
            1000 * number,
            prompt,
            output,
            [0, *range(number * 10 + 1, number * 10 + -(-prompt // 512))][: -(-prompt // 512)],
        )
        for number, (prompt, output) in enumerate(lengths)
    ]
    trace = mooncake(tmp_path_factory.mktemp("trace"), *rows, for_s=for_s, max_context_tokens=max_context_tokens)

    logical_requests, report = replay(trace)

    assert report.rows_read == len(rows) == report.emitted + sum(report.dropped.values())
    assert report.emitted == len(logical_requests)
    assert 0 <= report.clamped <= report.emitted
    for _, _, prompt, (output, limit), _, content, _, _ in logical_requests:
        assert prompt >= 1
        assert 1 <= output <= limit
        assert len(content) == prompt // 512
        assert max_context_tokens is None or prompt + output <= max_context_tokens


def test_a_clamped_request_keeps_its_answer_and_the_beginning_of_its_prompt(tmp_path: Path) -> None:
    whole = {each.output_tokens: each for each in requests_of(mooncake(tmp_path, *MOONCAKE))}
    clamped = {
        each.output_tokens: each for each in requests_of(mooncake(tmp_path, *MOONCAKE, max_context_tokens=1_100))
    }

    assert {each.prompt_tokens + each.output_tokens for each in clamped.values()} == {1_100}
    assert clamped[20].content == whole[20].content[:2]
    assert clamped[500].prompt_tokens == 600


def test_an_answer_longer_than_the_context_is_cut_too(tmp_path: Path) -> None:
    requests = requests_of(mooncake(tmp_path, *MOONCAKE, max_context_tokens=10))

    assert {(each.prompt_tokens, each.output_tokens) for each in requests} == {(1, 9)}


def test_speed_divides_all_times(tmp_path: Path) -> None:
    slow, fast = times_of(mooncake(tmp_path, *MOONCAKE)), times_of(mooncake(tmp_path, *MOONCAKE, speed=4.0))

    assert [each * 4 for each in fast] == pytest.approx(slow)


def test_a_target_rate_sets_the_speed(tmp_path: Path) -> None:
    report = replay(azure(tmp_path, *AZURE, rate_per_s=3.0)).report

    assert report.source_rate_per_s == pytest.approx(3 / 20.0, rel=1e-6)
    assert report.speed == pytest.approx(20.0, rel=1e-6)
    assert times_of(azure(tmp_path, *AZURE, rate_per_s=3.0))[-1] == pytest.approx(1.0, rel=1e-6)


def test_a_replay_may_begin_later_and_ends_with_the_workload(tmp_path: Path) -> None:
    trace = azure(tmp_path, *AZURE, from_s=100.0)

    assert [each.scheduled_s for each in requests_of(trace)] == pytest.approx([100.0, 104.314579, 120.0000001])
    assert [each.scheduled_s for each in requests_of(trace, duration_s=110)] == pytest.approx([100.0, 104.314579])
    assert replay(trace, until_s=110).report.dropped == {"zero_tokens": 1, "after_end": 1}


def test_a_window_of_a_trace_is_a_trace_of_its_own(tmp_path: Path) -> None:
    trace = azure(tmp_path, *AZURE, rows_from_s=4.0, rows_until_s=20.0)

    assert [each.prompt_tokens for each in requests_of(trace)] == [396]
    assert replay(trace).report.rows_read == 2, "one of them without tokens"
    later = azure(tmp_path, *AZURE, rows_from_s=4.0, rate_per_s=2.0)
    assert [each.scheduled_s for each in requests_of(later)] == pytest.approx([0.0, 1.0])
    with pytest.raises(ConfigError, match="the last one is at 20"):
        replay(azure(tmp_path, *AZURE, rows_from_s=30.0))


@for_each("trace", [lambda folder: azure(folder, *AZURE), lambda folder: azure(folder, *AZURE, rate_per_s=3.0)])
def test_a_trace_of_twice_the_rate_takes_half_the_time(trace: Callable[[Path], Trace], tmp_path: Path) -> None:
    its = trace(tmp_path)

    assert np.allclose(times_of(its.scaled(2.0)), np.array(times_of(its)) / 2, atol=1e-6)


def test_rows_out_of_order_are_sent_in_order_of_time(tmp_path: Path) -> None:
    requests = requests_of(azure(tmp_path, *AZURE[::-1]))

    assert [each.prompt_tokens for each in requests] == [374, 396, 91]
    assert requests[0].scheduled_s == 0


def test_drawn_limits_are_never_below_the_answer(tmp_path: Path) -> None:
    requests = requests_of(azure(tmp_path, *AZURE, max_output_tokens=Uniform(least_tokens=50, most_tokens=60)))

    assert [each.max_output_tokens >= max(50, each.output_tokens) for each in requests] == [True] * 3


def test_limits_leave_room_for_the_prompt_in_the_context(tmp_path: Path) -> None:
    limits = Uniform(least_tokens=500, most_tokens=600)
    requests = requests_of(mooncake(tmp_path, *MOONCAKE, max_output_tokens=limits, max_context_tokens=1_540))

    assert all(each.output_tokens <= each.max_output_tokens for each in requests)
    assert max(each.prompt_tokens + each.max_output_tokens for each in requests) == 1_540
    assert any(each.max_output_tokens > each.output_tokens for each in requests)


def test_a_trace_is_one_class_beside_others(tmp_path: Path) -> None:
    trace = azure(tmp_path, *AZURE)
    clients = Clients(Workload(classes=(CHAT, trace), duration_s=30), Seeds(7))
    requests = [arrival.request for arrival in clients.arrivals()]

    assert sum(each.traffic_class == 1 for each in requests) == 3
    assert [each.logical_request for each in requests] == list(range(len(requests)))
    assert [each.scheduled_s for each in requests] == sorted(each.scheduled_s for each in requests)


def test_a_packed_trace_is_the_same_trace(tmp_path: Path) -> None:
    plain = mooncake(tmp_path, *MOONCAKE)
    data = Path(plain.path).read_bytes()
    packed = tmp_path / "mooncake.jsonl.gz"
    packed.write_bytes(gzip.compress(data))

    sha256 = hashlib.sha256(data).hexdigest()
    trace = mooncake(tmp_path, *MOONCAKE, sha256=sha256)

    assert replay(Trace(name="mooncake", path=str(packed), schema="mooncake", timeout_s=30, sha256=sha256)) == replay(
        trace
    )


def test_another_file_than_the_one_named_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="sha256: got 'abc'"):
        replay(azure(tmp_path, *AZURE, sha256="abc"))


@for_each(
    ("header", "row", "message"),
    [
        ("TIMESTAMP,ContextTokens", AZURE[0], r"line 1: .*ContextTokens, GeneratedTokens"),
        (HEADER, "2023-11-16 18:15:46,374", r"line 3: .*3 columns"),
        (HEADER, "16/11/2023,374,44", r"line 3, column TIMESTAMP: got '16/11/2023'; allowed: a date and time"),
        (HEADER, "2023-13-16 18:15:46,374,44", r"line 3, column TIMESTAMP: .*a date and time"),
        (HEADER, "2023-11-16 18:15:46,many,44", r"line 3, column ContextTokens: got 'many'; allowed: a whole number"),
        (HEADER, "2023-11-16 18:15:46,374,-1", r"line 3, column GeneratedTokens: got '-1'; allowed: a whole number"),
    ],
)
def test_a_malformed_table_is_refused_with_file_line_and_column(
    tmp_path: Path, header: str, row: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=r"azure\.csv, " + message):
        replay(azure(tmp_path, AZURE[0], row, header=header))


@for_each(
    ("row", "message"),
    [
        ("{", "line 2: .*a JSON object"),
        ("[1]", "line 2: .*a JSON object"),
        (mooncake_row(-1, 10, 1, [0]), "line 2, column timestamp: got -1; allowed: milliseconds"),
        (mooncake_row(0, "ten", 1, [0]), "line 2, column input_length: got 'ten'; allowed: a whole number"),
        (mooncake_row(0, 10, 1.5, [0]), "line 2, column output_length: got 1.5; allowed: a whole number"),
        (mooncake_row(0, 10, None, [0]), "line 2, column output_length: got None; allowed: a whole number"),
        (mooncake_row(0, 1025, 1, [0, 1]), "line 2, column hash_ids: .*a list of 3 ids, one for each 512 tokens"),
        (mooncake_row(0, 10, 1, ["a"]), "line 2, column hash_ids: .*a list of 1 ids"),
        (mooncake_row(0, 1024, 1, [7, 1]), "line 2, column hash_ids: got 1; allowed: ids that follow the same id"),
    ],
)
def test_malformed_lines_are_refused_with_file_line_and_column(tmp_path: Path, row: object, message: str) -> None:
    with pytest.raises(ConfigError, match=r"mooncake\.jsonl, " + message):
        replay(mooncake(tmp_path, MOONCAKE[0], row))


def test_a_file_that_cannot_be_read_or_is_empty_is_refused(tmp_path: Path) -> None:
    (tmp_path / "broken.gz").write_bytes(b"no gzip")
    for path in (tmp_path / "missing", tmp_path / "broken.gz"):
        with pytest.raises(ConfigError, match="path"):
            replay(Trace(name="a", path=str(path), schema="azure", timeout_s=1))
    with pytest.raises(ConfigError, match="at least one row"):
        replay(azure(tmp_path))


def test_a_single_row_has_no_rate_to_scale(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="rate_per_s"):
        replay(azure(tmp_path, AZURE[0], rate_per_s=1.0))


@for_each(
    ("options", "field"),
    [
        ({"schema": "burst"}, "schema"),
        ({"name": ""}, "name"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"speed": 0}, "speed"),
        ({"speed": 2.0, "rate_per_s": 3.0}, "speed"),
        ({"rate_per_s": 0}, "rate_per_s"),
        ({"max_output_tokens": "most"}, "max_output_tokens"),
        ({"max_context_tokens": 1}, "max_context_tokens"),
        ({"rows_from_s": -1}, "rows_from_s"),
        ({"rows_from_s": 5, "rows_until_s": 5}, "rows_until_s"),
        ({"from_s": -1}, "from_s"),
        ({"for_s": 0}, "for_s"),
    ],
)
def test_a_wrong_value_is_named(tmp_path: Path, options: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        mooncake(tmp_path, **options)

    assert caught.value.field == field


def real(name: str, schema: str, sha256: str) -> Trace:
    path = TRACES / name
    if not path.exists():
        pytest.skip(f"{name} is not there")
    return Trace(name=schema, path=str(path), schema=schema, timeout_s=30, sha256=sha256)


def real_azure() -> Trace:
    sha256 = "2f1e5b666d4e3055fdbba98598ce2ec307767b9064e03e2fa46676dbcc7d0bf8"
    return real("azure2023_conv.csv", "azure", sha256)


def real_mooncake() -> Trace:
    sha256 = "b8cbb061a85206d729d91cdc2981f43c9e0d99209dce588d3af5f7934408b9df"
    return real("mooncake_conversation_trace.jsonl.gz", "mooncake", sha256)


@pytest.mark.parametrize(
    ("trace", "rows", "rate_per_s", "cv", "prompt_p50"),
    [(real_azure, 19_366, 5.53, 1.09, 1020), (real_mooncake, 12_031, 3.40, 1.01, 6909)],
    ids=["azure", "mooncake"],
)
def test_a_real_trace_has_its_published_geometry(
    trace: Callable[[], Trace], rows: int, rate_per_s: float, cv: float, prompt_p50: int
) -> None:
    logical_requests, report = replay(trace())
    gaps_s = np.diff([logical_request[0] for logical_request in logical_requests])

    assert (report.rows_read, report.emitted, report.clamped) == (rows, rows, 0)
    assert report.source_rate_per_s == pytest.approx(rate_per_s, abs=0.005)
    assert gaps_s.std() / gaps_s.mean() == pytest.approx(cv, abs=0.02)
    assert np.median([logical_request[2] for logical_request in logical_requests]) == prompt_p50


def test_mooncakes_prefixes_are_shared_as_published() -> None:
    """Ideal hit 36.6 % of all blocks; 38.2 % of the whole ones."""
    seen: set[int] = set()
    hits = blocks = 0
    for logical_request in replay(real_mooncake()).logical_requests:
        blocks += len(logical_request[5])
        hits += len(seen.intersection(logical_request[5]))
        seen.update(logical_request[5])

    assert hits / blocks == pytest.approx(0.382, abs=0.001)
