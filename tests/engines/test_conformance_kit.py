"""The kit lets a good engine through, and finds the rule that a bad one breaks."""

import asyncio
import itertools
import traceback
from collections.abc import AsyncGenerator, Awaitable

import msgspec
import pytest

from engines import (
    NO_ADAPTER,
    NO_POOLING,
    Adapter,
    ChosenLogprob,
    Chunk,
    EngineInfo,
    EngineRequest,
    EngineStats,
    KvHandle,
    check_adapter_handoff,
    check_adapters,
    check_engine,
    check_handoff,
    check_pooling,
    conformance,
)
from engines.contract import AWAITS_KV, PromptLogprobs
from engines.handoff import comes_from_prefill
from policies.errors import EngineError, RequestInvalid
from tests.engines.scripted_engine import FIRST_LETTER, Run, ScriptedEngine, written
from tests.tables import for_each


@pytest.fixture(autouse=True)
def _little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long for an engine without a model, on a busy machine too; short for those who wait in vain."""
    monkeypatch.setattr(conformance, "_PATIENCE_S", 0.25)


KITS = ("check_engine", "check_handoff", "check_adapters", "check_adapter_handoff", "check_pooling")


async def the_rule_that_breaks(checks: Awaitable[list[str]]) -> str:
    """The check in which the kit gave the engine up."""
    with pytest.raises(AssertionError) as caught:
        await checks
    frames = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    kit = frames[next(frames.index(each) for each in KITS if each in frames) + 1]
    return kit.removeprefix("_")


class SmallCache(ScriptedEngine):
    """One request of full length does not fit."""

    @property
    def info(self) -> EngineInfo:
        return msgspec.structs.replace(super().info, kv_capacity_tokens=100)


class VerdictOnEveryChunk(ScriptedEngine):
    """A client would take the first chunk for the last."""

    async def generate(self, request: EngineRequest) -> AsyncGenerator[Chunk, None]:
        async for chunk in super().generate(request):
            yield msgspec.structs.replace(chunk, finish_reason="length")


class NoVerdict(ScriptedEngine):
    """The stream just ends."""

    async def generate(self, request: EngineRequest) -> AsyncGenerator[Chunk, None]:
        async for chunk in super().generate(request):
            yield msgspec.structs.replace(chunk, finish_reason=None)


class OneTokenTooMany(ScriptedEngine):
    """``max_tokens`` is not a bound."""

    def step(self, run: Run) -> None:
        super().step(run)
        if run.finish_reason == "length":
            run.unread.append(7)


class Moody(ScriptedEngine):
    """The same question, another answer."""

    def __init__(self) -> None:
        super().__init__()
        self._draws = itertools.count()

    def token(self, run: Run) -> int:
        return 5 + next(self._draws)


class DeafToSeeds(Moody):
    """Greedy is repeatable, a seed is not."""

    def token(self, run: Run) -> int:
        return super().token(run) if run.request.sampling.temperature else ScriptedEngine.token(self, run)


class DeafToStops(ScriptedEngine):
    """Goes on after a stop token."""

    async def generate(self, request: EngineRequest) -> AsyncGenerator[Chunk, None]:
        sampling = msgspec.structs.replace(request.sampling, stop_token_ids=())
        async for chunk in super().generate(msgspec.structs.replace(request, sampling=sampling)):
            yield chunk


class NoLogprobs(ScriptedEngine):
    """Forgets log probabilities."""

    def logprobs(self, token_ids: tuple[int, ...], number: int) -> tuple[ChosenLogprob, ...]:
        return ()


class LogprobsOfOthers(ScriptedEngine):
    """Reports the tokens in another order."""

    def logprobs(self, token_ids: tuple[int, ...], number: int) -> tuple[ChosenLogprob, ...]:
        return super().logprobs(tuple(token + 1 for token in token_ids), number)


class FewAlternatives(ScriptedEngine):
    """Reports the chosen token alone."""

    def logprobs(self, token_ids: tuple[int, ...], number: int) -> tuple[ChosenLogprob, ...]:
        return super().logprobs(token_ids, 1)


class AllowsAnything(ScriptedEngine):
    """Chooses from all tokens."""

    def token(self, run: Run) -> int:
        free = msgspec.structs.replace(run.request.sampling, allowed_token_ids=None)
        return super().token(Run(request=msgspec.structs.replace(run.request, sampling=free), output=run.output))


class SaysBadWords(ScriptedEngine):
    """Says them."""

    def token(self, run: Run) -> int:
        free = msgspec.structs.replace(run.request.sampling, bad_words=())
        return super().token(Run(request=msgspec.structs.replace(run.request, sampling=free), output=run.output))


class NoPromptLogprobs(ScriptedEngine):
    """Forgets those of the prompt."""

    def prompt_logprobs(self, request: EngineRequest) -> PromptLogprobs | None:
        return None


class LetsAnythingThrough(ScriptedEngine):
    """Knows no structure, and does not say so."""

    def token(self, run: Run) -> int:
        free = msgspec.structs.replace(run.request.sampling, structured_output=None)
        return super().token(Run(request=msgspec.structs.replace(run.request, sampling=free), output=run.output))


class BeginsAnotherDocument(ScriptedEngine):
    """Forgets what a structured output has matched."""

    def token(self, run: Run) -> int:
        if run.request.sampling.structured_output is None:
            return super().token(run)
        return FIRST_LETTER + ord(self.chosen(run)[len(run.output)])


class BelievesAnyDocument(ScriptedEngine):
    """Goes on with a structured output that can't have been."""

    def check(self, request: EngineRequest) -> None:
        try:
            super().check(request)
        except EngineError:
            return


class RefusesWithoutAName(ScriptedEngine):
    """Does not say what it does not know."""

    def check(self, request: EngineRequest) -> None:
        super().check(request)
        if request.sampling.structured_output is not None:
            raise RequestInvalid("no")


class TakesAnyLength(ScriptedEngine):
    """Serves what is longer than its context."""

    def check(self, request: EngineRequest) -> None:
        try:
            super().check(request)
        except RequestInvalid as refusal:
            if refusal.param != "prompt":
                raise


class DiesOfARefusal(ScriptedEngine):
    """After one prompt that is too long nothing works any more."""

    is_dead = False

    def check(self, request: EngineRequest) -> None:
        try:
            super().check(request)
        except RequestInvalid:
            self.is_dead = True
            raise

    def step(self, run: Run) -> None:
        super().step(run)
        if self.is_dead:
            self.finish(run, "abort")


class CrowdShy(ScriptedEngine):
    """Cuts streams short when there are many."""

    def step(self, run: Run) -> None:
        super().step(run)
        if len(self.runs) > 6:
            self.finish(run, "length")


class TokenByToken(ScriptedEngine):
    """A slow reader gets a longer queue."""

    def take(self, run: Run) -> tuple[int, ...]:
        return (run.unread.popleft(),)


class WaitsForItsReader(ScriptedEngine):
    """Stops when nobody reads."""

    def step(self, run: Run) -> None:
        if not run.unread:
            super().step(run)
        else:
            self.add(num_steps=-1)


class KeepsBlocks(ScriptedEngine):
    """Blocks of closed streams stay in use."""

    def close(self, run: Run) -> None:
        self.held[run.request.request_id] = len(run.request.prompt_token_ids)
        super().close(run)


class KeepsRequests(ScriptedEngine):
    """A closed stream runs on."""

    def close(self, run: Run) -> None:
        if run.finish_reason is not None:
            super().close(run)


class DeafToAborts(ScriptedEngine):
    """An aborted request runs to its end."""

    async def abort(self, request_id: str) -> None:
        return None


class SilentAfterAborts(ScriptedEngine):
    """An aborted stream ends without a word."""

    async def generate(self, request: EngineRequest) -> AsyncGenerator[Chunk, None]:
        async for chunk in super().generate(request):
            if chunk.finish_reason != "abort":
                yield chunk


class CountsNoOutput(ScriptedEngine):
    """Totals that stand still."""

    def add(self, **numbers: int) -> None:
        numbers.pop("output_tokens_total", None)
        super().add(**numbers)


class CountsNoPrompts(ScriptedEngine):
    """The same for what is taken in."""

    def add(self, **numbers: int) -> None:
        numbers.pop("prompt_tokens_total", None)
        super().add(**numbers)


class IgnoresSalts(ScriptedEngine):
    """Finds a prompt whoever has sent it."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[tuple[int, ...]] = set()

    def open(self, run: Run) -> Run:
        prompt = tuple(run.request.prompt_token_ids)
        run.cached_tokens = len(prompt) - 1 if prompt in self.seen else run.cached_tokens
        self.seen.add(prompt)
        return super().open(run)


class StartsAfresh(ScriptedEngine):
    """Takes an answer so far for more of the prompt."""

    def token(self, run: Run) -> int:
        whole = msgspec.structs.replace(run.request, answered_tokens=0, answered_chars=0)
        return super().token(Run(request=whole, output=run.output))


class RepeatsTheText(ScriptedEngine):
    """Begins with the first character once more."""

    def begin_text(self, run: Run) -> None:
        super().begin_text(run)
        run.num_given = 0


class LosesTheText(ScriptedEngine):
    """Goes on after the tokens, not after the text that is out."""

    def begin_text(self, run: Run) -> None:
        super().begin_text(run)
        run.num_given = len(run.text)


class ForgetsStopStrings(ScriptedEngine):
    """Looks for them among the new tokens."""

    def stop_string(self, run: Run) -> str | None:
        return super().stop_string(
            Run(request=msgspec.structs.replace(run.request, answered_tokens=0), output=run.output)
        )


class BelievesAnything(ScriptedEngine):
    """Goes on with an answer that can't have been."""

    def check(self, request: EngineRequest) -> None:
        super().check(msgspec.structs.replace(request, answered_tokens=0, answered_chars=0))


class Sleepless(ScriptedEngine):
    """It says that it can sleep."""

    async def sleep(self) -> None:
        return None


class TakesAnyAdapter(ScriptedEngine):
    """It says that it takes none, and takes them all the same."""

    def use(self, adapter: Adapter) -> None:
        """Nothing is loaded."""


class AnswersWhatIsToBePooled(ScriptedEngine):
    """Gives an answer to who has asked for a vector."""

    async def generate(self, request: EngineRequest) -> AsyncGenerator[Chunk, None]:
        async for chunk in super().generate(msgspec.structs.replace(request, pooling=NO_POOLING)):
            yield chunk


class SeesNoImages(ScriptedEngine):
    """Answers as if there were only tokens."""

    async def generate(self, request: EngineRequest) -> AsyncGenerator[Chunk, None]:
        async for chunk in super().generate(msgspec.structs.replace(request, images=())):
            yield chunk


BROKEN = {
    SeesNoImages: "an_image_is_refused_by_its_name",
    AnswersWhatIsToBePooled: "a_vector_is_refused_by_an_engine_that_makes_none",
    TakesAnyAdapter: "an_adapter_that_it_does_not_take_is_refused",
    SmallCache: "info_is_sane",
    VerdictOnEveryChunk: "a_stream_ends_with_one_finish_reason",
    NoVerdict: "a_stream_ends_with_one_finish_reason",
    OneTokenTooMany: "a_stream_ends_with_one_finish_reason",
    Moody: "greedy_output_is_repeatable",
    DeafToSeeds: "a_seed_makes_sampling_repeatable",
    DeafToStops: "a_stop_token_ends_the_output",
    NoLogprobs: "logprobs_come_with_every_token",
    LogprobsOfOthers: "logprobs_come_with_every_token",
    FewAlternatives: "logprobs_come_with_every_token",
    AllowsAnything: "only_allowed_tokens_come",
    SaysBadWords: "a_bad_word_does_not_come",
    NoPromptLogprobs: "a_prompts_logprobs_come_with_the_first_chunk",
    LetsAnythingThrough: "a_structured_output_is_matched_and_goes_on",
    BeginsAnotherDocument: "a_structured_output_is_matched_and_goes_on",
    BelievesAnyDocument: "an_answer_that_a_structure_would_not_have_let_through_is_an_error",
    RefusesWithoutAName: "a_structured_output_is_matched_and_goes_on",
    TakesAnyLength: "a_prompt_over_the_context_is_refused_and_the_engine_has_room",
    DiesOfARefusal: "a_prompt_over_the_context_is_refused_and_the_engine_has_room",
    CrowdShy: "many_streams_run_side_by_side",
    TokenByToken: "a_slow_reader_gets_bigger_chunks",
    WaitsForItsReader: "a_slow_reader_gets_bigger_chunks",
    KeepsBlocks: "closing_a_stream_frees_its_blocks",
    KeepsRequests: "closing_a_stream_frees_its_blocks",
    DeafToAborts: "abort_ends_the_stream_with_a_verdict",
    SilentAfterAborts: "abort_ends_the_stream_with_a_verdict",
    CountsNoOutput: "health_and_totals_are_kept",
    CountsNoPrompts: "health_and_totals_are_kept",
    IgnoresSalts: "a_salt_keeps_prompts_apart",
    StartsAfresh: "an_interrupted_answer_goes_on",
    RepeatsTheText: "an_interrupted_answer_goes_on",
    LosesTheText: "a_stop_string_is_found_across_an_interruption",
    ForgetsStopStrings: "a_stop_string_is_found_across_an_interruption",
    BelievesAnything: "a_wrong_account_of_an_answer_is_refused",
    Sleepless: "it_takes_nothing_while_it_sleeps_and_goes_on_when_it_is_awake",
}


async def test_an_engine_that_keeps_every_rule_passes_and_is_told_which() -> None:
    passed = await check_engine(ScriptedEngine())

    assert set(passed) == set(BROKEN.values())
    assert len(passed) == len(set(passed))


async def test_three_engines_that_keep_every_rule_pass_the_handoff() -> None:
    passed = await check_handoff(ScriptedEngine(), ScriptedEngine(), ScriptedEngine())

    assert passed == [
        "handoff_gives_the_same_tokens",
        "a_decode_closed_before_its_first_token_frees_everything",
        "a_first_token_that_the_prefill_drew_is_out_before_the_kv_has_come",
        "a_stop_string_is_found_across_a_first_token_of_the_prefills",
        "an_answer_ends_with_the_first_token_where_that_ends_it",
        "a_whole_request_gives_the_same_tokens",
        "an_interrupted_answer_goes_on_over_a_handoff",
        "a_structured_output_goes_on_over_a_handoff",
        "a_prompts_logprobs_come_over_a_handoff",
        "kv_that_is_given_up_is_freed",
    ]


@for_each("engine", BROKEN)
async def test_the_kit_finds_the_rule_that_an_engine_breaks(engine: type[ScriptedEngine]) -> None:
    assert await the_rule_that_breaks(check_engine(engine())) == BROKEN[engine]


FIRST_TOKEN_RULE = "a_first_token_that_the_prefill_drew_is_out_before_the_kv_has_come"


class HoldsHalf(ScriptedEngine):
    """A handle for less than the prompt."""

    async def prefill(self, request: EngineRequest) -> KvHandle:
        handle = await super().prefill(request)
        return KvHandle(handle.params, handle.num_tokens // 2)


class MisreadsBlocks(ScriptedEngine):
    """Decodes from other blocks than it was given."""

    async def decode(self, request: EngineRequest, handle: KvHandle) -> AsyncGenerator[Chunk, None]:
        prompt = [*request.prompt_token_ids, 1]
        async for chunk in super().decode(msgspec.structs.replace(request, prompt_token_ids=prompt), handle):
            yield chunk


class DecodesAfresh(StartsAfresh):
    """Goes on with whole requests only."""

    async def generate(self, request: EngineRequest) -> AsyncGenerator[Chunk, None]:
        async for chunk in ScriptedEngine().generate(request):
            yield chunk


class PullsNothing(ScriptedEngine):
    """Runs the prompt again instead of pulling its blocks."""

    async def decode(self, request: EngineRequest, handle: KvHandle) -> AsyncGenerator[Chunk, None]:
        async for chunk in self.generate(request):
            yield chunk


class KeepsCancelledBlocks(ScriptedEngine):
    """A decode that is cancelled while it pulls leaves its blocks behind."""

    async def decode(self, request: EngineRequest, handle: KvHandle) -> AsyncGenerator[Chunk, None]:
        self.held[request.request_id] = handle.num_tokens
        await asyncio.sleep(0)
        del self.held[request.request_id]
        async for chunk in super().decode(request, handle):
            yield chunk


class MisreadsPrompts(ScriptedEngine):
    """Runs a whole request as if it were another."""

    async def generate(self, request: EngineRequest) -> AsyncGenerator[Chunk, None]:
        prompt = [*request.prompt_token_ids, 1]
        async for chunk in super().generate(msgspec.structs.replace(request, prompt_token_ids=prompt)):
            yield chunk


class DrawsNothing(ScriptedEngine):
    """Leaves every first token to the decode, as it may."""

    def draws_first(self, request: EngineRequest) -> bool:
        return False


class DrawsAtBlocksEnds(ScriptedEngine):
    """Hands a first token over whose KV would need another block."""

    def draws_first(self, request: EngineRequest) -> bool:
        return request.sampling.is_resumable


class DrawsWithSeeds(ScriptedEngine):
    """Hands a first token over that is the first of a random stream."""

    def draws_first(self, request: EngineRequest) -> bool:
        return comes_from_prefill(len(request.prompt_token_ids), self.info.kv_block_tokens, is_resumable=True)


class KeepsFirstTokensBack(ScriptedEngine):
    """Has no first token before its own."""

    async def decode(self, request: EngineRequest, handle: KvHandle) -> AsyncGenerator[Chunk, None]:
        async for chunk in super().decode(request, msgspec.structs.replace(handle, first=None)):
            yield chunk


class HoldsNothingBack(ScriptedEngine):
    """Gives the text of a first token that a stop string begins with."""

    async def decode(self, request: EngineRequest, handle: KvHandle) -> AsyncGenerator[Chunk, None]:
        first = handle.first
        if first is not None and first.is_from_prefill:
            text = written(first.token_ids)
            yield msgspec.structs.replace(first, text=text)
            request = request.after(first.token_ids, len(text))
            handle = msgspec.structs.replace(handle, first=None)
        async for chunk in super().decode(request, handle):
            yield chunk


class HoldsForEver(ScriptedEngine):
    """What it holds for others is never free again."""

    num_prefills = 0

    async def prefill(self, request: EngineRequest) -> KvHandle:
        self.num_prefills += 1
        return await super().prefill(request)

    def stats(self) -> EngineStats:
        return msgspec.structs.replace(super().stats(), kv_cache_usage=self.num_prefills / 1000)


class GoesOnAfterTheEnd(ScriptedEngine):
    """Takes a whole answer for the beginning of one."""

    async def decode(self, request: EngineRequest, handle: KvHandle) -> AsyncGenerator[Chunk, None]:
        first = handle.first
        if first is not None and request.sampling.max_tokens > 1:
            first = msgspec.structs.replace(first, text="", finish_reason=None, stop_reason=None, times=AWAITS_KV)
        async for chunk in super().decode(request, msgspec.structs.replace(handle, first=first)):
            yield chunk


@for_each(
    ("prefill", "decode", "rule"),
    [
        (HoldsHalf, ScriptedEngine, "same_tokens"),
        (ScriptedEngine, MisreadsBlocks, "same_tokens"),
        (ScriptedEngine, PullsNothing, "same_tokens"),
        (ScriptedEngine, KeepsCancelledBlocks, "a_decode_closed_before_its_first_token_frees_everything"),
        (DrawsAtBlocksEnds, ScriptedEngine, FIRST_TOKEN_RULE),
        (DrawsWithSeeds, ScriptedEngine, FIRST_TOKEN_RULE),
        (ScriptedEngine, KeepsFirstTokensBack, FIRST_TOKEN_RULE),
        (ScriptedEngine, HoldsNothingBack, "a_stop_string_is_found_across_a_first_token_of_the_prefills"),
        (ScriptedEngine, GoesOnAfterTheEnd, "an_answer_ends_with_the_first_token_where_that_ends_it"),
        (MisreadsPrompts, ScriptedEngine, "a_whole_request_gives_the_same_tokens"),
        (ScriptedEngine, MisreadsPrompts, "a_whole_request_gives_the_same_tokens"),
        (DrawsNothing, DecodesAfresh, "an_interrupted_answer_goes_on_over_a_handoff"),
        (BeginsAnotherDocument, BeginsAnotherDocument, "a_structured_output_goes_on_over_a_handoff"),
        (NoPromptLogprobs, ScriptedEngine, "a_prompts_logprobs_come_over_a_handoff"),
        (HoldsForEver, ScriptedEngine, "kv_that_is_given_up_is_freed"),
    ],
)
async def test_the_kit_finds_the_rule_that_a_handoff_breaks(
    prefill: type[ScriptedEngine], decode: type[ScriptedEngine], rule: str
) -> None:
    assert await the_rule_that_breaks(check_handoff(ScriptedEngine(), prefill(), decode())) == rule


# -- adapters ---------------------------------------------------------------------------------------------------------

ADAPTERS = [Adapter(name, f"/adapters/{name}") for name in ("a", "b", "c")]


class MixesAdaptersUp(ScriptedEngine):
    """What runs beside a request without an adapter lends it its own."""

    def token(self, run: Run) -> int:
        others = [each.request.adapter for each in self.runs.values() if each.request.adapter]
        if others and not run.request.adapter:
            run = Run(request=msgspec.structs.replace(run.request, adapter=others[0]), output=run.output)
        return super().token(run)


class EndsAnswersAtAnotherLoad(ScriptedEngine):
    """An adapter that is loaded once more is another one: what had it before ends."""

    def use(self, adapter: Adapter) -> None:
        if adapter.name not in self.adapters:
            for run in self.runs.values():
                if run.request.adapter == adapter:
                    run.finish_reason = "abort"
        super().use(adapter)


class SaysNothingOfAdapters(ScriptedEngine):
    """Nobody knows what is loaded."""

    def stats(self) -> EngineStats:
        return msgspec.structs.replace(super().stats(), adapters=("?",))


class KeepsUnloaded(ScriptedEngine):
    """An adapter that was to be forgotten is still there."""

    async def unload_adapter(self, name: str) -> None:
        return None


class ResumesWithoutAdapter(ScriptedEngine):
    """What is left of an answer is the model's own."""

    async def generate(self, request: EngineRequest) -> AsyncGenerator[Chunk, None]:
        if request.answered_tokens:
            request = msgspec.structs.replace(request, adapter=NO_ADAPTER)
        async for chunk in super().generate(request):
            yield chunk


class DecodesWithoutAdapter(ScriptedEngine):
    """The prompt is computed with it, the answer is not."""

    async def decode(self, request: EngineRequest, handle: KvHandle) -> AsyncGenerator[Chunk, None]:
        async for chunk in super().decode(msgspec.structs.replace(request, adapter=NO_ADAPTER), handle):
            yield chunk


async def test_the_kit_lets_an_engine_with_adapters_through() -> None:
    passed = await check_adapters(ScriptedEngine(max_adapters=2), ADAPTERS)
    assert passed[0] == "each_gives_its_own_answer_beside_others"
    unified, prefill, decode = (ScriptedEngine(max_adapters=2) for _ in range(3))
    assert await check_adapter_handoff(unified, prefill, decode, ADAPTERS[0])


@for_each(
    ("engine", "rule"),
    [
        (MixesAdaptersUp, "each_gives_its_own_answer_beside_others"),
        (EndsAnswersAtAnotherLoad, "one_that_went_from_under_an_answer_comes_back"),
        (SaysNothingOfAdapters, "what_is_loaded_is_told"),
        (KeepsUnloaded, "what_is_loaded_is_told"),
        (ResumesWithoutAdapter, "an_interrupted_answer_goes_on_with_its_adapter"),
    ],
)
async def test_the_kit_finds_what_is_wrong_with_adapters(engine: type[ScriptedEngine], rule: str) -> None:
    assert await the_rule_that_breaks(check_adapters(engine(max_adapters=2), ADAPTERS)) == rule


async def test_the_kit_finds_a_decode_that_forgets_the_adapter() -> None:
    unified, prefill, decode = (
        each(max_adapters=2) for each in (ScriptedEngine, ScriptedEngine, DecodesWithoutAdapter)
    )
    with pytest.raises(AssertionError, match="over the handoff"):
        await check_adapter_handoff(unified, prefill, decode, ADAPTERS[0])


# -- vectors ----------------------------------------------------------------------------------------------------------


class VectorAndToken(ScriptedEngine):
    """A vector, and a token beside it."""

    def pooled(self, request: EngineRequest, chunk: Chunk) -> Chunk:
        return msgspec.structs.replace(super().pooled(request, chunk), token_ids=(7,))


class LongVectors(ScriptedEngine):
    """An embedding is as long as the prompt."""

    def vector(self, request: EngineRequest) -> bytes:
        return super().vector(request) * (1 + len(request.prompt_token_ids) // 10)


class OneVectorForAll(ScriptedEngine):
    """Whatever it is asked."""

    def vector(self, request: EngineRequest) -> bytes:
        return super().vector(msgspec.structs.replace(request, prompt_token_ids=[1]))


class MixesPromptsUp(ScriptedEngine):
    """What runs beside a prompt is pooled with it."""

    def vector(self, request: EngineRequest) -> bytes:
        others = [each.request for each in self.runs.values()]
        return super().vector(others[-1] if others else request)


class PoolsAnyLength(ScriptedEngine):
    """Takes what is longer than its context."""

    def check_pooled(self, request: EngineRequest) -> None:
        if request.pooling.task not in self.pooling_tasks:
            super().check_pooled(request)


class PoolsWhatIsAnAnswer(ScriptedEngine):
    """Takes a request for an answer."""

    def check_pooled(self, request: EngineRequest) -> None:
        if request.pooling:
            super().check_pooled(request)


async def test_the_kit_lets_an_engine_that_pools_through() -> None:
    passed = await check_pooling(ScriptedEngine(pooling_tasks=("embed",)))
    assert passed[0] == "a_prompt_becomes_one_vector"


@for_each(
    ("engine", "rule"),
    [
        (VectorAndToken, "a_prompt_becomes_one_vector"),
        (OneVectorForAll, "other_prompts_have_other_vectors_of_one_length"),
        (MixesPromptsUp, "vectors_are_the_same_beside_others"),
        (PoolsAnyLength, "a_prompt_may_fill_the_context_and_not_more"),
        (PoolsWhatIsAnAnswer, "what_it_is_not_there_for_is_refused"),
    ],
)
async def test_the_kit_finds_what_is_wrong_with_vectors(engine: type[ScriptedEngine], rule: str) -> None:
    assert await the_rule_that_breaks(check_pooling(engine(pooling_tasks=("embed",)))) == rule


async def test_the_kit_finds_vectors_whose_length_is_the_prompts() -> None:
    broken = check_pooling(LongVectors(pooling_tasks=("classify",)))
    assert await the_rule_that_breaks(broken) == "other_prompts_have_other_vectors_of_one_length"
