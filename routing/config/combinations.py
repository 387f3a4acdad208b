"""Choices that are worse together than one of them alone: a deployment and a run say so by name when they start."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from policies.admission.always_admit import AlwaysAdmit
from policies.admission.bounded_queue import BoundedQueue
from policies.catalog import CATALOG, resolve
from policies.contracts import Need
from policies.queueing.edf import Edf
from policies.queueing.fcfs import Fcfs
from policies.queueing.sjf_aged import SjfAged
from policies.shedding.never_shed import NeverShed
from routing.config.spec import NO_TRACKER, DispatcherSpec


@dataclass(frozen=True, slots=True)
class _Losing:
    """A combination that works, and loses by it.

    Args:
        is_met: Whether a spec has it.
        says: Which it is, and what to choose instead.
    """

    is_met: Callable[[DispatcherSpec], bool]
    says: Callable[[DispatcherSpec], str]


def losing(spec: DispatcherSpec) -> tuple[str, ...]:
    """What to warn of in a spec, one sentence each.

    Raises:
        ConfigError: A policy that does not exist.
    """
    return tuple(each.says(spec) for each in LOSING if each.is_met(spec))


def _factory(spec: DispatcherSpec, question: str) -> Any:
    return resolve(f"policies.{question}", getattr(spec.policies, question).name, CATALOG[question])


def _has_homes(spec: DispatcherSpec) -> bool:
    return hasattr(_factory(spec, "balancing"), "home")


def _goes_by_prefixes_where_there_is_room(spec: DispatcherSpec) -> bool:
    needs: frozenset[Need] = getattr(_factory(spec, "balancing"), "requires", frozenset())
    return bool(spec.params.prefill_window_tokens) and Need.PREFIXES in needs and not _has_homes(spec)


def _learns_in_one_queue(spec: DispatcherSpec) -> bool:
    return _has_homes(spec) and bool(getattr(_factory(spec, "queueing"), "consumes", ()))


def _admits_by_waits_that_others_do_not_tell(spec: DispatcherSpec) -> bool:
    return _reckons_with_first_tokens(spec) and spec.num_gateways > 1 and not spec.has_load_coordinator


def _reckons_with_first_tokens(spec: DispatcherSpec) -> bool:
    return Need.FIRST_TOKEN in getattr(_factory(spec, "admission"), "requires", ())


def _sheds_as_one(spec: DispatcherSpec) -> bool:
    needs: frozenset[Need] = getattr(_factory(spec, "shedding"), "requires", frozenset())
    return Need.LOAD_COORDINATOR in needs


def _sheds_what_admission_would_serve(spec: DispatcherSpec) -> bool:
    return _sheds_as_one(spec) and _reckons_with_first_tokens(spec)


def _sheds_by_waits_that_are_in_the_engines(spec: DispatcherSpec) -> bool:
    return _sheds_as_one(spec) and not spec.params.prefill_window_tokens


def _sheds_whole_sessions(spec: DispatcherSpec) -> bool:
    return _sheds_as_one(spec) and bool(spec.params.prefill_window_tokens) and not _reckons_with_first_tokens(spec)


def _holds_back_what_nobody_refuses(spec: DispatcherSpec) -> bool:
    is_admitted = _factory(spec, "admission") is AlwaysAdmit
    is_kept = _factory(spec, "shedding") is NeverShed
    is_for_all = _factory(spec, "queueing") in (Fcfs, Edf, SjfAged)
    return bool(spec.params.prefill_window_tokens) and is_admitted and is_kept and is_for_all


def _counts_what_caches_have(spec: DispatcherSpec) -> bool:
    is_blind = spec.prefixes == NO_TRACKER
    return bool(spec.params.prefill_window_tokens) and is_blind and _factory(spec, "admission") is BoundedQueue


def _admits_to_queues_that_it_cannot_order(spec: DispatcherSpec) -> bool:
    return not spec.params.prefill_window_tokens and _reckons_with_first_tokens(spec)


LOSING = (
    _Losing(
        _sheds_what_admission_would_serve,
        lambda spec: (
            f"policies.shedding {spec.policies.shedding.name} with policies.admission {spec.policies.admission.name}: "
            "what is given up for whole sessions' sake could mostly have been in time, so fewer calls are; never_shed, "
            "unless conversations that are served to their end are all that counts"
        ),
    ),
    _Losing(
        _sheds_by_waits_that_are_in_the_engines,
        lambda spec: (
            f"policies.shedding {spec.policies.shedding.name} without gateway.prefill_window_tokens: it takes for the "
            "capacity what is sent while others wait, and nobody waits where it looks; two steps of an engine, 4096, "
            "will do"
        ),
    ),
    _Losing(
        _sheds_whole_sessions,
        lambda spec: (
            f"policies.shedding {spec.policies.shedding.name} with prefill_window_tokens "
            f"{spec.params.prefill_window_tokens}: of sessions that are given up whole some calls could have been in "
            "time, two of a hundred requests; it is for conversations that are served to their end"
        ),
    ),
    _Losing(
        _holds_back_what_nobody_refuses,
        lambda spec: (
            f"prefill_window_tokens {spec.params.prefill_window_tokens} with policies.admission "
            f"{spec.policies.admission.name}: replicas get less at a time, and nothing refuses what will be late; "
            "deadline does, or leave the window out"
        ),
    ),
    _Losing(
        _counts_what_caches_have,
        lambda spec: (
            f"policies.admission {spec.policies.admission.name} with prefill_window_tokens "
            f"{spec.params.prefill_window_tokens} and no policies.prefixes: of conversations replicas get too little "
            "at a time, as prompts count whole that caches have; block_hash counts what is left to compute"
        ),
    ),
    _Losing(
        _admits_to_queues_that_it_cannot_order,
        lambda spec: (
            f"policies.admission {spec.policies.admission.name} without gateway.prefill_window_tokens: requests wait "
            "in the engines, where none can go before another or be refused; two steps of an engine, 4096, will do"
        ),
    ),
    _Losing(
        _admits_by_waits_that_others_do_not_tell,
        lambda spec: (
            f"policies.admission {spec.policies.admission.name} with {spec.num_gateways} gateways and no "
            "gateway.load_coordinator: no gateway knows what waits at the others, and each lets in too much"
        ),
    ),
    _Losing(
        _goes_by_prefixes_where_there_is_room,
        lambda spec: (
            f"policies.balancing {spec.policies.balancing.name} with prefill_window_tokens "
            f"{spec.params.prefill_window_tokens}: the replica that has a prefix seldom has room for it, and prompts "
            "are computed again elsewhere; least_delay waits for it where that pays"
        ),
    ),
    _Losing(
        _learns_in_one_queue,
        lambda spec: (
            f"policies.balancing {spec.policies.balancing.name} with policies.queueing {spec.policies.queueing.name}: "
            "that order is learned from signals and kept in one queue, so no request waits for the replica that has "
            "its prefix; edf, fcfs, priority_aged and sjf_aged let them"
        ),
    ),
)
