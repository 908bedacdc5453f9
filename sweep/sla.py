"""The best point under limits, and the fleet that a demand takes: whole replicas, their GPUs, dollars and power."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from sweep.frontier import Objective

FLEET = ("replicas", "fleet_gpus", "fleet_usd_per_hour", "fleet_kw", "fleet_busy")


@dataclass(frozen=True)
class Limit:
    """One condition of a service-level agreement: a column on one side of a number."""

    column: str
    most: bool  # at most; else at least
    value: float

    @property
    def holds(self) -> pl.Expr:
        """As a filter; a figure that is not there does not hold."""
        column = pl.col(self.column).cast(pl.Float64)
        return (column <= self.value if self.most else column >= self.value).fill_null(False)

    def __str__(self) -> str:
        return f"{self.column} {'<=' if self.most else '>='} {self.value:g}"


def fleet(requests_per_s: pl.Expr, demand: float) -> pl.Expr:
    """Replicas for a demand in requests/s, rounded up; a quotient that is whole but for rounding stays."""
    needed = demand / requests_per_s
    return (needed - 1e-6 * needed).ceil().clip(lower_bound=1.0)


def with_fleet(points: pl.LazyFrame, demand: float) -> pl.LazyFrame:
    """Points with the fleet that each would take.

    replicas = ceil(demand / requests/s of one); GPUs, dollars per hour and board kilowatts of all of them, each with
    its 80 % band (`fleet_gpus_low`) where the rate has one; the share of their rate that is asked for.
    """
    have = points.collect_schema()
    per_gpu_usd = pl.col("usd_per_mtok").cast(pl.Float64) * pl.col("tok_s_gpu").cast(pl.Float64) * (3600.0 / 1e6)
    per_gpu_w = pl.col("joule_per_tok").cast(pl.Float64) * pl.col("tok_s_gpu").cast(pl.Float64)
    rate = pl.col("requests_per_s").cast(pl.Float64)
    best = fleet(rate, demand)
    found = [(demand / (best * rate)).alias("fleet_busy")]
    # a fleet is smallest where a replica does most: `low` is that of the high end of its rate
    for end, of in (("", "requests_per_s"), ("_low", "requests_per_s_high"), ("_high", "requests_per_s_low")):
        if of not in have:
            continue
        replicas = fleet(pl.col(of).cast(pl.Float64), demand)
        gpus = replicas * pl.col("gpus").cast(pl.Float64)
        found += [
            replicas.alias(f"replicas{end}"),
            gpus.alias(f"fleet_gpus{end}"),
            (gpus * per_gpu_usd).alias(f"fleet_usd_per_hour{end}"),
            (gpus * per_gpu_w / 1e3).alias(f"fleet_kw{end}"),
        ]
    return points.with_columns(found)


def best_under(
    points: pl.LazyFrame,
    limits: Sequence[Limit],
    goals: Sequence[Objective],
    by: Sequence[str],
) -> pl.DataFrame:
    """Per combination of the group columns the best feasible point that keeps all limits.

    Args:
        points: a table of points.
        limits: all must hold.
        goals: the first decides, later ones break ties, last the number of the point.
        by: group columns.
    Returns: one row per group that has such a point, the best first.
    """
    schema = points.collect_schema()
    kept = points.filter(pl.col("feasible")) if "feasible" in schema else points
    for limit in limits:
        kept = kept.filter(limit.holds)
    order = [(pl.col(g.column).cast(pl.Float64) * g.sign).alias(f"|{i}") for i, g in enumerate(goals)]
    first = pl.col("|0")
    kept = kept.with_columns(order).filter(first.is_not_null() & first.is_finite())
    names = [f"|{i}" for i in range(len(goals))]
    ties = [k for k in ("job", "point_id") if k in schema]
    ordered = kept.sort([*names, *ties], descending=[*([True] * len(names)), *([False] * len(ties))], nulls_last=True)
    found = ordered.group_by(list(by), maintain_order=True).first() if by else ordered.head(1)
    return found.collect().sort(names, descending=True, nulls_last=True).drop(names).select([k for k in schema.names()])


def met(points: pl.LazyFrame, limits: Sequence[Limit], by: Sequence[str]) -> pl.DataFrame:
    """Per group: feasible points, how many keep each limit alone, how many all, and the nearest that any gets."""
    schema = points.collect_schema()
    kept = points.filter(pl.col("feasible")) if "feasible" in schema else points
    every = pl.all_horizontal([limit.holds for limit in limits]) if limits else pl.lit(True)
    columns = [pl.len().alias("points"), every.sum().alias("all")]
    for i, limit in enumerate(limits):
        value = pl.col(limit.column).cast(pl.Float64)
        columns += [
            limit.holds.sum().alias(f"met {i}"),
            (value.min() if limit.most else value.max()).alias(f"best {i}"),
        ]
    return (kept.group_by(list(by), maintain_order=True).agg(columns) if by else kept.select(columns)).collect()


def margins(row: Mapping[str, object], limits: Sequence[Limit]) -> list[tuple[Limit, float]]:
    """How far a point is from each limit, as a share of it, the tightest first: 0 exactly on it."""
    found = []
    for limit in limits:
        value = row.get(limit.column)
        if isinstance(value, int | float) and limit.value:
            gap = (limit.value - value) if limit.most else (value - limit.value)
            found.append((limit, gap / abs(limit.value)))
    return sorted((f for f in found if math.isfinite(f[1])), key=lambda f: f[1])
