"""How a degraded request is told to its engine and to its client."""

import msgspec

from deployments.wire import inner_hop
from routing.request.effects import Degraded

HEADER = "x-spillway-degraded"
"""Names, in a response, what its request was given in the place of what it asked for."""


def kinds_of(decision: Degraded) -> dict[str, str]:
    """In which ways a request is degraded: each kind, as metrics name it, with what the header says of it."""
    said = {
        "cache": "cache" if decision.from_cache else "",
        "max_tokens": _if(decision.max_output_tokens < decision.asked_output_tokens, decision.max_output_tokens),
        "output_time_limit": _if(decision.output_time_limit_s > 0, f"{decision.output_time_limit_s:.3g}s"),
        "lane": _if(bool(decision.lane), decision.lane),
    }
    return {kind: text if kind == "cache" else f"{kind}={text}" for kind, text in said.items() if text}


def header_of(decision: Degraded) -> dict[str, str]:
    """The response header, such as ``max_tokens=64, output_time_limit=2.5s``; none for a request that lost nothing."""
    kinds = kinds_of(decision)
    return {HEADER: ", ".join(kinds.values())} if kinds else {}


def shortened(payload: bytes, max_tokens: int) -> bytes:
    """An encoded engine request that asks for an answer of so many tokens at the most."""
    request = inner_hop.decode_request(payload)
    sampling = msgspec.structs.replace(
        request.sampling, max_tokens=max_tokens, min_tokens=min(request.sampling.min_tokens, max_tokens)
    )
    return inner_hop.encode(msgspec.structs.replace(request, sampling=sampling))


def _if(is_so: bool, text: object) -> str:
    return str(text) if is_so else ""
