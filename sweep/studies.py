"""What more is said of a frontier: its knees, and how surely its points are on it.

Knee: the point that lies furthest beyond the plane through the best of each objective. Robustness: predicted times
are not exact, so frontiers are drawn again and again with times wrong by random factors, and every point is told in
how many of them it is on the frontier.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from sweep.frontier import Objective, _batches, _Groups, _matrix, _Sieve, condition, nondominated

REACH = 3.0  # sigmas under the frontier within which a point may take part in a draw
MOST = 50_000  # points that take part beside the frontier
DESIGN = ("model", "precision", "layout", "efficiency", "serving")  # prefixes of the columns that make a design


def knees(front: pl.DataFrame, goals: Sequence[Objective], by: Sequence[str] = ()) -> pl.Series:
    """True for one point of each group: the knee of its frontier.

    Each objective is scaled to [0, 1] over the group (rates, latencies, prices by their logarithm); the knee has the
    largest sum, which is the largest distance beyond the plane through the best of each objective. In a group of fewer
    points than objectives there is none. Of equal sums the first row has it.
    """
    found = np.zeros(front.height, dtype=np.bool_)
    if front.is_empty():
        return pl.Series("knee", found)
    groups = _Groups(list(by)).of(front)
    columns = []
    for goal, column in zip(goals, _matrix(front, goals).T.astype(np.float64), strict=True):
        columns.append(np.sign(column) * np.log(np.abs(column)) if goal.positive else column)
    values = np.stack(columns, axis=1)
    for group in range(int(groups.max()) + 1):
        rows = np.flatnonzero(groups == group)
        own = values[rows]
        if len(rows) <= len(goals) or not np.isfinite(own).all():
            continue
        span = np.ptp(own, axis=0)
        scaled = (own - own.min(axis=0)) / np.where(span > 0, span, 1.0)
        found[rows[int(np.argmax(scaled.sum(axis=1)))]] = True
    return pl.Series("knee", found)


@dataclass(frozen=True, kw_only=True)
class Doubt:
    """How wrong predicted times may be: ln(true / predicted) is normal with `sigma`.

    A share `correlation` of its variance is common to all points of a machine, the rest to all points of a design
    (model, format, layout) on it: batches and contexts of one design are wrong together.
    """

    sigma: float
    correlation: float = 0.5
    draws: int = 200
    seed: int = 0


def stays(
    values: npt.ArrayLike,
    powers: Sequence[float],
    doubt: Doubt,
    *,
    machines: npt.NDArray[np.int64],
    designs: npt.NDArray[np.int64],
    groups: npt.NDArray[np.int64] | None = None,
) -> npt.NDArray[np.float64]:
    """The share of draws in which each row is on the frontier of its group.

    Args:
        values: [n, k], maximised (an objective to be minimised negated), finite.
        powers: [k] how an objective answers to time: -1 for a rate, +1 for a latency or a price, 0 for accuracy.
        machines, designs: [n] integers; rows that are wrong together.
        groups: [n] integers.
    """
    array = np.asarray(values, dtype=np.float64)
    generator = np.random.default_rng(doubt.seed)
    counts = np.zeros(len(array))
    exponents = np.asarray(powers, dtype=np.float64)
    common, own = math.sqrt(doubt.correlation), math.sqrt(1.0 - doubt.correlation)
    n_machines, n_designs = (int(x.max()) + 1 if len(x) else 0 for x in (machines, designs))
    for _ in range(doubt.draws):
        error = common * generator.standard_normal(n_machines)[machines]
        error += own * generator.standard_normal(n_designs)[designs]
        drawn = array * np.exp(doubt.sigma * error[:, None] * exponents[None, :])
        counts += nondominated(drawn, groups)
    return counts / max(doubt.draws, 1)


def time_powers(goals: Sequence[Objective]) -> list[float]:
    """How each objective answers to a time that is wrong by a factor: rates by its inverse, times and costs by it."""
    return [0.0 if not goal.positive else (-1.0 if goal.maximise else 1.0) for goal in goals]


def robustness(
    points: pl.LazyFrame,
    front: pl.DataFrame,
    goals: Sequence[Objective],
    by: Sequence[str],
    where: str | None,
    doubt: Doubt,
) -> tuple[pl.Series, int, int, float]:
    """How often each frontier point stays on the frontier, with all stored points near it taking part.

    Args:
        points: what the frontier was found in.
        front: its frontier, as `frontier` gives it.
    Returns: the share of draws per row of `front`; how many other points took part; how many of those are on the
        frontier in at least half of the draws; how many sigmas under the frontier a point may lie to take part:
        `REACH`, or fewer where that would be more than `MOST` points.
    """
    schema = points.collect_schema()
    if front.is_empty():
        return pl.Series("stays", [], dtype=pl.Float64), 0, 0, REACH
    powers = np.asarray(time_powers(goals))
    machine_keys = [c for c in ("hardware",) if c in schema]
    design_keys = [c for c in schema if c.split(".")[0] in DESIGN or c in machine_keys]
    wanted = list(dict.fromkeys([*(g.column for g in goals), *by, *machine_keys, *design_keys]))
    groups = _Groups(list(by))
    own = front.select(wanted)
    of_front = groups.of(own)
    heights = _matrix(own, goals).astype(np.float64)
    n_groups = int(of_front.max()) + 1

    def under(reach: float) -> _Sieve:
        """A sieve that lets through what lies at most so many sigmas under the frontier."""
        return _Sieve(list((heights * np.exp(reach * doubt.sigma * powers)[None, :]).T), of_front, n_groups)

    def passing(rows: pl.DataFrame, sieve: _Sieve) -> pl.DataFrame:
        matrix = _matrix(rows, goals).astype(np.float64)
        groups_of_rows = groups.of(rows)
        index = np.flatnonzero(np.isfinite(matrix).all(axis=1) & (groups_of_rows < n_groups))
        return rows[index[sieve.survivors([matrix[index, i] for i in range(len(goals))], groups_of_rows[index])]]

    rows = points
    if "feasible" in schema:
        rows = rows.filter(pl.col("feasible").cast(pl.Boolean))
    if where is not None:
        rows = rows.filter(condition(where, dict(schema)))
    reach = REACH
    sieve = under(reach)
    near = own.clear()
    for batch in _batches(rows.select(wanted)):
        near = pl.concat([near, passing(batch, sieve)]).unique(maintain_order=True)
        while near.height > MOST + own.height:  # too many: only those closer to the frontier
            reach *= 0.7
            sieve = under(reach)
            near = passing(near, sieve)
            if reach < REACH / 100:
                break
    # batches come in any order: sorted, so that the same draws fall to the same designs every time
    others = near.join(own.unique(), on=wanted, how="anti", nulls_equal=True).sort(wanted)
    # of equal rows one takes part: ties are wrong together
    together = pl.concat([own.unique(maintain_order=True), others])
    share = stays(
        _matrix(together, goals),
        list(powers),
        doubt,
        machines=_Groups(machine_keys).of(together),
        designs=_Groups(design_keys).of(together),
        groups=groups.of(together),
    )
    n_own = together.height - others.height
    told = together.head(n_own).with_columns(pl.Series("stays", share[:n_own]))
    found = own.join(told, on=wanted, how="left", nulls_equal=True, maintain_order="left")["stays"]
    return found, others.height, int((share[n_own:] >= 0.5).sum()), reach
