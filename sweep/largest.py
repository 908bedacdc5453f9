"""`workload.batch=max`: as many requests as fit and keep the limits of a load, for one point or a block of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def largest_batch(most: Any, holds: Callable[[np.ndarray], Any]) -> np.ndarray:
    """The largest whole number of requests from 1 to `most` that a condition admits.

    Args:
        most: requests that fit in memory, an array of any shape.
        holds: batches of that shape -> whether each fits and keeps its limits; what a batch breaks, larger ones do
            too. (Where tiles make time go down here and there, a larger batch may exist; the one found holds.)
    Returns: 1 where nothing holds: the point then says what stands against it.
    """
    low = np.ones_like(np.asarray(most, dtype=np.float64))
    high = np.maximum(np.floor(np.nan_to_num(np.asarray(most, dtype=np.float64), nan=0.0, posinf=0.0)), 1.0)
    found = np.where(np.asarray(holds(high), dtype=bool), high, low)
    open_ = found < high
    high = np.where(open_, high, found)  # does not hold where open
    while bool((open_ & (high - found > 1.0)).any()):
        middle = np.floor((found + high) / 2.0)
        good = np.asarray(holds(middle), dtype=bool)
        found = np.where(open_ & good, middle, found)
        high = np.where(open_ & ~good, middle, high)
    return found
