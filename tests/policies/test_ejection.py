"""Who is ejected, for how long, and how it comes back."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies import Allow, Eject, EjectionReason, Need, Reason
from policies.decisions import UNLIMITED_ATTEMPTS, EjectionDecision
from policies.ejection import NeverEject, Outlier
from policies.ejection.trail import Trail
from policies.signals import Cancelled, Completed, Dispatched, Failed, FirstToken, Superseded
from tests.policy_doubles import FakeReplica
from tests.tables import for_each

EIGHT = tuple("abcdefgh")


@dataclass(kw_only=True)
class Story:
    """A policy, and what it is told of the replicas of a pool."""

    policy: Outlier = field(default_factory=Outlier)
    replicas: Sequence[str] = EIGHT
    now_s: float = 0.0
    numbers: Any = field(default_factory=count)
    out_until_s: dict[str, float] = field(default_factory=dict)

    def sends(self, replica_id: str, expected_s: float = 0.1) -> str:
        attempt_id = f"q{next(self.numbers)}.0"
        self.told(Dispatched, attempt_id, replica_id, work_tokens=9, expected_s=expected_s)
        return attempt_id

    def told(self, kind: type[Any], attempt_id: str, replica_id: str, after_s: float = 0.0, **more: Any) -> None:
        """What became of an attempt, ``after_s`` from now; the clock stands still."""
        if kind in (FirstToken, Completed):
            more["latency_s"] = after_s
        at_s = self.now_s + after_s
        self.policy.observe(kind(request_id="q", attempt_id=attempt_id, replica_id=replica_id, at_s=at_s, **more))

    def gives_first_token(self, replica_id: str, took_s: float, expected_s: float = 0.1) -> str:
        attempt_id = self.sends(replica_id, expected_s)
        self.told(FirstToken, attempt_id, replica_id, took_s)
        return attempt_id

    def answers(self, replica_id: str, token_s: float, tokens: int = 101) -> None:
        attempt_id = self.sends(replica_id, 0.0)
        self.told(FirstToken, attempt_id, replica_id, 0.5)
        self.told(Completed, attempt_id, replica_id, 0.5 + token_s * (tokens - 1), output_tokens=tokens)

    def fails(self, replica_id: str, reason: Reason = Reason.ENGINE_ERROR, *, times: int = 1) -> None:
        for _ in range(times):
            self.told(Failed, self.sends(replica_id), replica_id, reason=reason)

    def decides(self, at_s: float | None = None) -> list[EjectionDecision]:
        """A second later, unless it is said when."""
        self.now_s = self.now_s + 1.0 if at_s is None else at_s
        found = list(self.policy.decide([FakeReplica(replica_id=each) for each in self.replicas], self.now_s))
        self.out_until_s |= {each.replica_id: self.now_s + each.for_s for each in found if isinstance(each, Eject)}
        return found

    def ejected(self) -> list[str]:
        return [each.replica_id for each in self.decides() if isinstance(each, Eject)]

    def goes_on(self, *slow: str, factor: float = 5.0, seconds: int = 10) -> list[EjectionDecision]:
        """Everybody who is not out gives a first token each second, as expected but for some."""

        def gives_its_token(replica_id: str) -> None:
            if self.now_s >= self.out_until_s.get(replica_id, 0.0):
                self.gives_first_token(replica_id, 0.1 * (factor if replica_id in slow else 1.0))

        return self.each_second(gives_its_token, seconds)

    def each_second(self, does: Callable[[str], object], seconds: int) -> list[EjectionDecision]:
        """All do the same each second; returns what has been decided."""
        found = []
        for _ in range(seconds):
            for replica_id in self.replicas:
                does(replica_id)
            found += self.decides()
        return found


def eject(replica_id: str, reason: EjectionReason, for_s: float = 10.0) -> Eject:
    return Eject(replica_id=replica_id, reason=reason, for_s=for_s)


def test_ejection_that_is_off_takes_nobody_out() -> None:
    assert NeverEject().decide([FakeReplica(replica_id="a")], 0.0) == ()


class TestSigns:
    def test_a_replica_whose_first_tokens_take_far_longer_than_its_peers_is_out(self) -> None:
        assert Story().goes_on("c") == [eject("c", EjectionReason.FIRST_TOKENS)]

    def test_a_replica_that_is_a_little_slower_than_its_peers_stays(self) -> None:
        assert Story().goes_on("c", factor=2.4, seconds=100) == []

    def test_when_all_are_slow_nobody_is_out(self) -> None:
        assert Story().goes_on(*EIGHT, factor=20.0, seconds=30) == []

    def test_when_all_become_slow_those_that_are_the_first_are_not_out(self) -> None:
        story = Story()
        assert story.goes_on() == []
        assert story.goes_on("c", "d", seconds=4) == []
        assert story.goes_on(*EIGHT, seconds=30) == []
        assert story.goes_on("c", seconds=4) == []

    def test_one_answer_that_took_a_thousand_times_as_long_is_no_reason(self) -> None:
        story = Story()
        story.goes_on()
        story.gives_first_token("c", 100.0)
        assert story.goes_on() == []

    def test_what_was_slow_at_the_same_moment_counts_once(self) -> None:
        """Those who stand behind the same long prompt are all late, and that is all that they say."""
        story = Story()
        story.goes_on()
        for _ in range(50):
            story.gives_first_token("c", 2.0)
        assert story.goes_on() == []

    def test_being_slow_now_and_then_is_forgiven(self) -> None:
        story = Story()
        for _ in range(20):
            assert story.goes_on("c", factor=100.0, seconds=2) == []
            assert story.goes_on(seconds=3) == []

    def test_long_prompts_on_one_replica_are_no_sickness(self) -> None:
        story, sizes_s = Story(), {**dict.fromkeys(EIGHT, 0.1), "c": 3.0}
        assert story.each_second(lambda each: story.gives_first_token(each, sizes_s[each], sizes_s[each]), 30) == []

    def test_a_short_prompt_may_wait_for_a_step_that_is_under_way(self) -> None:
        story, took_s = Story(), {**dict.fromkeys(EIGHT, 0.02), "c": 0.05}
        assert story.each_second(lambda each: story.gives_first_token(each, took_s[each], 0.002), 30) == []

    def test_what_has_been_slow_long_ago_is_forgotten(self) -> None:
        story = Story()
        for _ in range(10):
            assert story.goes_on("c", seconds=7) == []
            story.now_s += 31.0

    @for_each(("num_waiting", "later_s", "found"), [(5, 11.2, ["c"]), (4, 60.0, [])])
    def test_attempts_that_wait_count_before_their_first_tokens_unless_they_are_few(
        self, num_waiting: int, later_s: float, found: list[str]
    ) -> None:
        """A replica that has stopped gives no first token that could be late."""
        story = Story()
        story.goes_on()
        for _ in range(num_waiting):
            story.sends("c")

        assert story.decides(at_s=10.2) == [], "not late yet"
        assert [each.replica_id for each in story.decides(at_s=later_s)] == found

    def test_attempts_that_were_beaten_count_for_what_they_had_waited(self) -> None:
        story = Story()

        def answers_or_is_beaten(replica_id: str) -> None:
            if replica_id == "c":
                story.told(Superseded, story.sends("c"), "c", 0.6)
            else:
                story.gives_first_token(replica_id, 0.1)

        found = story.each_second(answers_or_is_beaten, 10)
        assert found[0] == eject("c", EjectionReason.FIRST_TOKENS)

    @for_each(("tokens", "found"), [(101, [eject("c", EjectionReason.TOKENS)]), (8, [])])
    def test_a_decode_replica_shows_by_the_time_of_its_tokens_unless_answers_are_short(
        self, tokens: int, found: list[Eject]
    ) -> None:
        story, token_s = Story(), {"c": 0.1}
        decided = story.each_second(
            lambda each: story.answers(each, token_s.get(each, 0.02), tokens), 9 if found else 20
        )
        assert decided == found

    def test_a_prefill_has_its_first_token_when_it_is_over(self) -> None:
        story, took_s = Story(), {"c": 0.5}
        found = story.each_second(
            lambda each: story.told(Completed, story.sends(each), each, took_s.get(each, 0.1), output_tokens=0), 9
        )
        assert found == [eject("c", EjectionReason.FIRST_TOKENS)]

    def test_failures_in_a_row_are_a_reason_at_once(self) -> None:
        story = Story()
        for _ in range(4):
            story.fails("c")
            assert story.decides(at_s=1.0) == []
        story.fails("c", Reason.REPLICA_LOST)

        assert story.decides(at_s=1.0) == [eject("c", EjectionReason.FAILURES)]

    def test_a_success_in_between_makes_failures_begin_anew(self) -> None:
        story = Story()
        story.fails("c", times=4)
        story.gives_first_token("c", 0.1)
        story.fails("c", times=4)
        assert story.decides() == []

    @for_each("reason", [Reason.INVALID_REQUEST, Reason.KV_TRANSFER_FAILED])
    def test_what_is_the_requests_or_another_replicas_fault_is_no_reason(self, reason: Reason) -> None:
        story = Story()
        story.fails("c", reason, times=20)
        assert story.decides() == []

    def test_cancelled_attempts_say_nothing(self) -> None:
        story = Story()
        for _ in range(20):
            story.told(Cancelled, story.sends("c"), "c", 9.0)
        assert story.decides() == []

    def test_only_the_signs_that_are_asked_for_count(self) -> None:
        story = Story(policy=Outlier(signs=["failures", "tokens"]))
        assert story.goes_on("c", seconds=30) == []
        story.fails("d", times=5)
        assert story.ejected() == ["d"]

    def test_only_first_tokens_take_an_engine_profile(self) -> None:
        assert Need.SERVICE_RATES in Outlier().requires
        assert Need.SERVICE_RATES not in Outlier(signs=["failures", "tokens"]).requires

    def test_pools_are_compared_each_by_itself(self) -> None:
        story, took_s = Story(), {"a": 0.1, "b": 0.1, "c": 0.9, "d": 0.9}
        for story.replicas in ("ab", "cd") * 30:
            assert story.each_second(lambda each: story.gives_first_token(each, took_s[each]), 1) == []

    def test_of_two_the_slower_one_is_out(self) -> None:
        assert Story(replicas="ab").goes_on("b") == [eject("b", EjectionReason.FIRST_TOKENS)]

    def test_one_alone_is_never_slow(self) -> None:
        assert Story(replicas="a").goes_on("a", seconds=30) == []

    def test_an_attempt_that_another_replica_took_is_nobodys_sample(self) -> None:
        story = Story()
        story.goes_on()
        for _ in range(20):
            story.told(FirstToken, story.sends("c"), "d", 9.0)
            assert story.decides() == []


class TestHowMany:
    @for_each(("num_replicas", "num_out"), [(1, 0), (2, 1), (3, 1), (4, 2), (8, 3)])
    def test_a_share_of_the_pool_rounded_up_is_out_at_the_most_and_never_all(
        self, num_replicas: int, num_out: int
    ) -> None:
        story = Story(replicas=EIGHT[:num_replicas])
        for replica_id in story.replicas:
            story.fails(replica_id, times=5)
        assert len(story.ejected()) == num_out
        assert story.ejected() == []

    def test_the_worst_go_first(self) -> None:
        story = Story(policy=Outlier(max_fraction=0.1))
        story.goes_on("a", seconds=8)
        story.fails("g", times=5)
        assert story.ejected() == ["g"]

    def test_with_no_share_nobody_is_out(self) -> None:
        assert Story(policy=Outlier(max_fraction=0)).goes_on("c") == []

    @given(st.lists(st.tuples(st.sampled_from(EIGHT[:5]), st.booleans(), st.sampled_from((0.0, 5.0))), max_size=80))
    def test_no_more_than_the_share_is_ever_out(self, script: list[tuple[str, bool, float]]) -> None:
        story, back_at_s = Story(replicas=EIGHT[:5]), dict.fromkeys(EIGHT[:5], -math.inf)
        for replica_id, is_failing, seconds in script:
            story.now_s += seconds
            if story.now_s < back_at_s[replica_id]:
                continue
            if is_failing:
                story.fails(replica_id)
            else:
                story.gives_first_token(replica_id, 0.0)
            for decision in story.decides(at_s=story.now_s):
                if isinstance(decision, Eject):
                    assert story.now_s >= back_at_s[decision.replica_id], "out is out"
                    back_at_s[decision.replica_id] = story.now_s + decision.for_s
            assert sum(story.now_s < each for each in back_at_s.values()) <= 2


class TestWayBack:
    def back(self) -> Story:
        """One of eight has been out, and its time is over."""
        story = Story()
        assert story.goes_on("c", seconds=9) == [eject("c", EjectionReason.FIRST_TOKENS)]
        assert story.goes_on() == []
        assert story.now_s == story.out_until_s["c"] == 19.0
        return story

    def test_it_takes_twice_as_many_with_each_attempt_that_goes_well(self) -> None:
        story, allowed = self.back(), []
        for _ in range(6):
            story.gives_first_token("c", 0.1)
            allowed += story.decides(at_s=19.0)

        numbers = (2, 4, 8, 16, UNLIMITED_ATTEMPTS)
        assert allowed == [Allow(replica_id="c", max_attempts=each) for each in numbers]

    def test_an_answer_is_one_good_result_and_not_two(self) -> None:
        story = self.back()
        attempt_id = story.gives_first_token("c", 0.1)
        story.told(Completed, attempt_id, "c", 2.0, output_tokens=50)
        assert story.decides() == [Allow(replica_id="c", max_attempts=2)]

    def test_it_is_out_at_once_and_for_longer_when_the_first_one_is_slow(self) -> None:
        story = self.back()
        story.gives_first_token("c", 0.5)
        assert story.decides() == [eject("c", EjectionReason.FIRST_TOKENS, 20.0)]

    def test_it_is_out_before_the_first_one_has_its_first_token(self) -> None:
        story = self.back()
        story.sends("c")
        assert story.decides() == [eject("c", EjectionReason.FIRST_TOKENS, 20.0)]

    def test_it_is_out_at_once_when_one_fails(self) -> None:
        story = self.back()
        story.gives_first_token("c", 0.1)
        story.fails("c")
        assert story.decides(at_s=19.0) == [eject("c", EjectionReason.FAILURES, 20.0)]

    def test_times_double_up_to_the_longest(self) -> None:
        story, times_s = Story(policy=Outlier(base_s=10.0, max_s=35.0, max_failures=1)), []
        for _ in range(5):
            story.fails("c")
            (decision,) = story.decides()
            assert isinstance(decision, Eject)
            times_s.append(decision.for_s)
            story.now_s += decision.for_s

        assert times_s == [10.0, 20.0, 35.0, 35.0, 35.0]

    def test_who_has_stayed_in_for_long_begins_anew(self) -> None:
        story = Story(policy=Outlier(max_s=100.0, max_failures=1))
        story.fails("c")
        story.decides()
        story.now_s = 112.0
        story.fails("c")

        assert story.decides() == [eject("c", EjectionReason.FAILURES)]

    def test_attempts_from_before_the_ejection_do_not_count(self) -> None:
        story = Story()
        late = [story.sends("c") for _ in range(9)]
        assert [each.replica_id for each in story.goes_on()] == ["c"]
        story.now_s = 40.0
        for attempt_id in late:
            story.told(FirstToken, attempt_id, "c", 0.0)

        assert story.decides() == []

    def test_it_may_be_called_back_early(self) -> None:
        """Nobody else is left: routing sends to it although its time is not over."""
        story = Story()
        story.goes_on("c", seconds=9)
        story.gives_first_token("c", 0.1)
        assert story.decides() == [Allow(replica_id="c", max_attempts=2)]

    def test_a_replica_that_has_gone_is_forgotten(self) -> None:
        story = Story()
        story.goes_on("c", seconds=9)
        story.replicas = "abdefgh"
        story.decides()
        story.replicas = EIGHT
        story.fails("c", times=5)

        assert story.decides() == [eject("c", EjectionReason.FAILURES)]


class TestTrail:
    def weighed(self, *logs: float, usual: float = 0.0, factor: float = math.e) -> float:
        trail, against = Trail(window_s=30.0), 0.0
        for number, log in enumerate(logs):
            trail.add(log, float(number))
            against = trail.weigh(usual, factor, (), float(number))
        return against

    def test_only_what_is_more_than_factor_times_as_long_speaks_against_a_replica(self) -> None:
        assert self.weighed(1.0, 1.0, 1.0) == 0.0
        assert self.weighed(1.5, 1.5, 1.5) == pytest.approx(1.5)

    def test_one_value_adds_no_more_than_one(self) -> None:
        assert self.weighed(50.0) == 1.0

    def test_what_is_usual_uses_up_what_slow_ones_have_added(self) -> None:
        assert self.weighed(9.0, 9.0, 0.0) == pytest.approx(1.0)
        assert self.weighed(-9.0, -9.0, 9.0) == 1.0, "nothing is saved up"

    @given(st.lists(st.floats(-5, 5), max_size=20), st.floats(-3, 3))
    def test_it_is_the_distance_to_what_is_usual_that_counts(self, logs: list[float], by: float) -> None:
        moved = self.weighed(*(log + by for log in logs), usual=by)
        assert moved == pytest.approx(self.weighed(*logs), abs=1e-6)

    @given(st.lists(st.floats(-5, 5), max_size=40))
    def test_it_is_never_below_nothing_and_grows_by_one_at_the_most(self, logs: list[float]) -> None:
        trail, before = Trail(window_s=30.0), 0.0
        for number, log in enumerate(logs):
            trail.add(log, float(number))
            against = trail.weigh(0.0, 2.0, (), float(number))
            assert 0.0 <= against <= before + 1.0
            before = against
