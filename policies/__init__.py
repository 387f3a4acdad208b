"""Decisions: pure, synchronous, no I/O and no clock.

What is served, where, and what is refused; :mod:`routing` turns the answers into effects.
"""

from policies.catalog import CATALOG, PolicyChoice, PolicySpec, build
from policies.contracts import (
    AdmissionPolicy,
    Balancer,
    HedgingPolicy,
    Learner,
    Need,
    Policy,
    PolicySet,
    QueueingPolicy,
    Rng,
    SheddingPolicy,
    StartPolicy,
)
from policies.decisions import Admit, Keep, Reason, Reject, Wait
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
from policies.views import BacklogView, CandidateList, Candidates, FleetView, Priority, ReplicaView, RequestView, Role

__all__ = [
    "CATALOG",
    "AdmissionPolicy",
    "Admit",
    "BacklogView",
    "Balancer",
    "CandidateList",
    "Candidates",
    "ConfigError",
    "EngineAborted",
    "EngineError",
    "EngineUnavailable",
    "FleetView",
    "HedgingPolicy",
    "InvariantViolation",
    "Keep",
    "KvTransferFailed",
    "Learner",
    "Need",
    "Policy",
    "PolicyChoice",
    "PolicySet",
    "PolicySpec",
    "Priority",
    "QueueingPolicy",
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
    "Wait",
    "build",
]
