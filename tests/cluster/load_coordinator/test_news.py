"""What is new with one gateway the others know after they have asked, on their own clocks."""

from cluster.load_coordinator.news import MOST_PROMPTS, MOST_SHARED, NewsRelay, UnsharedNews
from routing.request.news import NO_WORK, FirstArrival, GatewayNews, ReplicaWork, SentPrompt, SharedWork


def arrival(key: int, arrival_s: float = 0.0) -> FirstArrival:
    return FirstArrival(key=key, request_id=str(key), arrival_s=arrival_s, deadline_s=arrival_s + 60.0)


def asks(relay: NewsRelay, gateway: str, *arrivals: FirstArrival, at_s: float = 0.0) -> list[int]:
    """Keys of what a gateway hears that says so much."""
    heard = relay.exchange(gateway, GatewayNews(arrivals=arrivals, at_s=at_s), at_s)
    return [each.key for each in heard.arrivals]


def works(relay: NewsRelay, gateway: str, work: SharedWork = NO_WORK, *, at_s: float = 0.0) -> SharedWork:
    """Work of the others that a gateway hears of that has so much."""
    return relay.exchange(gateway, GatewayNews(work=work, at_s=at_s), at_s).work


def test_each_gateway_hears_once_of_what_the_others_have_not_answered() -> None:
    relay = NewsRelay()
    for gateway in "abc":
        assert asks(relay, gateway) == []
    assert asks(relay, "a", arrival(1), arrival(2)) == []

    assert asks(relay, "b", arrival(3)) == [1, 2]
    assert asks(relay, "b") == []
    assert asks(relay, "c") == [1, 2, 3]
    assert asks(relay, "a") == [3]


def test_each_gateway_hears_of_all_others_work_together_and_not_of_its_own() -> None:
    relay = NewsRelay()
    works(relay, "a", SharedWork(waiting={"q": ((1.0, 100),)}, replicas={"r": ReplicaWork(10, 20, 30)}))
    works(relay, "b", SharedWork(waiting={"q": ((2.0, 50),)}, replicas={"r": ReplicaWork(1, 2, 3)}))

    assert works(relay, "c") == SharedWork(
        waiting={"q": ((1.0, 100), (2.0, 50))}, replicas={"r": ReplicaWork(11, 22, 33)}
    )
    assert works(relay, "a") == SharedWork(waiting={"q": ((2.0, 50),)}, replicas={"r": ReplicaWork(1, 2, 3)})


def test_work_of_a_gateway_that_has_not_told_of_it_for_a_while_counts_for_nothing() -> None:
    relay = NewsRelay()
    works(relay, "a", SharedWork(replicas={"r": ReplicaWork(10)}))
    assert works(relay, "b", at_s=0.4).replicas
    assert works(relay, "b", at_s=0.6) == NO_WORK


def test_a_gateway_that_has_gone_is_forgotten_and_begins_anew() -> None:
    relay = NewsRelay()
    asks(relay, "a"), asks(relay, "b")
    asks(relay, "a", arrival(1), at_s=1.0)
    asks(relay, "a", at_s=12.0)

    assert asks(relay, "b", at_s=12.0) == []


def test_times_are_on_the_clock_of_whoever_hears() -> None:
    """The first gateway's clock is 100 s behind the relay's, the second's 7 s ahead of it."""
    relay = NewsRelay()
    relay.exchange("b", GatewayNews(at_s=107.0), 100.0)
    work = SharedWork(waiting={"q": ((1.0, 100),)})
    relay.exchange("a", GatewayNews(arrivals=(arrival(1, -2.0),), work=work, at_s=0.0), 100.0)
    heard = relay.exchange("b", GatewayNews(at_s=107.1), 100.1).on_clock(107.1)

    assert heard.arrivals == (arrival(1, 105.0),)
    assert heard.work.waiting == {"q": ((108.0, 100),)}


def test_each_gateway_hears_once_which_prompts_the_others_have_sent() -> None:
    relay = NewsRelay()
    relay.exchange("b", GatewayNews(at_s=0.0), 0.0)
    sent = SentPrompt("r", (1, 2))
    assert relay.exchange("a", GatewayNews(prompts=(sent,), at_s=0.0), 0.0).prompts == ()

    assert relay.exchange("b", GatewayNews(at_s=0.0), 0.0).on_clock(9.0).prompts == (sent,)
    assert relay.exchange("b", GatewayNews(at_s=0.0), 0.0).prompts == ()


def test_what_did_not_arrive_goes_with_the_next_and_the_latest_are_kept() -> None:
    unshared = UnsharedNews()
    unshared.add_arrival(arrival(0))
    lost = unshared.take(NO_WORK, 0.0)
    unshared.add_arrival(arrival(1))
    unshared.give_back(lost)
    assert [each.key for each in unshared.take(NO_WORK, 0.0).arrivals] == [0, 1]

    for key in range(MOST_SHARED):
        unshared.add_arrival(arrival(key))
    for key in range(MOST_PROMPTS + 1):
        unshared.add_prompt(SentPrompt("r", (key,)))
    unshared.give_back(lost)
    kept = unshared.take(NO_WORK, 0.0)
    assert [each.key for each in kept.arrivals] == list(range(MOST_SHARED))
    assert [each.blocks[0] for each in kept.prompts] == list(range(1, MOST_PROMPTS + 1))
