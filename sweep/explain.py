"""One point, op by op: where its time goes, what it holds, and what would have to change for it to be otherwise.

The same cost model that a sweep batches, run once on plain float64 numbers, so that every intermediate value can be
looked at. All rows are for one GPU, one layer, one step of one microbatch (prefill: one chunk).
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from sweep import accuracy
from sweep.columns import AGGREGATED_COLUMNS, BANDS, COLUMNS, NEEDS, ends
from sweep.config import Study, as_record
from sweep.cost.arith import ceil_div, namespace
from sweep.cost.attention import decode_attention, prefill_attention
from sweep.cost.gemm import crossover_m
from sweep.cost.memory import gpus, request_bytes, weights_bytes
from sweep.cost.ops import Op, Parts, is_collective, op_parts
from sweep.cost.placement import alone, of_step, tiered_ttft, with_tiers
from sweep.cost.result import BOUNDS, REASONS, evaluate_point
from sweep.cost.step import (
    Row,
    expected_tokens,
    finish_step,
    halves,
    head_op,
    hop_op,
    layer_comm,
    layer_kernels,
    load_terms,
    one_pass,
    step_tokens,
    token_time,
)
from sweep.cost.tokens import microbatches, prefill_tokens
from sweep.doubt import range_names, ranges
from sweep.errors import BadInput
from sweep.evaluate import accuracy_table, excess_of
from sweep.largest import largest_batch
from sweep.machine import Link, Machine, OpRate, attention_unit, flops_of, math_unit
from sweep.point import FORMAT_MATH, Context, Kinds, Layout, Model, Num, Precision
from sweep.space import REASON_BIT, Space, bands, build, kinds, row_reasons
from sweep.tiers import CLASSES

OP_KEYS = (
    "op",
    "phase",
    "count",
    "m",
    "n",
    "k",
    "flops",
    "weight_bytes",
    "kv_bytes",
    "read_bytes",
    "write_bytes",
    "comm_bytes",
    "intensity",
    "math_s",
    "memory_s",
    "comm_s",
    "floor_s",
    "time_s",
    "bound",
    "crossover_m",
)

# kernels in the order in which a layer runs them; collectives follow, then the LM head and the pipeline hop
_ORDER = (
    "qkv_proj",
    "q_down",
    "q_up",
    "kv_down",
    "k_up",
    "kv_up",
    "index_q",
    "index_k",
    "indexer",
    "attention",
    "v_up",
    "o_proj",
    "linear_in",
    "linear_state",
    "linear_out",
    "ffn_up_gate",
    "ffn_down",
    "router",
    "latent_down",
    "experts_up_gate",
    "experts_down",
    "latent_up",
    "shared_up_gate",
    "shared_down",
    "elementwise",
)
_ATTENTION_GEMMS = frozenset(
    (
        "qkv_proj",
        "q_down",
        "q_up",
        "kv_down",
        "k_up",
        "v_up",
        "kv_up",
        "index_q",
        "index_k",
        "linear_in",
        "linear_out",
        "o_proj",
    )
)
_FFN_GEMMS = frozenset(("ffn_up_gate", "ffn_down", "shared_up_gate", "shared_down", "latent_down", "latent_up"))


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """A point with everything that led to its numbers. A number that cannot be computed is `None`."""

    columns: dict[str, Any]  # of the schema; `reasons` a list of names, `bound` a label
    ops: list[dict[str, Any]]
    step: dict[str, Any]  # what a decode step is made of beside its ops
    memory: dict[str, Any]  # per GPU
    inputs: dict[str, Any]  # names and figures of the records
    accuracy_label: str
    ranges_left: list[str]  # names of the validity ranges that `extrapolation` counts
    peaks: dict[str, float]  # dense FLOP/s of the math units in use
    hbm_bytes_per_s: float | None
    _point: _Point = dataclasses.field(repr=False)

    def as_dict(self) -> dict[str, Any]:
        """The explanation as plain data, ready for JSON."""
        return {
            **self.inputs,
            **self.columns,
            "accuracy_label": self.accuracy_label,
            "ranges_left": self.ranges_left,
            "step": self.step,
            "memory": self.memory,
            "moves": [dataclasses.asdict(move) for move in moves(self)],
            "ops": self.ops,
        }


@dataclass(frozen=True, kw_only=True)
class _Point:
    """One point as scalars."""

    row: Row
    batch: Num
    context: Context
    kinds: Kinds

    @property
    def drafted(self) -> Num:
        return self.row.model.n_draft if self.kinds.drafting else np.float64(0.0)

    @property
    def weights(self) -> Num:
        """Bytes of weights on one GPU."""
        return weights_bytes(self.row.model, self.row.machine, self.row.layout)

    @property
    def request(self) -> Num:
        """Bytes of cache of one request on one GPU at its longest context."""
        return request_bytes(self.row.model, self.row.machine, self.row.layout, self.context.longest)

    def running(self) -> Row:
        """The configuration as its running batch finds it: rates are those of the tiers that bytes lie in."""
        return with_tiers(self.row, self.weights, self.request, self.batch, self.kinds)[0]

    def prefilling(self) -> Row:
        """The configuration as a prompt finds it that is alone on the machine."""
        return alone(self.row, self.weights, self.context, self.kinds)[0]


def explain(study: Study) -> Explanation:
    """The point that the base records of a study describe; its grid, zip and filters are ignored.

    Raises: `BadInput` where the layout is impossible for the model. Whatever else stands against the point (capacity,
        missing figures, no such format, outside the domain, too slow to the first token) is in `reasons`.
    """
    space, point = point_of(study)
    with _numbers():
        return _explained(study, space, point)


def point_of(study: Study) -> tuple[Space, _Point]:
    """The point that the base records of a study describe, as float64 numbers, and the grid of that one point.

    Raises: as `explain`, but for layouts that `space.row_reasons` refuses.
    """
    point_study = dataclasses.replace(study, grid={}, on_top={}, zip={}, where=[])
    load = study.base["workload"].values
    if load["batch"] is None:
        raise BadInput("workload.batch=null: must be given")
    space = build(point_study)
    if study.serving.mode == "disaggregated":
        raise BadInput("serving=disaggregated: a point is of one pool; nearest: decode, or sweep serving=disaggregated")
    model, layout = _scalars(space.model), _scalars(space.layout)
    check_layout(model, layout)
    point = _Point(
        row=_row(space, point_study, model, layout),
        batch=np.float64(space.batch[0]),
        context=_scalars(space.context),
        kinds=kinds(space),
    )
    with _numbers():
        return space, _sized(point)


def _sized(point: _Point) -> _Point:
    """A point whose batch is a number: of `max`, the largest that fits and keeps the limits."""
    if math.isfinite(point.batch):
        return point

    def at(batch: Num) -> tuple[Any, Any]:
        _, at_context, cost = evaluate_point(point.row, np.float64(batch), point.context, point.kinds)
        return at_context, cost

    def holds(batch: np.ndarray) -> bool:
        _, cost = at(np.float64(batch))
        return bool(cost.fits and cost.in_time and cost.in_pace)

    return dataclasses.replace(point, batch=np.float64(largest_batch(at(1.0)[0].max_batch, holds)))


def _explained(study: Study, space: Space, point: _Point) -> Explanation:
    row, context = point.row, point.context
    at_row, at_context, cost = evaluate_point(row, point.batch, context, point.kinds)
    columns: dict[str, Any] = {}
    shown = (*COLUMNS, *AGGREGATED_COLUMNS) if point.kinds.aggregated else COLUMNS
    for column in shown:
        for source in (at_row, at_context, cost):
            if hasattr(source, column.name):
                columns[column.name] = _number(getattr(source, column.name))
    columns["bound"] = BOUNDS[int(cost.bound)] if columns["tpot_s"] is not None else None
    reasons = _reasons(space)
    if _number(cost.held_bytes) is not None and _number(row.machine.hbm_bytes) is not None and not cost.fits:
        reasons.add("capacity")
    if columns["ttft_s"] is not None and not cost.in_time:
        reasons.add("ttft_cut")
    columns |= {name: _number(factor[0]) for name, factor in bands(space, np.array([0])).items()}
    banded: dict[str, Any] = {}
    for best, band in BANDS.items():
        if best in columns:
            known = None not in (columns[best], *(columns[name] for name in NEEDS[band.by]))
            low, high = ends(band.by, columns[best], columns.__getitem__) if known else (None, None)
            banded |= {band.low: low, band.high: high}
    if columns["tpot_s"] is not None and not cost.in_pace:
        reasons.add("tpot_cut")
    columns["feasible"] = not reasons
    columns["reasons"] = [name for name in REASONS if name in reasons]
    beyond = int(context.longest > row.model.max_context)
    columns["extrapolation"] = int(row.extrapolation) + beyond
    left = int(ranges(space, study).bits[0, 0]) | beyond << len(accuracy.EXTRAPOLATION_RANGES)
    return Explanation(
        columns={c.name: columns[c.name] for c in shown} | banded,
        ops=[*decode_rows(point), *prefill_rows(point)],
        step=_step(point),
        memory={
            "weights_bytes": columns["weights_bytes"],
            "kv_bytes": columns["kv_bytes"],
            "activation_bytes": columns["activation_bytes"],
            "reserve_bytes": _number(row.machine.reserve_bytes),
            "held_bytes": columns["held_bytes"],
            "capacity_bytes": _number(row.machine.hbm_bytes),
            "request_bytes": _number(at_context.request_bytes),
            "max_batch": columns["max_batch"],
            **_tiers(space, point),
        },
        inputs={**_inputs(study, point), "constants": _constants(study, space)},
        accuracy_label=accuracy.label(study.accuracy),
        ranges_left=list(range_names(left)),
        peaks=_peaks(study),
        hbm_bytes_per_s=_number(row.machine.peak_bytes_per_s),
        _point=point,
    )


def _tiers(space: Space, point: _Point) -> dict[str, Any]:
    """Which bytes of a GPU lie in which tier, and what a prefix costs that waits in one of them."""
    plan = space.machines[0].plan
    if plan is None or not point.kinds.tiers or plan.unknown:
        return {}
    memory = point.row.machine.memory
    assert memory is not None
    placed = of_step(point.row, point.weights, point.request, point.batch, point.kinds)
    names = plan.placement.tiers()  # of one machine: all tiers that its placement names, in this order
    rates = {t.name: t for t in plan.tiers}
    tiers = []
    for i, name in enumerate(names):
        if name not in rates:
            continue
        held = {c: float(placed.taken[j][i]) for j, c in enumerate(CLASSES)}
        tiers.append(
            {
                "tier": name,
                "bytes": rates[name].bytes,
                "bytes_per_s": rates[name].bytes_per_s,
                "room_bytes": _number(memory.tier_bytes[i]),
                **{f"{c}_bytes": size for c, size in held.items()},
            }
        )
    found: dict[str, Any] = {
        "placement": plan.placement.id,
        "tiers": tiers,
        "unplaced_bytes": _number(placed.unplaced),
    }
    if point.kinds.reload:
        back = tiered_ttft(point.row, point.weights, point.context, point.kinds)
        values: dict[str, Any] = {f.name: _number(getattr(back, f.name)) for f in dataclasses.fields(back)}
        values["faster"] = "reload" if back.with_reload_s <= back.recompute_s else "recompute"
        found["reload"] = values
    return found


# --- the point ---------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _numbers() -> Iterator[None]:
    """Plain numpy instead of jax, and quiet where a figure is unknown or a quotient infinite."""
    with namespace(np), np.errstate(all="ignore"):
        yield


def _scalars(record: Any) -> Any:
    """A table of one entry as float64 numbers."""
    return jax.tree.map(lambda x: np.float64(np.asarray(x, dtype=np.float64).reshape(-1)[0]), record)


def _row(space: Space, study: Study, model: Model, layout: Layout) -> Row:
    a = _scalars(accuracy_table(space, study))
    machine = _scalars(space.machines[0].machine)
    return Row(
        model=model,
        machine=dataclasses.replace(machine, imbalance_off=machine.imbalance_off * excess_of(space).excess[0, 0]),
        layout=layout,
        skew=np.float64(space.skew[0]),
        accuracy=a.accuracy,
        loss=a.loss,
        loss_sigma=a.loss_sigma,
        accuracy_low=a.accuracy_low,
        accuracy_high=a.accuracy_high,
        extrapolation=a.extrapolation,
    )


def _reasons(space: Space) -> set[str]:
    bits = int(row_reasons(space, np.array([0]))[0])
    found = {name for name, bit in REASON_BIT.items() if bits & bit}
    if "not_divisible" in found:
        raise BadInput("layout: the model cannot be cut this way (not_divisible)")
    return found


def _number(value: Any) -> float | None:
    """A float, `None` where it is unknown or infinite."""
    real = float(value)
    return real if math.isfinite(real) else None


def _whole(value: Any) -> float | int | None:
    """A number that is usually a count, as an integer where it is one."""
    real = _number(value)
    return int(real) if real is not None and real.is_integer() else real


def _peaks(study: Study) -> dict[str, float]:
    """Dense FLOP/s of each math unit that the point uses, the fastest first."""
    hardware, p = as_record(study.base["hardware"]), as_record(study.base["precision"])
    units = {math_unit(w, p.activations, hardware) for w in _weight_formats(p)} | {attention_unit(p.kv, hardware)}
    peaks = {u: flops_of(hardware, u) for u in units}
    return dict(sorted(((u, f) for u, f in peaks.items() if math.isfinite(f)), key=lambda item: -item[1]))


def _weight_formats(p: Precision) -> set[str]:
    formats = {p.weights_attn or p.weights, p.weights_ffn or p.weights, p.head}
    if p.quantized_fraction is not None and p.quantized_fraction < 1:
        formats.add("bf16")
    return {f for f in formats if f in FORMAT_MATH}


def _inputs(study: Study, point: _Point) -> dict[str, Any]:
    """What was asked for: names as in a table of points, layout and load in full, and the figures of the records."""
    base = study.base
    layout = point.row.layout
    cut = {k: base["layout"].values[k] for k in base["layout"].values}
    for key in ("tpa", "kvp", "dpa", "tpf", "ep", "pp"):
        cut[key] = _whole(getattr(layout, key))
    cut = {"gpus": _whole(gpus(layout)), **{k: _plain(v) for k, v in cut.items()}}
    return {
        "model": base["model"].id,
        "hardware": base["hardware"].id,
        "precision": base["precision"].id,
        "efficiency": study.efficiency_id,
        "model_status": base["model"].status,
        "hardware_status": base["hardware"].status,
        "model_overridden": list(base["model"].about.get("overridden") or []),
        "hardware_overridden": list(base["hardware"].about.get("overridden") or []),
        "hardware_price": base["hardware"].about.get("price"),
        "hardware_power": base["hardware"].about.get("power"),
        "layout": cut,
        "serving": study.serving.mode,
        "workload": {k: _whole(point.batch) if k == "batch" else _plain(v) for k, v in base["workload"].values.items()},
        "inputs": {g: {k: _plain(v) for k, v in base[g].values.items()} for g in ("model", "hardware", "precision")},
    }


def _constants(study: Study, space: Space) -> dict[str, Any]:
    """Whose constants the machine takes: of its own generation, of a relative, or those common to all chips."""
    band = space.machines[0].band
    own = study.base["hardware"].lineage["generation"]
    known = bool(study.efficiency.get("generations"))
    return {"generation": own, "from": band.relative, "inherited": known and band.inherited}


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


# --- what is impossible ------------------------------------------------------------------------------------------


def check_layout(model: Model, layout: Layout) -> None:
    """Refuse a layout that the model cannot be cut into.

    `tpa` must divide the heads, `ep` not exceed the experts, `pp` not the layers, both sides of the equation agree, and
    `tpf` divide the widths that it cuts.
    Raises: `BadInput` with the nearest values that would do.
    """
    tpa, kvp, dpa, tpf, ep, pp = (getattr(layout, k) for k in ("tpa", "kvp", "dpa", "tpf", "ep", "pp"))
    n = tpa * kvp * dpa
    _must_divide("layout.tpa", tpa, "model.n_heads", model.n_heads)
    if ep > max(model.n_experts, 1):
        if model.n_experts > 0:
            raise BadInput(
                f"layout.ep={ep:g}: must not exceed {_named('n_experts', model)}; nearest: {model.n_experts:g}"
            )
        raise BadInput(
            f"layout.ep={ep:g}: must not exceed 1 without experts ({_named('n_experts', model)}); nearest: 1"
        )
    if pp > model.n_layers:
        raise BadInput(f"layout.pp={pp:g}: must not exceed {_named('n_layers', model)}; nearest: {model.n_layers:g}")
    if layout.ffn_tied > 0:
        if tpf != tpa or ep != 1 or dpa != 1:
            raise BadInput(
                f"layout.ffn_tied=true: needs dpa = 1, ep = 1 and tpf = tpa; "
                f"given dpa={dpa:g}, ep={ep:g}, tpf={tpf:g}, tpa={tpa:g}"
            )
    elif tpf * ep != n or not float(tpf).is_integer():
        attention = f"tpa x kvp x dpa = {tpa:g} x {kvp:g} x {dpa:g} = {n:g}"
        if tpf * ep == n:  # tpf was derived
            near = _nearest_divisors(ep, n, model.n_experts)
            raise BadInput(f"layout.ep={ep:g}: must divide {attention}; nearest: {near}")
        fitting = f"layout.tpf={n / ep:g}" if n % ep == 0 else f"layout.ep={_nearest_divisors(ep, n, model.n_experts)}"
        raise BadInput(
            f"layout.tpf={tpf:g}: tpf x ep = {tpf:g} x {ep:g} = {tpf * ep:g} must equal {attention}; nearest: {fitting}"
        )
    if model.n_moe_layers > 0:
        _must_divide("layout.tpf", tpf, "model.d_expert", model.d_expert)
    if dpa > 1:
        if model.n_dense_layers > 0:
            _must_divide("layout.tpf", tpf, "model.d_ff", model.d_ff)
        if model.d_shared > 0:
            _must_divide("layout.tpf", tpf, "model.d_shared", model.d_shared)


def _named(key: str, model: Model) -> str:
    return f"model.{key}={getattr(model, key):g}"


def _must_divide(key: str, value: Num, of: str, whole: Num) -> None:
    if whole % value != 0:
        near = _nearest_divisors(value, whole)
        raise BadInput(f"{key}={value:g}: must divide {of}={whole:g}; nearest: {near}")


def _nearest_divisors(value: Num, whole: Num, limit: Num = math.inf) -> str:
    """The divisors of a number next to a value, the smaller first."""
    size = int(whole)
    small = [i for i in range(1, math.isqrt(size) + 1) if size % i == 0]
    divisors = sorted({*small, *(size // i for i in small)})
    divisors = [d for d in divisors if d <= max(limit, 1)] or [1]
    below, above = [d for d in divisors if d < value], [d for d in divisors if d > value]
    return ", ".join(str(d) for d in (*below[-1:], *above[:1]))


# --- ops ---------------------------------------------------------------------------------------------------------


def decode_rows(point: _Point) -> list[dict[str, Any]]:
    """Operations of one decode step of one microbatch.

    With two-batch overlap the step passes over the layers twice, with half the requests: bytes, FLOPs and seconds
    are those of both passes, `m` is that of one.
    """
    row, kind = point.running(), point.kinds
    tokens = step_tokens(row.layout, point.batch, point.drafted, kind)
    passes = halves(row.layout, point.batch, kind)
    attention = decode_attention(row.model, row.machine, row.layout, tokens, point.context.decode, kind)
    kernels = [*layer_kernels("decode", row, tokens, kind), *attention]
    layer = [*_in_order(kernels), *layer_comm("decode", row, tokens, kind)]
    last = [head_op("decode", row.model, row.machine, row.layout, tokens)]
    last += _hops(hop_op("decode", row.model, row.machine, row.layout, tokens), row.layout)
    rows = [op_row(op, row.machine, passes=passes) for op in layer if _occurs(op)]
    return rows + [op_row(op, row.machine) for op in last if _occurs(op)]


def prefill_rows(point: _Point) -> list[dict[str, Any]]:
    """Operations of the slowest prefill chunk: the last whole one, or the rest after it where that takes longer."""
    row, context = point.prefilling(), point.context
    cached = context.prompt * context.prefix_hit
    new = max(context.prompt - cached, 1.0)
    chunk = min(row.layout.prefill_chunk, new) if row.layout.prefill_chunk > 0 else new
    whole_chunks = math.floor(new / chunk + 1e-4)
    rest = new - whole_chunks * chunk
    last = _chunk_rows(point, chunk, cached + (whole_chunks - 1) * chunk)
    if rest > 0.5:
        partial = _chunk_rows(point, rest, cached + whole_chunks * chunk)
        last = max(last, partial, key=lambda rows: sum(r["count"] * (r["time_s"] or 0.0) for r in rows))
    tokens = prefill_tokens(row.layout, chunk)
    ends = [head_op("prefill", row.model, row.machine, row.layout, tokens)]
    ends += _hops(hop_op("prefill", row.model, row.machine, row.layout, tokens), row.layout)
    return last + [op_row(op, row.machine) for op in ends if _occurs(op)]


def _chunk_rows(point: _Point, chunk: Num, prefix: Num) -> list[dict[str, Any]]:
    row, kind = point.prefilling(), point.kinds
    tokens = prefill_tokens(row.layout, np.float64(chunk))
    attention = prefill_attention(
        row.model, row.machine, row.layout, tokens, np.float64(chunk), np.float64(prefix), kind
    )
    kernels = [*layer_kernels("prefill", row, tokens, kind), *attention]
    ops = [*_in_order(kernels), *layer_comm("prefill", row, tokens, kind)]
    return [op_row(op, row.machine) for op in ops if _occurs(op)]


def _hops(hop: Op, layout: Layout) -> list[Op]:
    return [hop] if layout.pp > 1 else []


def _in_order(ops: Sequence[Op]) -> list[Op]:
    return sorted(ops, key=lambda op: _ORDER.index(op.name))


def _occurs(op: Op) -> bool:
    """Whether a layer has it: some layer does, and a collective has a group of more than one GPU."""
    if not op.count > 0:
        return False
    return not is_collective(op) or not (op.comm_bytes == 0 and op.floor_s == 0)


def op_row(op: Op, machine: Machine, *, passes: Num = 1.0) -> dict[str, Any]:
    """One operation as plain numbers: what it moves and computes, and how long each resource takes."""
    parts = op_parts(op)
    moved_in = op.weight_bytes + op.kv_bytes + op.input_bytes
    moved = moved_in + op.output_bytes
    time_s = _number(parts.total_s * passes)
    six = (parts.math_s, parts.weight_s, parts.kv_s, parts.activation_s, parts.comm_s, parts.latency_s)
    values: dict[str, Any] = {
        "op": op.name,
        "phase": op.phase,
        "count": _whole(op.count),
        **{key: _whole(value) if value > 0 else None for key, value in (("m", op.m), ("n", op.n), ("k", op.k))},
        "flops": _number(op.flops * passes),
        "weight_bytes": _number(op.weight_bytes * passes),
        "kv_bytes": _number(op.kv_bytes * passes),
        "read_bytes": _number(moved_in * passes),
        "write_bytes": _number(op.output_bytes * passes),
        "comm_bytes": _number(op.comm_bytes * passes),
        "intensity": _number(op.flops / moved) if moved > 0 else None,
        "math_s": _number(op.math_s * passes),
        "memory_s": _number((op.weight_s + op.kv_s + op.activation_s) * passes),
        "comm_s": _number(op.comm_s * passes),
        "floor_s": _number(parts.latency_s * passes),
        "time_s": time_s,
        "bound": None if time_s is None else BOUNDS[int(np.argmax([float(x) for x in six]))],
        "crossover_m": _crossover(op, machine),
    }
    return {key: values[key] for key in OP_KEYS}


def _crossover(op: Op, machine: Machine) -> float | None:
    """Tokens from which on a GEMM is bound by math; `None` if it never is, or is no GEMM."""
    rate: OpRate
    if op.name in _ATTENTION_GEMMS:
        rate, weight = machine.gemm_attn, machine.attn_weight
    elif op.name in _FFN_GEMMS:
        rate, weight = machine.gemm_ffn, machine.ffn_weight
    elif op.name.startswith("experts_"):
        rate, weight = machine.experts, machine.ffn_weight
    elif op.name in ("router", "lm_head"):
        rate, weight = machine.gemm_head, machine.head_weight
    else:
        return None
    return _number(crossover_m(op.n, op.k, machine, rate, weight))


def _step(point: _Point) -> dict[str, Any]:
    """What a decode step is made of: its ops, and what stands beside them. The seconds add up to `step_s`."""
    row, kind, context, batch = point.running(), point.kinds, point.context, point.batch
    load = load_terms(row, batch, kind)
    through = one_pass(row, load.step, batch, point.drafted, context.decode, kind)
    verify = finish_step(row, load.step, batch, point.drafted, context.decode, kind)
    token = token_time(row, load, batch, context.decode, kind)
    layer_rows = [r for r in decode_rows(point) if r["op"] not in ("lm_head", "pipeline_hop")]
    layers_s = sum(r["count"] * (math.nan if r["time_s"] is None else r["time_s"]) for r in layer_rows)
    between_s = row.model.n_layers * row.machine.layer_s * halves(row.layout, batch, kind)
    host_s = row.machine.host_s + ceil_div(batch, row.layout.dpa) * row.machine.request_s
    ends_s = load.step.head.total_s + load.step.hop.total_s
    hidden_s = layers_s + between_s - through.total_s
    return {
        "step_s": _number(token.step_s),
        "ops_s": _number(layers_s + ends_s),
        "between_kernels_s": _number(between_s),
        "host_s": _number(host_s),
        "hidden_s": _number(-hidden_s if abs(hidden_s) > 1e-12 * layers_s else 0.0),
        "waiting_s": _number(_remainder(verify, through.total_s + ends_s + host_s)),
        "drafting_s": _number(token.step_s - verify.total_s if kind.drafting else 0.0),
        "microbatches": _whole(microbatches(row.layout, batch)),
        "expected_tokens": _number(expected_tokens(row.model.acceptance, point.drafted)),
    }


def _remainder(whole: Parts, part_s: Num) -> Num:
    left = whole.total_s - part_s
    return left if abs(left) > 1e-12 * whole.total_s or math.isnan(left) else 0.0


# --- what would have to change -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Move:
    """The smallest change of one quantity, all else equal, after which something else takes the largest part."""

    lever: str  # what changes
    factor: float  # times what it is now
    value: float | None  # what it would then be, for a figure with one value
    unit: str
    bound: str  # the largest part then


def moves(explanation: Explanation, *, furthest: float = 64.0) -> list[Move]:
    """For each resource and for the load: by which factor it must change for the bound to move.

    The point is evaluated again with the changed figure, since a kernel that stops waiting for memory starts waiting
    for math; the factor is where the label first changes, up to `furthest` times more or less.
    """
    point = explanation._point
    if explanation.columns["bound"] is None:
        return []
    machine = point.row.machine
    levers: list[tuple[str, Num, str, Callable[[float], _Point]]] = [
        ("peak FLOP/s", machine.peak_flops, "flop/s", lambda f: _with(point, _scaled(machine, flops=f))),
        ("memory bandwidth", machine.peak_bytes_per_s, "B/s", lambda f: _with(point, _scaled(machine, memory=f))),
        ("link bandwidth", math.nan, "", lambda f: _with(point, _scaled(machine, link=f))),
        ("floors and latencies", math.nan, "", lambda f: _with(point, _scaled(machine, latency=f))),
        ("batch", point.batch, "requests", lambda f: _with_batch(point, f)),
        ("context", point.context.decode, "tok", lambda f: _with_context(point, f)),
    ]
    found: list[Move] = []
    with _numbers():
        for lever, value, unit, change in levers:
            for direction in (1.0, -1.0):
                hit = _first_move(change, str(explanation.columns["bound"]), direction, math.log2(furthest))
                if hit is None:
                    continue
                factor, bound = hit
                if unit in ("requests", "tok"):  # whole numbers
                    amount = max(float(np.ceil(value * factor) if direction > 0 else np.floor(value * factor)), 1.0)
                    factor, bound = amount / float(value), _bound(change(amount / float(value)))
                    if bound == explanation.columns["bound"]:
                        continue
                found.append(Move(lever=lever, factor=factor, value=_number(value * factor), unit=unit, bound=bound))
    return found


def _first_move(
    change: Callable[[float], _Point], now: str, direction: float, limit: float
) -> tuple[float, str] | None:
    """The first factor, going up or down from 1, at which the label changes: half octaves, then bisection."""
    at = 0.0
    while at < limit:
        further = at + 0.5
        bound = _bound(change(2.0 ** (direction * further)))
        if bound != now:
            for _ in range(12):
                middle = (at + further) / 2.0
                at_middle = _bound(change(2.0 ** (direction * middle)))
                if at_middle == now:
                    at = middle
                else:
                    further, bound = middle, at_middle
            return 2.0 ** (direction * further), bound
        at = further
    return None


def _bound(point: _Point) -> str:
    if point.kinds.aggregated:
        return BOUNDS[int(evaluate_point(point.row, point.batch, point.context, point.kinds)[2].bound)]
    row = point.running()
    load = load_terms(row, point.batch, point.kinds)
    p = token_time(row, load, point.batch, point.context.decode, point.kinds).parts
    return BOUNDS[int(np.argmax([p.math_s, p.weight_s, p.kv_s, p.activation_s, p.comm_s, p.latency_s]))]


def _with(point: _Point, machine: Machine) -> _Point:
    return dataclasses.replace(point, row=dataclasses.replace(point.row, machine=machine))


def _with_batch(point: _Point, factor: float) -> _Point:
    return dataclasses.replace(point, batch=np.maximum(np.round(point.batch * factor), 1.0))


def _with_context(point: _Point, factor: float) -> _Point:
    context = dataclasses.replace(point.context, decode=np.maximum(np.round(point.context.decode * factor), 1.0))
    return dataclasses.replace(point, context=context)


def _scaled(
    machine: Machine, *, flops: float = 1.0, memory: float = 1.0, link: float = 1.0, latency: float = 1.0
) -> Machine:
    """A machine with some of its rates and start-up times multiplied."""
    changed: dict[str, Any] = {}
    for f in dataclasses.fields(Machine):
        value = getattr(machine, f.name)
        if isinstance(value, OpRate):
            changed[f.name] = dataclasses.replace(
                value,
                flops_per_s=value.flops_per_s * flops,
                read_bytes_per_s=value.read_bytes_per_s * memory,
                input_bytes_per_s=value.input_bytes_per_s * memory,
                write_bytes_per_s=value.write_bytes_per_s * memory,
                t0_s=value.t0_s * latency,
                chain_s=value.chain_s * latency,
            )
        elif isinstance(value, Link):
            by_field = {g.name: link if g.name.endswith("bytes_per_s") else latency for g in dataclasses.fields(Link)}
            changed[f.name] = Link(**{name: getattr(value, name) * factor for name, factor in by_field.items()})
        elif f.name in ("layer_s", "host_s", "request_s"):
            changed[f.name] = value * latency
    return dataclasses.replace(machine, **changed)


# --- two points --------------------------------------------------------------------------------------------------


def compare(first: Explanation, second: Explanation) -> list[dict[str, Any]]:
    """Operations of two points side by side: the n-th row of an op's name and phase against the n-th of the other."""
    rows: dict[tuple[str, str, int], list[dict[str, Any] | None]] = {}
    for side, explanation in enumerate((first, second)):
        seen: dict[tuple[str, str], int] = {}
        for row in explanation.ops:
            name = (row["phase"], row["op"])
            seen[name] = seen.get(name, 0) + 1
            rows.setdefault((*name, seen[name]), [None, None])[side] = row
    out: list[dict[str, Any]] = []
    for phase in ("decode", "prefill"):
        for (own, op, _), pair in rows.items():
            if own != phase:
                continue
            values = {k: [None if r is None else r[k] for r in pair] for k in OP_KEYS if k not in ("op", "phase")}
            a, b = (None if r is None or r["time_s"] is None else r["count"] * r["time_s"] for r in pair)
            ratio = b / a if a and b is not None else None
            out.append({"op": op, "phase": phase, **values, "total_s": [a, b], "ratio": ratio})
    return out
