"""A sweep: rows of the grid in blocks through the cost model, into the running frontier and onto disk.

Rows that no load can save are counted and never evaluated. The rest pass in blocks; what may be on the frontier is
kept, what was asked to be stored is written in parts. Both can be interrupted: parts are complete or absent, the
frontier is saved every few seconds, and a rerun of the same configuration goes on where the last one stopped.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
import time
import zipfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np
import polars as pl
import pyarrow as pa

from sweep import accuracy, doubt, store
from sweep.bar import Bar, Edges, Rays
from sweep.columns import (
    AGGREGATED_COLUMNS,
    ALWAYS,
    BY_NAME,
    COLUMNS,
    CORE,
    NUMBERS,
    POOL_COLUMNS,
    SCHEMA_VERSION,
    Column,
)
from sweep.config import Study
from sweep.cost.result import REASONS
from sweep.errors import BadInput, closest
from sweep.evaluate import Engine
from sweep.expr import names_in
from sweep.frontier import Front, Objective, RunningFrontier, condition, parse_objectives
from sweep.measured import measured
from sweep.shard import WHOLE, Shard
from sweep.space import CONTEXT_KEYS, REASON_BIT, Space, bands, build, filters, kinds, row_reasons
from sweep.trade import rate

BLOCK_POINTS = 1 << 19  # of a block; and of its configurations x batches, which should stay in the cache
BLOCK_LOADS = 1 << 16
FILTERED = 2  # times as many points where only what is on the frontier leaves the block
CHUNK_ROWS = 1 << 18
BYTES_PER_ROW = 110  # of a stored point with axis columns; measured 95 to 105, see the benchmark
DOUBLE = 2  # times as many in float64
PLAIN_POINTS = 1 << 14  # evaluated by NumPy at a time
LATE = {"fits": "capacity", "in_time": "ttft_cut", "in_pace": "tpot_cut"}  # limits of points, and what breaks them
WRITERS = 2  # threads that encode parts
PLAIN_GRID = 1 << 16  # points that NumPy evaluates before a compiler is ready
ROWS_PER_BAR = 32  # rows that are compared with one bar on the device, at most
EMPTY = 8  # one slot in so many may stay empty for it
BLOCKS_AHEAD = 3  # evaluated before the first of them is merged
FRESH_POINTS = 500_000  # the bar is renewed when it let so many points through
ORDER = 2  # version of the order in which blocks are taken
SAMPLE = 64  # one in so many rows comes first: they set the bar for the others
FIRST_ROWS = 8  # and the first block of all holds this part of its rows: it has no bar at all
SAVE_EVERY_S = 5.0
ACCURACY_COLUMNS = ("accuracy", "accuracy_low", "accuracy_high", "loss", "loss_sigma")


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass
class Counts:
    """Points by fate. A point that several reasons stand against counts under each."""

    asked: int = 0  # after `where`
    feasible: int = 0
    reasons: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REASONS, 0))

    def add(self, other: Counts) -> None:
        """Add another tally."""
        self.asked += other.asked
        self.feasible += other.feasible
        for name, n in other.reasons.items():
            self.reasons[name] += n

    def as_json(self) -> dict[str, Any]:
        """As plain data."""
        return {"asked": self.asked, "feasible": self.feasible, "reasons": dict(self.reasons)}

    @staticmethod
    def from_json(data: dict[str, Any]) -> Counts:
        """From plain data."""
        return Counts(asked=data["asked"], feasible=data["feasible"], reasons=dict(data["reasons"]))


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a run is."""

    done: int
    total: int
    feasible: int
    frontier: int
    seconds: float
    final: bool = False


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a run leaves."""

    manifest: dict[str, Any]
    frontier: pl.DataFrame


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A run before it starts: what it will evaluate, keep and write."""

    study: Study
    space: Space
    objectives: tuple[Objective, ...]
    by: tuple[str, ...]
    rows: str  # all | feasible | frontier
    columns: tuple[Column, ...]  # of stored points
    sha256: str
    study_sha256: str  # of the whole grid: what the shards of one study share
    points_before: int  # in the whole grid
    points: int | None  # of this shard after `where`; None where only the run can tell


def plan(study: Study) -> Plan:
    """Check a study and size it.

    Raises: `BadInput` for objectives or groups that are not columns, for an empty grid, for an unknown store mode.
    """
    space = build(study)
    objectives = parse_objectives(study.frontier.objectives)
    stored = columns_of(study, space)
    known = [c.name for c in stored if c.level in ("row", "context", "point") and c.dtype == "float32"]
    for objective in objectives:
        if objective.column not in known:
            raise BadInput(
                f"frontier.objectives={objective.column}: no such column; {closest(objective.column, known)}"
            )
    by = [study.frontier.by] if isinstance(study.frontier.by, str) else list(study.frontier.by or [])
    swept = [k for axis in space.axes for k in axis.columns]
    # `by` may name what this grid holds constant: one group then
    constant = [f"workload.{k}" for k in ("batch", "isl", "osl", "context")] + [
        "model",
        "hardware",
        "precision",
        "efficiency",
        "serving",
    ]
    for key in by:
        if key not in (*swept, *constant):
            raise BadInput(f"frontier.by={key}: no such axis; {closest(key, swept)}")
    doubt.check_mode(study)
    measured(space, study.accuracy)  # refuses a table that does not cover the grid
    rows = study.store.rows
    if rows not in ("all", "feasible", "frontier", "auto"):
        raise BadInput(f"store.rows={rows}: allowed are all, feasible, frontier, auto")
    before = space.n_points + space.dropped_early
    if rows == "auto":
        rows = "all" if space.n_points <= study.store.auto_rows else "frontier"
    points = count_points(space, study.shard)
    if points == 0 and not study.shard:  # a slice may well be empty
        raise BadInput(f"where={' and '.join(space.where)}: no point is left of {before:,}")
    return Plan(
        study=study,
        space=space,
        objectives=objectives,
        by=tuple(k for k in by if k in swept),
        rows=rows,
        columns=stored_columns(study, stored, objectives),
        sha256=store.config_hash(study.resolved),
        study_sha256=store.config_hash({k: v for k, v in study.resolved.items() if k != "shard"}),
        points_before=before,
        points=points,
    )


def columns_of(study: Study, space: Space) -> tuple[Column, ...]:
    """Columns of a study's points: those of all, and what its way of serving adds."""
    mixed = bool((np.asarray(space.context.mixed) > 0).any())
    pools = study.serving.mode == "disaggregated" and "serving" not in study.grid
    return (*COLUMNS, *(AGGREGATED_COLUMNS if mixed else ()), *(POOL_COLUMNS if pools else ()))


def stored_columns(study: Study, columns: tuple[Column, ...], objectives: Sequence[Objective]) -> tuple[Column, ...]:
    """Those that `store.columns` asks for, and what a run needs to go on: objectives, feasibility, reasons."""
    asked = study.store.columns
    if asked is None:
        return columns
    names = CORE if asked == "core" else [asked] if isinstance(asked, str) else list(asked)
    known = [c.name for c in columns]
    for name in names:
        if name not in known:
            raise BadInput(f"store.columns={name}: no such column; {closest(str(name), ['core', *known])}")
    wanted = {*names, *ALWAYS, *(o.column for o in objectives)}
    return tuple(c for c in columns if c.name in wanted)


def count_points(space: Space, shard: Shard = WHOLE) -> int | None:
    """Points of a shard after `where`, or None where a filter couples rows with batch or context."""
    f = filters(space)
    per_row = space.per_row
    if f.load:
        if not all(n.startswith("workload.") for text in f.load for n in names_in(text)):
            return None
        first = f.points(np.arange(1))
        assert first is not None
        per_row = int(np.count_nonzero(first))
    if not f.row:
        return shard.size(space.n_rows) * per_row
    kept = sum(int(np.count_nonzero(f.rows(rows))) for rows in shard.chunks(space.n_rows, 1 << 20))
    return kept * per_row


# --- groups of the frontier --------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Groups:
    """Which frontier a point belongs to: group = row part x context part x batch part."""

    space: Space
    by: tuple[str, ...]
    row_axes: list[tuple[int, int, np.ndarray]]  # stride, size, group of each digit
    n_row: int
    context: np.ndarray  # [n_contexts]
    n_context: int
    batch: np.ndarray  # [n_batch]
    n_batch: int

    @property
    def count(self) -> int:
        """Number of groups."""
        return self.n_row * self.n_context * self.n_batch

    def rows(self, rows: np.ndarray) -> np.ndarray:
        """Row part of the group."""
        group = np.zeros(len(rows), dtype=np.int64)
        for stride, size, digit_group in self.row_axes:
            group = group * int(digit_group.max() + 1) + digit_group[(rows // stride) % size]
        return group

    def points(self, rows: np.ndarray, i_batch: np.ndarray, i_context: np.ndarray) -> np.ndarray:
        """Group of points."""
        group = self.rows(rows) * self.n_context + self.context[i_context]
        return np.asarray(group * self.n_batch + self.batch[i_batch])


def _labels(columns: list[np.ndarray]) -> np.ndarray:
    keys = list(zip(*(c.tolist() for c in columns), strict=True))
    seen = {k: i for i, k in enumerate(dict.fromkeys(keys))}
    return np.array([seen[k] for k in keys], dtype=np.int64)


def make_groups(space: Space, by: tuple[str, ...]) -> Groups:
    """Group numbers from the axes that `by` names."""
    load_names = {"batch", "serving", "workload", *CONTEXT_KEYS}
    load_axes = [a for a in space.axes if a.name in load_names]
    row_axes_all = [a for a in space.axes if a.name not in load_names]
    stride = 1
    row_axes: list[tuple[int, int, np.ndarray]] = []
    for axis in reversed(row_axes_all):
        keys = [k for k in by if k in axis.columns]
        if keys:
            row_axes.insert(0, (stride, axis.size, _labels([axis.columns[k] for k in keys])))
        stride *= axis.size
    n_row = int(np.prod([int(g.max() + 1) for _, _, g in row_axes])) if row_axes else 1
    batch = np.zeros(len(space.batch), dtype=np.int64)
    context = np.zeros(space.n_contexts, dtype=np.int64)
    inner = 1
    n_context = 1
    for axis in reversed([a for a in load_axes if a.name != "batch"]):
        keys = [k for k in by if k in axis.columns]
        if keys:
            label = _labels([axis.columns[k] for k in keys])
            context = context + label[(np.arange(space.n_contexts) // inner) % axis.size] * n_context
            n_context *= int(label.max() + 1)
        inner *= axis.size
    n_batch = 1
    for axis in load_axes:
        if axis.name == "batch" and "workload.batch" in by:
            batch, n_batch = np.arange(axis.size), axis.size
    return Groups(
        space=space,
        by=by,
        row_axes=row_axes,
        n_row=n_row,
        context=context,
        n_context=n_context,
        batch=batch,
        n_batch=n_batch,
    )


@dataclass(frozen=True, kw_only=True)
class Slots:
    """Rows in runs that share a bar: each of one group and class, so that some slots stay empty.

    Empty slots hold any row and count nothing.
    """

    rows: np.ndarray
    taken: np.ndarray  # [slots, bool]
    group: np.ndarray
    level: np.ndarray
    at_level: np.ndarray  # the level's number among those of the bar
    row_class: np.ndarray
    run_group: np.ndarray  # [runs]
    run_level: np.ndarray  # highest number of a level
    run_class: np.ndarray

    def part(self, slots: slice, per_run: int) -> Slots:
        """Some slots, a whole number of runs."""
        runs = slice(slots.start // per_run, slots.stop // per_run)
        own = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return Slots(**{name: x[runs if name.startswith("run_") else slots] for name, x in own.items()})


@dataclass(frozen=True)
class Chunk:
    """Part of a range of rows: those that are sampled, or the others."""

    own: range
    start: int
    stop: int
    sampled: bool

    def __len__(self) -> int:
        n_sampled = len(range(-self.start % SAMPLE, self.stop - self.start, SAMPLE))
        return n_sampled if self.sampled else self.stop - self.start - n_sampled

    def rows(self) -> np.ndarray:
        """The rows themselves."""
        at = np.arange(self.start, self.stop, dtype=np.int64)
        rows: np.ndarray = self.own.start + self.own.step * at[(at % SAMPLE == 0) == self.sampled]
        return rows


@dataclass(kw_only=True)
class Block:
    """Rows on the device, how many points are asked of them, and what comes back."""

    slots: Slots
    asked: int
    out: dict[str, Any]


# --- the run -----------------------------------------------------------------------------------------------------


class Run:
    """One sweep from plan to result."""

    def __init__(
        self,
        plan: Plan,
        directory: Path,
        *,
        config_yaml: str,
        report: Callable[[Progress], None] | None = None,
        compiled: bool | None = None,
        devices: Sequence[jax.Device] | None = None,
    ):
        """`compiled`: whether the grid is worth compiled calls; None: if it is not small. `devices`: None: all."""
        self.plan, self.space, self.directory = plan, plan.space, directory
        self.shard = plan.study.shard
        self.config_yaml = config_yaml
        self.report = report or (lambda progress: None)
        self.engine = Engine(plan.space, plan.study, devices)
        self.small = plan.space.n_points <= PLAIN_GRID if compiled is None else not compiled
        self.filters = filters(plan.space)
        self.groups = make_groups(plan.space, plan.by)
        self.counts = Counts()
        self.kinds = kinds(plan.space)
        self.columns = columns_of(plan.study, plan.space)
        self.accuracy_label = accuracy.label(plan.study.accuracy)
        points = BLOCK_POINTS * (FILTERED if plan.rows == "frontier" else 1)
        block = min(points // plan.space.per_row, BLOCK_LOADS // len(plan.space.batch))
        self.block_rows = int(min(max(block, 16), max(plan.space.n_rows, 1)))
        self.part_rows = max(plan.study.store.part_rows // plan.space.per_row, 1)
        self.block_rows = min(self.block_rows, self.part_rows)  # a part is a whole number of blocks
        self.block_rows += -self.block_rows % self.engine.n_devices  # a whole number of rows for each
        self.rows_per_bar = 1
        self.part_rows = -(-self.part_rows // self.block_rows) * self.block_rows
        self.started = time.perf_counter()
        self.before_s = 0.0  # seconds that earlier, interrupted runs took
        self.done_points = 0
        self.n_parts = 0 if plan.rows == "frontier" else -(-self.shard.size(self.space.n_rows) // self.part_rows)
        self._plan_frontier()

    # frontier on the device

    def _plan_frontier(self) -> None:
        """How the frontier is found: one objective that rows decide, two that points decide: filtered on the device."""
        plan = self.plan
        levels = [o for o in plan.objectives if BY_NAME[o.column].level == "row"]
        inner = [o for o in plan.objectives if BY_NAME[o.column].level == "point"]
        self.fast = (
            plan.study.frontier.where is None
            and not self.small
            and len(inner) == 2
            and len(levels) <= 1
            and len(levels) + 2 == len(plan.objectives)
            and self.groups.n_batch == 1
            and bool(np.isfinite(plan.space.batch).all())
        )
        self.level, self.pair = (levels[0] if levels else None), inner
        self.signs = (float(inner[0].sign), float(inner[1].sign)) if self.fast else (1.0, 1.0)
        self.objective_names = (inner[0].column, inner[1].column) if self.fast else ("tok_s_gpu", "tok_s_user")
        self.trade = self.engine.trade(self.kinds, self.objective_names, self.signs) if self.fast else None
        if self.trade is None and plan.rows != "frontier":  # columns are there: what points are beaten by is cheap
            self.fast = False
        self.front = RunningFrontier(3 if self.fast else len(plan.objectives), self.groups.count)
        self.bar: Bar = (
            Rays(self.trade, self.groups.count, self.engine.dtype)
            if self.trade
            else Edges(self.groups.count, self.engine.dtype)
        )
        self.level_values = self._levels() if self.fast else np.zeros(1)
        if self.fast:
            self.bar.refresh(self.front, self.level_values)
        self.done_blocks, self.seen_at_bar = 0, 0  # blocks so far; points that the bar let through before it was set
        self.slack = 0.0  # lead in the level that a point needs to drop another; see sweep.doubt.ties
        self.saved_at = time.perf_counter()
        if self.fast and plan.rows == "frontier":
            self._share_bars()

    def _share_bars(self) -> None:
        """Rows of a run that share a bar: as many as leave few slots empty, since a run has one group, class, level."""
        pairs = self.space.n_models * len(self.space.machines)
        kinds_of_run = min(pairs, self.groups.n_row * len(self.level_values))
        kinds_of_run *= self.trade.per_machine if self.trade else 1
        rows = self.shard.size(self.space.n_rows)
        while self.rows_per_bar < ROWS_PER_BAR and EMPTY * kinds_of_run * self.rows_per_bar <= rows:
            self.rows_per_bar *= 2
        whole = self.rows_per_bar * self.engine.n_devices
        self.block_rows = max(self.block_rows - self.block_rows % whole, whole)

    def _levels(self) -> np.ndarray:
        if self.level is None:
            return np.zeros(1)
        if self.level.column in ACCURACY_COLUMNS:
            table = np.asarray(getattr(self.engine.tables.accuracy, self.level.column), dtype=np.float64)
            self.accuracy_level = table * self.level.sign
            values = np.unique(self.accuracy_level)
        else:
            rows = np.arange(0, self.space.n_rows, max(self.space.n_rows // 4096, 1))
            values = np.unique(self._row_level(rows))
        values = values[np.isfinite(values)]
        if len(values) > self.bar.n_levels:
            values = np.unique(np.quantile(values, np.linspace(0, 1, self.bar.n_levels), method="higher"))
        return values

    def _row_level(self, rows: np.ndarray) -> np.ndarray:
        """The objective that rows decide, larger is better; 0 where there is none."""
        if self.level is None:
            return np.zeros(len(rows))
        if self.level.column in ACCURACY_COLUMNS:
            i_model, i_machine, _ = self.space.indices(rows)
            level: np.ndarray = self.accuracy_level[i_model * len(self.space.machines) + i_machine]
            return level
        at_row = self.engine.rows(rows, self.kinds, (self.level.column,))
        return np.asarray(at_row[self.level.column], dtype=np.float64) * self.level.sign

    def _slots(self, rows: np.ndarray, *, mixed: bool = False) -> Slots:
        """Rows in order of group, class and level, each of these from a new run on; a whole number of blocks.

        mixed: levels share runs, under the bar of the highest: for rows that are too few to fill runs.
        """
        level, group, k = self._row_level(rows), self.groups.rows(rows), self.rows_per_bar
        row_class = np.zeros(len(rows), dtype=np.int64)
        if self.trade:
            row_class = self.trade.classes(*self.space.indices(rows))
        at_level = np.searchsorted(self.level_values, level + self.slack, side="left")  # beyond the last: under no bar
        order = np.lexsort((at_level, row_class, group))
        keys = (group, row_class) if mixed else (group, row_class, at_level)
        new = np.logical_or.reduce([np.diff(key[order], prepend=-1) != 0 for key in keys])
        sizes = np.bincount(np.cumsum(new) - 1)
        runs = -(-sizes // k)
        starts = (np.cumsum(runs) - runs) * k
        slots = np.repeat(starts, sizes) + np.arange(len(rows)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        n = -(-int(runs.sum()) * k // self.block_rows) * self.block_rows

        def placed(values: np.ndarray, empty: Any) -> np.ndarray:
            out = np.full(n, empty, dtype=values.dtype)
            out[slots] = values[order]
            return out

        slot_group, slot_class, slot_level = (placed(x, 0) for x in (group, row_class, at_level))
        return Slots(
            rows=placed(rows, rows[0]),
            taken=placed(np.ones(len(rows), dtype=bool), False),
            group=slot_group,
            level=placed(level, 0.0),
            at_level=slot_level,
            row_class=slot_class,
            run_group=slot_group.reshape(-1, k).max(axis=1),
            run_level=slot_level.reshape(-1, k).max(axis=1),
            run_class=slot_class.reshape(-1, k).max(axis=1),
        )

    def _in_blocks(self, slots: Slots) -> list[Slots]:
        size = self.block_rows
        return [slots.part(slice(at, at + size), self.rows_per_bar) for at in range(0, len(slots.rows), size)]

    def blocks_of(self, rows: np.ndarray, seed: int, *, sample: bool = False) -> list[Slots]:
        """Rows in blocks of one size, in any order but always the same one.

        sample: rows of all sorts, few of each, and the first ones that there are.
        """
        rng = np.random.default_rng(seed)
        found: list[Slots] = []
        if sample:
            rows = rng.permutation(rows)
            first = max(self.block_rows // FIRST_ROWS, 1)
            if len(rows) > self.block_rows:
                found += self._in_blocks(self._slots(rows[:first], mixed=True))
                rows = rows[first:]
        if len(rows):
            rest = self._in_blocks(self._slots(rows, mixed=sample))
            found += [rest[i] for i in rng.permutation(len(rest))]
        return found

    def _groups_of_runs(self, row_group: np.ndarray) -> np.ndarray:
        return self._groups_at(row_group[None, :], np.arange(self.space.n_contexts)[:, None])

    def _dispatch(self, slots: Slots) -> Block:
        """Start a block on the device."""
        keep = slots.taken[None, None, :]
        asked = self.filters.points(slots.rows)
        if asked is not None:
            keep = np.ascontiguousarray(np.moveaxis(asked, 0, 2)) & keep
        out = self.engine.filtered(
            slots.rows,
            self.kinds,
            objectives=self.objective_names,
            signs=self.signs,
            keep=keep,
            bar=self.bar.of(self._groups_of_runs(slots.run_group), slots.run_level, slots.run_class),
        )
        each = self.space.per_row // (keep.shape[0] * keep.shape[1])
        return Block(slots=slots, asked=int(np.count_nonzero(keep)) * each, out=out)

    def _consume(self, block: Block) -> Counts:
        """Take a block off the device: counts, and its survivors into the frontier."""
        out, slots = block.out, block.slots
        counts = Counts(asked=block.asked, feasible=int(np.asarray(out["feasible"]).sum()))
        for name, reason in LATE.items():
            counts.reasons[reason] = int(np.asarray(out[name]).sum()) if name in out else 0
        if not self.engine.cut:  # memory is all that points can lack here
            counts.reasons[LATE["fits"]] = counts.asked - counts.feasible
        at, found = self.engine.collected(out)
        if len(at):
            i_batch, c, r = np.unravel_index(at, out["alive"].shape)
            group = self._groups_at(slots.group[r], c)
            left, x, y = self.bar.judged(found, group, slots.at_level[r], slots.row_class[r], i_batch)
            i_batch, c, r = i_batch[left], c[left], r[left]
            self._let_in(slots.rows[r], slots.level[r], group[left], i_batch, c, x, y)
        return counts

    def _groups_at(self, row_group: np.ndarray, i_context: np.ndarray) -> np.ndarray:
        """Groups of the points of some row groups and contexts."""
        at: np.ndarray = row_group * self.groups.n_context + self.groups.context[i_context]
        return at

    def _let_in(
        self,
        rows: np.ndarray,
        level: np.ndarray,
        group: np.ndarray,
        i_batch: np.ndarray,
        i_context: np.ndarray,
        x: np.ndarray,
        y: np.ndarray,
    ) -> None:
        """Points that may be on the frontier into it: all [points]."""
        values = np.column_stack([level, x.astype(np.float64), y.astype(np.float64)])
        ids = (rows * len(self.space.batch) + i_batch) * self.space.n_contexts + i_context
        self._offer(values, group, ids)

    def _offer(self, values: np.ndarray, groups: np.ndarray, ids: np.ndarray) -> None:
        """Take what the device let through."""
        self.front.add(values, groups, ids, sieved=self.trade is not None)

    def _padded(self, rows: np.ndarray) -> np.ndarray:
        """Rows of a block filled up to the block's size, so that every block has one shape and compiles once."""
        missing = self.block_rows - len(rows)
        return rows if missing <= 0 else np.concatenate([rows, np.full(missing, rows[0])])

    # rows that are worth a block

    def _survivors(self, chunk: np.ndarray) -> tuple[np.ndarray, Counts]:
        """Rows of a chunk that some load may save, and the count of the others by reason."""
        counts = Counts()
        rows = chunk[self.filters.rows(chunk)]
        if not len(rows):
            return rows, counts
        reasons = row_reasons(self.space, rows)
        lost = reasons != 0
        self._count_lost(counts, rows, reasons)
        rows = rows[~lost]
        if not len(rows):
            return rows, counts
        if self.small or self.engine.cut:  # a point too large may be late as well: only its evaluation tells
            return rows, counts
        padded = np.concatenate([rows, np.full((-len(rows)) % (1 << 14), rows[0])])
        held = np.concatenate(
            [
                np.asarray(self.engine.rows(part, self.kinds, ("weights_bytes",))["weights_bytes"])
                for part in np.split(padded, len(padded) // (1 << 14))
            ]
        )[: len(rows)]
        machine = np.array([r.machine.hbm_bytes - r.machine.reserve_bytes for r in self.space.machines])
        full = held > machine[self.space.indices(rows)[1]]
        self._count_lost(counts, rows[full], np.full(int(full.sum()), REASON_BIT["capacity"]))
        return rows[~full], counts

    def _count_lost(self, counts: Counts, rows: np.ndarray, reasons: np.ndarray) -> None:
        if not len(rows):
            return
        lost = rows[reasons != 0]
        per_row = np.full(len(lost), self.space.per_row)
        if self.filters.load:
            masks = [
                np.asarray(self.filters.points(part))
                for part in np.array_split(lost, max(len(lost) // 4096, 1))
                if len(part)
            ]
            per_row = np.concatenate([m.reshape(len(m), -1).sum(axis=1) for m in masks]) if masks else per_row
        counts.asked += int(per_row.sum())
        for name, bit in REASON_BIT.items():
            counts.reasons[name] += int(per_row[(reasons[reasons != 0] & bit) != 0].sum())

    def _blocks(self, rows: np.ndarray) -> Iterator[np.ndarray]:
        """Rows in blocks of one size, the last one smaller."""
        for start in range(0, len(rows), self.block_rows):
            yield rows[start : start + self.block_rows]

    # frontier only

    def frontier_only(self) -> None:
        """Evaluate everything, keep the frontier."""
        state = self._load_state()
        start_chunk, start_block = state if state is not None else (0, 0)
        chunks = self._chunks()
        # the next rows are chosen, and what came back is merged, while these are evaluated
        with ThreadPoolExecutor(1) as ahead, ThreadPoolExecutor(1) as behind:
            warm = behind.submit(self._warm)
            waiting = ahead.submit(self._survivors, chunks[start_chunk].rows()) if start_chunk < len(chunks) else None
            if start_chunk < len(chunks):
                self.engine.ready(self.kinds, self.objective_names, self.signs, chunks[start_chunk].own.start)
            warm.result()
            for at in range(start_chunk, len(chunks)):
                assert waiting is not None
                rows, lost = waiting.result()
                if at + 1 < len(chunks):
                    waiting = ahead.submit(self._survivors, chunks[at + 1].rows())
                if start_block == 0:
                    self.counts.add(lost)
                    self.done_points += self.space.per_row * (len(chunks[at]) - len(rows))
                self._evaluate_chunk(at, self.blocks_of(rows, at + 1, sample=chunks[at].sampled), start_block, behind)
                start_block = 0
                self._tell()

    def _warm(self) -> None:
        """Compile what blocks take, while what rows share is evaluated."""
        runs = self.block_rows // self.rows_per_bar
        group, none = np.zeros((self.space.n_contexts, runs), dtype=np.int64), np.zeros(runs, dtype=np.int64)
        keep = np.ones((1, 1, self.block_rows), dtype=bool)
        asked = self.filters.points(np.zeros(1, dtype=np.int64))
        if asked is not None:
            keep = np.ones((*asked.shape[1:], self.block_rows), dtype=bool)
        self.engine.warm(
            self.kinds,
            objectives=self.objective_names,
            signs=self.signs,
            keep=keep,
            bar=self.bar.of(group, none, none),
        )

    def _evaluate_chunk(self, at: int, blocks: list[Slots], start_block: int, behind: ThreadPoolExecutor) -> None:
        """Blocks of a chunk: dispatched here, merged behind; the first ones one by one, until there is a bar."""
        pending: deque[Future[None]] = deque()
        for number, slots in enumerate(blocks, start=1):
            if number <= start_block:
                continue
            while len(pending) >= (BLOCKS_AHEAD if self.done_blocks >= BLOCKS_AHEAD else 1):
                pending.popleft().result()
            pending.append(behind.submit(self._finish, self._dispatch(slots), at, number))
        while pending:
            pending.popleft().result()

    def _chunks(self) -> list[Chunk]:
        """Chunks of rows, of one range of models after the other: a sample of all first, then what lies side by side.

        A configuration's rivals are first of all those of its own model and machine: they are of one chunk.
        """
        per_model = len(self.space.machines) * self.space.n_layouts
        stages = self.engine.filter_stages(self.kinds, self.objective_names, self.signs)
        turns = self.engine.turns(stages)
        chunks: list[Chunk] = []
        rng = np.random.default_rng(0)
        for turn in rng.permutation(len(turns)):
            first, last = (m * per_model for m in turns[turn])
            own = range(self.shard.first(first), last, self.shard.count)
            chunks.append(Chunk(own, 0, len(own), True))
            for start in rng.permutation(np.arange(0, len(own), CHUNK_ROWS)).tolist():
                chunks.append(Chunk(own, start, min(start + CHUNK_ROWS, len(own)), False))
        return [chunk for chunk in chunks if len(chunk)]

    def _finish(self, block: Block, chunk: int, number: int) -> None:
        """Merge a block, count it, and save what is known if it is time to."""
        self.counts.add(self._consume(block))
        self.done_points += int(np.count_nonzero(block.slots.taken)) * self.space.per_row
        self._passed()
        self._save_state(chunk, number)
        self._tell()

    def _passed(self) -> None:
        """Another block is done: the bar is renewed where it lets much through."""
        self.done_blocks += 1
        if self.done_blocks == 1 or self.front.seen - self.seen_at_bar > FRESH_POINTS:
            self.bar.refresh(self.front, self.level_values)
            self.seen_at_bar = self.front.seen

    def _order(self) -> list[int]:
        """What the order of blocks hangs on: a run under another one, or by another version, cannot go on with it."""
        return [ORDER, SAMPLE, CHUNK_ROWS, self.block_rows, self.rows_per_bar]

    def _state_path(self) -> Path:
        return self.directory / "state.npz"

    def _save_state(self, chunk: int, blocks: int) -> None:
        now = time.perf_counter()
        if now - self.saved_at < SAVE_EVERY_S:
            return
        self.saved_at = now
        buffer = io.BytesIO()
        about = {
            "sha256": self.plan.sha256,
            "order": self._order(),
            "chunk": chunk,
            "blocks": blocks,
            "counts": self.counts.as_json(),
            "done": self.done_points,
            "seconds": self.before_s + now - self.started,
        }
        arrays: dict[str, Any] = {
            "about": np.frombuffer(json.dumps(about).encode(), dtype=np.uint8),
            **self.front.state(),
        }
        np.savez(buffer, **arrays)
        store.write_atomic(self._state_path(), buffer.getvalue())

    def _load_state(self) -> tuple[int, int] | None:
        path = self._state_path()
        if not path.is_file():
            return None
        try:
            with path.open("rb") as file, np.load(file) as saved:  # else a broken one would stay open
                about = json.loads(saved["about"].tobytes().decode())
                if about["sha256"] != self.plan.sha256 or about.get("order") != self._order():
                    return None
                self.front = RunningFrontier.from_state({k: saved[k] for k in saved.files if k != "about"})
                self.bar.refresh(self.front, self.level_values)
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            return None  # not readable: start again, nothing is lost but time
        self.counts = Counts.from_json(about["counts"])
        self.done_points = about["done"]
        self.before_s = about["seconds"]
        return about["chunk"], about["blocks"]

    def _tell(self, final: bool = False) -> None:
        self.report(
            Progress(
                done=self.done_points,
                total=self.shard.size(self.space.n_rows) * self.space.per_row,
                feasible=self.counts.feasible,
                frontier=len(self.front) if final else self.front.candidates,
                seconds=time.perf_counter() - self.started,
                final=final,
            )
        )

    # rows to disk

    def full_columns(self, rows: np.ndarray, columns: Sequence[Column] | None = None) -> dict[str, np.ndarray]:
        """Columns of all points of rows, all of them if not given, each [rows, batch, context], before filters."""
        if self.small:
            return self._plain_columns(rows)
        columns = self.columns if columns is None else columns
        names = {c.name for c in columns}
        wanted = [*names, "extrapolation"]
        n = len(rows)
        at_row, at_context, points = jax.tree.map(
            lambda x: np.asarray(x)[..., :n], self.engine.full(self._padded(rows), self.kinds, wanted)
        )
        shape = (len(rows), len(self.space.batch), self.space.n_contexts)
        by_row = row_reasons(self.space, rows)
        impossible = np.flatnonzero(by_row)

        def placed(values: np.ndarray) -> np.ndarray:
            """In order of points: one copy."""
            out = np.empty(shape, dtype=values.dtype)
            out[:] = values
            return out

        out: dict[str, np.ndarray] = {}
        for column in columns:
            if column.name in points:
                out[column.name] = placed(np.moveaxis(points[column.name], 2, 0))
            elif column.level == "row":
                out[column.name] = placed(at_row[column.name][:, None, None])
            elif column.level == "context":
                out[column.name] = placed(at_context[column.name].T[:, None, :])
        if "batch" in points:  # of those that are as large as possible
            own = ~np.isfinite(self.space.batch)
            out["workload.batch"] = placed(np.moveaxis(points["batch"], 2, 0))
            out["workload.batch"][np.ix_(impossible, own)] = np.nan
        late: Any = np.int32(0)
        for name, reason in LATE.items():
            if name in points:
                late = late | np.where(np.moveaxis(points[name], 2, 0) > 0, np.int32(0), np.int32(REASON_BIT[reason]))
        reasons = placed(late)
        if len(impossible):
            reasons[impossible] = by_row[impossible][:, None, None]
            for name in NUMBERS:
                if name in out:
                    out[name][impossible] = np.nan
        out["reasons"] = reasons
        out["feasible"] = reasons == 0
        for name, factor in self._band(rows, names).items():
            out[name] = np.broadcast_to(factor[:, None, None], shape)
        longest = np.asarray(self.space.context.longest)[None, None, :]
        limit = self.space.model_max_context[self.space.indices(rows)[0]][:, None, None]
        out["extrapolation"] = out_of_range(
            out_row=at_row["extrapolation"][:, None, None], beyond=longest > limit, shape=shape
        )
        return out

    def _band(self, rows: np.ndarray, names: Set[str]) -> dict[str, np.ndarray]:
        """Those factors of the error bands that are among some columns: [rows]."""
        found = bands(self.space, rows, pools="prefill_band_low" in names)
        return {name: factor.astype(self.engine.dtype) for name, factor in found.items() if name in names}

    def point_columns(self, rows: np.ndarray, i_batch: np.ndarray, i_context: np.ndarray) -> dict[str, np.ndarray]:
        """All columns of single points, by NumPy: done before the compiler has read the formulas."""
        slices = [slice(i, i + PLAIN_POINTS) for i in range(0, len(rows), PLAIN_POINTS)]

        def one(part: slice) -> dict[str, np.ndarray]:
            return self.engine.plain(rows[part], i_batch[part], i_context[part], self.kinds)

        if len(slices) == 1:
            parts = [one(slices[0])]
        else:
            with ThreadPoolExecutor(cores()) as pool:  # NumPy works on long arrays without holding the interpreter
                parts = list(pool.map(one, slices))
        out = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        reasons = row_reasons(self.space, rows)
        possible = reasons == 0
        late = np.zeros(len(rows), dtype=np.int32)
        for name, reason in LATE.items():
            late |= np.where(out[name] > 0, 0, REASON_BIT[reason]).astype(np.int32)
        for name in NUMBERS:
            if name in out:
                out[name] = np.where(possible, out[name], np.nan)
        out["reasons"] = np.where(possible, late, reasons)
        out["feasible"] = out["reasons"] == 0
        longest = np.asarray(self.space.context.longest)[i_context]
        limit = self.space.model_max_context[self.space.indices(rows)[0]]
        out["extrapolation"] = out_of_range(out_row=out["extrapolation"], beyond=longest > limit, shape=rows.shape)
        out |= self._band(rows, {c.name for c in self.columns})
        found = {c.name: out[c.name] for c in self.columns}
        if self.engine.given.all():
            return found
        known = possible | np.isfinite(self.space.batch)[i_batch]
        return found | {"workload.batch": np.where(known, out["batch"], np.nan)}

    def _plain_columns(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        shape = (len(rows), len(self.space.batch), self.space.n_contexts)
        r, i_batch, i_context = (i.ravel() for i in np.indices(shape))
        return {name: v.reshape(shape) for name, v in self.point_columns(rows[r], i_batch, i_context).items()}

    def _stored_block(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Columns of a block, and the frontier updated."""
        columns = self.full_columns(rows, self.columns if self.plan.study.frontier.where else self.plan.columns)
        if self.fast:
            self._sift(rows, columns)
        return columns

    def _sift(self, rows: np.ndarray, columns: dict[str, np.ndarray]) -> None:
        """Evaluated rows into the frontier."""
        assert self.trade is not None and isinstance(self.bar, Rays)
        good = columns["feasible"]
        asked = self.filters.points(rows)
        if asked is not None:
            good = good & asked
        x, y = (columns[o.column] * self.engine.dtype(o.sign) for o in self.pair)
        level, group = self._row_level(rows), self.groups.rows(rows)
        at_level = np.searchsorted(self.level_values, level, side="left")
        row_class = self.trade.classes(*self.space.indices(rows))
        alike = (group * (len(self.level_values) + 1) + at_level) * len(self.trade.first) + row_class
        _, some, which = np.unique(alike, return_index=True, return_inverse=True)  # most rows share their limits
        number = self.bar.number[row_class[some]]
        limit = self.bar.fastest(
            self._groups_of_runs(group[some]).T[:, None, :], at_level[some][:, None, None], number[:, :, None]
        )[which]
        r, i_batch, c = np.nonzero(good & (rate(x, self.trade.costs[0]) >= limit))
        at = (r, i_batch, c)
        self._let_in(rows[r], level[r], self._groups_at(group[r], c), i_batch, c, x[at], y[at])
        self._passed()

    def _tally(self, reasons: np.ndarray) -> Counts:
        found = np.bincount(reasons, minlength=1)
        counts = Counts(asked=len(reasons), feasible=int(found[0]))
        for name, bit in REASON_BIT.items():
            counts.reasons[name] = int(found[np.arange(len(found)) & bit != 0].sum())
        return counts

    def stored(self) -> None:
        """Evaluate everything, write it in parts, keep the frontier."""
        writer = self.writer(self.plan.study.store.axes)
        points = self.directory / "points"
        points.mkdir(parents=True, exist_ok=True)
        writing: deque[tuple[Future[int], Counts, int]] = deque()

        def written(most: int) -> None:
            while len(writing) > most:
                future, total, rows = writing.popleft()
                future.result()
                self.counts.add(total)
                self.done_points += rows * self.space.per_row
                self._tell()

        with ThreadPoolExecutor(WRITERS) as pool:  # encoding takes longer than evaluating
            for i, chunk in enumerate(self.shard.chunks(self.space.n_rows, self.part_rows)):
                path = points / f"part-{i:05d}.parquet"
                if self._reuse(path):
                    self.done_points += len(chunk) * self.space.per_row
                    continue
                total = Counts()
                tables = [writer.table(np.zeros(0, dtype=np.int64), self._stored_only(self._no_columns()))]
                for block in self._blocks(chunk[self.filters.rows(chunk)]):
                    table, counts = self._block_table(writer, block)
                    total.add(counts)
                    tables.append(table)
                tables = tables[1:] or tables
                about = {"counts": total.as_json(), "part": i}
                writing.append((pool.submit(writer.write, path, pa.concat_tables(tables), about), total, len(chunk)))
                written(WRITERS)
            written(0)

    def _no_columns(self) -> dict[str, np.ndarray]:
        return {c.name: np.zeros(0) for c in self.columns}

    def _stored_only(self, columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        kept = {"workload.batch", *(c.name for c in self.plan.columns)}
        return {name: column for name, column in columns.items() if name in kept}

    def _block_table(self, writer: store.Writer, rows: np.ndarray) -> tuple[Any, Counts]:
        columns = self._stored_block(rows)
        per_row = self.space.per_row
        ids = (rows[:, None] * per_row + np.arange(per_row)).ravel()
        flat = {name: np.ascontiguousarray(v).reshape(-1) for name, v in columns.items()}
        keep = np.ones(len(ids), dtype=bool)
        asked = self.filters.points(rows)
        if asked is not None:
            keep = asked.reshape(-1)
        counts = self._tally(flat["reasons"][keep])
        if not self.fast:
            self._add_generic(ids[keep], {n: v[keep] for n, v in flat.items()})
        if self.plan.rows == "feasible":
            keep = keep & flat["feasible"]
        if not keep.all():
            ids, flat = ids[keep], {name: v[keep] for name, v in flat.items()}
        return writer.table(ids, self._stored_only(flat)), counts

    def _values(self, columns: dict[str, np.ndarray]) -> np.ndarray:
        return np.column_stack([columns[o.column].astype(np.float64) * o.sign for o in self.plan.objectives])

    def _groups_of(self, ids: np.ndarray) -> np.ndarray:
        rows, rest = np.divmod(ids, self.space.per_row)
        i_batch, i_context = np.divmod(rest, self.space.n_contexts)
        return self.groups.points(rows, i_batch, i_context)

    def _add_generic(self, ids: np.ndarray, columns: dict[str, np.ndarray]) -> None:
        good = columns["feasible"]
        if self.plan.study.frontier.where is not None and good.any():
            good = good & self._eligible(ids, columns)
        if good.any():
            self.front.add(
                self._values({k: v[good] for k, v in columns.items()}), self._groups_of(ids[good]), ids[good]
            )

    def _eligible(self, ids: np.ndarray, columns: dict[str, np.ndarray]) -> np.ndarray:
        """Points that `frontier.where` admits: asked before the frontier is found, so that others cannot hide them."""
        frame = pl.from_arrow(self.writer(axes=True).table(ids, columns))
        assert isinstance(frame, pl.DataFrame)
        where = str(self.plan.study.frontier.where)
        return frame.select(condition(where, frame.schema, "frontier.where").fill_null(False)).to_series().to_numpy()

    def generic_frontier(self) -> None:
        """Evaluate everything, keep the frontier of objectives that the device filter does not know."""
        for chunk in self.shard.chunks(self.space.n_rows, CHUNK_ROWS):
            rows, lost = self._survivors(chunk)
            self.counts.add(lost)
            self.done_points += self.space.per_row * (len(chunk) - len(rows))
            for block in self._blocks(rows):
                columns = {n: v.reshape(-1) for n, v in self.full_columns(block).items()}
                ids = (block[:, None] * self.space.per_row + np.arange(self.space.per_row)).ravel()
                asked = self.filters.points(block)
                if asked is not None:
                    keep = asked.reshape(-1)
                    ids, columns = ids[keep], {n: v[keep] for n, v in columns.items()}
                self.counts.add(self._tally(columns["reasons"]))
                self._add_generic(ids, columns)
                self.done_points += len(block) * self.space.per_row
                self._tell()

    def _reuse(self, path: Path) -> bool:
        """Take over a complete part of the same configuration: its counts and its points for the frontier."""
        metadata = store.part_metadata(path) if path.is_file() else None
        if metadata is None:
            path.unlink(missing_ok=True)
            return False
        if metadata.get(f"{store.PREFIX}config_sha256") != self.plan.sha256:
            raise BadInput(f"{path}: holds points of another configuration; choose another directory")
        names = ["point_id", "feasible", *(o.column for o in self.plan.objectives)]
        try:
            frame = pl.read_parquet(path, columns=names).filter(pl.col("feasible"))
        except (pl.exceptions.PolarsError, OSError):  # its end is whole, its middle is not
            path.unlink(missing_ok=True)
            return False
        self.counts.add(Counts.from_json(json.loads(metadata[f"{store.PREFIX}counts"])))
        if frame.height:
            ids = frame["point_id"].to_numpy()
            values = np.column_stack(
                [frame[o.column].to_numpy().astype(np.float64) * o.sign for o in self.plan.objectives]
            )
            if self.fast:
                values = self._as_fast(values)
            self.front.add(values, self._groups_of(ids), ids)
        return True

    def _as_fast(self, values: np.ndarray) -> np.ndarray:
        """Objectives in the order of the device filter: the level first, then the pair."""
        by_name = {o.column: values[:, i] for i, o in enumerate(self.plan.objectives)}
        level = by_name[self.level.column] if self.level else np.zeros(len(values))
        return np.column_stack([level, by_name[self.pair[0].column], by_name[self.pair[1].column]])

    # results

    def writer(self, axes: bool) -> store.Writer:
        """A writer of this run's tables."""
        return store.Writer(
            self.space,
            config_yaml=self.config_yaml,
            sha256=self.plan.sha256,
            accuracy_label=self.accuracy_label,
            axes=axes,
            compression=self.plan.study.store.compression,
            float64=self.plan.study.float64,
        )

    def frontier_table(self, front: Front | None = None) -> Any:
        """All columns of the frontier's points, in a fixed order: by group, then by objectives, best first.

        Args: front: other points than those of the frontier.
        """
        front = self.front.result() if front is None else front
        writer = self.writer(axes=True)
        if not len(front):
            return writer.table(np.zeros(0, dtype=np.int64), self._no_columns())
        order = np.lexsort(
            (front.ids, *(-front.values[:, i] for i in reversed(range(front.values.shape[1]))), front.groups)
        )
        ids, values = front.ids[order], front.values[order]
        rows, rest = np.divmod(ids, self.space.per_row)
        i_batch, i_context = np.divmod(rest, self.space.n_contexts)
        collected = self.point_columns(rows, i_batch, i_context)
        # what was found feasible is: to the last byte, another order of sums might see it otherwise
        collected |= {"feasible": np.ones(len(ids), dtype=bool), "reasons": np.zeros(len(ids), dtype=np.int32)}
        if self.fast:  # the values that were compared
            for i, objective in enumerate(self.pair, start=1):
                collected[objective.column] = (values[:, i] * objective.sign).astype(self.engine.dtype)
        return writer.table(ids, collected)

    def _doubts(self, table: Any) -> tuple[Any, dict[str, Any]]:
        """The frontier with what is doubtful about each point; ties go to `epsilon.parquet`. See `sweep.doubt`."""
        found = doubt.ranges(self.space, self.plan.study)
        limit = self.space.model_max_context
        about: dict[str, Any] = {"extrapolation": found.about(), "loss_source": doubt.source_of(found)}
        verdict = doubt.verdict(self)
        stays = None if verdict.robust is None else self.front.result().ids[verdict.robust]
        ids = table["point_id"].to_numpy()
        robust = None if stays is None else np.isin(ids, stays)
        about["robust"] = verdict.about()
        path = self.directory / "epsilon.parquet"
        tied = doubt.ties(self)
        if tied is not None:
            all_tied = self.frontier_table(tied)
            on_frontier = np.isin(all_tied["point_id"].to_numpy(), ids)
            all_tied = doubt.annotated(all_tied, self.space, found, {"on_frontier": on_frontier}, limit)
            about["epsilon"] = {
                "nats": doubt.epsilon(self.plan.study.frontier.epsilon, "frontier.epsilon"),
                "points": len(on_frontier),
                "tied": int(np.count_nonzero(~on_frontier)),
            }
            self.writer(axes=True).write(path, all_tied, about)
        else:
            path.unlink(missing_ok=True)
        return doubt.annotated(table, self.space, found, {"robust": robust}, limit), about

    def execute(self) -> Result:
        """Run to the end: evaluate, write parts, frontier and manifest."""
        plan = self.plan
        self.directory.mkdir(parents=True, exist_ok=True)
        store.write_atomic(self.directory / "config.sha256", plan.sha256 + "\n")
        store.write_atomic(self.directory / "config.yaml", self.config_yaml)
        if self.shard:
            about_shard = {**dataclasses.asdict(self.shard), "study_sha256": plan.study_sha256}
            store.write_atomic(self.directory / "shard.json", json.dumps(about_shard) + "\n")
        if plan.rows == "frontier":
            if self.fast:
                self.frontier_only()
            else:
                self.generic_frontier()
        else:
            self.stored()
        self.engine.forget()
        self.bar.forget()
        table, about = self._doubts(self.frontier_table())
        self.writer(axes=True).write(self.directory / "frontier.parquet", table, about)
        seconds = time.perf_counter() - self.started + self.before_s
        manifest = {
            "title": plan.study.title,
            "points": self.counts.asked,
            "points_before_where": plan.points_before,
            "feasible": self.counts.feasible,
            "infeasible": {k: v for k, v in self.counts.reasons.items() if v},
            "frontier": table.num_rows,
            "objectives": [str(o) for o in plan.objectives],
            "by": list(plan.by),
            "seconds": seconds,
            "points_per_s": self.counts.asked / seconds,
            "store_rows": plan.rows,
            "parts": self.n_parts,
            "config_sha256": plan.sha256,
            "study_sha256": plan.study_sha256,
            "shard": dataclasses.asdict(self.shard),
            "version": store.code_version(),
            "schema_version": SCHEMA_VERSION,
            "accuracy_label": self.accuracy_label,
            "token_policy": plan.study.accuracy.data,
            **about,
            "efficiency": plan.study.efficiency_id,
            "float64": plan.study.float64,
            "serving": plan.study.serving.mode,
            "choices": {k: v for k, v in plan.study.choices.items() if "/" not in k},
            "provenance": store.provenance(self.space),
            "axes": {a.name: a.size for a in self.space.axes},
            "jax": jax.__version__,
        }
        store.write_atomic(self.directory / "manifest.json", json.dumps(manifest, indent=1) + "\n")
        self._state_path().unlink(missing_ok=True)
        self._tell(final=True)
        frame = pl.from_arrow(table)
        assert isinstance(frame, pl.DataFrame)
        labels = [n for n, t in frame.schema.items() if t == pl.Categorical]
        return Result(manifest=manifest, frontier=frame.with_columns(pl.col(labels).cast(pl.String)))


def out_of_range(*, out_row: np.ndarray, beyond: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Validity ranges left: those of the accuracy proxy, and one more where the context exceeds the published one."""
    return np.broadcast_to(out_row.astype(np.int32) + beyond.astype(np.int32), shape)


def check_directory(directory: Path, sha256: str) -> None:
    """Refuse a directory that holds another configuration's points.

    Raises: `BadInput`.
    """
    path = directory / "config.sha256"
    if path.is_file() and path.read_text().strip() != sha256:
        raise BadInput(f"output={directory}: holds points of another configuration; choose another directory")


def check_disk(plan: Plan, directory: Path) -> None:
    """Refuse to start a grid whose points would not fit on the disk.

    Raises: `BadInput` with both sizes.
    """
    if plan.rows == "frontier":
        return
    rows = plan.points
    if rows is None:
        rows = plan.study.shard.size(plan.space.n_rows) * plan.space.per_row
    share = len(plan.columns) / len(columns_of(plan.study, plan.space))
    need = int(rows * BYTES_PER_ROW * share * (DOUBLE if plan.study.float64 else 1))
    free = store.free_bytes(directory)
    if need > free:
        raise BadInput(
            f"store.rows={plan.rows}: {rows:,} rows need about {need / 1e9:,.1f} GB, {free / 1e9:,.1f} GB are free; "
            "nearest: store.rows=frontier, store.axes=false"
        )
