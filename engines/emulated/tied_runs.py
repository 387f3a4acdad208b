"""Attempts of an emulated engine that share an execution claim with one elsewhere; the rules are
:mod:`engines.model.claims`'.
"""

from collections.abc import Callable, Mapping
from functools import partial

from engines.emulated.execution_claims import ClaimKeeper, ClaimRequester, SilentPeers
from engines.emulated.paced_model import PacedModel
from engines.emulated.run import EmulatedRun
from engines.model.sequences import ExecutionClaim
from engines.model.step_model import StepModel
from policies.errors import PromptWithdrawn

REMEMBERED = 4096
"""Attempts: as many as come in the time that two replicas' messages about one may take, and far more."""


class TiedRuns:
    """Of which attempts the prompt is computed elsewhere, or may be.

    Args:
        model: The engine's.
        pace: Its clock.
        runs: What it has open, by request id.
        leave: Takes one out of the model.
    """

    def __init__(
        self,
        model: StepModel,
        pace: PacedModel,
        runs: Mapping[str, EmulatedRun],
        leave: Callable[[EmulatedRun], None],
    ) -> None:
        self._model = model
        self._pace = pace
        self._runs = runs
        self._leave = leave
        self._askers: dict[EmulatedRun, ClaimRequester] = {}
        self._silent = SilentPeers()
        self._begun: dict[str, None] = {}
        self._given_away: dict[str, None] = {}
        self.keeper = ClaimKeeper(self)

    # -- what the engine tells ----------------------------------------------------------------------------------------

    def share(self, run: EmulatedRun) -> None:
        """A request is about to be handed to the model.

        Raises:
            PromptWithdrawn: Its execution claim was given away before it came.
        """
        if run.request_id in self._given_away:
            raise PromptWithdrawn(f"{run.request_id}: another engine has asked for its execution claim before it came")
        if run.tied_to is not None:
            if run.tied_to.address not in self._silent:
                run.sequence.claim = ExecutionClaim.WANTED
                self._askers[run] = ClaimRequester(run.tied_to, partial(self._answer, run), self._end_silence)
        elif self.keeper.is_shared(run.request_id):
            run.sequence.claim = ExecutionClaim.HELD

    def take_turn(self, run: EmulatedRun) -> None:
        """It asks if it has to; otherwise it has just begun."""
        if asker := self._askers.get(run):
            asker.ask()
        else:
            self.keeper.tell_begun(run.request_id)

    def forget(self, run: EmulatedRun) -> None:
        """Nothing of it is left in the model, or will not be after this step."""
        if asker := self._askers.pop(run, None):
            asker.drop()
        if run.sequence.has_begun:
            _remember(run.request_id, self._begun)

    def stop(self) -> None:
        """Nothing is asked any more, and nothing answered."""
        for asker in self._askers.values():
            asker.drop()
        self._askers.clear()
        self.keeper.stop()

    # -- what the engine of a second attempt asks ---------------------------------------------------------------------

    def meet(self, request_id: str) -> bool:
        self._pace.catch_up()
        run = self._runs.get(request_id)
        if run is None:
            return request_id in self._begun
        if not run.sequence.has_begun:
            self._model.share(run.sequence)
        return run.sequence.has_begun

    def withdraw(self, request_id: str) -> bool:
        self._pace.catch_up()
        run = self._runs.get(request_id)
        if request_id in self._begun or (run is not None and run.sequence.has_begun):
            return False
        if run is not None:
            self._withdraw(run)
        else:
            _remember(request_id, self._given_away)
        return True

    # -- what the engine of a first attempt answers -------------------------------------------------------------------

    def _answer(self, run: EmulatedRun, may_begin: bool) -> None:
        del self._askers[run]
        now_s = self._pace.catch_up()
        if may_begin:
            self._model.grant(run.sequence, now_s)
            self._pace.arm()
        else:
            self._withdraw(run)

    def _end_silence(self, address: str) -> None:
        """Nobody waits any more for an engine that has not answered one of them, and for some time nobody asks it."""
        self._silent.add(address)
        for run, asker in list(self._askers.items()):
            if asker.address == address and run in self._askers:
                asker.drop()
                self._answer(run, may_begin=True)

    def _withdraw(self, run: EmulatedRun) -> None:
        run.fail(PromptWithdrawn(f"{run.request_id}: another engine computes the prompt"))
        self._leave(run)


def _remember(request_id: str, among: dict[str, None]) -> None:
    """Forgets the one that has been there for the longest when there are too many."""
    among[request_id] = None
    if len(among) > REMEMBERED:
        del among[next(iter(among))]
