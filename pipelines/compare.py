r"""What one sweep buys over another, or one group over another inside a sweep: at equal speed, at equal throughput.

  python -m pipelines.compare SWEEP_A SWEEP_B
  python -m pipelines.compare SWEEP --between hardware=h200_sxm_141gb,gb300_nvl72
  python -m pipelines.compare SWEEP --between precision=fp8,nvfp4 --where "hardware = 'gb300_nvl72'"
  python -m pipelines.compare A B --at 20,50,100 --accuracy 0.6,0.7 --out compared
  python -m pipelines.compare A B --axes usd_per_mtok,tok_s_user --format json

Every line says: among the designs at least so good in one column (and so accurate), the best of the other, on the
first side, on the second, and the second over the first. Then, over the range of speeds that both sides reach, the
geometric mean of the ratio; the area under the staircase; and the hypervolume with accuracy. Sides that were swept
over several loads (context, workload) are compared load by load, where both have it.

Written with --out DIR: compare.md, compare.csv, compare.json, compare.svg, compare.png.
Exit codes: 0; 1 for bad input; 2 for bad usage.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from pipelines.frontier import default_by, frontier_rows, joined, listed, say_what_is_read
from pipelines.query import FORMATS, Parser, Stored, guarded, note, scan, stored
from sweep import store
from sweep.compare import Row, compare
from sweep.errors import BadInput, closest
from sweep.frontier import Objective, parse_objectives
from sweep.report import tags
from sweep.report.markdown import HEADERS, cell, grid, header, layout_label, model_label, number, tokens
from sweep.report.selection import few

AXES = "tok_s_user,tok_s_gpu"
_LOADS = ("workload",)


@dataclass(frozen=True)
class Side:
    """One of the two: what it is called, where it is stored, which points of it."""

    name: str
    jobs: list[Stored]
    where: str | None


def sides_of(arguments: argparse.Namespace) -> list[Side]:
    """The two sides of a command line."""
    paths: list[Path] = arguments.paths
    where: str | None = arguments.where
    if arguments.between is None:
        if len(paths) != 2:
            raise BadInput(f"{len(paths)} path{'s' * (len(paths) != 1)}: give two sweeps, or one and --between KEY=A,B")
        names = [p.resolve().name for p in paths]
        if names[0] == names[1]:
            names = [str(p) for p in paths]
        names = listed(arguments.names) or names
        if len(names) != 2:
            raise BadInput(f"--names={arguments.names}: must be two names")
        return [Side(name, stored([path]), where) for name, path in zip(names, paths, strict=True)]
    if len(paths) != 1:
        raise BadInput(f"--between={arguments.between}: takes one path, not {len(paths)}")
    key, _, values = arguments.between.partition("=")
    both = listed(values)
    if len(both) != 2:
        raise BadInput(f"--between={arguments.between}: must be KEY=A,B, such as hardware=h200_sxm_141gb,gb300_nvl72")
    jobs = stored(paths)
    points = scan(jobs)
    schema = points.collect_schema()
    if key not in schema:
        raise BadInput(f"--between={key}: no such column; {closest(key, schema.names())}")
    known = points.select(pl.col(key).unique()).collect(engine="streaming")[key].drop_nulls()
    texts = [f"{v:g}" if isinstance(v, float) else str(v) for v in known.sort().to_list()]
    found = []
    for value in both:
        if value not in texts:
            raise BadInput(f"--between={key}={value}: no such point; {closest(value, texts)}")
        this = f"{key} = {value}" if known.dtype.is_numeric() else f"{key} = '{value}'"
        found.append(Side(value, jobs, f"({where}) and {this}" if where else this))
    return found


def loads(side: Side, key: str | None) -> list[str]:
    """What this side's frontiers are kept apart by, of the load."""
    schema = scan(side.jobs).collect_schema()
    return [k for k in default_by(side.jobs, schema) if k.split(".")[0] in _LOADS and k != key]


def points_of(side: Side, goals: Sequence[Objective], by: Sequence[str]) -> pl.DataFrame:
    """The frontier of one side, loads kept apart."""
    points = scan(side.jobs)
    rows = frontier_rows(side.jobs, points, goals, by, side.where)
    say_what_is_read(side.jobs, goals, by, side.where, dict(points.collect_schema()))
    if rows.is_empty():
        raise BadInput(f"{side.name}: no feasible point" + (f" meets {side.where}" if side.where else ""))
    provenance: dict[str, Any] = {}
    for job in side.jobs:
        provenance |= dict(job.manifest.get("provenance") or {})
    from pipelines.sweep import with_status

    return with_status(rows, {"provenance": provenance}) if "hardware" in rows.columns else rows


def group_name(by: Sequence[str], values: Sequence[Any]) -> str:
    """A load in words."""
    words = []
    for key, value in zip(by, values, strict=True):
        name = key.removeprefix("workload.")
        words.append(str(value) if key == "workload" else f"{name} {tokens(value)}")
    return ", ".join(words)


def _measure(text: str) -> str:
    """A measure with the columns in the words of the tables."""
    return re.sub(
        r"[A-Za-z_][\w.]*", lambda word: header(word[0]).split(" [")[0] if word[0] in HEADERS else word[0], text
    )


def table(rows: Sequence[Row], names: Sequence[str]) -> str:
    """The comparisons as a Markdown table."""
    groups, floors = len({r.group for r in rows}) > 1, len({r.accuracy for r in rows}) > 1
    heads = ["load"] * groups + ["accuracy [%]"] * floors + ["what", "at", *names, f"{names[1]} / {names[0]}"]
    body = []
    for r in rows:
        columns = r.measure.split(" at ")
        wanted, given = columns[0], columns[1] if len(columns) > 1 else ""

        def shown(column: str, value: float | None, precise: Row = r) -> str:
            if value is None:
                return "–"
            return cell({column: value}, column) if precise.at is not None else number(value, 4)

        cells = [r.group] * groups + (["any" if r.accuracy is None else f"≥ {100 * r.accuracy:g}"] * floors)
        cells += [_measure(wanted if r.at is not None else r.measure)]
        cells += [f"{'≤' if parse_objectives([given])[0].sign < 0 else '≥'} {_value(given, r.at)} "
                  f"{_measure(given)}" if r.at is not None else "–"]  # fmt: skip
        cells += [shown(wanted, r.first), shown(wanted, r.second), "–" if r.ratio is None else f"{number(r.ratio)} x"]
        body.append(cells)
    left = [True] * (groups + floors + 2) + [False] * 3
    return grid(heads, body, left=left)


def _value(column: str, value: float) -> str:
    """A value as it was asked for, in the unit of the tables."""
    return f"{value * HEADERS.get(column, ('', 1.0))[1]:,.6g}"


def _design(point: dict[str, Any] | None) -> str:
    if point is None:
        return "–"
    words = [model_label(point), point.get("precision"), layout_label(point)]
    if point.get("workload.batch") is not None:
        words.append(f"batch {point['workload.batch']}")
    if point.get("accuracy") is not None:
        words.append(f"accuracy {100 * point['accuracy']:.1f} %")
    return ", ".join(str(w) for w in words if w)


def designs(rows: Sequence[Row], names: Sequence[str], y: str) -> str:
    """Which designs are behind the throughputs at fixed speeds."""
    body = []
    for r in rows:
        if r.at is None or not r.measure.startswith(f"{y} at"):
            continue
        floor = "any" if r.accuracy is None else f"≥ {100 * r.accuracy:g}"
        given = r.measure.split(" at ")[1]
        body.append([r.group or "–", floor, _value(given, r.at), _design(r.first_point), _design(r.second_point)])
    given = rows[0].measure.split(" at ")[-1] if rows else ""
    return grid(["load", "accuracy [%]", header(given), *names], body, left=[True, False, False, True, True])


def flat(rows: Sequence[Row], names: Sequence[str]) -> list[dict[str, Any]]:
    """Rows as plain data."""
    found = []
    for r in rows:
        row = {k: v for k, v in dataclasses.asdict(r).items() if not k.endswith("_point")}
        found.append({**row, "first_side": names[0], "second_side": names[1],
                      "first_design": _design(r.first_point), "second_design": _design(r.second_point)})  # fmt: skip
    return found


def task(arguments: argparse.Namespace) -> int:
    """Compare, print, and write."""
    axes = parse_objectives(arguments.axes)
    if len(axes) != 2:
        raise BadInput(f"--axes={arguments.axes}: must be two columns")
    out: Path | None = arguments.out
    if out is not None and out.exists() and not out.is_dir():
        raise BadInput(f"--out={out}: is a file; name a directory")
    at, accuracies = _numbers(arguments.at, "--at"), _numbers(arguments.accuracy, "--accuracy")
    x, y = axes
    both = sides_of(arguments)
    key = arguments.between.partition("=")[0] if arguments.between else None
    schemas = [scan(side.jobs).collect_schema() for side in both]
    for goal in axes:
        for side, schema in zip(both, schemas, strict=True):
            if goal.column not in schema:
                raise BadInput(f"--axes={goal.column}: {side.name} has no such column; {closest(goal.column, schema)}")
    accurate = all("accuracy" in schema for schema in schemas)
    goals = (*([Objective("accuracy")] if accurate and "accuracy" not in (x.column, y.column) else []), x, y)
    by = [k for k in loads(both[0], key) if k in loads(both[1], key)]
    frames = [points_of(side, goals, by) for side in both]
    _warn(both)
    names = [side.name for side in both]
    floors: list[float | None] = [None, *accuracies] if not arguments.accuracy else [*accuracies]
    if not arguments.accuracy and accurate:
        from sweep.report.selection import accuracy_floors

        together = pl.concat([f.select("accuracy").with_columns(pl.lit(n).alias("side"))
                              for f, n in zip(frames, names, strict=True)])  # fmt: skip
        floors = accuracy_floors(together, by="side", count=2)
    groups = [()] if not by else sorted({tuple(r) for r in frames[0].select(by).unique().rows()}
                                        & {tuple(r) for r in frames[1].select(by).unique().rows()})  # fmt: skip
    if not groups:
        raise BadInput(f"{names[0]} and {names[1]} share no load ({', '.join(by)})")
    shown_groups = groups if arguments.all_loads else few(groups)
    if len(shown_groups) < len(groups):
        note(f"{len(shown_groups)} of {len(groups)} loads; --all-loads shows all")
    rows: list[Row] = []
    drawn = []
    for values in shown_groups:
        match = pl.lit(True)
        for k, v in zip(by, values, strict=True):
            match = match & (pl.col(k) == v)
        parts = [f.filter(match) for f in frames]
        label = group_name(by, values)
        rows += compare(*parts, x=x, y=y, group=label, accuracies=floors, at=at or None)
        drawn += [p.with_columns(pl.lit(n).alias("side"), pl.lit(label).alias("_slice"))
                  for p, n in zip(parts, names, strict=True)]  # fmt: skip
    status = tags.statuses(job.manifest for side in both for job in side.jobs)
    told = [tags.tag(name, status) for name in names] if key == "hardware" else names
    if arguments.format == "json":
        print(json.dumps(flat(rows, names), allow_nan=False, indent=1))
    elif arguments.format == "csv":
        print(pl.DataFrame(flat(rows, names), infer_schema_length=None).write_csv(), end="")
    else:
        print(f"{told[1]} over {told[0]}\n\n{table(rows, told)}")
    if out is not None:
        _write(out, rows, told, flat(rows, names), both, pl.concat(drawn, how="diagonal_relaxed"), x, y, floors)
        print(out / "compare.md", file=sys.stdout if arguments.format == "table" else sys.stderr)
    return 0


def _warn(both: Sequence[Side]) -> None:
    """Say where the two sides do not mean the same."""
    for key, what in (
        ("efficiency", "are priced by different presets"),
        ("accuracy_label", "mean different things by accuracy"),
        ("token_policy", "compare models at different training budgets"),
    ):
        values = [sorted({str(job.manifest[key]) for job in side.jobs if key in job.manifest}) for side in both]
        if values[0] != values[1] and all(values):
            note(f"warning: the sides {what}: {', '.join(values[0])}; {', '.join(values[1])}")


def _numbers(text: str | None, flag: str) -> list[float]:
    try:
        return [float(word) for word in listed(text)]
    except ValueError:
        raise BadInput(f"{flag}={text}: must be numbers between commas") from None


def _write(
    out: Path, rows: Sequence[Row], names: Sequence[str], plain: list[dict[str, Any]], both: Sequence[Side],
    frame: pl.DataFrame, x: Objective, y: Objective, floors: Sequence[float | None],
) -> None:  # fmt: skip
    from sweep.report.charts import frontier_chart, save

    out.mkdir(parents=True, exist_ok=True)
    several = frame["_slice"].n_unique() > 1
    drawable = x.maximise and y.maximise
    if drawable:
        text = (header(x.column), header(y.column))
        chart = frontier_chart(
            frame, x=x.column, y=y.column, line="side", colour="side", floors=list(floors),
            row="_slice" if several else None, title=f"{names[1]} over {names[0]}", x_title=text[0], y_title=text[1],
            subtitle="best designs of each side; between two points of a line there is no configuration",
        )  # fmt: skip
        save(chart, out / "compare")
    told = [f"# {names[1]} over {names[0]}", ""]
    if drawable:
        told += [f"![{header(y.column)} against {header(x.column)}, both sides](compare.svg)", ""]
    told += [
        "Among the designs at least so good in one column (and so accurate), the best of the other; the ratio is that "
        f"of {names[1]} to {names[0]}.",
        "",
        table(rows, names),
        "",
        "## The designs behind it",
        "",
        designs(rows, names, y.column),
        "",
        "---",
        "",
    ]
    origin = [
        f"{side.name}: {', '.join(str(j.manifest.get('config_sha256') or 'unknown')[:12] for j in side.jobs[:4])}"
        + (" ..." if len(side.jobs) > 4 else "")
        + (f" where {side.where}" if side.where else "")
        for side in both
    ]
    told.append(f"codesign-sweep {store.code_version()} · configurations {'; '.join(origin)}")
    store.write_atomic(out / "compare.md", "\n".join(told) + "\n")
    store.write_atomic(out / "compare.json", json.dumps(plain, allow_nan=False, indent=1) + "\n")
    store.write_atomic(out / "compare.csv", pl.DataFrame(plain, infer_schema_length=None).write_csv())


def parser() -> Parser:
    """The command line."""
    line = Parser("compare", __doc__ or "")
    line.add_argument("paths", type=Path, nargs="+", metavar="PATH", help="two sweeps or multiruns, or one")
    line.add_argument("--between", metavar="KEY=A,B", help="two values of a column inside one sweep")
    line.add_argument("--names", metavar="A,B", help="what to call the two sides")
    line.add_argument("--axes", default=AXES, metavar="X,Y", help=f"the two columns (default: {AXES})")
    line.add_argument("--at", metavar="V,...", help="values of X at which Y is compared (default: round ones)")
    line.add_argument("--accuracy", metavar="F,...", help="floors of accuracy, 0 to 1 (default: chosen)")
    line.add_argument("--where", metavar="CONDITION", help="points to compare, in SQL")
    line.add_argument("--all-loads", action="store_true", help="every load that both sides have, not three of them")
    line.add_argument("--out", type=Path, metavar="DIR", help="where to write the page, the chart and the data")
    line.add_argument("--format", choices=[f for f in FORMATS if f != "parquet"], default="table",
                      help="of standard output (default: table)")  # fmt: skip
    return line


def main(argv: Sequence[str] | None = None) -> int:
    """Run from a command line."""
    words = joined(sys.argv[1:] if argv is None else argv)
    return guarded(task, parser(), words)


if __name__ == "__main__":
    sys.exit(main())
