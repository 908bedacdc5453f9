"""Larger than one machine and longer than one run: slices of a grid, merging them, and whatever interrupts a run."""

from __future__ import annotations

import errno
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sweep
from pipelines import frontier, query, report
from pipelines import sweep as pipeline
from sweep import remote, run, store
from sweep.shard import Shard
from tests.conftest import make_study

ROOT = Path(__file__).resolve().parent.parent
GRID = [
    "grid=none",
    "grid.model=[llama_3_1_8b, gpt_oss_120b]",
    "grid.hardware=[h100_sxm_80gb, gb300_nvl72]",
    "grid.precision=[fp8, nvfp4]",
    "grid.layout={gpus: [1, 2, 4], tpa: pow2, dpa: divisors}",
    "grid.workload={batch: {pow2: [1, 16]}, context: [2048, 65536]}",
    "frontier.by=[hardware, workload.context]",
    "frontier.robust=false",
    "efficiency=ideal",
    "report=false",
    "progress=false",
    "store.part_rows=300",
]


@pytest.fixture(scope="module", params=["all", "frontier"])
def whole(request: pytest.FixtureRequest, outputs: Path) -> Path:
    """The grid in one piece."""
    directory = outputs / f"whole_{request.param}"
    assert pipeline.main([*GRID, f"store.rows={request.param}", f"output={directory}"]) == 0
    return directory


@pytest.fixture(scope="module")
def shards(whole: Path) -> Path:
    """The same grid in three slices, as three machines would write them."""
    directory = whole.with_name(whole.name.replace("whole", "shards"))
    rows = whole.name.partition("_")[2]
    for i in (2, 0, 1):
        words = [*GRID, f"store.rows={rows}", f"shard.index={i}", "shard.count=3", f"output={directory}"]
        assert pipeline.main(words) == 0
    return directory


# --- slices ------------------------------------------------------------------------------------------------------


@given(n=st.integers(0, 300), count=st.integers(1, 40), size=st.integers(1, 50), start=st.integers(0, 300))
def test_slices_are_disjoint_balanced_and_complete(n: int, count: int, size: int, start: int) -> None:
    slices = [Shard(i, count) for i in range(count)]
    rows = [[*s.chunks(n, size)] for s in slices]
    assert all(len(chunk) <= size for chunks in rows for chunk in chunks)
    own = [np.concatenate(chunks) if chunks else np.zeros(0, dtype=np.int64) for chunks in rows]
    assert np.array_equal(np.sort(np.concatenate(own)), np.arange(n))
    assert max(map(len, own)) - min(map(len, own)) <= 1
    for s, mine in zip(slices, own, strict=True):
        assert s.size(n) == len(mine) and np.array_equal(s.of(np.arange(n)), mine)
        assert start <= s.first(start) < start + count and s.first(start) % count == s.index


def test_points_of_a_plan_are_those_of_the_slice() -> None:
    words = [w for w in GRID if "part_rows" not in w] + ["where=['layout.gpus <= 2', 'workload.batch > 1']"]
    total = run.plan(make_study(*words)).points
    plans = [run.plan(make_study(*words, f"shard.index={i}", "shard.count=3")) for i in range(3)]
    counted = [p.points for p in plans]
    assert total is not None and sum(c for c in counted if c is not None) == total
    assert len({p.sha256 for p in plans}) == 3 and len({p.study_sha256 for p in plans}) == 1


def test_the_whole_grid_is_the_same_study_whether_it_says_so_or_not() -> None:
    plain, said = run.plan(make_study(*GRID)), run.plan(make_study(*GRID, "shard.index=0", "shard.count=1"))
    part = run.plan(make_study(*GRID, "shard.count=3"))
    assert plain.sha256 == plain.study_sha256 == said.sha256 == part.study_sha256 != part.sha256


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["shard.index=3", "shard.count=3"], "shard.index=3: must lie between 0 and 2 (shard.count=3)"),
        (["shard.index=-1", "shard.count=3"], "shard.index=-1: must lie between 0 and 2"),
        (["shard.index=1"], "shard.index=1: must lie between 0 and 0 (shard.count=1)"),
        (["shard.count=0"], "shard.count=0: must be at least 1"),
        (["shard.index=0.5", "shard.count=3"], "shard.index=0.5: must be a whole number"),
        (["shard.count=many"], "shard.count=many: must be a whole number"),
    ],
)
def test_shards_that_do_not_exist(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert pipeline.main([*GRID, *words]) == 1
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


# --- merging -----------------------------------------------------------------------------------------------------


def test_three_slices_are_the_whole(
    whole: Path, shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert frontier.main([str(whole), "--out", str(tmp_path / "a")]) == 0
    of_whole = capsys.readouterr().out
    assert frontier.main([str(shards), "--out", str(tmp_path / "b")]) == 0
    of_shards = capsys.readouterr()
    assert of_shards.out.splitlines()[:-1] == of_whole.splitlines()[:-1]  # but for where it was written
    a, b = (pl.read_parquet(tmp_path / name / "frontier.parquet") for name in "ab")
    assert a.height > 20 and a["point_id"].n_unique() == a.height
    assert a.columns == b.columns and a.schema == b.schema and a.equals(b)
    assert (tmp_path / "a" / "frontier.csv").read_bytes() == (tmp_path / "b" / "frontier.csv").read_bytes()
    kept = [store.part_metadata(tmp_path / name / "frontier.parquet") for name in "ab"]
    assert {k: v for k, v in kept[0].items() if k != "codesign.jobs"} == {  # type: ignore[union-attr]
        k: v
        for k, v in kept[1].items()
        if k != "codesign.jobs"  # type: ignore[union-attr]
    }
    assert a["point_id"].sort().equals(sweep.scan(whole, "frontier").collect()["point_id"].sort())

    manifest = json.loads((whole / "manifest.json").read_text())
    (job,) = query.stored([shards])
    for key in ("points", "points_before_where", "feasible", "infeasible", "frontier", "by", "config_sha256"):
        assert job.manifest[key] == manifest[key], key
    assert f"feasible {manifest['feasible']:,} of {manifest['points']:,}" in of_shards.err
    own = [json.loads((d / "manifest.json").read_text()) for d in sorted(shards.glob("shard-*"))]
    assert [m["shard"] for m in own] == [{"index": i, "count": 3} for i in range(3)]
    assert {m["study_sha256"] for m in own} == {manifest["config_sha256"]}
    assert sum(m["points"] for m in own) == manifest["points"]


def test_slices_of_the_compiled_loops_and_of_a_killed_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("BLOCK_LOADS", 80), ("CHUNK_ROWS", 40), ("SAVE_EVERY_S", 0.0)):
        monkeypatch.setattr(run, name, value)  # several chunks of several blocks

    def result(name: str, *words: str) -> pl.DataFrame:
        planned = run.plan(make_study(*GRID, "store.rows=frontier", *words))
        one = run.Run(planned, tmp_path / name, config_yaml="", compiled=True)
        assert one.fast
        return one.execute().frontier

    whole = result("whole")
    for i in range(3):
        result(f"slices/{i}", f"shard.index={i}", "shard.count=3")
    for name in ("whole", "slices"):
        assert frontier.main([str(tmp_path / name), "--out", str(tmp_path / f"front_{name}")]) == 0
    a, b = (pl.read_parquet(tmp_path / f"front_{name}" / "frontier.parquet") for name in ("whole", "slices"))
    assert a.height == whole.height > 20 and a.equals(b)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", failing(6, os.replace, Killed))
        with pytest.raises(Killed):
            result("killed")
    assert (tmp_path / "killed" / "state.npz").is_file()
    assert result("killed").equals(whole)
    (tmp_path / "spoiled").mkdir()
    (tmp_path / "spoiled" / "state.npz").write_bytes(b"PK\x03\x04 cut short")
    assert result("spoiled").equals(whole)


def test_points_and_frontier_of_slices_are_one_table(
    whole: Path, shards: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = []
    for path in (whole, shards):
        for table in ("points", "frontier"):
            sql = f"select count(*) n, sum(point_id) ids, max(tok_s_gpu) best from {table}"
            assert query.main([str(path), sql, "--format", "csv"]) == 0
            answers.append(capsys.readouterr().out)
    assert answers[1] == answers[3]
    if whole.name.endswith("all"):
        assert answers[0] == answers[2]
        (job,) = query.stored([shards])
        assert query.scan([job]).sort("point_id").collect().equals(sweep.scan(whole).sort("point_id").collect())


def test_a_missing_slice_is_said(shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    two = sorted(shards.glob("shard-*"))[::2]
    words = [*map(str, two), "--out", str(tmp_path / "out")]
    capsys.readouterr()
    assert frontier.main(words) == 1
    err = capsys.readouterr().err
    assert "1 of 3 shards are missing or have not finished; run them: shard.index=1 shard.count=3" in err
    assert err.count("\n") == 1 and not (tmp_path / "out").exists()
    assert frontier.main([*words, "--partial"]) == 0
    assert "warning" in capsys.readouterr().err
    left = pl.read_parquet(tmp_path / "out" / "frontier.parquet")
    rows = left["point_id"] // 10  # 5 batches x 2 contexts
    assert left.height and set(rows % 3) <= {0, 2}


@pytest.mark.parametrize("whole", ["frontier"], indirect=True)
def test_slices_have_one_report(
    shards: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(report, "write_report", lambda *args, **more: asked.append({"args": args, **more}) or args[0])
    assert report.main([str(shards)]) == 0
    assert len(asked) == 1 and asked[0]["args"][0] == shards.resolve()
    assert asked[0]["args"][1].height == asked[0]["args"][2]["frontier"]
    assert "count: 1" in asked[0]["config_yaml"]


@pytest.mark.parametrize("whole", ["all"], indirect=True)
def test_several_studies_of_slices_stay_apart(shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for i in range(2):
        words = [*GRID, "where=['workload.batch > 1']", "store.rows=all", f"shard.index={i}", "shard.count=2"]
        assert pipeline.main([*words, f"output={shards}"]) == 0
    assert len(list(shards.glob("shard-*"))) == 5
    jobs = query.stored([shards])
    assert [len(job.shards) for job in jobs] == [3, 2] or [len(job.shards) for job in jobs] == [2, 3]
    assert all(not job.missing for job in jobs)
    capsys.readouterr()
    assert frontier.main([str(shards), "--out", str(tmp_path), "--by", "job,hardware"]) == 0
    assert pl.read_parquet(tmp_path / "frontier.parquet")["job"].n_unique() == 2


# --- interruptions -----------------------------------------------------------------------------------------------


class Killed(BaseException):
    """What kill -9 looks like from within: nothing is cleaned up after it."""


def contents(directory: Path) -> dict[str, Any]:
    """Names and contents of all files; of the manifest without its times."""
    found: dict[str, Any] = {}
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            found[str(path.relative_to(directory))] = path.read_bytes()
    manifest = json.loads(found["manifest.json"])
    found["manifest.json"] = {k: v for k, v in manifest.items() if k not in ("seconds", "points_per_s")}
    return found


def failing(
    at: int, real: Callable[..., Any], error: Callable[[], BaseException], *, after: bool = False
) -> Callable[..., Any]:
    """A function that fails when it is called for the `at`-th time, instead of doing its work or `after` it."""
    calls = 0

    def call(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == at:
            if after:
                real(*args)
            raise error()
        return real(*args)

    return call


def same_place(directory: Path) -> list[str]:
    rows = directory.name.partition("_")[2]
    return [*GRID, f"store.rows={rows}"]


def expected(whole: Path, directory: Path) -> dict[str, Any]:
    """What a run that was never interrupted leaves there: overrides name the directory."""
    found = contents(whole)
    key = ".hydra/overrides.yaml"
    found[key] = found[key].replace(str(whole).encode(), str(directory).encode())
    return found


@pytest.mark.parametrize("whole", ["all"], indirect=True)
def test_killed_before_or_after_any_file_it_ends_with_the_same_files(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = len(contents(whole))
    real = os.replace
    killed = 0
    points = range(2, files + 1, 4)  # every one of them passes; these take the time of three
    for i, at in enumerate(points):
        directory = tmp_path / f"killed_{at}"
        words = [*same_place(whole), f"output={directory}"]
        # the file is whole and has no name yet; or it has, and nothing comes after it
        broken = failing(at, real, Killed, after=bool(i % 2))
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", broken)
            try:
                pipeline.main(words)
            except Killed:
                killed += 1
        assert pipeline.main(words) == 0
        assert contents(directory) == expected(whole, directory), at
    assert killed >= len(points) - 1 >= 1


FORKS = """
import json, os, sys, time
from pipelines import sweep

def slow(*names, rename=os.replace):  # a slow disk: whoever kills has the time for it
    rename(*names)
    time.sleep(0.15)

os.replace = slow
for line in sys.stdin:  # imports are done once, and nothing runs yet that would not survive a fork
    pid = os.fork()
    if not pid:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os._exit(sweep.main(json.loads(line)))
    print(pid, flush=True)
    print(os.waitpid(pid, 0)[1], flush=True)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that start at once")
@pytest.mark.parametrize("whole", ["all"], indirect=True)
def test_shards_killed_again_and_again_end_with_the_same_files(whole: Path, shards: Path, tmp_path: Path) -> None:
    """Runs that get no chance to clean up: SIGKILL at random moments, some of them while a part is being written."""
    words = [*same_place(whole), "shard.count=3", f"output={tmp_path / 'killed'}"]
    slices = {i: next(shards.glob(f"shard-{i}-of-3*")) for i in (0, 2)}
    rng = random.Random(7)
    killed = 0
    with subprocess.Popen(
        [sys.executable, "-c", FORKS], cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, env={**os.environ, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"},
    ) as forks:  # fmt: skip
        assert forks.stdin and forks.stdout
        for i in (2, 0, 2):
            there = tmp_path / "killed" / slices[i].name
            before = len(list(there.glob("points/part-*")))
            forks.stdin.write(json.dumps([*words, f"shard.index={i}"]) + "\n")
            forks.stdin.flush()
            run_id = int(forks.stdout.readline())
            until = time.monotonic() + 60
            while time.monotonic() < until and len(list(there.glob("points/part-*"))) < before + 1:
                if (there / "manifest.json").exists():
                    break
                time.sleep(0.001)
            time.sleep(rng.uniform(0, 0.2))
            os.kill(run_id, signal.SIGKILL)
            killed += os.waitstatus_to_exitcode(int(forks.stdout.readline())) == -signal.SIGKILL
        forks.stdin.close()
    assert killed, "all runs ended before they were killed"
    first, broken = (tmp_path / "killed" / slices[2].name / "points" / f"part-0000{n}.parquet" for n in range(2))
    stamp = first.stat().st_mtime_ns  # there is one: no part was complete before the kill otherwise
    broken.write_bytes(b"PAR1 cut short")  # as if the disk had failed
    for i, undisturbed in slices.items():
        assert pipeline.main([*words, f"shard.index={i}"]) == 0
        found, expect = contents(tmp_path / "killed" / undisturbed.name), contents(undisturbed)
        assert found.pop(".hydra/overrides.yaml") and expect.pop(".hydra/overrides.yaml")  # name the directory
        assert found == expect, i
    assert first.stat().st_mtime_ns == stamp, "a complete part was written again"


@pytest.mark.parametrize("whole", ["all"], indirect=True)
def test_a_full_disk_is_one_line_and_a_rerun_goes_on(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "full"
    words = [*same_place(whole), f"output={directory}"]
    for at in (2, 5):
        full = failing(at, os.fsync, lambda: OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            capsys.readouterr()
            assert pipeline.main(words) == 1
        last = capsys.readouterr().err.splitlines()[-1]
        assert "cannot be written (No space left on device)" in last and str(directory) in last
        assert not list(directory.rglob(".*.tmp"))
    assert pipeline.main(words) == 0
    assert contents(directory) == expected(whole, directory)


@pytest.mark.parametrize("whole", ["all"], indirect=True)
def test_what_the_disk_has_spoiled_is_written_again(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "spoiled"
    words = [*same_place(whole), f"output={directory}"]
    assert pipeline.main(words) == 0
    files = [directory / "frontier.parquet", *sorted((directory / "points").glob("*.parquet"))[1:3]]
    for i, path in enumerate(files):
        data = path.read_bytes()
        path.write_bytes(data[: len(data) // 2])
        if i == 2:  # the end is whole, the middle is not: seen when the part is taken over
            path.write_bytes(data[:100] + b"\0" * (len(data) - 2000) + data[-1900:])
        capsys.readouterr()
        assert pipeline.main(words) == 0
        assert contents(directory) == expected(whole, directory), path
    assert pipeline.main(words) == 0
    assert "complete already" in capsys.readouterr().err
    (directory / "manifest.json").write_text("{")
    assert pipeline.main(words) == 0
    assert contents(directory) == expected(whole, directory)


@pytest.mark.parametrize("whole", ["all"], indirect=True)
def test_two_runs_do_not_write_into_one_directory(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "claimed"
    with store.claimed(directory):
        capsys.readouterr()
        assert pipeline.main([*same_place(whole), f"output={directory}"]) == 1
        assert "another run is writing here" in capsys.readouterr().err


# --- object stores -----------------------------------------------------------------------------------------------


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """A bucket of a stand-in for S3 on this machine; the working directory is an empty one."""
    server = pytest.importorskip("moto.server", reason="moto is not installed: pip install '.[dev]'")
    pytest.importorskip("s3fs", reason="s3fs is not installed: pip install '.[s3]'")
    import s3fs

    monkeypatch.chdir(tmp_path)
    for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(key, "any")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setattr(remote, "_mirrors", {})
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    stand_in = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    stand_in.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{stand_in.get_host_and_port()[1]}")
    s3fs.S3FileSystem.clear_instance_cache()
    s3fs.S3FileSystem().mkdir("bucket")
    yield "s3://bucket"
    s3fs.S3FileSystem.clear_instance_cache()
    stand_in.stop()


def test_slices_in_an_object_store(
    outputs: Path, bucket: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(remote, "UPLOAD_EVERY_S", 0.0)
    here = outputs / "whole_all"
    words = [*GRID, "store.rows=all"]
    if not here.exists():
        assert pipeline.main([*words, f"output={here}"]) == 0
    words += ["shard.count=2", f"output={bucket}/study"]
    # the first slice is interrupted after its second part, and goes on from what was uploaded
    with monkeypatch.context() as patch:
        full = failing(8, os.fsync, lambda: OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        patch.setattr(os, "fsync", full)
        assert pipeline.main([*words, "shard.index=0"]) == 1
    shutil.rmtree(remote.STAGING)  # another machine takes over
    first = remote.Stage(f"{bucket}/study").url
    fs, root = remote._open(first)
    before = {p: about["LastModified"] for p, about in fs.find(root, detail=True).items() if "part-0000" in p}
    assert len(before) >= 1
    for i in range(2):
        assert pipeline.main([*words, f"shard.index={i}"]) == 0
    assert not remote.STAGING.exists()
    fs.invalidate_cache()
    after = fs.find(root, detail=True)
    assert {p: after[p]["LastModified"] for p in before} == before, "a complete part was written again"
    assert not [p for p in after if p.endswith((".tmp", ".npz", ".remote.json"))]

    asked = "select count(*) n, sum(point_id) ids, max(tok_s_gpu) best from points where feasible"
    answers = []
    for path in (str(here), f"{bucket}/study"):
        capsys.readouterr()
        assert query.main([path, asked, "--format", "csv"]) == 0
        answers.append(capsys.readouterr().out)
        assert frontier.main([path, "--out", f"front{len(answers)}"]) == 0
    assert answers[0] == answers[1]
    assert Path("front1/frontier.csv").read_bytes() == Path("front2/frontier.csv").read_bytes()
    assert sweep.scan(f"{bucket}/study").collect().height == sweep.scan(here).collect().height

    capsys.readouterr()
    assert pipeline.main([*words, "shard.index=0"]) == 0
    assert "complete already: s3://bucket/study/shard-0-of-2" in capsys.readouterr().err
    fs.rm_file(f"{root}/{next(p for p in after if '1-of-2' in p and p.endswith('manifest.json'))[len(root) + 1 :]}")
    monkeypatch.setattr(remote, "_mirrors", {})
    assert frontier.main([f"{bucket}/study", "--out", "never"]) == 1
    assert capsys.readouterr().err.startswith("s3://bucket/study: 1 of 2 shards are missing or have not finished")
    other = [w for w in words if "efficiency" not in w and "output" not in w]
    (place,) = [p for p in remote.mirror(f"{bucket}/study").iterdir() if "0-of-2" in p.name]
    assert pipeline.main([*other, "shard.index=0", f"resume={bucket}/study/{place.name}"]) == 1
    assert "holds points of another configuration" in capsys.readouterr().err
    assert query.main([f"{bucket}/nothing", asked]) == 1
    assert capsys.readouterr().err == "s3://bucket/nothing: nothing is there\n"
    assert pipeline.main([*words[:-1], "output=s3://no-such-bucket/study"]) == 1
    assert "no-such-bucket" in capsys.readouterr().err


def test_an_address_that_nothing_opens_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert query.main(["nowhere://bucket/sweep", "select 1 from points"]) == 1
    assert capsys.readouterr().err.count("\n") == 1


# --- launchers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("launcher", ["joblib", "submitit_local", "ray"])
def test_slices_run_as_jobs(launcher: str, tmp_path: Path) -> None:
    plugin = {"joblib": "hydra_joblib_launcher", "submitit_local": "hydra_submitit_launcher"}
    # without any launcher not even the package of plugins is there
    if not find_spec("hydra_plugins") or not find_spec(f"hydra_plugins.{plugin.get(launcher, 'hydra_ray_launcher')}"):
        pytest.skip(f"hydra/launcher={launcher} is not installed: pip install '.[launchers]', or '.[ray]'")
    words = [
        "grid=none",
        "grid.workload.batch=[1, 2]",
        "grid.precision=[fp8, nvfp4]",
        "efficiency=ideal",
        "report=false",
    ]
    words += ["frontier.robust=false", "shard.index=range(0,2)", "shard.count=2", f"hydra.sweep.dir={tmp_path}/multi"]
    if launcher == "ray":
        words += ["+hydra.launcher.ray.init.num_cpus=2", "+hydra.launcher.ray.init.include_dashboard=false"]
    result = subprocess.run(
        [sys.executable, "-m", "pipelines.sweep", "-m", *words, f"hydra/launcher={launcher}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONWARNINGS": "ignore", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"},
    )
    assert result.returncode == 0, result.stderr[-2000:]
    (job,) = query.stored([tmp_path / "multi"])
    assert (len(job.shards), job.missing) == (2, ())
    assert set(query.scan([job]).collect()["point_id"]) == set(range(4))


def test_threads_of_a_job_leave_cores_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    from pipelines._app import share_cores

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    for launcher, threads in (
        ({"n_jobs": -1}, 1),
        ({"n_jobs": 2}, 4),
        ({"n_jobs": 16}, 1),
        ({"cpus_per_task": 4}, 4),
        ({"ray": {"remote": {"num_cpus": 2}}}, 2),
        ({}, 1),
    ):
        monkeypatch.delenv("NPROC", raising=False)
        share_cores(launcher)
        assert os.environ["NPROC"] == str(threads), launcher
    monkeypatch.setenv("NPROC", "3")
    share_cores({"n_jobs": 2})
    assert os.environ["NPROC"] == "3"
