"""What rounding does: every column in float32 against the same in float64, and float64 through to the files."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow.parquet as pq

from sweep import run
from sweep.columns import COLUMNS
from sweep.store import config_hash
from tests.conftest import make_study

GRID = [
    "grid=none",
    "grid.model=[qwen3_32b, deepseek_v3, gpt_oss_120b]",
    "grid.hardware=[h200_sxm_141gb, gb300_nvl72]",
    "grid.precision=[fp8, nvfp4]",
    "grid.layout={gpus: [8, 16], tpa: [1, 8], kvp: [1, 2], dpa: pow2, ep: pow2}",
    "grid.workload={batch: [1, 64], context: [2048, 65536]}",
    "report=false",
]
PARTS = ("math_s", "weight_read_s", "kv_read_s", "activation_s", "comm_s", "latency_s")  # on the scale of their sum
WORST = 2e-6  # of any column; measured: 3.7e-7 (mbu), 2.5e-7 of tok_s_gpu and tpot_s


def made(where: Path, float64: bool, *, compiled: bool | None) -> run.Run:
    study = make_study(*GRID, *(["float64=true"] if float64 else []))
    return run.Run(run.plan(study), where, config_yaml="", compiled=compiled)


def test_float32_is_close_to_float64(tmp_path: Path) -> None:
    """Compiled float32, as sweeps use it, against float64 by NumPy."""
    single, double = made(tmp_path, False, compiled=True), made(tmp_path, True, compiled=False)
    rows = np.arange(single.space.n_rows)
    rough, exact = single.full_columns(rows), double.full_columns(rows)
    both = rough["feasible"] & exact["feasible"]
    assert both.sum() > 200
    assert np.array_equal(rough["feasible"], exact["feasible"])
    worst: dict[str, float] = {}
    for column in single.columns:
        if column.dtype != "float32" or column.level == "host":
            continue
        a, b = (np.asarray(x[column.name])[both] for x in (rough, exact))
        assert (a.dtype, b.dtype) == (np.float32, np.float64), column.name
        scale = np.abs(exact["tpot_s"][both] if column.name in PARTS else b)
        known = np.isfinite(scale) & (scale > 0)
        assert np.array_equal(np.isfinite(a), np.isfinite(b)), column.name
        worst[column.name] = float((np.abs(a - b)[known] / scale[known]).max(initial=0.0))
    print({n: f"{w:.1e}" for n, w in sorted(worst.items(), key=lambda item: -item[1])})
    assert worst["tpot_s"] > 0 and worst["tok_s_gpu"] > 0  # not one of them against itself
    for n, w in worst.items():
        assert w < WORST, n


def test_float64_stays_to_the_files_and_leaves_no_trace(tmp_path: Path) -> None:
    frontiers = {}
    for name, float64 in (("single", False), ("double", True)):
        one = made(tmp_path / name, float64, compiled=None)
        assert one.plan.rows == "all" and one.small
        assert one.execute().manifest["float64"] is float64
        frontiers[name] = pq.read_table(tmp_path / name / "frontier.parquet")
        part = pq.read_schema(tmp_path / name / "points" / "part-00000.parquet")
        for schema in (frontiers[name].schema, part):
            kinds = {str(schema.field(c.name).type) for c in COLUMNS if c.dtype == "float32"}
            assert kinds == {"double" if float64 else "float"}
    a, b = (set(frontiers[n]["point_id"].to_pylist()) for n in ("single", "double"))
    assert len(a & b) > 0.9 * len(a | b)
    assert jnp.asarray(1.0).dtype == np.float32 and not jax.config.jax_enable_x64


def test_the_compiled_frontier_is_the_same_in_float64(tmp_path: Path) -> None:
    """The filter on the device works on float64 objectives: what it keeps is what NumPy finds, to the last digits."""
    fast, slow = (made(tmp_path, True, compiled=compiled) for compiled in (True, False))
    assert fast.fast and not slow.fast
    fast.frontier_only()
    slow.generic_frontier()
    found, expected = fast.front.result(), slow.front.result()
    assert (fast.counts.asked, fast.counts.feasible) == (slow.counts.asked, slow.counts.feasible)
    both, a, b = np.intersect1d(found.ids, expected.ids, return_indices=True)
    assert len(both) >= 0.98 * max(len(found), len(expected))  # the others tie to the last digits
    assert np.allclose(found.values[a], expected.values[b], rtol=1e-12, atol=0)


def test_precision_is_part_of_the_configuration() -> None:
    single, double = make_study(*GRID), make_study(*GRID, "float64=true")
    assert config_hash(single.resolved) != config_hash(double.resolved)
    assert config_hash(single.resolved) == config_hash(make_study(*GRID, "float64=false").resolved)
