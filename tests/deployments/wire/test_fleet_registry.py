from deployments.wire.fleet_registry import FleetRegistry, SeenReplica


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


def test_a_listener_hears_everything_new_in_order() -> None:
    registry, ear = FleetRegistry(), Ear()
    registry.listen(ear)

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


def test_the_same_replicas_again_are_no_news() -> None:
    registry, ear = FleetRegistry(), Ear()
    registry.listen(ear)

    registry.publish_replicas("decode", replicas("a"))
    registry.publish_replicas("decode", replicas("a"))

    assert ear.heard == ["decode: a"]


def test_the_same_replicas_with_another_load_are_news() -> None:
    registry, ear = FleetRegistry(), Ear()
    registry.listen(ear)

    registry.publish_replicas("decode", replicas("a"))
    registry.publish_replicas("decode", replicas("a", kv_tokens=100))

    assert ear.heard == ["decode: a", "decode: a"]


def test_a_pool_that_has_lost_its_last_replica_is_news() -> None:
    registry, ear = FleetRegistry(), Ear()
    registry.listen(ear)

    registry.publish_replicas("decode", replicas("a"))
    registry.publish_replicas("decode", ())

    assert ear.heard == ["decode: a", "decode: "]


def test_every_listener_hears() -> None:
    registry, ears = FleetRegistry(), [Ear(), Ear()]
    for ear in ears:
        registry.listen(ear)

    registry.publish_accepted("q.0", "a")
    registry.publish_lost("b")

    assert [ear.heard for ear in ears] == [["a took q.0", "b is lost"]] * 2


def test_nobody_has_to_listen() -> None:
    registry = FleetRegistry()

    registry.publish_replicas("decode", replicas("a"))
    registry.publish_accepted("q.0", "a")
    registry.publish_lost("a")
