"""Engine profiles: everything that the step model must know of one model on one machine, in a YAML file.

``python -m engines.calibration`` measures one; ``engines/profiles/`` has those that come with spillway. A profile says
where its numbers come from, and whoever shows results made with it shows that too.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from engines.model.batching import BatchLimits
from engines.model.cost_model import Seconds, StepCoefficients
from engines.model.speculation import NO_DRAFTS, NO_SPECULATION, Drafts, Speculation
from engines.model.step_model import SKIP_AHEAD, StepModelSpec
from policies.errors import ConfigError

PROFILES = Path(__file__).parents[1] / "profiles"

Positive = Annotated[int, msgspec.Meta(ge=1)]


class Provenance(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a profile's numbers come from.

    Args:
        kind: ``measured`` on a real engine, or ``analytic``: derived from data sheets, never run.
        model: The model's name and shape.
        machine: What it ran on, or what the data sheet is of.
        date: When, as ``YYYY-MM-DD``.
        versions: Packages that took part, by name.
        method: One sentence.
        residuals: How far the fit is off, by name of the measure, as fractions.
    """

    kind: Literal["measured", "analytic"]
    model: str
    machine: str
    date: str
    method: str
    versions: dict[str, str] = {}
    residuals: dict[str, float] = {}


class Overheads(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an engine's front end adds to its steps.

    Args:
        request_s: From a request's arrival to the scheduler's seeing it.
        token_s: From a step's end to its tokens' leaving, for each sequence in the step.
    """

    request_s: Seconds = 0.0
    token_s: Seconds = 0.0


class KvCache(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The KV cache and the link that blocks travel on.

    Args:
        block_tokens: Tokens in a block.
        capacity_tokens: KV tokens that the engine can hold, as the engine itself says.
        bytes_per_token: Bytes of KV for one token, all layers together.
        bandwidth_bytes_per_s: Of a transfer between two engines.
        transfer_overhead_s: What a transfer costs beside its bytes.
    """

    block_tokens: Positive
    capacity_tokens: Positive
    bytes_per_token: Positive
    bandwidth_bytes_per_s: Annotated[float, msgspec.Meta(gt=0)]
    transfer_overhead_s: Seconds = 0.0


class EngineProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model on one machine.

    Args:
        name: Names it in tables and scenario files.
        provenance: Where the numbers come from.
        step: Step times.
        overheads: The front end's share.
        kv: The KV cache.
        drafts: What proposes tokens, for engines that decode speculatively.
        context_tokens: Longest prompt and output together.
        max_num_seqs: Sequences in a step, unless a pool says otherwise.
        max_num_batched_tokens: Tokens in a step, unless a pool says otherwise.
        start_s: From a replica's start to its first request, warm-up included.
        sleep_s: From then on until it sleeps that nothing is left for it to do; 0 where it can't sleep and is idle.
        wake_s: From there to its first request.
        adapter_load_s: What a step takes longer that loads a LoRA adapter.
    """

    name: str
    provenance: Provenance
    step: StepCoefficients
    overheads: Overheads = Overheads()
    kv: KvCache
    drafts: Drafts = NO_DRAFTS
    context_tokens: Positive
    max_num_seqs: Positive
    max_num_batched_tokens: Positive
    start_s: Seconds
    sleep_s: Seconds = 0.0
    wake_s: Seconds = 0.0
    adapter_load_s: Seconds = 0.0

    def with_link(self, bandwidth_bytes_per_s: float | None) -> "EngineProfile":
        """The same model with another link between engines; ``None`` takes the profile's own."""
        if bandwidth_bytes_per_s is None:
            return self
        kv = msgspec.structs.replace(self.kv, bandwidth_bytes_per_s=bandwidth_bytes_per_s)
        return msgspec.structs.replace(self, kv=kv)

    def limits(
        self,
        *,
        max_num_seqs: int | None = None,
        max_num_batched_tokens: int | None = None,
        long_prefill_token_threshold: int = 0,
        priority_scheduling: bool = False,
        max_adapters: int = 0,
        max_adapters_in_step: int = 0,
    ) -> BatchLimits:
        """Bounds of a step; ``None`` takes the profile's own.

        Raises:
            ConfigError: A limit out of range.
        """
        num_seqs = self.max_num_seqs if max_num_seqs is None else max_num_seqs
        num_tokens = self.max_num_batched_tokens if max_num_batched_tokens is None else max_num_batched_tokens
        return BatchLimits(
            max_num_seqs=num_seqs,
            max_num_batched_tokens=num_tokens,
            long_prefill_token_threshold=long_prefill_token_threshold,
            priority_scheduling=priority_scheduling,
            max_adapters=max_adapters,
            max_adapters_in_step=max_adapters_in_step,
        )

    def speculation(self, num_speculative_tokens: int) -> Speculation:
        """How an engine decodes with so many draft tokens of each sequence in a step; 0: without.

        Raises:
            ConfigError: A number out of range, or any where the profile knows no drafts.
        """
        most = self.kv.block_tokens - 1
        if not 0 <= num_speculative_tokens <= most:
            raise ConfigError("num_speculative_tokens", num_speculative_tokens, f"0 to {most}, less than a KV block")
        if num_speculative_tokens and not self.drafts.accepted_fraction:
            allowed = f"0, as the profile {self.name} does not say what fraction of draft tokens is accepted (drafts)"
            raise ConfigError("num_speculative_tokens", num_speculative_tokens, allowed)
        return Speculation(num_speculative_tokens=num_speculative_tokens, drafts=self.drafts)

    def step_model(
        self,
        limits: BatchLimits,
        *,
        kv_capacity_tokens: int | None = None,
        speculation: Speculation = NO_SPECULATION,
        slowdown: float = 1.0,
        max_steps_per_run: int = SKIP_AHEAD,
    ) -> StepModelSpec:
        """One engine of this profile.

        Args:
            limits: Bounds of a step.
            kv_capacity_tokens: Size of the KV cache; ``None`` takes the profile's own.
            speculation: How answers are decoded.
            slowdown: How many times as long as the profile says its steps take.
            max_steps_per_run: 1 takes every step by itself.

        Raises:
            ConfigError: A KV cache of less than one block, or more draft tokens than a step has room for.
        """
        capacity_tokens = self.kv.capacity_tokens if kv_capacity_tokens is None else kv_capacity_tokens
        _check_sizes(limits, speculation, capacity_tokens, self.kv.block_tokens)
        return StepModelSpec(
            coefficients=self.step,
            limits=limits,
            num_kv_blocks=capacity_tokens // self.kv.block_tokens,
            kv_block_tokens=self.kv.block_tokens,
            speculation=speculation,
            adapter_load_s=self.adapter_load_s,
            slowdown=slowdown,
            request_overhead_s=self.overheads.request_s,
            token_overhead_s=self.overheads.token_s,
            kv_bytes_per_token=self.kv.bytes_per_token,
            kv_bandwidth_bytes_per_s=self.kv.bandwidth_bytes_per_s,
            kv_transfer_overhead_s=self.kv.transfer_overhead_s,
            max_steps_per_run=max_steps_per_run,
        )


def _check_sizes(limits: BatchLimits, speculation: Speculation, capacity_tokens: int, block_tokens: int) -> None:
    if capacity_tokens < block_tokens:
        raise ConfigError("kv_capacity_tokens", capacity_tokens, f"{block_tokens} or more")
    needed = limits.max_num_seqs * (1 + speculation.num_speculative_tokens)
    if needed > limits.max_num_batched_tokens:
        allowed = f"{needed} or more: max_num_seqs, each with {speculation.num_speculative_tokens} draft tokens"
        raise ConfigError("max_num_batched_tokens", limits.max_num_batched_tokens, allowed)


def load_profile(name_or_path: str) -> EngineProfile:
    """Reads a profile that comes with spillway, by name, or anybody's own, by path.

    Raises:
        ConfigError: No such profile, or one with a field that is missing, unknown or out of range.
    """
    path = Path(name_or_path)
    if path.suffix not in (".yaml", ".yml"):
        path = PROFILES / f"{name_or_path}.yaml"
    if not path.is_file():
        known = sorted(each.stem for each in PROFILES.glob("*.yaml"))
        raise ConfigError("profile", name_or_path, f"one of {known}, or the path of a YAML file")
    try:
        return msgspec.yaml.decode(path.read_bytes(), type=EngineProfile)
    except msgspec.MsgspecError as error:
        raise ConfigError("profile", name_or_path, f"a profile that can be read ({error})") from error


def save_profile(profile: EngineProfile, path: Path) -> None:
    """Writes a profile that :func:`load_profile` reads again."""
    content: dict[str, Any] = msgspec.to_builtins(profile)
    path.write_bytes(msgspec.yaml.encode(content))
