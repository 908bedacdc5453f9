"""The benchmark: its figures exist and mean something; how large they are is never asked here."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pipelines import bench as pipeline
from sweep import bench, run
from sweep.errors import BadInput
from sweep.space import kinds
from tests.conftest import make_study

KEYS = {
    "ops_per_point",
    "kernel_points_per_s",
    "frontier_points_per_s",
    "parquet_rows_per_s",
    "parquet_axes_rows_per_s",
    "parquet_all_rows_per_s",
    "bytes_per_row",
    "peak_bytes",
    "compile_s",
    "first_result_s",
    "numpy_ratio",
    "store_bandwidth_share",
    "transcendental_share",
}
MAY_BE_NONE = ("transcendentals_per_point", "transcendental_share")  # an ideal machine's step has no exponentials
WORDS = ("grid", "shape", "preset", "columns", "machine")
MIXED = "grid.model=[qwen3_32b, deepseek_v3]"
TINY = [
    "grid.model=[qwen3_32b, qwen3_8b]",
    "grid.hardware=[h200_sxm_141gb, gb300_nvl72]",
    "grid.layout={gpus: [8, 16], tpa: [1, 8], kvp: [1, 2], dpa: pow2, ep: pow2, pp: [1]}",
    "grid.workload.batch={linear: [1, 64], num: 4}",
    "grid.workload.context={pow2: [4096, 8192]}",
]


@pytest.fixture(scope="module")
def measured() -> bench.Measured:
    study = make_study("experiment=bench", "efficiency=ideal", *TINY)
    return bench.measure(lambda: run.plan(study), name="tiny", seconds=0.05)


def test_figures_are_positive_and_finite(measured: bench.Measured) -> None:
    figures = measured.as_dict()
    assert figures.keys() >= KEYS
    for key, value in figures.items():
        if key in WORDS:
            assert isinstance(value, str) and value
        else:
            assert math.isfinite(value) and (value > 0 or (value == 0 and key in MAY_BE_NONE)), key
    assert 0 < figures["numpy_worst_rel"] < 1e-4  # two ways of computing: never the same to the last bit
    assert 0 < figures["float64_worst_rel"] < 1e-4
    assert figures["preset"] == "ideal"
    assert figures["possible_points"] <= figures["points"]
    assert figures["first_result_s"] <= figures["cold_run_s"]
    assert figures["bytes_per_row_axes"] >= figures["bytes_per_row"]
    assert figures["batched_ops_per_point"] < figures["ops_per_point"]
    assert figures["frontier_peak_bytes"] <= figures["peak_bytes"]


def test_text(measured: bench.Measured) -> None:
    lines = bench.text([measured, measured]).splitlines()
    assert lines[0].endswith("efficiency=ideal")
    assert "ratios" in lines[-2] + lines[-1]
    figures = [line for line in lines if line.endswith("points/s")]
    assert len(figures) >= 4
    assert len({line.index("M points/s") for line in figures}) == 1


def test_numpy_gives_the_same_values() -> None:
    study = make_study("experiment=bench", MIXED, *TINY[1:])
    plan = run.plan(study)
    one = run.Run(plan, Path("unused"), config_yaml="", compiled=True)
    rows = bench.possible_rows(one)[: one.block_rows]
    for float64 in (False, True):
        assert 0 < bench.worst_difference(one, rows, kinds(plan.space), size=1000, float64=float64) < 1e-4


def test_numpy_is_not_compared_with_itself() -> None:
    plan = run.plan(make_study("experiment=bench", *TINY))
    one = run.Run(plan, Path("unused"), config_yaml="")
    assert one.small
    with pytest.raises(ValueError, match="NumPy"):
        bench.worst_difference(one, np.arange(4), kinds(plan.space))


def test_what_got_worse_is_found(measured: bench.Measured) -> None:
    known = bench.baseline_of(measured)
    assert all(check.passed for check in bench.compare(measured, known))
    changes: list[tuple[dict[str, Any], set[str]]] = [
        ({"numpy_ratio": measured.numpy_ratio / 2.1}, {"numpy_ratio"}),
        ({"numpy_ratio": measured.numpy_ratio / 1.8}, set()),
        ({"numpy_ratio": math.nan}, {"numpy_ratio"}),
        ({"frontier_points_per_s": measured.frontier_points_per_s * 0.4}, {"frontier_over_kernel"}),
        ({"parquet_rows_per_s": measured.parquet_rows_per_s * 0.4}, {"parquet_over_kernel"}),
        ({"parquet_axes_rows_per_s": measured.parquet_axes_rows_per_s * 0.4}, {"parquet_axes_over_kernel"}),
        ({"store_bandwidth_share": measured.store_bandwidth_share * 0.4}, {"store_bandwidth_share"}),
        ({"kernel_objectives_points_per_s": measured.kernel_points_per_s * 0.01}, {"objectives_over_kernel"}),
        ({"batched_ops_per_point": measured.batched_ops_per_point * 2.5}, {"batched_ops_per_point"}),
        ({"bytes_per_row": measured.bytes_per_row * 2.5}, {"bytes_per_row"}),
        ({"first_result_s": 1e9}, set()),  # a time of this machine, not a ratio
    ]
    for change, expected in changes:
        found = bench.compare(dataclasses.replace(measured, **change), known)
        assert {check.name for check in found if not check.passed} == expected, change
        assert all(("WORSE" in str(check)) is (check.name in expected) for check in found)
    with pytest.raises(BadInput, match="cores"):
        bench.compare(dataclasses.replace(measured, cores=measured.cores + 1), known)
    with pytest.raises(BadInput, match="lacks numpy_ratio"):
        bench.compare(measured, {k: v for k, v in known.items() if k != "numpy_ratio"})


def test_check_from_the_command_line(
    measured: bench.Measured, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    now = [measured]
    monkeypatch.setattr(bench, "measure", lambda make_plan, *, name, **_: dataclasses.replace(now[0], grid=name))
    file = tmp_path / "baseline.json"
    words = ["output=json", f"against={file}", *TINY]
    assert pipeline.main([*words, "check=true"]) == 1
    assert "cannot be read" in capsys.readouterr().err
    assert pipeline.main([*words, "check=update"]) == 0
    assert set(json.loads(file.read_text())) == set(pipeline.GRIDS)
    assert pipeline.main([*words, "check=true"]) == 0
    captured = capsys.readouterr()
    assert "ok" in captured.err and "WORSE" not in captured.err
    now[0] = dataclasses.replace(measured, numpy_ratio=measured.numpy_ratio / 3)
    assert pipeline.main([*words, "check=true"]) == 1
    captured = capsys.readouterr()
    assert "numpy_ratio" in next(line for line in captured.err.splitlines() if "WORSE" in line)
    assert json.loads(captured.out)["numpy_ratio"] == now[0].numpy_ratio
    assert pipeline.main([*words, "check=maybe"]) == 1
    assert "update" in capsys.readouterr().err
    assert pipeline.main([*words, "check=true", "experiment=demo"]) == 1
    assert "nothing of demo" in capsys.readouterr().err


def test_the_baseline_that_is_shipped_has_all_figures() -> None:
    known = bench.read_baseline(bench.baseline_path(), pipeline.GRIDS)
    for figures in known.values():
        assert figures.keys() == {*bench.SAME, *bench.RATIOS, *bench.COUNTS}


@pytest.mark.parametrize("chosen", [None, "bench_rows"])
def test_json_is_one_flat_object(
    chosen: str | None,
    measured: bench.Measured,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def quick(make_plan: Callable[[], run.Plan], *, name: str, **_: Any) -> bench.Measured:
        plan = make_plan()
        return dataclasses.replace(measured, grid=name, preset=plan.study.efficiency_id, points=plan.space.n_points)

    monkeypatch.setattr(bench, "measure", quick)
    words = ["output=json", *TINY]
    assert pipeline.main([*words, f"experiment={chosen}"] if chosen else words) == 0
    out = json.loads(capsys.readouterr().out)
    assert all(not isinstance(v, dict | list) for v in out.values())
    assert out.keys() >= KEYS
    assert out["preset"] == "measured"
    assert out["grid"] == (chosen or "bench")
    second = {f"rows_{k}" for k in KEYS}
    if chosen:
        assert not out.keys() & second
    else:
        assert out.keys() >= second
        assert out["rows_grid"] == "bench_rows"


def test_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    assert pipeline.main(["output=yaml"]) == 1
    assert "text, json" in capsys.readouterr().err
    assert pipeline.main(["efficiency=ideel"]) == 1
    assert "ideal" in capsys.readouterr().err


def test_the_grids_are_what_they_say() -> None:
    for name, contexts in (("bench", 32), ("bench_rows", 1)):
        space = run.plan(make_study(f"experiment={name}")).space
        assert (len(space.batch), space.n_contexts) == (16, contexts)
        assert 1e7 < space.n_points < 1e8


def test_a_measured_step_has_exponentials() -> None:
    """Those of the experts that a batch touches, say."""
    study = make_study("experiment=bench", MIXED, *TINY[1:])
    one = run.Run(run.plan(study), Path("unused"), config_yaml="", compiled=True)
    rows = bench.possible_rows(one)[-8:]
    _, batched = bench.operations(one, rows, one.kinds, bench.CORE)
    assert 0 < batched.transcendental < batched.total


def test_operations_that_nobody_needs_do_not_count() -> None:
    def f(x: jax.Array, y: jax.Array) -> jax.Array:
        _ = jnp.exp(y) * 3.0
        return jnp.where(x > 0, jnp.exp(x), x + 1.0)[:2]

    x = jnp.zeros(4, dtype=jnp.float32)
    found = bench.count_operations(jax.make_jaxpr(f)(x, x).jaxpr)
    assert (found.total, found.transcendental) == (16, 4)  # greater, exp, add, select, four elements each


def test_shared_terms_count_once() -> None:
    def f(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.exp(a) + b

    nested = jax.vmap(jax.vmap(f, in_axes=(None, 0)), in_axes=(0, None))
    found = bench.count_operations(jax.make_jaxpr(nested)(np.ones(3, np.float32), np.ones(5, np.float32)).jaxpr)
    assert (found.total, found.transcendental) == (3 + 15, 3)


def test_limits_of_the_machine() -> None:
    assert bench.store_bytes_per_s(0.01, size=1 << 16) > 0
    assert bench.exp_per_s(0.01, size=1 << 12) > 0
    assert bench.cores() >= 1 and bench.machine_name()
    assert bench.peak_bytes() > 1 << 20
