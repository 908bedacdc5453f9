"""The gap between what a machine does and what it could do, divided among its causes.

Achieved is the time per decode step that the efficiency preset predicts. Possible is the bound of the same replica:
every weight that the step needs and the whole cache moved once at the full bandwidth of the fastest memory in use, over
all GPUs, or all FLOPs at peak, whichever takes longer. Between them stand causes that can be switched off.

Which cause costs what depends on which others are still there (a floor hides behind nothing, but a slow read may hide
slow math), so the switchable ones are averaged over all orders in which they could be switched off (Shapley values);
what is left when all of them are off is divided in one stated order. The parts add up to the gap exactly.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from sweep import space as spaces
from sweep.complete import complete_layout
from sweep.config import Study
from sweep.cost.arith import namespace
from sweep.cost.attention import decode_attention
from sweep.cost.memory import gpus, held_bytes, kv_bytes_per_token, request_bytes, weights_bytes
from sweep.cost.placement import alone, with_tiers
from sweep.cost.prefill import ttft_s
from sweep.cost.step import Row, head_op, layer_kernels, load_terms, step_tokens, token_time
from sweep.errors import BadInput, closest
from sweep.evaluate import excess_of
from sweep.machine import Link, Machine, OpRate
from sweep.point import Context, Kinds, Layout, Num
from sweep.space import PARALLEL, Space, build, filters, machine_arrays, row_reasons

# Causes that a machine's constants switch off, in the order of a report. The text says what is gained by switching off.
CAUSES: dict[str, str] = {
    "host": "host and between kernels: scheduling, sampling, per request, per layer",
    "floors": "kernel floors: launch and start-up of every kernel",
    "sync": "synchronisation: start-up of every collective",
    "comm": "bytes between GPUs",
    "imbalance": "load imbalance of experts",
    "tiles": "tiles and waves that are not full",
    "math": "math below its peak, and not overlapped with memory",
    "bandwidth": "memory below its bandwidth",
    "elementwise": "norms, residuals, rotary",
    "slow_tiers": "bytes in slower tiers of memory",
}
# What is left then, in this order: each is switched off with all of the above and those before it already off.
REMAINDER: dict[str, str] = {
    "activations": "reads and writes of activations",
    "copies": "copies of weights and cache, uneven shares, waiting of pipeline stages",
    "serial": "kernels one after the other: math of one does not overlap reads of another",
}
NEARLY = 0.05  # how much slower than the fastest layout a smaller one may be and still be taken
SOFTWARE = ("host", "floors", "sync", "tiles", "elementwise")  # what better orchestration alone could remove


@dataclass(frozen=True, kw_only=True)
class Gap:
    """One point: achieved, possible, and the causes between them, in seconds per step."""

    labels: dict[str, Any]  # model, hardware, precision, placement, load, context
    layout: dict[str, int]
    batch: int
    achieved_s: float
    possible_s: float
    causes: dict[str, float]
    alone_s: dict[str, float]  # the step with that cause alone switched off
    software_s: float  # the step with all of `SOFTWARE` switched off
    tok_s_user: float
    tok_s_gpu: float
    best_tok_s_gpu: float  # possible at the best batch that fits this layout

    @property
    def share(self) -> float:
        """Achieved over possible rate at this load."""
        return self.possible_s / self.achieved_s

    @property
    def share_of_best(self) -> float:
        """Achieved tokens/s/GPU over what the best batch could reach."""
        return self.tok_s_gpu / self.best_tok_s_gpu

    @property
    def gpus(self) -> int:
        """GPUs of the replica."""
        return math.prod(self.layout[k] for k in ("tpa", "kvp", "dpa", "pp"))


@dataclass(frozen=True, kw_only=True)
class Best:
    """The best of a model on a machine under one policy."""

    labels: dict[str, Any]
    layout: dict[str, int]
    batch: int
    gpus: int
    tpot_s: float
    tok_s_user: float
    tok_s_gpu: float


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A prompt computed by one machine and answered by another, both at their best."""

    labels: dict[str, Any]  # model, context, prefill, decode
    ttft_s: float
    prefill_gpus: int  # of one replica
    prompts: int  # that one prefill replica computes at once
    decode_gpus: int
    batch: int
    tok_s_user: float
    request_s: float  # requests per second that one decode replica takes
    prefill_gpus_needed: float  # to feed it
    kv_bytes: float  # of one prompt
    transfer_s: float  # over all network links of the prefill replica; NaN where a figure is unknown


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Which points of a grid are looked at."""

    low_batch: int = 1  # requests in flight where concurrency is low
    min_tok_s_user: tuple[float, ...] = (20.0,)  # most tokens/s/GPU at each of these speeds or faster
    prefill: str | None = None  # machine that computes prompts for others

    @property
    def low(self) -> str:
        """Name of the load of low concurrency."""
        return f"{self.low_batch} request{'s' if self.low_batch > 1 else ''}"

    @property
    def loads(self) -> dict[str, float | None]:
        """Loads by name, and the speed that each asks for."""
        return {self.low: None, **{f"{speed:g} tok/s/user": speed for speed in self.min_tok_s_user}}


def settings(study: Study) -> Settings:
    """What a study asks: its `gap` record, checked.

    Raises: `BadInput` naming the key.
    """
    asked = dict(study.resolved.get("gap") or {})
    known = [f.name for f in dataclasses.fields(Settings)]
    for key in (k for k in asked if k not in (*known, "also")):
        raise BadInput(f"gap.{key}: no such key; {closest(str(key), known)}")
    low, speeds, prefill = asked.get("low_batch", 1), asked.get("min_tok_s_user", [20.0]), asked.get("prefill")
    speeds = speeds if isinstance(speeds, list) else [speeds]
    for key, values in (("low_batch", [low]), ("min_tok_s_user", speeds)):
        if not values or any(isinstance(v, bool) or not isinstance(v, int | float) or not v > 0 for v in values):
            raise BadInput(f"gap.{key}={asked.get(key)}: must be greater than 0")
    return Settings(
        low_batch=int(low),
        min_tok_s_user=tuple(float(v) for v in speeds),
        prefill=None if not prefill else str(prefill),
    )


@dataclass(frozen=True, kw_only=True)
class Answer:
    """All of it."""

    gaps: list[Gap]
    by_placement: list[Best]  # most tokens/s/GPU of each model, machine, placement
    pairs: list[Pair]
    missing: list[dict[str, Any]]  # model, machine and context without any feasible point, and why
    efficiency: str
    settings: Settings


# --- all points of a grid, on plain arrays -----------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Grid:
    """A grid, its rows that may be, and its points' times: [rows, batches] of one context."""

    space: Space
    kinds: Kinds
    machines: Machine
    excess: Any

    def row(self, rows: np.ndarray) -> Row:
        """Configurations as records of arrays [rows, 1]."""
        i_model, i_machine, i_layout = self.space.indices(rows)

        def pick(table: Any, at: np.ndarray) -> Any:
            return jax.tree.map(lambda x: np.asarray(x, dtype=np.float64)[at][:, None], table)

        machine = pick(self.machines, i_machine)
        spread = self.excess.excess[self.excess.of_model[i_model], self.excess.of_layout[i_layout]][:, None]
        zero = np.zeros((len(rows), 1))
        names = ("accuracy", "loss", "loss_sigma", "accuracy_low", "accuracy_high", "extrapolation")
        return Row(
            model=pick(self.space.model, i_model),
            machine=dataclasses.replace(machine, imbalance_off=machine.imbalance_off * spread),
            layout=pick(self.space.layout, i_layout),
            skew=np.asarray(self.space.skew, dtype=np.float64)[i_layout][:, None],
            **dict.fromkeys(names, zero),
        )

    def context(self, at: int) -> Context:
        """One context as numbers."""
        one: Context = jax.tree.map(lambda x: np.float64(np.asarray(x)[at]), self.space.context)
        return one

    def labels(self, row: int, context: int) -> dict[str, Any]:
        """Names of a row."""
        id_ = (row * len(self.space.batch)) * self.space.n_contexts + context
        columns = spaces.decode(self.space.axes, np.array([id_]))
        i_machine = int(self.space.indices(np.array([row]))[1][0])
        n_pe = len(self.space.machines) // len(self.space.hardware)
        hardware = self.space.hardware[i_machine // n_pe]
        plan = self.space.machines[i_machine].plan
        return {
            "model": columns["model"][0],
            "hardware": columns["hardware"][0],
            "hardware_status": hardware.status,
            "generation": str(hardware.about.get("generation") or ""),
            "precision": columns["precision"][0],
            "placement": "hbm" if plan is None else plan.placement.id,
            "context": float(np.asarray(self.space.context.decode)[context]),
        }

    def layout(self, row: int) -> dict[str, int]:
        """The layout of a row."""
        i_layout = int(self.space.indices(np.array([row]))[2][0])
        return {k: int(getattr(self.space.layout, k)[i_layout]) for k in PARALLEL}


def _grid(study: Study) -> _Grid:
    space = build(study)
    return _Grid(space=space, kinds=spaces.kinds(space), machines=machine_arrays(space), excess=excess_of(space))


def decode_cost(row: Row, batch: Num, context: Context, kinds: Kinds) -> tuple[Num, Num]:
    """Time per output token, and whether all bytes find room: the same functions as a sweep's, decode alone."""
    weights = weights_bytes(row.model, row.machine, row.layout)
    each = request_bytes(row.model, row.machine, row.layout, context.longest)
    row, unplaced = with_tiers(row, weights, each, batch, kinds)
    tokens = step_tokens(row.layout, batch, row.model.n_draft if kinds.drafting else 0.0, kinds)
    held = held_bytes(weights, each, row.model, row.machine, row.layout, tokens, batch)
    token = token_time(row, load_terms(row, batch, kinds), batch, context.decode, kinds)
    fits = unplaced <= 0 if kinds.tiers else held.total <= row.machine.hbm_bytes
    return token.parts.total_s, fits


@dataclass(frozen=True, kw_only=True)
class _Points:
    """Times of the points looked at: rows in ascending order, [rows, batches]."""

    rows: np.ndarray
    tpot_s: np.ndarray
    good: np.ndarray  # they fit


def _evaluate(grid: _Grid, context: Context) -> tuple[_Points, list[dict[str, Any]]]:
    """All points of a context: of each model and machine in the first format in which any point is feasible.

    Returns: the points; and model and machine pairs without any, with the reasons.
    """
    space = grid.space
    rows = np.arange(space.n_rows, dtype=np.int64)
    rows = rows[filters(space).rows(rows)]
    reasons = row_reasons(space, rows)
    i_model, i_machine, _ = space.indices(rows)
    n_pe = len(space.machines) // len(space.hardware)
    i_precision = i_machine % n_pe // (n_pe // len(space.precision))
    pair = i_model * len(space.hardware) + i_machine // n_pe
    batch = np.asarray(space.batch, dtype=np.float64)[None, :]
    found: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    done = np.zeros(space.n_models * len(space.hardware), dtype=bool)
    full = done.copy()
    for level in range(len(space.precision)):
        asked = rows[(reasons == 0) & (i_precision == level) & ~done[pair]]
        for part in _chunks(asked, 2048):
            tpot, fits = decode_cost(grid.row(part), batch, context, grid.kinds)
            shape = (len(part), batch.shape[1])
            good = np.broadcast_to(fits, shape) & np.isfinite(np.broadcast_to(tpot, shape))
            found.append((part, np.broadcast_to(tpot, shape), good))
        at = np.concatenate([p for p, _, _ in found]) if found else np.zeros(0, dtype=np.int64)
        ok = np.concatenate([g.any(axis=1) for _, _, g in found]) if found else np.zeros(0, dtype=bool)
        where_at = np.searchsorted(rows, at)
        full[pair[where_at]] = True
        done[pair[where_at[ok]]] = True
    missing = []
    for p in np.nonzero(~done)[0].tolist():
        m, h = divmod(p, len(space.hardware))
        bits = int(np.bitwise_or.reduce(reasons[pair == p])) if (pair == p).any() else 0
        names = ["capacity"] if full[p] else [n for n, bit in spaces.REASON_BIT.items() if bits & bit]
        missing.append(_absent(grid, m, h, names, float(context.decode)))
    if not found:
        empty = np.zeros((0, batch.shape[1]))
        return _Points(rows=rows[:0], tpot_s=empty, good=empty > 0), missing
    ids, times, good = (np.concatenate(parts) for parts in zip(*found, strict=True))
    keep = good.any(axis=1)
    order = np.argsort(ids[keep])
    return _Points(rows=ids[keep][order], tpot_s=times[keep][order], good=good[keep][order]), missing


def _absent(grid: _Grid, model: int, hardware: int, reasons: Sequence[str], context: float) -> dict[str, Any]:
    model_axis = next(a for a in grid.space.axes if a.name == "model")
    return {
        "model": str(model_axis.columns["model"][model]),
        "hardware": grid.space.hardware[hardware].id,
        "context": context,
        "reasons": list(reasons),
    }


def _chunks(rows: np.ndarray, size: int) -> Iterator[np.ndarray]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


# --- one point's causes ------------------------------------------------------------------------------------------


def switched(machine: Machine, perfect: Machine, off: Mapping[str, Any]) -> Machine:
    """A machine with some causes switched off.

    Args:
        machine: as the preset has it, slowdowns of tiers included.
        perfect: the same under `ideal`.
        off: per cause 1 where it is switched off and 0 where not; arrays broadcast.
    """

    def mix(cause: str, on: Any, without: Any) -> Any:
        return np.where(np.asarray(off[cause]) > 0, without, on)

    changed: dict[str, Any] = {}
    for f in dataclasses.fields(Machine):
        value, best = getattr(machine, f.name), getattr(perfect, f.name)
        if isinstance(value, OpRate):
            slow, act = value.held_slowdown, value.act_slowdown
            changed[f.name] = OpRate(
                flops_per_s=mix("math", value.flops_per_s, best.flops_per_s),
                read_bytes_per_s=mix("bandwidth", value.read_bytes_per_s, best.read_bytes_per_s),
                input_bytes_per_s=mix("bandwidth", value.input_bytes_per_s, best.input_bytes_per_s),
                write_bytes_per_s=mix("bandwidth", value.write_bytes_per_s, best.write_bytes_per_s),
                t0_s=mix("floors", value.t0_s, 0.0),
                chain_s=mix("floors", value.chain_s, 0.0),
                overlap=mix("math", value.overlap, 1.0),
                held_slowdown=None if slow is None else mix("slow_tiers", slow, 1.0),
                act_slowdown=None if act is None else mix("slow_tiers", act, 1.0),
            )
        elif isinstance(value, Link):
            names = [g.name for g in dataclasses.fields(Link)]
            changed[f.name] = Link(
                **{
                    n: mix("comm", getattr(value, n), np.inf)
                    if n.endswith("bytes_per_s")
                    else mix("sync", getattr(value, n), 0.0)
                    for n in names
                }
            )
    changed["tiles"] = tuple(dataclasses.replace(t, rate=mix("tiles", t.rate, 1e30)) for t in machine.tiles)
    for name in ("layer_s", "host_s", "request_s"):
        changed[name] = mix("host", getattr(machine, name), 0.0)
    for name in ("imbalance", "imbalance_off"):
        changed[name] = mix("imbalance", getattr(machine, name), 0.0)
    changed["elementwise"] = mix("elementwise", machine.elementwise, 0.0)
    return dataclasses.replace(machine, **changed)


def shapley(seconds: np.ndarray, n: int) -> np.ndarray:
    """Each cause's share of the whole saving, averaged over all orders of switching off.

        phi_i = sum over S without i of |S|! (n - |S| - 1)! / n!  (t(S) - t(S and i))

    Args:
        seconds: time with the causes of the bits of the index switched off [2^n].
        n: causes.
    Returns: seconds per cause; they add up to t(none) - t(all).
    Source: L. S. Shapley, A value for n-person games (1953).
    """
    index = np.arange(1 << n)
    size = np.array([i.bit_count() for i in range(1 << n)])
    weight = np.array([math.factorial(s) * math.factorial(n - s - 1) / math.factorial(n) for s in range(n)])
    out = np.zeros(n)
    for i in range(n):
        without = index[(index >> i) & 1 == 0]
        out[i] = float(np.sum(weight[size[without]] * (seconds[without] - seconds[without | (1 << i)])))
    return out


def _bound_once(row: Row, batch: Num, context: Num, kinds: Kinds) -> tuple[Num, Num]:
    """Seconds of a step on all GPUs of a replica with every byte moved once, at full rates.

    The operations are those of one GPU that does all of the step, divided by the GPUs of the replica: no copies, no
    messages, even shares. Activations are free.

    Returns: kernel by kernel, sum of max(math, reads); and the bound, max(sum of math, sum of reads).
    """
    one = jax.tree.map(lambda x: np.float64(np.asarray(x).reshape(-1)[0]), complete_layout({}))
    assert isinstance(one, Layout)
    lone = dataclasses.replace(row, layout=one)
    off = dict.fromkeys(CAUSES, 1.0)
    lone = dataclasses.replace(lone, machine=switched(row.machine, row.machine, off))
    tokens = step_tokens(one, batch, 0.0, kinds)
    ops = [
        *layer_kernels("decode", lone, tokens, kinds),
        *decode_attention(row.model, lone.machine, one, tokens, context, kinds),
        head_op("decode", row.model, lone.machine, one, tokens),
    ]
    serial: Num = 0.0
    math_s: Num = 0.0
    reads: Num = 0.0
    for op in ops:
        held = op.weight_s + op.kv_s
        serial = serial + op.count * np.maximum(op.math_s, held)
        math_s, reads = math_s + op.count * op.math_s, reads + op.count * held
    n = gpus(row.layout)
    return serial / n, np.maximum(math_s, reads) / n


def _without_activations(row: Row, batch: Num, context: Context, kinds: Kinds) -> Num:
    """The step of the layout with activations free of charge: their slowdown is nothing."""
    changed: dict[str, Any] = {}
    for f in dataclasses.fields(Machine):
        value = getattr(row.machine, f.name)
        if isinstance(value, OpRate):
            held = 1.0 if value.held_slowdown is None else value.held_slowdown
            changed[f.name] = dataclasses.replace(value, held_slowdown=held, act_slowdown=0.0)
    row = dataclasses.replace(row, machine=dataclasses.replace(row.machine, **changed))
    return token_time(row, load_terms(row, batch, kinds), batch, context.decode, kinds).parts.total_s


def decompose(row: Row, perfect: Machine, batch: Num, context: Context, kinds: Kinds) -> dict[str, Any]:
    """Achieved and possible seconds of a step, and what stands between them.

    Args:
        row: one configuration, fields of any shape with one element.
        perfect: its machine under `ideal`.
        batch: requests in flight per replica.
    Returns: `achieved_s possible_s causes alone_s software_s`; achieved - possible is the sum of the causes. Drafted
        tokens are not looked at.
    """
    kinds = dataclasses.replace(kinds, drafting=False)
    weights = weights_bytes(row.model, row.machine, row.layout)
    each = request_bytes(row.model, row.machine, row.layout, context.longest)
    row, _ = with_tiers(row, weights, each, batch, kinds)
    active = [c for c in CAUSES if c != "slow_tiers" or kinds.tiers]
    n = len(active)
    bits = np.arange(1 << n)
    off: dict[str, Any] = {c: (bits >> i) & 1 for i, c in enumerate(active)}
    off.setdefault("slow_tiers", np.zeros(1))
    flat: Row = jax.tree.map(lambda x: np.asarray(x, dtype=np.float64).reshape(-1)[:1], row)
    best: Machine = jax.tree.map(lambda x: np.asarray(x, dtype=np.float64).reshape(-1)[:1], perfect)
    varied = dataclasses.replace(flat, machine=switched(flat.machine, best, off))
    parts = token_time(varied, load_terms(varied, batch, kinds), batch, context.decode, kinds).parts
    seconds = np.broadcast_to(parts.total_s, (1 << n,))
    none, every = float(seconds[0]), float(seconds[-1])
    values = dict(zip(active, shapley(seconds, n).tolist(), strict=True))
    clean = dataclasses.replace(flat, machine=switched(flat.machine, best, dict.fromkeys(CAUSES, 1.0)))
    bare = _item(_without_activations(clean, batch, context, kinds))
    serial, possible = (_item(x) for x in _bound_once(clean, batch, context.decode, kinds))
    values |= {"activations": every - bare, "copies": bare - serial, "serial": serial - possible}
    software = sum(1 << active.index(c) for c in SOFTWARE)
    return {
        "achieved_s": none,
        "possible_s": possible,
        "causes": values,
        "alone_s": {c: float(seconds[1 << i]) for i, c in enumerate(active)},
        "software_s": float(seconds[software]),
    }


def _item(x: Any) -> float:
    return float(np.asarray(x).reshape(-1)[0])


# --- a study -----------------------------------------------------------------------------------------------------


def answer(study: Study) -> Answer:
    """Achieved against possible for the best points of a grid.

    For every model, machine and context the grid is evaluated under the study's preset, and these points are taken: the
    fastest with `gap.low_batch` requests (on the fewest GPUs that come within 5 % of it), and for each speed of
    `gap.min_tok_s_user` the one with most tokens/s/GPU at that speed or faster.
    Raises: `BadInput` where the grid cannot be asked that.
    """
    asked = settings(study)
    if "efficiency" in study.grid:
        raise BadInput("grid.efficiency: gap looks at one preset; choose it with efficiency=NAME")
    grid = _grid(study)
    space = grid.space
    sizes = ", ".join(f"{b:g}" for b in space.batch)
    if asked.low_batch not in space.batch.tolist():
        raise BadInput(f"gap.low_batch={asked.low_batch}: must be one of workload.batch: {sizes}")
    machines = [h.id for h in space.hardware]
    if asked.prefill is not None and asked.prefill not in machines:
        raise BadInput(f"gap.prefill={asked.prefill}: must be one of hardware; {closest(asked.prefill, machines)}")
    ideal = study.library.raw("efficiency", "ideal")
    perfect = _grid(dataclasses.replace(study, efficiency=ideal, efficiency_id="ideal"))
    gaps: list[Gap] = []
    bests: list[Best] = []
    pairs: list[Pair] = []
    missing: list[dict[str, Any]] = []
    with namespace(np), np.errstate(all="ignore"):
        for c in range(space.n_contexts):
            points, none = _evaluate(grid, grid.context(c))
            missing += none
            chosen = _pick(grid, points, asked)
            gaps += [_gap(grid, perfect, points, at, b, c, load) for load, at, b in chosen]
            bests += _by_placement(grid, points, c, asked)
            low = [(at, b) for load, at, b in chosen if load == asked.low]
            pairs += _pairs(grid, points, c, low, asked.prefill)
    return Answer(
        gaps=gaps,
        by_placement=bests,
        pairs=pairs,
        missing=missing,
        efficiency=study.efficiency_id,
        settings=asked,
    )


def _rates(grid: _Grid, points: _Points) -> np.ndarray:
    """Tokens/s/GPU [rows, batches]."""
    n = spaces.layout_gpus(grid.space.layout)[grid.space.indices(points.rows)[2]][:, None]
    rate: np.ndarray = np.asarray(grid.space.batch, dtype=np.float64)[None, :] / (points.tpot_s * n)
    return rate


def _of_pairs(grid: _Grid, points: _Points) -> Iterator[np.ndarray]:
    """Which rows belong to each model and machine, in the grid's order."""
    i_model, i_machine, _ = grid.space.indices(points.rows)
    i_hardware = i_machine // (len(grid.space.machines) // len(grid.space.hardware))
    for m in range(grid.space.n_models):
        for h in range(len(grid.space.hardware)):
            mine = (i_model == m) & (i_hardware == h)
            if mine.any():
                yield mine


def _largest(values: np.ndarray, among: np.ndarray) -> tuple[int, int] | None:
    """Row and batch of the largest value among some, None where there are none."""
    if not among.any():
        return None
    r, b = np.unravel_index(int(np.where(among, values, -1.0).argmax()), values.shape)
    return int(r), int(b)


def _fewest(tpot_s: np.ndarray, among: np.ndarray, n_gpus: np.ndarray) -> tuple[int, int] | None:
    """Row and batch of the fastest point; of those within `NEARLY` of it, one on the fewest GPUs."""
    if not among.any():
        return None
    close = among & (tpot_s <= np.where(among, tpot_s, np.inf).min() * (1.0 + NEARLY))
    least = np.where(close.any(axis=1), n_gpus, np.inf).min()
    return _largest(1.0 / tpot_s, close & (n_gpus == least)[:, None])


def _pick(grid: _Grid, points: _Points, asked: Settings) -> list[tuple[str, int, int]]:
    """Load, row and batch of the points to look at."""
    rate = _rates(grid, points)
    n_gpus = spaces.layout_gpus(grid.space.layout)[grid.space.indices(points.rows)[2]]
    at_low = grid.space.batch.tolist().index(asked.low_batch)
    few = np.zeros(rate.shape, dtype=bool)
    few[:, at_low] = True
    chosen = []
    for mine in _of_pairs(grid, points):
        good = points.good & mine[:, None]
        for load, speed in asked.loads.items():
            if speed is None:
                found = _fewest(points.tpot_s, good & few, n_gpus)
            else:
                found = _largest(rate, good & (points.tpot_s <= 1.0 / speed))
            if found is not None:
                chosen.append((load, *found))
    return chosen


def _by_placement(grid: _Grid, points: _Points, c: int, asked: Settings) -> list[Best]:
    """Most tokens/s/GPU at the lowest speed asked for, under each placement."""
    rate = _rates(grid, points)
    policy = np.array([_policy(r) for r in grid.space.machines])[grid.space.indices(points.rows)[1]]
    fast = points.good & (points.tpot_s <= 1.0 / min(asked.min_tok_s_user))
    out = []
    for mine in _of_pairs(grid, points):
        for name in dict.fromkeys(policy[mine].tolist()):
            found = _largest(rate, fast & (mine & (policy == name))[:, None])
            if found is not None:
                r, b = found
                out.append(_best(grid, int(points.rows[r]), b, c, float(points.tpot_s[r, b])))
    return out


def _policy(r: Any) -> str:
    return "hbm" if r.plan is None else str(r.plan.placement.id)


def _best(grid: _Grid, row: int, b: int, c: int, tpot_s: float) -> Best:
    layout = grid.layout(row)
    n = math.prod(layout[k] for k in ("tpa", "kvp", "dpa", "pp"))
    batch = int(grid.space.batch[b])
    return Best(
        labels=grid.labels(row, c),
        layout=layout,
        batch=batch,
        gpus=n,
        tpot_s=tpot_s,
        tok_s_user=1 / tpot_s,
        tok_s_gpu=batch / tpot_s / n,
    )


def _gap(grid: _Grid, perfect: _Grid, points: _Points, at: int, b: int, c: int, load: str) -> Gap:
    row = int(points.rows[at])
    one, ideal = grid.row(np.array([row])), perfect.row(np.array([row])).machine
    context, batch = grid.context(c), np.float64(grid.space.batch[b])
    found = decompose(one, ideal, batch, context, grid.kinds)
    clean = dataclasses.replace(one, machine=switched(one.machine, ideal, dict.fromkeys(CAUSES, 1.0)))
    n = _item(gpus(one.layout))
    best = 0.0
    for i, size in enumerate(np.asarray(grid.space.batch, dtype=np.float64)):
        if points.good[at, i]:
            best = max(best, size / (_item(_bound_once(clean, size, context.decode, grid.kinds)[1]) * n))
    tpot_s = float(points.tpot_s[at, b])
    return Gap(
        labels={**grid.labels(row, c), "load": load},
        layout=grid.layout(row),
        batch=int(batch),
        tok_s_user=1.0 / tpot_s,
        tok_s_gpu=float(batch) / tpot_s / n,
        best_tok_s_gpu=best,
        **found,
    )


def _pairs(grid: _Grid, points: _Points, c: int, low: Sequence[tuple[int, int]], machine: str | None) -> list[Pair]:
    """Prompts computed by one machine where that takes the fewest GPU-seconds, answered by each at its fastest point.

    Rates are matched: GPUs of the prefill machine that feed one decode replica. The cache travels over all network
    links of the prefill replica at their full rate.
    """
    if machine is None:
        return []
    space, context = grid.space, grid.context(c)
    i_model, i_machine, i_layout = space.indices(points.rows)
    n_pe = len(space.machines) // len(space.hardware)
    at_machine = [h.id for h in space.hardware].index(machine)
    sources: dict[int, tuple[int, float]] = {}
    for m in range(space.n_models):
        mine = np.nonzero((i_model == m) & (i_machine // n_pe == at_machine))[0]
        if len(mine):
            times = np.concatenate([_prompt_s(grid, points.rows[part], context) for part in _chunks(mine, 2048)])
            cost = times * spaces.layout_gpus(space.layout)[i_layout[mine]] / space.layout.dpa[i_layout[mine]]
            best = int(np.nanargmin(cost))
            sources[m] = (int(points.rows[mine[best]]), float(times[best]))
    out = []
    for at, b in low:
        if int(i_model[at]) in sources:
            source, ttft = sources[int(i_model[at])]
            out.append(_pair(grid, int(points.rows[at]), b, c, source, ttft, float(points.tpot_s[at, b])))
    return out


def _prompt_s(grid: _Grid, rows: np.ndarray, context: Context) -> np.ndarray:
    row = grid.row(rows)
    quiet, _ = alone(row, weights_bytes(row.model, row.machine, row.layout), context, grid.kinds)
    seconds: np.ndarray = np.broadcast_to(ttft_s(quiet, context, grid.kinds), (len(rows), 1))[:, 0]
    return seconds


def _pair(grid: _Grid, row: int, b: int, c: int, source: int, ttft: float, tpot_s: float) -> Pair:
    context = grid.context(c)
    decode, prefill = grid.layout(row), grid.layout(source)
    n_d, n_p = (math.prod(x[k] for k in ("tpa", "kvp", "dpa", "pp")) for x in (decode, prefill))
    from_, to = grid.labels(source, c), grid.labels(row, c)
    batch = int(grid.space.batch[b])
    per_s = batch / (float(context.generated) * tpot_s)
    one = grid.row(np.array([row]))
    size = _item(kv_bytes_per_token(one.model, one.machine)) * float(context.prompt)
    i_hardware = next(i for i, h in enumerate(grid.space.hardware) if h.id == from_["hardware"])
    link = grid.space.hardware[i_hardware].values.get("scaleout_bytes_per_s")
    return Pair(
        labels={
            "model": to["model"],
            "context": to["context"],
            "prefill": from_["hardware"],
            "decode": to["hardware"],
        },
        ttft_s=ttft,
        prefill_gpus=n_p,
        prompts=prefill["dpa"],
        decode_gpus=n_d,
        batch=batch,
        tok_s_user=1 / tpot_s,
        request_s=per_s,
        prefill_gpus_needed=per_s * ttft * n_p / prefill["dpa"],
        kv_bytes=size,
        transfer_s=math.nan if link is None else size / (float(link) * n_p),
    )
