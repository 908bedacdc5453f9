"""How fast a grid is evaluated, against the limits of the machine it runs on and against plain NumPy.

Everything is measured in one process and one run: the kernel alone, with the exact frontier, with Parquet, the two
physical ceilings that bound them (bytes stored, exponentials), and the same cost functions run by NumPy on flat
arrays of points. Speeds are of that run; ratios between them are what two runs can be compared by.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import platform
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow.parquet as pq

from sweep.columns import COLUMNS
from sweep.config import conf_dir
from sweep.cost.result import evaluate_point
from sweep.cost.step import Row
from sweep.errors import BadInput
from sweep.evaluate import Engine, Tables, compiler_options
from sweep.point import Context, Kinds
from sweep.run import Plan, Progress, Run, columns_of, cores, stored_columns
from sweep.space import kinds, row_reasons
from sweep.store import write_atomic

OBJECTIVES = ("tok_s_gpu", "tok_s_user")
CORE = (
    *OBJECTIVES,
    "tpot_s",
    "math_s",
    "weight_read_s",
    "kv_read_s",
    "activation_s",
    "comm_s",
    "latency_s",
    "held_bytes",
    "ttft_s",
    "max_batch",
)
PARTS = frozenset({"math_s", "weight_read_s", "kv_read_s", "activation_s", "comm_s", "latency_s"})
CHUNK_POINTS = 1 << 14  # of the NumPy version: what it keeps stays in the cache
PART_ROWS = 1 << 19
SIZED_PARTS = 2
BLOCKS = 4
ROUNDS = 3
EXPONENTIALS = 8  # per element, so that arithmetic and not memory is timed
TRANSCENDENTAL = frozenset(
    {"exp", "exp2", "log", "log1p", "expm1", "pow", "tanh", "logistic", "sin", "cos", "erf", "cbrt"}
)
# what moves or renames values without computing any
STRUCTURAL = frozenset(
    {
        "broadcast_in_dim",
        "convert_element_type",
        "reshape",
        "squeeze",
        "expand_dims",
        "slice",
        "dynamic_slice",
        "concatenate",
        "transpose",
        "gather",
        "iota",
        "copy",
        "stop_gradient",
    }
)


def _f(label: str, unit: str, kind: str = "plain") -> Any:
    return field(metadata={"label": label, "unit": unit, "kind": kind})


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What one grid was measured to take; speeds are the best of a few repetitions in this run."""

    grid: str = _f("grid", "", "text")
    points: int = _f("points of the grid", "", "count")
    possible_points: int = _f("of possible configurations: what speeds count", "", "count")
    shape: str = _f("rows x batches x contexts", "", "text")
    preset: str = _f("efficiency preset", "", "text")
    columns: str = _f("core columns", "", "text")
    cores: int = _f("cores", "", "count")
    machine: str = _f("machine", "", "text")
    ops_per_point: float = _f("operations of one point, all columns", "op")
    batched_ops_per_point: float = _f("the same batched: core columns, shared levels divided", "op")
    transcendentals_per_point: float = _f("transcendentals among those", "op", "small")
    kernel_points_per_s: float = _f("kernel, core columns", "M points/s", "mega")
    kernel_objectives_points_per_s: float = _f("kernel, two objectives", "M points/s", "mega")
    frontier_points_per_s: float = _f("kernel + exact frontier", "M points/s", "mega")
    parquet_rows_per_s: float = _f("kernel + frontier + Parquet, store.columns=core", "M rows/s", "mega")
    parquet_axes_rows_per_s: float = _f("the same with axis columns", "M rows/s", "mega")
    parquet_all_rows_per_s: float = _f("the same with axis columns and all others", "M rows/s", "mega")
    bytes_per_row: float = _f("Parquet, store.columns=core", "B/row")
    bytes_per_row_axes: float = _f("Parquet, the same with axis columns", "B/row")
    bytes_per_row_all: float = _f("Parquet, with axis columns and all others", "B/row")
    numpy_points_per_s: float = _f("the same cost functions under NumPy, flat arrays", "M points/s", "mega")
    numpy_ratio: float = _f("kernel, core columns, over NumPy", "times")
    numpy_worst_rel: float = _f("largest relative difference of the two, sampled", "", "tiny")
    float64_worst_rel: float = _f("the same against NumPy in float64", "", "tiny")
    kernel_bytes_per_point: float = _f("stored by the kernel, core columns", "B/point")
    store_bytes_per_s: float = _f("ceiling: bytes stored (NumPy fill, all cores)", "GB/s", "giga")
    store_bandwidth_share: float = _f("kernel, core columns: share of that ceiling", "", "share")
    exp_per_s: float = _f("ceiling: exponentials (jitted jax)", "G/s", "giga")
    transcendental_share: float = _f("kernel, core columns: share of that ceiling", "", "share")
    compile_s: float = _f("tracing and compiling, frontier", "s", "seconds")
    first_result_s: float = _f("from a configuration to the first frontier point", "s", "seconds")
    cold_run_s: float = _f("from a configuration to the frontier's table, compilation included", "s", "seconds")
    frontier_size: int = _f("points on the frontier", "", "count")
    frontier_peak_bytes: int = _f("peak memory of that run", "MiB", "mebi")
    peak_bytes: int = _f("peak memory of the process on this grid", "MiB", "mebi")

    def as_dict(self) -> dict[str, Any]:
        """All figures in their base units, flat."""
        return dataclasses.asdict(self)


# --- limits of the machine ---------------------------------------------------------------------------------------


def machine_name() -> str:
    """The processor and the device that jax computes on."""
    name = platform.processor() or platform.machine()
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as info:
        models = [line.partition(":")[2].strip() for line in info if line.startswith("model name")]
        name = models[0] if models else name
    device = jax.devices()[0]
    return name if device.platform == "cpu" else f"{name}, {device.device_kind}"


def reset_peak() -> bool:
    """Start counting the peak memory of this process anew; only Linux can. Returns: whether it was done."""
    try:
        with open("/proc/self/clear_refs", "w") as f:
            f.write("5")
    except OSError:
        return False
    return True


def peak_bytes() -> int:
    """Peak resident memory of this process, since `reset_peak` where that works."""
    with contextlib.suppress(OSError), open("/proc/self/status") as status:
        for line in status:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def best_seconds(work: Callable[[], object], budget_s: float) -> float:
    """Shortest time of some work, repeated until a budget is spent, at least twice."""
    best, spent, times = math.inf, 0.0, 0
    while spent < budget_s or times < 2:
        start = time.perf_counter()
        work()
        took = time.perf_counter() - start
        best, spent, times = min(best, took), spent + took, times + 1
    return best


def store_bytes_per_s(budget_s: float = 0.5, size: int = 1 << 26) -> float:
    """Bytes per second that all cores store: NumPy fills of an array larger than any cache (float32 elements)."""
    target = np.zeros(size, dtype=np.float32)
    slices = np.array_split(target, cores())
    with ThreadPoolExecutor(len(slices)) as pool:

        def fill() -> None:
            list(pool.map(lambda part: part.fill(1.0), slices))

        return target.nbytes / best_seconds(fill, budget_s)


def exp_per_s(budget_s: float = 0.5, size: int = 1 << 21) -> float:
    """Exponentials per second of jitted jax on all cores, several per element so that memory is not the limit."""

    def chain(x: jax.Array) -> jax.Array:
        for _ in range(EXPONENTIALS):
            x = jnp.exp(-x)
        return x

    run = jax.jit(chain, compiler_options=compiler_options())
    x = jnp.linspace(0.0, 1.0, size, dtype=jnp.float32)
    jax.block_until_ready(run(x))
    return size * EXPONENTIALS / best_seconds(lambda: jax.block_until_ready(run(x)), budget_s)


# --- operations --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Operations:
    """Arithmetic of a computation, each operation as often as it has elements."""

    total: int
    transcendental: int


def count_operations(jaxpr: Any) -> Operations:
    """Arithmetic operations of a jaxpr that its outputs need: comparisons and selects count, moves do not."""
    total = transcendental = 0
    needed = {v for v in jaxpr.outvars if not hasattr(v, "val")}
    for eqn in reversed(jaxpr.eqns):
        if not any(v in needed for v in eqn.outvars):
            continue
        needed.update(v for v in eqn.invars if not hasattr(v, "val"))
        inner = [p for p in eqn.params.values() if hasattr(p, "eqns") or hasattr(p, "jaxpr")]
        if inner:
            for sub in inner:
                found = count_operations(sub.jaxpr if hasattr(sub, "jaxpr") else sub)
                total, transcendental = total + found.total, transcendental + found.transcendental
        elif eqn.primitive.name not in STRUCTURAL:
            values = eqn.invars if eqn.primitive.name.startswith("reduce_") else eqn.outvars
            size = int(np.prod(values[0].aval.shape))
            total += size
            transcendental += size if eqn.primitive.name in TRANSCENDENTAL else 0
    return Operations(total=total, transcendental=transcendental)


def operations(
    run: Run, rows: np.ndarray, k: Kinds, columns: Sequence[str] | None = None
) -> tuple[Operations, Operations]:
    """Operations of one point alone with all columns, and of all points of some rows with the columns given.

    Nested maps keep what a level decides on that level, so of many points the second counts shared terms once.
    """

    def everything(row: Row, batch: Any, context: Context) -> Any:
        return evaluate_point(row, batch, context, k)

    def some(row: Row, batch: Any, context: Context) -> list[Any]:
        found = evaluate_point(row, batch, context, k)
        merged = {f.name: getattr(part, f.name) for part in found for f in dataclasses.fields(part)}
        return [merged[name] for name in columns or merged]

    i_model, i_machine, i_layout = run.space.indices(rows)
    table = _rows(run.engine.tables, i_model, i_machine, i_layout, i_model * len(run.space.machines) + i_machine)
    batch, context = run.engine.batch, run.engine.context
    one = jax.tree.map(lambda x: x[0], (table, batch, context))
    over_rows = jax.vmap(some, in_axes=(0, None, None))
    over_contexts = jax.vmap(over_rows, in_axes=(None, None, 0))
    over_batches = jax.vmap(over_contexts, in_axes=(None, 0, None))
    alone = count_operations(jax.make_jaxpr(everything)(*one).jaxpr)
    return alone, count_operations(jax.make_jaxpr(over_batches)(table, batch, context).jaxpr)


# --- the engines -------------------------------------------------------------------------------------------------


def _rows(tables: Tables, i_model: Any, i_machine: Any, i_layout: Any, i_accuracy: Any) -> Row:
    def take(table: Any, at: Any) -> Any:
        return jax.tree.map(lambda column: column[at], table)

    accuracy = take(tables.accuracy, i_accuracy)
    return Row(
        model=take(tables.model, i_model),
        machine=take(tables.machine, i_machine),
        layout=take(tables.layout, i_layout),
        skew=tables.skew[i_layout],
        accuracy=accuracy.accuracy,
        accuracy_low=accuracy.accuracy_low,
        accuracy_high=accuracy.accuracy_high,
        loss=accuracy.loss,
        loss_sigma=accuracy.loss_sigma,
        extrapolation=accuracy.extrapolation,
    )


def sample(run: Run, rows: np.ndarray, size: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Random points of some rows: positions in `rows`, batch and context indices."""
    rng = np.random.default_rng(seed)
    ends = (len(rows), len(run.space.batch), run.space.n_contexts)
    at, i_batch, i_context = (rng.integers(end, size=size) for end in ends)
    return at, i_batch, i_context


def worst_difference(run: Run, rows: np.ndarray, k: Kinds, size: int = 4096, *, float64: bool = False) -> float:
    """Largest relative difference between the two engines over sampled points of some rows, all float columns.

    Never exactly 0: compiled arithmetic rounds and adds in another order. The six parts are compared on the scale of
    their sum. The largest batch, an integer, may differ by a step and is left out. `float64`: NumPy computes in
    float64, whatever the run does. Raises: `ValueError` if the run itself is evaluated by NumPy, as small grids are:
    that would compare NumPy with itself.
    """
    if run.small:
        raise ValueError("this run is evaluated by NumPy: nothing to compare")
    columns = run.full_columns(rows)
    at, i_batch, i_context = sample(run, rows, size, seed=1)
    exact = Engine(run.space, dataclasses.replace(run.plan.study, float64=True)) if float64 else run.engine
    plain = exact.plain(rows[at], i_batch, i_context, k)
    worst = 0.0
    for column in COLUMNS:
        if column.level == "host" or column.dtype != "float32" or column.name == "max_batch":
            continue
        ours = np.asarray(columns[column.name][at, i_batch, i_context], dtype=np.float64)
        theirs = np.asarray(plain[column.name], dtype=np.float64)
        scale = np.abs(plain["tpot_s"] if column.name in PARTS else theirs)
        both = np.isfinite(ours) & np.isfinite(theirs)
        if not np.array_equal(np.isfinite(ours), np.isfinite(theirs)):
            return math.inf
        gap = np.abs(ours - theirs)[both] / np.maximum(scale[both], np.finfo(np.float32).tiny)
        worst = max(worst, float(gap.max(initial=0.0)))
    return worst


def numpy_rate(run: Run, rows: np.ndarray, k: Kinds, budget_s: float) -> float:
    """Points per second of the NumPy version, in chunks that fit the cache."""
    at, i_batch, i_context = sample(run, rows, CHUNK_POINTS, seed=2)
    return CHUNK_POINTS / best_seconds(lambda: run.engine.plain(rows[at], i_batch, i_context, k), budget_s)


def kernel_rate(
    run: Run, blocks: Sequence[np.ndarray], k: Kinds, columns: Sequence[str], budget_s: float
) -> tuple[float, float]:
    """Points per second of the kernel with some columns, two blocks in flight, and bytes stored per point."""
    size = sum(len(block) for block in blocks) * run.space.per_row
    _, at_context, points = jax.block_until_ready(run.engine.full(blocks[0], k, columns))
    stored = sum(value.nbytes for value in points.values())
    stored += sum(value.nbytes for value in at_context.values())

    def work() -> None:
        pending = None
        for block in blocks:
            following = run.engine.full(block, k, columns)
            jax.block_until_ready(pending)
            pending = following
        jax.block_until_ready(pending)

    return size / best_seconds(work, budget_s), stored / (len(blocks[0]) * run.space.per_row)


# --- compilation -------------------------------------------------------------------------------------------------


class _Compilation:
    """Seconds that jax spent tracing, lowering and compiling, summed over threads."""

    def __init__(self) -> None:
        self.seconds = 0.0
        jax.monitoring.register_event_duration_secs_listener(self._hear)

    def _hear(self, event: str, duration_secs: float, **_: str | int) -> None:
        if event.startswith("/jax/core/compile/"):
            self.seconds += duration_secs


@functools.cache
def _compilation() -> _Compilation:
    return _Compilation()  # jax keeps a listener for good: one is enough


# --- runs --------------------------------------------------------------------------------------------------------


class _EnoughError(Exception):
    """Raised from the progress of a run that has been watched long enough."""


@dataclass(kw_only=True)
class _Watch:
    """What the progress reports of a run say about its speed."""

    started: float
    budget_s: float = math.inf
    first_result: float | None = None
    reports: list[tuple[float, int]] = field(default_factory=list)

    def __call__(self, progress: Progress) -> None:
        now = time.perf_counter()
        if self.first_result is None and progress.frontier > 0:
            self.first_result = now - self.started
        if not self.reports or progress.done > self.reports[-1][1]:
            self.reports.append((now, progress.done))
        if len(self.reports) >= 2 and now - self.reports[0][0] > self.budget_s:
            raise _EnoughError

    def steady_rate(self) -> float:
        """Points per second after the first report, which paid for the compilation."""
        (start, before), (end, after) = (*self.reports[:1], self.reports[-1])
        if after > before:
            return (after - before) / (end - start)
        return after / (end - self.started)  # the run was over at once


@contextlib.contextmanager
def _directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="codesign-bench-") as name:
        yield Path(name)


def parquet_rate(
    plan: Plan, *, axes: bool, columns: str | None, budget_s: float, config_yaml: str = ""
) -> tuple[float, float]:
    """Rows per second into Parquet with every point stored, frontier included, and bytes per row.

    The run goes into a temporary directory, is stopped when the budget is spent, and leaves nothing.
    """
    part_rows = max(min(PART_ROWS, plan.space.n_points // 4), 1)
    store = dataclasses.replace(plan.study.store, axes=axes, columns=columns, part_rows=part_rows)
    study = dataclasses.replace(plan.study, store=store)
    kept = stored_columns(study, columns_of(study, plan.space), plan.objectives)
    plan = dataclasses.replace(plan, rows="all", study=study, columns=kept)
    with _directory() as directory:
        watch = _Watch(started=time.perf_counter(), budget_s=budget_s)
        with contextlib.suppress(_EnoughError):
            Run(plan, directory, config_yaml=config_yaml, report=watch, compiled=True).stored()
        parts = sorted((directory / "points").glob("[!.]*.parquet"))
        rows = [pq.read_metadata(part).num_rows for part in parts]
        first = [part.stat().st_size for part in parts[:SIZED_PARTS]]  # however far the run came
    done = watch.reports[-1][1]
    return watch.steady_rate() * sum(rows) / done, sum(first) / sum(rows[: len(first)])


def possible_rows(run: Run, chunk: int = 1 << 20) -> np.ndarray:
    """Rows that pass the filters and that nothing but capacity or time stands against."""
    found = []
    for start in range(0, run.space.n_rows, chunk):
        rows = np.arange(start, min(start + chunk, run.space.n_rows), dtype=np.int64)
        rows = rows[run.filters.rows(rows)]
        found.append(rows[row_reasons(run.space, rows) == 0])
    return np.concatenate(found)


def measure(
    make_plan: Callable[[], Plan],
    *,
    name: str,
    config_yaml: str = "",
    seconds: float = 1.5,
    say: Callable[[str], None] = lambda text: None,
) -> Measured:
    """Measure one grid.

    Args:
        make_plan: from a checked configuration to a plan; called once, inside the time to the first result.
        name: how the grid is called in the result.
        config_yaml: the configuration, written beside what runs write.
        seconds: spent on each measurement, compilation and the frontier of the whole grid apart.
        say: told what is measured next.
    Speeds count points of possible configurations only: the others cost next to nothing. Compilation is cold in a
    fresh process and warm for a second grid of the same shape.
    """
    reset_peak()
    compilation = _compilation()
    say("whole run, compilation included")
    before, started = compilation.seconds, time.perf_counter()
    plan = dataclasses.replace(make_plan(), rows="frontier")
    watch = _Watch(started=started)
    with _directory() as directory:
        result = Run(plan, directory, config_yaml=config_yaml, report=watch, compiled=True).execute()
    cold_run_s = time.perf_counter() - started
    compile_s = compilation.seconds - before

    say("kernel + frontier")
    with _directory() as directory:
        run = Run(plan, directory, config_yaml=config_yaml, compiled=True)
        begin = time.perf_counter()
        (run.frontier_only if run.fast else run.generic_frontier)()
        frontier_s = time.perf_counter() - begin
    frontier_peak = peak_bytes()
    space = plan.space
    rows = possible_rows(run)
    k = kinds(space)

    say("kernel and limits")
    drawn = np.random.default_rng(0).choice(rows, size=BLOCKS * run.block_rows)
    blocks = np.split(drawn, BLOCKS)
    core_rate = objective_rate = slow_rate = store_rate = exp_rate = core_bytes = 0.0
    for _ in range(ROUNDS):  # in turn, so that what else the machine does hits all sides of a ratio alike
        share = seconds / ROUNDS
        rate, core_bytes = kernel_rate(run, blocks, k, CORE, share)
        core_rate = max(core_rate, rate)
        objective_rate = max(objective_rate, kernel_rate(run, blocks, k, OBJECTIVES, share)[0])
        slow_rate = max(slow_rate, numpy_rate(run, rows, k, share))
        store_rate = max(store_rate, store_bytes_per_s(share / 4))
        exp_rate = max(exp_rate, exp_per_s(share / 4))
    alone, batched = operations(run, blocks[0], k, CORE)
    per_block = run.block_rows * space.per_row

    say("kernel + Parquet")
    stored: list[tuple[float, float]] = []
    for axes, columns in ((False, "core"), (True, "core"), (True, None)):
        stored.append(parquet_rate(plan, axes=axes, columns=columns, budget_s=seconds, config_yaml=config_yaml))
    (plain_rate, plain_size), (axes_rate, axes_size), (all_rate, all_size) = stored
    return Measured(
        grid=name,
        points=space.n_points,
        possible_points=len(rows) * space.per_row,
        shape=f"{space.n_rows} x {len(space.batch)} x {space.n_contexts}",
        preset=plan.study.efficiency_id,
        columns=" ".join(CORE),
        cores=cores(),
        machine=machine_name(),
        ops_per_point=float(alone.total),
        batched_ops_per_point=batched.total / per_block,
        transcendentals_per_point=batched.transcendental / per_block,
        kernel_points_per_s=core_rate,
        kernel_objectives_points_per_s=objective_rate,
        frontier_points_per_s=len(rows) * space.per_row / frontier_s,
        parquet_rows_per_s=plain_rate,
        parquet_axes_rows_per_s=axes_rate,
        parquet_all_rows_per_s=all_rate,
        bytes_per_row=plain_size,
        bytes_per_row_axes=axes_size,
        bytes_per_row_all=all_size,
        numpy_points_per_s=slow_rate,
        numpy_ratio=core_rate / slow_rate,
        numpy_worst_rel=worst_difference(run, blocks[0], k),
        float64_worst_rel=worst_difference(run, blocks[0], k, float64=True),
        kernel_bytes_per_point=core_bytes,
        store_bytes_per_s=store_rate,
        store_bandwidth_share=core_rate * core_bytes / store_rate,
        exp_per_s=exp_rate,
        transcendental_share=core_rate * batched.transcendental / per_block / exp_rate,
        compile_s=compile_s,
        first_result_s=watch.first_result if watch.first_result is not None else cold_run_s,
        cold_run_s=cold_run_s,
        frontier_size=int(result.manifest["frontier"]),
        frontier_peak_bytes=frontier_peak,
        peak_bytes=peak_bytes(),
    )


# --- against an earlier measurement ------------------------------------------------------------------------------

TOLERANCE = 2.0  # a ratio of two speeds of one run varies by a fifth between runs; half of it is another program
# what two runs on one machine can be compared by: larger is better
RATIOS: dict[str, Callable[[Measured], float]] = {
    "numpy_ratio": lambda m: m.numpy_ratio,
    "objectives_over_kernel": lambda m: m.kernel_objectives_points_per_s / m.kernel_points_per_s,
    "frontier_over_kernel": lambda m: m.frontier_points_per_s / m.kernel_points_per_s,
    "parquet_over_kernel": lambda m: m.parquet_rows_per_s / m.kernel_points_per_s,
    "parquet_all_over_kernel": lambda m: m.parquet_all_rows_per_s / m.kernel_points_per_s,
    "parquet_axes_over_kernel": lambda m: m.parquet_axes_rows_per_s / m.kernel_points_per_s,
    "store_bandwidth_share": lambda m: m.store_bandwidth_share,
}
# what a point takes: smaller is better
COUNTS: dict[str, Callable[[Measured], float]] = {
    "batched_ops_per_point": lambda m: m.batched_ops_per_point,
    "kernel_bytes_per_point": lambda m: m.kernel_bytes_per_point,
    "bytes_per_row": lambda m: m.bytes_per_row,
    "bytes_per_row_axes": lambda m: m.bytes_per_row_axes,
}
SAME = ("points", "preset", "columns", "cores")  # without which two measurements say nothing of each other


@dataclass(frozen=True, kw_only=True)
class Check:
    """One figure against the same of an earlier measurement."""

    name: str
    value: float
    baseline: float
    bound: float
    least: bool  # the bound is a lower one

    @property
    def passed(self) -> bool:
        """Whether the figure keeps the bound; one that is no number does not."""
        return self.value >= self.bound if self.least else self.value <= self.bound

    def __str__(self) -> str:
        """As a line."""
        sign = "at least" if self.least else "at most"
        verdict = "ok" if self.passed else "WORSE"
        return f"{self.name} {self.value:.4g} (baseline {self.baseline:.4g}, {sign} {self.bound:.4g}) {verdict}"


def baseline_of(measured: Measured) -> dict[str, Any]:
    """What is remembered of a measurement."""
    found: dict[str, Any] = {name: getattr(measured, name) for name in SAME}
    return found | {name: float(f"{of(measured):.4g}") for name, of in (*RATIOS.items(), *COUNTS.items())}


def compare(measured: Measured, baseline: dict[str, Any], tolerance: float = TOLERANCE) -> list[Check]:
    """Figures of a measurement against those remembered, worse by the tolerance or not.

    Raises: `BadInput` where the two are of different grids, presets or numbers of cores, or a figure is missing.
    """
    for name in SAME:
        own, theirs = getattr(measured, name), baseline.get(name)
        if own != theirs:
            raise BadInput(
                f"check: the baseline of {measured.grid} has {name}={theirs}, this run {name}={own}; check=update "
                "against=FILE makes another, check=true against=FILE compares with it"
            )
    checks = []
    for least, figures in ((True, RATIOS), (False, COUNTS)):
        for name, of in figures.items():
            if name not in baseline:
                raise BadInput(f"check: the baseline of {measured.grid} lacks {name}; check=update makes another")
            known = float(baseline[name])
            bound = known / tolerance if least else known * tolerance
            checks.append(Check(name=name, value=of(measured), baseline=known, bound=bound, least=least))
    return checks


def baseline_path() -> Path:
    """Where the measurement lies that comes with the program."""
    return conf_dir() / "bench_baseline.json"


def read_baseline(path: Path, grids: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Remembered figures by grid.

    Raises: `BadInput` if the file cannot be read or lacks one of the grids.
    """
    try:
        found = json.loads(path.read_text())
        missing = [name for name in grids if not isinstance(found.get(name), dict)]
    except (OSError, ValueError, AttributeError) as error:
        raise BadInput(f"against={path}: cannot be read as a baseline ({error})") from None
    if missing:
        raise BadInput(f"against={path}: holds nothing of {missing[0]}; it has {', '.join(found) or 'nothing'}")
    return {name: found[name] for name in grids}


def write_baseline(path: Path, measured: Sequence[Measured]) -> None:
    """Remember what was measured; other grids of the file stay. Raises: `BadInput`."""
    try:
        known = json.loads(path.read_text()) if path.is_file() else {}
        write_atomic(path, json.dumps({**known, **{m.grid: baseline_of(m) for m in measured}}, indent=1) + "\n")
    except (OSError, ValueError, TypeError) as error:
        raise BadInput(f"against={path}: cannot be written ({error})") from None


# --- text --------------------------------------------------------------------------------------------------------

SCALE = {"mega": 1e-6, "giga": 1e-9, "mebi": 1.0 / (1 << 20)}


def cell(value: Any, kind: str) -> str:
    """A figure as a person reads it."""
    if kind == "text":
        return str(value)
    if kind == "count":
        return f"{value:,}"
    if kind == "share":
        return f"{value:.1%}"
    if kind == "tiny":
        return f"{value:.1e}"
    if kind == "seconds":
        return f"{value:.2f}"
    scaled = value * SCALE.get(kind, 1.0)
    return (
        f"{scaled:.2f}" if kind == "small" or scaled < 10 else f"{scaled:,.1f}" if scaled < 1000 else f"{scaled:,.0f}"
    )


COMMON = ("preset", "columns", "cores", "machine")  # the same for every grid of a run


def text(measured: Sequence[Measured]) -> str:
    """Figures of a few grids side by side, and how to read them."""
    first = measured[0]
    table = [
        [f.metadata["label"], f.metadata["unit"], *(cell(getattr(m, f.name), f.metadata["kind"]) for m in measured)]
        for f in dataclasses.fields(Measured)
        if f.name not in COMMON
    ]
    widths = [max(len(line[i]) for line in table) for i in range(len(table[0]))]
    lines = [
        f"{first.machine}, {first.cores} cores; efficiency={first.preset}",
        f"core columns: {first.columns}",
        "",
    ]
    for label, unit, *cells in table:
        right = "  ".join(c.rjust(w) for c, w in zip(cells, widths[2:], strict=True))
        lines.append(f"{label.ljust(widths[0])}  {right}  {unit}".rstrip())
    lines += [
        "",
        "Speeds are the best of this run on this machine, other load included; compare runs by their ratios:",
        "kernel over NumPy, and the shares of the two ceilings measured in the same run.",
    ]
    return "\n".join(lines) + "\n"
