r"""The exact Pareto frontier of stored points: of one sweep, of several, or of all jobs of a multirun.

  python -m pipelines.frontier outputs/sweep/2026-01-31_12-00-00
  python -m pipelines.frontier MULTIRUN --by hardware,workload
  python -m pipelines.frontier SWEEP --objectives tok_s_gpu,tok_s_user,ttft_s --where "tok_s_user >= 100"
  python -m pipelines.frontier SWEEP --objectives=-usd_per_mtok,tok_s_user --by hardware,layout.gpus --top 5
  python -m pipelines.frontier SWEEP_A SWEEP_B --by job --out outputs/compared
  python -m pipelines.frontier SWEEP --sigma 0.15
  python -m pipelines.frontier SWEEP --epsilon ties
  python -m pipelines.frontier MACHINE_0 MACHINE_1 --partial
  python -m pipelines.frontier SWEEP --format csv > frontier.csv

Shards of one study (shard.index=I shard.count=N) count as the one sweep that they are slices of: what is written is the
frontier that it would have had. Where some are missing, nothing is, unless --partial is said.

A point is on the frontier of its group if no other one is at least as good in every objective and better in one.
Points that are infeasible or fail --where are left out first. Where several jobs are read, the column `job` says
which, what differs between them is a column too, and a summary of the jobs is printed. The table shows the points
that their frontier would miss most first; the hypervolume is the volume that a frontier beats, in the product of the
objectives' units, so that two runs can be compared. The knee is the point furthest beyond the plane through the best
of each objective (scaled to their range, rates by their logarithm).

--sigma S tells how surely each point is on its frontier (column stays: the share of draws): every predicted time is
drawn wrong by a factor with a standard deviation of S in its logarithm, half of the variance common to a machine
(--correlation), the other half to a design on it. Stored points near the frontier take part. A median error of 10 %
is a sigma of 0.15; the 80 % band of the preset measured, of chips that were measured, is one of 0.20.

Written: frontier.parquet and frontier.csv, with all points and their rank, into --out; by default into PATH if it is
a multirun, into PATH/frontier if it is one sweep (whose own frontier.parquet stays as it is).
Exit codes: 0; 1 for bad input; 2 for bad usage.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from pipelines.query import (
    FORMATS,
    Parser,
    Stored,
    guarded,
    jobs_table,
    metadata_of,
    note,
    parquet_bytes,
    place,
    scan,
    stored,
    write,
)
from sweep import doubt, store
from sweep.errors import BadInput
from sweep.frontier import Objective, condition, frontier, hypervolume, parse_objectives, rank, thin_to
from sweep.report import tags
from sweep.report.markdown import grid, integer, number, table
from sweep.studies import Doubt, knees, robustness

OBJECTIVES = ("accuracy", "tok_s_gpu", "tok_s_user")
TOP, GROUPS = 10, 12  # rows per group and groups that a terminal shows
MANY = 60  # points of a group beyond which four and more objectives are too slow to weigh one by one
_COMPARISON = re.compile(r'\s*"?([A-Za-z_][\w.]*)"?\s*(>=|>|<=|<)\s*[-+]?[\d.]+(?:[eE][-+]?\d+)?\s*')
_SHOWN = (
    "model", "precision", "layout", "workload.batch", "workload.context", "workload.isl", "workload.osl", "accuracy",
    "tok_s_gpu", "tok_s_user", "ttft_s",
)  # fmt: skip


# --- what is asked -----------------------------------------------------------------------------------------------


def default_objectives(jobs: Sequence[Stored]) -> tuple[Objective, ...]:
    """The objectives of the sweeps if they agree, else accuracy, throughput per GPU and per user."""
    kept = [tuple(job.manifest.get("objectives") or ()) for job in jobs]
    return parse_objectives(kept[0] if kept[0] and len(set(kept)) == 1 else OBJECTIVES)


def default_by(jobs: Sequence[Stored], columns: Iterable[str]) -> list[str]:
    """The groups of the sweeps, and the load where jobs differ in it: a short context would beat a long one."""
    kept = [key for job in jobs for key in job.manifest.get("by") or ()]
    loads = [key for job in jobs for key in job.extra if key.split(".")[0] == "workload" and key != "workload.batch"]
    return [key for key in dict.fromkeys([*kept, *loads]) if key in columns]


def listed(text: str | None) -> list[str]:
    """Names between commas."""
    return [word.strip() for word in (text or "").split(",") if word.strip()]


# --- frontiers of frontiers --------------------------------------------------------------------------------------


def constants(job: Stored) -> set[str]:
    """Columns that have one value in all points of a job."""
    axes = store.axes_from_json(job.metadata.get(f"{store.PREFIX}axes", "[]"))
    return {"feasible", *job.extra} | {k for a in axes for k, v in a.columns.items() if len(set(v.tolist())) == 1}


def follows(where: str, goals: Sequence[Objective], keys: set[str], schema: dict[str, pl.DataType]) -> bool:
    """Whether filtering a frontier gives the frontier of the filtered points.

    It does if the condition speaks of group columns alone, or asks for at least so much of an objective: whatever
    beats a point that passes then passes too.
    """
    if set(condition(where, schema).meta.root_names()) <= keys:
        return True
    parts = conjuncts(where)
    if len(parts) > 1:
        try:
            return all(follows(part, goals, keys, schema) for part in parts)
        except BadInput:  # not a condition by itself: `between 1 and 5`, brackets
            return False
    found = _COMPARISON.fullmatch(where)
    if not found:
        return False
    up = found[2].startswith(">")
    return any(goal.column == found[1] and goal.maximise == up for goal in goals)


def conjuncts(where: str) -> list[str]:
    """A condition taken apart at its `and`s, where nothing else binds; else the condition."""
    bare = re.sub(r"""'[^']*'|"[^"]*\"""", lambda quote: "#" * len(quote[0]), where)
    if re.search(r"\b(or|not|case)\b", bare, re.IGNORECASE):
        return [where]
    cuts = [0, *(at for m in re.finditer(r"\band\b", bare, re.IGNORECASE) for at in m.span()), len(where)]
    return [where[a:b].strip() for a, b in zip(cuts[::2], cuts[1::2], strict=True)]


def doubts(
    job: Stored, goals: Sequence[Objective], by: Sequence[str], where: str | None, schema: dict[str, pl.DataType]
) -> list[str]:
    """Why the frontier of this job's stored frontier may miss points that the job evaluated; empty if it does not."""
    if not job.manifest:
        return ["it is not known what the file was the frontier of"]
    own = parse_objectives(job.manifest.get("objectives") or OBJECTIVES)
    groups = list(job.manifest.get("by") or ())
    keys = constants(job) | set(groups)
    found = []
    foreign = [str(goal) for goal in goals if goal not in own]
    if foreign:
        found.append(f"{', '.join(foreign)} was not an objective of the sweep ({', '.join(map(str, own))})")
    finer = [key for key in by if key not in keys]
    if finer:
        found.append(f"--by {','.join(finer)} is finer than the sweep's ({','.join(groups) or 'none'})")
    kept = (job.config.get("frontier") or {}).get("where")
    if kept:
        found.append(f"the sweep kept only points with {kept}")
    if where and not follows(where, own, keys, schema):
        found.append(f"--where {where} asks for more than the sweep's objectives and groups")
    return found


def say_what_is_read(
    jobs: Sequence[Stored], goals: Sequence[Objective], by: Sequence[str], where: str | None, schema: dict[str, Any]
) -> None:
    """One line where frontiers stand in for points, one more per reason why that is not exact."""
    alone = [job for job in jobs if job.only_frontier or job.manifest.get("store_rows") == "frontier"]
    if alone:
        which = "" if len(alone) == len(jobs) else f"{', '.join(job.name for job in alone)}: "
        reasons: dict[str, list[str]] = {}
        for job in alone:
            for reason in doubts(job, goals, by, where, schema):
                reasons.setdefault(reason, []).append(job.name)
        own = {str(o) for job in alone for o in job.manifest.get("objectives") or ()}
        text = f"{which}frontier of stored frontiers"
        if not reasons:
            fewer = own != {str(goal) for goal in goals}
            text += ", exact" + (" (of points that tie in these objectives some are left out)" if fewer else "")
        note(text)
        for reason, names in reasons.items():
            several = "" if len(names) == len(alone) else f"{', '.join(names)}: "
            note(f"warning: {several}not exact: {reason}; to be sure, sweep with store.rows=feasible")
    for key, what in (("accuracy_label", "accuracy stands for"), ("token_policy", "models are compared at")):
        values = dict.fromkeys(str(job.manifest[key]) for job in jobs if key in job.manifest)
        if len(values) > 1 and any(goal.column in ("accuracy", "loss") for goal in goals):
            note(f"warning: {what} different things in these jobs: {'; '.join(values)}")


def say_what_ties(jobs: Sequence[Stored], rows: pl.DataFrame, eps: tuple[float, float]) -> None:
    """How many points tie, and where some that do were not stored."""
    note(
        f"{rows.height - int(rows['on_frontier'].sum()):,} points are beaten by less than the doubt ({eps[0]:g} nats; "
        f"{eps[1]:g} between dense and mixture of experts) and stay"
    )
    alone = [job.name for job in jobs if job.only_frontier or job.manifest.get("store_rows") == "frontier"]
    if alone:
        note(
            f"warning: {', '.join(alone)}: only the frontier was stored, what ties with it was not; sweep with "
            "frontier.epsilon or store.rows=feasible"
        )


def frontier_rows(
    jobs: Sequence[Stored], points: pl.LazyFrame, goals: Sequence[Objective], by: Sequence[str], where: str | None
) -> pl.DataFrame:
    """All columns of the frontier's points, in the order of `sweep.frontier.frontier`.

    In sweeps, job and point_id tell points apart: the frontier is found on the columns that decide it, and the other
    columns are then read of its points alone, which takes a tenth of the memory.
    """
    schema = points.collect_schema()
    if "point_id" not in schema or not all(job.path.is_dir() for job in jobs):
        return frontier(points, goals, by, where)
    keys = [key for key in ("job", "point_id") if key in schema]
    order = dict.fromkeys([*by, *(goal.column for goal in goals), *keys])
    narrow = frontier(points, goals, by, where, columns=list(order))
    # by point_id where objectives tie, however the points were stored: in slices, or by objectives
    tied: list[pl.Expr | str] = ["point_id"]
    if "job" in keys:
        tied.insert(0, pl.col("job").replace_strict({job.name: i for i, job in enumerate(jobs)}, return_dtype=pl.Int64))
    descending = [*(False for _ in by), *(goal.maximise for goal in goals), *(False for _ in tied)]
    narrow = narrow.sort([*by, *(goal.column for goal in goals), *tied], descending=descending)
    narrow = narrow.select(keys).unique(maintain_order=True).with_row_index("|place")
    parts = [pl.DataFrame(schema=schema)]
    for job in jobs:
        own = narrow if len(jobs) == 1 else narrow.filter(pl.col("job") == job.name)
        if own.height:
            wanted = pl.col("point_id").is_in(own["point_id"].sort().implode())
            parts.append(scan([job]).filter(wanted).collect(engine="streaming"))
    rows = pl.concat(parts, how="diagonal_relaxed").select(schema.names())
    return rows.join(narrow, on=keys).sort("|place", maintain_order=True).drop("|place")


# --- what is found -----------------------------------------------------------------------------------------------


def matrix(frame: pl.DataFrame, goals: Sequence[Objective]) -> np.ndarray:
    """Objectives as maximised, [n, k]."""
    columns = [frame[goal.column].cast(pl.Float64).to_numpy() * goal.sign for goal in goals]
    return np.stack(columns, axis=1) if columns else np.empty((0, 0))


def reference(frame: pl.DataFrame, goals: Sequence[Objective]) -> dict[str, float]:
    """Where volumes begin: 0 of what is maximised, a tenth beyond the worst value found of what is minimised."""
    found = {}
    for goal in goals:
        values = frame[goal.column].cast(pl.Float64)
        worst = -_least(-values)
        found[goal.column] = min(0.0, _least(values)) if goal.maximise else worst + 0.1 * abs(worst)
    return found


def _least(values: pl.Series) -> float:
    least = values.min()
    return float(least) if isinstance(least, int | float) else 0.0


def partitions(frame: pl.DataFrame, by: Sequence[str]) -> list[pl.DataFrame]:
    """The frame by groups, in order."""
    if frame.is_empty():
        return []
    return frame.partition_by(list(by), maintain_order=True) if by else [frame]


def ranked(front: pl.DataFrame, goals: Sequence[Objective], by: Sequence[str]) -> pl.DataFrame:
    """The frontier with a column `rank`, by group and rank.

    Of four objectives and more, contributions of large groups take too long: a subset that spans the group is ranked,
    the other points have no rank and come last.
    """
    if "rank" in front.columns:  # a file that was ranked before
        front = front.drop("rank")
    parts = []
    for group in partitions(front, by):
        if len(goals) > 3 and group.height > MANY:
            chosen = thin_to(matrix(group, goals), MANY)
            numbered = group.with_row_index("|row")
            places = rank(numbered.filter(pl.Series(chosen)), goals).select("|row", "rank")
            group = numbered.join(places, on="|row", how="left", maintain_order="left").drop("|row")
        else:
            group = rank(group, goals)
        parts.append(group.sort("rank", nulls_last=True, maintain_order=True))
    found = pl.concat(parts) if parts else front.with_columns(pl.lit(None, dtype=pl.UInt32).alias("rank"))
    found = found.select("rank", pl.exclude("rank", "knee"))
    return found.insert_column(1, knees(found, goals, by))


def groups_table(
    front: pl.DataFrame, goals: Sequence[Objective], by: Sequence[str], origin: dict[str, float]
) -> list[dict[str, Any]]:
    """Per group: points, hypervolume (a lower bound where `bound` is true), and the best of each objective."""
    rows = []
    start = np.array([origin[goal.column] * goal.sign for goal in goals])
    for group in partitions(front, by):
        values = matrix(group, goals)
        bound = len(goals) > 3 and group.height > MANY
        row: dict[str, Any] = {key: group[key][0] for key in by}
        row |= {"points": group.height, "bound": bound}
        row["hypervolume"] = hypervolume(values[thin_to(values, MANY)] if bound else values, start)
        for goal, best in zip(goals, values.max(axis=0), strict=True):
            row[goal.column] = float(best) * goal.sign
        rows.append(row)
    return rows


def printed(
    front: pl.DataFrame,
    goals: Sequence[Objective],
    by: Sequence[str],
    jobs: Sequence[Stored],
    top: int,
    groups: Sequence[dict[str, Any]],
    origin: dict[str, float],
) -> str:
    """What a terminal shows: one line per group, the first rows of each, one line per job."""
    status = tags.statuses(job.manifest for job in jobs)
    front = tags.tagged(front, status)
    groups = [{**row, "hardware": tags.tag(row["hardware"], status)} if "hardware" in row else row for row in groups]
    names = ", ".join(map(str, goals))
    over = f"per {', '.join(by)}" if by else "over all"
    text = [f"{front.height:,} points on {len(groups)} frontier{'s' * (len(groups) > 1)} of {names}, {over}"]
    rows = [
        [
            *(str(row[key]) for key in by),
            integer(row["points"]),
            ("≥ " if row["bound"] else "") + number(row["hypervolume"], 4),
            *(number(row[goal.column], 4) for goal in goals),
        ]
        for row in groups
    ]
    heads = [*by, "points", "hypervolume", *(f"best {goal.column}" for goal in goals)]
    from_ = ", ".join(f"{key} {number(value)}" for key, value in origin.items())
    text += ["", grid(heads, rows, left=[i < len(by) for i in range(len(heads))]), f"hypervolume from {from_}", ""]
    shown = partitions(front, by)
    labels = [k for k in dict.fromkeys(k for job in jobs for k in job.extra) if "." not in k]
    columns = [
        "rank",
        *(c for c in ("knee", "stays", "on_frontier", "robust") if c in front.columns),
        *by,
        *labels,
        "hardware",
        *_SHOWN,
        *(goal.column for goal in goals),
        "bound",
    ]
    heads_of = [pl.concat([group.head(top), group.slice(top).filter("knee")]) for group in shown[:GROUPS]]
    text.append(table(pl.concat(heads_of), list(dict.fromkeys(columns)), 4))
    meanings = dict.fromkeys(str(job.manifest["accuracy_label"]) for job in jobs if "accuracy_label" in job.manifest)
    if meanings and any(column in ("accuracy", "loss") for column in columns):
        text.append(f"accuracy: {'; '.join(meanings)}")
    left = [f"{len(shown) - GROUPS} more groups"] if len(shown) > GROUPS else []
    if any(group.height > top for group in shown[:GROUPS]):
        left.insert(0, f"the first {top} of each frontier by rank (--top N shows more)")
    if left:
        text.append(", ".join(left))
    return "\n".join(text)


def jobs_text(jobs: Sequence[Stored]) -> str:
    """One line per job: what was asked, points, feasible, frontier, best figures, seconds."""
    held = jobs_table(jobs)
    common = set.intersection(*(set(job.overrides.items()) for job in jobs))
    rows = []
    for job, row in zip(jobs, held.iter_rows(named=True), strict=True):
        own = [f"{k}={v}" for k, v in job.overrides.items() if (k, v) not in common]
        rows.append(
            [
                job.name,
                " ".join(own) or "–",
                *(integer(row[key]) for key in ("points", "feasible", "frontier")),
                *(number(row[key]) for key in ("best_tok_s_gpu", "best_tok_s_user", "seconds")),
            ]
        )
    heads = ["job", "overrides", "points", "feasible", "frontier", "best tok/s/GPU", "best tok/s/user", "seconds"]
    text = grid(heads, rows, left=[i < 2 for i in range(len(heads))])
    shared = " ".join(f"{k}={v}" for k, v in jobs[0].overrides.items() if (k, v) in common)
    return f"{text}\nall jobs: {shared}" if shared else text


def doubted(arguments: argparse.Namespace) -> Doubt | None:
    """How wrong times may be, if it was asked for."""
    if arguments.sigma is None:
        return None
    if not 0 < arguments.sigma <= 2:
        raise BadInput(f"--sigma={arguments.sigma:g}: must be above 0 and at most 2, such as 0.15")
    if not 0 <= arguments.correlation <= 1:
        raise BadInput(f"--correlation={arguments.correlation:g}: must be from 0 to 1")
    if not 1 <= arguments.draws <= 10_000:
        raise BadInput(f"--draws={arguments.draws}: must be from 1 to 10000")
    return Doubt(sigma=arguments.sigma, correlation=arguments.correlation, draws=arguments.draws)


def with_stays(
    jobs: Sequence[Stored],
    points: pl.LazyFrame,
    rows: pl.DataFrame,
    goals: Sequence[Objective],
    by: Sequence[str],
    where: str | None,
    error: Doubt,
) -> pl.DataFrame:
    """The frontier with the share of draws in which each point is on it, and a remark on what took part."""
    share, near, likely, reach = robustness(points, rows, goals, by, where, error)
    if all(job.only_frontier for job in jobs):
        note("warning: only frontiers are stored: what would push their points off is not there")
    note(
        f"stays: share of {error.draws} draws with times wrong by {error.sigma:g} (sigma of the logarithm, "
        f"{100 * error.correlation:g} % of the variance common to a machine); {near:,} more points, at most "
        f"{reach:.2g} sigma under it, took part; {likely:,} of them are on a frontier in at least half of the draws"
    )
    return rows.drop("stays", strict=False).with_columns(share)


# --- files -------------------------------------------------------------------------------------------------------


def target(paths: Sequence[Path | str], out: Path | None, jobs: Sequence[Stored]) -> Path | None:
    """The directory to write into; `None` where there is no natural one."""
    if out is not None:
        if out.exists() and not out.is_dir():
            raise BadInput(f"--out={out}: is a file; name a directory")
        for job in jobs:
            if any(out.resolve() == own.path.resolve() for own in (job.shards or (job,))):
                raise BadInput(f"--out={out}: holds the sweep's own frontier; nearest: {out / 'frontier'}")
        return out
    path = paths[0]
    if len(paths) != 1 or isinstance(path, str) or not path.is_dir():
        return None
    own = [shard for job in jobs for shard in (job.shards or (job,))]
    return path / "frontier" if any(job.path == path for job in own) else path


def save(
    front: pl.DataFrame,
    directory: Path,
    jobs: Sequence[Stored],
    goals: Sequence[Objective],
    by: Sequence[str],
    where: str | None,
) -> None:
    """Write frontier.parquet and frontier.csv, each complete or not at all."""
    more: dict[str, str] = {}
    same = ("schema_version", "reasons", "bounds", "accuracy_label", "token_policy")
    keys = same if len(jobs) > 1 else tuple(k.removeprefix(store.PREFIX) for k in jobs[0].metadata)
    for key in keys:
        values = {job.metadata.get(f"{store.PREFIX}{key}") for job in jobs}
        value = values.pop() if len(values) == 1 else None
        if value is not None and key not in ("part", "counts"):
            more[f"{store.PREFIX}{key}"] = value
    about: dict[str, Any] = {"objectives": [str(goal) for goal in goals], "by": list(by), "where": where}
    about["jobs"] = [{"job": job.name, "config_sha256": job.manifest.get("config_sha256")} for job in jobs]
    more |= {f"{store.PREFIX}{key}": json.dumps(value) for key, value in about.items()}
    parquet, csv = parquet_bytes(front, metadata_of(front.columns, jobs, more)), front.write_csv()
    directory.mkdir(parents=True, exist_ok=True)
    store.write_atomic(directory / "frontier.parquet", parquet)
    store.write_atomic(directory / "frontier.csv", csv)


# --- the command -------------------------------------------------------------------------------------------------


def task(arguments: argparse.Namespace) -> int:
    """Find, print and write one frontier."""
    if arguments.top is not None and arguments.top < 1:
        raise BadInput(f"--top={arguments.top}: must be at least 1")
    jobs = stored(arguments.paths, whole=not arguments.partial)
    directory = target(arguments.paths, arguments.out, jobs)
    points = scan(jobs)
    schema = dict(points.collect_schema())
    goals = default_objectives(jobs) if arguments.objectives is None else parse_objectives(arguments.objectives)
    by = default_by(jobs, schema) if arguments.by is None else listed(arguments.by)
    eps = doubt.epsilon(arguments.epsilon, "--epsilon")
    rows = (
        frontier_rows(jobs, points, goals, by, arguments.where)
        if eps is None
        else doubt.tied_rows(points, goals, by, arguments.where, eps)
    )
    say_what_is_read(jobs, goals, by, arguments.where, schema)
    if eps is not None:
        say_what_ties(jobs, rows, eps)
    error = doubted(arguments)
    if error is not None:
        rows = with_stays(jobs, points, rows, goals, by, arguments.where, error)
    front = ranked(rows, goals, by)
    for job in jobs:
        if job.shards:
            m = job.manifest
            lost = ", ".join(f"{k} {v:,}" for k, v in (m.get("infeasible") or {}).items()) or "none"
            note(
                f"{len(job.shards)} shards of {job.name}: feasible {m.get('feasible', 0):,} of {m.get('points', 0):,} "
                f"points; infeasible: {lost}"
            )
    groups: list[dict[str, Any]] = []
    origin: dict[str, float] = {}
    if front.is_empty():
        condition_ = f" meets {arguments.where}" if arguments.where else " is feasible"
        note(f"the frontier is empty: no stored point{condition_}")
    else:
        origin = reference(front, goals)
        groups = groups_table(front, goals, by, origin)
    if directory is not None:
        save(front, directory, jobs, goals, by, arguments.where)
    top = arguments.top
    if arguments.format == "table":
        parts = [printed(front, goals, by, jobs, top or TOP, groups, origin)] if groups else []
        if len(jobs) > 1:
            parts.append(jobs_text(jobs))
        if parts:
            print("\n\n".join(parts))
    else:
        rows = front
        if top is not None:
            rows = pl.concat([group.head(top) for group in partitions(front, by)] or [front])
        write(rows.lazy(), arguments.format, None, jobs)
    if directory is not None:
        where_to = sys.stdout if arguments.format == "table" else sys.stderr
        print(f"{directory / 'frontier.parquet'}, frontier.csv", file=where_to)
    elif arguments.format == "table":
        note("not written: --out DIR writes frontier.parquet and frontier.csv")
    return 0


def parser() -> Parser:
    """The command line."""
    line = Parser("frontier", __doc__ or "")
    line.add_argument("paths", type=place, nargs="+", metavar="PATH", help="sweeps, a multirun, or Parquet files")
    line.add_argument(
        "--objectives",
        metavar="A,B,...",
        help="columns; the direction follows from the name, or -a, +a, a:min, a:max (default: those of the sweeps)",
    )
    line.add_argument("--by", metavar="A,B,...", help="a frontier per value of these (default: as the sweeps; '' none)")
    line.add_argument("--where", metavar="CONDITION", help="points to compare, in SQL: tok_s_user >= 100")
    line.add_argument(
        "--epsilon",
        metavar="ties|NATS",
        help="keep what ties with the frontier in loss too, marked on_frontier=false (ties: 0.010 nats, 0.03 between "
        "dense and mixture of experts)",
    )
    line.add_argument("--partial", action="store_true", help="take the shards of a study that are there")
    line.add_argument("--sigma", type=float, metavar="S", help="tell how often each point stays on its frontier")
    line.add_argument("--correlation", type=float, default=0.5, metavar="R", help="share common to a machine (0.5)")
    line.add_argument("--draws", type=int, default=200, metavar="N", help="draws behind --sigma (200)")
    line.add_argument("--out", type=Path, metavar="DIR", help="where to write")
    line.add_argument("--top", type=int, metavar="N", help=f"rows per frontier to show (table: {TOP}, else all)")
    line.add_argument("--format", choices=FORMATS, default="table", help="of standard output (default: table)")
    return line


def joined(argv: Sequence[str]) -> list[str]:
    """`--objectives -ttft_s,...` as one word, which argparse would take for a flag."""
    words: list[str] = []
    for word in argv:
        if words and words[-1] in ("--objectives", "--where") and not word.startswith("--"):
            words[-1] += f"={word}"
        else:
            words.append(word)
    return words


def main(argv: Sequence[str] | None = None) -> int:
    """Run from a command line."""
    return guarded(task, parser(), joined(sys.argv[1:] if argv is None else argv))


if __name__ == "__main__":
    sys.exit(main())
