"""From axes to a grid of points, without ever writing the grid down.

Axes multiply into a mixed-radix index, the `point_id`: models, machines, formats, efficiencies, layouts, then batch,
then context, the last fastest. A configuration row is everything but batch and context; rows refer to small tables
of models, machines and layouts, so a grid of a billion points is a few thousand numbers.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from sweep import expr
from sweep.columns import FACTORS
from sweep.complete import complete_context, complete_layout, complete_model
from sweep.config import (
    SETTINGS,
    Record,
    ServingConfig,
    Study,
    as_record,
    check_serving,
    check_value,
    flat,
    from_file,
)
from sweep.cost.arith import namespace
from sweep.cost.memory import count_params
from sweep.cost.result import REASONS
from sweep.errors import BadInput, closest
from sweep.family import Made, check_vintages, expand, prepared, source
from sweep.machine import Machine, Resolved, Tile, resolve
from sweep.placing import align, uses_reload
from sweep.point import RECORDS, Context, Kinds, Layout, Model, names
from sweep.tiers import check_memory, check_placement, check_tiers, plan

REASON_BIT = {name: 1 << i for i, name in enumerate(REASONS)}
CONTEXT_KEYS = ("isl", "osl", "context", "prefix_hit", "ttft_max_s", "tpot_max_s")
RECORD_AXES = ("model", "hardware", "precision")


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One digit of the point index: its name, its length, and the columns it decides."""

    name: str
    size: int
    columns: dict[str, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Space:
    """A grid: tables of what its rows refer to, and the axes that number them."""

    axes: tuple[Axis, ...]
    model: Model  # each field an array over models
    machines: tuple[Resolved, ...]  # hardware x precision x efficiency x placement
    steps: tuple[tuple[int, int], ...]  # class and tier of each step that fills tiers of memory; empty: one tier
    layout: Layout  # each field an array over layouts
    skew: np.ndarray  # over layouts
    batch: np.ndarray  # infinite: as many as fit and keep the limits
    context: Context  # each field an array over contexts
    hardware: tuple[Record, ...]
    precision: tuple[Record, ...]
    model_max_context: np.ndarray
    where: tuple[str, ...]
    dropped_early: int  # points that families and machines dropped by filters of their own

    @property
    def n_rows(self) -> int:
        """Configurations before filters."""
        return self.n_models * len(self.machines) * self.n_layouts

    @property
    def n_models(self) -> int:
        """Length of the model table."""
        return len(self.model.n_layers)

    @property
    def n_layouts(self) -> int:
        """Length of the layout table."""
        return len(self.layout.tpa)

    @property
    def n_points(self) -> int:
        """Points of the full index, before filters."""
        return self.n_rows * self.per_row

    @property
    def per_row(self) -> int:
        """Points of one configuration."""
        return len(self.batch) * self.n_contexts

    @property
    def n_contexts(self) -> int:
        """Length of the context table."""
        return len(self.context.decode)

    @functools.cached_property
    def impossible(self) -> tuple[np.ndarray, np.ndarray]:
        """See `row_reasons`; decided once for all pairs that decide it."""
        return _impossible(self)

    def indices(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Table indices (model, machine, layout) of configuration rows."""
        rest = rows // self.n_layouts  # by a scalar, which numpy has vectorized; divmod is several times slower
        i_layout = rows - rest * self.n_layouts
        i_model = rest // len(self.machines)
        i_machine = rest - i_model * len(self.machines)
        return i_model.astype(np.int32), i_machine.astype(np.int32), i_layout.astype(np.int32)


def decode(axes: Sequence[Axis], point_id: np.ndarray) -> dict[str, np.ndarray]:
    """Axis columns of points: the digits of the mixed-radix index, looked up."""
    out: dict[str, np.ndarray] = {}
    rest = np.asarray(point_id, dtype=np.int64)
    for axis in reversed(axes):
        rest, digit = np.divmod(rest, axis.size)
        for key, values in axis.columns.items():
            out[key] = values[digit]
    return {key: out[key] for axis in axes for key in axis.columns}


# --- values of an axis -------------------------------------------------------------------------------------------


def spread(key: str, spec: Any) -> list[Any]:
    """The values of a numeric axis.

    A list, one value, `{pow2: [1, 512]}`, `{linear: [a, b], num: n}`, `{log: [a, b], num: n}` or
    `{range: [first, last, step]}`.
    """
    if isinstance(spec, list | tuple):
        if not spec:
            raise BadInput(f"grid.{key}=[]: an axis needs at least one value")
        return list(spec)
    if not isinstance(spec, Mapping):
        return [spec]
    kinds = ("pow2", "linear", "log", "range")
    kind = next((k for k in kinds if k in spec), None)
    if kind is None:
        raise BadInput(f"grid.{key}: no such kind of axis {sorted(spec)}; {closest(str(next(iter(spec), '')), kinds)}")
    bounds = spec[kind]
    if not isinstance(bounds, list | tuple) or len(bounds) < 2:
        raise BadInput(f"grid.{key}.{kind}={bounds}: give the first and the last value")
    lo, hi = float(bounds[0]), float(bounds[1])
    if not (math.isfinite(lo) and math.isfinite(hi)) or hi < lo:
        raise BadInput(f"grid.{key}.{kind}={list(bounds)}: the last value must not be below the first")
    if kind == "pow2":
        if lo < 1:
            raise BadInput(f"grid.{key}.pow2={list(bounds)}: must start at 1 or more")
        exponents = range(math.ceil(math.log2(lo) - 1e-9), math.floor(math.log2(hi) + 1e-9) + 1)
        return [float(2**e) for e in exponents]
    if kind == "range":
        step = float(bounds[2]) if len(bounds) > 2 else 1.0
        if step <= 0:
            raise BadInput(f"grid.{key}.range={list(bounds)}: the step must be greater than 0")
        return [lo + i * step for i in range(math.floor((hi - lo) / step + 1e-9) + 1)]
    num = int(spec.get("num", 0))
    if num < 2:
        raise BadInput(f"grid.{key}.num={num}: must be at least 2")
    if kind == "log" and lo <= 0:
        raise BadInput(f"grid.{key}.log={list(bounds)}: must start above 0")
    values = np.geomspace(lo, hi, num) if kind == "log" else np.linspace(lo, hi, num)
    whole = key.split(".")[-1] in ("batch", "isl", "osl", "context") or all(float(b).is_integer() for b in (lo, hi))
    return sorted({float(round(v)) if whole and kind == "log" else float(v) for v in values})


def _unique(values: list[Any]) -> list[Any]:
    return list(dict.fromkeys(values))


# --- record axes -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Entries:
    """A record axis: one record per digit, the keys that vary, and how many combinations filters dropped."""

    records: list[Record]
    varied: list[str]
    dropped: int
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)  # of this entry; they outrank the group's


def _extras(group: str, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Numbers that a filter may use beside a record's own fields."""
    if group != "model":
        return {}
    model = complete_model({k: v for k, v in values.items() if k in names(Model)})
    with namespace(np):
        params = count_params(model)
    return {"params_total": np.asarray(params.total), "params_active": np.asarray(params.active)}


def _as_array(value: Any) -> Any:
    """A value as something arithmetic can use: numbers, null as NaN, words as they are."""
    if value is None:
        return np.nan
    if isinstance(value, bool):
        return float(value)
    return value


def family(study: Study, group: str, entry: Mapping[str, Any], base: Record | None = None) -> Entries:
    """Records of an entry with a grid of its own: `{family: dense, grid: {...}, zip: {...}, where: ...}`.

    `{hf: PATH}` takes the shape of a configuration file; `scale`, for machines also `price` and `power`, apply to the
    entry alone and may be axes.
    """
    own = SETTINGS.get(group, ())
    known = {"family", "base", "grid", "zip", "where", "set", *own, *(["hf"] if group == "model" else [])}
    for key in entry:
        if key not in known:
            raise BadInput(f"grid.{group}: no such key {key} in an entry; {closest(str(key), known)}")
    if base is None:
        name = entry.get("family") or entry.get("base")
        if entry.get("hf") is not None:
            base = from_file({"path": entry["hf"]})[0]
    if base is None:
        if not isinstance(name, str):
            raise BadInput(f"grid.{group}: an entry with a grid must name its family or base")
        base = study.library.record(group, name)
    fields = names(RECORDS[group])
    axes: dict[str, list[Any]] = {}
    for key, spec in {**(entry.get("set") or {}), **(entry.get("grid") or {})}.items():
        if key not in fields:
            raise BadInput(f"grid.{group}.{key}: no such key; {closest(str(key), fields)}")
        axes[key] = _unique([check_value(group, key, v) for v in spread(f"{group}.{key}", spec)])
    combos = list(itertools.product(*axes.values())) if axes else [()]
    count = len(combos)
    columns: dict[str, Any] = {
        k: np.full(count, _as_array(v)) for k, v in base.values.items() if not isinstance(v, str)
    }
    for i, key in enumerate(axes):
        columns[key] = np.array([_as_array(c[i]) for c in combos])
    zipped = _ordered_zip(entry.get("zip") or {}, group)
    for key, text in zipped:
        if key not in fields:
            raise BadInput(f"zip.{group}.{key}: no such key; {closest(key, fields)}")
        value = expr.evaluate(str(text), columns, f"zip.{group}.{key}")
        columns[key] = np.broadcast_to(np.asarray(value, dtype=np.float64), (count,)).copy()
    keep = np.ones(count, dtype=bool)
    filters = entry.get("where") or []
    for text in [filters] if isinstance(filters, str) else filters:
        scope = {**columns, **_extras(group, columns)}
        keep &= np.broadcast_to(np.asarray(expr.evaluate(text, scope, f"grid.{group}.where"), dtype=bool), (count,))
    varied = [*axes, *(k for k, _ in zipped if k not in axes)]
    records = []
    for i in np.nonzero(keep)[0].tolist():
        values = dict(base.values)
        for j, key in enumerate(axes):
            values[key] = combos[i][j]
        for key, _ in zipped:
            values[key] = check_value(group, key, float(columns[key][i]))
        about = dict(base.about)
        if varied and group in ("model", "hardware"):
            about["status"] = "hypothetical"
        records.append(dataclasses.replace(base, values=values, about=about))
    settings = {k: v for key in own for k, v in flat(key, entry.get(key)).items()}
    return Entries(records=records, varied=varied, dropped=count - len(records), settings=settings)


def _ordered_zip(zipped: Mapping[str, Any], group: str) -> list[tuple[str, str]]:
    """Derived keys in an order in which each finds what it needs."""
    left = {str(k): str(v) for k, v in zipped.items()}
    done: list[tuple[str, str]] = []
    while left:
        ready = [k for k, text in left.items() if not (expr.names_in(text, f"zip.{group}.{k}") & (left.keys() - {k}))]
        if not ready:
            raise BadInput(f"zip.{group}: {', '.join(sorted(left))} need each other")
        for key in ready:
            done.append((key, left.pop(key)))
    return done


def record_axis(study: Study, group: str, spec: Any, zipped: Mapping[str, Any]) -> tuple[list[Record], Axis, int]:
    """The records of a group, and their axis.

    `spec` is a list of names and families, or a mapping of numeric axes over the chosen base record, or nothing.
    """
    entries: list[Entries] = []
    if isinstance(spec, list | tuple):
        if not spec:
            raise BadInput(f"grid.{group}=[]: an axis needs at least one value")
        for item in spec:
            if isinstance(item, Mapping):
                entries.append(family(study, group, item))
            else:
                entries.append(Entries(records=[study.library.record(group, str(item))], varied=[], dropped=0))
    elif isinstance(spec, str):
        entries.append(Entries(records=[study.library.record(group, spec)], varied=[], dropped=0))
    elif isinstance(spec, Mapping) or zipped:
        entries.append(family(study, group, {"grid": spec or {}, "zip": zipped}, base=source(study, group)))
    else:
        entries.append(Entries(records=[source(study, group)], varied=[], dropped=0))
    made: list[Made] = []
    dropped = 0
    for e in entries:
        found = _with_settings(study, group, e, several=len(entries) > 1)
        dropped += e.dropped * (len(found) // max(len(e.records), 1))
        made += found
    check_vintages(made)
    records = [m.record for m in made]
    if not records:
        raise BadInput(f"grid.{group}: no {group} is left after its filters")
    columns: dict[str, np.ndarray] = {group: np.array([r.id for r in records], dtype=object)}
    for key in _unique([k for m in made for k in m.axes]):
        given = [m.axes.get(key) for m in made]
        numeric = all(v is None or isinstance(v, int | float) for v in given)
        columns[f"{group}.{key}"] = np.array(
            [_as_array(v) for v in given] if numeric else ["" if v is None else str(v) for v in given],
            dtype=np.float64 if numeric else object,
        )
    moved = [
        k
        for k in names(RECORDS[group])
        if any(k in m.moved for m in made) and len({str(r.values[k]) for r in records}) > 1
    ]
    for key in _unique([*(k for e in entries for k in e.varied), *moved]):
        values = [r.values[key] for r in records]
        if all(v is None or isinstance(v, int | float) for v in values):
            columns[f"{group}.{key}"] = np.array([_as_array(v) for v in values], dtype=np.float64)
        else:
            columns[f"{group}.{key}"] = np.array([str(v) for v in values], dtype=object)
    axis = Axis(name=group, size=len(records), columns=columns)
    return records, axis, dropped


def _with_settings(study: Study, group: str, entries: Entries, *, several: bool) -> list[Made]:
    """Records of an entry, scaled and priced as asked; `several`: other entries stand beside it."""
    asked = {**study.settings.get(group, {}), **study.on_top.get(group, {}), **entries.settings}
    axes = {
        k: _unique(spread(f"{group}.{k}", v))
        for k, v in asked.items()
        if isinstance(v, list | tuple | Mapping) or k in study.on_top.get(group, {})
    }
    return expand(entries.records, {k: v for k, v in asked.items() if k not in axes}, axes, lenient=several)


# --- layouts -----------------------------------------------------------------------------------------------------

PARALLEL = ("tpa", "kvp", "dpa", "tpf", "ep", "pp")


def _candidates(key: str, spec: Any, limit: int) -> list[int]:
    """Sizes that a parallel dimension may take, up to a number of GPUs."""
    if spec == "pow2":
        return [2**i for i in range(limit.bit_length()) if 2**i <= limit]
    if spec == "divisors":
        return [i for i in range(1, limit + 1) if limit % i == 0]
    if isinstance(spec, str):
        raise BadInput(f"grid.layout.{key}={spec}: allowed are pow2, divisors, a list or a range")
    values = [check_value("layout", key if key in PARALLEL else "pp", v) for v in spread(f"layout.{key}", spec)]
    return [int(v) for v in values if v <= limit]


def enumerate_layouts(spec: Mapping[str, Any], base: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All layouts of a grid: tuples with tpa kvp dpa = tpf ep = N and gpus = N pp, and nothing else.

    Where `ffn_tied` is set, tpf = tpa instead, without dpa and ep.
    A dimension that the grid does not name keeps the base layout's value; `tpf` and `ep` that neither names take
    every size that closes the equation.
    """
    fields = (*names(Layout), "gpus")
    for key in spec:
        if key not in fields:
            raise BadInput(f"grid.layout.{key}: no such key; {closest(str(key), fields)}")
    other = {k: spread(f"layout.{k}", v) for k, v in spec.items() if k not in PARALLEL and k != "gpus"}
    for key, values in other.items():
        other[key] = [check_value("layout", key, v) for v in values]
    open_keys = {k: spec[k] for k in PARALLEL if k in spec}
    gpus = (
        [int(check_value("layout", "pp", g)) for g in spread("layout.gpus", spec["gpus"])] if "gpus" in spec else None
    )

    def sizes(key: str, limit: int, default: Any) -> list[int]:
        if key in open_keys:
            return _candidates(key, open_keys[key], limit)
        return [int(default)] if default is not None else [i for i in range(1, limit + 1) if limit % i == 0]

    found: list[dict[str, Any]] = []
    if gpus is None:
        if any(isinstance(v, str) for v in open_keys.values()):
            raise BadInput("grid.layout.gpus: give the numbers of GPUs that pow2 and divisors run up to")
        keys = list(open_keys)
        for combo in itertools.product(*(_candidates(k, open_keys[k], 1 << 20) for k in keys)):
            found.append({**base, **dict(zip(keys, combo, strict=True))})
    else:
        for g in _unique(gpus):
            for pp in sizes("pp", g, base.get("pp") or 1):
                if g % pp:
                    continue
                n = g // pp
                for tpa, kvp in itertools.product(
                    sizes("tpa", n, base.get("tpa") or 1), sizes("kvp", n, base.get("kvp") or 1)
                ):
                    for dpa in sizes("dpa", n, base.get("dpa") or 1):
                        if tpa * kvp * dpa != n:
                            continue
                        for ep in sizes("ep", n, base.get("ep")):
                            if n % ep or ("tpf" in open_keys and n // ep not in sizes("tpf", n, None)):
                                continue
                            cut = {"tpa": tpa, "kvp": kvp, "dpa": dpa, "tpf": n // ep, "ep": ep, "pp": pp}
                            found.append({**base, **cut})
    combined = [
        {**layout, **dict(zip(other, combo, strict=True))}
        for layout in found
        for combo in itertools.product(*other.values())
    ]
    # a tied FFN stays on the head group: there is one way to cut it
    combined = [
        {**layout, "tpf": layout["tpa"]} if layout.get("ffn_tied") else layout
        for layout in combined
        if not layout.get("ffn_tied") or (layout["ep"] or 1) == (layout["dpa"] or 1) == 1
    ]
    if not combined:
        raise BadInput("grid.layout: no layout satisfies tpa kvp dpa = tpf ep and gpus = tpa kvp dpa pp")
    return combined


def layout_axis(study: Study, spec: Any, zipped: Mapping[str, Any]) -> tuple[Layout, Axis]:
    """The table of layouts and its axis."""
    if zipped:
        raise BadInput("zip.layout: layouts are enumerated; use where to keep some of them")
    base = dict(study.base["layout"].values)
    if isinstance(spec, list | tuple):
        rows = [dict(study.library.record("layout", str(name)).values) for name in spec]
        labels: dict[str, np.ndarray] = {"layout": np.array([str(s) for s in spec], dtype=object)}
    elif isinstance(spec, str):
        rows, labels = [dict(study.library.record("layout", spec).values)], {}
    elif isinstance(spec, Mapping):
        rows, labels = enumerate_layouts(spec, base), {}
    else:
        rows, labels = [base], {}
    columns = {key: [r.get(key) for r in rows] for key in names(Layout)}
    table = complete_layout(
        {k: [_as_array(v) for v in vs] if k != "wo_shard" else [str(v or "n") for v in vs] for k, vs in columns.items()}
    )
    gpus = table.tpa * table.kvp * table.dpa * table.pp
    shown = {"layout.gpus": gpus, **{f"layout.{k}": getattr(table, k) for k in PARALLEL}}
    for key in names(Layout):
        if key not in PARALLEL and len({str(v) for v in columns[key]}) > 1:
            shown[f"layout.{key}"] = getattr(table, key)
    return table, Axis(name="layout", size=len(rows), columns={**labels, **shown})


# --- the grid ----------------------------------------------------------------------------------------------------


def _split_zip(zipped: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Derived keys by group: `model.d_ff: 3.5 * model.d_model` or nested; a group's own prefix is optional."""
    flat: dict[str, str] = {}
    for key, value in zipped.items():
        if isinstance(value, Mapping):
            flat.update({f"{key}.{k}": str(v) for k, v in value.items()})
        else:
            flat[str(key)] = str(value)
    out: dict[str, dict[str, str]] = {}
    for key, text in flat.items():
        group, _, name = key.partition(".")
        if group not in RECORDS or not name:
            raise BadInput(f"zip.{key}: must be group.key; {closest(group, RECORDS)}")
        others = {n.partition(".")[0] for n in expr.names_in(text, f"zip.{key}") if "." in n} - {group}
        if others:
            raise BadInput(f"zip.{key}={text}: may use keys of {group} only, not of {', '.join(sorted(others))}")
        out.setdefault(group, {})[name] = text.replace(f"{group}.", "")
    return out


def _workload_axes(
    study: Study, spec: Any, zipped: Mapping[str, str]
) -> tuple[np.ndarray, Context, np.ndarray, list[Axis]]:
    """Batches, contexts, routing skews and their axes."""
    base = dict(study.base["workload"].values)
    if isinstance(spec, str):
        spec = [spec]
    if isinstance(spec, list | tuple):
        records = [study.library.record("workload", str(s)) for s in spec]
        columns = {k: np.array([_as_array(r.values[k]) for r in records], dtype=np.float64) for k in CONTEXT_KEYS}
        axes = [
            Axis(
                name="workload",
                size=len(records),
                columns={"workload": np.array([r.id for r in records], dtype=object)},
            )
        ]
        batch = np.array([float(base["batch"])])
        return batch, complete_context(columns), np.array([float(base["routing_skew"] or 0)]), axes
    fields = names(RECORDS["workload"])
    values: dict[str, list[Any]] = {}
    for key, s in (spec or {}).items():
        if key not in fields:
            raise BadInput(f"grid.workload.{key}: no such key; {closest(str(key), fields)}")
        values[key] = _unique([check_value("workload", key, v) for v in spread(f"workload.{key}", s)])
    for key in zipped:
        if key not in CONTEXT_KEYS:
            raise BadInput(f"zip.workload.{key}: allowed are {', '.join(CONTEXT_KEYS)}")
    skew = np.array([float(v) for v in values.get("routing_skew", [base["routing_skew"] or 0.0])])
    batch = np.array([float(v) for v in values.get("batch", [base["batch"]])])
    axes = []
    if "routing_skew" in values:
        axes.append(Axis(name="routing_skew", size=len(skew), columns={"workload.routing_skew": skew}))
    if "batch" in values:
        axes.append(Axis(name="batch", size=len(batch), columns={"workload.batch": batch}))
    swept = [k for k in CONTEXT_KEYS if k in values]
    combos = list(itertools.product(*(values[k] for k in swept))) or [()]
    table: dict[str, np.ndarray] = {k: np.full(len(combos), _as_array(base[k])) for k in CONTEXT_KEYS}
    for i, key in enumerate(swept):
        table[key] = np.array([float(c[i]) for c in combos])
    if "context" not in swept and base["context"] is not None and ({"isl", "osl"} & set(swept)):
        table["context"] = np.full(len(combos), np.nan)
    for key, text in _ordered_zip(zipped, "workload"):
        table[key] = np.broadcast_to(expr.evaluate(text, table, f"zip.workload.{key}"), (len(combos),)).astype(
            np.float64
        )
    sizes = [len(values[k]) for k in swept]
    for i, key in enumerate(swept):
        axes.append(
            Axis(name=key, size=sizes[i], columns={f"workload.{key}": np.array([float(v) for v in values[key]])})
        )
    return batch, complete_context(table), skew, axes


def _serving_axis(study: Study, context: Context) -> tuple[Context, list[Axis]]:
    """Contexts once per way of serving, and the axis that numbers those, the slower digit.

    Disaggregated serving is decode alone here: its other pool is another grid, see `sweep.match`.
    """
    spec = study.grid.get("serving")
    if spec is None:
        ways = [(study.serving.mode, study.serving)]
    else:
        entries = [str(name) for name in spread("serving", spec)]
        ways = [(n, check_serving(ServingConfig(**study.library.raw("serving", n)))) for n in _unique(entries)]
        if any(way.mode == "disaggregated" for _, way in ways) and len(ways) > 1:
            raise BadInput(
                f"grid.serving={', '.join(n for n, _ in ways)}: two pools are two grids, matched afterwards; "
                "use -m serving=aggregated,disaggregated"
            )
    n = len(context.decode)
    fitted = float((study.efficiency.get("serving") or {}).get("phi", 1.0))
    phi = [fitted if way.phi is None else way.phi for _, way in ways]
    mixed = np.repeat([p if way.mode == "aggregated" else 0.0 for (_, way), p in zip(ways, phi, strict=True)], n)
    tiled = {k: np.tile(np.asarray(getattr(context, k)), len(ways)) for k in names(Context)}
    axes = [Axis(name="serving", size=len(ways), columns={"serving": np.array([w for w, _ in ways], dtype=object)})]
    return Context(**{**tiled, "mixed": mixed}), axes if spec is not None else []


def build(study: Study) -> Space:
    """The grid of a study: tables and axes.

    Raises: `BadInput` naming the key where an axis is empty, unknown or impossible.
    """
    study = prepared(study)
    for key in study.grid:
        known_axes = (*RECORDS, "efficiency", "placement", "serving")
        if key not in known_axes:
            raise BadInput(f"grid.{key}: no such axis; {closest(str(key), known_axes)}")
    zipped = _split_zip(study.zip)
    axes: list[Axis] = []
    dropped: dict[str, int] = {}
    records: dict[str, list[Record]] = {}
    for group in RECORD_AXES:
        records[group], axis, dropped[group] = record_axis(study, group, study.grid.get(group), zipped.get(group, {}))
        axes.append(axis)
    presets = [(study.efficiency_id, study.efficiency)]
    if "efficiency" in study.grid:
        presets = [
            (str(n), study.library.raw("efficiency", str(n))) for n in spread("efficiency", study.grid["efficiency"])
        ]
        axes.append(
            Axis(
                name="efficiency",
                size=len(presets),
                columns={"efficiency": np.array([n for n, _ in presets], dtype=object)},
            )
        )
    placements = [study.placement]
    if "placement" in study.grid:
        chosen = [str(n) for n in spread("placement", study.grid["placement"])]
        placements = [check_placement(study.library.raw("placement", n), n) for n in chosen]
        ids = np.array(chosen, dtype=object)
        axes.append(Axis(name="placement", size=len(chosen), columns={"placement": ids}))
    own = {h.id: check_memory(h.about.get("memory"), h.id) for h in records["hardware"]}
    check_tiers(placements, [t.name for tiers in own.values() for t in tiers])
    layout, axis = layout_axis(study, study.grid.get("layout"), zipped.get("layout", {}))
    axes.append(axis)
    batch, context, skew, load_axes = _workload_axes(study, study.grid.get("workload"), zipped.get("workload", {}))
    context, serving_axes = _serving_axis(study, context)
    at = next((i for i, a in enumerate(load_axes) if a.name not in ("routing_skew", "batch")), len(load_axes))
    axes += [*load_axes[:at], *serving_axes, *load_axes[at:]]
    if len(skew) > 1:  # a digit right after the layout: repeat each layout per skew
        layout = Layout(**{k: np.repeat(getattr(layout, k), len(skew)) for k in names(Layout)})
    n_layouts = len(layout.tpa)
    machines, steps = align(
        resolve(
            as_record(h),
            as_record(p),
            e,
            **h.lineage,
            plan=plan(policy, as_record(h), own[h.id]),
        )
        for h in records["hardware"]
        for p in records["precision"]
        for _, e in presets
        for policy in placements
    )
    models = complete_model(
        {k: np.array([_as_array(r.values[k]) for r in records["model"]], dtype=np.float64) for k in names(Model)}
    )
    check_models(models, records["model"])
    per_model = len(machines) * n_layouts * len(batch) * len(context.decode)
    full = (len(records["model"]) + dropped["model"]) * per_model
    space = Space(
        axes=tuple(axes),
        model=models,
        machines=machines,
        steps=steps,
        layout=layout,
        skew=np.tile(skew, n_layouts // len(skew)),
        batch=batch,
        context=context,
        hardware=tuple(records["hardware"]),
        precision=tuple(records["precision"]),
        model_max_context=np.asarray(models.max_context),
        where=tuple(study.where),
        dropped_early=full - len(records["model"]) * per_model,
    )
    known = set(filter_names(space))
    for text in space.where:
        for name in expr.names_in(text, "where"):
            if name not in known:
                raise BadInput(f"where={text}: no key {name}; {closest(name, known)}")
    return space


def check_models(model: Model, records: Sequence[Record]) -> None:
    """Refuse shapes that no layout can save."""

    def refuse(bad: np.ndarray, text: str) -> None:
        if bad.any():
            i = int(np.nonzero(bad)[0][0])
            raise BadInput(
                f"model={records[i].id}: " + text.format(**{k: f"{getattr(model, k)[i]:g}" for k in names(Model)})
            )

    refuse(
        model.top_k > np.maximum(model.n_experts, 0), "model.top_k={top_k}: must not exceed model.n_experts={n_experts}"
    )
    refuse((model.n_experts > 0) & (model.top_k < 1), "model.top_k={top_k}: must be at least 1 with experts")
    refuse((model.n_experts > 0) & (model.d_expert < 1), "model.d_expert={d_expert}: must be given with experts")
    mla = model.kv_lora_rank > 0
    uneven = ~mla & (np.mod(model.n_heads, np.maximum(model.n_kv_heads, 1)) != 0)
    refuse(uneven, "model.n_kv_heads={n_kv_heads}: must divide model.n_heads={n_heads}")
    refuse(
        model.n_full_layers < 0,
        "model.n_full_layers={n_full_layers}: more layers of other kinds than model.n_layers={n_layers}",
    )


# --- what occurs, what is impossible -----------------------------------------------------------------------------


def kinds(space: Space) -> Kinds:
    """What occurs in a grid, so that code for the rest is left out."""
    m, lay = space.model, space.layout
    machine = [r.machine for r in space.machines]
    return Kinds(
        gqa=bool(((m.kv_lora_rank <= 0) & (m.n_full_layers > 0)).any()),
        mla=bool(((m.kv_lora_rank > 0) & (m.n_full_layers > 0)).any()),
        window=bool((m.n_window_layers > 0).any()),
        linear=bool((m.n_linear_layers > 0).any()),
        sparse=bool(((m.sparse_top_k > 0) | (m.n_index_layers > 0)).any()),
        dense=bool((m.n_dense_layers > 0).any()),
        moe=bool((m.n_moe_layers > 0).any()),
        shared=bool((m.d_shared > 0).any()),
        latent=bool((m.latent_ratio > 1).any()),
        grouped=bool((lay.dpa > 1).any()),
        helix=bool((lay.kvp > 1).any()),
        drafting=bool((m.n_draft > 0).any()),
        overlap=bool((lay.overlap > 0).any()),
        hop_b=bool((lay.hop_b > 0).any()),
        two_batch=bool((lay.two_batch > 0).any()),
        skewed=bool((space.skew > 0).any()),
        elementwise=any(x.elementwise > 0 for x in machine),
        chunked=bool((lay.prefill_chunk > 0).any()),
        tiers=space.steps,
        reload=bool(space.steps) and uses_reload(space.machines) and bool((space.context.prefix_hit > 0).any()),
        aggregated=bool((np.asarray(space.context.mixed) > 0).any()),
        paced=bool(np.isfinite(np.asarray(space.context.tpot_max_s)).any()),
    )


def layout_gpus(layout: Layout) -> Any:
    """GPUs of one replica."""
    return layout.tpa * layout.kvp * layout.dpa * layout.pp


def row_reasons(space: Space, rows: np.ndarray) -> np.ndarray:
    """Why configurations are impossible whatever the load: a bit set per row, 0 where nothing stands against it.

    not_divisible: tpa must divide n_heads, tpf the widths it cuts, ep must not exceed n_experts (1 without), pp not
    n_layers, and tpa kvp dpa = tpf ep (a tied FFN: tpf = tpa, ep = dpa = 1).
    over_domain: a group leaves the scale-up domain of a machine without a scale-out network.
    unknown_figure, no_format: the machine's figures do not suffice.
    """
    i_model, i_machine, i_layout = space.indices(rows)
    of_shape, of_machine = space.impossible
    reasons: np.ndarray = of_shape[i_model, i_layout] | of_machine[i_machine, i_layout]
    return reasons


def _impossible(space: Space) -> tuple[np.ndarray, np.ndarray]:
    """Reasons that model and layout decide, and machine and layout: [models, layouts], [machines, layouts]."""

    def of_model(name: str) -> Any:
        return np.asarray(getattr(space.model, name))[:, None]

    def of_layout(name: str) -> Any:
        return np.asarray(getattr(space.layout, name))[None, :]

    tpa, kvp, dpa, tpf, ep, pp = (of_layout(k) for k in PARALLEL)
    tied = of_layout("ffn_tied") > 0
    experts = of_model("n_experts")
    bad = np.mod(of_model("n_heads"), tpa) != 0
    bad |= ep > np.maximum(experts, 1)
    bad |= pp > of_model("n_layers")
    bad |= np.where(tied, (tpf != tpa) | (ep != 1) | (dpa != 1), tpa * kvp * dpa != tpf * ep)
    bad |= (of_model("n_moe_layers") > 0) & (np.mod(of_model("d_expert"), tpf) != 0)
    grouped = dpa > 1
    bad |= grouped & (of_model("n_dense_layers") > 0) & (np.mod(of_model("d_ff"), tpf) != 0)
    bad |= grouped & (np.mod(of_model("d_shared"), tpf) != 0)
    of_shape = np.where(bad, REASON_BIT["not_divisible"], 0).astype(np.int32)

    domain = np.array([r.machine.domain for r in space.machines])[:, None]
    no_link = np.isnan([r.machine.reduce.bytes_per_s for r in space.machines])[:, None]
    no_network = np.isnan([r.machine.reduce.scaleout_bytes_per_s for r in space.machines])[:, None]
    unknown = np.array([bool(r.unknown) for r in space.machines])[:, None]
    no_format = np.array([r.no_format for r in space.machines])[:, None]
    stage = tpa * kvp * dpa
    # the widest group of a stage spans all its GPUs; a hop leaves the domain when the replica does
    leaves = (stage > domain) | ((pp > 1) & (stage * pp > domain))
    lost = leaves & no_network
    reasons = np.where(lost, REASON_BIT["over_domain"] | REASON_BIT["unknown_figure"], 0).astype(np.int32)
    reasons |= np.where((stage * pp > 1) & (domain > 1) & no_link, REASON_BIT["unknown_figure"], 0).astype(np.int32)
    reasons |= np.where(unknown, REASON_BIT["unknown_figure"], 0).astype(np.int32)
    reasons |= np.where(no_format, REASON_BIT["no_format"], 0).astype(np.int32)
    return of_shape, reasons


# --- filters -----------------------------------------------------------------------------------------------------


def filter_names(space: Space) -> list[str]:
    """Keys that a `where` may use."""
    keys = [f"model.{k}" for k in names(Model)] + [f"layout.{k}" for k in names(Layout)]
    keys += [f"hardware.{k}" for k in names(RECORDS["hardware"])] + [
        f"precision.{k}" for k in names(RECORDS["precision"])
    ]
    keys += [k for axis in space.axes for k in axis.columns if "." not in k]
    return [*keys, "model", "hardware", "precision", "params_total", "params_active", "layout.gpus", *_LOAD_KEYS]


_LOAD_KEYS = ("workload.batch", "workload.isl", "workload.osl", "workload.context", "workload.prefix_hit")


# which table a key is of: models, machines or layouts
_TABLE_OF = {
    **dict.fromkeys(("model", "params_total", "params_active"), (0,)),
    **dict.fromkeys(("hardware", "precision", "efficiency"), (1,)),
    "layout": (2,),
}


@dataclass(frozen=True, kw_only=True)
class Filters:
    """The `where` expressions of a grid, ready to be asked for blocks of rows."""

    space: Space
    row: tuple[str, ...]
    load: tuple[str, ...]

    def rows(self, rows: np.ndarray) -> np.ndarray:
        """Which rows pass the filters that do not ask for batch or context."""
        keep = np.ones(len(rows), dtype=bool)
        if not self.row:
            return keep
        at = self.space.indices(rows)
        for passes, which in self._tables:
            keep &= passes[tuple(at[i] for i in which)]
        return keep

    @functools.cached_property
    def _tables(self) -> list[tuple[np.ndarray, tuple[int, ...]]]:
        """Each row filter's answers for all combinations of the tables it asks: models, machines, layouts."""
        space = self.space
        sizes = (space.n_models, len(space.machines), space.n_layouts)
        found = []
        for text in self.row:
            asks = (n.partition(".")[0] for n in expr.names_in(text, "where"))
            which = tuple(sorted({i for n in asks for i in _TABLE_OF.get(n, (0, 1, 2))}))
            own = [np.arange(n) if i in which else np.zeros(1, dtype=np.int64) for i, n in enumerate(sizes)]
            rows = (own[0][:, None, None] * sizes[1] + own[1][None, :, None]) * sizes[2] + own[2][None, None, :]
            asked = [
                np.broadcast_to(np.asarray(expr.evaluate(text, _Scope(space, part), "where"), dtype=bool), part.shape)
                for part in np.array_split(rows.ravel(), max(rows.size >> 18, 1))
            ]
            found.append((np.concatenate(asked).reshape([sizes[i] for i in which]), which))
        return found

    def points(self, rows: np.ndarray) -> np.ndarray | None:
        """Which points of rows pass the filters on batch and context: [rows, batch, context], or None for all."""
        if not self.load:
            return None
        shape = (len(rows), len(self.space.batch), self.space.n_contexts)
        keep = np.ones(shape, dtype=bool)
        scope = _Scope(self.space, rows, per_point=True)
        for text in self.load:
            keep &= np.broadcast_to(np.asarray(expr.evaluate(text, scope, "where"), dtype=bool), shape)
        return keep


class _Scope(Mapping[str, Any]):
    """Keys of rows as arrays, looked up when an expression asks for them."""

    def __init__(self, space: Space, rows: np.ndarray, per_point: bool = False):
        self.space, self.per_point = space, per_point
        self.i_model, self.i_machine, self.i_layout = space.indices(rows)
        self.names = filter_names(space)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, key: object) -> bool:
        return key in self.names

    def __getitem__(self, key: str) -> Any:
        value = self._row_value(key)
        if value is None:
            return self._load_value(key)
        return value[:, None, None] if self.per_point else value

    def _row_value(self, key: str) -> Any:
        space = self.space
        group, _, name = key.partition(".")
        n_pe = len(space.machines) // len(space.hardware)
        i_hardware = self.i_machine // n_pe
        i_precision = (self.i_machine % n_pe) // (n_pe // len(space.precision))
        if key in ("params_total", "params_active"):
            with namespace(np):
                params = count_params(space.model)
            return np.asarray(params.total if key == "params_total" else params.active)[self.i_model]
        if key == "layout.gpus":
            return np.asarray(layout_gpus(space.layout))[self.i_layout]
        if group == "model" and name:
            return np.asarray(getattr(space.model, name))[self.i_model]
        if group == "layout" and name:
            return np.asarray(getattr(space.layout, name))[self.i_layout]
        if group == "hardware" and name:
            return np.array([_as_array(h.values[name]) for h in space.hardware])[i_hardware]
        if group == "precision" and name:
            return np.array([_as_array(p.values[name]) for p in space.precision])[i_precision]
        for axis in space.axes:
            if key in axis.columns and "." not in key:
                index = {"model": self.i_model, "hardware": i_hardware, "precision": i_precision}.get(axis.name)
                if index is None and axis.name == "placement":
                    index = self.i_machine % axis.size
                if index is None and axis.name == "efficiency":
                    inner = n_pe // len(space.precision) // axis.size  # placements
                    index = self.i_machine // inner % axis.size
                if index is None and axis.name == "layout":
                    index = self.i_layout // (len(space.layout.tpa) // axis.size)
                if index is not None:
                    return axis.columns[key][index]
        return None

    def _load_value(self, key: str) -> np.ndarray:
        space, context = self.space, self.space.context
        if key == "workload.batch":
            return space.batch[None, :, None]
        column = {
            "workload.isl": context.prompt,
            "workload.osl": context.generated,
            "workload.context": context.decode,
            "workload.prefix_hit": context.prefix_hit,
        }.get(key)
        if column is None:
            raise BadInput(f"where: {key} cannot be filtered on")
        return np.asarray(column)[None, None, :]


def filters(space: Space) -> Filters:
    """The filters of a grid, sorted by what they ask for."""
    load = tuple(t for t in space.where if expr.names_in(t, "where") & set(_LOAD_KEYS))
    return Filters(space=space, row=tuple(t for t in space.where if t not in load), load=load)


def machine_arrays(space: Space) -> Machine:
    """The machines as one record of arrays."""
    machines = [r.machine for r in space.machines]
    n_tiles = max(len(m.tiles) for m in machines)
    if n_tiles:  # presets with fewer tiles repeat their last; without any, a tile that costs nothing leaves the FLOPs
        unit = (Tile(m=1.0, n=1.0, rate=1e30),)
        padded = []
        for m in machines:
            own = m.tiles or unit
            padded.append(dataclasses.replace(m, tiles=own + (own[-1],) * (n_tiles - len(own))))
        machines = padded
    return jax.tree.map(lambda *leaves: np.asarray(leaves, dtype=np.float64), *machines)  # type: ignore[no-any-return]


def bands(space: Space, rows: np.ndarray, *, pools: bool = False) -> dict[str, np.ndarray]:
    """Factors of the error bands (`sweep.columns.FACTORS`), one of each per row.

    Args:
        rows: numbers of rows [n].
        pools: of disaggregated serving; else those of a replica that also prefills.
    """
    i_model, i_machine, _ = space.indices(rows)
    way = "disaggregated" if pools else "aggregated"
    rate = (way, way if pools else "drafted")
    table = np.array(
        [
            [
                (*b.of("tpot", tpot), *b.of("tok_s_gpu", rate[i]), *b.first(way), *b.of("prefill", "disaggregated"))
                for i, tpot in enumerate(("undrafted", "drafted"))
            ]
            for b in (m.band for m in space.machines)
        ]
    )  # [machine, drafted, factor]
    drafted = (np.asarray(space.model.n_draft) > 0).astype(np.int64)[i_model]
    found = table[i_machine, drafted]
    experts = (np.asarray(space.model.n_experts) > 0).astype(np.int64)[i_model]
    launch_s = np.array([m.band.launch_s for m in space.machines])[i_machine, experts]
    found[:, FACTORS.index("ttft_band_add_s")] += launch_s * np.asarray(space.model.n_layers)[i_model]
    return {name: found[:, i] for i, name in enumerate(FACTORS)}
