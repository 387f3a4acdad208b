from cluster import Seeds
from tests.tables import for_each


def draws(seed: int, name: str) -> list[int]:
    stream = Seeds(seed).stream(name)
    return [stream.randrange(1000) for _ in range(20)]


def test_the_same_name_gives_the_same_stream() -> None:
    assert draws(7, "balancer") == draws(7, "balancer")


@for_each(("seed", "name"), [(7, "arrivals"), (8, "balancer")], ids=["other_name", "other_seed"])
def test_another_name_or_seed_gives_another_stream(seed: int, name: str) -> None:
    assert draws(7, "balancer") != draws(seed, name)


def test_draws_from_one_stream_do_not_shift_another() -> None:
    seeds = Seeds(7)
    arrivals, balancer = seeds.stream("arrivals"), seeds.stream("balancer")
    for _ in range(5):
        arrivals.random()

    assert [balancer.randrange(1000) for _ in range(20)] == draws(7, "balancer")


def test_the_first_values_are_the_same_for_ever() -> None:
    """Pinned: if they change, every published simulation changes with them."""
    assert draws(7, "balancer")[:4] == [501, 817, 758, 77]
    assert Seeds(7).stream("arrivals").random() == 0.47479133654854766
