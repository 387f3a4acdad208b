"""Another configuration for a dispatcher with requests under way: nothing is lost, and only what changed is new."""

from dataclasses import replace
from typing import Any

import pytest

from cluster import Seeds
from policies import ConfigError, Need, PolicyChoice, PolicySpec, Priority, Quota, Reason, Role, TenantTerms
from policies.admission import BoundedQueue, TokenBucket
from policies.queueing import Fcfs, PriorityAged, Vtc
from routing import DispatcherParams, DispatcherSpec, Reconfigured, build_dispatcher, reconfigured
from routing.config.spec import LanesSpec, from_json, to_json
from routing.lanes.lanes import Lane, TokenRange
from routing.sizing.geometry import ServiceRates
from tests.routing.dialogue import DOUBLES, Dialogue, completed, refused
from tests.tables import for_each

RATES = ServiceRates(new_token_s=1e-3)


def change(talk: Dialogue, **changes: Any) -> None:
    """The dispatcher goes on with another spec: fields of it, or policies by their question."""
    present = talk.spec
    questions = {name: value for name, value in changes.items() if hasattr(present.policies, name)}
    rest = {name: value for name, value in changes.items() if name not in questions}
    chosen = {name: PolicyChoice(name=value) if isinstance(value, str) else value for name, value in questions.items()}
    talk.spec = replace(present, policies=replace(present.policies, **chosen), **rest)
    talk.tell(reconfigured(talk.spec))


def with_waiting(*request_ids: str, **settings: Any) -> Dialogue:
    """One slot, which request ``x`` has; the others wait, a second apart."""
    talk = Dialogue(rates=RATES, **settings).replicas(Role.UNIFIED, "a", slots=1)
    talk.arrives("x")
    for number, request_id in enumerate(request_ids, start=1):
        talk.at(float(number)).arrives(
            request_id, tenant=request_id[0], priority=PRIORITIES.get(request_id[0], STANDARD)
        )
    return talk


STANDARD = Priority.STANDARD
PRIORITIES = {"c": Priority.CRITICAL, "s": Priority.SHEDDABLE}


def order_of_the_rest(talk: Dialogue, first: str = "x.0") -> list[str]:
    """Who is sent, one after the other, when each ends as soon as it can."""
    sent: list[str] = []
    running = first
    while True:
        talk.finishes(running)
        if not talk.sends:
            return sent
        running = talk.sends[0].split()[0]
        sent.append(running.split(".")[0])


def test_the_event_has_the_whole_spec() -> None:
    spec = DispatcherSpec(
        planner=PolicyChoice(name="always_unified"),
        pools={"unified": Role.UNIFIED},
        lanes=LanesSpec(lanes=(Lane(name="all", pools=("unified",), prompt_tokens=TokenRange(0), ttft_slo_s=2.0),)),
        policies=PolicySpec(admission=PolicyChoice(name="token_bucket", params={"b": 1, "a": [0.1, 2**70]})),
        tenants={"shop": TenantTerms(weight=2.0, quota=Quota(work_per_s=1.0, burst_s=2.0))},
    )

    back = from_json(to_json(spec))

    assert back == spec
    assert list(back.policies.admission.params) == ["b", "a"]


def test_who_waits_is_put_in_the_new_order() -> None:
    talk = with_waiting("s1", "n1", "c1", "c2")

    change(talk, queueing="priority")

    assert isinstance(talk.dispatcher.policies.queues["unified"], PriorityAged)
    assert talk.dispatcher.num_waiting_requests == 4
    assert order_of_the_rest(talk) == ["c1", "c2", "n1", "s1"]
    assert talk.is_over


def test_who_waits_goes_on_in_order_of_arrival_where_the_new_line_has_that() -> None:
    talk = with_waiting("s1", "n1", "c1", "c2", queueing=PolicyChoice(name="priority"))

    change(talk, queueing="fcfs")

    assert order_of_the_rest(talk) == ["s1", "n1", "c1", "c2"]


def test_what_is_under_way_goes_on() -> None:
    talk = with_waiting()
    talk.first_token("x.0")

    change(talk, queueing="vtc", admission="bounded_queue", balancing="round_robin")
    assert not talk.answer

    talk.finishes("x.0")
    assert talk.responses == {"x": completed()}
    assert talk.is_over


def test_the_new_admission_policy_decides_from_then_on_and_those_let_in_stay() -> None:
    talk = with_waiting("n1", "s1")

    change(talk, admission=f"{DOUBLES}:RefuseSheddable")
    talk.arrives("s2", priority=Priority.SHEDDABLE)

    assert talk.responses["s2"].reason is Reason.QUEUE_FULL
    assert order_of_the_rest(talk) == ["n1", "s1"]


def test_those_whom_admission_kept_from_starting_start_when_the_new_one_has_nothing_to_say() -> None:
    talk = Dialogue(admission=PolicyChoice(name=f"{DOUBLES}:StartsOneAtATime")).replicas(Role.UNIFIED, "a", slots=8)
    for request_id in ("x", "y", "z"):
        talk.arrives(request_id)
    assert talk.dispatcher.num_waiting_requests == 2

    change(talk, admission="always_admit")

    assert talk.sends == ["y.0 unified to a", "z.0 unified to a"]


def test_only_what_has_changed_is_new() -> None:
    talk = with_waiting("n1", queueing=PolicyChoice(name="vtc"), admission=PolicyChoice(name="bounded_queue"))
    before = talk.dispatcher.policies
    request_classifier, access = talk.dispatcher.request_classifier, talk.dispatcher.access

    change(talk, admission="token_bucket", params=DispatcherParams(max_attempts=7))

    after = talk.dispatcher.policies
    assert (type(before.admission), type(after.admission)) == (BoundedQueue, TokenBucket)
    assert (after.shedding, after.hedging) == (before.shedding, before.hedging)
    assert all(after.queues[name] is queue for name, queue in before.queues.items())
    assert all(after.balancers[role] is balancer for role, balancer in before.balancers.items())
    assert (talk.dispatcher.request_classifier, talk.dispatcher.access) == (request_classifier, access)
    assert order_of_the_rest(talk) == ["n1"]


@for_each(
    ("terms", "is_new"),
    [
        ({}, (False, False)),
        ({"n": TenantTerms(weight=2.0)}, (False, True)),
        ({"n": TenantTerms(quota=Quota(work_per_s=1.0, burst_s=1.0))}, (True, False)),
    ],
    ids=["the_same", "weights", "quotas"],
)
def test_policies_begin_anew_when_what_they_know_of_tenants_is_another(
    terms: dict[str, TenantTerms], is_new: tuple[bool, bool]
) -> None:
    talk = with_waiting("n1", queueing=PolicyChoice(name="vtc"), admission=PolicyChoice(name="token_bucket"))
    before = talk.dispatcher.policies

    change(talk, tenants=terms)

    after = talk.dispatcher.policies
    assert isinstance(after.queues["unified"], Vtc)
    changed = after.admission is not before.admission, after.queues["unified"] is not before.queues["unified"]
    assert changed == is_new
    assert order_of_the_rest(talk) == ["n1"]


def test_a_wider_window_lets_those_in_who_fit_now() -> None:
    talk = Dialogue(params=DispatcherParams(prefill_window_tokens=50)).replicas(Role.UNIFIED, "a")
    for request_id in ("x", "y", "z"):
        talk.arrives(request_id, prompt_tokens=100)
    assert talk.dispatcher.num_waiting_requests == 2

    change(talk, params=DispatcherParams(prefill_window_tokens=150))
    assert talk.sends == ["y.0 unified to a"]

    change(talk, params=DispatcherParams())
    assert talk.sends == ["z.0 unified to a"]


def test_limits_hold_from_then_on() -> None:
    talk = Dialogue()

    change(talk, params=DispatcherParams(retry_after_s=9.0))
    talk.arrives("q")

    assert talk.responses == {"q": refused(Reason.NO_REPLICA_AVAILABLE, 9.0)}


def test_lanes_may_come_and_go_while_requests_wait() -> None:
    talk = with_waiting("n1", "n2")
    pools = tuple(role.value for role in Role)
    lanes = (
        Lane(name="short", pools=pools, prompt_tokens=TokenRange(0, 1000), ttft_slo_s=1.0),
        Lane(name="long", pools=pools, prompt_tokens=TokenRange(1000)),
    )

    change(talk, lanes=LanesSpec(lanes=lanes))
    talk.arrives("n3")
    change(talk, lanes=LanesSpec())

    assert order_of_the_rest(talk) == ["n1", "n2", "n3"]
    assert talk.is_over


@for_each(
    ("changes", "field"),
    [
        ({"queueing": "lifo"}, "policies.queueing"),
        ({"planner": PolicyChoice(name="by_magic")}, "policies.planning"),
        ({"pools": {"unified": Role.UNIFIED}}, "pools"),
        ({"num_gateways": 2}, "num_gateways"),
        ({"rates": ServiceRates(new_token_s=1.0)}, "rates"),
    ],
)
def test_what_cannot_be_leaves_everything_as_it_was(changes: dict[str, Any], field: str) -> None:
    talk = with_waiting("s1", "c1")
    policies, spec = talk.dispatcher.policies, talk.spec

    with pytest.raises(ConfigError) as caught:
        change(talk, **changes)

    assert caught.value.field == field
    assert talk.dispatcher.policies is policies
    talk.spec = spec
    change(talk, queueing="priority")
    assert order_of_the_rest(talk) == ["c1", "s1"]


def test_what_is_not_a_spec_is_no_configuration() -> None:
    dispatcher = build_dispatcher(Dialogue().spec, rng_for=Seeds(1).stream, provided=frozenset(Need))

    with pytest.raises(ValueError, match="Expecting value"):
        dispatcher.handle(Reconfigured(spec="x"), 0.0)
    assert isinstance(dispatcher.policies.queues["unified"], Fcfs)


def test_what_has_been_done_once_is_known_to_policies_that_come_later() -> None:
    """The budget of what may be done twice outlives those that spend it."""
    waits = PolicyChoice(name="fixed_delay", params={"wait_s": 0.1, "budget_fraction": 0.5})
    talk = Dialogue().replicas(Role.UNIFIED, "a", "b")
    for number in range(20):
        talk.arrives(f"before-{number}")
        talk.finishes(f"before-{number}.0")
    change(talk, hedging=waits)
    talk.arrives("q")

    talk.at(0.1).fires("q.0:hedge")

    assert talk.sends == ["q.1 unified to b"]


def test_those_that_stay_and_those_that_come_share_one_budget() -> None:
    talk = Dialogue(retrying=PolicyChoice(name="backoff", params={"floor_per_s": 0.0})).replicas(Role.UNIFIED, "a", "b")
    change(talk, hedging=PolicyChoice(name="fixed_delay", params={"wait_s": 0.1, "budget_fraction": 1.0}))
    for number in range(20):
        talk.arrives(f"before-{number}")
        talk.finishes(f"before-{number}.0")
    for number in range(4):
        talk.arrives(f"q{number}")
        talk.fires(f"q{number}.0:hedge")
        talk.finishes(f"q{number}.0")
        talk.stops(f"q{number}.1")
    talk.arrives("lost")

    talk.fails("lost.0", Reason.REPLICA_LOST)

    assert talk.responses == {"lost": refused(Reason.REPLICA_LOST, to="lost")}, "hedges have spent more than a tenth"
