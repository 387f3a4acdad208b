"""Decisions: pure, synchronous, no I/O and no clock.

What is served, where, and what is refused; :mod:`routing` turns the answers into effects.
"""

from policies.attempt_views import InFlightView, PlacesView
from policies.catalog import CATALOG, PolicyChoice, PolicySpec, build
from policies.contracts import (
    AdmissionPolicy,
    Balancer,
    CoordinatedShedding,
    DegradationPolicy,
    EjectionPolicy,
    HedgingPolicy,
    Learner,
    Need,
    Policy,
    PolicySet,
    PreemptionPolicy,
    QueueingPolicy,
    Rng,
    SheddingPolicy,
    StartPolicy,
)
from policies.coordination import Cutoffs, LoadReport
from policies.decisions import AS_ASKED, Admit, Allow, Degradation, Eject, EjectionReason, Keep, Reason, Reject, Wait
from policies.errors import (
    ConfigError,
    EngineAborted,
    EngineError,
    EngineUnavailable,
    InvariantViolation,
    KvTransferFailed,
    RequestInvalid,
    ServingError,
)
from policies.tenancy import Quota, TenantTerms
from policies.views import BacklogView, CandidateList, Candidates, FleetView, Priority, ReplicaView, RequestView, Role

__all__ = [
    "AS_ASKED",
    "CATALOG",
    "AdmissionPolicy",
    "Admit",
    "Allow",
    "BacklogView",
    "Balancer",
    "CandidateList",
    "Candidates",
    "ConfigError",
    "CoordinatedShedding",
    "Cutoffs",
    "Degradation",
    "DegradationPolicy",
    "Eject",
    "EjectionPolicy",
    "EjectionReason",
    "EngineAborted",
    "EngineError",
    "EngineUnavailable",
    "FleetView",
    "HedgingPolicy",
    "InFlightView",
    "InvariantViolation",
    "Keep",
    "KvTransferFailed",
    "Learner",
    "LoadReport",
    "Need",
    "PlacesView",
    "Policy",
    "PolicyChoice",
    "PolicySet",
    "PolicySpec",
    "PreemptionPolicy",
    "Priority",
    "QueueingPolicy",
    "Quota",
    "Reason",
    "Reject",
    "ReplicaView",
    "RequestInvalid",
    "RequestView",
    "Rng",
    "Role",
    "ServingError",
    "SheddingPolicy",
    "StartPolicy",
    "TenantTerms",
    "Wait",
    "build",
]
