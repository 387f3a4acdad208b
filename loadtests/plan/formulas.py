"""What a formula comes to that stands as text in a file: arithmetic, and waits in closed form."""

import ast
import math
from collections.abc import Callable, Mapping
from typing import Any

from simpleeval import InvalidExpression, SimpleEval

from policies.capacity import StationaryQueue, erlang_c, fewest_servers, highest_rate_per_s
from policies.errors import ConfigError


def value_of(name: str, formula: str, names: Mapping[str, float]) -> float:
    """What a formula gives.

    Args:
        name: Whose it is.
        formula: Of numbers, ``names`` and ``FUNCTIONS``.
        names: Numbers by name.

    Raises:
        ConfigError: It can't be worked out: it names what is not known, or divides by 0.
    """
    try:
        tree = ast.parse(formula.strip(), mode="eval").body  # one expression, and no assignment
        value = SimpleEval(functions=FUNCTIONS, names=dict(names)).eval(formula, previously_parsed=tree)
        if not isinstance(value, int | float):
            raise TypeError(f"{value!r} is no number")
        return float(value)
    except (InvalidExpression, ArithmeticError, ValueError, TypeError, SyntaxError, RecursionError) as error:
        raise ConfigError(name, formula, f"a formula of {', '.join([*names, *FUNCTIONS])}; {error}") from error


def _queue(rate_per_s: float, service_s: float, servers: float) -> StationaryQueue:
    for name, value, least in (("rate_per_s", rate_per_s, 0), ("service_s", service_s, 1e-12), ("servers", servers, 0)):
        if not least <= value < math.inf:
            raise ValueError(f"{name} is {value!r}, and has to be {least} or more")
    if servers != int(servers):
        raise ValueError(f"servers is {servers!r}, and has to be a whole number")
    return StationaryQueue(rate_per_s=rate_per_s, service_s=service_s, servers=int(servers))


def _part(quantile: float) -> float:
    if not 0 < quantile < 1:
        raise ValueError(f"quantile is {quantile!r}, and has to be above 0 and below 1")
    return quantile


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "ln": math.log,
    "ceil": math.ceil,
    "floor": math.floor,
    "round": round,
    "max": max,
    "erlang_c": lambda servers, load: erlang_c(int(servers), load),
    "mean_response_s": lambda rate_per_s, service_s, servers: _queue(rate_per_s, service_s, servers).mean_response_s,
    "response_quantile_s": lambda rate_per_s, service_s, servers, quantile: _queue(
        rate_per_s, service_s, servers
    ).response_quantile_s(_part(quantile)),
    "highest_rate_per_s": lambda service_s, servers, limit_s, quantile: highest_rate_per_s(
        _queue(0.0, service_s, servers), limit_s, _part(quantile)
    ),
    "replicas_for": lambda rate_per_s, service_s, limit_s, quantile: fewest_servers(
        _queue(rate_per_s, service_s, 1), limit_s, _part(quantile)
    ),
}
"""What formulas may use; queues are M/M/c."""
