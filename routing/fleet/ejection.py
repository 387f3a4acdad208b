"""Replicas that get nothing for a while: after a loss, or because the ejection policy says so."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from policies.contracts import EjectionPolicy
from policies.decisions import UNLIMITED_ATTEMPTS, Allow, Eject, EjectionDecision, EjectionReason
from policies.errors import PolicyMisbehaved
from policies.views import ReplicaView
from routing.fleet.fleet import Fleet
from routing.fleet.out_elsewhere import OutElsewhere
from routing.fleet.probes import MOST_SLOW_PROBES, PROBE_TIMER, ProbeKind, Probes
from routing.request.effects import (
    EARLY_S,
    CancelProbe,
    CancelTimer,
    Effect,
    Ejection,
    Readmission,
    Record,
    SetTimer,
)
from routing.request.request import Attempt


class _Out(NamedTuple):
    """A replica that is out.

    Args:
        pool: Its pool.
        until_s: When its time is over.
        token: The name of the timer that ends it.
        for_s: How long it is out.
        probe_then: What a probe has to show first, by what is known of its engine.
        attempts_then: How many it takes at a time after that.
        num_failed_probes: In a row.
        before: What it was out for when it came to stand still, if it was.
    """

    pool: str
    until_s: float
    token: str
    for_s: float
    probe_then: ProbeKind
    attempts_then: int
    num_failed_probes: int = 0
    before: "tuple[_Out, ...]" = ()

    @property
    def timer(self) -> Sequence[CancelTimer]:
        """What stops its timer; who stands still has none."""
        return () if self.until_s == math.inf else (CancelTimer(token=self.token),)


class Ejections(NamedTuple):
    """What was decided about the replicas of a pool: what is to be done, and whether one may take more than before."""

    effects: Sequence[Effect]
    frees_room: bool


class _Erring(NamedTuple):
    """How often in a row an engine has failed on what others did, for how long and until when it is spared for it, and
    whether a probe has to go well first.
    """

    times: int
    for_s: float
    until_s: float
    is_probed_then: bool = False


NEVER_ERRED = _Erring(0, 0.0, -math.inf)
PROBATION_S = 60.0
"""After it was spared; who has not failed for so long begins anew."""
MOST_TIMES_AS_LONG = 4
DoesWithout = Callable[[str, float], bool]
NO_EJECTIONS = Ejections((), False)
TRIAL_TOLD_S = 0.5
"""Others wait for so long after they were last told that a replica is tried again."""
LONGEST_TRIAL_S = 10.0
"""Where a gateway has no requests to try a replica with, the others don't wait any longer."""
PROBES = {
    EjectionReason.FAILURES: ProbeKind.ANSWERS,
    EjectionReason.FIRST_TOKENS: ProbeKind.FIRST_TOKEN,
    EjectionReason.TOKENS: ProbeKind.TOKENS,
}
"""What a replica has to show that was ejected for it."""
EJECTOR_TIMERS = ("quarantine", "ejection", PROBE_TIMER)
"""What the ejector's timers are for, at the end of their tokens."""


class Ejector:
    """Asks the policy how the replicas of a pool are doing, and keeps those out that it names.

    A replica is out in one way, whatever the reason: nothing is sent to it, and nobody waits for it. The last one of a
    pool is never ejected, and when all others are lost, those that are out come back: slow is better than nothing. One
    that stands still is worse than nothing where others run the pool's requests.

    One whose engine failed on requests is probed when its time is over, with a small request of the gateway's own, and
    one that was slow with a larger one, which has to be about as fast as its profile says. If that goes badly it is out
    for as long again, so that no client's request finds out that it still fails, or is slow.

    Args:
        fleet: Where replicas are kept out.
        policy: Which.
        probes: The gateway's own requests.
        does_without: Whether others would run all requests of a pool if it had no replica, by its name and the time.

    Attributes:
        is_on: Whether the policy looks at all.
        elsewhere: Keeps those out that other gateways keep out.
    """

    def __init__(self, fleet: Fleet, policy: EjectionPolicy, probes: Probes, does_without: DoesWithout) -> None:
        self._fleet = fleet
        self._policy = policy
        self._does_without = does_without
        self.is_on = bool(policy.consumes)
        self.elsewhere = OutElsewhere(fleet)
        self._out: dict[str, _Out] = {}
        self._on_trial: dict[str, float] = {}
        self._erring: dict[str, _Erring] = {}
        self._num_ejections = 0
        self._probes = probes

    def use(self, policy: EjectionPolicy) -> None:
        """From here on this one is asked. Who is out stays out for its time; another policy knows of no newcomers."""
        if policy is not self._policy:
            self._policy = policy
            self.is_on = bool(policy.consumes)
            self._on_trial.clear()
            self._fleet.forgive()

    def own(self, now_s: float) -> Mapping[str, float]:
        """Replicas that this gateway keeps out by what it has seen of them, or tries again, and until when others are
        to keep them out. Losses and stalls are not among them: every gateway sees those by itself.
        """
        self._on_trial = {name: until_s for name, until_s in self._on_trial.items() if until_s > now_s}
        out = {name: each.until_s for name, each in self._out.items() if now_s < each.until_s < math.inf}
        trials = dict.fromkeys(self._on_trial, now_s + TRIAL_TOLD_S)
        erring = {name: each.until_s for name, each in self._erring.items() if now_s < each.until_s}
        return {**erring, **trials, **out}

    def spare_erring(self, replica_id: str, because_of: str, now_s: float, for_s: float) -> list[Effect]:
        """The same as :meth:`spare`, for an engine that has failed on what another one did: for so long at first, twice
        as long the second time in a row, and four times as long from the third on.
        """
        known = self._erring.get(replica_id, NEVER_ERRED)
        if now_s < known.until_s or self._is_last(replica_id, now_s):
            return []  # what it had then fails too; and something is better than nothing
        times = known.times + 1 if now_s < known.until_s + PROBATION_S else 1
        longer_s = for_s * min(2 ** (times - 1), MOST_TIMES_AS_LONG)
        until_s = now_s + longer_s
        is_probed = self._probes.are_on
        if (out := self._out.get(replica_id)) is not None:
            self._out[replica_id] = out._replace(probe_then=max(out.probe_then, ProbeKind(is_probed)))
            is_probed = False  # once
        self._erring[replica_id] = _Erring(times, longer_s, until_s, is_probed)
        return self.spare(replica_id, because_of, now_s, until_s)

    def err_again(self, replica_id: str, because_of: str, now_s: float, for_s: float) -> list[Effect]:
        """An engine has failed, nobody knows yet why: of one that has been spared for that of late, once is enough."""
        until_s = self._erring.get(replica_id, NEVER_ERRED).until_s
        if until_s <= now_s < until_s + PROBATION_S:
            return self.spare_erring(replica_id, because_of, now_s, for_s)
        return []

    def spare(self, replica_id: str, because_of: str, now_s: float, until_s: float) -> list[Effect]:
        """A replica was lost, or fails what others do: nothing is sent to it for a while.

        Args:
            replica_id: Which.
            because_of: What has shown it, for the name of the timer.
            now_s: Now.
            until_s: When it is tried again; others have noticed by then, if it is dead.
        """
        self._fleet.quarantine(replica_id, until_s)
        effects: list[Effect] = [SetTimer(token=f"{because_of}:quarantine", at_s=until_s)]
        replica = self._fleet.get(replica_id)
        if replica is not None and replica.is_up:
            effects += self.keep_one(replica.pool, now_s)
        return effects

    def stall(self, replica_id: str, now_s: float) -> Sequence[Effect]:
        """The replica stands still: it is out until it does so no longer, unless it is the last one of its pool and
        nobody else would run what is for it.
        """
        replica = self._fleet.get(replica_id)
        if replica is None or not replica.is_up or self.is_stalled(replica_id):
            return ()
        stalled = Eject(replica_id=replica_id, reason=EjectionReason.STALLED, for_s=math.inf)
        return self._eject(stalled, replica.pool, now_s)

    def is_stalled(self, replica_id: str) -> bool:
        """Whether the replica is out because it stands still."""
        return replica_id in self._out and self._out[replica_id].until_s == math.inf

    def unstall(self, replica_id: str, now_s: float) -> Sequence[Effect]:
        """The replica goes on, with as many attempts as before; what it was out for, or has to show, still counts."""
        if not self.is_stalled(replica_id):
            return ()
        self._fleet.end_suspicion(replica_id)
        if before := self._out[replica_id].before:
            return self._out_as_before(replica_id, before[0], now_s)
        self._fleet.limit(replica_id, after_ejection=UNLIMITED_ATTEMPTS)
        erring = self._erring.get(replica_id, NEVER_ERRED)
        if now_s < erring.until_s and not self._is_last(replica_id, now_s):
            self._fleet.quarantine(replica_id, erring.until_s)
        return (self._readmit(replica_id), *self._probe_erring(now_s))

    def _out_as_before(self, replica_id: str, out: _Out, now_s: float) -> Sequence[Effect]:
        self._out[replica_id] = out
        self._fleet.limit(replica_id, after_ejection=out.attempts_then)
        if now_s >= out.until_s or self._is_last(replica_id, now_s):
            return self._is_over(replica_id, out, now_s)
        self._fleet.quarantine(replica_id, out.until_s)
        return ()

    def look(self, attempt: Attempt, now_s: float) -> Ejections:
        """The attempt has made progress or has ended: how are its replica and the others of the pool?

        Raises:
            PolicyMisbehaved: The policy named what is not in the pool, or no time; nothing has been done.
        """
        replica = self._fleet.get(attempt.replica_id)
        if replica is None or not replica.is_up:
            return NO_EJECTIONS
        pool = self._fleet.up(replica.pool)
        decisions = self._policy.decide(pool, now_s)
        if not decisions:
            return NO_EJECTIONS
        self._check(decisions, pool)
        effects: list[Effect] = []
        for decision in decisions:
            if isinstance(decision, Eject):
                if not self.is_stalled(decision.replica_id):
                    effects += self._eject(decision, replica.pool, now_s)
            else:
                self._fleet.limit(decision.replica_id, after_ejection=decision.max_attempts)
                if decision.max_attempts >= UNLIMITED_ATTEMPTS:
                    self._on_trial.pop(decision.replica_id, None)
        return Ejections(effects, any(isinstance(each, Allow) for each in decisions))

    def ends(self, token: str, now_s: float) -> Sequence[Effect]:
        """One of its timers has fired: replicas may be back, so that those who wait have to be looked at."""
        subject, _, purpose = token.rpartition(":")
        if purpose == PROBE_TIMER:
            return (CancelProbe(probe_id=subject), *self.probe_ended(subject, now_s, is_well=False))
        replica_id = subject.rpartition(".")[0]
        out = self._out.get(replica_id)
        if out is None or out.token != token:
            return self._probe_erring(now_s)
        return self._is_over(replica_id, out, now_s)

    def _is_over(self, replica_id: str, out: _Out, now_s: float) -> Sequence[Effect]:
        """The time that it was to be out: it is back, or tried by a probe first."""
        if out.probe_then and self._probes.are_on and not self._is_last(replica_id, now_s):
            is_slow_still = out.num_failed_probes < MOST_SLOW_PROBES
            return self._probe(replica_id, out.probe_then if is_slow_still else ProbeKind.ANSWERS, now_s)
        return self._come_back(replica_id, out, now_s)

    def probe_ended(self, probe_id: str, now_s: float, *, is_well: bool) -> Sequence[Effect]:
        """A probe has gone well, and its replica is back, or badly, and it is out for as long again."""
        replica_id = self._probes.end(probe_id)
        replica = self._fleet.get(replica_id)
        if replica is None:
            return ()
        timer = CancelTimer(token=f"{probe_id}:{PROBE_TIMER}")
        out, erring = self._out.get(replica_id), self._erring.get(replica_id, NEVER_ERRED)
        self._fleet.end_suspicion(replica_id)
        if not is_well and not self._is_last(replica_id, now_s):
            until_s = now_s + (erring.for_s if out is None else out.for_s)
            self._fleet.quarantine(replica_id, until_s)
            if out is not None:
                self._out[replica_id] = out._replace(until_s=until_s, num_failed_probes=out.num_failed_probes + 1)
                return timer, SetTimer(token=out.token, at_s=until_s)
            self._erring[replica_id] = erring._replace(until_s=until_s, is_probed_then=True)
            return timer, SetTimer(token=f"{probe_id}:quarantine", at_s=until_s)
        if out is not None:
            return (timer, *self._come_back(replica_id, out, now_s))
        self._erring[replica_id] = erring._replace(until_s=now_s)
        return (timer,)

    def _probe_erring(self, now_s: float) -> Sequence[Effect]:
        """Those that were spared because their engines failed, and whose time is over."""
        effects: list[Effect] = []
        for replica_id, erring in self._erring.items():
            replica = self._fleet.get(replica_id)
            is_due = erring.is_probed_then and erring.until_s <= now_s + EARLY_S and not self.is_stalled(replica_id)
            if is_due and replica is not None and replica.is_up:
                self._erring[replica_id] = erring._replace(is_probed_then=False)
                if self._probes.are_on and not self._is_last(replica_id, now_s):
                    effects += self._probe(replica_id, ProbeKind.ANSWERS, now_s)
        return effects

    def _probe(self, replica_id: str, kind: ProbeKind, now_s: float) -> Sequence[Effect]:
        """It is out until the probe has ended, and other gateways are told so."""
        replica = self._fleet.get(replica_id)
        assert replica is not None
        probe = self._probes.begin(replica, kind, now_s)
        self._fleet.quarantine(replica_id, math.inf)
        if replica_id in self._out:
            self._out[replica_id] = self._out[replica_id]._replace(until_s=probe.until_s)
        else:
            self._erring[replica_id] = self._erring[replica_id]._replace(until_s=probe.until_s)
        return probe.effects

    def _come_back(self, replica_id: str, out: _Out, now_s: float) -> Sequence[Effect]:
        if out.attempts_then < UNLIMITED_ATTEMPTS:
            self._on_trial[replica_id] = now_s + LONGEST_TRIAL_S
        return (self._readmit(replica_id),)

    def keep_one(self, pool: str, now_s: float) -> list[Effect]:
        """If a pool has nobody else, whoever is out comes back, and takes as much as ever."""
        effects: list[Effect] = []
        if self._fleet.live_in((pool,), now_s):
            return effects
        self.elsewhere.release(pool)
        effects += self._end_probes_in(pool, now_s)
        keeps_still_ones_out = self._does_without(pool, now_s)
        for replica_id, out in list(self._out.items()):
            if out.pool == pool and now_s < out.until_s and not (keeps_still_ones_out and out.until_s == math.inf):
                self._fleet.end_suspicion(replica_id)
                self._fleet.limit(replica_id, after_ejection=UNLIMITED_ATTEMPTS)
                effects += (*out.timer, *self._probes.drop(replica_id), self._readmit(replica_id))
        return effects

    def _end_probes_in(self, pool: str, now_s: float) -> Sequence[Effect]:
        """Those that were only spared are back in service, whatever their probes would say."""
        effects: list[Effect] = []
        for replica_id, erring in self._erring.items():
            replica = self._fleet.get(replica_id)
            is_spared_there = replica is not None and replica.pool == pool and replica_id not in self._out
            if is_spared_there and (dropped := self._probes.drop(replica_id)):
                effects += dropped
                self._fleet.end_suspicion(replica_id)
                self._erring[replica_id] = erring._replace(until_s=now_s)
        return effects

    def forget(self, replica_id: str) -> Sequence[Effect]:
        """The replica has gone; should the same one come back, nobody has anything against it. What ends its probe."""
        effects = self._probes.drop(replica_id)
        for known in (self._out, self._on_trial, self._erring):
            known.pop(replica_id, None)
        self._fleet.limit(replica_id, after_ejection=UNLIMITED_ATTEMPTS)
        return effects

    def gauges(self) -> Mapping[str, float]:
        """For metrics: ``ejected_replicas:<pool>``, how many are out."""
        pools = [each.pool for each in self._out.values()]
        return {f"ejected_replicas:{pool}": float(pools.count(pool)) for pool in self._fleet.pool_names}

    def _eject(self, decision: Eject, pool: str, now_s: float) -> tuple[Effect, ...]:
        replica_id = decision.replica_id
        may_be_none = decision.reason is EjectionReason.STALLED and self._does_without(pool, now_s)
        if self._is_last(replica_id, now_s) and not may_be_none:
            return ()
        until_s = now_s + decision.for_s
        self._num_ejections += 1
        probe_then = max(PROBES.get(decision.reason, ProbeKind.NONE), self._awaited_probe(replica_id))
        dropped = self._probes.drop(replica_id)
        before: tuple[_Out, ...] = ()
        if decision.reason is EjectionReason.STALLED:
            before = self._put_off(replica_id, now_s, is_being_probed=bool(dropped))
        elif replica_id in self._erring:
            self._erring[replica_id] = self._erring[replica_id]._replace(is_probed_then=False)
        token = f"{replica_id}.{self._num_ejections}:ejection"
        self._out[replica_id] = _Out(
            pool,
            until_s,
            token,
            decision.for_s,
            probe_then=probe_then,
            attempts_then=decision.attempts_then,
            before=before,
        )
        if dropped:
            self._fleet.end_suspicion(replica_id)  # which has no end until its probe has one
        self._fleet.quarantine(replica_id, until_s)
        self._fleet.limit(replica_id, after_ejection=decision.attempts_then)
        ejection = Record(decision=Ejection(replica_id=replica_id, pool=pool, reason=decision.reason, until_s=until_s))
        effects = (ejection, *dropped)
        return effects if until_s == math.inf else (*effects, SetTimer(token=token, at_s=until_s))

    def _put_off(self, replica_id: str, now_s: float, *, is_being_probed: bool) -> tuple[_Out, ...]:
        """What counts again when it moves: a probe that has not ended is one that has not begun."""
        out, erring = self._out.get(replica_id), self._erring.get(replica_id)
        if is_being_probed and out is not None:
            out = out._replace(until_s=now_s)
        elif is_being_probed and erring is not None:
            self._erring[replica_id] = erring._replace(until_s=now_s, is_probed_then=True)
        return () if out is None else (out,)

    def _awaited_probe(self, replica_id: str) -> ProbeKind:
        """What it has to show when its time is over, for what is known of it already."""
        out, erring = self._out.get(replica_id), self._erring.get(replica_id, NEVER_ERRED)
        has_failed = erring.is_probed_then or self._probes.has(replica_id)
        return max(ProbeKind(has_failed), ProbeKind.NONE if out is None else out.probe_then)

    def _is_last(self, replica_id: str, now_s: float) -> bool:
        """Whether nobody else of its pool is there."""
        replica = self._fleet.get(replica_id)
        live = () if replica is None else self._fleet.live_in((replica.pool,), now_s)
        return all(each.replica_id == replica_id for each in live)

    def _readmit(self, replica_id: str) -> Record:
        out = self._out.pop(replica_id)
        return Record(decision=Readmission(replica_id=replica_id, pool=out.pool))

    def _check(self, decisions: Sequence[EjectionDecision], pool: Sequence[ReplicaView]) -> None:
        up = {each.replica_id for each in pool}
        for each in decisions:
            if isinstance(each, Eject):
                is_sound = 0 < each.for_s < math.inf and each.attempts_then >= 1
            else:
                is_sound = isinstance(each, Allow) and each.max_attempts >= 1
            if not is_sound or each.replica_id not in up:
                raise PolicyMisbehaved("ejection", self._policy, f"about one of {sorted(up)}, with numbers > 0", each)
