"""Objectives that hang on one time: how they trade against each other for a configuration and a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Trade:
    """Two objectives that hang on one time: rate = factor / time, and a cost is one over its rate.

    Factors are decided by a configuration's class and a batch; classes number the combinations of some fields.
    """

    of_model: Ints  # which combination of those fields each has: [models], [machines], [layouts]
    of_machine: Ints
    of_layout: Ints
    number: Ints  # the class of each combination: [models, machines, layouts]
    first: Floats  # factors of the first objective: [classes, batches]
    second: Floats
    costs: tuple[bool, bool]  # objectives that are costs

    def classes(self, i_model: Ints, i_machine: Ints, i_layout: Ints) -> Ints:
        """Class of each row."""
        at: Ints = self.number[self.of_model[i_model], self.of_machine[i_machine], self.of_layout[i_layout]]
        return at

    @property
    def per_machine(self) -> int:
        """Classes that the layouts of one model on one machine have, at most."""
        ordered = np.sort(self.number, axis=-1)
        return int(np.count_nonzero(np.diff(ordered, axis=-1), axis=-1).max()) + 1

    def values(self, time: Floats, row_class: Ints, i_batch: Ints) -> tuple[Floats, Floats]:
        """Both objectives of points, larger is better, in the precision of the time."""
        exact = time.astype(np.float64)
        found = []
        for factor, cost in zip((self.first, self.second), self.costs, strict=True):
            own = factor[row_class, i_batch]
            found.append((-exact / own if cost else own / exact).astype(time.dtype))
        return found[0], found[1]


def rate(values: Floats, cost: bool) -> Floats:
    """An objective, larger is better, as a rate: what is costly is slow."""
    with np.errstate(divide="ignore"):
        return -1.0 / values if cost else values
