"""A slice of a grid: what one of several machines evaluates.

Rows are dealt out like cards, row `index`, `index + count`, `index + 2 count`, ..., so that each shard has its share of
every model, machine and layout and takes about as long as the others. Points keep the numbers of the whole grid.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from sweep.errors import BadInput


@dataclass(frozen=True)
class Shard:
    """Shard `index` of `count`, counted from 0."""

    index: int = 0
    count: int = 1

    def __str__(self) -> str:
        return f"shard {self.index} of {self.count}"

    def __bool__(self) -> bool:
        """Whether it is a part: false if it is the whole grid."""
        return self.count > 1

    def size(self, n: int) -> int:
        """Its rows of `n`."""
        return len(range(self.index, n, self.count))

    def first(self, start: int) -> int:
        """Its first row that is not before `start`."""
        return start + (self.index - start) % self.count

    def chunks(self, n: int, size: int) -> Iterator[np.ndarray]:
        """Its rows of `n` in ascending order, `size` at a time."""
        for start in range(self.index, n, size * self.count):
            yield np.arange(start, min(start + size * self.count, n), self.count, dtype=np.int64)

    def of(self, rows: np.ndarray) -> np.ndarray:
        """Those of the given rows that are its own."""
        return rows[rows % self.count == self.index] if self else rows


WHOLE = Shard()


def shard(index: Any, count: Any) -> Shard:
    """A shard as configured. Raises: `BadInput` for one that does not exist."""
    for key, value in (("index", index), ("count", count)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise BadInput(f"shard.{key}={value}: must be a whole number")
    if count < 1:
        raise BadInput(f"shard.count={count}: must be at least 1")
    if not 0 <= index < count:
        raise BadInput(f"shard.index={index}: must lie between 0 and {count - 1} (shard.count={count})")
    return Shard(index, count)
