r"""The best stored point under a service-level agreement, per machine, and the fleet that a demand takes.

  python -m pipelines.sla outputs/sweep/<time> --ttft 2 --speed 50 --accuracy 0.6 --gpus 72
  python -m pipelines.sla outputs/sweep/<time> --ttft 2 --speed 50 --demand 100
  python -m pipelines.sla MULTIRUN --speed 30 --best usd_per_mtok --by hardware,serving
  python -m pipelines.sla PATH --request 20 --demand 10 --where "precision = 'nvfp4'" --format json

Limits (all must hold): --ttft and --tpot and --request at most (seconds), --speed at least (tokens/s/user), --accuracy
at least, --gpus at most (of one service: a replica, or both pools; with --demand, of the fleet), --where an SQL
condition. --best is what the best point has most (or, of costs, least) of: tok_s_gpu unless said; with --demand the
smallest fleet comes first: fewest GPUs, or dollars or watts if --best counts those.

In brackets: what 8 of 10 measurements lie between; a figure that keeps its limit but not at that end is said to.

--demand D: requests per second. The fleet is whole replicas: ceil(D / requests per second of one). A point with
serving=decode leaves the prefill out: sweep with serving=aggregated or disaggregated for a fleet that prefills too.

Exit codes: 0, also where nothing meets the limits (said per machine, with the nearest that is reached); 1 for bad
input; 2 for bad usage.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from pipelines.frontier import default_by, listed
from pipelines.query import FORMATS, Parser, Stored, guarded, note, scan, stored, write
from sweep.columns import BANDS
from sweep.errors import BadInput, closest
from sweep.frontier import Objective, condition, parse_objectives
from sweep.report import table
from sweep.report.markdown import grid, integer, number
from sweep.sla import FLEET, Limit, best_under, margins, met, with_fleet

LIMITS = {  # option: column, at most
    "ttft": ("ttft_s", True),
    "tpot": ("tpot_s", True),
    "request": ("request_s", True),
    "speed": ("tok_s_user", False),
    "accuracy": ("accuracy", False),
    "gpus": ("gpus", True),
}
SHOWN = (
    "hardware", "serving", "model", "precision", "prefill.hardware", "prefill.layout", "layout", "n_prefill",
    "n_decode", "workload", "workload.isl", "workload.osl", "workload.context", "workload.batch", "gpus", "accuracy",
    "tok_s_gpu", "tok_s_user", "ttft_s", "request_s", "usd_per_mtok", "joule_per_tok_drawn", *FLEET,
)  # fmt: skip


def limits_of(arguments: argparse.Namespace, demand: float | None) -> list[Limit]:
    """The limits of a command line.

    Raises: `BadInput` for one that cannot be.
    """
    found = []
    for option, (column, most) in LIMITS.items():
        value = getattr(arguments, option)
        if value is None:
            continue
        if not (math.isfinite(value) and value > 0):
            raise BadInput(f"--{option}={value:g}: must be greater than 0")
        if option == "accuracy" and value > 1:
            raise BadInput(f"--accuracy={value:g}: is a share of 1; nearest: {value / 100:g}")
        found.append(Limit("fleet_gpus" if column == "gpus" and demand is not None else column, most, float(value)))
    return found


def goals_of(best: str, demand: float | None, columns: Sequence[str]) -> list[Objective]:
    """What decides among points that keep the limits."""
    goals = list(parse_objectives(best))
    for goal in goals:
        if goal.column not in columns:
            raise BadInput(f"--best={goal.column}: no such column; {closest(goal.column, columns)}")
    if demand is not None:
        first = goals[0].column
        fleet = "fleet_usd_per_hour" if "usd" in first else "fleet_kw" if "joule" in first or "mw" in first else None
        goals.insert(0, Objective(fleet or "fleet_gpus", maximise=False))
    return goals


def why_none(points: pl.LazyFrame, limits: Sequence[Limit], by: Sequence[str]) -> str:
    """Per group without an answer: how many points keep each limit, and the nearest that is reached."""
    counts = met(points, limits, by).filter(pl.col("all") == 0)
    if counts.is_empty():
        return ""
    rows = [
        [
            *(str(row[k]) for k in by),
            integer(row["points"]),
            *(f"{integer(row[f'met {i}'])} (best {number(row[f'best {i}'])})" for i in range(len(limits))),
        ]
        for row in counts.iter_rows(named=True)
    ]
    heads = [*by, "feasible points", *(str(limit) for limit in limits)]
    text = grid(heads, rows, left=[i < len(by) for i in range(len(heads))])
    return f"no point keeps all limits here; points that keep each, and the best value of it:\n\n{text}"


def task(arguments: argparse.Namespace) -> int:
    """Answer one question."""
    demand: float | None = arguments.demand
    if demand is not None and not (math.isfinite(demand) and demand > 0):
        raise BadInput(f"--demand={demand:g}: requests per second must be greater than 0")
    jobs = stored(arguments.paths)
    points = scan(jobs)
    schema = dict(points.collect_schema())
    for job in jobs:
        if job.path.is_dir() and job.only_frontier:
            own = ", ".join(str(o) for o in job.manifest.get("objectives") or ())
            note(f"{job.name}: only the frontier of {own} is stored; to be sure of other limits, store.rows=feasible")
    if demand is not None:
        for column in ("requests_per_s", "gpus", "usd_per_mtok", "joule_per_tok"):
            if column not in schema:
                raise BadInput(f"--demand: no column {column} in {arguments.paths[0]}")
        points = with_fleet(points, demand)
        say_who_prefills(jobs, schema)
    limits = limits_of(arguments, demand)
    columns = points.collect_schema().names()
    for limit in limits:
        if limit.column not in columns:
            raise BadInput(f"{limit}: no column {limit.column} in {arguments.paths[0]}")
    if arguments.where:
        points = points.filter(condition(arguments.where, dict(points.collect_schema()), "--where"))
    by = listed(arguments.by) if arguments.by is not None else default_groups(jobs, columns)
    for key in by:
        if key not in columns:
            raise BadInput(f"--by={key}: no such column; {closest(key, columns)}")
    best = best_under(points, limits, goals_of(arguments.best, demand, columns), by)
    if arguments.format != "table":
        write(best.lazy(), arguments.format, None, jobs)
        return 0
    print(f"limits: {', '.join(map(str, limits)) or 'none'}" + (f"; demand {demand:g} requests/s" if demand else ""))
    if best.height:
        shown = [c for c in SHOWN if c.split(".")[0] in ("prefill", "layout") or c in best.columns]
        shown = [c for c in shown if c not in best.columns or best[c].null_count() < best.height]
        print(f"\n{table(best, list(dict.fromkeys([*by, *shown])))}")
        for row in best.iter_rows(named=True):
            tight = [f"{limit} by {100 * gap:.0f} %{far_end(row, limit)}" for limit, gap in margins(row, limits)[:2]]
            name = ", ".join(str(row[k]) for k in by) or "all"
            print(f"{name}: keeps {' and '.join(tight)}" if tight else "", end="\n" if tight else "")
    none = why_none(points, limits, by)
    if none:
        print(f"\n{none}")
    return 0


def far_end(row: Mapping[str, Any], limit: Limit) -> str:
    """Whether the band of a figure reaches over its limit, in words; nothing where it does not."""
    band = BANDS.get(limit.column)
    far = None if band is None else row.get(band.high if limit.most else band.low)
    if far is None or (far <= limit.value if limit.most else far >= limit.value):
        return ""
    return f" (but {number(far)} at the end of its band)"


def default_groups(jobs: Sequence[Stored], columns: Sequence[str]) -> list[str]:
    """Machines, and whatever the sweeps keep apart."""
    kept = ["hardware", *default_by(jobs, columns), "serving"]
    return [k for k in dict.fromkeys(kept) if k in columns]


def say_who_prefills(jobs: Sequence[Stored], schema: Collection[str]) -> None:
    """Warn of fleets that only decode."""
    alone = [job.name for job in jobs if job.manifest.get("serving", "decode") == "decode" and "serving" not in schema]
    if alone:
        which = "" if len(alone) == len(jobs) else f" in {', '.join(alone)}"
        note(f"warning: decode alone{which}: GPUs that prefill are not counted; see serving=aggregated, disaggregated")


def parser() -> Parser:
    """The command line."""
    line = Parser("sla", __doc__ or "")
    line.add_argument("paths", type=Path, nargs="+", metavar="PATH", help="sweeps, a multirun, or Parquet files")
    line.add_argument("--ttft", type=float, metavar="S", help="longest time to the first token")
    line.add_argument("--tpot", type=float, metavar="S", help="longest time per output token")
    line.add_argument("--request", type=float, metavar="S", help="longest time of a request")
    line.add_argument("--speed", type=float, metavar="T", help="least tokens/s/user")
    line.add_argument("--accuracy", type=float, metavar="A", help="least accuracy, 0 to 1")
    line.add_argument("--gpus", type=float, metavar="N", help="most GPUs")
    line.add_argument("--where", metavar="CONDITION", help="further conditions, in SQL")
    line.add_argument("--best", default="tok_s_gpu", metavar="A,...", help="what decides (default: tok_s_gpu)")
    line.add_argument("--by", metavar="A,B,...", help="one answer per value of these (default: hardware, and as swept)")
    line.add_argument("--demand", type=float, metavar="D", help="requests per second that a fleet must serve")
    line.add_argument("--format", choices=FORMATS, default="table", help="default: table")
    return line


def main(argv: Sequence[str] | None = None) -> int:
    """Run from a command line."""
    return guarded(task, parser(), argv)


if __name__ == "__main__":
    sys.exit(main())
