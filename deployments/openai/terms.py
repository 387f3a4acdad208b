"""What a request's body says of the terms that it is served under, whatever else it asks for."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from policies.views import Priority

Text = Annotated[str, Field(strict=True)]
Integer = Annotated[int, Field(strict=True, ge=-(1 << 63), lt=1 << 63)]
MAX_TIMEOUT_S = 86_400
"""Longest time that a client may give a request; the deployment's own limit is mostly shorter."""
MAX_USER_LENGTH = 128
"""Characters of the field ``user``: it is kept and hashed."""
MAX_SALT_LENGTH = 256
TIERS: dict[str, Priority] = {"priority": Priority.CRITICAL, "flex": Priority.SHEDDABLE}
"""OpenAI's service tiers that say something about the class; the others leave it open."""


class TermsFields(BaseModel):
    """What a request is served under, as far as its body says so.

    Args:
        model: The deployment's model.
        priority: The class, or one of vLLM's numbers: below 0 is ``critical``, above 0 ``sheddable``, 0 says nothing.
        service_tier: OpenAI's: ``priority`` is ``critical``, ``flex`` is ``sheddable``, the others say nothing.
        user: The session for shedding, where the header ``x-session-id`` names none.
        timeout: Seconds that the request may take, from arrival to its last token.
        cache_salt: Of those with whom its tenant shares KV of equal prompts, only those with the same salt are to.
    """

    model_config = ConfigDict(extra="allow", strict=False)

    model: Text
    priority: Literal["critical", "standard", "sheddable"] | Integer | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority"] | None = None
    user: Annotated[str, Field(strict=True, max_length=MAX_USER_LENGTH)] | None = None
    timeout: Annotated[float, Field(strict=True, gt=0, le=MAX_TIMEOUT_S, allow_inf_nan=False)] | None = None
    cache_salt: Annotated[str, Field(strict=True, min_length=1, max_length=MAX_SALT_LENGTH)] | None = None

    @property
    def priority_class(self) -> Priority | None:
        """The class that ``priority`` asks for, if any; of vLLM's numbers, smallest first, the sign says which."""
        if not isinstance(self.priority, int):
            return Priority(self.priority) if self.priority else None
        if self.priority == 0:
            return None
        return Priority.CRITICAL if self.priority < 0 else Priority.SHEDDABLE

    @property
    def service_tier_class(self) -> Priority | None:
        """The class that OpenAI's ``service_tier`` asks for, if any."""
        return TIERS.get(self.service_tier or "")
