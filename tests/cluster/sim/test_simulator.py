import gc
import hashlib
import math
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from cluster.sim.faults import Fault
from cluster.sim.run_table import OUTCOMES, REASONS, RunTable
from cluster.sim.simulator import simulate
from cluster.sim.traffic import Arrival
from engines.faults import FaultKind
from engines.handoff import comes_from_prefill
from engines.model.profile import EngineProfile
from policies.errors import ConfigError
from policies.views import Role
from routing.config.spec import DispatcherParams
from routing.request.events import Event, ReplicaReported
from tests.cluster.simulated import PROFILE, PlainTraffic, dispatcher, fleet, poisson, request
from tests.tables import for_each

BALANCERS = ["least_work_left", "power_of_two", "random", "round_robin"]


@for_each("balancing", BALANCERS)
@for_each("is_disaggregated", [False, True], ids=["unified", "prefill_decode"])
def test_every_request_ends_once_and_gets_all_its_tokens(balancing: str, is_disaggregated: bool) -> None:
    spec = fleet(3, is_disaggregated=is_disaggregated, num_gateways=2)
    traffic = poisson(400, rate_per_s=40.0, seed=1)

    table = simulate(spec, dispatcher(spec, balancing), traffic, ["all"], seed=1)

    assert sorted(table.logical_request) == list(range(400))
    assert table.is_last.all()
    assert {OUTCOMES[index] for index in table.outcome} == {"completed"}
    wanted = {arrival.request.logical_request: arrival.request.output_tokens for arrival in traffic.plan}
    assert dict(zip(table.logical_request.tolist(), table.output_tokens.tolist(), strict=True)) == wanted
    assert (table.first_token_s > table.scheduled_s).all()
    assert (table.end_s >= table.first_token_s).all()
    assert set(table.attempts) == ({2} if is_disaggregated else {1})


def with_link(bandwidth_bytes_per_s: float) -> EngineProfile:
    """Engines whose KV comes at that pace."""
    kv = msgspec.structs.replace(PROFILE.kv, bandwidth_bytes_per_s=bandwidth_bytes_per_s)
    return msgspec.structs.replace(PROFILE, kv=kv)


def comes_with_its_prompt(arrival: Arrival) -> bool:
    """Whether the first token of its answer, which is not the last, is drawn by a prefill replica."""
    request, block_tokens = arrival.request, PROFILE.kv.block_tokens
    return request.output_tokens > 1 and comes_from_prefill(request.prompt_tokens, block_tokens, is_resumable=True)


@for_each("is_disaggregated", [False, True], ids=["unified", "prefill_decode"])
def test_replicas_compute_what_was_asked_and_nothing_else(is_disaggregated: bool) -> None:
    spec = fleet(2, is_disaggregated=is_disaggregated)
    traffic = poisson(300, rate_per_s=20.0, seed=2)

    table = simulate(spec, dispatcher(spec), traffic, ["all"], seed=2)

    prompt_tokens = sum(arrival.request.prompt_tokens for arrival in traffic.plan)
    output_tokens = sum(arrival.request.output_tokens for arrival in traffic.plan)
    by_prefill = sum(each.output_tokens for each in table.replicas if each.role == "prefill")
    assert sum(each.preemptions for each in table.replicas) == 0
    assert sum(each.prompt_tokens for each in table.replicas) == prompt_tokens
    unused_tokens = by_prefill - (sum(map(comes_with_its_prompt, traffic.plan)) if is_disaggregated else 0)
    assert sum(each.output_tokens for each in table.replicas) - unused_tokens == output_tokens
    assert by_prefill == (300 if is_disaggregated else 0)


def test_a_decode_replica_computes_the_prompts_of_whole_requests_and_pulls_nothing_for_them() -> None:
    apart = fleet(2, is_disaggregated=True, num_gateways=2)
    spec = replace(apart, pools=tuple(replace(each, whole_requests=each.role is Role.DECODE) for each in apart.pools))
    traffic = poisson(300, rate_per_s=30.0, seed=3)
    long_tokens = [arrival.request.prompt_tokens for arrival in traffic.plan if arrival.request.prompt_tokens > 1000]
    all_tokens = [arrival.request.prompt_tokens for arrival in traffic.plan]

    table = simulate(spec, dispatcher(spec, planner="tests.policy_doubles:LongPromptsApart"), traffic, ["all"], seed=3)

    assert {OUTCOMES[index] for index in table.outcome} == {"completed"}
    computed = {
        role: sum(each.prompt_tokens for each in table.replicas if each.role == role) for role in ("prefill", "decode")
    }
    assert computed == {"prefill": sum(long_tokens), "decode": sum(all_tokens) - sum(long_tokens)}
    assert table.attempts.sum() == len(all_tokens) + len(long_tokens)


def test_the_same_seed_gives_the_same_log_and_another_policy_meets_the_same_requests() -> None:
    assert _log_hash(3, "random") == _log_hash(3, "random")
    assert _log_hash(3, "random") != _log_hash(4, "random")

    random_choice, round_robin = (_table(3, balancing) for balancing in ("random", "round_robin"))

    for column in ("scheduled_s", "prompt_tokens"):
        assert sorted(getattr(random_choice, column)) == sorted(getattr(round_robin, column))


def test_a_request_past_its_deadline_is_refused_and_holds_nothing() -> None:
    spec = fleet(1)
    traffic = PlainTraffic([request(0, 0.0, 4_000, 2_000), request(1, 0.1, 100, 2_000, timeout_s=0.5)])

    table = simulate(spec, dispatcher(spec), traffic, ["all"], seed=1)

    outcomes = dict(zip(table.logical_request.tolist(), [OUTCOMES[index] for index in table.outcome], strict=True))
    reasons = dict(zip(table.logical_request.tolist(), [REASONS[index] for index in table.reason], strict=True))
    assert outcomes == {0: "completed", 1: "failed"}
    assert reasons[1] == "deadline_exceeded"
    assert table.end_s[0] == pytest.approx(0.6)
    assert 0 < table.output_tokens[0] < 2_000


@for_each("is_disaggregated", [False, True], ids=["unified", "prefill_decode"])
def test_a_request_that_fails_has_the_tokens_that_were_generated_until_then(is_disaggregated: bool) -> None:
    """One that its deadline ends half a step after its 100th token, and one whose replica dies just then."""
    spec = fleet(1, is_disaggregated=is_disaggregated)

    def run(output_tokens: int, timeout_s: float = 60.0, crash_at_s: float = math.inf) -> RunTable:
        plan = PlainTraffic([request(0, 0.0, 1_000, output_tokens, timeout_s=timeout_s)])
        roles = [Role.DECODE, Role.PREFILL] if is_disaggregated else [Role.UNIFIED]  # either would do it alone
        faults = [
            Fault(kind=FaultKind.CRASH, at_s=crash_at_s, for_s=1.0, role=role, replica=0)
            for role in roles
            if crash_at_s < math.inf
        ]
        at_once = replace(dispatcher(spec), params=DispatcherParams(waiting_room_s=0))
        return simulate(spec, at_once, plan, ["all"], seed=1, faults=faults)

    end_s = run(100).end_s[0] - spec.network_delay_s + 0.002
    late, lost = run(2_000, timeout_s=end_s), run(2_000, crash_at_s=end_s)

    assert [REASONS[table.reason[0]] for table in (late, lost)] == ["deadline_exceeded", "replica_lost"]
    assert [table.output_tokens[0] for table in (late, lost)] == [100, 100]


def test_a_request_that_fails_before_its_first_token_has_none() -> None:
    spec = fleet(1, is_disaggregated=True)
    slow_link = msgspec.structs.replace(spec.pools[0].profile.kv, bandwidth_bytes_per_s=1e8)
    spec = fleet(1, is_disaggregated=True, profile=msgspec.structs.replace(spec.pools[0].profile, kv=slow_link))

    table = simulate(spec, dispatcher(spec), PlainTraffic([request(0, 0.0, 4_000, timeout_s=1.0)]), ["all"], seed=1)

    assert (REASONS[table.reason[0]], table.output_tokens[0]) == ("deadline_exceeded", 0)


def test_a_prompt_that_no_engine_takes_fails_as_an_invalid_request() -> None:
    spec = fleet(1)

    table = simulate(spec, dispatcher(spec), PlainTraffic([request(0, 0.0, 8_193)]), ["all"], seed=1)

    assert [REASONS[index] for index in table.reason] == ["invalid_request"]


def test_the_handoff_costs_the_transfer_and_two_messages_more_than_one_engine() -> None:
    unified, handoff = fleet(1), fleet(1, is_disaggregated=True)

    alone, apart = (
        simulate(spec, dispatcher(spec), PlainTraffic([request(0, 0.0, 1_000, 1)]), ["all"], seed=1)
        for spec in (unified, handoff)
    )

    transfer_s = 1_000 * 100_000 / 1e10
    decode_step_s = 0.004 + 3e-5 + 1e-5 + 1_000 * 5e-8
    extra_s = 2 * handoff.network_delay_s + transfer_s + decode_step_s
    assert apart.first_token_s[0] - alone.first_token_s[0] == pytest.approx(extra_s, rel=1e-9)


class TestFaults:
    def test_what_a_crashed_replica_was_answering_goes_on_elsewhere(self) -> None:
        table = _with_fault(FaultKind.CRASH, at_s=5.0, for_s=10.0)

        by_name = {each.replica_id: each for each in table.replicas}
        assert len(table) == 600
        assert {OUTCOMES[index] for index in table.outcome} == {"completed"}
        assert (table.output_tokens == 100).all(), "every answer is whole"
        repeated = table.attempts > 1
        assert 0 < repeated.sum() < 40
        assert (table.first_token_s[repeated] < 5.0).any(), "some were in mid-answer"
        assert (table.end_s[repeated] > 5.0).all()
        assert by_name["unified-0000.1"].attempts > 0

    def test_a_new_replica_is_there_when_its_start_is_over(self) -> None:
        """Dead at 5 s, replaced from 8 s on, ready 10 s later, which is what the profile says a start takes."""
        table = _with_fault(FaultKind.CRASH, at_s=5.0, for_s=3.0)

        old, new = (each for each in table.replicas if each.replica_id.startswith("unified-0000"))
        assert old.up_s == pytest.approx(5.0)
        assert new.up_s == pytest.approx(table.duration_s - (5.0 + 3.0 + 10.0))

    def test_a_slow_replica_takes_longer_and_gets_less(self) -> None:
        healthy, sick = _with_fault(None), _with_fault(FaultKind.SLOW, at_s=0.0, for_s=60.0, factor=8.0)

        assert _tpot_p99(sick) > 4 * _tpot_p99(healthy)
        assert _share(sick) < 0.8 * _share(healthy)

    def test_a_replica_that_stood_still_for_a_moment_goes_on_where_it_stopped(self) -> None:
        table = _with_fault(FaultKind.STALL, at_s=5.0, for_s=1.5)

        assert {OUTCOMES[index] for index in table.outcome} == {"completed"}
        e2e_s = table.end_s - table.scheduled_s
        assert 1.5 < e2e_s.max() < 3.5
        assert table.attempts.max() == 1

    def test_a_refusing_replica_is_spared_and_others_serve(self) -> None:
        table = _with_fault(FaultKind.REFUSE, at_s=5.0, for_s=5.0)

        assert {OUTCOMES[index] for index in table.outcome} == {"completed"}
        assert table.attempts.max() == 2

    def test_what_a_failing_replica_fails_on_is_done_by_another_one_and_it_is_spared(self) -> None:
        table = _with_fault(FaultKind.FAIL, at_s=5.0, for_s=5.0)

        assert {OUTCOMES[index] for index in table.outcome} == {"completed"}
        assert table.attempts.max() == 2

    def test_a_prefill_whose_kv_is_dropped_is_done_again(self) -> None:
        spec = fleet(2, is_disaggregated=True)
        fault = Fault(kind=FaultKind.DROP_KV, at_s=0.0, for_s=1.0, role=Role.PREFILL, replica=0)

        table = simulate(spec, dispatcher(spec), poisson(100, 30.0, 1), ["all"], seed=1, faults=[fault])

        assert {OUTCOMES[index] for index in table.outcome} <= {"completed", "refused"}
        assert table.attempts.max() == 5, "another decode tries first"

    def test_what_a_decode_replica_dies_of_pulling_begins_anew(self) -> None:
        """Whether it has pulled, and had the KV freed, nobody can say."""
        spec = fleet(2, is_disaggregated=True, profile=with_link(1e8))
        fault = Fault(kind=FaultKind.CRASH, at_s=0.5, for_s=9.0, role=Role.DECODE, replica=0)

        table = simulate(
            spec, dispatcher(spec), PlainTraffic([request(0, 0.0, 4_000)]), ["all"], seed=1, faults=[fault]
        )

        assert [OUTCOMES[index] for index in table.outcome] == ["completed"]
        assert table.attempts[0] == 4
        assert sum(each.prompt_tokens for each in table.replicas if each.role == "prefill") == 8_000

    def test_kv_of_clients_that_go_before_their_decode_is_free_long_before_its_lease_ends(self) -> None:
        """Decode has room for one at a time; the others are computed, wait, and are given up."""
        spec = fleet(1, is_disaggregated=True)
        prefill, decode = spec.pools
        decode = replace(decode, limits=replace(decode.limits, max_num_seqs=1), waiting_fraction=0.0)
        spec = replace(spec, pools=(prefill, decode), kv_lease_s=30.0)
        arrivals = [request(number, 0.0, 1_000, 6_000, timeout_s=2.0 if number else 90.0) for number in range(20)]
        usage: list[tuple[float, float]] = []

        def note(_: int, now_s: float, event: Event, effects: Any) -> None:
            if isinstance(event, ReplicaReported) and event.replica_id.startswith("prefill"):
                usage.append((now_s, event.kv_cache_usage))

        table = simulate(spec, dispatcher(spec), PlainTraffic(arrivals), ["all"], seed=1, on_event=note)

        assert [OUTCOMES[index] for index in table.outcome].count("completed") == 1
        assert max(used for _, used in usage) > 0.0
        freed_s, used = usage[-1]
        assert (freed_s < 3.0, used) == (True, 0.0)

    def test_kv_whose_holder_dies_while_it_is_pulled_is_made_anew_elsewhere(self) -> None:
        spec = fleet(2, is_disaggregated=True, profile=with_link(1e8))
        fault = Fault(kind=FaultKind.CRASH, at_s=1.0, for_s=9.0, role=Role.PREFILL, replica=0)

        table = simulate(
            spec, dispatcher(spec), PlainTraffic([request(0, 0.0, 4_000)]), ["all"], seed=1, faults=[fault]
        )

        assert [OUTCOMES[index] for index in table.outcome] == ["completed"]
        assert table.attempts[0] == 5, "and another decode tried first"
        computed = {each.replica_id: each.prompt_tokens for each in table.replicas if each.role == "prefill"}
        assert computed["prefill-0001.0"] == 4_000, "the other one"
        assert table.first_token_s[0] > 1.0 + 4.0, "the pull begins anew, too"

    def test_an_answer_whose_first_token_came_with_its_prompt_goes_on_when_its_kv_is_lost(self) -> None:
        spec = fleet(2, is_disaggregated=True, profile=with_link(1e8))
        fault = Fault(kind=FaultKind.CRASH, at_s=1.0, for_s=9.0, role=Role.PREFILL, replica=0)
        arrival = request(0, 0.0, 4_001, output_tokens=20)

        table = simulate(spec, dispatcher(spec), PlainTraffic([arrival]), ["all"], seed=1, faults=[fault])

        assert [OUTCOMES[index] for index in table.outcome] == ["completed"]
        assert table.attempts[0] == 4
        assert table.output_tokens.tolist() == [20]
        computed = {each.replica_id: each.prompt_tokens for each in table.replicas if each.role == "prefill"}
        assert computed["prefill-0001.0"] == 4_002, "the other one, with the token that is out"
        assert table.first_token_s[0] < 1.0
        assert table.end_s[0] > 1.0 + 4.0, "the pull begins anew"

    def test_a_fault_on_a_replica_that_is_not_there_is_a_config_error(self) -> None:
        spec = fleet(2)
        fault = Fault(kind=FaultKind.STALL, at_s=0.0, for_s=1.0, role=Role.UNIFIED, replica=2)

        with pytest.raises(ConfigError, match=r"faults\.replica"):
            simulate(spec, dispatcher(spec), PlainTraffic([]), ["all"], seed=1, faults=[fault])


def test_a_first_token_that_comes_with_its_prompt_waits_for_no_transfer() -> None:
    spec = fleet(1, is_disaggregated=True, profile=with_link(1e9))
    transfer_s = 4_000 * PROFILE.kv.bytes_per_token / 1e9
    alone = [
        simulate(spec, dispatcher(spec), PlainTraffic([request(0, 0.0, each)]), ["all"], seed=1)
        for each in (4_000, 4_001)
    ]

    (later, sooner), (after, before) = ([each.first_token_s[0] for each in alone], [each.end_s[0] for each in alone])
    assert sooner < later - transfer_s
    assert before < after, "and the decode spends no step on it"


def test_gateways_see_each_others_work_only_when_it_is_reported() -> None:
    """Two gateways send at the same instant: both find the same replica the idlest, because neither has heard yet."""
    spec = fleet(2, num_gateways=2, report_period_s=0.5, report_delay_s=0.1)
    burst = PlainTraffic([request(number, 0.001 * number, 2_000, 200) for number in range(40)])
    placements: dict[int, list[str]] = {0: [], 1: []}

    def listen(gateway: int, now_s: float, event: Event, effects: Any) -> None:
        placements[gateway] += [each.replica_id for each in effects if type(each).__name__ == "Send"]

    simulate(spec, dispatcher(spec), burst, ["all"], seed=1, on_event=listen)

    assert placements[0][0] == placements[1][0] == "unified-0000.0"
    assert all(placements.values())


def _with_fault(kind: FaultKind | None, at_s: float = 0.0, for_s: float = 1.0, factor: float = 1.0) -> RunTable:
    spec = fleet(3)
    fault = (
        [] if kind is None else [Fault(kind=kind, at_s=at_s, for_s=for_s, role=Role.UNIFIED, replica=0, factor=factor)]
    )
    plan = PlainTraffic([request(number, 0.05 * number, 100, 100) for number in range(600)])
    return simulate(spec, dispatcher(spec), plan, ["all"], seed=1, faults=fault)


def _tpot_p99(table: RunTable) -> float:
    return float(np.percentile((table.end_s - table.first_token_s) / (table.output_tokens - 1), 99))


def _share(table: RunTable) -> float:
    return table.replicas[0].attempts / sum(each.attempts for each in table.replicas)


def _table(seed: int, balancing: str) -> RunTable:
    spec = fleet(3, num_gateways=2)
    return simulate(spec, dispatcher(spec, balancing), poisson(200, 30.0, seed), ["all"], seed=seed)


def _log_hash(seed: int, balancing: str) -> str:
    spec = fleet(3, is_disaggregated=True, num_gateways=2)
    digest = hashlib.sha256()

    def listen(gateway: int, now_s: float, event: Event, effects: Any) -> None:
        digest.update(msgspec.json.encode((gateway, now_s, event, effects)))

    simulate(spec, dispatcher(spec, balancing), poisson(100, 30.0, seed), ["all"], seed=seed, on_event=listen)
    assert math.isfinite(len(digest.hexdigest()))
    return digest.hexdigest()


def test_a_run_leaves_no_cycles_behind_for_its_requests() -> None:
    assert _num_unreachable(1_000) < _num_unreachable(100) + 100  # which are the simulator's own


def test_a_run_leaves_the_garbage_collector_as_it_was() -> None:
    before = gc.get_threshold()
    spec = fleet(1)

    simulate(spec, dispatcher(spec), poisson(10, rate_per_s=10.0, seed=1), ["all"], seed=1)

    assert gc.get_threshold() == before


def _num_unreachable(num_requests: int) -> int:
    """Objects that only the garbage collector can free after a run."""
    spec = fleet(2, is_disaggregated=True)
    traffic = poisson(num_requests, rate_per_s=20.0, seed=4)
    gc.collect()
    gc.disable()
    try:
        simulate(spec, dispatcher(spec), traffic, ["all"], seed=4)
        return gc.collect()
    finally:
        gc.enable()
