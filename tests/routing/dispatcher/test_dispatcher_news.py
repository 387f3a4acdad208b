"""Several gateways act as one: each knows what waits at the others and what they have sent, a moment late."""

import pytest

from policies import PolicyChoice, Reason, Role
from routing import CacheChanged, DispatcherParams, NewsReceived
from routing.intake.slos import Slo, Slos
from routing.queues.elsewhere import VALID_S
from routing.request.news import CacheChange, GatewayNews, ReplicaWork, SentPrompt, SharedWork
from routing.sizing.geometry import ServiceRates
from tests.routing.dialogue import ALWAYS_ADMIT, FCFS, Dialogue

EDF = PolicyChoice(name="edf")
SECOND = 1000
"""Prompt tokens."""


def dialogue(admission: PolicyChoice = ALWAYS_ADMIT, queueing: PolicyChoice = EDF) -> Dialogue:
    """One of two gateways; a replica that is given one prompt at a time, and an SLO of a second for each of its own."""
    return Dialogue(
        admission=admission,
        queueing=queueing,
        slos=Slos(default=Slo(ttft_s=3.0, ttft_s_per_1k_prompt_tokens=3.0)),
        rates=ServiceRates(new_token_s=1e-3),
        params=DispatcherParams(prefill_window_tokens=1),
        num_gateways=2,
    ).replicas(Role.UNIFIED, "a")


def hears(talk: Dialogue, *waiting: tuple[float, int], **replicas: ReplicaWork) -> None:
    work = SharedWork(waiting={"unified": waiting}, replicas=replicas)
    talk.tell(NewsReceived(news=GatewayNews(work=work, at_s=talk.now_s)))


def test_a_gateway_tells_what_waits_with_it_and_what_it_has_sent() -> None:
    talk = dialogue()
    talk.arrives("q1", prompt_tokens=SECOND)
    talk.arrives("q2", prompt_tokens=2 * SECOND)

    work = talk.dispatcher.work(talk.now_s)
    assert work.replicas["a"].prefill_tokens == SECOND
    ((due_s, tokens),) = work.waiting["unified"]
    assert due_s == pytest.approx(6.0, abs=0.2)
    assert tokens == 2 * SECOND

    talk.first_token("q1.0")
    talk.first_token("q2.0")
    work = talk.dispatcher.work(talk.now_s)
    assert (work.waiting, work.replicas["a"].prefill_tokens) == ({}, 0)


def test_what_others_have_sent_takes_room_and_what_they_have_computed_gives_it_back() -> None:
    talk = dialogue()
    hears(talk, a=ReplicaWork(prefill_tokens=SECOND))
    talk.arrives("q", prompt_tokens=SECOND)
    assert talk.sends == []

    hears(talk)
    assert talk.sends == ["q.0 unified to a"]


def test_a_replicas_report_counts_when_the_gateways_are_silent_and_not_before() -> None:
    talk = dialogue()
    hears(talk, a=ReplicaWork(prefill_tokens=SECOND))
    talk.arrives("q", prompt_tokens=SECOND)
    talk.reports("a", kv_tokens=0)  # it was made before they sent
    assert talk.sends == []
    talk.reports("a", kv_tokens=0)
    assert talk.sends == ["q.0 unified to a"]


def test_a_request_lets_those_go_first_that_are_due_earlier_elsewhere() -> None:
    talk = dialogue()
    talk.arrives("q1", prompt_tokens=SECOND)
    talk.arrives("q2", prompt_tokens=SECOND)
    hears(talk, (1.0, SECOND))
    talk.first_token("q1.0")
    assert talk.sends == []

    hears(talk)
    assert talk.sends == ["q2.0 unified to a"]


def test_those_that_are_due_later_elsewhere_keep_nobody_waiting() -> None:
    talk = dialogue()
    talk.arrives("q1", prompt_tokens=SECOND)
    talk.arrives("q2", prompt_tokens=SECOND)
    hears(talk, (9.0, SECOND))
    talk.first_token("q1.0")
    assert talk.sends == ["q2.0 unified to a"]


def test_what_was_told_too_long_ago_keeps_nobody_waiting() -> None:
    talk = dialogue()
    talk.arrives("q1", prompt_tokens=SECOND)
    talk.arrives("q2", prompt_tokens=SECOND)
    hears(talk, (1.0, SECOND))
    talk.at(talk.now_s + VALID_S).first_token("q1.0")
    assert talk.sends == ["q2.0 unified to a"]


def test_where_arrivals_are_in_order_nobody_yields() -> None:
    talk = dialogue(queueing=FCFS)
    talk.arrives("q1", prompt_tokens=SECOND)
    talk.arrives("q2", prompt_tokens=SECOND)
    hears(talk, (1.0, SECOND))
    talk.first_token("q1.0")
    assert talk.sends == ["q2.0 unified to a"]


def test_a_request_that_would_be_late_because_of_what_waits_elsewhere_is_refused_at_once() -> None:
    never_probes = {"probe_fraction": 0.0, "safety": 1.0}
    talk = dialogue(PolicyChoice(name="deadline", params=never_probes))
    talk.arrives("q1", prompt_tokens=SECOND)
    assert talk.sends
    hears(talk, (1.0, SECOND), (1.5, SECOND))
    talk.arrives("q2", prompt_tokens=SECOND)
    assert talk.responses["q2"].reason is Reason.DEADLINE_UNREACHABLE


PREFIX = (1, 2, 3, 4)
BLOCK_HASH = PolicyChoice(name="block_hash")


def by_prefixes(prefixes: PolicyChoice = BLOCK_HASH, num_gateways: int = 2) -> Dialogue:
    """Replicas ``a`` and ``b``, and the longest prefix decides between them."""
    balancing = PolicyChoice(name="longest_prefix")
    talk = Dialogue(balancing=balancing, prefixes=prefixes, num_gateways=num_gateways)
    return talk.replicas(Role.UNIFIED, "a", "b")


def hears_of_prompt(talk: Dialogue, replica_id: str) -> None:
    prompts = (SentPrompt(replica_id, PREFIX),)
    talk.tell(NewsReceived(news=GatewayNews(prompts=prompts, at_s=talk.now_s)))


def test_a_prompt_that_another_gateway_has_sent_is_known_where_it_is() -> None:
    for replica_id in "ab":
        talk = by_prefixes()
        hears_of_prompt(talk, replica_id)
        talk.arrives("q", prompt_tokens=500, prefix_blocks=PREFIX)
        assert talk.sends == [f"q.0 unified to {replica_id}"]


def test_a_gateway_tells_each_prompt_that_it_sends_where_there_is_another_that_would_know_what_to_do_with_it() -> None:
    told = {"two": by_prefixes(), "alone": by_prefixes(num_gateways=1)}
    for talk in told.values():
        talk.arrives("q", prompt_tokens=500, prefix_blocks=PREFIX)

    assert {name: talk.shared_prompts for name, talk in told.items()} == {"two": [SentPrompt("a", PREFIX)], "alone": []}

    keeps_no_track = Dialogue(num_gateways=2).replicas(Role.UNIFIED, "a")
    keeps_no_track.arrives("q", prompt_tokens=500, prefix_blocks=PREFIX)
    assert (keeps_no_track.sends, keeps_no_track.shared_prompts) == (["q.0 unified to a"], [])


def test_a_prompt_that_went_to_a_replica_that_is_not_up_is_not_kept_for_one_of_that_name() -> None:
    talk = by_prefixes()
    hears_of_prompt(talk, "c")
    talk.replicas(Role.UNIFIED, "a", "b", "c")
    talk.arrives("q", prompt_tokens=500, prefix_blocks=PREFIX)
    assert talk.sends == ["q.0 unified to a"]


def test_what_an_engine_says_of_its_cache_is_heard_from_it_and_from_other_gateways_alike() -> None:
    for others in (False, True):
        talk = by_prefixes()
        for change in (CacheChange("a", PREFIX, ()), CacheChange("b", PREFIX, ()), CacheChange("a", (), PREFIX)):
            if others:
                talk.tell(NewsReceived(news=GatewayNews(cache_changes=(change,), at_s=talk.now_s)))
            else:
                talk.tell(CacheChanged(change=change))
        talk.arrives("q", prompt_tokens=500, prefix_blocks=PREFIX)
        assert talk.sends == ["q.0 unified to b"]


def test_what_a_replica_says_to_one_gateway_is_told_to_those_that_would_know_what_to_do_with_it() -> None:
    change = CacheChange("a", PREFIX, ())
    told = {
        "two": by_prefixes(),
        "alone": by_prefixes(num_gateways=1),
        "no track": Dialogue(num_gateways=2).replicas(Role.UNIFIED, "a"),
    }
    for talk in told.values():
        talk.tell(CacheChanged(change=change))

    told_on = {name: talk.shared_cache_changes for name, talk in told.items()}
    assert told_on == {"two": [change], "alone": [], "no track": []}


def test_what_is_said_of_a_replica_that_has_gone_is_forgotten() -> None:
    talk = by_prefixes()
    talk.replicas(Role.UNIFIED, "b")
    talk.tell(CacheChanged(change=CacheChange("a", PREFIX, ())))
    talk.replicas(Role.UNIFIED, "a", "b")

    talk.arrives("q", prompt_tokens=500, prefix_blocks=PREFIX)
    talk.finishes("q.0")
    talk.arrives("r", prompt_tokens=500, prefix_blocks=PREFIX)
    assert talk.sends == ["r.0 unified to a"]
