"""The life of a request: a state machine that turns policies' answers into effects, without I/O.

A host (the Serve gateway, the simulator) feeds events to :class:`Dispatcher` and carries the effects out.

Rooms:
    attempts: attempts in flight: hedged, recovered when they are lost, preempted.
    breakers: circuit breakers around policies of somebody's own.
    config: what a dispatcher is made from, as data, and the parts that are made of it.
    fleet: this gateway's view of the replicas, and which of them get nothing for a while.
    intake: a request that comes in: shed or not, sized up, put in a lane, given a plan, admitted or refused.
    lanes: lanes: who goes into which, which replicas each may use, and whether they help now.
    prefixes: what this gateway believes to be in the replicas' prefix caches.
    queues: where requests wait for a replica.
    request: a request on its way: what is told of it, what is asked of a host, its state, its attempts, and how it
        is refused.
    sizing: what a request will cost: its geometry, and how long its answer may be.
"""

from routing.assembly import build_dispatcher
from routing.config.catalog import PLANNERS, PREDICTORS, build_planner, build_predictor
from routing.config.parts import reconfigured
from routing.config.spec import DispatcherParams, DispatcherSpec
from routing.dispatcher import Dispatcher
from routing.intake.planning import Planner
from routing.request.effects import (
    Cancel,
    CancelProbe,
    CancelTimer,
    Classification,
    ClientRetry,
    Commit,
    Degraded,
    Demotion,
    Effect,
    Ejection,
    Link,
    Outcome,
    OutcomeKind,
    Placement,
    Preemption,
    Probe,
    PushLoad,
    Race,
    Readmission,
    Record,
    ReleaseKv,
    Replan,
    Respond,
    Resumption,
    Retry,
    Send,
    SetTimer,
    ShareCacheChange,
    ShareFirstArrival,
    SharePrompt,
    ToldBy,
    Truncate,
)
from routing.request.events import (
    Accepted,
    AnswerBegun,
    Arrived,
    AttemptFailed,
    AttemptFinished,
    AttemptWithdrawn,
    CacheChanged,
    ClientGone,
    Event,
    FirstTokenReceived,
    FleetChanged,
    LaneLengthExceeded,
    LoadDue,
    NewsReceived,
    ProbeEnded,
    Reconfigured,
    ReplicaInfo,
    ReplicaReported,
    ReplicaStalled,
    ReplicaUnstalled,
    ThresholdsReceived,
    TimerFired,
)
from routing.request.stages import Plan
from routing.sizing.length_prediction import LengthPredictor, OutputEstimate

__all__ = [
    "PLANNERS",
    "PREDICTORS",
    "Accepted",
    "AnswerBegun",
    "Arrived",
    "AttemptFailed",
    "AttemptFinished",
    "AttemptWithdrawn",
    "CacheChanged",
    "Cancel",
    "CancelProbe",
    "CancelTimer",
    "Classification",
    "ClientGone",
    "ClientRetry",
    "Commit",
    "Degraded",
    "Demotion",
    "Dispatcher",
    "DispatcherParams",
    "DispatcherSpec",
    "Effect",
    "Ejection",
    "Event",
    "FirstTokenReceived",
    "FleetChanged",
    "LaneLengthExceeded",
    "LengthPredictor",
    "Link",
    "LoadDue",
    "NewsReceived",
    "Outcome",
    "OutcomeKind",
    "OutputEstimate",
    "Placement",
    "Plan",
    "Planner",
    "Preemption",
    "Probe",
    "ProbeEnded",
    "PushLoad",
    "Race",
    "Readmission",
    "Reconfigured",
    "Record",
    "ReleaseKv",
    "Replan",
    "ReplicaInfo",
    "ReplicaReported",
    "ReplicaStalled",
    "ReplicaUnstalled",
    "Respond",
    "Resumption",
    "Retry",
    "Send",
    "SetTimer",
    "ShareCacheChange",
    "ShareFirstArrival",
    "SharePrompt",
    "ThresholdsReceived",
    "TimerFired",
    "ToldBy",
    "Truncate",
    "build_dispatcher",
    "build_planner",
    "build_predictor",
    "reconfigured",
]
