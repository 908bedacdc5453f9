r"""Chart stored points in any two columns: one envelope per machine, way of serving, or whatever tells lines apart.

  python -m pipelines.chart outputs/sweep/<time> --x tok_s_user --y tok_s_gpu --out interactivity
  python -m pipelines.chart MULTIRUN --x ttft_s --y tok_per_usd --line serving --out money
  python -m pipelines.chart PATH --x request_s --y tok_s_mw --accuracy 0.6 --where "workload.isl = 8192" --out power

--x: tok_s_user (interactivity), request_s (end to end), ttft_s, tpot_s ...; --y: tok_s_gpu (output), total_tok_s_gpu
(input and output), tok_s_mw, tok_per_usd, usd_per_mtok ...: any column of numbers (codesign query PATH --schema). Of
latencies, prices and energies less is better, of all others more; each line is what nothing else of its kind beats in
both. Axes are logarithmic and say what they count. Written: OUT.svg and OUT.png.

Exit codes: 0; 1 for bad input; 2 for bad usage.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import polars as pl

from pipelines.query import Parser, guarded, note, scan, stored
from sweep.errors import BadInput, closest
from sweep.frontier import condition
from sweep.report.charts import axis_title, frontier_chart, save
from sweep.report.selection import envelope


def task(arguments: argparse.Namespace) -> int:
    """Draw one chart."""
    jobs = stored([arguments.path])
    points = scan(jobs)
    schema = dict(points.collect_schema())
    numeric = [name for name, kind in schema.items() if kind.is_numeric()]
    for option in ("x", "y"):
        if getattr(arguments, option) not in numeric:
            column = getattr(arguments, option)
            raise BadInput(f"--{option}={column}: no such column of numbers; {closest(column, numeric)}")
    x, y, line = arguments.x, arguments.y, arguments.line
    if x == y:
        raise BadInput(f"--y={y}: is on the other axis already")
    if line not in schema:
        raise BadInput(f"--line={line}: no such column; {closest(line, schema)}")
    if arguments.accuracy is not None and not 0 < arguments.accuracy <= 1:
        raise BadInput(f"--accuracy={arguments.accuracy:g}: must be between 0 and 1")
    out: Path = arguments.out
    if not out.absolute().parent.is_dir():
        raise BadInput(f"--out={out}: no such directory {out.parent}")
    for job in jobs:
        if job.path.is_dir() and job.only_frontier:
            own = ", ".join(str(o) for o in job.manifest.get("objectives") or ())
            note(f"{job.name}: only the frontier of {own} is stored; other axes may miss points")
    if "feasible" in schema:
        points = points.filter("feasible")
    if arguments.where:
        points = points.filter(condition(arguments.where, schema, "--where"))
    columns = dict.fromkeys([x, y, line, *(c for c in ("accuracy", "bound") if c in schema)])
    frame = points.select(list(columns)).collect(engine="streaming").with_columns(pl.col(line).cast(pl.String))
    if arguments.accuracy is not None:
        frame = frame.filter(pl.col("accuracy") >= arguments.accuracy)
    best = envelope(frame, x, y, [line])
    if best.is_empty():
        note("no point to draw: nothing stored meets the conditions")
        return 0
    notes = [f"one step line per {line}: what no other point of it beats in both"]
    if arguments.accuracy is not None:
        notes.append(f"accuracy at least {arguments.accuracy:g} (a proxy)")
    if arguments.where:
        notes.append(f"where {arguments.where}")
    title = f"{axis_title(y).split(' [')[0]} against {axis_title(x).split(' [')[0]}"
    chart = frontier_chart(
        best, x=x, y=y, line=line, colour="bound" if "bound" in schema else line, floors=[None],
        title=title[0].upper() + title[1:], subtitle=notes,
    )  # fmt: skip
    base = out.with_suffix("") if out.suffix in (".svg", ".png") else out
    print(*save(chart, base), sep="\n")
    return 0


def parser() -> Parser:
    """The command line."""
    line = Parser("chart", __doc__ or "")
    line.add_argument("path", type=Path, metavar="PATH", help="a sweep, a multirun, or a Parquet file")
    line.add_argument("--x", default="tok_s_user", metavar="COLUMN", help="default: tok_s_user")
    line.add_argument("--y", default="tok_s_gpu", metavar="COLUMN", help="default: tok_s_gpu")
    line.add_argument("--line", default="hardware", metavar="COLUMN", help="a line per value (default: hardware)")
    line.add_argument("--accuracy", type=float, metavar="A", help="least accuracy, 0 to 1")
    line.add_argument("--where", metavar="CONDITION", help="points to draw, in SQL")
    line.add_argument("--out", type=Path, required=True, metavar="FILE", help="FILE.svg and FILE.png")
    return line


def main(argv: Sequence[str] | None = None) -> int:
    """Run from a command line."""
    return guarded(task, parser(), argv)


if __name__ == "__main__":
    sys.exit(main())
