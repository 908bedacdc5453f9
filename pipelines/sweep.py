"""Evaluate a grid of models, machines, formats, layouts and loads; keep the frontier; write Parquet and a report.

  python -m pipelines.sweep experiment=demo
  python -m pipelines.sweep model=deepseek_v3 hardware=gb300_nvl72 precision=nvfp4
  python -m pipelines.sweep model=qwen3_32b 'grid.workload.batch={pow2: [1, 256]}' store.rows=all
  python -m pipelines.sweep -m hardware=h200_sxm_141gb,gb300_nvl72 workload=chat,long_context

Keys: any of conf/ (groups model hardware precision layout workload efficiency accuracy grid experiment), and
  grid.GROUP.KEY=[...]       an axis: a list, {pow2: [a, b]}, {linear: [a, b], num: n}, {log: ...}, {range: ...}
  where=['EXPRESSION', ...]  points to keep, such as 'layout.gpus <= 16 and params_total < 1e11'
  frontier.objectives=[...] frontier.by=[...]
  frontier.epsilon=ties|NATS what ties in loss with the frontier, into epsilon.parquet (ties: 0.010, dense to MoE 0.03)
  frontier.robust=auto|true|false   mark points that stay on it under other laws of accuracy (auto: where it is cheap)
  store.rows=all|feasible|frontier|auto  store.axes=true|false
  float64=true               compute and store in float64 (half as fast, twice the size): to see what rounding does
  output=DIR                 where to write (default outputs/sweep/<time>); s3://bucket/name with the extra s3
  shard.index=I shard.count=N   the I-th of N slices of the grid, from 0, for one of N machines; the frontier of all:
                             python -m pipelines.frontier DIR
  resume=last|DIR            go on with an interrupted run of the same configuration
  -m                         one job per combination of comma-separated values; all jobs together:
                             python -m pipelines.frontier outputs/sweep/<time>
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl
from omegaconf import OmegaConf

from pipelines import _app
from sweep import disaggregate, doubt, remote, run, store
from sweep.errors import BadInput
from sweep.report import table, tags, write_report
from sweep.run import Progress

ROOT = Path("outputs")


class Reporter:
    """Progress for a person: a bar that redraws in a terminal, a plain line every few seconds elsewhere."""

    def __init__(self, *, bar: bool, every_s: float = 5.0):
        self.bar = bar
        self.every_s = 0.2 if bar else every_s
        self.last = time.perf_counter() if not bar else 0.0

    def __call__(self, p: Progress) -> None:
        """Show progress if it is time to."""
        now = time.perf_counter()
        if not p.final and now - self.last < self.every_s:
            return
        self.last = now
        share = p.done / max(p.total, 1)
        rate = p.done / max(p.seconds, 1e-9)
        left = (p.total - p.done) / max(rate, 1e-9)
        text = (
            f"{p.done / 1e6:,.1f} of {p.total / 1e6:,.1f} M points  {rate / 1e6:,.1f} M/s  "
            f"feasible {p.feasible / max(p.done, 1):.0%}  frontier {p.frontier:,}  "
            + (f"{p.seconds:.1f} s" if p.final else f"{left:.0f} s left")
        )
        if self.bar:
            filled = int(24 * share)
            end = "\n" if p.final else ""
            print(
                f"\r\x1b[K[{'#' * filled}{'.' * (24 - filled)}] {share:4.0%}  {text}",
                end=end,
                file=sys.stderr,
                flush=True,
            )
        else:
            print(f"{share:4.0%}  {text}", file=sys.stderr, flush=True)


def choose_directory(job: _app.Job, sha256: str, study_sha256: str) -> Path | str:
    """Where this run writes: as asked, the last run of this configuration, or a new directory. An address is text."""
    output, resume = job.options.get("output"), job.options.get("resume")
    if resume == "last":
        found = [p.parent for p in (ROOT / "sweep").glob("**/config.sha256") if p.read_text().strip() == sha256]
        if not found:
            raise BadInput("resume=last: no earlier run of this configuration under outputs/sweep")
        return max(found, key=lambda p: (p / "config.sha256").stat().st_mtime)
    if resume is not None and remote.is_remote(str(resume)):
        return str(resume)
    if resume is not None:
        directory = Path(str(resume))
        if not (directory / "config.sha256").is_file():
            raise BadInput(f"resume={resume}: holds no run to go on with")
        return directory
    if output is not None:  # jobs and machines say the same directory: each has its own in it
        shard = job.study.shard
        own = job.directory.name if job.directory is not None else ""
        if shard:
            own = f"shard-{shard.index}-of-{shard.count}-{study_sha256[:8]}"
        if remote.is_remote(str(output)):
            return f"{str(output).rstrip('/')}/{own}".rstrip("/")
        return Path(str(output)) / own
    if job.directory is not None:
        return job.directory
    stamp = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    directory = ROOT / "sweep" / stamp
    i = 1
    while directory.exists():
        i += 1
        directory = ROOT / "sweep" / f"{stamp}_{i}"
    return directory


def pools_task(job: _app.Job) -> int:
    """Two pools and their match: disaggregated serving."""
    both = disaggregate.pools(job.study)
    if job.study.shard:
        raise BadInput(f"shard.count={job.study.shard.count}: pools are matched as a whole; shard serving.mode=decode")
    chosen = choose_directory(job, both.sha256, both.sha256)
    if isinstance(chosen, str):
        raise BadInput(f"output={chosen}: pools are written to a directory of this machine; copy it from there")
    directory = chosen
    run.check_directory(directory, both.sha256)
    print(job.study.title, file=sys.stderr)
    for name, pool in (("prefill", both.prefill), ("decode", both.decode)):
        print(f"{name} pool: {pool.points_before:,} points in the grid", file=sys.stderr)
    done = store.manifest(directory)
    if done.get("config_sha256") == both.sha256 and (directory / "frontier.parquet").is_file():
        print(f"complete already: {directory}", file=sys.stderr)
        frontier, manifest = store.scan(directory, "frontier").collect(), done
    else:
        bar = job.options.get("progress")
        reporter = Reporter(bar=sys.stderr.isatty() if bar is None else bool(bar))
        note_overrides(job, directory)
        result = disaggregate.execute(both, directory, config_yaml=job.config_yaml, report=reporter)
        frontier, manifest = store.completed(result.frontier), result.manifest
    return finish(job, directory, frontier, manifest, str(directory))


def task(job: _app.Job) -> int:
    """One sweep."""
    if job.study.serving.mode == "disaggregated" and "serving" not in job.study.grid:
        return pools_task(job)
    plan = run.plan(job.study)
    directory = choose_directory(job, plan.sha256, plan.study_sha256)
    stage = remote.Stage(directory) if isinstance(directory, str) else None
    directory = stage.directory if stage is not None else Path(directory)
    run.check_directory(directory, plan.sha256)
    run.check_disk(plan, directory)
    say = sys.stderr
    print(f"{plan.study.title}", file=say)
    after = "counted while it runs" if plan.points is None else f"{plan.points:,}"
    of = f" in {job.study.shard}" if job.study.shard else ""
    print(f"points: {plan.points_before:,} in the grid, {after} after where{of}; store.rows={plan.rows}", file=say)
    if (warning := doubt.ranges(plan.space, job.study).warning()) is not None:
        print(warning, file=say)
    if stage is not None:
        stage.claim(plan.sha256)
    with store.claimed(directory):
        if stage is None:
            return evaluate(job, plan, directory)
        ended = store.read_manifest(remote.read_text(f"{stage.url}/manifest.json")).get("config_sha256")
        stage.fetch(points=ended != plan.sha256)
        try:
            code = evaluate(job, plan, directory, stage)
        finally:
            stage.push(now=True)
    stage.clear()
    return code


def evaluate(job: _app.Job, plan: run.Plan, directory: Path, stage: remote.Stage | None = None) -> int:
    """Run a plan, or find that it has been run, and report on it."""
    shown = stage.url if stage is not None else str(directory)
    if store.is_complete(directory, plan.sha256):
        print(f"complete already: {shown}", file=sys.stderr)
        frontier = store.scan(directory, "frontier").collect()
        manifest = store.manifest(directory)
    else:
        bar = job.options.get("progress")
        reporter = Reporter(bar=sys.stderr.isatty() if bar is None else bool(bar))

        def tell(p: Progress) -> None:
            reporter(p)
            if stage is not None:
                stage.push()

        note_overrides(job, directory)
        result = run.Run(plan, directory, config_yaml=job.config_yaml, report=tell).execute()
        frontier, manifest = store.completed(result.frontier), result.manifest
    return finish(job, directory, frontier, manifest, shown)


def note_overrides(job: _app.Job, directory: Path) -> None:
    """What was asked, beside what will be found; of a multirun's jobs Hydra has written it."""
    if job.directory != directory:
        store.write_atomic(directory / ".hydra" / "config.yaml", job.config_yaml)
        store.write_atomic(directory / ".hydra" / "overrides.yaml", OmegaConf.to_yaml(job.overrides))


def finish(job: _app.Job, directory: Path, frontier: pl.DataFrame, manifest: dict[str, Any], shown: str) -> int:
    """The report and the summary."""
    report = None
    if job.options.get("report", True):
        report = write_report(
            directory,
            with_status(frontier, manifest),
            manifest,
            config_yaml=job.config_yaml,
            by=list(manifest["by"]),
            objectives=[o.split(":")[0] for o in manifest["objectives"]],
            accuracy_label=manifest["accuracy_label"],
            version=manifest["version"],
        )
    summary(frontier, manifest, shown, f"{shown}/{report.relative_to(directory)}" if report is not None else None)
    return 0


def with_status(frontier: pl.DataFrame, manifest: dict[str, object]) -> pl.DataFrame:
    """The frontier with how well each machine is known, so that charts can tell announced from shipped."""
    provenance = manifest.get("provenance")
    if "hardware" not in frontier.columns or not isinstance(provenance, dict):
        return frontier
    status = {name: str(about.get("status", "unknown")) for name, about in provenance.items()}
    return frontier.with_columns(pl.col("hardware").replace_strict(status, default="unknown").alias("hardware_status"))


def summary(frontier: pl.DataFrame, manifest: dict[str, Any], directory: str, report: str | None) -> None:
    """The head of the frontier and where the rest lies, on standard output."""
    infeasible = manifest["infeasible"]
    reasons = ", ".join(f"{k} {v:,}" for k, v in infeasible.items()) or "none"
    print(f"feasible {manifest['feasible']:,} of {manifest['points']:,} points; infeasible: {reasons}")
    print(
        f"frontier: {frontier.height:,} points, objectives {', '.join(manifest['objectives'])}"
        f", per {', '.join(manifest['by']) or 'nothing'}"
    )
    if frontier.height:
        shown = [
            c
            for c in (
                "model",
                "hardware",
                "precision",
                "prefill.layout",
                "layout",
                "n_prefill",
                "n_decode",
                "workload.batch",
                "workload.context",
                "accuracy",
                "tok_s_gpu",
                "tok_s_user",
                "ttft_s",
                "bound",
            )
            if c in ("layout", "prefill.layout") or c in frontier.columns
        ]
        head = frontier.sort(["accuracy", "tok_s_gpu"], descending=True).head(8)
        print(table(tags.tagged(head, tags.statuses([manifest])), shown))
    print(f"accuracy: {manifest['accuracy_label']}")
    print(doubts(manifest))
    print(f"{directory}/frontier.parquet")
    if report is not None:
        print(f"{report}")


def doubts(manifest: dict[str, Any]) -> str:
    """One line on how far the frontier depends on the law of accuracy."""
    about = manifest.get("robust") or {}
    if about.get("computed"):
        laws = ", ".join(about["laws"])
        text = f"robust: {about['robust']:,} of {manifest['frontier']:,} points stay on the frontier under {laws} too"
    else:
        text = f"robust: not computed ({about.get('why', 'an older run')})"
    if "epsilon" in manifest:
        text += f"; {manifest['epsilon']['tied']:,} more points tie with it (epsilon.parquet)"
    if manifest.get("loss_source") == "mixed":
        print("warning: measured and predicted losses stand side by side: see the column loss_source", file=sys.stderr)
    return text


def main(argv: Sequence[str] | None = None) -> int:
    """Run from a command line."""
    return _app.run(task, "sweep", __doc__ or "", argv, multirun=True)


if __name__ == "__main__":
    sys.exit(main())
