"""The cost model over blocks of points, in one place: no term is computed twice.

The model is written for one point. `sweep.levels` takes it apart; here its terms become compiled calls, one per level:
what a configuration decides, what it decides with a batch, with a context, and with both. Most of what a configuration
and a batch decide hangs on few of their numbers: such groups of terms are evaluated once per combination that occurs
in the grid and looked up by row. Handing the terms of one level to the next as arrays keeps the compiler from
computing them again for every batch and context.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import itertools
import math
import platform
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from sweep import accuracy, levels
from sweep.columns import CAUSES
from sweep.config import Study, as_record
from sweep.cost.arith import namespace
from sweep.cost.memory import count_params
from sweep.cost.result import (
    ContextCost,
    PointCost,
    RowCost,
    context_cost,
    evaluate_point,
    load_cost,
    point_cost,
    row_cost,
)
from sweep.cost.step import Row
from sweep.imbalance import Unbalanced, unbalanced
from sweep.largest import largest_batch
from sweep.machine import Machine
from sweep.measured import measured
from sweep.point import Context, Kinds, Layout, Model
from sweep.space import Space, machine_arrays
from sweep.trade import Trade


@functools.cache
def tune_allocator() -> bool:
    """Ask glibc to keep freed buffers: fresh pages for every block cost more than the arithmetic on them.

    Returns: whether it was done; elsewhere than on glibc nothing happens.
    """
    if platform.system() != "Linux":
        return False
    try:
        libc = ctypes.CDLL("libc.so.6")
        m_mmap_threshold, m_trim_threshold = -3, -1
        return bool(libc.mallopt(m_mmap_threshold, 1 << 28) and libc.mallopt(m_trim_threshold, 1 << 30))
    except (OSError, AttributeError):
        return False


@functools.cache
def compiler_options() -> dict[str, Any] | None:
    """Wide vectors where the processor has them (about a fifth faster); nothing where the option is unknown."""
    if jax.default_backend() != "cpu":
        return None
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as info:
        if "avx512f" not in info.read():
            return None
        options = {"xla_cpu_prefer_vector_width": 512}
        try:
            jax.jit(lambda x: x + 1.0, compiler_options=options)(jnp.float32(1.0))
        except Exception:
            return None
        return options
    return None


def precision(float64: bool) -> AbstractContextManager[Any]:
    """Where jax computes in float64 if asked to; of the calling thread alone, so that engines do not disturb others."""
    return jax.enable_x64(True) if float64 else contextlib.nullcontext()


PREFILL_COLUMNS = {"ttft_s", "request_s", "prefill_req_per_s", "kv_transfer_s"}  # need the prefill


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class AccuracyTable:
    """Accuracy of each model in each precision: decided before any layout is."""

    accuracy: Any
    accuracy_low: Any
    accuracy_high: Any
    loss: Any
    loss_sigma: Any
    extrapolation: Any


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Tables:
    """What rows refer to, on the device."""

    model: Model
    machine: Machine
    layout: Layout
    skew: Any
    accuracy: AccuracyTable  # over models x machines
    excess: Any  # of unbalanced experts, over kinds of models x kinds of layouts
    excess_of_model: Any
    excess_of_layout: Any


def excess_of(space: Space) -> Unbalanced:
    """How far the slowest GPU of layouts without expert balancing exceeds the mean, per model and layout."""
    m, x = space.model, space.layout
    return unbalanced(m.n_experts, m.top_k, x.ep, space.skew, x.balanced)


@functools.cache
def _proxies() -> Any:
    """Several laws in one call, compiled in a hurry: each table is looked at once."""
    hurry = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
    return jax.jit(
        jax.vmap(lambda shape, laws: [accuracy.loss(shape, law) for law in laws], in_axes=(0, None)),
        compiler_options=hurry if jax.default_backend() == "cpu" else None,
    )


_measured = jax.jit(jax.vmap(accuracy.measured_loss, in_axes=(0, 0, 0, None)))


def shapes(space: Space, settings: accuracy.AccuracyConfig) -> list[accuracy.Shape]:
    """What the accuracy proxy needs of every model, [models] each, for each precision of a grid."""
    with namespace(np):
        params = count_params(jax.tree.map(np.asarray, space.model))
    dtype, found = _float(), []
    for record in space.precision:
        d8, dkv = accuracy.penalties(as_record(record), qat=settings.qat)
        shape = accuracy.shape_of(space.model, params.touched, params.total, d8=d8, dkv=dkv)
        found.append(jax.tree.map(lambda x: np.broadcast_to(np.asarray(x, dtype), (space.n_models,)), shape))
    return found


def _float() -> Any:
    """What jax computes in here: see `precision`."""
    return jax.dtypes.canonicalize_dtype(np.float64)


def accuracy_table(space: Space, study: Study) -> AccuracyTable:
    """The accuracy proxy for every model x machine pair of a grid (machines differ in precision alone here).

    Where a table of measured losses speaks of a model, its loss stands in place of the law's.
    """
    with precision(study.float64):
        law = accuracy.law_of(study.accuracy)
        columns = [_proxies()(shape, [law]) for shape in shapes(space, study.accuracy)]
        return _tables(space, study, [law], columns)[0]


def accuracy_tables(space: Space, study: Study, settings: Sequence[accuracy.AccuracyConfig]) -> list[AccuracyTable]:
    """The same under other laws, whose formats and measured losses are those of the study."""
    if not settings:
        return []
    with precision(study.float64):
        laws = [accuracy.law_of(s) for s in settings]
        return _tables(space, study, laws, [_proxies()(shape, laws) for shape in shapes(space, study.accuracy)])


def _tables(
    space: Space, study: Study, laws: Sequence[accuracy.Law], columns: list[list[accuracy.Proxy]]
) -> list[AccuracyTable]:
    """Tables from the columns [precision][law] of the proxies."""
    table = measured(space, study.accuracy)
    if table is not None:
        for i, shape in enumerate(shapes(space, study.accuracy)):
            narrow = jnp.asarray(np.where(table.in_format[:, i], 0.0, 1.0), _float())
            own = dataclasses.replace(shape, d8=shape.d8 * narrow, dkv=shape.dkv * narrow)
            nats = jnp.asarray(np.nan_to_num(table.loss[:, i], nan=1.0), _float())
            sigma, known = jnp.asarray(table.sigma[:, i], _float()), jnp.asarray(table.known[:, i])
            for j, law in enumerate(laws):
                taken = _measured(nats, sigma, own, law)
                columns[i][j] = jax.tree.map(lambda a, b, known=known: jnp.where(known, a, b), taken, columns[i][j])
    at = precision_of(space)

    def stack(name: str, j: int) -> Any:
        by_precision = np.stack([np.asarray(getattr(c[j], name), dtype=_float()) for c in columns], axis=1)
        return by_precision[:, at].reshape(-1)

    names = [f.name for f in dataclasses.fields(AccuracyTable)]
    return [AccuracyTable(**{name: stack(name, j) for name in names}) for j in range(len(laws))]


def precision_of(space: Space) -> list[int]:
    """Index of the precision of each machine of a grid."""
    n = len(space.precision)
    return [(i // (len(space.machines) // (len(space.hardware) * n))) % n for i in range(len(space.machines))]


# --- one point, taken apart --------------------------------------------------------------------------------------

LIMITS = ("fits", "in_time", "in_pace")  # 1 where a point keeps them
TIME = "time"  # what both objectives hang on, where they do: see `Trade`
TABLES = ("model", "machine", "layout", "accuracy", "excess")  # what decides a row; then batch and context
Leaf = tuple[str, str]  # table, and the column's path in it
AtRow = tuple[dict[str, Any], list[Any]]  # what is looked up, by tables: [terms, rows]; what is made of it


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The numbers of one point, in the order in which a program takes them."""

    leaves: tuple[Leaf, ...]
    tree: Any

    @functools.cached_property
    def of_table(self) -> dict[str, tuple[int, ...]]:
        """Positions by table."""
        found: dict[str, tuple[int, ...]] = {}
        for name in (*TABLES, "batch", "context"):
            found[name] = tuple(i for i, (table, _) in enumerate(self.leaves) if table == name)
        return found

    def mask(self, *tables: str) -> int:
        """Bits of all columns of some tables."""
        return sum(1 << i for table in tables for i in self.of_table[table])


@functools.cache
def _program(
    tree: Any,
    leaves: tuple[Leaf, ...],
    dtype: Any,
    kinds: Kinds,
    prefill: bool,
    columns: tuple[str, ...],
    regrouped: bool,
) -> levels.Program:
    """The operations that lead from the numbers of a point to some columns."""
    names = list(dict.fromkeys(columns))

    def point(point: dict[str, Any]) -> list[Any]:
        row = _row(point)
        at_row = row_cost(row)
        wanted: dict[str, Any] = {f.name: getattr(at_row, f.name) for f in dataclasses.fields(RowCost)}
        if not set(names) <= set(wanted):
            batch, context = point["batch"], point["context"]
            at_context = context_cost(row, at_row.weights_bytes, context, kinds, prefill=prefill)
            wanted |= {f.name: getattr(at_context, f.name) for f in dataclasses.fields(ContextCost)}
        if not set(names) <= set(wanted):
            load = load_cost(row, batch, kinds)
            cost = point_cost(row, at_row, load, at_context, batch, context, kinds)
            wanted |= {f.name: getattr(cost, f.name) for f in dataclasses.fields(PointCost)}
        return [wanted[name] for name in names]

    example = jax.tree.unflatten(tree, [jnp.zeros((), dtype=dtype)] * len(leaves))
    program, _ = levels.trace(point, example)
    if not regrouped:
        return program
    inputs = _inputs(leaves, tree)
    batch, context = inputs.mask("batch"), inputs.mask("context")
    return levels.regroup(program, [lambda mask: not mask & context, lambda mask: not mask & batch])


def _row(point: dict[str, Any]) -> Row:
    machine, accuracy_of = point["machine"], point["accuracy"]
    return Row(
        model=point["model"],
        machine=dataclasses.replace(machine, imbalance_off=machine.imbalance_off * point["excess"]),
        layout=point["layout"]["layout"],
        skew=point["layout"]["skew"],
        **{f.name: getattr(accuracy_of, f.name) for f in dataclasses.fields(AccuracyTable)},
    )


class Stages:
    """A program as compiled calls, one per level of a point: groups, rows, loads, contexts, points.

    Levels are told apart by their inputs: a configuration's own numbers, the batch, the context. What a level needs
    from those above is passed as arrays; the last axis of every array is rows (or combinations of a group).
    """

    def __init__(self, program: levels.Program, inputs: Inputs, factored: levels.Factored, columns: tuple[str, ...]):
        self.program, self.factored, self.columns = program, factored, columns
        self.of_output = dict(zip(dict.fromkeys(columns), program.outputs, strict=True))
        self.row_mask = inputs.mask(*TABLES)
        self.batch_mask, self.context_mask = inputs.mask("batch"), inputs.mask("context")
        self.batch_input = inputs.of_table["batch"][0]
        self.context_inputs = inputs.of_table["context"]
        self.inputs = inputs
        options = compiler_options()
        self.jit = functools.partial(jax.jit, compiler_options=options) if options else jax.jit
        wide = {a for a in program.outputs if not isinstance(a, levels.Constant)}
        at_point = self._steps(wide, "RBC")
        read = {v for v in (*wide, *program.borders(at_point))}
        self.of_loads = tuple(sorted(v for v in read if self.level(v) == "RB"))
        self.of_contexts = tuple(sorted(v for v in read if self.level(v) == "RC"))
        for variable, terms in factored.rest:
            apart = [a for a in terms if a != variable]
            given = [] if len(apart) < len(terms) else self.of_loads
            steps = self._steps(apart if given else [variable], "RB", given)
            read |= {*program.borders(steps), *(a for a in apart if isinstance(a, int))}
        read |= set(program.borders(self._steps(self.of_contexts, "RC")))
        self.of_rows = tuple(sorted(v for v in read if self.level(v) == "R"))
        top = [n for n in program.needed(self.of_rows) if self._tables(program.steps[n].outputs[0]) == "MKL"]
        self.row_steps = top
        self.of_tables = tuple(
            sorted(
                v for v in {*self.of_rows, *program.borders(top)} if self._tables(v) != "MKL" or program.made_by[v] < 0
            )
        )
        self.places: dict[str, list[int]] = {}  # what fewer than three tables decide, by which tables decide it
        for variable in self.of_tables:
            self.places.setdefault(self._tables(variable), []).append(variable)
        self.made = tuple(v for v in self.of_rows if v not in self.of_tables)
        self.of_group_rows = []
        for group in factored.groups:
            found = [t for _, terms in group.sums for t in terms]
            self.of_group_rows.append(
                tuple(sorted(v for v in self.program.borders(self._steps(found, "RB")) if self.level(v) == "R"))
            )
        self.of_points: dict[str, levels.Atom] = {
            n: a
            for n, a in self.of_output.items()
            if n in (*LIMITS, TIME)
            or (n in POINT_COLUMNS and isinstance(a, int) and self.level(a) not in ("R", "RB", "RC"))
        }
        self.rows = self.jit(self._rows)
        self.group_loads = [self.jit(functools.partial(self._group, i)) for i in range(len(factored.groups))]
        self.loads = self.jit(self._loads)
        self.contexts = self.jit(self._contexts)
        self.points = self.jit(self._points)

    def _tables(self, variable: int) -> str:
        """Which of model, machine and layout a variable of a row depends on: some of the letters MKL."""
        mask, bits = self.program.depends[variable], self.inputs.mask
        model, machine = mask & bits("model", "accuracy", "excess"), mask & bits("machine", "accuracy")
        layout = mask & bits("layout", "excess")
        return "".join(letter for letter, found in zip("MKL", (model, machine, layout), strict=True) if found)

    def level(self, variable: int) -> str:
        """Which of row, batch and context a variable depends on: some of the letters RBC."""
        mask = self.program.depends[variable]
        letters = zip("RBC", (self.row_mask, self.batch_mask, self.context_mask), strict=True)
        return "".join(letter for letter, bits in letters if mask & bits)

    def _steps(self, wanted: Iterable[levels.Atom], level: str, given: Iterable[int] = ()) -> list[int]:
        """Steps of one level that lead to variables; those of batch or context alone are taken again everywhere."""
        mine = {"", "B", "C", "BC", level}

        def stop(mask: int) -> bool:
            letters = zip("RBC", (self.row_mask, self.batch_mask, self.context_mask), strict=True)
            return "".join(letter for letter, bits in letters if mask & bits) not in mine

        return self.program.needed(wanted, given, stop if level != "R" else lambda mask: False)

    def _looked_up(self, tables: dict[str, Any]) -> dict[int, Any]:
        def own(variable: int, value: Any) -> Any:  # tables hold numbers, conditions among them
            return value != 0 if self.program.dtypes[variable] == np.bool_ else value

        return {v: own(v, tables[place][i]) for place, found in self.places.items() for i, v in enumerate(found)}

    def _rows(self, tables: dict[str, Any]) -> list[Any]:
        """What it takes all three tables to decide: each [rows]."""

        def one(values: dict[int, Any]) -> list[Any]:
            return self.program.run(self.row_steps, dict(values), self.made)

        return jax.vmap(one)(self._looked_up(tables)) if self.made else []

    def unpacked(self, at_row: AtRow) -> list[Any]:
        """All that configurations decide, each [rows], in the order of `of_rows`."""
        found = self._looked_up(at_row[0]) | dict(zip(self.made, at_row[1], strict=True))
        return [found[v] for v in self.of_rows]

    def _group(self, number: int, at_row: Sequence[Any], batch: Any) -> list[Any]:
        """Sums of a group's terms for all batches: each [batch, combinations]."""
        group, wanted = self.factored.groups[number], self.of_group_rows[number]
        steps = self._steps([t for _, terms in group.sums for t in terms], "RB")

        def one(values: Sequence[Any], b: Any) -> list[Any]:
            environment = {**dict(zip(wanted, values, strict=True)), self.batch_input: b}
            made = self.program.run(steps, environment, [t for _, terms in group.sums for t in terms])
            sums, at = [], 0
            for _, terms in group.sums:
                sums.append(_added(made[at : at + len(terms)]))
                at += len(terms)
            return sums

        over_rows = jax.vmap(one, in_axes=(0, None))
        return jax.vmap(over_rows, in_axes=(None, 0))(list(at_row), batch)

    def _loads(self, at_row: AtRow, tables: Sequence[Any], batch: Any) -> list[Any]:
        """What configurations and batches decide: each [batch, rows]; sums of groups come as [sums, batch, rows]."""
        looked_up: dict[int, list[Any]] = {}
        for group, sums in zip(self.factored.groups, tables, strict=True):
            for i, (variable, _) in enumerate(group.sums):
                looked_up.setdefault(variable, []).append(sums[i])
        rest = dict(self.factored.rest)

        def one(values: Sequence[Any], found: dict[int, list[Any]], b: Any) -> list[Any]:
            environment = {**dict(zip(self.of_rows, values, strict=True)), self.batch_input: b}
            for variable in self.of_loads:
                terms = [a for a in rest[variable] if a != variable]
                if len(terms) < len(rest[variable]):  # not a sum
                    self.program.run(self._steps([variable], "RB", environment), environment, [])
                    continue
                steps = self._steps(terms, "RB", environment)
                made = self.program.run(steps, environment, terms)
                environment[variable] = _added([*made, *found.get(variable, [])])
            return [environment[v] for v in self.of_loads]

        over_rows = jax.vmap(one, in_axes=(0, 0, None))
        return jax.vmap(over_rows, in_axes=(None, 0, 0))(self.unpacked(at_row), looked_up, batch)

    def _contexts(self, at_row: AtRow, context: Sequence[Any]) -> list[Any]:
        """What configurations and contexts decide: each [context, rows]."""
        steps = self._steps(self.of_contexts, "RC")

        def one(values: Sequence[Any], c: Sequence[Any]) -> list[Any]:
            environment = dict(zip((*self.of_rows, *self.context_inputs), (*values, *c), strict=True))
            return self.program.run(steps, environment, self.of_contexts)

        over_rows = jax.vmap(one, in_axes=(0, None))
        return jax.vmap(over_rows, in_axes=(None, 0))(self.unpacked(at_row), list(context))

    def _points(
        self, at_row: AtRow, at_load: Sequence[Any], at_context: Sequence[Any], batch: Any, context: Any
    ) -> dict[str, Any]:
        """Columns of points: [batch, context, rows]."""
        wanted = self.of_points
        steps = self._steps(wanted.values(), "RBC")

        def one(r: Sequence[Any], x: Sequence[Any], y: Sequence[Any], b: Any, c: Sequence[Any]) -> list[Any]:
            numbers = (*self.of_rows, *self.of_loads, *self.of_contexts, *self.context_inputs)
            environment = dict(zip(numbers, (*r, *x, *y, *c), strict=True)) | {self.batch_input: b}
            return self.program.run(steps, environment, list(wanted.values()))

        over_rows = jax.vmap(one, in_axes=(0, 0, 0, None, None))
        over_contexts = jax.vmap(over_rows, in_axes=(None, None, 0, None, 0))
        over_batches = jax.vmap(over_contexts, in_axes=(None, 0, None, 0, None))
        made = over_batches(self.unpacked(at_row), list(at_load), list(at_context), batch, list(context))
        return dict(zip(wanted, made, strict=True))


def _added(values: Sequence[Any]) -> Any:
    """Their sum, pairwise."""
    while len(values) > 1:
        values = [sum(values[i + 1 : i + 2], values[i]) for i in range(0, len(values), 2)]
    return values[0]


def look_up(table: Any, key: np.ndarray) -> Any:
    """Columns of a table by row: table [entries, width], key [n], result [width, n].

    Whole rows of a table lie together in memory: NumPy copies them several times faster than a compiled gather runs,
    and a gather inside a compiled loop keeps the rest of the loop from being vectorized. On other devices than the
    host the table lies there and so does its gather.
    """
    if isinstance(table, np.ndarray):
        return np.ascontiguousarray(table.take(key, axis=0).T)
    return _device_look_up(table, jnp.asarray(key))


@jax.jit
def _device_look_up(table: Any, key: Any) -> Any:
    return table[key].T


def under(a: Any, b: Any, edges: Any, table: Any) -> Any:
    """Which points lie strictly under the frontier so far.

    table[e] is the best first objective of a frontier point of the same group with at least the point's level and at
    least edges[e] of the second.

    Args:
        a, b: the objectives of points, [batch, context, rows].
        edges, table: [edges, context, rows / k]: one for k rows in a row.
    """
    shape = (*a.shape[:2], edges.shape[2], -1)
    x, y = a.reshape(shape), b.reshape(shape)
    beaten = jnp.zeros(x.shape, dtype=bool)
    for e in range(edges.shape[0]):
        beaten |= (edges[e][None, :, :, None] >= y) & (table[e][None, :, :, None] > x)
    return beaten.reshape(a.shape)


def _points_of(stages: Stages, at: Sequence[Any]) -> dict[str, Any]:
    """Points of a block, with all that leads to them where nothing is shared by contexts: no level is worth storing."""
    at_row, at_load, at_context, batch, context = at
    if len(context[0]) == 1:
        at_load = stages._loads(at_row, at_load, batch)
        at_context = stages._contexts(at_row, context)
    return stages._points(at_row, at_load, at_context, batch, context)


def _counted(keep: Any, good: Any, kept: dict[str, Any], tallied: bool) -> dict[str, Any]:
    """Feasible points of each row, and those that break each limit if asked for."""
    count = functools.partial(jnp.sum, axis=(0, 1), dtype=jnp.int32)
    broken = {name: count(keep & ~holds) for name, holds in kept.items()} if tallied else {}
    return {"feasible": count(good), **broken}


def _filter(
    stages: Stages,
    objectives: tuple[str, str],
    signs: tuple[float, float],
    tallied: bool,
    at: Sequence[Any],
    keep: Any,
    bar: Sequence[Any],
) -> dict[str, Any]:
    """Two objectives of every point, which points may be on the frontier, and counts: see `Engine.filtered`."""
    out = _points_of(stages, at)
    kept = {name: out[name] > 0 for name in LIMITS if name in out}
    good = functools.reduce(jnp.logical_and, kept.values(), keep & jnp.ones_like(kept["fits"]))
    if TIME in out:
        (longest,) = bar
        time = out[TIME]
        shape = (*time.shape[:2], longest.shape[2], -1)
        alive = good & (time.reshape(shape) <= longest[:, :, :, None]).reshape(time.shape)
        return {TIME: time, "alive": alive, **_counted(keep, good, kept, tallied)}
    a, b = (jnp.where(good, out[name] * sign, -jnp.inf) for name, sign in zip(objectives, signs, strict=True))
    return {"a": a, "b": b, "alive": good & ~under(a, b, *bar), **_counted(keep, good, kept, tallied)}


def _collect(alive: Any, values: Sequence[Any]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Places of what is alive and its values, found where they lie, so that little is copied.

    In sizes of powers of two: each is compiled once.
    """
    count = int(jnp.count_nonzero(alive))
    at, *found = _nonzero(alive, values, size=1 << max(count - 1, 0).bit_length())
    return np.asarray(at)[:count].astype(np.int64), [np.asarray(x)[:count] for x in found]


@functools.partial(jax.jit, static_argnames="size")
def _nonzero(alive: Any, values: Sequence[Any], size: int) -> list[Any]:
    (at,) = jnp.nonzero(alive.reshape(-1), size=size, fill_value=0)
    return [at, *(x.reshape(-1)[at] for x in values)]


@functools.cache
def _stages(program: levels.Program, inputs: Inputs, factored: levels.Factored, columns: tuple[str, ...]) -> Stages:
    """The calls of this process: grids of one shape share what was compiled for them."""
    return Stages(program, inputs, factored, columns)


@functools.cache
def _filter_call(stages: Stages, objectives: tuple[str, str], signs: tuple[float, float], tallied: bool) -> Any:
    return stages.jit(functools.partial(_filter, stages, objectives, signs, tallied))


@functools.cache
def _timed(program: levels.Program, time: int) -> levels.Program:
    """A program whose first two outputs, both decided by a time, are that time."""
    return dataclasses.replace(program, outputs=(time, *program.outputs[2:]))


ROW_COLUMNS, CONTEXT_COLUMNS, POINT_COLUMNS = (
    tuple(f.name for f in dataclasses.fields(cost)) for cost in (RowCost, ContextCost, PointCost)
)
SHARED_BYTES = 192 << 20  # of what is evaluated once per combination; a larger grid takes its models in turns
GROUP_ROWS = 1 << 14  # combinations evaluated at a time


@dataclass(frozen=True)
class Shared:
    """What rows share, evaluated for a range of models; rows find theirs by `look_up`."""

    models: tuple[int, int]
    rows: dict[str, Any]  # terms that fewer than three tables decide, by which of them: [combinations, terms]
    sums: list[Any]  # of each group: [combinations, sums x batch]
    labels: list[tuple[np.ndarray, np.ndarray, np.ndarray]]  # of each group: model's, machine's and layout's own number
    sizes: list[tuple[int, int]]  # of each group: machines' and layouts' combinations


class Labels:
    """Which combination of some columns each entry of a table has."""

    def __init__(self, columns: dict[int, np.ndarray]):
        self.columns = columns  # by input
        self._same: dict[int, int] = {}  # columns that tell the same entries apart count once, constant ones not at all
        self._ranks: dict[int, np.ndarray] = {}
        seen: dict[bytes, int] = {}
        for i, column in columns.items():
            rank = np.unique(np.asarray(column), return_inverse=True)[1]
            if rank.any():
                first = np.unique(rank, return_index=True)[1]
                rank = np.argsort(np.argsort(first))[rank]  # numbered in order of appearance
                self._same[i] = seen.setdefault(rank.tobytes(), i)
                self._ranks[i] = rank
        self._size = len(next(iter(columns.values())))
        self._known: dict[Any, tuple[np.ndarray, np.ndarray]] = {}

    def __call__(self, inputs: Iterable[int], part: slice = slice(None)) -> tuple[np.ndarray, np.ndarray]:
        """Number of each entry's combination, and an entry that has it."""
        own = tuple(sorted({self._same[i] for i in inputs if i in self._same}))
        key = (own, part.start, part.stop)
        if key not in self._known:
            number, bound = np.zeros(self._size, dtype=np.int64)[part], 1
            for i in own:
                rank = self._ranks[i]
                bound *= int(rank.max()) + 1
                number = number * (int(rank.max()) + 1) + rank[part]
                if bound > 1 << 40:
                    number = np.unique(number, return_inverse=True)[1]
                    bound = len(number)
            _, first, number = np.unique(number, return_index=True, return_inverse=True)
            self._known[key] = number, first
        return self._known[key]


Method = TypeVar("Method", bound=Callable[..., Any])


def _precise(method: Method) -> Method:
    """A method of the engine, in the engine's precision whoever calls it."""

    @functools.wraps(method)
    def own(self: Engine, *args: Any, **kwargs: Any) -> Any:
        with precision(self.float64):
            return method(self, *args, **kwargs)

    return own  # type: ignore[return-value]


_EVERYWHERE = PartitionSpec()  # a copy on each device


class Engine:
    """Evaluates rows of a grid, in float32 or, where the study asks for it, in float64.

    Rows are divided among the devices of this process, or those given: terms of rows, and whatever follows from them,
    lie where their rows do. No device needs another's rows; only counts are summed over all of them.
    """

    def __init__(self, space: Space, study: Study, devices: Sequence[jax.Device] | None = None):
        tune_allocator()
        self.space = space
        found = jax.local_devices() if devices is None else devices
        self.n_devices = len(found)
        self._mesh = Mesh(np.array(found), ("rows",)) if len(found) > 1 else None
        self.on_host = jax.default_backend() == "cpu"
        self.float64 = study.float64
        self.dtype = np.float64 if study.float64 else np.float32
        self._build(study)

    @_precise
    def _build(self, study: Study) -> None:
        """Tables of the grid, in the engine's precision."""
        space = self.space
        spread = excess_of(space)

        def as_table(x: Any) -> np.ndarray:
            array = np.asarray(x)
            return array if array.dtype == np.int32 else array.astype(self.dtype)

        self.tables = jax.tree.map(
            as_table,
            Tables(
                model=space.model,
                machine=machine_arrays(space),
                layout=space.layout,
                skew=space.skew,
                accuracy=accuracy_table(space, study),
                excess=spread.excess,
                excess_of_model=spread.of_model,
                excess_of_layout=spread.of_layout,
            ),
        )
        self.given = np.isfinite(space.batch)  # the others are as many as fit
        self.batch = jnp.asarray(space.batch[self.given], dtype=self.dtype)
        self.context = jax.tree.map(as_table, space.context)
        self.limited = bool(np.isfinite(np.asarray(space.context.ttft_max_s)).any())
        self.mixed = bool((np.asarray(space.context.mixed) > 0).any())
        self.cut = self.limited or bool(np.isfinite(np.asarray(space.context.tpot_max_s)).any())
        self._lay_out()
        self._shared: dict[Stages, Shared] = {}
        self._turns: dict[Stages, list[tuple[int, int]]] = {}
        self._factored: dict[levels.Program, levels.Factored] = {}
        self._filters: dict[Any, Stages] = {}

    def _lay_out(self) -> None:
        """The inputs of a point as columns of tables, on the host and on the device."""
        t = self.tables
        shape = (self.space.n_models, len(self.space.machines))
        point = {
            "model": t.model,
            "machine": t.machine,
            "layout": {"layout": t.layout, "skew": t.skew},
            "accuracy": jax.tree.map(lambda x: x.reshape(shape), t.accuracy),
            "excess": t.excess,
            "batch": np.asarray(self.batch),
            "context": self.context,
        }
        found, self._tree = jax.tree_util.tree_flatten_with_path(point)
        self.inputs = _inputs(tuple((path[0].key, jax.tree_util.keystr(path[1:])) for path, _ in found), self._tree)
        columns = {i: column for i, (_, column) in enumerate(found)}
        of = self.inputs.of_table
        self._labels = {name: Labels({i: columns[i] for i in of[name]}) for name in ("model", "machine", "layout")}
        (excess,) = of["excess"]  # of a model and a layout: of which kinds they are
        for name, kind in (("model", t.excess_of_model), ("layout", t.excess_of_layout)):
            self._labels[name] = Labels({**self._labels[name].columns, excess: kind})
        columns[excess] = t.excess[t.excess_of_model][:, t.excess_of_layout]
        self._columns = columns
        self._context = [jnp.asarray(columns[i]) for i in of["context"]]

    # what the grid shares

    @_precise
    def stages(self, kinds: Kinds, columns: Sequence[str], *, prefill: bool) -> Stages:
        """The compiled calls that lead to some columns."""
        names = tuple(columns)
        program = self._recorded(kinds, names, prefill=prefill)
        return _stages(program, self.inputs, self._factor(program, names), names)

    def _recorded(self, kinds: Kinds, names: tuple[str, ...], *, prefill: bool) -> levels.Program:
        """The program of some columns; regrouped where it pays: sums that contexts or batches alone decide."""
        regrouped = self.space.n_contexts > 1 and not kinds.causes
        return _program(self._tree, self.inputs.leaves, np.dtype(self.dtype), kinds, prefill, names, regrouped)

    def _factor(self, program: levels.Program, names: tuple[str, ...]) -> levels.Factored:
        if program in self._factored:
            return self._factored[program]
        plain = Stages(program, self.inputs, levels.Factored(groups=(), rest=()), names)
        row, batch, context = plain.row_mask, plain.batch_mask, plain.context_mask

        def wide(mask: int) -> bool:
            return bool(mask & row and mask & batch) and not mask & context

        rows = float(max(self.space.n_rows, 1))
        self._factored[program] = levels.factor(program, plain.of_loads, wide=wide, count=self.count, rows=rows)
        return self._factored[program]

    def count(self, depends: int) -> float:
        """Combinations of inputs that occur in the grid."""
        sizes = [len(first) for _, first in self._combinations(depends)]
        return float(sizes[0] * sizes[1] * sizes[2])

    def _combinations(self, depends: int, part: slice = slice(None)) -> list[tuple[np.ndarray, np.ndarray]]:
        found = []
        for name in ("model", "machine", "layout"):
            labels = self._labels[name]
            own = (i for i in labels.columns if depends >> i & 1)
            found.append(labels(own, part if name == "model" else slice(None)))
        return found

    def _on_host(
        self,
        program: levels.Program,
        wanted: Sequence[int],
        chosen: tuple[np.ndarray, np.ndarray, np.ndarray],
        *,
        batch: bool = False,
    ) -> list[np.ndarray]:
        """Variables of rows for all combinations of some models, machines and layouts: [m or 1, k or 1, l or 1].

        batch: variables of batches too; one more axis.
        """
        models, machines, layouts = chosen
        pick = {
            "model": lambda c: c[models][:, None, None],
            "machine": lambda c: c[machines][None, :, None],
            "layout": lambda c: c[layouts][None, None, :],
            "accuracy": lambda c: c[models][:, machines][:, :, None],
            "excess": lambda c: c[models][:, layouts][:, None, :],
            "batch": lambda c: c,
        }
        steps = program.needed(wanted)
        inputs = {v for v in (*wanted, *program.borders(steps)) if program.made_by[v] < 0}
        environment = {i: pick[self.inputs.leaves[i][0]](self._columns[i]) for i in inputs}
        if batch:
            rows = self.inputs.mask(*TABLES)
            environment = {i: x[..., None] if rows >> i & 1 else x for i, x in environment.items()}
        program.on_host(steps, environment)
        return [environment[v] for v in wanted]

    @_precise
    def turns(self, stages: Stages) -> list[tuple[int, int]]:
        """Ranges of models whose shared terms fit in memory together."""
        if stages not in self._turns:
            self._turns[stages] = self._divide(stages)
        return self._turns[stages]

    def _divide(self, stages: Stages) -> list[tuple[int, int]]:
        n = self.space.n_models
        itemsize = np.dtype(self.dtype).itemsize
        sums = sum(self.count(g.depends) * len(g.sums) * len(self.batch) for g in stages.factored.groups)
        sizes = {"M": n, "K": len(self.space.machines), "L": self.space.n_layouts}
        tables = sum(math.prod(sizes[x] for x in place) * len(found) for place, found in stages.places.items())
        total = (sums + tables) * itemsize
        turns = int(min(max(-(-total // SHARED_BYTES), 1), n))
        edges = np.linspace(0, n, turns + 1).astype(int)
        return [(int(a), int(b)) for a, b in itertools.pairwise(edges)]

    @_precise
    def shared(self, stages: Stages, models: tuple[int, int]) -> Shared:
        """Evaluate what rows share, for a range of models; the last range is remembered."""
        last = self._shared.get(stages)
        if last is not None and last.models == models:
            return last
        self._shared.pop(stages, None)
        part = slice(*models)
        everything = (np.arange(*models), np.arange(len(self.space.machines)), np.arange(self.space.n_layouts))
        rows = {}
        for place, variables in stages.places.items():
            shape = [len(c) if x in place else 1 for x, c in zip("MKL", everything, strict=True)]
            table = np.empty((math.prod(shape), len(variables)), dtype=self.dtype)
            for i, value in enumerate(self._on_host(stages.program, variables, everything)):
                table[:, i] = np.broadcast_to(value, shape).reshape(-1)
            rows[place] = self._kept(table)
        sums, labels, sizes = [], [], []
        for number, group in enumerate(stages.factored.groups):
            (of_model, m), (of_machine, k), (of_layout, x) = self._combinations(group.depends, part)
            sums.append(self._kept(self._group_table(stages, number, (models[0] + m, k, x))))
            labels.append((of_model, of_machine, of_layout))
            sizes.append((len(k), len(x)))
        self._shared[stages] = Shared(models, rows, sums, labels, sizes)
        return self._shared[stages]

    def forget(self) -> None:
        """Give up what rows share: the memory is wanted for something else, and it can be made again."""
        self._shared.clear()

    def _kept(self, table: np.ndarray) -> Any:
        """A table where it is looked up."""
        if self.on_host:
            return table
        return (
            jnp.asarray(table) if self._mesh is None else jax.device_put(table, NamedSharding(self._mesh, _EVERYWHERE))
        )

    def _divided(self, x: Any) -> Any:
        """An array [..., rows] with its rows divided among the devices, if they can be divided evenly."""
        if self._mesh is None or x.shape[-1] % self.n_devices:
            return x
        return jax.device_put(x, NamedSharding(self._mesh, PartitionSpec(*[None] * (x.ndim - 1), "rows")))

    def _look_up(self, table: Any, key: np.ndarray) -> Any:
        """`look_up` where rows lie."""
        if self.on_host:
            return self._divided(look_up(table, key))
        return look_up(table, self._divided(key))

    def _group_table(
        self, stages: Stages, number: int, chosen: tuple[np.ndarray, np.ndarray, np.ndarray]
    ) -> np.ndarray:
        """Sums of a group for all combinations of some models, machines and layouts: [combinations, sums x batch]."""
        models, machines, layouts = chosen
        per_model = len(machines) * len(layouts)
        block = min(max(GROUP_ROWS // per_model, 1), len(models))
        n_sums = len(stages.factored.groups[number].sums)
        table = np.empty((len(models) * per_model, n_sums * len(self.batch)), dtype=self.dtype)
        shape = (block, len(machines), len(layouts))
        pending: list[tuple[int, list[Any]]] = []

        def finish() -> None:
            start, sums = pending.pop(0)
            for i, value in enumerate(sums):
                part = table[start : start + block * per_model, i * len(self.batch) : (i + 1) * len(self.batch)]
                part[:] = np.asarray(value).T[: len(part)]

        for start in range(0, len(models), block):
            some = models[np.minimum(np.arange(start, start + block), len(models) - 1)]  # of one size: compiled once
            values = self._on_host(stages.program, stages.of_group_rows[number], (some, machines, layouts))
            flat = [np.broadcast_to(v, shape).reshape(-1) for v in values]
            pending.append((start * per_model, stages.group_loads[number](flat, self.batch)))
            if len(pending) > 1:
                finish()
        while pending:
            finish()
        return table

    # rows

    @_precise
    def rows(self, rows: np.ndarray, kinds: Kinds, columns: Sequence[str]) -> dict[str, np.ndarray]:
        """Columns that configurations alone decide: [rows]."""
        stages = self.stages(kinds, columns, prefill=False)
        _, _, at_row = self._at_row(stages, rows)
        found = dict(zip(stages.of_rows, stages.unpacked(at_row), strict=True))
        return {name: np.asarray(found[a]) for name, a in stages.of_output.items() if isinstance(a, int)}

    def _at_row(self, stages: Stages, rows: np.ndarray) -> tuple[Shared, tuple[np.ndarray, ...], AtRow]:
        shared = self.shared(stages, self._turn(stages, rows))
        i_model, i_machine, i_layout = self.space.indices(rows)
        index = (i_model - shared.models[0], i_machine, i_layout)
        sizes = (shared.models[1] - shared.models[0], len(self.space.machines), self.space.n_layouts)
        found = {}
        for place, table in shared.rows.items():
            key = np.zeros(len(rows), dtype=np.int32)
            for letter, i, size in zip("MKL", index, sizes, strict=True):
                if letter in place:
                    key = key * size + i
            found[place] = self._look_up(table, key)
        return shared, index, (found, stages.rows(found))

    def _levels(self, stages: Stages, rows: np.ndarray, *, fused: bool = False) -> tuple[Any, Any, Any, Any, Any]:
        """What a block of points is made from: terms of rows, loads and contexts; batches and contexts.

        fused: sums of groups instead of loads, nothing of contexts, for a call that makes its own.
        """
        shared, index, at_row = self._at_row(stages, rows)
        sums = []
        for table, labels, (machines, layouts) in zip(shared.sums, shared.labels, shared.sizes, strict=True):
            of_model, of_machine, of_layout = (label[i] for label, i in zip(labels, index, strict=True))
            found = self._look_up(table, (of_model * machines + of_machine) * layouts + of_layout)
            sums.append(found.reshape(-1, len(self.batch), len(rows)))
        return self._below(stages, at_row, sums, fused=fused)

    def _below(self, stages: Stages, at_row: AtRow, sums: list[Any], *, fused: bool) -> tuple[Any, Any, Any, Any, Any]:
        if fused:
            return at_row, sums, [], self.batch, self._context
        at_load = stages.loads(at_row, sums, self.batch)
        return at_row, at_load, stages.contexts(at_row, self._context), self.batch, self._context

    def _turn(self, stages: Stages, rows: np.ndarray) -> tuple[int, int]:
        per_model = len(self.space.machines) * self.space.n_layouts
        first, last = int(rows.min()) // per_model, int(rows.max()) // per_model
        for models in self.turns(stages):
            if models[0] <= first < models[1]:
                return models if last < models[1] else (first, last + 1)
        raise IndexError(f"row {int(rows.min())} of {self.space.n_rows}")

    @_precise
    def full(
        self, rows: np.ndarray, kinds: Kinds, columns: Sequence[str]
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """All that was asked for: per row [R], per row and context [C, R], per point [B, C, R].

        What fewer levels decide than its place allows has length 1 along the others.
        """
        prefill = self.limited or self.mixed or bool(PREFILL_COLUMNS & set(columns))
        limits = self._limits(kinds)
        kinds = dataclasses.replace(kinds, causes=bool(CAUSES & set(columns)))
        names = tuple(
            dict.fromkeys(
                (*(n for n in columns if n in (*ROW_COLUMNS, *CONTEXT_COLUMNS, *POINT_COLUMNS)), *limits, "max_batch")
            )
        )
        shared = names if self.given.any() else tuple(n for n in names if n not in POINT_COLUMNS)
        stages = self.stages(kinds, shared, prefill=prefill)
        at = self._levels(stages, rows)
        at_row = dict(zip(stages.of_rows, stages.unpacked(at[0]), strict=True))
        at_load = dict(zip(stages.of_loads, at[1], strict=True))
        at_context = dict(zip(stages.of_contexts, at[2], strict=True))
        points = dict(stages.points(*at)) if stages.of_points else {}
        outputs = stages.of_output

        def lower(atom: levels.Atom, axes: int) -> Any:
            """An output that is no point's: [R], [C, R] or [B, 1, R]."""
            if isinstance(atom, levels.Constant):
                return np.full((1,) * axes, atom.value)
            for level in (at_row, at_context, at_load):
                if atom in level:
                    value = level[atom]
                    if level is at_load:
                        return value[:, None, :]
                    return value.reshape((1,) * (axes - value.ndim) + value.shape)
            raise KeyError(atom)

        of_rows = {n: lower(outputs[n], 1) for n in ROW_COLUMNS if n in outputs}
        of_contexts = {n: lower(outputs[n], 2) for n in CONTEXT_COLUMNS if n in outputs and n not in POINT_COLUMNS}
        wanted = [n for n in POINT_COLUMNS if n in names]
        points |= {n: lower(outputs[n], 3) for n in wanted if n in outputs and n not in points}
        if not self.given.all():
            own = self._largest(rows, of_contexts["max_batch"], kinds, tuple(wanted))
            points = {name: self._joined(points.get(name), own[name]) for name in (*wanted, "batch")}
        return of_rows, of_contexts, points

    def _limits(self, kinds: Kinds) -> tuple[str, ...]:
        return LIMITS if kinds.paced else LIMITS[:2]

    def _joined(self, given: Any, own: Any) -> Any:
        """[batch, context, row] from what the batches of the grid gave and what the largest ones did."""
        if given is None:  # the batch itself, or no batch but the largest
            given = np.asarray(self.batch)[:, None, None]
        out = np.empty((len(self.given), *np.shape(own)), dtype=np.asarray(own).dtype)
        out[self.given], out[~self.given] = given, own
        return out

    def _largest(self, rows: np.ndarray, most: Any, kinds: Kinds, columns: tuple[str, ...]) -> dict[str, Any]:
        """Points of the largest batch that fits and keeps the limits: [context, row], and that batch."""
        point, limits = self._point(rows), self._limits(kinds)

        def at(batch: Any, columns: tuple[str, ...]) -> dict[str, Any]:
            found: dict[str, Any] = _own_call(kinds, columns)(point, np.asarray(batch, self.dtype), self.context)
            return found

        def holds(batch: np.ndarray) -> Any:
            found = at(batch, limits)
            return np.logical_and.reduce([np.asarray(found[name]) > 0 for name in limits])

        batch = largest_batch(np.broadcast_to(most, (self.space.n_contexts, len(rows))), holds)
        return {**at(batch, columns), "batch": batch.astype(self.dtype)}

    @_precise
    def filtered(
        self,
        rows: np.ndarray,
        kinds: Kinds,
        *,
        objectives: tuple[str, str],
        signs: tuple[float, float],
        keep: np.ndarray,
        bar: Sequence[np.ndarray],
    ) -> dict[str, Any]:
        """What may be on the frontier among the points of a block, [batch, context, rows].

        Args:
            keep: which points are asked for, [batch or 1, context or 1, rows].
            bar: what points are compared with, [..., runs of rows]: see `sweep.bar`.
        Returns: `alive`; `time`, or the objectives `a` and `b`; by row `feasible` and, where limits of times are set,
        how many points break each.
        """
        stages = self.filter_stages(kinds, objectives, signs)
        at = self._levels(stages, rows, fused=self.space.n_contexts == 1)
        keep, *bar = (self._divided(x) for x in (keep, *bar))
        result: dict[str, Any] = _filter_call(stages, objectives, signs, self.cut)(at, keep, bar)
        return result

    @_precise
    def warm(
        self,
        kinds: Kinds,
        *,
        objectives: tuple[str, str],
        signs: tuple[float, float],
        keep: np.ndarray,
        bar: Sequence[np.ndarray],
    ) -> None:
        """Compile what `filtered` calls, on zeros: what rows share can be evaluated meanwhile."""
        stages, n = self.filter_stages(kinds, objectives, signs), keep.shape[-1]

        def zeros(*shape: int) -> Any:
            return self._divided(self._kept(np.zeros((*shape, n), dtype=self.dtype)))

        found = {place: zeros(len(variables)) for place, variables in stages.places.items()}
        at_row = (found, stages.rows(found))
        sums = [zeros(len(group.sums), len(self.batch)) for group in stages.factored.groups]
        at = self._below(stages, at_row, sums, fused=self.space.n_contexts == 1)
        keep, *bar = (self._divided(x) for x in (keep, *bar))
        jax.block_until_ready(_filter_call(stages, objectives, signs, self.cut)(at, keep, bar))

    @_precise
    def ready(self, kinds: Kinds, objectives: tuple[str, str], signs: tuple[float, float], row: int) -> None:
        """Evaluate what the rows of a row's range of models share."""
        stages = self.filter_stages(kinds, objectives, signs)
        self.shared(stages, self._turn(stages, np.array([row])))

    def collected(self, out: dict[str, Any]) -> tuple[np.ndarray, list[np.ndarray]]:
        """What is alive of a filtered block: places in the flat block, and the values that came with it."""
        names = [n for n in (TIME, "a", "b") if n in out]
        if self.on_host:
            at = np.flatnonzero(np.asarray(out["alive"]))
            return at, [np.asarray(out[n]).reshape(-1)[at] for n in names]
        return _collect(out["alive"], [out[n] for n in names])

    @_precise
    def filter_stages(self, kinds: Kinds, objectives: tuple[str, str], signs: tuple[float, float]) -> Stages:
        """The calls that `filtered` makes."""
        key = (kinds, objectives, signs)
        if key not in self._filters:
            self._filters[key] = self._filter_stages(*key)
        return self._filters[key]

    def _filter_stages(self, kinds: Kinds, objectives: tuple[str, str], signs: tuple[float, float]) -> Stages:
        program, names = self._filter_program(kinds, objectives)
        time = self._time(program, signs)
        if time is not None:
            program, names = _timed(program, time), (TIME, *names[2:])
        return _stages(program, self.inputs, self._factor(program, names), names)

    def _filter_program(self, kinds: Kinds, objectives: tuple[str, str]) -> tuple[levels.Program, tuple[str, ...]]:
        prefill = self.limited or self.mixed or bool(PREFILL_COLUMNS & set(objectives))
        names = (*objectives, *self._limits(kinds))
        whole = dataclasses.replace(kinds, causes=False)
        return self._recorded(whole, names, prefill=prefill), names

    def _time(self, program: levels.Program, signs: tuple[float, float]) -> int | None:
        """The variable that decides both objectives, faster is better, together with configuration and batch alone."""
        parts = [self._parts(program, atom) for atom in program.outputs[:2]]
        times = {tuple((a, power * sign) for a, power in wide) for (wide, _), sign in zip(parts, signs, strict=True)}
        if len(times) != 1 or any(program.of(a) & self.inputs.mask("context") for _, own in parts for a, _ in own):
            return None
        wide = times.pop()
        return wide[0][0] if len(wide) == 1 and wide[0][1] == -1 and isinstance(wide[0][0], int) else None

    def _parts(
        self, program: levels.Program, atom: levels.Atom
    ) -> tuple[list[tuple[levels.Atom, int]], list[tuple[levels.Atom, int]]]:
        """Factors of an objective that configuration, batch and context decide together, and its others."""
        levels_of = [self.inputs.mask(*TABLES), self.inputs.mask("batch"), self.inputs.mask("context")]

        def wide(variable: levels.Atom) -> bool:
            return all(program.of(variable) & mask for mask in levels_of)

        found = levels.factors(program, atom, wide)
        return [f for f in found if wide(f[0])], [f for f in found if not wide(f[0])]

    @_precise
    def trade(self, kinds: Kinds, objectives: tuple[str, str], signs: tuple[float, float]) -> Trade | None:
        """How two objectives hang on one time, or None where they do not."""
        program, _ = self._filter_program(kinds, objectives)
        if self._time(program, signs) is None:
            return None
        others = [self._parts(program, atom)[1] for atom in program.outputs[:2]]
        depends = 0
        for atom, _ in itertools.chain(*others):
            depends |= program.of(atom)
        (of_model, m), (of_machine, k), (of_layout, x) = self._combinations(depends & self.inputs.mask(*TABLES))
        n_classes = len(m) * len(k) * len(x)
        factors = []
        for own, sign in zip(others, signs, strict=True):
            total = np.ones((n_classes, len(self.batch)))
            variables = [a for a, _ in own if isinstance(a, int)]
            values = dict(zip(variables, self._on_host(program, variables, (m, k, x), batch=True), strict=True))
            for atom, power in own:
                value = values[atom] if isinstance(atom, int) else np.asarray(atom.value)
                exact = np.broadcast_to(value, (len(m), len(k), len(x), len(self.batch))).astype(np.float64)
                total = total * exact.reshape(total.shape) ** (power * sign)
            factors.append(total)
        distinct, number = np.unique(np.concatenate(factors, axis=1), axis=0, return_inverse=True)
        first, second = np.split(distinct, 2, axis=1)
        return Trade(
            of_model=of_model,
            of_machine=of_machine,
            of_layout=of_layout,
            number=number.reshape(len(m), len(k), len(x)),
            first=first,
            second=second,
            costs=(signs[0] < 0, signs[1] < 0),
        )

    def _point(self, rows: np.ndarray) -> dict[str, Any]:
        """The numbers of configurations, by table: each [rows]."""
        i_model, i_machine, i_layout = self.space.indices(rows)

        def take(table: Any, at: np.ndarray) -> Any:
            return jax.tree.map(lambda column: column[at], table)

        t = self.tables
        return {
            "model": take(t.model, i_model),
            "machine": take(t.machine, i_machine),
            "layout": {"layout": take(t.layout, i_layout), "skew": t.skew[i_layout]},
            "accuracy": take(t.accuracy, i_model * len(self.space.machines) + i_machine),
            "excess": t.excess[t.excess_of_model[i_model], t.excess_of_layout[i_layout]],
        }

    def plain(
        self, rows: np.ndarray, i_batch: np.ndarray, i_context: np.ndarray, kinds: Kinds
    ) -> dict[str, np.ndarray]:
        """All columns of single points by NumPy, a point an element, nothing shared and nothing compiled.

        `batch` is among them: where the grid asks for as many as fit, it is that number.
        """
        point = self._point(rows)
        context = jax.tree.map(lambda column: column[i_context], self.context)
        batch = self.space.batch[i_batch].astype(self.dtype)

        def at(batch: np.ndarray) -> dict[str, Any]:
            with namespace(np), np.errstate(all="ignore"):
                found = evaluate_point(_row(point), batch, context, kinds)
            return {f.name: getattr(part, f.name) for part in found for f in dataclasses.fields(part)}

        open_ = ~np.isfinite(batch)
        if open_.any():

            def holds(sized: np.ndarray) -> Any:
                found = at(np.where(open_, sized, batch).astype(self.dtype))
                return np.logical_and.reduce([found[name] > 0 for name in self._limits(kinds)])

            most = np.broadcast_to(at(np.where(open_, 1.0, batch).astype(self.dtype))["max_batch"], rows.shape)
            batch = np.where(open_, largest_batch(most, holds), batch).astype(self.dtype)
        return {name: np.broadcast_to(value, rows.shape) for name, value in {**at(batch), "batch": batch}.items()}


@functools.cache
def _own_call(kinds: Kinds, columns: tuple[str, ...]) -> Any:
    """Points with a batch of their own: [context, row]."""

    def one(point: dict[str, Any], batch: Any, context: Context) -> dict[str, Any]:
        found = evaluate_point(_row(point), batch, context, kinds)
        merged = {f.name: getattr(part, f.name) for part in found for f in dataclasses.fields(part)}
        return {name: merged[name] for name in columns}

    over_rows = jax.vmap(one, in_axes=(0, 0, None))
    return jax.jit(jax.vmap(over_rows, in_axes=(None, 0, 0)), compiler_options=compiler_options())


@functools.cache
def _inputs(leaves: tuple[Leaf, ...], tree: Any) -> Inputs:
    return Inputs(leaves=leaves, tree=tree)
