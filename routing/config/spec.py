"""What one dispatcher is made from, as data: what can be written down, and be made again elsewhere."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from policies.catalog import PolicyChoice, PolicySpec
from policies.tenancy import NO_TERMS, TenantTermsByName
from policies.views import Role
from routing.intake.slos import NO_SLOS, Slos
from routing.lanes.lanes import Lane
from routing.request.stages import NO_POOLS, PoolNames
from routing.sizing.geometry import ServiceRates


class LeaderFirst(StrEnum):
    """When requests with one prompt go one at a time: once a replica was lost with it, always at first, or never."""

    SUSPECT = "suspect"
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatcherParams:
    """Limits of the state machine.

    Args:
        max_attempts: Dispatches of one request at a stage, after which none of these is repeated any more; hedges do
            not count, and with progress they begin anew.
        max_fruitless_losses: Replicas that are lost with a request at a stage, or stand still with it, before it has
            got any further. It is given up with the last of them, as they may have died of it.
        leader_first: When one of the requests with one prompt leads and the others follow; with ``NEVER`` a prompt
            counts for nothing, and each request by itself.
        quarantine_s: How long nothing is sent to a replica after it was lost.
        probe_s: How long a replica that was out because its engine failed may take for a small request of its gateway's
            own, which has to go well before it gets clients' again; of one that was slow the profile says it. 0:
            clients' requests show whether either is well.
        retry_after_s: What a refused client is told when no policy knows better.
        prefill_window_tokens: Prompt tokens that a replica is given at a time: while it has so many of requests without
            a first token, the next ones wait at the gateway, where they can be put in order, expire and be refused. 0:
            as many as it takes requests.
        ramp_stage_s: How long a stage of a fresh replica lasts: it has one attempt at a time in the first one, and
            twice as many in each that follows. 0: as many as it takes from the start.
        waiting_room_s: How long requests wait for a pool that has lost its last replica, as far as their deadlines have
            room for that; they also wait for replicas that are out. 0: they are refused at once.
        client_retry_window_s: How long a logical request that was not answered is remembered: a retry of its client's
            has what is left of its time. 0: a retry is a request like any other.
    """

    max_attempts: int = 4
    max_fruitless_losses: int = 2
    leader_first: LeaderFirst = LeaderFirst.SUSPECT
    quarantine_s: float = 5.0
    probe_s: float = 2.0
    retry_after_s: float = 2.0
    prefill_window_tokens: int = 0
    ramp_stage_s: float = 0.5
    waiting_room_s: float = 30.0
    client_retry_window_s: float = 120.0


FIRST_THAT_FITS = PolicyChoice(name="first_that_fits")
ALWAYS_ON = PolicyChoice(name="always_on")
MAX_TOKENS = PolicyChoice(name="max_tokens")
NO_TRACKER = PolicyChoice(name="none")


@dataclass(frozen=True, slots=True, kw_only=True)
class LanesSpec:
    """Lanes, and who decides about them.

    Args:
        lanes: In order; none means that everything may go everywhere.
        classifier: Chooses a request's lane.
        guard: Turns lanes off when they lose.
    """

    lanes: tuple[Lane, ...] = ()
    classifier: PolicyChoice = FIRST_THAT_FITS
    guard: PolicyChoice = ALWAYS_ON


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatcherSpec:
    """All that makes one dispatcher decide differently from another, random streams aside.

    Args:
        planner: Chooses each request's stages.
        pools: Role of each pool, by the pool's name.
        whole_request_pools: Prefill and decode pools whose replicas also take whole requests.
        policies: A choice for every question.
        lanes: The lanes.
        slos: What requests are promised.
        length_prediction: How long answers are expected to be.
        prefixes: Who keeps track of the replicas' prefix caches.
        rates: How fast the engines are.
        kv_lease_s: How long a prefill engine holds KV blocks that nobody pulls; a decode is sent in the first two
            thirds of that.
        params: Limits of the state machine.
        tenants: What tenants are entitled to in the whole deployment, by name.
        num_gateways: Dispatchers that share the deployment's requests.
        has_load_coordinator: Whether they can tell one another anything.
        unix_ahead_s: How far the time of day is ahead of the clock that it goes by; gateways on other nodes have it in
            common with it.
    """

    planner: PolicyChoice
    pools: Mapping[str, Role]
    whole_request_pools: PoolNames = NO_POOLS
    policies: PolicySpec = field(default_factory=PolicySpec)
    lanes: LanesSpec = field(default_factory=LanesSpec)
    slos: Slos = NO_SLOS
    length_prediction: PolicyChoice = MAX_TOKENS
    prefixes: PolicyChoice = NO_TRACKER
    rates: ServiceRates = field(default_factory=ServiceRates)
    kv_lease_s: float = 30.0
    params: DispatcherParams = field(default_factory=DispatcherParams)
    tenants: TenantTermsByName = field(default_factory=lambda: NO_TERMS)
    num_gateways: int = 1
    has_load_coordinator: bool = False
    unix_ahead_s: float = 0.0


def to_json(spec: DispatcherSpec) -> str:
    """The spec as text. JSON as Python writes it keeps seeds of any size, and the order of a policy's parameters."""
    return json.dumps(msgspec.to_builtins(spec))


def from_json(text: str) -> DispatcherSpec:
    """What :func:`to_json` wrote.

    Raises:
        ValueError: It wrote something else.
    """
    return msgspec.convert(json.loads(text), DispatcherSpec)
