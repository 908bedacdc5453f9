"""What keeps points out of a running frontier before they leave the device that evaluates them.

Most points of a block lie under the frontier so far. A bar is what the compiled call compares them with; it never
drops a point of the frontier, whatever it lets through is judged exactly by `RunningFrontier`. There are two kinds:

* `Rays`, where both objectives that points decide hang on one time, as tokens/s/user and tokens/s/GPU do: a
  configuration and a batch fix their ratio, so their point moves along a ray as the context changes, and one limit of
  the time says where the ray leaves the frontier: one comparison per point.
* `Edges`, for any other pair: a staircase of a few steps, all of which are compared.
"""

from __future__ import annotations

import itertools
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sweep.frontier import RunningFrontier, under_staircase
from sweep.trade import Trade

Floats = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

SLACK = 4e-6  # relative lead of a front point that drops another: far above rounding in float32
CELLS = 1 << 24  # of a table of rays
MOST_RATIOS, ENOUGH_LEVELS, MOST_LEVELS = 512, 16, 1024
STAIR_LEVELS = 128
DEVICE_EDGES, HOST_EDGES = 12, 128


class Bar(Protocol):
    """See the module. Groups are those of the frontier, [contexts, runs]; levels number `level_values`."""

    n_levels: int

    def refresh(self, front: RunningFrontier, level_values: Floats) -> None:
        """Take over the frontier so far."""

    def forget(self) -> None:
        """Give up what was taken over: nothing is under the bar until it is refreshed."""

    def of(self, group: Ints, level: Ints, row_class: Ints) -> tuple[Floats, ...]:
        """What runs of rows are compared with; a level beyond the last is under no bar."""

    def judged(
        self, found: list[Floats], group: Ints, level: Ints, row_class: Ints, i_batch: Ints
    ) -> tuple[Mask, Floats, Floats]:
        """Which of the points [n] that came back are not under the bar of their own level, and their objectives."""


class Rays:
    """Limits of the time along rays."""

    def __init__(self, trade: Trade, n_groups: int, dtype: Any):
        self.trade, self.dtype = trade, dtype
        ratio = trade.second / trade.first
        self.ratios = np.unique(ratio)
        most = int(np.clip(CELLS // (n_groups * ENOUGH_LEVELS), 2, MOST_RATIOS))
        if len(self.ratios) > most:  # each counts as the next one: its limit is lower
            self.ratios = np.geomspace(self.ratios[0], self.ratios[-1] * (1 + SLACK), most)
        self.number = np.minimum(np.searchsorted(self.ratios, ratio), len(self.ratios) - 1)  # [classes, batches]
        self.n_levels = int(np.clip(CELLS // (n_groups * len(self.ratios)), 1, MOST_LEVELS))
        self.n_groups = n_groups
        self.forget()

    def forget(self) -> None:
        """See `Bar`."""
        self._rate = np.zeros((1, len(self.ratios), self.n_groups), dtype=np.float32)  # the last level is under no bar

    def refresh(self, front: RunningFrontier, level_values: Floats) -> None:
        """See `Bar`."""
        levels = np.append(level_values, np.inf)
        self._rate = front.rays(levels, self.ratios, self.trade.costs)
        front.drop_under(self._rate, levels, self.ratios, self.trade.costs, SLACK)

    def of(self, group: Ints, level: Ints, row_class: Ints) -> tuple[Floats, ...]:
        """Longest time of a point that is not beaten: [batches, contexts, runs]."""
        found = self.fastest(group, level[None, :], self.number[row_class].T[:, None, :])
        with np.errstate(divide="ignore"):
            return ((self.trade.first[row_class].T[:, None, :] / found).astype(self.dtype),)

    def fastest(self, group: Ints, level: Ints, number: Ints) -> Floats:
        """Largest first rate that the frontier beats, of points of some groups, levels and numbers of a ratio."""
        found: Floats = self._rate[level, number, group] * np.float32(1.0 - SLACK)
        return found

    def judged(
        self, found: list[Floats], group: Ints, level: Ints, row_class: Ints, i_batch: Ints
    ) -> tuple[Mask, Floats, Floats]:
        """See `Bar`."""
        (time,) = found
        limit = self.fastest(group, level, self.number[row_class, i_batch])
        left = self.trade.first[row_class, i_batch] >= limit * time
        return left, *self.trade.values(time[left], row_class[left], i_batch[left])


class Edges:
    """Staircases of the frontier so far, a coarse one for the device and a fine one: `RunningFrontier.staircase`."""

    n_levels = STAIR_LEVELS

    def __init__(self, n_groups: int, dtype: Any):
        self.n_groups, self.dtype = n_groups, dtype
        self.forget()

    def forget(self) -> None:
        """See `Bar`."""
        self._levels = np.zeros(0)
        edges, table = np.zeros((self.n_groups, 1)), np.zeros((self.n_groups, 1, 1), dtype=np.float32)
        self._coarse: tuple[Floats, Floats] = (edges, table)
        self._fine: tuple[Floats, Floats] = (edges, table)

    def refresh(self, front: RunningFrontier, level_values: Floats) -> None:
        """See `Bar`."""
        found = front.result()
        order = np.lexsort((found.values[:, 2], found.groups))
        starts = np.searchsorted(found.groups[order], np.arange(self.n_groups + 1))
        stairs: list[tuple[Floats, Floats]] = []
        for count in (DEVICE_EDGES, HOST_EDGES):
            edges = np.full((self.n_groups, count), np.inf)  # quantiles of the last objective, none of an empty group
            for g, (lo, hi) in enumerate(itertools.pairwise(starts)):
                if hi > lo:
                    at = np.ceil(np.linspace(0, hi - lo - 1, count)).astype(np.int64)
                    edges[g] = found.values[order[lo:hi], 2][at]
            edges = edges if stairs else edges.astype(self.dtype)  # points have this type
            stairs.append((edges, front.staircase(level_values, edges)))
        (edges, table), self._fine = stairs
        self._coarse = edges, np.pad(table, ((0, 0), (0, 1), (0, 0)), constant_values=-np.inf)
        self._levels = level_values

    def of(self, group: Ints, level: Ints, row_class: Ints) -> tuple[Floats, ...]:
        """Edges and the best first objective from each on: [edges, contexts, runs]."""
        edges, table = self._coarse
        return tuple(np.ascontiguousarray(np.moveaxis(x, 2, 0)) for x in (edges[group], table[group, level]))

    def judged(
        self, found: list[Floats], group: Ints, level: Ints, row_class: Ints, i_batch: Ints
    ) -> tuple[Mask, Floats, Floats]:
        """See `Bar`."""
        edges, table = self._fine
        x, y = found
        values = np.column_stack([np.append(self._levels, np.inf)[level], x, y])
        left = ~under_staircase(values, group, table, self._levels, edges)
        return left, x[left], y[left]
