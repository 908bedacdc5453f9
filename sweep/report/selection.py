"""Which points of a frontier a page shows: envelopes, floors, thinning. Everything here is deterministic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import polars as pl

# Columns of which less is better; of every other objective more is better.
LOWER_IS_BETTER = frozenset(
    {"loss", "tpot_s", "ttft_s", "request_s", "usd_per_mtok", "joule_per_tok", "held_bytes", "weights_bytes"}
    | {"kv_bytes", "params_total", "params_active", "layout.gpus", "gpus", "usd_per_mtok_total", "usd_per_mtok_input"}
    | {"usd_per_mtok_output", "usd_per_request", "joule_per_tok_drawn", "watts_drawn", "power_share"}
)
T = TypeVar("T")


def objective_name(objective: str) -> str:
    """The column behind an objective that may carry a sign (`-ttft_s`) or a direction (`min:ttft_s`)."""
    return objective.strip().lstrip("+-").rsplit(":", 1)[-1].strip()


def envelope(frame: pl.DataFrame, x: str, y: str, by: Sequence[str] = ()) -> pl.DataFrame:
    """The envelope of `frame` in two columns, per group of `by`: what nothing beats in both.

    More is better but of the columns in `LOWER_IS_BETTER`: the upper right of speed and throughput, the upper left of
    latency and throughput. Rows where either is null, not finite or not positive are left out. Among equal points the
    first row stays. Returned per group with `x` rising.
    """
    good = frame.filter(_positive(x) & _positive(y))
    keys = list(by)
    most = [name not in LOWER_IS_BETTER for name in (x, y)]
    ordered = good.sort([*keys, x, y], descending=[False] * len(keys) + most, maintain_order=True)
    best = (pl.col(y).cum_max() if most[1] else pl.col(y).cum_min()).shift(1)
    best = best.over(keys) if keys else best
    beaten = pl.col(y) <= best if most[1] else pl.col(y) >= best
    return ordered.filter(~beaten.fill_null(False)).sort([*keys, x], maintain_order=True)


def _positive(column: str) -> pl.Expr:
    value = pl.col(column).cast(pl.Float64)
    return value.is_not_null() & value.is_finite() & (value > 0)


def best_at(
    frame: pl.DataFrame, floor: float, *, by: str, accuracy_floor: float | None = None,
    x: str = "tok_s_user", y: str = "tok_s_gpu",
) -> pl.DataFrame:  # fmt: skip
    """Per value of `by` the row with the highest `y` among those with `x >= floor` (and accurate enough)."""
    good = at_least(frame, accuracy_floor).filter(_positive(x) & _positive(y) & (pl.col(x) >= floor))
    ordered = good.sort([y, x], descending=True, maintain_order=True)
    return ordered.unique(by, keep="first", maintain_order=True)


def at_least(frame: pl.DataFrame, accuracy_floor: float | None) -> pl.DataFrame:
    """The rows whose accuracy reaches the floor; all of them without a floor or an accuracy column."""
    if accuracy_floor is None or "accuracy" not in frame.columns:
        return frame
    return frame.filter(pl.col("accuracy") >= accuracy_floor - 1e-6)


def interactivity_floors(frame: pl.DataFrame, *, by: str, x: str = "tok_s_user", count: int = 3) -> list[float]:
    """A few round speeds (1, 2, 5 times a power of ten) that at least half of the groups reach, lowest first."""
    good = frame.filter(_positive(x))
    if good.is_empty():
        return []
    tops = good.group_by(by).agg(pl.col(x).max())[x].to_list()
    top = float(sorted(tops)[(len(tops) - 1) // 2])
    rounds = [m * 10.0**e for e in range(-6, 10) for m in (1, 2, 5)]
    reached = [value for value in rounds if value <= top]
    usual = [value for value in reached if value >= 20]
    chosen = usual if len(usual) >= count else reached[-count:]
    return spread(chosen, count)


def accuracy_floors(frame: pl.DataFrame, *, by: str, count: int = 4) -> list[float | None]:
    """`None` (any accuracy) and up to `count - 1` round accuracies that at least half of the groups reach."""
    if "accuracy" not in frame.columns:
        return [None]
    good = frame.filter(pl.col("accuracy").is_not_null() & pl.col("accuracy").is_not_nan())
    if good.is_empty():
        return [None]
    tops = good.group_by(by).agg(pl.col("accuracy").max())["accuracy"].to_list()
    low, high = float(good["accuracy"].min()), float(sorted(tops)[(len(tops) - 1) // 2])  # type: ignore[arg-type]
    start = low + 0.3 * (high - low)
    for step in (0.05, 0.02, 0.01, 0.005):
        first, last = math.ceil(start / step + 1e-6), math.floor(high / step + 1e-6)
        if last - first + 1 >= count - 1:
            floors = spread([round(n * step, 4) for n in range(first, last + 1)], count - 1)
            left = {at_least(good, floor).height: floor for floor in floors}  # of equal selections the highest floor
            return [None, *(floor for height, floor in left.items() if height < good.height)]
    return [None]


def spread(values: Sequence[T], count: int) -> list[T]:
    """At most `count` of `values`, evenly spaced, the last one always and the first one if there is room."""
    if len(values) <= count:
        return list(values)
    if count == 1:
        return [values[-1]]
    return [values[round(i * (len(values) - 1) / (count - 1))] for i in range(count)]


def few(values: Sequence[T]) -> list[T]:
    """The smallest, the middle and the largest of sorted values; all of them if there are no more than three."""
    return list(values) if len(values) <= 3 else [values[0], values[(len(values) - 1) // 2], values[-1]]


def thin(frame: pl.DataFrame, objectives: Sequence[str], rows: int) -> pl.DataFrame:
    """At most `rows` points that span the frontier: the best of each objective, then always the farthest one.

    Distances are taken between logarithms (accuracy: as it is), each objective scaled to its own range. Equally far
    points are decided by their order in the frame. Rows come back with the most accurate first.
    """
    names = [name for name in map(objective_name, objectives) if name in frame.columns]
    order = list(dict.fromkeys(name for name in ("accuracy", *names) if name in frame.columns))
    falling = [name not in LOWER_IS_BETTER for name in order]
    if frame.height <= rows or not names:
        return frame.sort(order, descending=falling, maintain_order=True).head(rows) if order else frame.head(rows)
    columns = []
    for name in names:
        values = frame[name].cast(pl.Float64).to_numpy().astype(np.float64)
        values[~np.isfinite(values)] = np.nan
        if np.isnan(values).all():
            continue
        if name not in ("accuracy", "loss") and np.nanmin(values) > 0:
            values = np.log(values)
        span = np.nanmax(values) - np.nanmin(values)
        scaled = (values - np.nanmin(values)) / span if span > 0 else np.zeros_like(values)
        columns.append(1 - scaled if name in LOWER_IS_BETTER else scaled)
    if not columns:
        return frame.head(rows)
    good = np.nan_to_num(np.stack(columns, axis=1), nan=0.0)
    chosen: list[int] = []
    for column in range(good.shape[1]):  # the best of one objective, and among those the best of the others
        rank = good[:, column] * 1e6 + good.sum(axis=1)
        best = int(np.argmax(rank))
        if best not in chosen and len(chosen) < rows:
            chosen.append(best)
    distance = np.min([np.square(good - good[i]).sum(axis=1) for i in chosen], axis=0)
    while len(chosen) < rows and distance.max() > 0:
        farthest = int(np.argmax(distance))
        chosen.append(farthest)
        distance = np.minimum(distance, np.square(good - good[farthest]).sum(axis=1))
    return frame[sorted(chosen)].sort(order, descending=falling, maintain_order=True)
