"""What a traffic class was promised."""

from dataclasses import dataclass, fields

from policies.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassSlo:
    """The SLOs of a traffic class. A request that misses any part of it is a miss.

    Args:
        ttft_s: Longest time to the first content.
        ttft_s_per_1k_prompt_tokens: The same for each 1,000 tokens of the prompt. With both, the longer one counts.
        tpot_s: Longest mean time between tokens after the first.
        e2e_s: Longest time to the last token.

    Raises:
        ConfigError: A limit that is not positive, or no limit at all.
    """

    ttft_s: float | None = None
    ttft_s_per_1k_prompt_tokens: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None

    def __post_init__(self) -> None:
        limits = {each.name: getattr(self, each.name) for each in fields(self)}
        for name, limit in limits.items():
            if limit is not None and not 0 < limit < float("inf"):
                raise ConfigError(name, limit, "a finite number of seconds above 0")
        if all(limit is None for limit in limits.values()):
            raise ConfigError("slo", None, f"at least one of {list(limits)}")
