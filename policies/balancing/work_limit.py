"""How much work a replica may have and still be preferred for what it has in its cache."""

from policies.candidates import Candidates
from policies.errors import ConfigError


class WorkLimit:
    """A multiple of the candidates' mean work, and a number of tokens on top.

    The multiple alone would forbid every reuse on an idle fleet, where one request is many times the mean.

    Args:
        bound_factor: The multiple.
        slack_tokens: On top.

    Raises:
        ConfigError: The multiple is below 1, or the slack below 0.
    """

    def __init__(self, bound_factor: float, slack_tokens: int) -> None:
        if not bound_factor >= 1.0:
            raise ConfigError("policies.balancing.params.bound_factor", bound_factor, "at least 1")
        if slack_tokens < 0:
            raise ConfigError("policies.balancing.params.slack_tokens", slack_tokens, "at least 0")
        self._bound_factor = bound_factor
        self._slack_tokens = slack_tokens

    def tokens(self, candidates: Candidates) -> float:
        """The most work that a preferred one of these candidates may have; never less than the least of them has."""
        mean_tokens = candidates.total_work_tokens() / len(candidates)
        return self._bound_factor * mean_tokens + self._slack_tokens
