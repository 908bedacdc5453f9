"""Several devices find what one finds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = """
import sys
import tempfile
from pathlib import Path

import jax
import numpy as np

from sweep import run
from tests.conftest import compile_quickly, make_study

compile_quickly()
assert jax.device_count() == 2
study = make_study(
    "grid=none",
    "grid.model=[qwen3_32b, deepseek_v3]",
    "grid.hardware=[h200_sxm_141gb, gb300_nvl72]",
    "grid.layout={gpus: [8, 16], tpa: pow2, kvp: [1, 2], dpa: pow2, ep: pow2}",
    "grid.workload={batch: [1, 64], context: [2048, 65536]}",
    "frontier.by=[workload.context]",
    "store.rows=frontier",
)
run.ROWS_PER_BAR, run.EMPTY = 8, 0  # several blocks, whose rows share bars, of few rows
run.BLOCK_POINTS = 32 * 4
plan = run.plan(study)
runs = {}
for n in (1, 2):
    one = run.Run(plan, Path(tempfile.mkdtemp()), config_yaml="", compiled=True, devices=jax.devices()[:n])
    assert one.fast and one.engine.n_devices == n and one.rows_per_bar == 8
    one.frontier_only()
    assert one.done_blocks > 3, one.done_blocks
    runs[n] = one
block = runs[2]._dispatch(runs[2].blocks_of(np.arange(8), 0)[0])
spread = {name: len(block.out[name].sharding.device_set) for name in ("time", "alive")}
assert spread == {"time": 2, "alive": 2}, spread
assert [s.data.shape[-1] for s in block.out["time"].addressable_shards] == [32, 32]
at, (times,) = runs[2].engine.collected(block.out)
runs[2].engine.on_host = False  # found where they lie, as on other devices
there, (same,) = runs[2].engine.collected(block.out)
runs[2].engine.on_host = True
assert len(at) and np.array_equal(at, there) and np.array_equal(times, same)
a, b = (runs[n].front.result() for n in (1, 2))
assert len(a) > 10
assert sorted(a.ids) == sorted(b.ids)
assert np.array_equal(a.values[np.argsort(a.ids)], b.values[np.argsort(b.ids)])
assert runs[1].counts.as_json() == runs[2].counts.as_json(), (runs[1].counts, runs[2].counts)
columns = ("tok_s_gpu", "tok_s_user")
rows = np.flatnonzero(runs[2].filters.rows(np.arange(plan.space.n_rows)))[:64]
_, _, points = runs[2].engine.full(rows, runs[2].kinds, columns)
r, i, c = (x.ravel() for x in np.indices((64, 2, 2)))
plain = runs[2].engine.plain(rows[r], i, c, runs[2].kinds)
for name in columns:
    assert len(points[name].sharding.device_set) == 2
    assert np.allclose(np.asarray(points[name])[i, c, r], plain[name], rtol=1e-5), name
print("same", len(a), runs[2].counts.feasible)
"""


def test_two_devices_find_what_one_finds() -> None:
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith("same")
