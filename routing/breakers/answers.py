"""What policies may answer, by question and method, and what is answered in their place.

The contracts say it in words (:mod:`policies.contracts`); here it is checked, for policies of somebody's own.
"""

import math
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from policies.admission.always_admit import AlwaysAdmit
from policies.balancing.least_work_left import LeastWorkLeft
from policies.contracts import MOST_PLACE
from policies.decisions import (
    ADMIT,
    Admit,
    Again,
    Allow,
    Degradation,
    Eject,
    EjectionReason,
    GiveUp,
    Keep,
    Reason,
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
from routing.request.stages import DISAGGREGATED, UNIFIED

IsAllowed = Callable[..., bool]
"""Given an answer, and what was asked."""


def _is_number(answer: Any, least: float, most: float = math.inf) -> bool:
    return isinstance(answer, int | float) and not isinstance(answer, bool) and least <= answer <= most


def _is_time(answer: Any) -> bool:
    return _is_number(answer, 0.0) and answer < math.inf


def _is_refusal(answer: Any) -> bool:
    return isinstance(answer, Reject) and isinstance(answer.reason, Reason) and _is_time(answer.retry_after_s)


def _is_admission(answer: Any, *_: Any) -> bool:
    return isinstance(answer, Admit) or _is_refusal(answer)


def _is_start(answer: Any, *_: Any) -> bool:
    return isinstance(answer, Admit | Wait) or _is_refusal(answer)


def _is_shedding(answer: Any, *_: Any) -> bool:
    return isinstance(answer, Keep) or _is_refusal(answer)


def _is_fraction(answer: Any, *_: Any) -> bool:
    return _is_number(answer, 0.0, 1.0)


def _is_degradation(lanes: Collection[str], answer: Any, *_: Any) -> bool:
    if not isinstance(answer, Degradation) or answer.lane not in ("", *lanes):
        return False
    is_length = isinstance(answer.max_output_tokens, int) and answer.max_output_tokens >= 1
    return is_length and _is_number(answer.output_time_limit_s, 0.0) and answer.output_time_limit_s > 0.0


def _are_victims(answer: Any, request: Any, num_wanted: int, slots: Any, now_s: float) -> bool:
    stoppable = {id(each) for each in slots.stoppable()}
    named = [id(each) for each in answer]
    return len(named) == len(set(named)) <= num_wanted and set(named) <= stoppable


def _is_delay(answer: Any, *_: Any) -> bool:
    return _is_number(answer, 0.0)


def _is_target(answer: Any, request: Any, attempt: Any, candidates: Any, now_s: float) -> bool:
    return answer is None or candidates.has(answer)


def _is_retry(answer: Any, *_: Any) -> bool:
    return isinstance(answer, GiveUp) or (isinstance(answer, Again) and _is_time(answer.after_s))


def _are_ejections(answer: Any, pool: Any, now_s: float) -> bool:
    up = {each.replica_id for each in pool}
    return all(each.replica_id in up and _is_ejection(each) for each in answer)


def _is_ejection(decision: Any) -> bool:
    if isinstance(decision, Eject):
        is_named = isinstance(decision.reason, EjectionReason) and isinstance(decision.attempts_then, int)
        return is_named and _is_time(decision.for_s) and decision.for_s > 0.0 and decision.attempts_then >= 1
    return isinstance(decision, Allow) and isinstance(decision.max_attempts, int) and decision.max_attempts >= 1


def _is_place(answer: Any, *_: Any) -> bool:
    return isinstance(answer, int) and _is_number(answer, 0, MOST_PLACE)


def _is_plan(answer: Any, *_: Any) -> bool:
    return answer in (UNIFIED, DISAGGREGATED)


def _is_pick(answer: Any, request: Any, candidates: Any, now_s: float) -> bool:
    return bool(candidates.has(answer))


def _is_home(answer: Any, request: Any, live: Any, *_: Any) -> bool:
    return answer is None or any(each is answer for each in live)


_ANSWERS: Mapping[str, Mapping[str, IsAllowed]] = {
    "admission": {"decide": _is_admission, "start": _is_start},
    "shedding": {"decide": _is_shedding, "shed_fraction": _is_fraction},
    "preemption": {"victims": _are_victims},
    "hedging": {"delay_s": _is_delay, "target": _is_target},
    "retrying": {"decide": _is_retry},
    "ejection": {"decide": _are_ejections},
    "engine_order": {"place": _is_place},
    "balancing": {"pick": _is_pick, "home": _is_home},
    "planning": {"plan": _is_plan},
}
"""Question, then method; some methods need not be there."""


def answers_to(question: str, lanes: Collection[str]) -> Mapping[str, IsAllowed]:
    """What may be answered, by method.

    Args:
        question: What a policy answers.
        lanes: Names of all lanes.
    """
    return {"decide": partial(_is_degradation, lanes)} if question == "degradation" else _ANSWERS[question]


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
}
"""Who answers in the place of a policy; they keep nothing, and are everybody's. A planner's depends on the pools."""
ALSO_INSTEAD: Mapping[str, Any] = {"start": ADMIT, "home": None}
"""What is answered in the place of methods that these have not."""
