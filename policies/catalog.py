"""Every built-in policy by name, and the one call that builds a policy set, the same in every host.

A policy is named in the configuration by its catalog name (``least_work_left``) or, for anybody's own, by an import
path (``their_package.module:Factory``). Nothing registers itself: a policy that is not in ``CATALOG`` does not exist.
"""

import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

from policies.admission.always_admit import AlwaysAdmit
from policies.admission.bounded_queue import BoundedQueue
from policies.admission.chain import Chain
from policies.admission.codel import Codel
from policies.admission.concurrency_limit import ConcurrencyLimit
from policies.admission.credit import Credit
from policies.admission.deadline import Deadline
from policies.admission.token_bucket import TokenBucket
from policies.balancing.card import Card
from policies.balancing.join_idle_queue import JoinIdleQueue
from policies.balancing.least_cost import LeastCost
from policies.balancing.least_delay import LeastDelay
from policies.balancing.least_work_left import LeastWorkLeft
from policies.balancing.lmetric import Lmetric
from policies.balancing.longest_prefix import LongestPrefix
from policies.balancing.peak_ewma import PeakEwma
from policies.balancing.power_of_two import PowerOfTwo
from policies.balancing.power_of_two_by_work import PowerOfTwoByWork
from policies.balancing.prefix_affinity import PrefixAffinity
from policies.balancing.random_choice import RandomChoice
from policies.balancing.round_robin import RoundRobin
from policies.balancing.scored import Scored
from policies.balancing.session_affinity import SessionAffinity
from policies.contracts import Need, PolicySet, QueueingPolicy, Rng, ScalingPolicy
from policies.degradation.all_of import AllOf
from policies.degradation.cap_output import CapOutput
from policies.degradation.from_cache import FromCache
from policies.degradation.never_degrade import NeverDegrade
from policies.degradation.output_time_limit import OutputTimeLimit
from policies.degradation.to_fallback import ToFallback
from policies.ejection.never_eject import NeverEject
from policies.ejection.outlier import Outlier
from policies.engine_order.by_arrival import ByArrival
from policies.engine_order.shortest_prompt import ShortestPrompt
from policies.errors import ConfigError
from policies.estimators.work_budget import WorkBudget
from policies.hedging.dual_path import DualPath
from policies.hedging.fixed_delay import FixedDelay
from policies.hedging.no_hedge import NoHedge
from policies.hedging.percentile import Percentile
from policies.hedging.slowdown import Slowdown
from policies.hedging.tied import Tied
from policies.preemption.never_preempt import NeverPreempt
from policies.preemption.newest_sheddable import NewestSheddable
from policies.queueing.drr import Drr
from policies.queueing.edf import Edf
from policies.queueing.fcfs import Fcfs
from policies.queueing.priority_aged import PriorityAged
from policies.queueing.sjf_aged import SjfAged
from policies.queueing.vtc import Vtc
from policies.retrying.at_once import AtOnce
from policies.retrying.backoff import Backoff
from policies.retrying.never_retry import NeverRetry
from policies.scaling.fixed import Fixed
from policies.scaling.joint_by_work import JointByWork
from policies.scaling.mean_lengths import MeanLengths
from policies.scaling.queue_depth import QueueDepth
from policies.scaling.ratio import Ratio
from policies.scaling.scheduled import Scheduled
from policies.scaling.target_utilization import TargetUtilization
from policies.shedding.adaptive_throttle import AdaptiveThrottle
from policies.shedding.never_shed import NeverShed
from policies.shedding.pid import Pid
from policies.shedding.priority_threshold import PriorityThreshold
from policies.shedding.shared_fraction import SharedFraction
from policies.signals import SIGNAL_TYPES
from policies.tenancy import NO_TERMS, Quota, TenantTermsByName, check_said_once, quotas_of, terms_for
from policies.views import NO_FIRST_TOKENS, NO_PREFIXES, FirstTokenView, PrefixView, Role

Factory = Callable[..., Any]

CATALOG: Mapping[str, Mapping[str, Factory]] = {
    "admission": {
        "always_admit": AlwaysAdmit,
        "bounded_queue": BoundedQueue,
        "chain": Chain,
        "codel": Codel,
        "concurrency_limit": ConcurrencyLimit,
        "credit": Credit,
        "deadline": Deadline,
        "token_bucket": TokenBucket,
    },
    "degradation": {
        "all_of": AllOf,
        "cap_output": CapOutput,
        "from_cache": FromCache,
        "never_degrade": NeverDegrade,
        "output_time_limit": OutputTimeLimit,
        "to_fallback": ToFallback,
    },
    "shedding": {
        "adaptive_throttle": AdaptiveThrottle,
        "never_shed": NeverShed,
        "pid": Pid,
        "priority_threshold": PriorityThreshold,
        "shared_fraction": SharedFraction,
    },
    "preemption": {"never_preempt": NeverPreempt, "newest_sheddable": NewestSheddable},
    "hedging": {
        "dual_path": DualPath,
        "fixed_delay": FixedDelay,
        "no_hedge": NoHedge,
        "percentile": Percentile,
        "slowdown": Slowdown,
        "tied": Tied,
    },
    "retrying": {"at_once": AtOnce, "backoff": Backoff, "never_retry": NeverRetry},
    "ejection": {"never_eject": NeverEject, "outlier": Outlier},
    "engine_order": {"by_arrival": ByArrival, "shortest_prompt": ShortestPrompt},
    "queueing": {
        "drr": Drr,
        "edf": Edf,
        "fcfs": Fcfs,
        "priority": PriorityAged,
        "sjf_aged": SjfAged,
        "vtc": Vtc,
    },
    "balancing": {
        "card": Card,
        "join_idle_queue": JoinIdleQueue,
        "least_delay": LeastDelay,
        "least_cost": LeastCost,
        "least_work_left": LeastWorkLeft,
        "lmetric": Lmetric,
        "longest_prefix": LongestPrefix,
        "peak_ewma": PeakEwma,
        "power_of_two": PowerOfTwo,
        "power_of_two_by_work": PowerOfTwoByWork,
        "prefix_affinity": PrefixAffinity,
        "random": RandomChoice,
        "round_robin": RoundRobin,
        "scored": Scored,
        "session_affinity": SessionAffinity,
    },
    "scaling": {
        "fixed": Fixed,
        "joint_by_work": JointByWork,
        "mean_lengths": MeanLengths,
        "queue_depth": QueueDepth,
        "ratio": Ratio,
        "scheduled": Scheduled,
        "target_utilization": TargetUtilization,
    },
}
"""Question, then name, then factory."""

METHODS: Mapping[str, tuple[str, ...]] = {
    "admission": ("decide",),
    "degradation": ("decide",),
    "shedding": ("decide", "shed_fraction"),
    "preemption": ("victims",),
    "hedging": ("delay_s", "target"),
    "retrying": ("decide",),
    "ejection": ("decide",),
    "engine_order": ("place",),
    "queueing": ("push", "peek", "pop", "remove", "__len__"),
    "balancing": ("pick",),
    "scaling": ("targets",),
}
"""What answers each question; see :mod:`policies.contracts`."""

ONE_QUEUE_A_ROLE: Mapping[str, Role] = MappingProxyType({role.value: role for role in Role})
ALONE = ("admission", "degradation", "shedding", "preemption", "hedging", "retrying", "ejection", "engine_order")
"""Questions that one policy answers for the whole dispatcher."""
NOTHING: Mapping[str, Callable[[], Any]] = MappingProxyType({})
INSTEAD: Mapping[Need, str] = MappingProxyType(
    {
        Need.CLAIMS: "engines would have to ask before they begin a prompt, as emulated ones do and vLLM does not; "
        "slowdown needs no execution claims",
        Need.ENGINE_PRIORITY: "engines take requests in order of arrival; `scheduling_policy: priority` in the "
        "`engine.args` of vLLM and of emulated engines, `priority_scheduling: true` of a scenario's pools",
    }
)
"""Why a need may not be met, and what does without."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyChoice:
    """One policy as the configuration names it.

    Args:
        name: Catalog name, or ``package.module:factory``.
        params: Keyword arguments for the factory.
    """

    name: str
    params: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySpec:
    """A choice for every question; the defaults are the all-off configuration with the must-beat balancer."""

    admission: PolicyChoice = PolicyChoice(name="always_admit")
    degradation: PolicyChoice = PolicyChoice(name="never_degrade")
    shedding: PolicyChoice = PolicyChoice(name="never_shed")
    preemption: PolicyChoice = PolicyChoice(name="never_preempt")
    hedging: PolicyChoice = PolicyChoice(name="no_hedge")
    retrying: PolicyChoice = PolicyChoice(name="backoff")
    ejection: PolicyChoice = PolicyChoice(name="never_eject")
    engine_order: PolicyChoice = PolicyChoice(name="by_arrival")
    queueing: PolicyChoice = PolicyChoice(name="fcfs")
    balancing: PolicyChoice = PolicyChoice(name="least_work_left")
    scaling: PolicyChoice = PolicyChoice(name="fixed")

    @property
    def is_scaled(self) -> bool:
        """Whether a policy changes the size of pools, so that gateways have to say what is asked of them."""
        return self.scaling != PolicyChoice(name="fixed")


def build(
    spec: PolicySpec,
    *,
    rng_for: Callable[[str], Rng],
    provided: frozenset[Need],
    queues: Mapping[str, Role] = ONE_QUEUE_A_ROLE,
    prefixes: PrefixView = NO_PREFIXES,
    first_tokens: FirstTokenView = NO_FIRST_TOKENS,
    tenants: TenantTermsByName = NO_TERMS,
    num_gateways: int = 1,
    unix_ahead_s: float = 0.0,
    fallback_lanes: Sequence[str] = (),
    budget: WorkBudget | None = None,
) -> PolicySet:
    """Builds the policies that ``spec`` names; a factory gets what the host gives to it by the names of its parameters.

    Args:
        spec: The choices.
        rng_for: Gives the random stream for a purpose: ``rng``, one for each policy, so that none shifts another's.
        provided: What the host can supply.
        queues: Queues that requests wait in, each with a policy of its own, and what for: ``stage``.
        prefixes, first_tokens, num_gateways, unix_ahead_s, fallback_lanes, budget: Given under these names.
        tenants: Their ``weights`` for queueing, their ``quotas`` for admission.

    Raises:
        ConfigError: A name that is unknown or can't be imported, parameters that the factory doesn't take or that terms
            say as well, quotas that nobody looks at, a need that is not met, or signals not named in ``consumes``.
    """
    views = {"prefixes": prefixes, "first_tokens": first_tokens, "fallback_lanes": fallback_lanes}
    of_host = {**views, "num_gateways": num_gateways, "unix_ahead_s": unix_ahead_s}
    maker = _PolicyMaker(rng_for, provided, tenants, budget or WorkBudget(), of_host)
    alone = {question: maker.make(question, getattr(spec, question), question) for question in ALONE}
    maker.check_quotas(spec.admission.name)
    return PolicySet(
        **alone,
        balancers={role: maker.make("balancing", spec.balancing, f"balancing.{role}") for role in Role},
        queues={name: maker.queue(spec.queueing, name, stage) for name, stage in queues.items()},
        another_queue=lambda name: maker.queue(spec.queueing, name, queues[name]),
        shared=(maker.budget,),
    )


def build_queue(
    choice: PolicyChoice,
    stage: Role,
    *,
    rng_for: Callable[[str], Rng],
    provided: frozenset[Need],
    tenants: TenantTermsByName = NO_TERMS,
) -> QueueingPolicy:
    """Builds the policy of a queue that is in no policy set: a model's, of requests that wait for a stage.

    Raises:
        ConfigError: See :func:`build`.
    """
    queue: QueueingPolicy = _PolicyMaker(rng_for, provided, tenants, WorkBudget(), {}).queue(choice, "model", stage)
    return queue


def build_scaling(spec: PolicySpec, *, rng_for: Callable[[str], Rng], provided: frozenset[Need]) -> ScalingPolicy:
    """Builds the policy that says how many replicas each pool has; one for all gateways, so it is in no policy set.

    Raises:
        ConfigError: See :func:`build`.
    """
    maker = _PolicyMaker(rng_for, provided, NO_TERMS, WorkBudget(), {})
    policy: ScalingPolicy = maker.make("scaling", spec.scaling, "scaling")
    return policy


class _PolicyMaker:
    """Makes the policies of one set, each with a random stream of its own and with what the host gives to it."""

    def __init__(
        self,
        rng_for: Callable[[str], Rng],
        provided: frozenset[Need],
        tenants: TenantTermsByName,
        budget: WorkBudget,
        shared: Mapping[str, object],
    ) -> None:
        self._rng_for = rng_for
        self._provided = provided
        self._tenants = tenants
        self.budget = budget
        self.has_given_quotas = False
        self._of_host: Mapping[str, Callable[[], Any]]
        self._of_host = {name: _giving(each) for name, each in {**shared, "budget": budget}.items()}

    def check_quotas(self, admission: str) -> None:
        """Whether somebody looks at the tenants' quotas, if they have some.

        Raises:
            ConfigError: Nobody does.
        """
        limited = sorted(quotas_of(self._tenants))
        if limited and not self.has_given_quotas:
            allowed = f"a policy that holds tenants to their quotas, which {limited} have: token_bucket"
            raise ConfigError("policies.admission", admission, f"{allowed}, alone or in a chain")

    def _give_quotas(self) -> Mapping[str, Quota]:
        self.has_given_quotas = True
        return quotas_of(self._tenants)

    def queue(self, choice: PolicyChoice, name: str, stage: Role) -> Any:
        """The policy of one queue, for requests that wait for a stage."""
        return self.make("queueing", choice, f"queueing.{name}", {"stage": partial(Role, stage)})

    def make(
        self,
        question: str,
        choice: PolicyChoice,
        stream: str,
        more: Mapping[str, Callable[[], Any]] = NOTHING,
        field: str = "",
    ) -> Any:
        """The policy that answers a question.

        Args:
            question: Which.
            choice: The policy.
            stream: Names its random stream.
            more: What the host gives to this one, beside what it gives to all.
            field: Where the configuration names it, if it is not the only answer to its question.
        """
        field = field or f"policies.{question}"

        def make_link(index: int, name: str, params: Mapping[str, Any]) -> Any:
            link = PolicyChoice(name=name, params=params)
            return self.make(question, link, f"{stream}.{index}", more, f"{field}.params.policies.{index}")

        own: Mapping[str, Callable[[], Any]] = {"rng": lambda: self._rng_for(stream), "make_link": lambda: make_link}
        terms = dict(terms_for(question, self._tenants))
        if "quotas" in terms:
            terms["quotas"] = self._give_quotas
        check_said_once(field, choice.params, terms)
        given: Mapping[str, Callable[[], Any]] = {**self._of_host, **own, **terms, **more}
        with _at(field, f"policies.{question}"):
            policy = make_policy(field, choice, CATALOG[question], METHODS[question], given)
        needs: frozenset[Need] = getattr(policy, "requires", frozenset())
        if not isinstance(needs, frozenset | set):
            raise ConfigError(field, choice.name, "a policy whose `requires` is a frozenset of `policies.Need`")
        if not needs <= self._provided:
            raise ConfigError(field, choice.name, _what_is_provided(needs, self._provided))
        _check_signals(field, choice.name, policy)
        return policy


def _giving(value: Any) -> Callable[[], Any]:
    """What the host gives to every policy is the same thing each time."""
    return lambda: value


def _what_is_provided(needs: frozenset[Need], provided: frozenset[Need]) -> str:
    """What a policy could have needed, and what is to be known of the needs that are not met."""
    have, missing = (sorted(need.value for need in each) for each in (provided, needs - provided))
    notes = "".join(f"; {INSTEAD[need]}" for need in sorted(needs - provided) if need in INSTEAD)
    return f"a policy whose needs are within {have} (missing: {missing}{notes})"


def make_policy(
    field: str,
    choice: PolicyChoice,
    entries: Mapping[str, Factory],
    methods: Sequence[str],
    given: Mapping[str, Callable[[], Any]] = NOTHING,
) -> Any:
    """Makes what a configuration names, a policy or another exchangeable part.

    Args:
        field: Where the configuration names it, for error messages.
        choice: The name, and the parameters that the configuration gives.
        entries: Catalog names and their factories.
        methods: What it must be able to do.
        given: What the host gives to those factories that have a parameter of that name.

    Raises:
        ConfigError: Unknown name, import path that can't be imported, parameters that the factory doesn't take, or a
            thing without one of the methods.
    """
    factory = resolve(field, choice.name, entries)
    policy = _called(field, choice, factory, _arguments(field, choice, factory, given))
    missing = [name for name in methods if not callable(getattr(policy, name, None))]
    if missing:
        raise ConfigError(field, choice.name, f"a policy that has the methods {missing}")
    return policy


def _arguments(
    field: str, choice: PolicyChoice, factory: Factory, given: Mapping[str, Callable[[], Any]]
) -> inspect.BoundArguments:
    """What the configuration says and, of what the host gives, all that the factory has a parameter for."""
    try:
        signature = inspect.signature(factory)
    except ValueError as error:
        raise ConfigError(field, choice.name, "a factory that says which parameters it takes") from error
    try:
        from_host = {name: make() for name, make in given.items() if name in signature.parameters}
        return signature.bind(**choice.params, **from_host)
    except TypeError as error:
        known = [name for name in signature.parameters if name not in given]
        allowed = f"parameters {known}" if known else "no parameters"
        raise ConfigError(f"{field}.params", dict(choice.params), allowed) from error


def _called(field: str, choice: PolicyChoice, factory: Factory, arguments: inspect.BoundArguments) -> Any:
    try:
        return factory(*arguments.args, **arguments.kwargs)
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        allowed = f"a policy that can be made ({type(error).__name__}: {error})"
        if choice.params:  # more often than not one of them is of the wrong type
            raise ConfigError(f"{field}.params", dict(choice.params), allowed) from error
        raise ConfigError(field, choice.name, allowed) from error


def resolve(field: str, name: str, entries: Mapping[str, Factory]) -> Factory:
    """The factory behind a catalog name or an import path.

    Args:
        field: Where the configuration names it, for error messages.
        name: Catalog name or ``package.module:factory``.
        entries: Catalog names and their factories.

    Raises:
        ConfigError: The name is neither, or that of something that makes nothing, such as ``os:system``.
    """
    if name in entries:
        return entries[name]
    module_name, colon, attribute = name.partition(":")
    if not colon:
        raise ConfigError(field, name, f"one of {sorted(entries)}, or package.module:factory")
    try:
        factory = getattr(importlib.import_module(module_name), attribute)
    except (Exception, SystemExit) as error:  # whatever somebody's module raises
        raise ConfigError(field, name, f"an import path that works ({error})") from error
    if not (isinstance(factory, type) or inspect.isfunction(factory)) or _returns_none_of_ours(factory):
        raise ConfigError(field, name, "a class, or a function whose annotation says which class it returns")
    return factory


def _returns_none_of_ours(factory: Any) -> bool:
    """Whether it is a function that does not say that it makes something: it may do anything when it is called."""
    if isinstance(factory, type):
        return False
    returned = inspect.signature(factory).return_annotation
    return returned in (inspect.Signature.empty, None, "None")


@contextmanager
def _at(field: str, as_if_alone: str) -> Iterator[None]:
    """A policy names its parameters as if it were the only answer to its question; here it is at ``field``."""
    try:
        yield
    except ConfigError as error:
        if error.field.startswith(field):
            raise
        raise ConfigError(field + error.field.removeprefix(as_if_alone), error.value, error.allowed) from error


def _check_signals(field: str, name: str, policy: object) -> None:
    """Nobody is to wait in vain for a signal: what a policy consumes, and that it learns at all, must be said."""
    consumes = getattr(policy, "consumes", None)
    if not isinstance(consumes, frozenset) or not consumes <= SIGNAL_TYPES:
        types = sorted(each.__name__ for each in SIGNAL_TYPES)
        allowed = f"a policy with `consumes`, a frozenset of signal types (of {types}), empty if it learns nothing"
    elif consumes and not callable(getattr(policy, "observe", None)):
        allowed = f"a policy that has `observe` for what it consumes ({sorted(each.__name__ for each in consumes)})"
    elif not consumes and hasattr(policy, "observe"):
        allowed = "a policy that names in `consumes` what its `observe` wants; nothing is named, so it is never called"
    else:
        return
    raise ConfigError(field, name, allowed)
