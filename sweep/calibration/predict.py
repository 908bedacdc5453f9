"""Predicted serving metrics of measured points: one jitted `vmap` over a table of them.

Points differ in everything (model, machine, layout, lengths, load), so that no grid holds them; a table with one row
per point does. The formulas are those of the sweep: `load_cost` and `token_time` for a decode step, `context_cost` for
prefill and memory, `sweep.cost.serving` for the steady state.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sweep.calibration.rows import Catalogue, Cut, Measured
from sweep.complete import complete_context, complete_layout, complete_model
from sweep.config import as_record
from sweep.cost.arith import exp, maximum, minimum, namespace
from sweep.cost.memory import max_batch, request_bytes, weights_bytes
from sweep.cost.ops import Parts
from sweep.cost.prefill import ttft_s
from sweep.cost.result import load_cost
from sweep.cost.serving import first_token_s, prefill_rate, queue_s, steady_state
from sweep.cost.step import Load, LoadStep, Row, token_time
from sweep.machine import Machine, OpRate, common, resolve
from sweep.point import Context, Kinds, Layout, Num

# What occurs in measured rows. One set for all tables: one compilation.
KINDS = Kinds(helix=False, overlap=False, hop_b=False, two_batch=False, skewed=False, chunked=False)
BLOCK = 1024  # points per compiled call
DRAFT_PASSES = 1.5  # layers that drafting one token costs: the module's own and its share of the LM head


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Knobs:
    """What end-to-end rows can tell about a point, as multipliers on the preset's constants (1) or as additions (0).

    The fit moves these; `predict` alone leaves them where they are.
    """

    memory: Num = 1.0  # multipliers on time
    floor: Num = 1.0
    experts: Num = 1.0
    layer: Num = 1.0
    host: Num = 1.0
    request: Num = 1.0
    exchange: Num = 1.0  # start-up of dispatch and combine
    phi: Num = 1.0
    prefill: Num = 1.0  # GPU time of a prefill
    pool: Num = 1.0  # prompts per second of a prefill pool over one prompt at a time
    acceptance: Num = 0.0  # added to the log odds
    first_s: Num = 0.0  # frontend, before the first token
    first: Num = 1.0  # prefill in the first token
    launch: Num = 0.0  # host, per layer of a prefill [s]
    bunching: Num = 0.0  # prompts that stand before it, see `queue_s`


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Table:
    """Points of a table; every leaf is an array over points."""

    row: Row  # of the decoding worker; its rates are not cut at the peaks, see `turned`
    peak: Machine  # the same machines at their peaks
    prefill: Layout
    context: Context
    concurrency: Any
    decode_workers: Any
    prefill_workers: Any
    gpus: Any


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Predicted:
    """What the model says of each point."""

    tpot_s: Any
    ttft_s: Any
    tok_s_gpu: Any
    batch: Any  # running requests per decode worker
    max_batch: Any
    prefill_s: Any  # GPU time of one prompt per attention group


@dataclass(frozen=True, kw_only=True)
class Presets:
    """Constants that end-to-end serving needs beside the machine's, from the `serving` section of a preset."""

    phi: float
    pool: dict[str, float]
    bunching: float
    acceptance: float  # of a drafted token, the first of a step
    first_s: dict[str, float]
    first: float
    launch_s: dict[str, float]
    handoff: float


DEFAULTS: dict[str, Any] = {
    "phi": 1.05,
    "pool": {"tensor": 0.8, "grouped": 0.4},
    "bunching": 2.0,
    "acceptance": 0.62,  # MTP and EAGLE3 alike
    "first": 1.1,
    "first_s": {"default": 0.05},  # tokenization, HTTP, scheduling
    # host time per layer of a prefill: launches of a dozen kernels; times more for a layer of experts
    "launch_s": {"default": 0.5e-3, "experts": 2.0},
    "handoff": 3.0,  # the same where another pool decodes, over where the same GPUs do
}


def presets(efficiency: Mapping[str, Any]) -> Presets:
    """The serving constants of an efficiency preset, the prototype's where it has none."""
    said = {**DEFAULTS, **(efficiency.get("serving") or {})}
    return Presets(
        phi=float(said["phi"]),
        pool={**DEFAULTS["pool"], **said["pool"]},
        bunching=common(said["bunching"]),
        acceptance=common(said["acceptance"]),
        first_s=dict(said["first_s"]),
        first=common(said["first"]),
        launch_s={**DEFAULTS["launch_s"], **said["launch_s"]},
        handoff=float(said["handoff"]),
    )


# --- tables ------------------------------------------------------------------------------------------------------


def layout_table(cuts: Sequence[Cut]) -> Layout:
    """Layouts of workers as arrays."""
    names = [f.name for f in dataclasses.fields(Cut)]
    return complete_layout({name: np.array([float(getattr(c, name)) for c in cuts]) for name in names})


def machine_table(
    points: Sequence[Measured], catalogue: Catalogue, efficiency: Mapping[str, Any]
) -> tuple[Machine, Machine]:
    """Rates of each point's machine, uncut, and its peaks; one `resolve` per hardware and formats."""
    known: dict[Any, int] = {}
    machines: list[tuple[Machine, Machine]] = []
    index = np.empty(len(points), dtype=np.int64)
    ideal = catalogue.library.raw("efficiency", "ideal")
    for i, p in enumerate(points):
        key = (p.hardware, p.precision)
        if key not in known:
            record = catalogue.record("hardware", p.hardware)
            hardware, kin = as_record(record), record.lineage
            uncut = resolve(hardware, p.precision, efficiency, **kin, cut=False).machine
            known[key] = len(machines)
            machines.append((uncut, resolve(hardware, p.precision, ideal).machine))
        index[i] = known[key]
    uncut, peak = (
        jax.tree.map(lambda *leaves: np.array(leaves, dtype=np.float64)[index], *made)
        for made in zip(*machines, strict=True)
    )
    return uncut, peak


def model_table(points: Sequence[Measured], catalogue: Catalogue, serving: Presets) -> Any:
    """Shapes of each point's model, with what it drafts."""
    ids = list(dict.fromkeys(p.model for p in points))
    records = [catalogue.record("model", name).values for name in ids]
    fields = {key: np.array([np.nan if r[key] is None else float(r[key]) for r in records]) for key in records[0]}
    model = jax.tree.map(lambda x: x[[ids.index(p.model) for p in points]], complete_model(fields))
    drafted = np.array([p.drafted for p in points])
    acceptance = np.where(drafted > 0, serving.acceptance, 0.0)
    return dataclasses.replace(model, n_draft=drafted, acceptance=acceptance, draft_cost=DRAFT_PASSES / model.n_layers)


def make_table(points: Sequence[Measured], catalogue: Catalogue, efficiency: Mapping[str, Any]) -> Table:
    """Points as arrays."""
    n = len(points)
    zero = np.zeros(n)
    machine, peak = machine_table(points, catalogue, efficiency)
    names = ("skew", "accuracy", "loss", "loss_sigma", "accuracy_low", "accuracy_high", "extrapolation")
    return Table(
        row=Row(
            model=model_table(points, catalogue, presets(efficiency)),
            machine=machine,
            layout=layout_table([p.decode for p in points]),
            **dict.fromkeys(names, zero),
        ),
        peak=peak,
        prefill=layout_table([p.prefill for p in points]),
        context=complete_context({"isl": np.array([p.isl for p in points]), "osl": np.array([p.osl for p in points])}),
        concurrency=np.array([p.concurrency for p in points]),
        decode_workers=np.array([p.decode_workers for p in points]),
        prefill_workers=np.array([p.prefill_workers for p in points]),
        gpus=np.array([p.gpus for p in points]),
    )


def pool_kind(point: Measured) -> str:
    """How a prefill pool attends: tensor parallel, or in groups of requests (DP attention)."""
    return "grouped" if point.prefill.dpa > 1 else "tensor"


def pool_name(point: Measured) -> str:
    """The pool of a framework: `sglang_grouped`."""
    return f"{point.framework}_{pool_kind(point)}"


def make_knobs(points: Sequence[Measured], efficiency: Mapping[str, Any]) -> Knobs:
    """The preset's own serving constants as knobs; everything else stays at 1 or 0."""
    s = presets(efficiency)
    n = len(points)
    values: dict[str, Any] = {f.name: np.full(n, float(f.default)) for f in dataclasses.fields(Knobs)}  # type: ignore[arg-type]
    values["phi"] = np.full(n, s.phi)
    values["pool"] = np.array([s.pool.get(pool_name(p), s.pool[pool_kind(p)]) for p in points])
    values["bunching"] = np.full(n, s.bunching)
    frontend = np.array([s.first_s.get(p.framework, s.first_s.get("default", 0.0)) for p in points])
    values["first_s"] = frontend * np.array([s.handoff if p.disaggregated else 1.0 for p in points])
    values["first"] = np.full(n, s.first)
    values["launch"] = np.array([s.launch_s.get(p.framework, s.launch_s["default"]) for p in points])
    values["launch"] *= np.where([p.experts for p in points], s.launch_s["experts"], 1.0)
    return Knobs(**values)


# --- one point ---------------------------------------------------------------------------------------------------


def _rate(rate: OpRate, peak: OpRate, *, slow: Num, memory: Num, floor: Num) -> OpRate:
    """A kernel's rates over the knobs, none above its peak; its floor times them."""
    moved = {
        f.name: minimum(getattr(rate, f.name) / (memory * slow), getattr(peak, f.name))
        for f in dataclasses.fields(rate)
        if "_bytes_" in f.name
    }
    math = minimum(rate.flops_per_s / slow, peak.flops_per_s)
    return dataclasses.replace(rate, flops_per_s=math, t0_s=rate.t0_s * (floor * slow), **moved)


def turned(row: Row, peak: Machine, k: Knobs) -> Row:
    """A configuration with the knobs turned: the same fields that the preset sets, multiplied, and cut at the peaks.

    Args:
        row: rates as `resolve` gives them uncut.
        peak: the machine under `ideal`.
        k: the knobs of the point.
    """
    m = row.machine
    changed: dict[str, Any] = {}
    for f in dataclasses.fields(Machine):
        value = getattr(m, f.name)
        if isinstance(value, OpRate):
            slow = k.experts if f.name == "experts" else 1.0
            changed[f.name] = _rate(value, getattr(peak, f.name), slow=slow, memory=k.memory, floor=k.floor)
    machine = dataclasses.replace(
        m,
        **changed,
        experts_link=dataclasses.replace(m.experts_link, t0_s=m.experts_link.t0_s * k.exchange),
        layer_s=m.layer_s * k.layer,
        host_s=m.host_s * k.host,
        request_s=m.request_s * k.request,
    )
    odds = row.model.acceptance / (1.0 - row.model.acceptance) * exp(k.acceptance)
    return dataclasses.replace(
        row, machine=machine, model=dataclasses.replace(row.model, acceptance=odds / (1.0 + odds))
    )


def _sums(step: LoadStep) -> LoadStep:
    """A step's seconds without their causes, which nobody asks for: as a stage of its own it compiles far faster."""
    return LoadStep(**{f.name: Parts(latency_s=getattr(step, f.name).total_s) for f in dataclasses.fields(LoadStep)})


def _load_one(row: Row, batch: Num) -> dict[str, LoadStep]:
    load = load_cost(row, maximum(batch, 1.0), KINDS)
    return {"step": _sums(load.step), "plain": _sums(load.plain)}


def _decode_one(row: Row, load: dict[str, LoadStep], batch: Num, context: Context) -> Num:
    return token_time(row, Load(**load), maximum(batch, 1.0), context.decode, KINDS).parts.total_s


def _prefill_one(row: Row, layout: Layout, context: Context) -> Num:
    return ttft_s(dataclasses.replace(row, layout=layout), context, KINDS)


def _room_one(row: Row, context: Context) -> Num:
    weights = weights_bytes(row.model, row.machine, row.layout)
    each = request_bytes(row.model, row.machine, row.layout, context.longest)
    return max_batch(weights, each, row.model, row.machine, row.layout)


_STAGES: dict[str, Any] = {"load": _load_one, "decode": _decode_one, "prefill": _prefill_one, "room": _room_one}
_compiled: dict[Any, Any] = {}


def _run(name: str, block: Any) -> Any:
    """A stage on one block, compiled ahead of its first call."""
    key = (name, jax.tree.structure(block))
    if key not in _compiled:
        with namespace(jnp):
            _compiled[key] = jax.jit(jax.vmap(_STAGES[name])).lower(*block).compile()
    return _compiled[key](*block)


def _stage(name: str, *args: Any) -> np.ndarray:
    """A stage over all points, in blocks of one size so that it is compiled once."""
    n = len(jax.tree.leaves(args)[0])
    out = np.empty(n)
    for start in range(0, n, BLOCK):
        block = jax.tree.map(functools.partial(_block, start=start), args)
        if name == "decode":
            row, batch, context = block
            block = (row, _run("load", (row, batch)), batch, context)
        out[start : start + BLOCK] = np.asarray(_run(name, block), dtype=np.float64)[: min(BLOCK, n - start)]
    return out


def _block(x: Any, start: int) -> np.ndarray:
    part = np.asarray(x, dtype=np.float32)[start : start + BLOCK]
    return part if len(part) == BLOCK else np.concatenate([part, np.repeat(part[:1], BLOCK - len(part), axis=0)])


# --- all points --------------------------------------------------------------------------------------------------


def predict(table: Table, knobs: Knobs, *, batch: np.ndarray | None = None) -> Predicted:
    """All points of a table in steady state.

    Args:
        table: points [n].
        knobs: corrections of each point [n].
        batch: running requests where they are known already [n]; found by bisection where not.
    """
    with namespace(np):
        row, context = turned(table.row, table.peak, knobs), table.context
    room = np.maximum(_stage("room", row, context), row.layout.dpa)
    prefill_s = _stage("prefill", row, table.prefill, context) * knobs.prefill
    split = table.prefill_workers > 0
    servers = np.where(split, table.prefill_workers * table.prefill.dpa, row.layout.dpa)
    with namespace(np), np.errstate(divide="ignore", invalid="ignore"):
        users, servers = table.concurrency / table.decode_workers, servers / table.decode_workers
        # prefill stands between decode steps where the same GPUs do both; else the prefill pool limits the rate
        s = steady_state(
            lambda b: _stage("decode", row, b, context),
            np.where(split, 0.0, prefill_s),
            first_s=first_token_s(
                prefill_s, share=knobs.first, launch_s=knobs.launch * row.model.n_layers, frontend_s=knobs.first_s
            ),
            osl=context.generated,
            concurrency=users,
            max_batch=room,
            groups=row.layout.dpa,
            phi=knobs.phi,
            most_per_s=np.where(
                split,
                prefill_rate(prefill_s, servers, knobs.pool),
                np.inf,
            ),
            queue_at=lambda x: queue_s(prefill_s, rate=x, users=users, servers=servers, bunching=knobs.bunching),
            batch=batch,
        )
    return Predicted(
        tpot_s=s.tpot_s,
        ttft_s=s.ttft_s,
        tok_s_gpu=s.requests_per_s * table.decode_workers * context.generated / table.gpus,
        batch=s.batch,
        max_batch=room,
        prefill_s=prefill_s,
    )


def floor_tpot(table: Table, batch: np.ndarray) -> np.ndarray:
    """The roofline itself at a running batch [s]: nothing but the decode step, every drafted token accepted for free.

    Args:
        table: points of the `ideal` preset [n].
        batch: running requests per decode worker [n].
    """
    row = table.row
    certain = dataclasses.replace(
        row.model, acceptance=np.ones_like(row.model.n_draft), draft_cost=np.zeros_like(row.model.n_draft)
    )
    return _stage("decode", dataclasses.replace(row, model=certain), batch, table.context)
