"""One traffic class's random streams: draws in blocks, each purpose on its own."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from cluster.seeds import Seeds

BLOCK = 2048
"""Draws made at a time. A stream yields the same numbers in blocks of any size, so it moves no time by more than the
rounding of a sum."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class ClassStreams:
    """Named random streams of one traffic class: what one class or one purpose draws never shifts another's.

    Args:
        seeds: The run's.
        class_name: Part of every stream's name, as in ``arrivals.chat``.
    """

    def __init__(self, seeds: Seeds, class_name: str) -> None:
        self._seeds = seeds
        self._class_name = class_name

    def generator(self, purpose: str) -> np.random.Generator:
        """A fresh generator for one purpose; the bit generator is named, so that numpy's default may change."""
        seed = self._seeds.stream(f"{purpose}.{self._class_name}").getrandbits(128)
        return np.random.Generator(np.random.PCG64(seed))

    def uniforms(self, purpose: str) -> Iterator[Floats]:
        """Endless blocks of draws from [0, 1)."""
        generator = self.generator(purpose)
        while True:
            yield generator.random(BLOCK)
