"""What policies may answer, by question and method, and what is answered in their place.

The contracts say it in words (:mod:`policies.contracts`); here it is checked, for policies of somebody's own.
"""

import math
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, NamedTuple

from policies.admission.always_admit import AlwaysAdmit
from policies.balancing.least_work_left import LeastWorkLeft
from policies.contracts import MOST_PLACE
from policies.decisions import (
    ADMIT,
    LOAD_REASONS,
    Admit,
    Again,
    Allow,
    Degradation,
    Eject,
    EjectionReason,
    GiveUp,
    Keep,
    Reject,
    Wait,
)
from policies.degradation.never_degrade import NeverDegrade
from policies.ejection.never_eject import NeverEject
from policies.engine_order.by_arrival import ByArrival
from policies.hedging.no_hedge import NoHedge
from policies.preemption.never_preempt import NeverPreempt
from policies.retrying.at_once import AtOnce
from policies.shedding.never_shed import NeverShed
from routing.lanes.classifiers import FirstThatFits
from routing.lanes.guard import AlwaysOn
from routing.prefixes.prefix_tracking import NoPrefixTracker
from routing.request.stages import DISAGGREGATED, UNIFIED
from routing.sizing.length_prediction import MaxTokens, OutputEstimate

IsAllowed = Callable[..., bool]
"""Given an answer, and what was asked."""
MOST_TIME_S = 1e9
"""Thirty years. A whole number may be too long for a float, and raise where it is added to one."""
MOST_COUNT = 2**31 - 1


class MayAnswer(NamedTuple):
    """What a method may answer.

    Args:
        is_allowed: Whether it may be that.
        read: What is made of an answer first: one that is gone through twice may be empty the second time.
    """

    is_allowed: IsAllowed
    read: Callable[[Any], Any] = lambda answer: answer


def _is_number(answer: Any, least: float, most: float) -> bool:
    return isinstance(answer, int | float) and not isinstance(answer, bool) and least <= answer <= most


def _is_time(answer: Any) -> bool:
    return _is_number(answer, 0.0, MOST_TIME_S)


def _is_time_or_never(answer: Any) -> bool:
    return _is_time(answer) or (type(answer) is float and answer == math.inf)


def _is_count(answer: Any) -> bool:
    return isinstance(answer, int) and _is_number(answer, 1, MOST_COUNT)


def _is_refusal(answer: Any) -> bool:
    """For a reason that is the load; what else happens to requests is not for policies to say."""
    return type(answer) is Reject and answer.reason in LOAD_REASONS and _is_time(answer.retry_after_s)


def _is_admission(answer: Any, *_: Any) -> bool:
    return type(answer) is Admit or _is_refusal(answer)


def _is_start(answer: Any, *_: Any) -> bool:
    return type(answer) in (Admit, Wait) or _is_refusal(answer)


def _is_shedding(answer: Any, *_: Any) -> bool:
    return type(answer) is Keep or _is_refusal(answer)


def _is_fraction(answer: Any, *_: Any) -> bool:
    return _is_number(answer, 0.0, 1.0)


def _is_degradation(lanes: Collection[str], answer: Any, *_: Any) -> bool:
    if type(answer) is not Degradation or answer.lane not in ("", *lanes):
        return False
    is_timed = _is_time_or_never(answer.output_time_limit_s) and answer.output_time_limit_s > 0.0
    return is_timed and _is_count(answer.max_output_tokens)


def _are_victims(answer: Any, request: Any, num_wanted: int, slots: Any, now_s: float) -> bool:
    stoppable = {id(each) for each in slots.stoppable()}
    named = [id(each) for each in answer]
    return len(named) == len(set(named)) <= num_wanted and set(named) <= stoppable


def _is_delay(answer: Any, *_: Any) -> bool:
    return _is_time_or_never(answer)


def _is_target(answer: Any, request: Any, attempt: Any, candidates: Any, now_s: float) -> bool:
    return answer is None or candidates.has(answer)


def _is_retry(answer: Any, *_: Any) -> bool:
    return type(answer) is GiveUp or (type(answer) is Again and _is_time(answer.after_s))


def _are_ejections(answer: Any, pool: Any, now_s: float) -> bool:
    up = {each.replica_id for each in pool}
    return all(each.replica_id in up and _is_ejection(each) for each in answer)


def _is_ejection(decision: Any) -> bool:
    if type(decision) is Eject:
        is_timed = _is_time(decision.for_s) and decision.for_s > 0.0
        return is_timed and isinstance(decision.reason, EjectionReason) and _is_count(decision.attempts_then)
    return type(decision) is Allow and _is_count(decision.max_attempts)


def _is_place(answer: Any, *_: Any) -> bool:
    return isinstance(answer, int) and _is_number(answer, 0, MOST_PLACE)


def _is_plan(answer: Any, *_: Any) -> bool:
    return answer in (UNIFIED, DISAGGREGATED)


def _is_pick(answer: Any, request: Any, candidates: Any, now_s: float) -> bool:
    return bool(candidates.has(answer))


def _is_home(answer: Any, request: Any, live: Any, *_: Any) -> bool:
    return answer is None or any(each is answer for each in live)


def _is_estimate(answer: Any, request: Any) -> bool:
    if type(answer) is not OutputEstimate or not (_is_count(answer.tokens) and _is_count(answer.high_tokens)):
        return False
    return bool(answer.tokens <= answer.high_tokens <= request.max_output_tokens)


def _is_length(answer: Any, request: Any, level: float) -> bool:
    return _is_count(answer) and bool(answer <= request.max_output_tokens)


def _is_one_of_the_lanes(answer: Any, request: Any, lanes: Any, *_: Any) -> bool:
    return any(each is answer for each in lanes)


def _is_yes_or_no(answer: Any, *_: Any) -> bool:
    return isinstance(answer, bool)


def _are_cached_tokens(answer: Any, request: Any) -> bool:
    return all(
        isinstance(name, str) and isinstance(tokens, int) and _is_number(tokens, 0, request.prompt_tokens)
        for name, tokens in answer.items()
    )


def _is_ignored(answer: Any, *_: Any) -> bool:
    return True


_TOLD = MayAnswer(_is_ignored)
"""Of a method that is told something, and asked nothing."""
_ANSWERS: Mapping[str, Mapping[str, MayAnswer]] = {
    "admission": {"decide": MayAnswer(_is_admission), "start": MayAnswer(_is_start)},
    "shedding": {"decide": MayAnswer(_is_shedding), "shed_fraction": MayAnswer(_is_fraction)},
    "preemption": {"victims": MayAnswer(_are_victims, tuple)},
    "hedging": {"delay_s": MayAnswer(_is_delay), "target": MayAnswer(_is_target)},
    "retrying": {"decide": MayAnswer(_is_retry)},
    "ejection": {"decide": MayAnswer(_are_ejections, tuple)},
    "engine_order": {"place": MayAnswer(_is_place)},
    "balancing": {"pick": MayAnswer(_is_pick), "home": MayAnswer(_is_home)},
    "planning": {"plan": MayAnswer(_is_plan)},
    "length_prediction": {"predict": MayAnswer(_is_estimate), "quantile_tokens": MayAnswer(_is_length)},
    "lanes.classifier": {"classify": MayAnswer(_is_one_of_the_lanes)},
    "lanes.guard": {"look": _TOLD, "are_on": MayAnswer(_is_yes_or_no)},
    "prefixes": {
        "cached_tokens": MayAnswer(_are_cached_tokens, dict),
        **dict.fromkeys(("sent", "sent_elsewhere", "cache_changed", "forget"), _TOLD),
    },
}
"""Question, then method; some methods need not be there."""


def answers_to(question: str, lanes: Collection[str]) -> Mapping[str, MayAnswer]:
    """What may be answered, by method.

    Args:
        question: What a policy answers.
        lanes: Names of all lanes.
    """
    return {"decide": MayAnswer(partial(_is_degradation, lanes))} if question == "degradation" else _ANSWERS[question]


INSTEAD: Mapping[str, Any] = {
    "admission": AlwaysAdmit(),
    "degradation": NeverDegrade(),
    "shedding": NeverShed(),
    "preemption": NeverPreempt(),
    "hedging": NoHedge(),
    "retrying": AtOnce(),
    "ejection": NeverEject(),
    "engine_order": ByArrival(),
    "balancing": LeastWorkLeft(),
    "length_prediction": MaxTokens(),
    "lanes.classifier": FirstThatFits(),
    "lanes.guard": AlwaysOn(),
    "prefixes": NoPrefixTracker(),
}
"""Who answers in the place of a policy or a part; they keep nothing, and are everybody's. A planner's depends on the
pools.
"""
ALSO_INSTEAD: Mapping[str, Any] = {"start": ADMIT, "home": None}
"""What is answered in the place of methods that these have not."""
