"""The life of a request: a state machine that turns policies' answers into effects, without I/O.

A host (the Serve gateway, the simulator) feeds events to :class:`Dispatcher` and carries the effects out.
"""

from routing.assembly import build_dispatcher
from routing.dispatcher import Dispatcher
from routing.dispatcher_params import DispatcherParams
from routing.dispatcher_spec import DispatcherSpec
from routing.effects import (
    Cancel,
    CancelTimer,
    Classification,
    Commit,
    Cut,
    Degraded,
    Demotion,
    Effect,
    Ejection,
    Outcome,
    OutcomeKind,
    Placement,
    Preemption,
    PushLoad,
    Race,
    Readmission,
    Record,
    Respond,
    Resumption,
    Send,
    SetTimer,
)
from routing.events import (
    Accepted,
    Arrived,
    AttemptFailed,
    AttemptFinished,
    AttemptYielded,
    ClientGone,
    CutoffsReceived,
    Event,
    FirstToken,
    FleetChanged,
    LoadDue,
    Outgrew,
    Reconfigured,
    ReplicaInfo,
    ReplicaReported,
    TimerFired,
)
from routing.length_prediction import LengthPredictor, OutputEstimate
from routing.length_predictors import PREDICTORS, build_predictor
from routing.planning import PLANNERS, Planner, build_planner
from routing.reconfiguration import reconfigured
from routing.stages import Plan

__all__ = [
    "PLANNERS",
    "PREDICTORS",
    "Accepted",
    "Arrived",
    "AttemptFailed",
    "AttemptFinished",
    "AttemptYielded",
    "Cancel",
    "CancelTimer",
    "Classification",
    "ClientGone",
    "Commit",
    "Cut",
    "CutoffsReceived",
    "Degraded",
    "Demotion",
    "Dispatcher",
    "DispatcherParams",
    "DispatcherSpec",
    "Effect",
    "Ejection",
    "Event",
    "FirstToken",
    "FleetChanged",
    "LengthPredictor",
    "LoadDue",
    "Outcome",
    "OutcomeKind",
    "Outgrew",
    "OutputEstimate",
    "Placement",
    "Plan",
    "Planner",
    "Preemption",
    "PushLoad",
    "Race",
    "Readmission",
    "Reconfigured",
    "Record",
    "ReplicaInfo",
    "ReplicaReported",
    "Respond",
    "Resumption",
    "Send",
    "SetTimer",
    "TimerFired",
    "build_dispatcher",
    "build_planner",
    "build_predictor",
    "reconfigured",
]
