"""What is asked of stored sweeps: frontiers, SQL, reports and planning documents, against brute force and DuckDB."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pytest

from pipelines import compare, frontier, query, report, sweep
from sweep.config import conf_dir
from sweep.frontier import hypervolume

GRID = [
    "model=llama_3_1_8b",
    "grid.hardware=[h100_sxm_80gb,b200_sxm_180gb]",
    "grid.layout.gpus=[1,2]",
    "efficiency=ideal",
    "report=false",
    "progress=false",
]


@dataclass(frozen=True)
class Sweeps:
    """Directories of sweeps of one small grid."""

    multi: Path  # two jobs: workload=chat and workload=long_context, all points stored
    alone: Path  # workload=chat, frontier only

    @property
    def one(self) -> Path:
        """The first job: workload=chat."""
        return self.multi / "0"


@pytest.fixture(scope="session")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sweeps]:
    root = tmp_path_factory.mktemp("stored")
    argv, environment = list(sys.argv), dict(os.environ)
    try:
        loads = ["-m", "workload=chat,long_context", "store.rows=all", f"hydra.sweep.dir={root / 'multi'}"]
        assert sweep.main([*GRID, *loads]) == 0
    finally:
        sys.argv[:] = argv
        os.environ.clear()
        os.environ.update(environment)
    # what store.rows=frontier leaves: no points, and a manifest that says so
    shutil.copytree(root / "multi" / "0", root / "alone", ignore=shutil.ignore_patterns("points", ".hydra"))
    manifest = json.loads((root / "alone" / "manifest.json").read_text())
    (root / "alone" / "manifest.json").write_text(json.dumps({**manifest, "store_rows": "frontier"}))
    yield Sweeps(root / "multi", root / "alone")


@pytest.fixture
def sweeps(swept: Sweeps, tmp_path: Path) -> Sweeps:
    """A copy to write into."""
    for path in (swept.multi, swept.alone):
        shutil.copytree(path, tmp_path / path.name)
    return Sweeps(tmp_path / "multi", tmp_path / "alone")


@dataclass(frozen=True)
class Ran:
    """What a command did."""

    code: int
    out: str
    err: str


Run = Callable[..., Ran]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """A command line, in this process."""

    def command(pipeline: Any, *words: object) -> Ran:
        capsys.readouterr()
        code = pipeline.main([str(word) for word in words])
        return Ran(code, *capsys.readouterr())

    return command


def one_line(ran: Ran, *parts: str, code: int = 1) -> None:
    assert ran.code == code
    assert ran.out == ""
    assert ran.err.count("\n") == 1, ran.err
    assert "Traceback" not in ran.err
    for part in parts:
        assert part in ran.err


def points_of(*directories: Path) -> pl.DataFrame:
    """Stored points, read without this program's help."""
    frames = []
    for directory in directories:
        frame = pl.concat([pl.read_parquet(p) for p in sorted((directory / "points").glob("*.parquet"))])
        labels = [name for name, kind in frame.schema.items() if kind == pl.Categorical]
        frames.append(frame.with_columns(pl.col(labels).cast(pl.String), pl.lit(directory.name).alias("job")))
    return pl.concat(frames)


def brute(frame: pl.DataFrame, signs: dict[str, int], by: list[str]) -> set[tuple[Any, ...]]:
    """Job and point of what nothing beats, by comparing all pairs."""
    frame = frame.filter("feasible")
    found = set()
    for group in frame.partition_by(by) if by else [frame]:
        values = np.stack([group[c].to_numpy().astype(np.float64) * s for c, s in signs.items()], axis=1)
        assert np.isfinite(values).all()
        beats = (values[:, None] >= values[None]).all(-1) & (values[:, None] > values[None]).any(-1)
        kept = group.filter(pl.Series(~beats.any(0)))
        found |= set(zip(kept["job"], kept["point_id"], strict=True))
    return found


THREE = {"accuracy": 1, "tok_s_gpu": 1, "tok_s_user": 1}


# --- frontier ----------------------------------------------------------------------------------------------------


def test_frontier_of_one_sweep_is_that_of_brute_force(sweeps: Sweeps, run: Run) -> None:
    own = (sweeps.one / "frontier.parquet").read_bytes()
    ran = run(frontier, sweeps.one)
    assert (ran.code, ran.err) == (0, "")
    found = pl.read_parquet(sweeps.one / "frontier" / "frontier.parquet")
    expected = brute(points_of(sweeps.one), THREE, ["hardware"])
    assert {("0", i) for i in found["point_id"]} == expected
    assert len(expected) > 4
    assert set(found["point_id"]) == set(pl.read_parquet(sweeps.one / "frontier.parquet")["point_id"])
    assert (sweeps.one / "frontier.parquet").read_bytes() == own  # a sweep keeps its own
    assert "job" not in found.columns
    assert str(sweeps.one / "frontier" / "frontier.parquet") in ran.out
    assert not list(sweeps.one.glob("**/.*.tmp"))


@pytest.mark.parametrize(
    ("objectives", "signs"),
    [
        ("tok_s_gpu,tok_s_user", {"tok_s_gpu": 1, "tok_s_user": 1}),
        ("-ttft_s,tok_s_gpu,tok_s_user", {"ttft_s": -1, "tok_s_gpu": 1, "tok_s_user": 1}),
        ("usd_per_mtok,held_bytes:min,tok_s_user", {"usd_per_mtok": -1, "held_bytes": -1, "tok_s_user": 1}),
        (
            "ttft_s,tok_s_gpu,tok_s_user,joule_per_tok",
            {"ttft_s": -1, "tok_s_gpu": 1, "tok_s_user": 1, "joule_per_tok": -1},
        ),
    ],
)
@pytest.mark.parametrize("by", ["", "hardware", "job,layout.gpus"])
def test_any_objectives_and_groups_of_a_multirun(
    swept: Sweeps, run: Run, tmp_path: Path, objectives: str, signs: dict[str, int], by: str
) -> None:
    where = "tok_s_user >= 20 and layout.gpus <= 2"
    ran = run(frontier, swept.multi, "--objectives", objectives, "--by", by, "--where", where, "--out", tmp_path / "o")
    assert (ran.code, ran.err) == (0, "")
    found = pl.read_parquet(tmp_path / "o" / "frontier.parquet")
    points = points_of(swept.multi / "0", swept.multi / "1").filter(pl.col("tok_s_user") >= 20)
    expected = brute(points, signs, [k for k in by.split(",") if k])
    assert set(zip(found["job"], found["point_id"], strict=True)) == expected
    assert {"rank", "workload", "hardware", "model"} <= set(found.columns)


def test_a_multirun_is_merged_per_workload_and_summarised(sweeps: Sweeps, run: Run) -> None:
    for _ in range(2):  # what the first run writes into the multirun does not confuse the second
        ran = run(frontier, sweeps.multi)
        assert (ran.code, ran.err) == (0, "")
        assert "per hardware, workload" in ran.out
        found = pl.read_parquet(sweeps.multi / "frontier.parquet")
        both = points_of(sweeps.multi / "0", sweeps.multi / "1")
        assert set(zip(found["job"], found["point_id"], strict=True)) == brute(both, THREE, ["job", "hardware"])
    assert dict(found.select("job", "workload").unique().rows()) == {"0": "chat", "1": "long_context"}
    read = pl.read_csv(sweeps.multi / "frontier.csv", schema_overrides={"job": pl.String})
    assert read["point_id"].to_list() == found["point_id"].to_list()
    for n, load in enumerate(("chat", "long_context")):
        manifest = json.loads((sweeps.multi / str(n) / "manifest.json").read_text())
        line = next(row for row in ran.out.splitlines() if row.startswith(f"| {n} ") and f"workload={load}" in row)
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        assert cells[2:5] == [f"{manifest[key]:,}" for key in ("points", "feasible", "frontier")]
        top = found.filter(pl.col("job") == str(n))
        assert float(cells[5].replace(",", "")) == pytest.approx(top["tok_s_gpu"].max(), rel=5e-3)
        assert float(cells[6].replace(",", "")) == pytest.approx(top["tok_s_user"].max(), rel=5e-3)
    assert "all jobs: model=llama_3_1_8b" in ran.out


def test_hypervolumes_and_ranks(swept: Sweeps, run: Run, tmp_path: Path) -> None:
    ran = run(frontier, swept.one, "--objectives", "tok_s_gpu,tok_s_user", "--out", tmp_path)
    found = pl.read_parquet(tmp_path / "frontier.parquet")
    for name in ("h100_sxm_80gb", "b200_sxm_180gb"):
        group = found.filter(pl.col("hardware") == name)
        assert group["rank"].to_list() == list(range(1, group.height + 1))
        area = hypervolume(group.select("tok_s_gpu", "tok_s_user").to_numpy(), [0.0, 0.0])
        row = next(line for line in ran.out.splitlines() if line.startswith(f"| {name}"))
        assert float(row.split("|")[3].replace(",", "")) == pytest.approx(area, rel=1e-3)
    ran = run(frontier, swept.one, "--objectives", "tok_s_gpu,tok_s_user", "--top", "1", "--out", tmp_path)
    assert sum(line.startswith("|    1 |") for line in ran.out.splitlines()) == 2
    assert not any(line.startswith("|    2 |") for line in ran.out.splitlines())


def test_units_and_origin_are_in_the_file(swept: Sweeps, run: Run, tmp_path: Path) -> None:
    assert run(frontier, swept.multi, "--where", "tok_s_user > 1", "--out", tmp_path).code == 0
    metadata = pl.read_parquet_metadata(tmp_path / "frontier.parquet")
    assert metadata["unit.tok_s_gpu"] == "tok/s/GPU"
    assert json.loads(metadata["codesign.objectives"]) == ["accuracy:max", "tok_s_gpu:max", "tok_s_user:max"]
    assert json.loads(metadata["codesign.by"]) == ["hardware", "workload"]
    assert json.loads(metadata["codesign.where"]) == "tok_s_user > 1"
    assert len({job["config_sha256"] for job in json.loads(metadata["codesign.jobs"])}) == 2
    ran = run(query, tmp_path / "frontier.parquet", "select count(*) as n from points", "--format", "csv")
    assert ran.out == f"n\n{pl.read_parquet(tmp_path / 'frontier.parquet').height}\n"


def test_formats_on_standard_output(swept: Sweeps, run: Run, tmp_path: Path) -> None:
    ran = run(frontier, swept.one, "--format", "json", "--out", tmp_path)
    rows = json.loads(ran.out, parse_constant=pytest.fail)
    assert [row["point_id"] for row in rows] == pl.read_parquet(tmp_path / "frontier.parquet")["point_id"].to_list()
    ran = run(frontier, swept.one, "--format", "csv", "--top", "2", "--out", tmp_path)
    assert [row["rank"] for row in csv.DictReader(io.StringIO(ran.out))] == ["1", "2", "1", "2"]


def test_sweeps_given_one_by_one(swept: Sweeps, run: Run, tmp_path: Path) -> None:
    ran = run(frontier, swept.one, swept.alone, "--by", "job", "--format", "json")
    assert ran.code == 0
    assert {row["job"] for row in json.loads(ran.out)} == {"multi/0", "alone"}
    assert "alone: frontier of stored frontiers, exact" in ran.err
    ran = run(frontier, swept.one, swept.one, swept.alone)
    assert "not written: --out DIR" in ran.err


@pytest.mark.parametrize(
    ("words", "exact"),
    [
        ((), True),
        (("--by", ""), True),
        (("--objectives", "tok_s_user,tok_s_gpu"), True),
        (("--where", "tok_s_user >= 50 and hardware = 'h100_sxm_80gb'"), True),
        (("--where", "hardware = 'h100_sxm_80gb' or hardware = 'b200_sxm_180gb'"), True),
        (("--by", "hardware,layout.gpus"), False),
        (("--where", "tok_s_user <= 50"), False),
        (("--where", "tok_s_user between 50 and 100"), False),
        (("--where", "tok_s_user >= 50 or ttft_s < 1"), False),
        (("--where", "layout.tpa = 1"), False),
        (("--objectives", "ttft_s,tok_s_gpu"), False),
    ],
)
def test_a_frontier_of_stored_frontiers_says_whether_it_is_exact(
    swept: Sweeps, run: Run, tmp_path: Path, words: tuple[str, ...], exact: bool
) -> None:
    ran = run(frontier, swept.alone, *words, "--out", tmp_path / "few")
    assert ran.code == 0
    assert ran.err.startswith("frontier of stored frontiers")
    assert ("not exact" in ran.err) is not exact
    assert (", exact" in ran.err.splitlines()[0]) is exact
    if exact:  # of ties one is as good as another: values are compared
        assert run(frontier, swept.one, *words, "--out", tmp_path / "all").code == 0
        values = [
            set(pl.read_parquet(tmp_path / name / "frontier.parquet").select("tok_s_gpu", "tok_s_user").rows())
            for name in ("few", "all")
        ]
        assert values[0] == values[1]


def test_an_empty_frontier(swept: Sweeps, run: Run, tmp_path: Path) -> None:
    ran = run(frontier, swept.one, "--where", "tok_s_user > 1e12", "--out", tmp_path / "new" / "deep")
    assert ran.code == 0
    assert ran.err == "the frontier is empty: no stored point meets tok_s_user > 1e12\n"
    assert pl.read_parquet(tmp_path / "new" / "deep" / "frontier.parquet").height == 0


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--by", "hardwar"], ["by=hardwar: no such column", "nearest: hardware"]),
        (["--objectives", "tok_s_gp"], ["objectives=tok_s_gp", "nearest: tok_s_gpu"]),
        (["--where", "layout.tpaa = 1"], ["no column layout.tpaa", "layout.tpa"]),
        (["--where", "tok_s_user >"], ["where=tok_s_user >"]),
        (["--objectives", "hardware"], ["objectives=hardware: not a number"]),
        (["--top", "0"], ["--top=0"]),
    ],
)
def test_bad_frontiers_are_one_line_and_write_nothing(
    swept: Sweeps, run: Run, tmp_path: Path, words: list[str], parts: list[str]
) -> None:
    one_line(run(frontier, swept.one, *words, "--out", tmp_path / "out"), *parts)
    assert not (tmp_path / "out").exists()


def test_a_sweeps_own_directory_is_refused(sweeps: Sweeps, run: Run) -> None:
    before = (sweeps.alone / "frontier.parquet").read_bytes()
    one_line(run(frontier, sweeps.alone, "--out", sweeps.alone), "holds the sweep's own frontier")
    assert (sweeps.alone / "frontier.parquet").read_bytes() == before


@pytest.mark.parametrize("pipeline", [frontier, query, report])
def test_no_such_sweep_and_bad_usage(swept: Sweeps, run: Run, tmp_path: Path, pipeline: Any) -> None:
    more = ["select 1 as one"] if pipeline is query else []
    one_line(run(pipeline, swept.multi.parent / "mult", *more), "no such sweep", "nearest: multi")
    one_line(run(pipeline, tmp_path, *more), "holds no sweep")
    (tmp_path / "junk.parquet").write_text("not Parquet")
    one_line(run(pipeline, tmp_path / "junk.parquet", *more), "not a Parquet file")
    one_line(run(pipeline), "required: PATH", code=2)
    one_line(run(pipeline, swept.one, *more, "--wat"), "--wat", code=2)
    helped = run(pipeline, "--help")
    assert (helped.code, helped.err) == (0, "")
    assert f"python -m pipelines.{pipeline.__name__.split('.')[-1]}" in helped.out


def test_an_unfinished_job_is_left_out(sweeps: Sweeps, run: Run) -> None:
    (sweeps.multi / "1" / "manifest.json").unlink()
    ran = run(frontier, sweeps.multi)
    assert ran.code == 0
    assert "1: has not finished" in ran.err
    for file in (sweeps.multi / "1").glob("**/*.parquet"):
        file.unlink()
    ran = run(frontier, sweeps.multi)
    assert ran.code == 0
    assert ran.err == "1: no complete part yet; left out\n"
    one_line(run(report, sweeps.multi / "1"), "no complete part yet")


# --- compare -----------------------------------------------------------------------------------------------------


def test_two_sweeps_and_two_groups_are_compared(swept: Sweeps, run: Run, tmp_path: Path) -> None:
    points = points_of(swept.one).filter("feasible")
    ran = run(compare, swept.one, "--between", "hardware=h100_sxm_80gb,b200_sxm_180gb", "--at", "20,50,100",
              "--out", tmp_path / "c", "--format", "json")  # fmt: skip
    assert ran.code == 0, ran.err
    rows = [r for r in json.loads(ran.out) if r["measure"] == "tok_s_gpu at tok_s_user"]
    assert [r["at"] for r in rows if r["accuracy"] is None] == [20.0, 50.0, 100.0]
    for row in rows:
        for side in ("first", "second"):
            own = points.filter((pl.col("hardware") == row[f"{side}_side"]) & (pl.col("tok_s_user") >= row["at"]))
            assert row[side] == pytest.approx(own["tok_s_gpu"].max(), rel=1e-6)
        assert row["ratio"] == pytest.approx(row["second"] / row["first"])
    names = {"compare.md", "compare.csv", "compare.json", "compare.svg", "compare.png"}
    assert {p.name for p in (tmp_path / "c").iterdir()} == names
    assert json.loads((tmp_path / "c" / "compare.json").read_text()) == json.loads(ran.out)
    page = (tmp_path / "c" / "compare.md").read_text()
    assert (
        "llama_3_1_8b" in page and json.loads((swept.one / "manifest.json").read_text())["config_sha256"][:12] in page
    )

    same = run(compare, swept.one, swept.alone, "--names", "all,kept", "--format", "csv")
    assert same.code == 0
    ratios = [row["ratio"] for row in csv.DictReader(io.StringIO(same.out)) if row["ratio"]]
    assert ratios and all(float(r) == pytest.approx(1.0) for r in ratios)
    table = run(compare, swept.one, "--between", "layout.gpus=1,2", "--where", "hardware = 'h100_sxm_80gb'")
    assert table.code == 0 and "2 over 1" in table.out and " x |" in table.out


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ([], ["1 path: give two sweeps, or one and --between KEY=A,B"]),
        (["--between", "hardwar=a,b"], ["--between=hardwar: no such column", "nearest: hardware"]),
        (["--between", "hardware=h100_sxm_80gb"], ["must be KEY=A,B"]),
        (["--between", "hardware=h100_sxm_80gb,b200"], ["hardware=b200: no such point", "b200_sxm_180gb"]),
        (["--between", "layout.gpus=1,2", "--axes", "tok_s_user"], ["must be two columns"]),
        (["--between", "layout.gpus=1,2", "--axes", "tok_s_user,tok_s_gp"], ["no such column", "tok_s_gpu"]),
        (["--between", "layout.gpus=1,2", "--at", "x"], ["--at=x: must be numbers"]),
        (["--between", "layout.gpus=1,2", "--where", "tok_s_user > 1e9"], ["1: no feasible point meets"]),
    ],
)
def test_bad_comparisons_are_one_line(
    swept: Sweeps, run: Run, tmp_path: Path, words: list[str], parts: list[str]
) -> None:
    one_line(run(compare, swept.one, *words, "--out", tmp_path / "o"), *parts)
    assert not (tmp_path / "o").exists()


def test_how_surely_points_are_on_the_frontier(swept: Sweeps, run: Run, tmp_path: Path) -> None:
    ran = run(frontier, swept.one, "--sigma", "0.15", "--draws", "50", "--top", "2", "--out", tmp_path)
    assert ran.code == 0 and "share of 50 draws" in ran.err
    found = pl.read_parquet(tmp_path / "frontier.parquet")
    assert found["stays"].is_between(0, 1).all() and found["stays"].max() > 0.5
    assert found.group_by("hardware").agg(pl.col("knee").sum())["knee"].to_list() == [1, 1]
    assert "| knee " in ran.out and " stays |" in ran.out
    again = run(frontier, swept.one, "--sigma", "0.15", "--draws", "50", "--format", "csv", "--out", tmp_path)
    assert pl.read_csv(io.StringIO(again.out))["stays"].to_list() == found["stays"].to_list()
    for words, part in (
        (("--sigma", "0"), "--sigma=0"),
        (("--sigma", "0.1", "--correlation", "2"), "--correlation=2"),
        (("--sigma", "0.1", "--draws", "0"), "--draws=0"),
    ):
        one_line(run(frontier, swept.one, *words), part)


# --- query -------------------------------------------------------------------------------------------------------

QUERIES = [
    "select hardware, count(*) as n, max(tok_s_gpu) as best from points where feasible group by hardware "
    "order by hardware",
    "select layout.tpa, layout.pp, sum(workload.batch) as total from points group by layout.tpa, layout.pp "
    "order by layout.tpa, layout.pp",
    "select point_id, tok_s_user from points where feasible and layout.gpus = 2 and tok_s_user > 50 "
    "order by tok_s_user desc, point_id limit 7",
    "select p.layout.dpa as dpa, avg(p.held_bytes) as held from points p where p.feasible group by p.layout.dpa "
    "order by dpa",
    "select count(*) as n from points where (reasons & 2) <> 0",
]


@pytest.mark.parametrize("sql", QUERIES)
def test_sql_says_what_duckdb_says_of_the_same_files(swept: Sweeps, run: Run, sql: str) -> None:
    ran = run(query, swept.one, sql, "--format", "json")
    assert (ran.code, ran.err) == (0, "")
    rows = json.loads(ran.out)
    theirs = re.sub(r"\b((?:layout|workload)\.\w+)", r'"\1"', sql)
    source = f"read_parquet('{swept.one}/points/*.parquet')"
    answer = duckdb.sql(re.sub(r"\bfrom points\b", f"from {source}", theirs))
    assert answer is not None
    assert list(rows[0]) == answer.columns
    expected = answer.fetchall()
    assert len(rows) == len(expected) > 0
    for row, reference in zip(rows, expected, strict=True):
        for value, other in zip(row.values(), reference, strict=True):
            assert value == (pytest.approx(other, rel=1e-6) if isinstance(other, float) else other)


def test_the_files_open_in_duckdb_and_pandas(swept: Sweeps, run: Run, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    assert run(query, swept.multi, "select * from points where feasible", "--out", tmp_path / "x.parquet").code == 0
    points = points_of(swept.multi / "0", swept.multi / "1").filter("feasible")
    frame = pandas.read_parquet(tmp_path / "x.parquet")
    assert len(frame) == points.height
    assert set(frame["workload"]) == {"chat", "long_context"}
    found = duckdb.sql(f"select sum(tok_s_gpu) from '{tmp_path / 'x.parquet'}'")
    assert found is not None
    assert found.fetchall()[0][0] == pytest.approx(points["tok_s_gpu"].cast(pl.Float64).sum(), rel=1e-5)
    assert pl.read_parquet_metadata(tmp_path / "x.parquet")["unit.tok_s_user"] == "tok/s/user"


def test_jobs_and_frontier_tables(swept: Sweeps, run: Run) -> None:
    sql = (
        "select j.workload, j.points, j.infeasible.not_divisible as odd, count(*) as n, max(f.tok_s_gpu) as best, "
        "max(j.best_tok_s_gpu) as said from frontier f join jobs j on f.job = j.job "
        "group by j.workload, j.points, j.infeasible.not_divisible order by j.workload"
    )
    ran = run(query, swept.multi, sql, "--format", "json")
    assert ran.code == 0, ran.err
    rows = json.loads(ran.out)
    assert [row["workload"] for row in rows] == ["chat", "long_context"]
    for n, row in enumerate(rows):
        manifest = json.loads((swept.multi / str(n) / "manifest.json").read_text())
        assert row["points"] == manifest["points"]
        assert row["odd"] == manifest["infeasible"]["not_divisible"]
        assert row["n"] == manifest["frontier"]
        assert row["best"] == pytest.approx(row["said"])


def test_csv_table_and_files(swept: Sweeps, run: Run, tmp_path: Path) -> None:
    sql = "select hardware, layout.tpa, tok_s_gpu, feasible from points order by point_id"
    height = points_of(swept.one).height
    plain = run(query, swept.one, sql, "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(plain.out)))
    assert len(rows) == height
    assert set(rows[0]) == {"hardware", "layout.tpa", "tok_s_gpu", "feasible"}
    for suffix in ("csv", "json", "parquet", "txt"):
        ran = run(query, swept.one, sql, "--out", tmp_path / f"out.{suffix}")
        assert (ran.code, ran.out) == (0, "")
        assert f"out.{suffix}: {height} rows" in ran.err
    assert (tmp_path / "out.csv").read_text() == plain.out
    values = [row["tok_s_gpu"] for row in json.loads((tmp_path / "out.json").read_text(), parse_constant=pytest.fail)]
    assert None in values
    stored = pl.read_parquet(tmp_path / "out.parquet")["tok_s_gpu"].fill_nan(None).to_list()
    assert [v is None for v in values] == [v is None for v in stored]
    assert [v for v in values if v] == pytest.approx([v for v in stored if v], rel=1e-6)
    assert (tmp_path / "out.txt").read_text().startswith("| hardware ")
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"out.{s}" for s in ("csv", "json", "parquet", "txt")]


def test_a_long_table_is_cut_and_says_so(swept: Sweeps, run: Run) -> None:
    many = " union all ".join(["select hardware from points"] * 8)
    ran = run(query, swept.one, many)
    assert ran.code == 0
    assert ran.out.count("\n") == query.SHOWN_ROWS + 2
    assert "the first 100 rows" in ran.err


def test_text_survives_json(tmp_path: Path, run: Run) -> None:
    odd = ['a"},{"b', "line\nbreak", "é\u2028", None]
    pl.DataFrame({"text": odd, "x": [1.5, float("nan"), float("inf"), None]}).write_parquet(tmp_path / "p.parquet")
    ran = run(query, tmp_path / "p.parquet", "select * from points", "--format", "json")
    rows = json.loads(ran.out, parse_constant=pytest.fail)
    assert [row["text"] for row in rows] == odd
    assert [row["x"] for row in rows] == [1.5, None, None, None]


def test_schema_is_the_data_dictionary(swept: Sweeps, run: Run) -> None:
    ran = run(query, swept.multi, "--schema", "--format", "json")
    says = {row["column"]: row for row in json.loads(ran.out)}
    assert says["tok_s_gpu"]["unit"] == "tok/s/GPU"
    assert says["layout.tpa"] == {
        "column": "layout.tpa",
        "type": "int32",
        "unit": "1",
        "meaning": "attention: GPUs that share the heads",
    }
    assert {"job", "workload", "hardware", "reasons"} <= set(says)
    assert all(row["unit"] and row["meaning"] and row["type"] for row in says.values())
    ran = run(query, swept.one, "--schema")
    assert ran.code == 0
    assert "| tok_s_user " in ran.out
    assert "infeasible.capacity" in ran.out


@pytest.mark.parametrize("name", sorted(p.stem for p in (conf_dir() / "query").glob("*.yaml")))
def test_named_queries_answer(swept: Sweeps, run: Run, name: str) -> None:
    ran = run(query, swept.multi, "--name", name, "--format", "json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)


def test_what_named_queries_say(swept: Sweeps, run: Run) -> None:
    def rows(name: str) -> list[dict[str, Any]]:
        answered = json.loads(run(query, swept.one, "--name", name, "--format", "json").out)
        assert isinstance(answered, list)
        return answered

    points = points_of(swept.one)
    good = points.filter(pl.col("feasible") & (pl.col("tok_s_user") >= 50))
    best = dict(good.group_by("hardware").agg(pl.col("tok_s_gpu").max()).rows())
    assert {row["hardware"]: row["tok_s_gpu"] for row in rows("best_per_hardware")} == pytest.approx(best)
    manifest = json.loads((swept.one / "manifest.json").read_text())
    assert {row["reason"]: row["points"] for row in rows("infeasible")} == manifest["infeasible"]
    assert sum(row["points"] for row in rows("layouts")) == manifest["frontier"]
    for row in rows("best_per_sla"):
        fast = points.filter(pl.col("feasible") & (pl.col("tok_s_user") >= row["tok_s_user_at_least"]))
        own = fast.filter(pl.col("hardware") == row["hardware"])
        assert row["tok_s_gpu"] == pytest.approx(own["tok_s_gpu"].max(), rel=1e-6)
    counted = rows("infeasible_by_machine")
    assert sum(row["points"] for row in counted) == points.height
    assert {k: sum(row[k] for row in counted) for k in manifest["infeasible"]} == manifest["infeasible"]
    cheap = points.filter(pl.col("feasible") & (pl.col("tok_s_user") >= 20))
    assert min(row["usd_per_mtok"] for row in rows("cheapest_per_accuracy")) == pytest.approx(
        cheap["usd_per_mtok"].min()
    )
    front = pl.read_parquet(swept.one / "frontier.parquet")
    winners = rows("winning_layouts")
    assert max(row["tok_s_gpu"] for row in winners) == pytest.approx(front["tok_s_gpu"].max())
    assert {row["hardware"] for row in winners} == set(front["hardware"])


def test_an_empty_answer_is_an_answer(swept: Sweeps, run: Run) -> None:
    sql = "select hardware, tok_s_gpu from points where tok_s_gpu > 1e30"
    for form, out in (
        ("table", "| hardware | tok_s_gpu |\n|----------|----------:|\n"),
        ("csv", "hardware,tok_s_gpu\n"),
        ("json", "[]\n"),
    ):
        ran = run(query, swept.one, sql, "--format", form)
        assert (ran.code, ran.out) == (0, out)
        assert ran.err == "no row: nothing stored meets the conditions\n"


@pytest.mark.parametrize(
    ("sql", "parts"),
    [
        ("select tok_s_gpuu from points", ["no column tok_s_gpuu", "nearest: tok_s_gpu"]),
        ("select layout.tpaa from points", ["no column layout.tpaa", "layout.tpa"]),
        ("select p.tok_s_gpuu from points p", ["no column tok_s_gpuu", "tok_s_gpu"]),
        ("select 1 as x from pointz", ["no table pointz", "nearest: points"]),
        ("selec hardware from points", ["selec"]),
        ("select hardware from points where hardware > 5", ["cannot compare"]),
        ("select hardware from points; select 1", ["one statement"]),
        ("select nofun(hardware) from points", ["nofun"]),
        ("", ["statement"]),
    ],
)
def test_bad_sql_is_one_line(swept: Sweeps, run: Run, tmp_path: Path, sql: str, parts: list[str]) -> None:
    ran = run(query, swept.one, sql, "--out", tmp_path / "x.csv")
    one_line(ran, *[part for part in parts if part not in ("one statement", "statement")])
    assert list(tmp_path.iterdir()) == []


def test_bad_query_usage(swept: Sweeps, run: Run, tmp_path: Path) -> None:
    one_line(run(query, swept.one, "--name", "layout"), "no such query", "nearest: layouts")
    one_line(run(query, swept.one), "give one of SQL, --name and --schema", code=2)
    one_line(run(query, swept.one, "select 1 as x", "--schema"), "give one of", code=2)
    one_line(run(query, swept.one, "select 1 as x", "--format", "xls"), "invalid choice", code=2)
    one_line(run(query, swept.one, "select 1 as x", "--out", tmp_path / "no" / "x.csv"), "no such directory")
    one_line(run(query, swept.one, "select 1 as x", "--out", tmp_path), "is a directory")


def test_hive_partitions_are_columns(sweeps: Sweeps, run: Run) -> None:
    points = sweeps.one / "points"
    frame = pl.concat([pl.read_parquet(p) for p in sorted(points.glob("*.parquet"))])
    for file in points.iterdir():
        file.unlink()
    for name in ("h100_sxm_80gb", "b200_sxm_180gb"):
        for gpus in (1, 2):
            directory = points / f"hardware={name}" / f"layout.gpus={gpus}"
            directory.mkdir(parents=True)
            part = frame.filter((pl.col("hardware") == name) & (pl.col("layout.gpus") == gpus))
            part.drop("hardware", "layout.gpus").write_parquet(directory / "part.parquet")
    sql = "select hardware, layout.gpus, count(*) as n, max(tok_s_gpu) as best from points where feasible group by all"
    ran = run(query, sweeps.one, sql + " order by hardware, layout.gpus", "--format", "json")
    assert (ran.code, ran.err) == (0, "")
    expected = frame.filter("feasible").group_by("hardware", "layout.gpus").agg(pl.len(), pl.col("tok_s_gpu").max())
    found = [tuple(row.values()) for row in json.loads(ran.out)]
    assert found == [
        (str(a), b, n, pytest.approx(v)) for a, b, n, v in sorted(expected.rows(), key=lambda r: (str(r[0]), r[1]))
    ]
    theirs = duckdb.sql(f"select count(*) from read_parquet('{points}/**/*.parquet', hive_partitioning=true)")
    assert theirs is not None and theirs.fetchall() == [(frame.height,)]


def test_the_same_query_in_a_notebook(swept: Sweeps, run: Run) -> None:
    import sweep as package

    frame = package.scan(swept.multi).filter(pl.col("tok_s_user") > 50).select(pl.len()).collect()
    sql = "select count(*) as n from points where tok_s_user > 50"
    assert json.loads(run(query, swept.multi, sql, "--format", "json").out) == [{"n": frame.item()}]


SMALL_MEMORY = """
import resource, sys
from pipelines import query
from sweep.store import scan
scan(sys.argv[1]).head(1).collect(engine="streaming")  # imports and threads, before the limit
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 28), used + (1 << 28)))
sys.exit(query.main(sys.argv[1:]))
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc to set a limit over what is in use")
def test_queries_stream_through_bounded_memory(tmp_path: Path) -> None:
    """16 million rows of 64 bytes, 1 GiB once decoded, under a limit of 256 MiB."""
    rows, parts = 1_000_000, 16
    (tmp_path / "points").mkdir()
    x = np.arange(rows, dtype=np.float32)
    frame = pl.DataFrame({f"c{i}": x % (i + 7) for i in range(12)}).with_columns(
        pl.int_range(rows, dtype=pl.Int64).alias("point_id"),
        pl.Series("tok_s_gpu", x),
        pl.Series("g", np.arange(rows, dtype=np.int32) % 5),
    )
    frame.write_parquet(tmp_path / "points" / "part-0000.parquet", row_group_size=1 << 18)
    for i in range(1, parts):
        os.link(tmp_path / "points" / "part-0000.parquet", tmp_path / "points" / f"part-{i:04d}.parquet")
    sql = "select g, count(*) as n, max(tok_s_gpu) as best, sum(c3) as c from points where c5 > 2 group by g order by g"
    ran = subprocess.run(
        [sys.executable, "-c", SMALL_MEMORY, str(tmp_path), sql, "--format", "json"],
        capture_output=True, text=True, env={**os.environ, "POLARS_MAX_THREADS": "2"}, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    kept = frame.filter(pl.col("c5") > 2).group_by("g").agg(pl.len(), pl.col("tok_s_gpu").max()).sort("g")
    assert [(r["g"], r["n"], r["best"]) for r in json.loads(ran.stdout)] == [
        (g, n * parts, best) for g, n, best in kept.rows()
    ]


@pytest.mark.parametrize(
    ("version", "part"), [("0", "schema version 0 is older than"), ("one", "schema version 'one' is no number")]
)
def test_an_older_schema_is_refused_in_one_line(tmp_path: Path, run: Run, version: str, part: str) -> None:
    pl.DataFrame({"a": [1]}).write_parquet(tmp_path / "p.parquet", metadata={"codesign.schema_version": version})
    one_line(run(query, tmp_path / "p.parquet", "select a from points"), part)


def test_a_newer_schema_is_refused(tmp_path: Path, run: Run) -> None:
    pl.DataFrame({"a": [1]}).write_parquet(tmp_path / "p.parquet", metadata={"codesign.schema_version": "99"})
    one_line(run(query, tmp_path / "p.parquet", "select a from points"), "schema version 99 is newer")


# --- report ------------------------------------------------------------------------------------------------------

DOC = """\
# Plan for the year

Before. `<!-- codesign:begin summary -->` is how a section begins.

```
<!-- codesign:begin nowhere -->
```

<!-- codesign:begin summary -->
stale
<!-- codesign:end summary -->

Between, with trailing spaces.  \n\n  <!-- codesign:begin frontier-chart -->
  <!-- codesign:end frontier-chart -->

<!-- codesign:begin provenance -->
<!-- codesign:end provenance -->
After, without a line end."""


def test_report_and_planning_document(sweeps: Sweeps, run: Run, tmp_path: Path) -> None:
    ran = run(report, sweeps.one)
    assert (ran.code, ran.out) == (0, f"{sweeps.one / 'report.md'}\n")
    first = {p.name: p.read_bytes() for p in sweeps.one.iterdir() if p.is_file()}
    assert {"report.md", "frontier.svg", "frontier.png", "frontier.csv"} <= set(first)

    (tmp_path / "my docs").mkdir()
    document = tmp_path / "my docs" / "plan.md"
    document.write_text(DOC)
    document.chmod(0o640)
    ran = run(report, sweeps.one, "--doc", document)
    assert (ran.code, ran.err) == (0, "")
    assert "refreshed summary, frontier-chart, provenance" in ran.out
    text = document.read_text()
    assert "stale" not in text
    assert "design points were evaluated" in text
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert links == [f"../multi/0/frontier.{suffix}" for suffix in ("svg", "csv", "html")]
    assert all((document.parent / link).is_file() for link in links)
    empty = re.compile(r"(<!-- codesign:begin (?!nowhere|\S+ -->`)\S+ -->\n).*?( *<!-- codesign:end)", re.DOTALL)
    assert empty.sub(r"\1\2", text) == empty.sub(r"\1\2", DOC)  # all other text as it was
    assert document.stat().st_mode & 0o777 == 0o640

    stamp = document.stat().st_mtime_ns
    ran = run(report, sweeps.one, "--doc", document)
    assert "up to date" in ran.out
    assert document.stat().st_mtime_ns == stamp
    assert {p.name: p.read_bytes() for p in sweeps.one.iterdir() if p.is_file()} == first

    windows = DOC.replace("\n", "\r\n").encode()
    document.write_bytes(windows)
    assert run(report, sweeps.one, "--doc", document).code == 0
    assert document.read_bytes() == text.replace("\n", "\r\n").encode()


def test_a_document_starts_from_a_template(sweeps: Sweeps, run: Run, tmp_path: Path) -> None:
    document = tmp_path / "plan.md"
    ran = run(report, sweeps.one, "--doc", document, "--template", "planning")
    assert ran.code == 0 and "written with summary" in ran.out, ran.err
    text = document.read_text()
    assert "design points were evaluated" in text and "_What we do, and what would change our mind._" in text
    document.write_text(text.replace("_What we do, and what would change our mind._", "We buy nothing."))
    ran = run(report, sweeps.one, "--doc", document, "--template", "planning")  # exists: not started anew
    assert "up to date" in ran.out and "We buy nothing." in document.read_text()

    own = tmp_path / "own.md"
    own.write_text("Ours\n\n<!-- codesign:begin best -->\n<!-- codesign:end best -->\n")
    assert run(report, sweeps.one, "--doc", tmp_path / "two.md", "--template", own).code == 0
    assert (tmp_path / "two.md").read_text().startswith("Ours\n") and "| " in (tmp_path / "two.md").read_text()
    assert own.read_text().count("\n") == 4
    (tmp_path / "bare.md").write_text("nothing\n")
    new = tmp_path / "new.md"
    one_line(
        run(report, sweeps.one, "--doc", new, "--template", tmp_path / "bare.md"), "--template=", "no marked section"
    )
    one_line(run(report, sweeps.one, "--doc", new, "--template", tmp_path / "ow.md"), "no such file", "own.md")
    one_line(run(report, sweeps.one, "--template", own), "say with --doc")
    assert not new.exists()


def test_report_of_each_job(sweeps: Sweeps, run: Run) -> None:
    for job in ("0", "1"):
        (sweeps.multi / job / "report.md").unlink(missing_ok=True)
    document = sweeps.multi.parent / "plan.md"
    document.write_text(DOC)
    one_line(run(report, sweeps.multi, "--doc", document), "holds 2 sweeps")
    ran = run(report, sweeps.multi)
    assert ran.out.split() == [str(sweeps.multi / job / "report.md") for job in ("0", "1")]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("# Nothing here\n", "has no marked section"),
        ("<!-- codesign:begin summary -->\n", ":1: summary begins and has no line"),
        ("x\n<!-- codesign:end summary -->\n", ":2: summary ends and has not begun"),
        ("<!-- codesign:begin best -->\n<!-- codesign:end summary -->\n", ":2: summary ends where best"),
        ("<!-- codesign:begin a -->\n<!-- codesign:begin b -->\n", ":2: b begins before a"),
        ("<!-- codesign:begin a --> text\n<!-- codesign:end a -->\n", ":1: a marker must stand alone"),
        ("\n<!-- codesign:begin sumary -->\n<!-- codesign:end sumary -->\n", ":2: no section sumary; nearest: summary"),
    ],
)
def test_bad_documents_stay_untouched(sweeps: Sweeps, run: Run, tmp_path: Path, text: str, part: str) -> None:
    document = tmp_path / "plan.md"
    document.write_text(text)
    one_line(run(report, sweeps.one, "--doc", document), part)
    assert document.read_text() == text


def test_a_missing_document_and_an_unfinished_sweep(sweeps: Sweeps, run: Run, tmp_path: Path) -> None:
    (tmp_path / "plan.md").write_text(DOC)
    one_line(run(report, sweeps.one, "--doc", tmp_path / "plam.md"), "no such file", "nearest: plan.md")
    (tmp_path / "latin.md").write_bytes(b"\xff\xfe")
    one_line(run(report, sweeps.one, "--doc", tmp_path / "latin.md"), "not UTF-8")
    (sweeps.one / "manifest.json").unlink()
    ran = run(report, sweeps.one)
    assert ran.code == 1
    assert "the sweep has not finished" in ran.err.splitlines()[-1]
