"""Checks at start-up that the Ray cluster wants a token of everyone who calls it.

Ray runs whatever code it is sent. A cluster without authentication runs it for anyone who reaches one of its ports.
"""

import ray

from deployments.wire.gcs_call import TokenlessCall, call_gcs_without_token
from policies.errors import ConfigError

FIELD = "allow_unauthenticated_cluster"
FOUND = {
    TokenlessCall.ANSWERED: "answers calls without a token, so anyone who reaches its ports can run code on its nodes",
    TokenlessCall.UNDECIDED: "did not say whether it wants a token",
}


def check_cluster_authentication(*, is_allowed_without: bool) -> None:
    """Asks the Ray cluster of this process for something without a token; where Ray does not run there is no cluster.

    Args:
        is_allowed_without: Whether the configuration does without.

    Raises:
        ConfigError: The cluster has no authentication, as far as can be told, and the configuration wants one.
    """
    if is_allowed_without or not ray.is_initialized():
        return
    address = ray.get_runtime_context().gcs_address
    check_answer(call_gcs_without_token(address), address)


def check_answer(answer: TokenlessCall, address: str) -> None:
    """Whether the answer to a call without a token is that of a cluster with authentication.

    Args:
        answer: What came.
        address: Of the cluster.

    Raises:
        ConfigError: It is not.
    """
    if answer is not TokenlessCall.REFUSED:
        raise ConfigError(
            FIELD,
            False,
            f"true, or a Ray cluster with authentication; the one at {address} {FOUND[answer]}. Start Ray with "
            "RAY_AUTH_MODE=token and the same token on every node, see docs/how-to/operations.md",
        )
