from deployments.wire.fleet_registry import FleetRegistry, SeenReplica
from tests.tables import for_each


class Ear:
    """Writes down what it hears."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def on_replicas(self, pool: str, replicas: tuple[SeenReplica, ...]) -> None:
        self.heard.append(f"{pool}: {' '.join(each.replica_id for each in replicas)}")

    def on_accepted(self, attempt_id: str, replica_id: str) -> None:
        self.heard.append(f"{replica_id} took {attempt_id}")

    def on_replica_lost(self, replica_id: str) -> None:
        self.heard.append(f"{replica_id} is lost")


def replicas(*replica_ids: str, kv_tokens: int = 0) -> tuple[SeenReplica, ...]:
    return tuple(
        SeenReplica(replica_id=each, node_id="n", max_ongoing_requests=8, stats={"kv_tokens": kv_tokens})
        for each in replica_ids
    )


def listening() -> tuple[FleetRegistry, Ear]:
    registry, ear = FleetRegistry(), Ear()
    registry.listen(ear)
    return registry, ear


def test_a_listener_hears_everything_new_in_order() -> None:
    registry, ear = listening()
    registry.publish_replicas("decode", replicas("a", "b"))
    registry.publish_accepted("q.0", "a")
    registry.publish_lost("a")
    registry.publish_replicas("decode", replicas("b"))

    assert ear.heard == ["decode: a b", "a took q.0", "a is lost", "decode: b"]


def test_a_listener_that_comes_late_is_told_the_last_of_each_pool() -> None:
    registry, ear = FleetRegistry(), Ear()
    registry.publish_replicas("decode", replicas("a"))
    registry.publish_replicas("prefill", replicas("p"))
    registry.publish_replicas("decode", replicas("b"))
    registry.listen(ear)

    assert sorted(ear.heard) == ["decode: b", "prefill: p"]


@for_each(
    ("then", "heard"),
    [(replicas("a"), []), (replicas("a", kv_tokens=100), ["decode: a"]), ((), ["decode: "])],
    ids=["the same again", "another load", "the last has gone"],
)
def test_the_same_replicas_are_news_when_their_load_is_another_or_they_have_gone(
    then: tuple[SeenReplica, ...], heard: list[str]
) -> None:
    registry, ear = listening()
    registry.publish_replicas("decode", replicas("a"))
    registry.publish_replicas("decode", then)
    assert ear.heard == ["decode: a", *heard]


@for_each("num_ears", [0, 2])
def test_every_listener_hears_and_nobody_has_to_listen(num_ears: int) -> None:
    registry, ears = FleetRegistry(), [Ear() for _ in range(num_ears)]
    for ear in ears:
        registry.listen(ear)
    registry.publish_replicas("decode", replicas("a"))
    registry.publish_accepted("q.0", "a")
    registry.publish_lost("b")

    assert [ear.heard for ear in ears] == [["decode: a", "a took q.0", "b is lost"]] * num_ears
