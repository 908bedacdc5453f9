"""What the doubt about accuracy does to a frontier: ranges left, points that survive other laws, designs that tie.

Accuracy is a function of model and precision alone, so another law changes one number per model and precision and
nothing that the cost model computes. Still a frontier's points do not tell which of them survive: what beats them under
another law may have been dropped under the first. So the grid is passed again, without what cannot matter:

* of models and precisions, only those that another law moves up past one of the frontier (`movers`): a point can beat
  a frontier point anew only if the law used puts it no higher, and the other law no lower;
* of their points, only those that the frontier does not beat under the other law: the staircase that drops points on
  the device is complete from the first block on.

Both leave the other law's verdict on the frontier's points exact.
"""

from __future__ import annotations

import copy
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from sweep import accuracy
from sweep.accuracy import DOUBT, EXTRAPOLATION_RANGES, TIE_DENSE_NATS, TIE_MOE_NATS, AccuracyConfig
from sweep.config import Study
from sweep.errors import BadInput
from sweep.evaluate import AccuracyTable, accuracy_tables, precision_of, shapes
from sweep.frontier import Front, Objective, RunningFrontier, condition, nondominated, parse_objectives, tie_front
from sweep.measured import SOURCES, loss_source, measured
from sweep.point import FORMAT_BITS
from sweep.space import Space, row_reasons

if TYPE_CHECKING:
    from sweep.run import Run

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

COLUMNS = ("accuracy", "accuracy_low", "accuracy_high", "loss", "loss_sigma")
AUTO_POINTS, AUTO_POINTS_SLOW = 20_000_000, 500_000  # evaluated again without being asked; slow: no device filter
HOPELESS = 5  # times as many points in the grid: taken not to shrink to that many
CHUNK = 1 << 18  # rows looked at together
BUFFER = 200_000  # tied points that wait to be sieved
OVERTRAINED = 4000.0  # tokens per parameter beyond which the loss of 4 bits and fewer is a lower bound

# --- Ranges left -----------------------------------------------------------------------------------------------------

_mask = jax.jit(jax.vmap(accuracy.extrapolation_mask, in_axes=(0, None)))
CONTEXT = "context"  # the model's published context, which is no range of the proxy but counts with them


@dataclass(frozen=True, kw_only=True)
class Ranges:
    """Which validity ranges the models of a grid leave: bits [models, precisions], see EXTRAPOLATION_RANGES."""

    bits: npt.NDArray[np.int32]
    known: Mask | None  # measured losses, of [models, precisions]
    overtrained: int  # models in 4 bits or fewer, above `OVERTRAINED` tokens per parameter

    @property
    def models(self) -> int:
        """Number of models."""
        return len(self.bits)

    @property
    def left(self) -> dict[str, int]:
        """Number of models that leave each range in some precision, for ranges that any leaves."""
        counts = {
            name: int(np.count_nonzero((self.bits >> i & 1).any(axis=1))) for i, name in enumerate(EXTRAPOLATION_RANGES)
        }
        return {name: n for name, n in counts.items() if n}

    def about(self) -> dict[str, Any]:
        """For a manifest: how many models leave which range, and the bounds of those ranges."""
        bounds = {
            name: {"low": r.low, "high": r.high, "unit": r.unit, "doc": r.doc}
            for name in self.left
            if (r := accuracy.RANGES[name])
        }
        return {"models": self.models, "left": self.left, "ranges": bounds, "overtrained": self.overtrained}

    def warning(self) -> str | None:
        """One line that names the ranges left; None where all models are inside all of them."""
        if not self.left:
            return None
        everywhere = [name for name, n in self.left.items() if n == self.models]
        some = [f"{name} ({n} of {self.models})" for name, n in self.left.items() if n < self.models]
        parts = [", ".join(everywhere) + " (all models)"] if everywhere else []
        parts += [", ".join(some)] if some else []
        text = f"warning: the accuracy proxy extrapolates, outside its ranges of {'; '.join(parts)}"
        if self.overtrained:
            text += f"; the loss of 4-bit formats is a lower bound for {self.overtrained} models"
        return text


def ranges(space: Space, study: Study) -> Ranges:
    """The validity ranges that each model of a grid leaves in each precision."""
    settings = study.accuracy
    law = accuracy.law_of(settings)
    per_precision = shapes(space, settings)
    bits = np.stack([np.asarray(_mask(shape, law)) for shape in per_precision], axis=1)
    table = measured(space, settings)
    known = None if table is None else table.known
    if table is not None:  # a measured loss needs no law; only what formats cost is still one's
        quantized = 1 << EXTRAPOLATION_RANGES.index("precision_size")
        bits = np.where(table.known, np.where(table.in_format, 0, bits & quantized), bits)
    narrow = np.array([_bits(p.values) < 5 for p in space.precision])
    n_act = np.asarray(per_precision[0].n_act, dtype=np.float64)
    tokens = float(law.tokens) if law.data == "iso_token" else float(law.compute) / (6.0 * n_act)
    over = (tokens / n_act > OVERTRAINED)[:, None] & narrow[None, :]
    if table is not None:
        over &= ~table.known
    return Ranges(bits=bits.astype(np.int32), known=known, overtrained=int(np.count_nonzero(over.any(axis=1))))


def _bits(values: dict[str, Any]) -> float:
    name = values.get("weights_ffn") or values.get("weights") or "bf16"
    return float(FORMAT_BITS[accuracy.SAME_LOSS.get(str(name), str(name))][0])


# --- Other laws ------------------------------------------------------------------------------------------------------


def alternates(settings: AccuracyConfig) -> dict[str, AccuracyConfig]:
    """The laws under which a point must stay to be robust, besides the one used.

    The default law, the geometric mean with w = 0.5, and the law used without the terms of shape and KV heads; those
    that are the law used itself are left out. Everything else (base, score, recipe, data, table) is as it was.
    """
    change = accuracy.replace_settings
    plain = change(settings, slope=None, midpoint=None)
    off = {"shape_term": False, "kv_term": False}
    candidates = {
        "ling_besiroglu": change(plain, law="ling_besiroglu", file=None, shape_term=True, kv_term=True),
        "geo_mean w=0.5": change(plain, law="geo_mean", file=None, w=0.5),
        "shape and KV terms off": change(settings, **off),
    }
    used = accuracy.law_of(settings)
    return {name: other for name, other in candidates.items() if accuracy.law_of(other) != used}


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Which frontier points stay on it under other laws."""

    stays: dict[str, Mask] = field(default_factory=dict)  # per law, over the points of the front
    points: int = 0  # evaluated again
    seconds: float = 0.0
    skipped: str | None = None  # why nothing was computed

    @property
    def robust(self) -> Mask | None:
        """Points that stay under every law; None where nothing was computed."""
        return None if self.skipped else np.all(list(self.stays.values()), axis=0)

    def about(self) -> dict[str, Any]:
        """For a manifest."""
        if self.skipped:
            return {"computed": False, "why": self.skipped}
        robust = self.robust
        return {
            "computed": True,
            "laws": {name: int(mask.sum()) for name, mask in self.stays.items()},
            "robust": 0 if robust is None else int(robust.sum()),
            "points_again": self.points,
            "seconds": self.seconds,
        }


def movers(before: Floats, after: Floats, front: Ints) -> Mask:
    """Which rows of a table may beat a frontier row under another law though they do not under the first.

        q moves past p:  before[q] <= before[p] and after[q] >= after[p], not both equal

    Args:
        before, after: level of each row, larger is better.
        front: rows that have points on the frontier.
    """
    p = np.unique(front)
    found = np.zeros(len(before), dtype=np.bool_)
    for strictly in (False, True):
        # the lowest `after` among frontier rows whose `before` is at least (or above) that of the row asked
        order = p[np.argsort(before[p], kind="stable")]
        lowest = np.append(np.minimum.accumulate(after[order][::-1])[::-1], np.inf)
        place = np.searchsorted(before[order], before, side="right" if strictly else "left")
        found |= (lowest[place] <= after) if strictly else (lowest[place] < after)
    return found


def check_mode(study: Study) -> None:
    """Refuse settings of the frontier's doubt that mean nothing.

    Raises: `BadInput`.
    """
    mode = study.frontier.robust
    if mode not in ("auto", "true", "false", True, False):
        raise BadInput(f"frontier.robust={mode}: allowed are auto, true, false")
    epsilon(study.frontier.epsilon, "frontier.epsilon")
    columns = {o.column for o in parse_objectives(study.frontier.objectives)}
    if study.frontier.epsilon is not None and not columns & {"accuracy", "loss"}:
        raise BadInput("frontier.epsilon: neither accuracy nor loss is among frontier.objectives")


def epsilon(value: Any, key: str) -> tuple[float, float] | None:
    """Doubts (alike, between dense and mixture) in nats: `ties` for 0.010 and 0.03, a number for both, None for none.

    Raises: `BadInput`.
    """
    if value is None:
        return None
    if value == "ties":
        return TIE_DENSE_NATS, TIE_MOE_NATS
    try:
        nats = float(value)
    except (TypeError, ValueError):
        nats = -1.0
    if isinstance(value, bool) or not 0 < nats < 10:
        raise BadInput(
            f"{key}={value}: must be nats of loss above 0, or ties (0.010 alike, 0.03 dense against experts)"
        )
    return nats, nats


def _again(run: Run) -> Run:
    """A run like this one that keeps what it finds to itself."""
    other = copy.copy(run)
    other.counts, other.report = type(run.counts)(), lambda progress: None
    other.bar = copy.copy(run.bar)
    return other


def _padded_levels(levels: Floats, length: int) -> Floats:
    """Ascending distinct levels brought to a length, so that nothing is compiled anew."""
    values = np.unique(levels[np.isfinite(levels)])
    if len(values) > length:
        return np.unique(np.quantile(values, np.linspace(0, 1, length), method="higher"))
    return np.concatenate([values, np.full(length - len(values), values[-1])])


def _rows_of(run: Run, keep: Mask) -> Iterator[np.ndarray]:
    """Rows of the run's shard whose model and machine are kept, in chunks."""
    space = run.space
    for pair in np.array_split(np.flatnonzero(keep), max(int(keep.sum()) * space.n_layouts // CHUNK, 1)):
        if len(pair):
            rows = (pair[:, None] * space.n_layouts + np.arange(space.n_layouts)[None, :]).ravel()
            yield run.plan.study.shard.of(rows)


def _worth(other: Run, chunk: np.ndarray) -> np.ndarray:
    """Rows of a chunk that some load may save."""
    if other.plan.rows == "frontier":  # the test of memory is compiled then
        found: np.ndarray = other._survivors(chunk)[0]
        return found
    rows = chunk[other.filters.rows(chunk)]
    return np.asarray(rows[row_reasons(other.space, rows) == 0]) if len(rows) else rows


def _pass(other: Run, keep: Mask) -> int:
    """Offer the points of kept rows to a run's frontier, by the device filter; returns how many were evaluated."""
    evaluated = 0
    other.bar.refresh(other.front, other.level_values)
    for chunk in _rows_of(other, keep):
        rows = _worth(other, chunk)
        evaluated += len(rows) * other.space.per_row
        pending: deque[Any] = deque()
        for slots in other.blocks_of(rows, len(rows)):
            pending.append(other._dispatch(slots))
            if len(pending) >= 3:
                other._consume(pending.popleft())
        while pending:
            other._consume(pending.popleft())
    return evaluated


def _slow_pass(other: Run, keep: Mask, changed: Callable[[dict[str, np.ndarray], np.ndarray], None]) -> int:
    """The same for objectives that the device filter does not know; `changed` puts other levels into the columns."""
    evaluated = 0
    per_row = other.space.per_row
    for chunk in _rows_of(other, keep):
        rows = _worth(other, chunk)
        for block in other._blocks(rows):
            columns = {n: v.reshape(-1).copy() for n, v in other.full_columns(block).items()}
            changed(columns, np.repeat(pairs_of(other.space, block), per_row))
            ids = (block[:, None] * per_row + np.arange(per_row)).ravel()
            asked = other.filters.points(block)
            if asked is not None:
                mask = asked.reshape(-1)
                ids, columns = ids[mask], {n: v[mask] for n, v in columns.items()}
            other._add_generic(ids, columns)
            evaluated += len(block) * per_row
    return evaluated


def pairs_of(space: Space, rows: np.ndarray) -> Ints:
    """Index of model x machine of rows: what accuracy depends on."""
    return np.asarray(rows, dtype=np.int64) // space.n_layouts


def verdict(run: Run) -> Verdict:
    """Which points of a finished run's frontier stay on it under each of `alternates`.

    Exact. `frontier.robust=auto` does it where at most `AUTO_POINTS` points have to be evaluated again.
    """
    study, space, front = run.plan.study, run.space, run.front.result()
    mode = str(study.frontier.robust).lower()
    doubtful = [o for o in run.plan.objectives if o.column in COLUMNS]
    if mode == "false":
        return Verdict(skipped="frontier.robust=false")
    if study.shard:  # what would beat a point under another law may be a point of another shard
        return Verdict(skipped="it takes the whole grid, not a shard of it")
    if not doubtful:
        return Verdict(skipped="accuracy is no objective")
    if len(doubtful) > 1 or any(name in str(study.frontier.where or "") for name in (*COLUMNS, "extrapolation")):
        return Verdict(skipped="more than one objective or condition depends on the law")
    started = time.perf_counter()
    goal = doubtful[0]
    at_front = pairs_of(space, front.ids // space.per_row)

    def levels(table: AccuracyTable) -> Floats:
        return np.asarray(getattr(table, goal.column), dtype=np.float64) * goal.sign

    before = levels(run.engine.tables.accuracy)
    if len(front) == 0 or space.n_models * len(space.precision) == 1:  # one level under any law
        return Verdict(stays={"the law used": np.ones(len(front), dtype=np.bool_)})
    limit = AUTO_POINTS if run.fast else AUTO_POINTS_SLOW
    if mode == "auto" and space.n_points > HOPELESS * limit:  # not even worth looking at the laws
        return Verdict(skipped=f"{space.n_points:,} points are many to evaluate again; frontier.robust=true does it")
    laws = alternates(study.accuracy)
    others = dict(zip(laws, accuracy_tables(space, study, list(laws.values())), strict=True))
    kept = {name: movers(before, levels(table), at_front) for name, table in others.items()}
    points = sum(int(keep.sum()) for keep in kept.values()) * space.n_layouts * space.per_row
    if mode == "auto" and points > limit:
        return Verdict(skipped=f"up to {points:,} points to be evaluated again; frontier.robust=true does it")
    column = 0 if run.fast else next(i for i, o in enumerate(run.plan.objectives) if o == goal)
    stays, evaluated = {}, 0
    for name, table in others.items():
        after = levels(table)
        other = _again(run)
        other.front = RunningFrontier(front.values.shape[1], run.groups.count)
        values = front.values.astype(np.float64)
        values[:, column] = after[at_front]
        other.front.add(values, front.groups, front.ids)
        if kept[name].any():
            if run.fast:
                other.accuracy_level = after
                other.level_values = _padded_levels(after, len(run.level_values))
                evaluated += _pass(other, kept[name])
            else:

                def changed(columns: dict[str, np.ndarray], pair: np.ndarray, after: Floats = after) -> None:
                    columns[goal.column] = after[pair] * goal.sign

                evaluated += _slow_pass(other, kept[name], changed)
        stays[name] = np.isin(front.ids, other.front.result().ids)
    if not stays:
        stays["the law used"] = np.ones(len(front), dtype=np.bool_)
    return Verdict(stays=stays, points=evaluated, seconds=time.perf_counter() - started)


# --- Ties ------------------------------------------------------------------------------------------------------------


class _Tied:
    """Points that nothing surely beats, of all that were offered: values [level, others...], groups, ids, pairs."""

    def __init__(self, kinds: Ints, pair: Callable[[np.ndarray], Ints], eps: tuple[float, float]) -> None:
        self.kinds, self.pair, self.eps = kinds, pair, eps
        self.parts: list[tuple[Floats, Ints, Ints]] = []
        self.waiting, self.limit = 0, BUFFER

    def add(self, values: Floats, groups: Ints, ids: Ints) -> None:
        self.parts.append((values, groups, ids))
        self.waiting += len(ids)
        if self.waiting > self.limit:
            self.limit = max(BUFFER, 2 * len(self.result()))

    def result(self) -> Front:
        values, groups, ids = (np.concatenate(column) for column in zip(*self.parts, strict=True))
        _, first = np.unique(ids, return_index=True)
        values, groups, ids = values[first], groups[first], ids[first]
        kept = tie_front(values, self.kinds[self.pair(ids)], *self.eps, groups=groups)
        self.parts = [(values[kept], groups[kept], ids[kept])]
        self.waiting = int(kept.sum())
        return Front(*self.parts[0])


def kinds_of(space: Space) -> Ints:
    """Dense 0 or mixture of experts 1 of each model x machine, as the proxy's doubt tells them apart."""
    shape = accuracy_shape(space)
    moe = np.asarray(shape.n_tot, dtype=np.float64) > float(DOUBT.moe_from) * np.asarray(shape.n_act, dtype=np.float64)
    return np.repeat(moe.astype(np.int64), len(space.machines))


def accuracy_shape(space: Space) -> accuracy.Shape:
    """What the proxy needs of the models of a grid, formats aside."""
    return shapes(space, AccuracyConfig())[0]


def ties(run: Run) -> Front | None:
    """The points of a finished run that no point surely beats: its frontier and what ties with it, see `tie_front`.

    The doubt is in the loss: `frontier.epsilon` nats. Values are those of `run.front`, so that a table can be made of
    them. None where `frontier.epsilon` is not set.
    """
    study, space, front = run.plan.study, run.space, run.front.result()
    eps = epsilon(study.frontier.epsilon, "frontier.epsilon")
    if eps is None:
        return None
    goal = next(o for o in run.plan.objectives if o.column in ("accuracy", "loss"))
    column = 0 if run.fast else run.plan.objectives.index(goal)
    table: AccuracyTable = run.engine.tables.accuracy
    level = -np.asarray(table.loss, dtype=np.float64)
    own = np.asarray(getattr(table, goal.column), dtype=np.float64) * goal.sign
    kinds = kinds_of(space)
    if len(np.unique(kinds)) == 1:
        eps = (eps[0], eps[0])

    def pair(ids: np.ndarray) -> Ints:
        return pairs_of(space, np.asarray(ids) // space.per_row)

    def in_nats(values: Floats, ids: np.ndarray) -> Floats:
        found = np.delete(values.astype(np.float64), column, axis=1)
        return np.column_stack([level[pair(ids)], found])

    tied = _Tied(kinds, pair, eps)
    if len(front):
        tied.add(in_nats(front.values, front.ids), front.groups, front.ids)
    other = _again(run)
    everything = np.ones(len(level), dtype=np.bool_)
    if run.fast:
        base = RunningFrontier(3, run.groups.count)
        base.add(in_nats(front.values, front.ids), front.groups, front.ids)
        other.front, other.accuracy_level = base, level
        other.level_values = _padded_levels(level, len(run.level_values))
        other.slack = max(eps)
        other._offer = tied.add  # type: ignore[method-assign]
        _pass(other, everything)
    else:

        class _Offer(RunningFrontier):
            def add(self, values: Any, groups: Any = 0, ids: Any = None, *, sieved: bool = False) -> None:
                tied.add(in_nats(np.asarray(values), np.asarray(ids)), np.asarray(groups), np.asarray(ids))

        other.front = _Offer(front.values.shape[1], run.groups.count)
        _slow_pass(other, everything, lambda columns, pair: None)
    if not tied.parts:
        return front
    found = tied.result()
    values = np.insert(found.values[:, 1:], column, own[pair(found.ids)], axis=1)
    return Front(values, found.groups, found.ids)


def tied_rows(
    frame: pl.LazyFrame, objectives: Sequence[Objective], by: Sequence[str], where: str | None, eps: tuple[float, float]
) -> pl.DataFrame:
    """The rows of stored points that no other surely beats, with a column `on_frontier`; see `tie_front`.

    As `sweep.frontier.frontier`, which it contains: infeasible rows, rows that fail `where` and rows without an
    objective are left out. The doubt is in the loss, in nats; `accuracy` among the objectives stands for it.
    Mixtures of experts are told by 1.5 parameters in all per active one (the input embedding is not among the latter).

    Raises: `BadInput` where neither loss nor accuracy is an objective, or a column is missing.
    """
    schema = frame.collect_schema()
    if not {o.column for o in objectives} & {"accuracy", "loss"}:
        raise BadInput("epsilon: neither accuracy nor loss is among the objectives")
    others = [o for o in objectives if o.column not in ("accuracy", "loss")]
    for name in ("loss", "params_total", "params_active"):
        if name not in schema:
            raise BadInput(f"epsilon: needs the column {name}, which is not stored")
    rows = frame.with_row_index("|row")
    if "feasible" in schema:
        rows = rows.filter(pl.col("feasible").cast(pl.Boolean))
    if where is not None:
        rows = rows.filter(condition(where, schema))
    keys = pl.struct(list(by)).hash() if by else pl.lit(0, dtype=pl.UInt64)
    narrow = rows.select(
        "|row",
        keys.alias("|group"),
        (pl.col("params_total") > 1.5 * pl.col("params_active")).cast(pl.Int64).alias("|kind"),
        (-pl.col("loss").cast(pl.Float64)).alias("|loss"),
        *((pl.col(o.column).cast(pl.Float64) * o.sign).alias(f"|{o.column}") for o in others),
        *(pl.when(pl.col(o.column) > 0).then(0).otherwise(None).alias(f"|ok {o.column}") for o in others if o.positive),
    ).drop_nulls()
    held: pl.DataFrame | None = None
    names = ["|loss", *(f"|{o.column}" for o in others)]

    def sieved(part: pl.DataFrame) -> pl.DataFrame:
        group = part["|group"].rank("dense").to_numpy().astype(np.int64) - 1
        mask = tie_front(part.select(names).to_numpy(), part["|kind"].to_numpy(), *eps, groups=group)
        return part.filter(pl.Series(mask))

    for batch in narrow.collect_batches(chunk_size=BUFFER, maintain_order=False, engine="streaming"):
        if batch.height:
            held = sieved(batch if held is None else pl.concat([held, batch]))
    if held is None:
        return frame.clear().collect().with_columns(on_frontier=pl.lit(False))
    group = held["|group"].rank("dense").to_numpy().astype(np.int64) - 1
    held = held.with_columns(on_frontier=pl.Series(nondominated(held.select(names).to_numpy(), group)))
    wanted = frame.with_row_index("|row").filter(pl.col("|row").is_in(held["|row"].sort().implode()))
    found = wanted.collect(engine="streaming").join(held.select("|row", "on_frontier"), on="|row")
    order = [*by, *(o.column for o in objectives), "|row"]
    return found.sort(order, descending=[*(False for _ in by), *(o.maximise for o in objectives), False]).drop("|row")


# --- Columns of a frontier -------------------------------------------------------------------------------------------

EXTRA = {
    "robust": ("bool", "stays on the frontier under the default law, geo_mean w = 0.5, and without shape and KV terms"),
    "ranges_left": ("label", "names of the validity ranges that `extrapolation` counts"),
    "loss_source": ("label", "where the loss comes from: proxy, measured"),
    "on_frontier": ("bool", "on the exact frontier; else tied with it within frontier.epsilon"),
}


def annotated(
    table: pa.Table, space: Space, found: Ranges, columns: dict[str, np.ndarray | None], limit: np.ndarray
) -> pa.Table:
    """A table of frontier points with `ranges_left`, `loss_source` and boolean columns; null where not computed.

    Args:
        limit: published context of each model; beyond it, `context` is among the ranges left.
    """
    ids = table["point_id"].to_numpy()
    rows, rest = np.divmod(ids, space.per_row)
    i_model, i_machine, _ = space.indices(rows)
    i_precision = np.asarray(precision_of(space), dtype=np.int64)[i_machine]
    bits = found.bits[i_model, i_precision].astype(np.int64)
    longest = np.asarray(space.context.longest)[rest % space.n_contexts]
    beyond = longest > limit[i_model]
    code = bits | beyond.astype(np.int64) << len(EXTRAPOLATION_RANGES)
    distinct, index = np.unique(code, return_inverse=True)
    names = [", ".join(range_names(int(c))) for c in distinct]
    added: dict[str, pa.Array] = {
        name: pa.nulls(len(ids), pa.bool_()) if values is None else pa.array(np.asarray(values, dtype=np.bool_))
        for name, values in columns.items()
    }
    added["ranges_left"] = pa.DictionaryArray.from_arrays(pa.array(index.reshape(-1).astype(np.int16)), pa.array(names))
    is_measured = np.zeros(len(ids), dtype=np.int8)
    if found.known is not None:
        is_measured = found.known[i_model, i_precision].astype(np.int8)
    added["loss_source"] = pa.DictionaryArray.from_arrays(pa.array(is_measured), pa.array(SOURCES))
    metadata = dict(table.schema.metadata or {})
    for name, array in added.items():
        unit, doc = EXTRA[name]
        metadata |= {f"unit.{name}".encode(): unit.encode(), f"doc.{name}".encode(): doc.encode()}
        table = table.append_column(pa.field(name, array.type, metadata={"unit": unit, "doc": doc}), array)
    return table.replace_schema_metadata(metadata)


def range_names(code: int) -> tuple[str, ...]:
    """Names behind the bits of a point: those of the proxy, and `context`."""
    found = accuracy.extrapolation_names(code)
    return (*found, CONTEXT) if code >> len(EXTRAPOLATION_RANGES) & 1 else found


def source_of(found: Ranges) -> str:
    """`proxy`, `measured` or `mixed`."""
    return loss_source(found.known)
