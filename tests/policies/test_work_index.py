from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cluster import Seeds
from policies.queueing.work_index import MOST_IN_A_CHUNK, WorkIndex
from tests.policy_doubles import a_request
from tests.tables import for_each


@for_each("seed", range(5))
def test_many_requests_are_in_order_and_their_work_adds_up(seed: int) -> None:
    script, index = Seeds(seed).stream("keys"), WorkIndex()
    keys = [script.randrange(51) for _ in range(script.randrange(2, 4) * MOST_IN_A_CHUNK + seed)]
    for number, key in enumerate(keys):
        index.push(a_request(f"{number}"), (key,), 1.0)

    assert [index.work_before_s("new", (key,)) for key in range(51)] == [
        sum(each <= key for each in keys) for key in range(51)
    ]
    assert [index.pop().request_id for _ in range(len(keys))] == [
        f"{number}" for _, number in sorted((key, number) for number, key in enumerate(keys))
    ]


class IndexMachine(RuleBasedStateMachine):
    """The index against a list that is sorted anew each time."""

    def __init__(self) -> None:
        super().__init__()
        self.index = WorkIndex()
        self.model: list[tuple[float, int, str, float]] = []
        self.num_pushed = 0

    @rule(keys=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 1000)), min_size=1, max_size=300))
    def push(self, keys: list[tuple[int, int]]) -> None:
        for key, work in keys:
            self.num_pushed += 1
            self.index.push(a_request(f"{self.num_pushed}"), (key,), work)
            self.model.append((key, self.num_pushed, f"{self.num_pushed}", work))
        self.model.sort()

    @precondition(lambda self: self.model)
    @rule(num=st.integers(1, 300))
    def pop(self, num: int) -> None:
        for _ in range(min(num, len(self.model))):
            assert self.index.peek().request_id == self.model[0][2]
            assert self.index.pop().request_id == self.model.pop(0)[2]

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from(self.model))
        self.model.remove(entry)
        assert self.index.remove(entry[2])
        assert not self.index.remove(entry[2])

    @rule(key=st.integers(-1, 10))
    def a_new_one_is_behind_all_of_its_key(self, key: int) -> None:
        expected = sum(each[3] for each in self.model if each[0] <= key)
        assert self.index.work_before_s("new", (key,)) == expected

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def one_that_waits_is_behind_those_before_it(self, data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(self.model) - 1))
        key, _, request_id, _ = self.model[place]
        assert self.index.work_before_s(request_id, (key,)) == sum(each[3] for each in self.model[:place])

    @invariant()
    def nobody_is_lost(self) -> None:
        assert len(self.index) == len(self.model)


TestIndexMachine = IndexMachine.TestCase
TestIndexMachine.settings = settings(max_examples=25, stateful_step_count=30)


def test_work_that_came_and_went_leaves_nothing_behind() -> None:
    index = WorkIndex()
    index.push(a_request("last"), (9.0,), 0.25)
    for number in range(1000):
        index.push(a_request(f"{number}"), (0.1 * number,), 0.1)
    for number in range(1000):
        index.remove(f"{number}")

    assert index.work_before_s("new", (999.0,)) == 0.25
