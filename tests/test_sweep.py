"""The whole line on real configurations: grid, costs, Parquet, frontier, manifest, report, resume, bad input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest

import sweep
from pipelines import sweep as pipeline
from sweep import run, store
from sweep.columns import COLUMNS

ROOT = Path(__file__).resolve().parent.parent
GRID = [
    "grid=none",
    "grid.model=[llama_3_1_8b, gpt_oss_120b, {family: dense, grid: {n_layers: [16, 48]}}]",
    "grid.hardware=[h100_sxm_80gb, gb300_nvl72]",
    "grid.precision=[fp8, nvfp4]",
    "grid.layout={gpus: [1, 2, 8], tpa: pow2, kvp: pow2, dpa: divisors, ep: divisors}",
    "grid.workload={batch: {pow2: [1, 64]}, context: [2048, 65536]}",
    "frontier.by=[hardware, workload.context]",
    "report=false",
    "efficiency=ideal",
    "store.part_rows=3000",
]


def brute_force(frame: pl.DataFrame, objectives: list[str], by: list[str]) -> set[int]:
    """Ids of points that no other point of their group beats."""
    found: set[int] = set()
    for _, group in frame.filter("feasible").group_by(by):
        v = group.select(objectives).to_numpy().astype(np.float64)
        for i in range(len(v)):
            if not ((v >= v[i]).all(axis=1) & (v > v[i]).any(axis=1)).any():
                found.add(int(group["point_id"][i]))
    return found


@pytest.fixture(scope="module")
def stored(outputs: Path) -> Path:
    directory = outputs / "stored"
    assert pipeline.main([*GRID, "store.rows=all", f"output={directory}"]) == 0
    return directory


def test_every_point_is_stored_and_counted(stored: Path) -> None:
    frame = sweep.scan(stored).collect()
    manifest = json.loads((stored / "manifest.json").read_text())
    assert frame.height == manifest["points"] and frame["point_id"].n_unique() == frame.height
    assert manifest["feasible"] == int(frame["feasible"].sum())
    for name, bit in (("capacity", 1), ("not_divisible", 2)):
        assert manifest["infeasible"].get(name, 0) == int((frame["reasons"] & bit != 0).sum())
    keys = "points feasible infeasible frontier seconds points_per_s config_sha256 version"
    assert set(keys.split()) <= set(manifest)
    assert [c for c in frame.columns if c in {k.name for k in COLUMNS}] == [c.name for c in COLUMNS]
    # impossible configurations have no numbers, others have all
    impossible = frame.filter(pl.col("reasons") & 2 != 0)
    assert impossible.height and impossible["tpot_s"].null_count() == impossible.height
    assert frame.filter("feasible")["tpot_s"].null_count() == 0
    parts = frame.filter("feasible").select(
        total=pl.sum_horizontal("math_s", "weight_read_s", "kv_read_s", "activation_s", "comm_s", "latency_s"),
        tpot="tpot_s",
    )
    assert np.allclose(parts["total"], parts["tpot"], rtol=1e-5)


def test_files_carry_units_and_provenance_for_anyone(stored: Path) -> None:
    path = sorted((stored / "points").glob("*.parquet"))[0]
    assert len(list((stored / "points").glob("*.parquet"))) > 1
    schema = pq.read_schema(path)
    assert schema.field("ttft_s").metadata[b"unit"] == b"s"
    metadata = {k.decode(): v.decode() for k, v in schema.metadata.items()}
    assert metadata["unit.tok_s_gpu"] == "tok/s/GPU" and "MMLU-Pro" in metadata["codesign.accuracy_label"]
    assert json.loads(metadata["codesign.provenance"])["gb300_nvl72"]["status"] == "confirmed"
    assert "n_layers" in metadata["codesign.config"] and len(metadata["codesign.config_sha256"]) == 64
    duckdb = pytest.importorskip("duckdb")
    count, best = (
        duckdb.sql(f"select count(*), max(tok_s_gpu) from '{stored}/points/*.parquet' where feasible")
        .limit(1)
        .fetchall()[0]
    )
    frame = sweep.scan(stored).filter("feasible").select(pl.len(), pl.max("tok_s_gpu").alias("best")).collect()
    assert (count, best) == (frame["len"][0], pytest.approx(frame["best"][0]))


def test_the_frontier_is_what_brute_force_finds(stored: Path) -> None:
    frame = sweep.scan(stored).collect()
    found = set(sweep.scan(stored, "frontier").collect()["point_id"].to_list())
    assert found == brute_force(frame, ["accuracy", "tok_s_gpu", "tok_s_user"], ["hardware", "workload.context"])


def test_the_streaming_frontier_is_the_stored_one(stored: Path, outputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stored grid is so small that NumPy evaluates it; the compiled calls find the same."""
    monkeypatch.setattr(run, "PLAIN_GRID", 0)
    directory = outputs / "streamed"
    assert pipeline.main([*GRID, "store.rows=frontier", f"output={directory}"]) == 0
    columns = ["point_id", "accuracy", "tok_s_gpu", "tok_s_user", "tpot_s", "held_bytes"]
    a = sweep.scan(stored, "frontier").select(columns).sort("point_id").collect()
    b = sweep.scan(directory, "frontier").select(columns).sort("point_id").collect()
    assert a["point_id"].equals(b["point_id"])
    for name in columns[1:]:
        assert np.allclose(a[name], b[name], rtol=1e-6), name
    counts = [json.loads((d / "manifest.json").read_text()) for d in (stored, directory)]
    for key in ("points", "feasible", "infeasible", "frontier"):
        assert counts[0][key] == counts[1][key], key


def test_other_objectives_and_groups(stored: Path, outputs: Path) -> None:
    directory = outputs / "other"
    by, objectives = (
        ["frontier.by=[precision, layout.gpus, workload.batch]"],
        "frontier.objectives=[-ttft_s, tok_s_user, usd_per_mtok]",
    )
    assert pipeline.main([*GRID, *by, objectives, "store.rows=frontier", f"output={directory}"]) == 0
    frame = sweep.scan(stored).collect().with_columns((-pl.col("ttft_s", "usd_per_mtok")).name.prefix("minus_"))
    found = set(sweep.scan(directory, "frontier").collect()["point_id"].to_list())
    expected = brute_force(
        frame, ["minus_ttft_s", "tok_s_user", "minus_usd_per_mtok"], ["precision", "layout.gpus", "workload.batch"]
    )
    assert found == expected


def test_the_frontier_of_eligible_points(stored: Path, outputs: Path) -> None:
    directory = outputs / "eligible"
    assert pipeline.main([*GRID, "frontier.where='ttft_s <= 0.2 and \"layout.gpus\" = 8'", f"output={directory}"]) == 0
    eligible = sweep.scan(stored).filter((pl.col("ttft_s") <= 0.2) & (pl.col("layout.gpus") == 8)).collect()
    expected = brute_force(eligible, ["accuracy", "tok_s_gpu", "tok_s_user"], ["hardware", "workload.context"])
    assert set(sweep.scan(directory, "frontier").collect()["point_id"].to_list()) == expected


def test_axis_columns_come_back_from_the_index(stored: Path, outputs: Path) -> None:
    directory = outputs / "bare"
    assert pipeline.main([*GRID, "store.rows=feasible", "store.axes=false", f"output={directory}"]) == 0
    names = pq.read_schema(next((directory / "points").glob("*.parquet"))).names
    assert "hardware" not in names and "layout.tpa" not in names
    keys = [
        "point_id",
        "model",
        "hardware",
        "precision",
        "model.n_layers",
        "layout.tpa",
        "layout.ep",
        "workload.batch",
        "workload.context",
    ]
    a = sweep.scan(stored).filter("feasible").select(keys).sort("point_id").collect()
    b = sweep.scan(directory).select(keys).sort("point_id").collect()
    assert a.height == b.height
    for key in keys:
        assert (
            a[key]
            .cast(pl.String if a[key].dtype == pl.String else pl.Float64)
            .equals(b[key].cast(pl.String if a[key].dtype == pl.String else pl.Float64))
        ), key


def test_filters_on_rows_and_loads(stored: Path, outputs: Path) -> None:
    directory = outputs / "filtered"
    where = "where=['params_total < 5e10 and layout.gpus >= 2', 'workload.batch >= layout.gpus']"
    assert pipeline.main([*GRID, where, "store.rows=all", f"output={directory}"]) == 0
    expected = sweep.scan(stored).filter(
        (pl.col("params_total") < 5e10)
        & (pl.col("layout.gpus") >= 2)
        & (pl.col("workload.batch") >= pl.col("layout.gpus"))
    )
    assert set(sweep.scan(directory).collect()["point_id"]) == set(expected.collect()["point_id"])
    streamed = outputs / "filtered_streamed"
    assert pipeline.main([*GRID, where, "store.rows=frontier", f"output={streamed}"]) == 0
    a, b = (sorted(sweep.scan(d, "frontier").collect()["point_id"].to_list()) for d in (directory, streamed))
    assert a == b
    assert json.loads((streamed / "manifest.json").read_text())["points"] == expected.collect().height


def test_an_interrupted_run_goes_on(stored: Path, outputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = outputs / "interrupted"
    words = [*GRID, "store.rows=frontier", f"output={directory}"]
    monkeypatch.setattr(run, "PLAIN_GRID", 0)
    monkeypatch.setattr(run, "SAVE_EVERY_S", 0.0)
    monkeypatch.setattr(run, "BLOCK_POINTS", 1 << 8)
    monkeypatch.setattr(run, "CHUNK_ROWS", 1 << 9)
    calls = 0

    def stop(self: run.Run, final: bool = False) -> None:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(run.Run, "_tell", stop)
        with pytest.raises(KeyboardInterrupt):
            pipeline.main(words)
    assert (directory / "state.npz").is_file() and not (directory / "manifest.json").is_file()
    assert pipeline.main(words) == 0
    assert not (directory / "state.npz").exists()
    a, b = (sorted(sweep.scan(d, "frontier").collect()["point_id"].to_list()) for d in (stored, directory))
    assert a == b
    manifests = [json.loads((d / "manifest.json").read_text()) for d in (stored, directory)]
    assert manifests[0]["infeasible"] == manifests[1]["infeasible"] and manifests[0]["points"] == manifests[1]["points"]


def test_a_directory_of_another_configuration_is_refused(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(p.name for p in stored.rglob("*"))
    assert pipeline.main([*GRID, "store.rows=all", f"output={stored}", "efficiency=measured"]) == 1
    assert "another configuration" in capsys.readouterr().err
    assert sorted(p.name for p in stored.rglob("*")) == before


def test_a_grid_too_large_for_the_disk_is_refused_before_it_starts(
    outputs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(store, "free_bytes", lambda path: 1000)
    directory = outputs / "too_large"
    assert pipeline.main([*GRID, "store.rows=all", f"output={directory}"]) == 1
    assert "are free; nearest: store.rows=frontier" in capsys.readouterr().err
    assert not directory.exists()


def test_resume_last_finds_the_run_of_this_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["grid=none", "model=llama_3_1_8b", "report=false"]
    assert pipeline.main([*words, "resume=last"]) == 1
    assert "no earlier run" in capsys.readouterr().err
    assert pipeline.main(words) == 0
    assert pipeline.main([*words, "resume=last"]) == 0
    assert "complete already" in capsys.readouterr().err
    assert len(list((tmp_path / "outputs" / "sweep").iterdir())) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["model=lama_3_1_8b"], "model=lama_3_1_8b: no such model; nearest: llama_3_1_8b"),
        (["layout.tpaa=2"], "layout.tpaa: no such key; nearest: layout.tpa"),
        (["layout.tpa=two"], "layout.tpa=two: must be a number"),
        (["hardware.hbm_bytes_per_s=-1"], "hardware.hbm_bytes_per_s=-1.0: must be greater than 0"),
        (["hardware.hbm_bytes_per_s=nan"], "must be a finite number"),
        (["hardware.hbm_bytes_per_s=0"], "must be greater than 0"),
        (["hardware.bf16_flops=2e16"], "rates are dense, a sparse peak is twice the dense one"),
        (["precision.kv=fp7"], "precision.kv=fp7: no such format; nearest:"),
        (["model=deepseek_v3", "model.top_k=300"], "must not exceed model.n_experts=256"),
        (["model=llama_3_1_8b", "model.n_kv_heads=5"], "model.n_kv_heads=5: must divide model.n_heads=32"),
        (["experiment=demmo"], "experiment=demmo: no such experiment; nearest: demo"),
        (["store.rows=some"], "store.rows=some: allowed are all, feasible, frontier, auto"),
        (["frontier.objectives=[accuracy,tok_s_gpo]"], "no such column; nearest: tok_s_gpu"),
        (["frontier.by=[hardwear]"], "no such axis; nearest: hardware"),
        (["where=['layout.gpus > 10000']"], "no point is left"),
        (["layout.tpa=[1"], "layout.tpa"),
        (["accuracy.tokens=-1"], "accuracy.tokens"),
        (["--config-dir=/nowhere/at/all"], "no such directory"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert pipeline.main(words) == 1
    err = capsys.readouterr().err
    assert message in err and len(err.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_multirun_makes_one_directory_per_job(tmp_path: Path) -> None:
    words = [
        "-m",
        "model=llama_3_1_8b",
        "hardware=h100_sxm_80gb,gb300_nvl72",
        "workload=chat,long_context",
        "efficiency=ideal",
        "report=false",
    ]
    words.append(f"hydra.sweep.dir={tmp_path}/multi")
    result = subprocess.run(
        [sys.executable, "-m", "pipelines.sweep", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )
    assert result.returncode == 0, result.stderr[-2000:]
    jobs = store.sweeps(tmp_path / "multi")
    assert [j.name for j in jobs] == ["0", "1", "2", "3"]
    frame = sweep.scan(tmp_path / "multi").collect()
    assert set(frame["hardware"]) == {"h100_sxm_80gb", "gb300_nvl72"}
    assert all((j / "manifest.json").is_file() and (j / ".hydra" / "overrides.yaml").is_file() for j in jobs)


def test_a_job_that_fails_says_so_and_the_exit_code_too(tmp_path: Path) -> None:
    words = [
        "-m",
        "model=llama_3_1_8b",
        "workload.batch=4,-4",
        "grid=none",
        "report=false",
        f"hydra.sweep.dir={tmp_path}/multi",
    ]
    result = subprocess.run([sys.executable, "-m", "pipelines.sweep", *words], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 1
    assert "workload.batch=-4: must be greater than 0" in result.stderr and "Traceback" not in result.stderr


def test_the_report_is_written_beside_the_points(outputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = outputs / "reported"
    assert pipeline.main([w for w in GRID if w != "report=false"] + ["store.rows=frontier", f"output={directory}"]) == 0
    for name in ("report.md", "frontier.svg", "frontier.png", "frontier.csv", "frontier.parquet", "manifest.json"):
        assert (directory / name).stat().st_size > 0, name
    assert (directory / "frontier.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    out = capsys.readouterr().out
    assert "| model" in out and str(directory / "report.md") in out
