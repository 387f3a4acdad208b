"""Requests and streams of answers for tests of length predictors."""

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from policies import RequestView
from routing.sizing.length_log import LoggedRequest
from tests.policy_doubles import a_request


def asked(
    prompt_tokens: int = 100, max_output_tokens: int = 4096, tenant: str = "", ngrams: tuple[int, ...] = ()
) -> RequestView:
    """A request with all that a predictor looks at."""
    request = a_request(prompt_tokens=prompt_tokens, max_output_tokens=max_output_tokens)
    return replace(request, tenant=tenant, prompt_ngrams=ngrams)


def lognormal_lengths(num: int, *, median: float = 200.0, spread: float = 0.8, seed: int = 1) -> list[int]:
    """Whole lengths of at least 1 token."""
    draws = np.random.Generator(np.random.PCG64(seed)).standard_normal(num)
    return [max(1, round(each)) for each in (median * np.exp(spread * draws)).tolist()]


LOGGED = st.builds(
    LoggedRequest,
    prompt_tokens=st.integers(1, 10**6),
    max_output_tokens=st.integers(1, 10**6),
    output_tokens=st.integers(0, 10**6),
    tenant=st.sampled_from(["", "a", "b", "\udcff"]),
    ngrams=st.lists(st.integers(0, 63), max_size=8).map(tuple),
)
"""Anything that could happen, answers beyond their bound included."""
