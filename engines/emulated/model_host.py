"""An engine model among others of its kind, in real time: carries what it tells to its readers and to its peers."""

from collections.abc import Callable
from typing import Any

from engines.contract import KvParams
from engines.emulated.execution_claims import ClaimKeeper, ClaimRequesters
from engines.emulated.fault_switch import FaultSwitch
from engines.emulated.kv_claims import KvClaims, KvPort
from engines.emulated.paced_model import PacedModel
from engines.emulated.run import EmulatedRun
from engines.emulated.settings import EmulatedSettings
from engines.faults import FaultKind
from engines.model.engine_model import EngineModel, Messages
from engines.model.messages import (
    Abort,
    AskClaim,
    BeginFault,
    Begun,
    ClaimKv,
    Failed,
    Finished,
    FirstToken,
    KvClaimEnded,
    KvPulled,
    Message,
    Submit,
    Withdrawn,
)
from engines.model.sequences import ExecutionClaim, Sequence
from policies.decisions import Reason
from policies.errors import (
    EngineDied,
    EngineError,
    EngineUnavailable,
    KvTransferFailed,
    PromptWithdrawn,
    RequestInvalid,
    ServingError,
)

ERRORS: dict[Reason, Callable[[str], ServingError]] = {
    Reason.REPLICA_LOST: EngineUnavailable,
    Reason.ENGINE_ERROR: EngineError,
    Reason.KV_TRANSFER_FAILED: KvTransferFailed,
    Reason.INVALID_REQUEST: RequestInvalid,
}


class ModelHost:
    """The host of an emulated engine's model; see the module.

    Args:
        settings: The engine.
        on_news: Called when there may be something to read of some run.
        now_s: A monotonic clock in seconds; the event loop's unless given.

    Attributes:
        model: For its state to be read.
        runs: Requests whose readers do not know yet how they end, by id.
        dead: Why the engine is dead; empty while it lives.
        faults: Its faults; :meth:`die` is the crash.
    """

    def __init__(
        self, settings: EmulatedSettings, on_news: Callable[[], None], now_s: Callable[[], float] | None = None
    ) -> None:
        self._settings = settings
        self._on_news = on_news
        self.model = EngineModel(settings.spec(), settings.kv_lease_s * settings.speed)
        self.runs: dict[str, EmulatedRun] = {}
        self.dead = ""
        self.faults = FaultSwitch(self._tell)
        self._pace = PacedModel(self.model, settings.speed, self._carry_out, on_news, now_s)
        self._kv_port = KvPort(self._tell)
        self._kv_claims = KvClaims(self._tell)
        self._keeper = ClaimKeeper(self._tell)
        self._requesters = ClaimRequesters(self._tell)
        self._carriers: dict[type, Callable[[Any], None]] = {
            FirstToken: self._begin_answer,
            Finished: self._finish,
            Failed: self._fail,
            Withdrawn: self._withdraw,
            ClaimKv: self._claim_kv,
            KvPulled: self._end_pull,
            KvClaimEnded: self._end_kv_claim,
            AskClaim: self._ask_claim,
            Begun: self._tell_begun,
        }

    async def listen(self) -> str:
        """Opens a port for execution claims and, for prefill, one for handoffs; returns the former's address."""
        await self._keeper.listen(self._settings.host)
        if self._settings.hands_kv_over:
            await self._kv_port.listen(self._settings.host)
        return self._keeper.address

    @property
    def now_s(self) -> float:
        """The model's time."""
        return self._pace.now_s

    def catch_up(self) -> None:
        """Lets everything happen that is due."""
        self._pace.catch_up()

    def kv_params(self, run: EmulatedRun) -> KvParams:
        """Where a decode engine finds the KV of a prefill that has finished."""
        return self._kv_port.params(run.request_id)

    def num_tokens_out(self, run: EmulatedRun) -> int:
        """Tokens that have left the engine; what steps gave it meanwhile is still on its way out."""
        if run.is_over:
            return run.final_tokens
        if not run.has_started:
            return 0
        return self.model.steps.batch.num_output_tokens_of(run.sequence) - self._pace.num_tokens_leaving

    # -- requests -----------------------------------------------------------------------------------------------------

    def submit(self, run: EmulatedRun, sequence: Sequence) -> None:
        """Hands a request to the model.

        Raises:
            EngineError: The engine does not take it.
        """
        request_id, tied_to = run.request_id, run.tied_to
        if request_id in self.runs:
            raise EngineError(f"a request {request_id} is open already")
        run.sequence = sequence
        self.runs[request_id] = run
        if tied_to is not None and not self._requesters.is_silent(tied_to.address):
            sequence.claim = ExecutionClaim.WANTED
            self._requesters.connect(request_id, tied_to)
        self._tell(Submit(sequence))
        if run.error is not None:
            raise run.error

    def abort(self, run: EmulatedRun) -> None:
        """Ends a request whose reader is told so, unless it has come to its end."""
        self.catch_up()
        if not run.is_over:
            run.end("abort", self.num_tokens_out(run))
            self.close(run)
            self._on_news()

    def close(self, run: EmulatedRun) -> None:
        """Its reader has gone: what the model still has of the request goes, except KV that was handed over."""
        is_open = self.runs.get(run.request_id) is run
        if is_open:
            self._forget(run)
        if is_open or (run.sequence.holds_kv and not run.is_handed_over):
            self._tell(Abort(run.request_id))

    def _forget(self, run: EmulatedRun) -> None:
        del self.runs[run.request_id]
        self._requesters.drop(run.request_id)

    # -- its end ------------------------------------------------------------------------------------------------------

    def die(self, why: str) -> None:
        """Everybody who reads gets an error; peers find their connections closed."""
        if not self.dead:
            self._tell(BeginFault(FaultKind.CRASH))
            self.dead = why
        self._pace.stop()
        for run in self.runs.values():
            run.fail(EngineDied(self.dead))
        self.runs.clear()
        self.faults.stop()
        self._requesters.stop()
        self._keeper.stop()
        self._kv_claims.stop()
        self._kv_port.stop()
        self._on_news()

    async def shutdown(self) -> None:
        """Dies, and waits until no connection is left."""
        self.die("the engine was shut down")
        await self._kv_port.close()
        await self._keeper.close()
        await self._kv_claims.close()

    # -- messages -----------------------------------------------------------------------------------------------------

    def _tell(self, message: Message) -> Messages:
        answers = self._pace.tell(message)
        for each in answers:
            self._carry_out(each)
        return answers

    def _carry_out(self, message: Message) -> None:
        """What is not here is the answer to a connection, which takes it by itself."""
        if carry := self._carriers.get(type(message)):
            carry(message)

    def _begin_answer(self, message: FirstToken) -> None:
        if run := self.runs.get(message.request_id):
            run.has_started = True
            if not run.kv_transfer_s:
                run.prefill_s = self._real_s(message.at_s - run.came_at_s)

    def _finish(self, message: Finished) -> None:
        if run := self.runs.get(message.request_id):
            run.end(run.answer.finish_reason, len(run.answer.token_ids))
            self._forget(run)

    def _fail(self, message: Failed) -> None:
        why = self.dead or message.why
        self._lose(message.request_id, ERRORS[message.reason](why))

    def _withdraw(self, message: Withdrawn) -> None:
        request_id = message.request_id
        self._lose(request_id, PromptWithdrawn(f"{request_id}: another engine has asked for its execution claim"))

    def _lose(self, request_id: str, error: ServingError) -> None:
        if run := self.runs.get(request_id):
            run.fail(error)
            self._forget(run)
            self._on_news()

    def _claim_kv(self, message: ClaimKv) -> None:
        self._kv_claims.make(message.request_id, self.runs[message.request_id].kv_params)

    def _end_pull(self, message: KvPulled) -> None:
        self._kv_claims.end(message.request_id, is_pulled=True)
        if run := self.runs.get(message.request_id):
            run.kv_transfer_s = self._real_s(message.at_s - run.came_at_s)

    def _end_kv_claim(self, message: KvClaimEnded) -> None:
        self._kv_claims.end(message.request_id, is_pulled=False)

    def _ask_claim(self, message: AskClaim) -> None:
        self._requesters.ask(message.request_id)

    def _tell_begun(self, message: Begun) -> None:
        self._keeper.tell_begun(message.request_id)

    def _real_s(self, model_s: float) -> float:
        return model_s / self._settings.speed
