"""A log replays to the same effects, byte for byte; a log of anything else does not."""

import io
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.event_log.frames import CLOSED, LogReader, LogRecord, encode_answer, encode_header, encode_record, frame
from cluster.event_log.replay import ReplayResult, main, replay
from policies import CATALOG, ConfigError, Need, PolicyChoice, PolicySpec, Quota, Reason, Role, TenantTerms
from routing import (
    Arrived,
    Dispatcher,
    DispatcherSpec,
    Effect,
    Event,
    FleetChanged,
    ReplicaReported,
    Respond,
    Send,
    SetTimer,
    build_dispatcher,
)
from routing.breakers.breaker import PolicyFailure
from routing.breakers.breakers import Breakers
from routing.sizing.geometry import ServiceRates
from tests.cluster.logged import LogInMemory, a_header
from tests.determinism.scripted_run import params_of, run
from tests.policy_doubles import a_request, replica_info
from tests.tables import for_each

ROOT = Path(__file__).parents[3]
DOUBLES = "tests.policy_doubles"
SEED = 7
FLEET = FleetChanged(
    pool="unified",
    role=Role.UNIFIED,
    replicas=tuple(replica_info(each, slots=99) for each in "abcde"),
)


def a_scripted_log(balancing: str = "random", planner: str = "always_unified") -> LogInMemory:
    """Two thousand events in which everything that can happen does."""
    log = LogInMemory(a_header(params_of(balancing, planner, SEED).spec, SEED))
    run(balancing, planner, SEED, log)
    return log


@pytest.fixture(scope="module")
def scripted() -> LogInMemory:
    """Of a balancer that draws for every pick; tests leave it as it is."""
    return a_scripted_log()


@pytest.fixture(scope="module")
def sends(scripted: LogInMemory) -> list[tuple[int, LogRecord]]:
    """Its records in which something is sent, with their places."""
    return [(n, each) for n, each in enumerate(LogReader(scripted.file())) if answer_of(each) != sent_elsewhere(each)]


def replayed(log: bytes) -> ReplayResult:
    return replay(io.BytesIO(log))


def a_log_with(number: int = 20, **choices: str) -> LogInMemory:
    """The log of requests that all stay, under other policies."""
    spec = DispatcherSpec(planner=PolicyChoice(name="always_unified"), pools={"unified": Role.UNIFIED})
    policies = replace(spec.policies, **{question: PolicyChoice(name=name) for question, name in choices.items()})
    log = LogInMemory(a_header(replace(spec, policies=policies)))
    dispatcher = built_for(log)
    log.on_event(0.0, FLEET, dispatcher.handle(FLEET, 0.0))
    for now in range(number):
        event = Arrived(request=a_request(f"q{now}"))
        try:
            effects = dispatcher.handle(event, float(now))
        except ZeroDivisionError as error:
            log.on_error(float(now), event, error)
        else:
            log.on_event(float(now), event, effects)
    return log


# -- the same ---------------------------------------------------------------------------------------------------------


@for_each("planner", ["always_unified", "always_disaggregated"])
@for_each("balancing", sorted(CATALOG["balancing"]))
def test_a_run_replays_to_the_same_effects(balancing: str, planner: str) -> None:
    log = a_scripted_log(balancing, planner)

    result = replayed(log.whole())

    assert result == ReplayResult(num_records=len(log.events), end_reason=CLOSED)
    assert result.is_same
    assert result.num_records > 1500


def test_a_policy_that_draws_from_its_own_stream_replays() -> None:
    log = a_log_with(hedging=f"{DOUBLES}:HedgeHalf")
    hedges = [each for each in timers_in(log) if each.token.endswith("hedge")]

    assert 0 < len(hedges) < 20, "it draws"
    assert replayed(log.whole()).is_same


@for_each("question", ["admission", "balancing", "queueing", "hedging"])
def test_what_breakers_did_about_a_policy_they_do_again(question: str) -> None:
    spec = params_of("random", "always_unified", SEED).spec
    own = PolicyChoice(name=f"tests.routing.breakers.misbehaving:Wild{question.capitalize()}")
    spec = replace(spec, policies=replace(spec.policies, **{question: own}))
    log = LogInMemory(msgspec.structs.replace(a_header(spec, SEED), has_breakers=True))
    failures: list[PolicyFailure] = []
    breakers = Breakers(failures.append, lambda: 0.0)
    streams = log.header.streams
    dispatcher = build_dispatcher(spec, rng_for=streams.stream, provided=frozenset(Need), breakers=breakers)
    events: list[Event] = [FLEET, *(Arrived(request=a_request(f"q{number}")) for number in range(300))]
    for event in events:
        log.on_event(0.0, event, dispatcher.handle(event, 0.0))
    assert failures

    assert replayed(log.whole()).is_same


def test_a_dispatcher_that_raised_raises_again() -> None:
    log = a_log_with(admission=f"{DOUBLES}:RaisesAtTheThird")
    assert encode_answer("ZeroDivisionError") in [bytes(each.answer) for each in LogReader(log.file())]

    result = replayed(log.whole())

    assert result.is_same
    assert result.num_records == 21


def test_a_log_of_tenants_with_quotas_replays() -> None:
    spec = DispatcherSpec(
        planner=PolicyChoice(name="always_unified"),
        pools={"unified": Role.UNIFIED},
        policies=PolicySpec(admission=PolicyChoice(name="token_bucket"), queueing=PolicyChoice(name="vtc")),
        rates=ServiceRates(new_token_s=1e-4),
        tenants={"": TenantTerms(weight=2.0, quota=Quota(work_per_s=0.01, burst_s=0.02))},
        num_gateways=2,
    )
    log = LogInMemory(a_header(spec))
    dispatcher = built_for(log)
    events: list[Event] = [FLEET, *(Arrived(request=a_request(f"q{number}")) for number in range(9))]
    for now, event in enumerate(events):
        log.on_event(float(now), event, dispatcher.handle(event, float(now)))
    answers = [each for record in LogReader(log.file()) for each in answer_of(record) if isinstance(each, Respond)]

    assert {each.outcome.reason for each in answers} == {Reason.QUOTA_EXCEEDED}
    assert replayed(log.whole()).is_same


@given(data=st.data())
def test_a_log_that_was_cut_off_replays_up_to_there(scripted: LogInMemory, data: st.DataObject) -> None:
    number = data.draw(st.integers(0, 60))
    into = data.draw(st.integers(1, len(scripted.frames[number]) - 1))
    beginning = encode_header(scripted.header) + b"".join(scripted.frames[:number])

    result = replayed(beginning + scripted.frames[number][:into])

    assert result == ReplayResult(num_records=number, cut_off_bytes=into)
    assert result.is_same


# -- not the same -----------------------------------------------------------------------------------------------------


def test_another_seed_is_noticed(scripted: LogInMemory) -> None:
    other = LogInMemory(a_header(scripted.header.dispatcher, SEED + 1))
    other.frames = scripted.frames

    assert not replayed(other.whole()).is_same


def test_another_name_of_the_streams_is_noticed(scripted: LogInMemory) -> None:
    """As when a gateway of several would log itself as an only one."""
    streams = replace(scripted.header.streams, suffix="-gateway")
    other = LogInMemory(type(scripted.header)(gateway="gw", streams=streams, dispatcher=scripted.header.dispatcher))
    other.frames = scripted.frames

    assert not replayed(other.whole()).is_same


def test_another_limit_is_noticed(scripted: LogInMemory) -> None:
    spec = scripted.header.dispatcher
    other = LogInMemory(a_header(replace(spec, params=replace(spec.params, quarantine_s=4.0)), SEED))
    other.frames = scripted.frames

    assert not replayed(other.whole()).is_same


def test_a_policy_that_draws_from_elsewhere_is_noticed() -> None:
    result = replayed(a_log_with(hedging=f"{DOUBLES}:HedgeAsItPleases").whole())

    assert result.difference is not None
    assert result.difference.record == 2, "the first request"


@given(data=st.data())
def test_one_changed_effect_is_noticed_where_it_is(
    scripted: LogInMemory, sends: list[tuple[int, LogRecord]], data: st.DataObject
) -> None:
    number, record = data.draw(st.sampled_from(sends))
    changed = copied(scripted)
    changed.frames[number] = frame(encode_record(record.now_s, record.event, sent_elsewhere(record)))

    result = replayed(changed.whole())

    assert result.num_records == number
    assert result.difference is not None
    assert (result.difference.record, result.difference.event) == (number + 1, record.event)
    assert result.difference.wanted == as_read(sent_elsewhere(record))
    assert result.difference.got == as_read(answer_of(record))


@given(data=st.data())
def test_one_missing_event_is_noticed(scripted: LogInMemory, data: st.DataObject) -> None:
    """Arrivals: what is told of a request that never came leads to nothing, or to other places for the others."""
    arrivals = [number for number, each in enumerate(scripted.events) if isinstance(each, Arrived)]
    number = data.draw(st.sampled_from(arrivals[:-1]))
    without = copied(scripted)
    del without.frames[number]

    assert not replayed(without.whole()).is_same


def test_one_missing_report_of_a_replica_is_noticed() -> None:
    """Where it matters: the balancer goes by it."""
    log = LogInMemory(a_header())
    dispatcher = built_for(log)
    for event in (
        FLEET,
        ReplicaReported(replica_id="a", prefill_tokens=0, kv_tokens=5000, kv_cache_usage=0.5),
        Arrived(request=a_request()),
    ):
        log.on_event(0.0, event, dispatcher.handle(event, 0.0))
    assert replayed(log.whole()).is_same

    del log.frames[1]

    assert replayed(log.whole()).num_records == 1


def test_an_effect_that_is_missing_at_the_end_of_a_record_is_noticed(scripted: LogInMemory) -> None:
    records = list(LogReader(scripted.file()))
    number, record = next((number, each) for number, each in enumerate(records) if len(answer_of(each)) > 1)
    changed = copied(scripted)
    changed.frames[number] = frame(encode_record(record.now_s, record.event, answer_of(record)[:-1]))

    assert replayed(changed.whole()).num_records == number


# -- the command line -------------------------------------------------------------------------------------------------


def saved(folder: Path, data: bytes) -> str:
    path = folder / "gw-1.log"
    path.write_bytes(data)
    return str(path)


def test_the_command_says_that_all_is_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = main([saved(tmp_path, a_log_with().whole())])

    assert status == 0
    assert capsys.readouterr().out == "same: 21 records led to the same effects, byte for byte\n"


def test_the_command_says_that_the_last_record_is_cut_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = a_log_with()

    status = main([saved(tmp_path, log.whole(end=None)[:-5])])

    printed = capsys.readouterr().out
    assert status == 0
    assert "same: 20 records" in printed
    assert f"cut off ({len(log.frames[-1]) - 5} bytes of it are there): valid up to there" in printed
    assert "no end" in printed


def test_the_command_says_why_a_log_ends_early(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([saved(tmp_path, a_log_with().whole(end="the disk is full"))]) == 0
    assert "before its dispatcher did: the disk is full" in capsys.readouterr().out


def test_the_command_shows_the_first_difference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = a_log_with()
    log.frames[3] = frame(encode_record(2.0, log.events[3], []))

    status = main([saved(tmp_path, log.whole())])

    verdict, event, wanted, got, rest = capsys.readouterr().out.splitlines()
    assert status == 1
    assert verdict == "different: record 4, at 2.0 s"
    assert json.loads(event.removeprefix("  event"))["request"]["request_id"] == "q2"
    assert json.loads(wanted.removeprefix("  wanted")) == []
    assert [each["type"] for each in json.loads(got.removeprefix("  got"))] == ["SetTimer", "Record", "Send"]
    assert rest == "The 3 records before it led to the same effects."


def test_the_command_shows_a_log_as_lines_of_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = a_log_with(3, admission=f"{DOUBLES}:RaisesAtTheThird")

    status = main([saved(tmp_path, log.whole(end=None)[:-1]), "--show"])

    header, *records, end = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert status == 0
    assert header["header"]["streams"] == {"seed": 1, "prefix": "", "suffix": ""}
    assert header["header"]["dispatcher"]["planner"]["name"] == "always_unified"
    assert [(each["record"], each["now_s"], each["event"]["type"]) for each in records] == [
        (1, 0.0, "FleetChanged"),
        (2, 0.0, "Arrived"),
        (3, 1.0, "Arrived"),
    ]
    assert [each["type"] for each in records[1]["effects"]] == ["SetTimer", "Record", "Send"]
    assert end == {"end": None, "cut_off_bytes": len(log.frames[-1]) - 1}


def test_the_command_shows_an_exception_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = a_log_with(3, admission=f"{DOUBLES}:RaisesAtTheThird")

    main([saved(tmp_path, log.whole()), "--show"])

    assert json.loads(capsys.readouterr().out.splitlines()[-2])["raised"] == "ZeroDivisionError"


def test_a_log_can_be_shown_where_its_policies_are_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(tmp_path, encode_header(a_header(spec_with("somewhere.else:Policy"))))

    assert main([path]) == 2
    assert "policies.balancing: got 'somewhere.else:Policy'; allowed: an import path that works (No module named" in (
        capsys.readouterr().err
    )
    assert main([path, "--show"]) == 0


def test_a_log_of_a_policy_that_does_not_exist_is_an_error_that_names_it() -> None:
    with pytest.raises(ConfigError, match="no_such_policy"):
        replayed(encode_header(a_header(spec_with("no_such_policy"))))


@for_each("arguments", [[], ["--show"]], ids=["replay", "show"])
def test_a_damaged_log_is_no_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    log = a_log_with()
    log.frames[5] = log.frames[5][3:]
    path = saved(tmp_path, log.whole())

    assert main([path, *arguments]) == 2
    assert capsys.readouterr().err == f"{path}: after record 5: damaged\n"


@for_each("name", ["missing.log", "."], ids=["missing", "folder"])
def test_what_cannot_be_opened_is_no_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert main([str(tmp_path / name)]) == 2
    assert str(tmp_path / name) in capsys.readouterr().err


def test_the_command_runs_from_the_shell_and_its_lines_need_not_be_read(tmp_path: Path) -> None:
    path = saved(tmp_path, a_scripted_log().whole())
    program = f'"{sys.executable}" -m cluster.event_log.replay "{path}" --show | head -n 1'

    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", program], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert list(json.loads(done.stdout)) == ["header"]


# -- surgery ----------------------------------------------------------------------------------------------------------


def built_for(log: LogInMemory) -> Dispatcher:
    """The dispatcher that the header describes."""
    return build_dispatcher(log.header.dispatcher, rng_for=log.header.streams.stream, provided=frozenset(Need))


def copied(log: LogInMemory) -> LogInMemory:
    """One that can be operated on."""
    copy = LogInMemory(log.header)
    copy.frames, copy.events = list(log.frames), list(log.events)
    return copy


def answer_of(record: LogRecord) -> list[Effect]:
    return msgspec.msgpack.decode(record.answer, type=list[Effect])


def timers_in(log: LogInMemory) -> list[SetTimer]:
    return [effect for record in LogReader(log.file()) for effect in answer_of(record) if isinstance(effect, SetTimer)]


def as_read(effects: list[Effect]) -> object:
    """Effects as they are in a log: tuples have become lists."""
    return msgspec.msgpack.decode(encode_answer(effects))


def sent_elsewhere(record: LogRecord) -> list[Effect]:
    """The same effects with another replica in the sends."""
    return [
        msgspec.structs.replace(each, replica_id="elsewhere") if isinstance(each, Send) else each
        for each in answer_of(record)
    ]


def spec_with(balancing: str) -> DispatcherSpec:
    return params_of(balancing, "always_unified", SEED).spec
