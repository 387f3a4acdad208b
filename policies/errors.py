"""Every exception that this project raises on purpose.

::

    ServingError
    + ConfigError              wrong configuration; raised before traffic, names field, value and what is allowed
    + RequestInvalid           the client's mistake; maps to HTTP 400, names the field
    + EngineError              raised by engines, mapped once per engine
      - EngineUnavailable      the engine is dead or unreachable: nothing more will come from it
        - EngineDied           it died with the request in it, perhaps of it
      - EngineAborted          the request was aborted inside the engine
      - KvTransferFailed       the KV blocks of a prefill could not be loaded
      - PromptWithdrawn        another engine computes the request's prompt, this one has done nothing for it
    + PolicyMisbehaved         a policy answered what its contract does not allow: a bug in that policy
    + InvariantViolation       a bug in this project; never caught

Refusals are not here: overload is an outcome (:class:`policies.decisions.Reason`), not an exception.
"""


class ServingError(Exception):
    """Root of the tree."""


class ConfigError(ServingError):
    """A configuration value that can't be served.

    Args:
        field: Dotted path of the field, as the user wrote it.
        value: What was found there.
        allowed: What would have been accepted, in words.
    """

    def __init__(self, field: str, value: object, allowed: str) -> None:
        super().__init__(f"{field}: got {value!r}; allowed: {allowed}")
        self.field = field
        self.value = value
        self.allowed = allowed

    def __reduce__(self) -> tuple[type["ConfigError"], tuple[str, object, str]]:
        return type(self), (self.field, self.value, self.allowed)


class RequestInvalid(ServingError):
    """A request that can't be served because of what the client sent.

    Args:
        message: One sentence for the client.
        param: The request field at fault, or ``None`` when no single field is.
    """

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param

    def __reduce__(self) -> tuple[type["RequestInvalid"], tuple[str, str | None]]:
        return type(self), (self.message, self.param)


class EngineError(ServingError):
    """Something went wrong inside an engine."""


class EngineUnavailable(EngineError):
    """The engine is dead or unreachable."""


class EngineDied(EngineUnavailable):
    """The engine has died with the request in it, perhaps of it."""


class EngineAborted(EngineError):
    """The engine gave the request up before it finished."""


class KvTransferFailed(EngineError):
    """The decode side could not load the blocks that the prefill side holds."""


class PromptWithdrawn(EngineError):
    """Another engine has the execution claim that the request shares with one there."""


class PolicyMisbehaved(ServingError):
    """A policy answered something that its contract does not allow.

    Args:
        question: The question that it answers, such as ``balancing``.
        policy: The policy.
        allowed: What it could have answered, in words.
        answer: What it answered.
    """

    def __init__(self, question: str, policy: object, allowed: str, answer: object) -> None:
        answered = getattr(answer, "replica_id", answer)
        super().__init__(f"{question}: {type(policy).__name__} answered {answered!r}; allowed: {allowed}")


class InvariantViolation(ServingError):
    """The state machine was driven in a way that can't happen: a bug in this project."""
