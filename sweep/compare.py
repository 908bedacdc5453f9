"""What one set of designs buys over another: two frontiers held against each other.

Both sides are reduced to the staircase of two columns (say tokens/s/user and tokens/s/GPU): the best of one column
among the designs that are at least so good in the other. Ratios are those of the second side over the first.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from sweep.frontier import Objective, hypervolume
from sweep.report.selection import at_least

SPEEDS = (10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One comparison. `first` and `second` are None where a side has no such design; then there is no ratio."""

    group: str  # the load or other key that both sides share; empty if there is one alone
    accuracy: float | None  # designs at least that accurate; None: any
    measure: str  # what is compared, in words
    at: float | None  # at which value of the other column
    first: float | None
    second: float | None
    ratio: float | None  # second / first
    first_point: dict[str, Any] | None = None  # the designs behind the figures
    second_point: dict[str, Any] | None = None


def staircase(frame: pl.DataFrame, x: Objective, y: Objective) -> pl.DataFrame:
    """The designs that none beats in two columns, the best `x` last; rows without finite, usable figures are left out.

    Of equal designs the first row stays.
    """
    good = frame.filter(_usable(x) & _usable(y)).with_columns(_signed(x).alias("|x"), _signed(y).alias("|y"))
    ordered = good.sort(["|x", "|y"], descending=True, maintain_order=True)
    beaten = pl.col("|y") <= pl.col("|y").cum_max().shift(1)
    return ordered.filter(~beaten.fill_null(False)).reverse()


def _usable(o: Objective) -> pl.Expr:
    value = pl.col(o.column).cast(pl.Float64)
    return value.is_not_null() & value.is_finite() & ((value > 0) | pl.lit(not o.positive))


def _signed(o: Objective) -> pl.Expr:
    return pl.col(o.column).cast(pl.Float64) * o.sign


def best(stairs: pl.DataFrame, given: Objective, wanted: Objective, at: float) -> dict[str, Any] | None:
    """The design with the best `wanted` among those at least as good as `at` in `given`."""
    good = stairs.filter(_signed(given) >= at * given.sign)
    if good.is_empty():
        return None
    values = good.select(_signed(wanted)).to_series()
    return good.row(int(values.arg_max() or 0), named=True)


def mean_ratio(first: pl.DataFrame, second: pl.DataFrame, x: Objective, y: Objective) -> float | None:
    """The ratio of `y` at equal `x`, averaged over the range of `x` that both sides reach.

        exp( integral of ln(y2 / y1) d ln x / integral of d ln x ),   from the larger of the slowest ends

    Geometric, so that halves and doubles cancel, and exact: both staircases are constant between their corners.
    None where they share no range, or where `x` or `y` is not positive.
    """
    sides = []
    for stairs in (first, second):
        u = stairs["|x"].to_numpy()
        v = np.log(np.abs(stairs["|y"].to_numpy()))
        sides.append((np.sort(np.log(np.abs(u))) if x.sign > 0 else np.log(np.abs(u)), v))
    if not all(len(u) for u, _ in sides):
        return None
    # in terms of -ln x where less is better, so that "at least as good" is always "to the right"
    right = [(u * x.sign, v) for u, v in sides]
    low, high = max(u[0] for u, _ in right), min(u[-1] for u, _ in right)
    if not high > low:
        return None
    edges = np.unique(np.concatenate([[low, high], *(u[(u > low) & (u < high)] for u, _ in right)]))
    total = 0.0
    for a, b in itertools.pairwise(edges):
        v1, v2 = (v[np.searchsorted(u, b - 1e-12)] for u, v in right)
        total += (v2 - v1) * (b - a)
    return math.exp(total / (high - low))


def compare(
    first: pl.DataFrame,
    second: pl.DataFrame,
    *,
    x: Objective,
    y: Objective,
    group: str = "",
    accuracies: Sequence[float | None] = (None,),
    at: Sequence[float] | None = None,
    steps: int = 4,
) -> list[Row]:
    """All comparisons of two sets of frontier points.

    Args:
        first, second: points; only what the columns of `x`, `y` and accuracy say is used to choose.
        accuracies: floors; each gives a block of rows.
        at: values of `x` at which `y` is compared (None: a few round ones that both reach).
        steps: how many round ones.
    Returns, per floor: `y` at fixed `x`, `x` at fixed `y` (at the first side's own figures), the mean ratio over the
    shared range, the area under the staircase, and the hypervolume with accuracy where both sides have it.
    """
    rows: list[Row] = []
    for floor in accuracies:
        sides = [staircase(at_least(frame, floor), x, y) for frame in (first, second)]
        if any(side.is_empty() for side in sides):
            rows.append(_row(group, floor, f"{y.column} at {x.column}", None, None, None))
            continue
        values = list(at) if at is not None else _rounds(sides, x, steps)
        for value in values:
            points = [best(side, x, y, value) for side in sides]
            rows.append(_at(group, floor, y, x, value, points))
        for value in _matched(sides[0], x, y, values):
            points = [best(side, y, x, value) for side in sides]
            rows.append(_at(group, floor, x, y, value, points))
        ratio = mean_ratio(sides[0], sides[1], x, y)
        rows.append(
            Row(
                group=group,
                accuracy=floor,
                measure=f"{y.column}, mean ratio over the shared {x.column}",
                at=None,
                first=None,
                second=None,
                ratio=ratio,
            )
        )
        if x.maximise and y.maximise:
            areas = [hypervolume(side.select("|x", "|y").to_numpy(), [0.0, 0.0]) for side in sides]
            rows.append(_row(group, floor, f"area under {y.column} over {x.column}", None, *areas))
    if x.maximise and y.maximise and all("accuracy" in f.columns for f in (first, second)):
        names = ["accuracy", x.column, y.column]
        volumes = [
            hypervolume(f.select(pl.col(names).cast(pl.Float64)).drop_nulls().to_numpy(), [0.0, 0.0, 0.0])
            for f in (first, second)
        ]
        rows.append(_row(group, None, f"hypervolume of {', '.join(names)}", None, *volumes))
    return rows


def _row(group: str, floor: float | None, measure: str, at: float | None, a: float | None, b: float | None) -> Row:
    ratio = b / a if a and b is not None else None
    return Row(group=group, accuracy=floor, measure=measure, at=at, first=a, second=b, ratio=ratio)


def _at(
    group: str, floor: float | None, wanted: Objective, given: Objective, at: float, points: list[dict[str, Any] | None]
) -> Row:
    a, b = (None if p is None else float(p[wanted.column]) for p in points)
    return Row(
        group=group,
        accuracy=floor,
        measure=f"{wanted.column} at {given.column}",
        at=at,
        first=a,
        second=b,
        ratio=b / a if a and b is not None else None,
        first_point=points[0],
        second_point=points[1],
    )


def _rounds(sides: Sequence[pl.DataFrame], x: Objective, steps: int) -> list[float]:
    """A few round values of `x` between the ends that both sides have."""
    ends = [sorted(abs(float(side["|x"][i])) for i in (0, -1)) for side in sides]
    low, high = max(e[0] for e in ends), min(e[1] for e in ends)
    usual = SPEEDS if x.column == "tok_s_user" else ()
    found = [v for v in usual if v <= high]
    if len(found) < 2:
        found = [m * 10.0**e for e in range(-9, 13) for m in (1, 2, 5) if low <= m * 10.0**e <= high]
    found = found or [high]
    if len(found) > steps:
        found = [found[round(i * (len(found) - 1) / (steps - 1))] for i in range(steps)]
    return found


def _matched(first: pl.DataFrame, x: Objective, y: Objective, values: Sequence[float]) -> list[float]:
    """The first side's own `y` at the values of `x`, to three digits and never better than it is."""
    found = []
    for value in values:
        point = best(first, x, y, value)
        if point is not None:
            own = float(point[y.column])
            digits = 2 - math.floor(math.log10(abs(own)))
            step = 10.0**-digits
            short = (math.floor if y.maximise else math.ceil)(own / step) * step
            found.append(float(f"{short:.10g}"))
    return list(dict.fromkeys(found))
