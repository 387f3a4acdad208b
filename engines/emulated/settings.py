"""What decides how an emulated engine behaves."""

from dataclasses import dataclass

from engines.contract import EngineInfo
from engines.model.batching import BatchLimits
from engines.model.profile import EngineProfile
from engines.model.step_model import StepModelSpec
from policies.errors import ConfigError
from policies.views import Role


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatedSettings:
    """How to start one engine.

    Args:
        model: Folder of the checkpoint; its tokenizer and ``config.json`` are read.
        role: Unified, or one side of the handoff.
        changes_roles: Whether it may be asked for what the other side of the handoff does, too.
        pools_prompts: Whether it makes a vector of each prompt, as the checkpoint's ``config.json`` says, and gives no
            answers.
        profile: The model and the machine that are emulated.
        limits: Bounds of a step.
        num_speculative_tokens: Draft tokens of a sequence in a step; 0: none.
        slowdown: How many times as long as the profile says a step takes.
        context_tokens: Longest prompt and output together; ``None`` takes the profile's own.
        kv_capacity_tokens: Size of the KV cache; ``None`` takes the profile's own.
        prefix_caching: Whether text that was computed before is found again.
        kv_events: Whether it says what comes into its prefix cache and goes from it.
        speed: Model seconds in a real second.
        mean_output_tokens: Mean length of an answer that ends by itself.
        start_s: How long the start takes, in model seconds.
        kv_lease_s: How long a prefill engine holds blocks that nobody claims, in real seconds.
        seed: Of the sampling of requests that bring no seed.
        host: Address at which other engines reach this one for the handoff.
        place: Where it is, level by level.
        link_slowdowns: How many times as long as by its own link KV takes to it from where it has a level in common.
    """

    model: str
    role: Role
    profile: EngineProfile
    limits: BatchLimits
    changes_roles: bool = False
    pools_prompts: bool = False
    num_speculative_tokens: int = 0
    slowdown: float = 1.0
    context_tokens: int | None = None
    kv_capacity_tokens: int | None = None
    prefix_caching: bool = True
    kv_events: bool = False
    speed: float = 1.0
    mean_output_tokens: float = 200.0
    start_s: float = 0.0
    kv_lease_s: float = 30.0
    seed: int = 0
    host: str = "127.0.0.1"
    place: tuple[str, ...] = ()
    link_slowdowns: tuple[float, ...] = ()

    @property
    def hands_kv_over(self) -> bool:
        """Whether it computes prompts for other engines."""
        return self.role is Role.PREFILL or self.changes_roles

    def spec(self) -> StepModelSpec:
        """The model, which takes every step by itself so that each can be seen.

        Raises:
            ConfigError: A KV cache of less than a block, or draft tokens that the profile knows nothing of.
        """
        return self.profile.step_model(
            self.limits,
            kv_capacity_tokens=self.kv_capacity_tokens,
            speculation=self.profile.speculation(self.num_speculative_tokens),
            slowdown=self.slowdown,
            max_steps_per_run=1,
        )

    def info(self) -> EngineInfo:
        """What the engine says about itself.

        Raises:
            ConfigError: A request of full length does not fit into the KV cache.
        """
        spec = self.spec()
        context_tokens = self.profile.context_tokens if self.context_tokens is None else self.context_tokens
        capacity_tokens = spec.num_kv_blocks * spec.kv_block_tokens
        if context_tokens > capacity_tokens:
            raise ConfigError("max_model_len", context_tokens, f"at most the KV cache's {capacity_tokens} tokens")
        return EngineInfo(
            context_tokens=context_tokens,
            kv_capacity_tokens=capacity_tokens,
            kv_block_tokens=spec.kv_block_tokens,
            max_num_seqs=self.limits.max_num_seqs,
            can_sleep=self.profile.wake_s > 0,
            max_adapters=self.limits.max_adapters,
        )
