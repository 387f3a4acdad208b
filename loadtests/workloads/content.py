"""Numbers that stand for text: equal numbers mean equal text, so that prefix caches can be simulated without any text.

They are 60-bit hashes of (class, session, unit), mixed by splitmix64 (Steele, Lea and Flood, "Fast splittable
pseudorandom number generators", OOPSLA 2014); the same in every process, and never Python's ``hash``.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
_SPARE_BITS = 4
ID_MASK = _MASK >> _SPARE_BITS
"""The bits of an id."""


def key_of(*parts: object) -> int:
    """A 64-bit key for whatever the parts name."""
    text = "/".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def unit_ids(key: int, begin: int, end: int) -> tuple[int, ...]:
    """Ids of the units from ``begin`` up to ``end`` of the text that the key names, as 60-bit numbers."""
    return tuple((mixed(np.array([key], dtype=np.uint64), begin, end)[0] >> np.uint64(_SPARE_BITS)).tolist())


def mixed(keys: NDArray[np.uint64], begin: int, end: int) -> NDArray[np.uint64]:
    """Well-mixed 64-bit numbers: a row for each key, a column for each index from ``begin`` up to ``end``."""
    numbers = np.arange(begin + 1, end + 1, dtype=np.uint64) * np.uint64(_GOLDEN) + keys[:, np.newaxis]
    numbers ^= numbers >> np.uint64(30)
    numbers *= np.uint64(0xBF58476D1CE4E5B9)
    numbers ^= numbers >> np.uint64(27)
    numbers *= np.uint64(0x94D049BB133111EB)
    numbers ^= numbers >> np.uint64(31)
    return numbers


def uniform_of(key: int, *numbers: int) -> float:
    """A draw from [0, 1) that depends on the key and the numbers alone."""
    digest = hashlib.blake2b(",".join(map(str, numbers)).encode(), digest_size=8, key=(key & _MASK).to_bytes(8, "big"))
    return (int.from_bytes(digest.digest(), "big") >> 11) / (1 << 53)
