"""The cost model over blocks of points: nested vmaps over configurations, batch and context, in one place.

Batching happens in four calls, because each level of a point decides its own terms: a configuration decides weights
and accuracy, with a batch it decides every kernel but attention, with a context memory and prefill, and only then
come attention and the sums. Each call is a `jax.vmap` of a function of one point from `sweep.cost`; handing the terms
of one level to the next keeps the compiler from computing them again for every context.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sweep import accuracy
from sweep.columns import BY_NAME
from sweep.config import Study, as_record
from sweep.cost.memory import count_params
from sweep.cost.ops import Parts
from sweep.cost.result import ContextCost, PointCost, RowCost, context_cost, load_cost, point_cost, row_cost
from sweep.cost.step import Load, LoadStep, Row
from sweep.imbalance import Unbalanced, unbalanced
from sweep.largest import largest_batch
from sweep.machine import Machine
from sweep.measured import measured
from sweep.point import Context, Kinds, Layout, Model
from sweep.space import Space, machine_arrays


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


PREFILL_COLUMNS = {"ttft_s", "request_s", "prefill_req_s", "kv_transfer_s"}  # need the prefill


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


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Index:
    """Table indices of rows."""

    model: Any
    machine: Any
    layout: Any
    accuracy: Any


def excess_of(space: Space) -> Unbalanced:
    """How far the slowest GPU of layouts without expert balancing exceeds the mean, per model and layout."""
    m, x = space.model, space.layout
    return unbalanced(m.n_experts, m.top_k, x.ep, space.skew, x.balanced)


_proxy = jax.jit(jax.vmap(accuracy.loss, in_axes=(0, None)))


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
    params = count_params(jax.tree.map(np.asarray, space.model))
    found = []
    for record in space.precision:
        d8, dkv = accuracy.penalties(as_record(record), qat=settings.qat)
        shape = accuracy.shape_of(space.model, params.touched, params.total, d8=d8, dkv=dkv)
        found.append(jax.tree.map(lambda x: jnp.broadcast_to(jnp.asarray(x, jnp.float32), (space.n_models,)), shape))
    return found


def accuracy_table(space: Space, study: Study) -> AccuracyTable:
    """The accuracy proxy for every model x machine pair of a grid (machines differ in precision alone here).

    Where a table of measured losses speaks of a model, its loss stands in place of the law's.
    """
    law = accuracy.law_of(study.accuracy)
    columns = [[_proxy(shape, law)] for shape in shapes(space, study.accuracy)]
    return _tables(space, study, [law], columns)[0]


def accuracy_tables(space: Space, study: Study, settings: Sequence[accuracy.AccuracyConfig]) -> list[AccuracyTable]:
    """The same under other laws, whose formats and measured losses are those of the study."""
    laws = [accuracy.law_of(s) for s in settings]
    if not laws:
        return []
    return _tables(space, study, laws, [_proxies()(shape, laws) for shape in shapes(space, study.accuracy)])


def _tables(
    space: Space, study: Study, laws: Sequence[accuracy.Law], columns: list[list[accuracy.Proxy]]
) -> list[AccuracyTable]:
    """Tables from the columns [precision][law] of the proxies."""
    table = measured(space, study.accuracy)
    if table is not None:
        for i, shape in enumerate(shapes(space, study.accuracy)):
            narrow = jnp.asarray(np.where(table.in_format[:, i], 0.0, 1.0), jnp.float32)
            own = dataclasses.replace(shape, d8=shape.d8 * narrow, dkv=shape.dkv * narrow)
            nats = jnp.asarray(np.nan_to_num(table.loss[:, i], nan=1.0), jnp.float32)
            sigma, known = jnp.asarray(table.sigma[:, i], jnp.float32), jnp.asarray(table.known[:, i])
            for j, law in enumerate(laws):
                taken = _measured(nats, sigma, own, law)
                columns[i][j] = jax.tree.map(lambda a, b, known=known: jnp.where(known, a, b), taken, columns[i][j])
    at = precision_of(space)

    def stack(name: str, j: int) -> Any:
        by_precision = np.stack([np.asarray(getattr(c[j], name), dtype=np.float32) for c in columns], axis=1)
        return by_precision[:, at].reshape(-1)

    names = [f.name for f in dataclasses.fields(AccuracyTable)]
    return [AccuracyTable(**{name: stack(name, j) for name in names}) for j in range(len(laws))]


def precision_of(space: Space) -> list[int]:
    """Index of the precision of each machine of a grid."""
    n = len(space.precision)
    return [(i // (len(space.machines) // (len(space.hardware) * n))) % n for i in range(len(space.machines))]


def _take(tables: Tables, index: Index) -> Row:
    def rows(table: Any, at: Any) -> Any:
        return jax.tree.map(lambda column: column[at], table)

    a = rows(tables.accuracy, index.accuracy)
    machine = rows(tables.machine, index.machine)
    excess = tables.excess[tables.excess_of_model[index.model], tables.excess_of_layout[index.layout]]
    return Row(
        model=rows(tables.model, index.model),
        machine=dataclasses.replace(machine, imbalance_off=machine.imbalance_off * excess),
        layout=rows(tables.layout, index.layout),
        skew=tables.skew[index.layout],
        accuracy=a.accuracy,
        loss=a.loss,
        loss_sigma=a.loss_sigma,
        accuracy_low=a.accuracy_low,
        accuracy_high=a.accuracy_high,
        extrapolation=a.extrapolation,
    )


def _sums(step: LoadStep) -> LoadStep:
    """A step with its causes merged: what the rates need, and a sixth of the memory."""

    def merged(parts: Parts) -> Parts:
        return Parts(latency_s=parts.total_s)

    return LoadStep(
        layers=merged(step.layers),
        comm=merged(step.comm),
        exchange=merged(step.exchange),
        head=merged(step.head),
        hop=merged(step.hop),
    )


def _kept(step: LoadStep) -> dict[str, Any]:
    """The arrays of a step: what is a plain zero is not stored."""
    out: dict[str, Any] = {}
    for f in dataclasses.fields(step):
        parts = getattr(step, f.name)
        for g in dataclasses.fields(parts):
            value = getattr(parts, g.name)
            if isinstance(value, jax.Array):
                out[f"{f.name}.{g.name}"] = value
    return out


def _restored(kept: dict[str, Any]) -> LoadStep:
    groups: dict[str, dict[str, Any]] = {f.name: {} for f in dataclasses.fields(LoadStep)}
    for key, value in kept.items():
        group, name = key.split(".")
        groups[group][name] = value
    return LoadStep(**{g: Parts(**values) for g, values in groups.items()})


def _row_stage(tables: Tables, index: Index) -> RowCost:
    return jax.vmap(row_cost)(_take(tables, index))


def _load_stage(tables: Tables, index: Index, batch: Any, kinds: Kinds) -> dict[str, dict[str, Any]]:
    def one(row: Row, b: Any) -> dict[str, dict[str, Any]]:
        load = load_cost(row, b, kinds)
        return {"step": _kept(load.step), "plain": _kept(load.plain)}

    return jax.vmap(jax.vmap(one, in_axes=(0, None)), in_axes=(None, 0))(_take(tables, index), batch)


def _merge_stage(load: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {name: _kept(_sums(_restored(kept))) for name, kept in load.items()}


def _context_stage(
    tables: Tables, index: Index, at_row: RowCost, context: Context, kinds: Kinds, prefill: bool
) -> ContextCost:
    def one(row: Row, r: RowCost, c: Context) -> ContextCost:
        return context_cost(row, r.weights_bytes, c, kinds, prefill=prefill)

    return jax.vmap(jax.vmap(one, in_axes=(0, 0, None)), in_axes=(None, None, 0))(_take(tables, index), at_row, context)


def _points(
    tables: Tables,
    index: Index,
    at_row: RowCost,
    load: dict[str, dict[str, Any]],
    at_context: ContextCost,
    batch: Any,
    context: Context,
    kinds: Kinds,
    columns: tuple[str, ...],
) -> dict[str, Any]:
    def one(
        row: Row, r: RowCost, kept: dict[str, dict[str, Any]], c: ContextCost, b: Any, x: Context
    ) -> dict[str, Any]:
        restored = Load(step=_restored(kept["step"]), plain=_restored(kept["plain"]))
        cost: PointCost = point_cost(row, r, restored, c, b, x, kinds)
        return {name: getattr(cost, name) for name in columns}

    over_rows = jax.vmap(one, in_axes=(0, 0, 0, 0, None, None))
    over_context = jax.vmap(over_rows, in_axes=(None, None, None, 0, None, 0))
    over_batch = jax.vmap(over_context, in_axes=(None, None, 0, None, 0, None))
    return over_batch(_take(tables, index), at_row, load, at_context, batch, context)


def _own_points(
    tables: Tables,
    index: Index,
    at_row: RowCost,
    at_context: ContextCost,
    batch: Any,
    context: Context,
    kinds: Kinds,
    columns: tuple[str, ...],
) -> dict[str, Any]:
    """Points with a batch of their own: [context, row]."""

    def one(row: Row, r: RowCost, c: ContextCost, b: Any, x: Context) -> dict[str, Any]:
        cost = point_cost(row, r, load_cost(row, b, kinds), c, b, x, kinds)
        return {name: getattr(cost, name) for name in columns}

    over_rows = jax.vmap(one, in_axes=(0, 0, 0, 0, None))
    over_context = jax.vmap(over_rows, in_axes=(None, None, 0, 0, 0))
    return over_context(_take(tables, index), at_row, at_context, batch, context)


def _filter_stage(
    tables: Tables,
    index: Index,
    at_row: RowCost,
    load: dict[str, dict[str, Any]],
    at_context: ContextCost,
    batch: Any,
    context: Context,
    keep: Any,
    bar: Any,
    edges: Any,
    group: Any,
    level: Any,
    kinds: Kinds,
    objectives: tuple[str, str],
    signs: tuple[float, float],
) -> dict[str, Any]:
    """Two objectives of every point, which points may be on the frontier, and counts by reason.

    A point is dropped if it lies strictly under the frontier so far: bar[e, group, level] is the best first objective
    of a frontier point of its group with at least the row's level of accuracy and at least edges[e, group] of the
    second.
    `group` is [context, row], `level` [row].
    """
    wanted = (*objectives, "fits", "in_time", *(("in_pace",) if kinds.paced else ()))
    out = _points(tables, index, at_row, load, at_context, batch, context, kinds, wanted)
    fits, in_time = out["fits"] > 0, out["in_time"] > 0
    in_pace = out["in_pace"] > 0 if kinds.paced else jnp.ones_like(fits)
    asked = keep & jnp.ones_like(fits)
    good = fits & in_time & in_pace & asked
    a, b = (jnp.where(good, out[name] * sign, -jnp.inf) for name, sign in zip(objectives, signs, strict=True))
    beaten = ~good
    for e in range(edges.shape[0]):
        beaten |= (edges[e][group] >= b) & (bar[e][group, level] > a)
    count = functools.partial(jnp.sum, dtype=jnp.int32)
    return {
        "a": a,
        "b": b,
        "alive": ~beaten,
        "asked": count(asked),
        "capacity": count(asked & ~fits),
        "ttft_cut": count(asked & ~in_time),
        "tpot_cut": count(asked & ~in_pace),
        "feasible": count(good),
    }


@dataclass(frozen=True, kw_only=True)
class Stages:
    """The compiled calls, one per level of a point."""

    row: Any
    load: Any
    merge: Any
    context: Any
    points: Any
    own: Any
    filter: Any


@functools.cache
def stages() -> Stages:
    """The calls of this process: grids of one shape share what was compiled for them."""
    options = compiler_options()
    jit = functools.partial(jax.jit, compiler_options=options) if options else jax.jit
    return Stages(
        row=jit(_row_stage),
        load=jit(_load_stage, static_argnames=("kinds",)),
        merge=jit(_merge_stage),
        context=jit(_context_stage, static_argnames=("kinds", "prefill")),
        points=jit(_points, static_argnames=("kinds", "columns")),
        own=jit(_own_points, static_argnames=("kinds", "columns")),
        filter=jit(_filter_stage, static_argnames=("kinds", "objectives", "signs")),
    )


class Engine:
    """Evaluates rows of a grid on the default device."""

    def __init__(self, space: Space, study: Study, *, float64: bool = False):
        tune_allocator()
        self.space = space
        self.dtype = np.float64 if float64 else np.float32
        calls = stages()
        self._row, self._load, self._merge = calls.row, calls.load, calls.merge
        self._context, self._points, self._filter = calls.context, calls.points, calls.filter
        self._own = calls.own
        spread = excess_of(space)

        def on_device(x: Any) -> jax.Array:
            array = np.asarray(x)
            return jnp.asarray(array, dtype=array.dtype if array.dtype == np.int32 else self.dtype)

        self.tables = jax.tree.map(
            on_device,
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
        self.context = jax.tree.map(lambda x: jnp.asarray(np.asarray(x), dtype=self.dtype), space.context)
        self.limited = bool(np.isfinite(np.asarray(space.context.ttft_max_s)).any())
        self.mixed = bool((np.asarray(space.context.mixed) > 0).any())
        self.cut = self.limited or bool(np.isfinite(np.asarray(space.context.tpot_max_s)).any())

    def index(self, rows: np.ndarray) -> Index:
        """Table indices of rows, on the device."""
        i_model, i_machine, i_layout = self.space.indices(rows)
        i_accuracy = i_model * len(self.space.machines) + i_machine
        return Index(
            model=jnp.asarray(i_model),
            machine=jnp.asarray(i_machine),
            layout=jnp.asarray(i_layout),
            accuracy=jnp.asarray(i_accuracy.astype(np.int32)),
        )

    def rows(self, index: Index) -> RowCost:
        """What configurations decide: [rows]."""
        result: RowCost = self._row(self.tables, index)
        return result

    def full(
        self, rows: np.ndarray, kinds: Kinds, columns: Sequence[str]
    ) -> tuple[RowCost, ContextCost, dict[str, Any]]:
        """All that was asked for: per row [R], per row and context [R, C], per point [R, B, C]."""
        index = self.index(rows)
        at_row = self.rows(index)
        needs_prefill = self.limited or self.mixed or bool(PREFILL_COLUMNS & set(columns))
        at_context = self._context(self.tables, index, at_row, self.context, kinds=kinds, prefill=needs_prefill)
        names = tuple(n for n in columns if n in BY_NAME and BY_NAME[n].level == "point")
        if self.mixed:  # it waits for decode steps of a batch
            names += ("ttft_s",)
        names += ("fits", "in_time", *(("in_pace",) if kinds.paced else ()))
        points: dict[str, Any] = {}
        if self.given.any():
            load = self._load(self.tables, index, self.batch, kinds=kinds)
            points = self._points(
                self.tables,
                index,
                at_row,
                load,
                at_context,
                self.batch,
                self.context,
                kinds=kinds,
                columns=names,
            )
        if not self.given.all():
            own = self._largest(index, at_row, at_context, kinds, names)
            points = {name: self._joined(points.get(name), own[name]) for name in (*names, "batch")}
        return at_row, at_context, points

    def _joined(self, given: Any, own: Any) -> Any:
        """[batch, context, row] from what the batches of the grid gave and what the largest ones did."""
        if given is None:  # the batch itself, or no batch but the largest
            given = np.broadcast_to(np.asarray(self.batch)[:, None, None], (len(self.batch), *np.shape(own)))
        out = np.empty((len(self.given), *np.shape(own)), dtype=np.asarray(own).dtype)
        out[self.given], out[~self.given] = given, own
        return out

    def _largest(
        self, index: Index, at_row: RowCost, at_context: ContextCost, kinds: Kinds, columns: tuple[str, ...]
    ) -> dict[str, Any]:
        """Points of the largest batch that fits and keeps the limits: [context, row], and that batch."""

        def at(batch: Any, columns: tuple[str, ...]) -> dict[str, Any]:
            sized = jnp.asarray(batch, dtype=self.dtype)
            found: dict[str, Any] = self._own(
                self.tables, index, at_row, at_context, sized, self.context, kinds=kinds, columns=columns
            )
            return found

        limits = ("fits", "in_time", *(("in_pace",) if kinds.paced else ()))

        def holds(batch: np.ndarray) -> Any:
            found = at(batch, limits)
            return np.logical_and.reduce([np.asarray(found[name]) > 0 for name in limits])

        batch = largest_batch(at_context.max_batch, holds)
        return {**at(batch, columns), "batch": batch.astype(self.dtype)}

    def filtered(
        self,
        rows: np.ndarray,
        kinds: Kinds,
        *,
        objectives: tuple[str, str],
        signs: tuple[float, float],
        keep: np.ndarray | None,
        bar: Any,
        edges: Any,
        group: np.ndarray,
        level: np.ndarray,
    ) -> dict[str, Any]:
        """Two objectives of each point and which boxes may hold a frontier point; see `_filter_stage`."""
        index = self.index(rows)
        at_row = self.rows(index)
        load = self._load(self.tables, index, self.batch, kinds=kinds)
        if not (kinds.hop_b or kinds.two_batch):  # those hide communication behind particular causes
            load = self._merge(load)
        timed = self.limited or self.mixed or bool(PREFILL_COLUMNS & set(objectives))
        at_context = self._context(self.tables, index, at_row, self.context, kinds=kinds, prefill=timed)
        asked = jnp.ones((1, 1, 1), dtype=bool) if keep is None else jnp.asarray(keep)
        result: dict[str, Any] = self._filter(
            self.tables,
            index,
            at_row,
            load,
            at_context,
            self.batch,
            self.context,
            asked,
            bar,
            edges,
            jnp.asarray(group, dtype=jnp.int32),
            jnp.asarray(level, dtype=jnp.int32),
            kinds=kinds,
            objectives=objectives,
            signs=signs,
        )
        return result
