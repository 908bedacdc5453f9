r"""What is in the catalogue: models, machines, formats; one entry with its sources; entries side by side.

  python -m pipelines.catalog models
  python -m pipelines.catalog models qwen3 --where "params_total < 1e11 and n_experts > 0"
  python -m pipelines.catalog hardware nvidia --status confirmed --format csv
  python -m pipelines.catalog formats
  python -m pipelines.catalog prices gb300
  python -m pipelines.catalog show model/deepseek_v3
  python -m pipelines.catalog compare model/deepseek_v3 model/kimi_k2_instruct
  python -m pipelines.catalog compare hardware/b200_sxm_180gb hardware/gb200_nvl72 --all --format json

FILTER is a part of a name. --where takes any field of an entry and, for models, params_total, params_active and
kv_bytes_per_token (bf16 cache); a figure that nobody has published meets no condition, and how many entries lack it is
said. --config-dir DIR adds your own
entries (DIR/model/NAME.yaml). Entries that are announced, estimated or hypothetical carry that word in every table.
The table names the price that counts, the high published one; prices lists all of them with their dates. compare shows
the fields that differ; --all shows the rest too.

Exit codes: 0, also where no entry is found (said on standard error); 1 for bad input; 2 for bad usage.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any

from pipelines.query import Parser, guarded, note
from sweep import catalog
from sweep.config import Library, conf_dir
from sweep.errors import BadInput
from sweep.report.markdown import grid

FORMATS = ("table", "json", "csv")
TEXT = ("entry", "status", "vendor", "release", "price", "math", "what", "date", "label", "used", "source")
LISTS = {"models": "model", "hardware": "hardware", "formats": "formats", "prices": "prices"}


def text(value: Any) -> str:
    """One value of a table."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() and abs(value) < 1e7 else f"{value:.6g}"
    if isinstance(value, dict):
        return "; ".join(f"{k}: {text(v)}" for k, v in value.items())
    if isinstance(value, list):
        return ", ".join(map(text, value))
    return " ".join(str(value).split())


def write(columns: Sequence[str], rows: Sequence[catalog.Row], form: str, left: Sequence[str]) -> None:
    """Rows as a table, as JSON or as CSV; JSON and CSV hold the values as they are."""
    if form == "json":
        print(json.dumps([{c: r.get(c) for c in columns} for r in rows], indent=1, ensure_ascii=False))
    elif form == "csv":
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(columns)
        for r in rows:
            plain = [r.get(c) for c in columns]
            writer.writerow([text(v) if isinstance(v, dict | list) else v for v in plain])
        sys.stdout.write(out.getvalue())
    else:
        cells = [[text(r.get(c)) for c in columns] for r in rows]
        print(grid(list(columns), cells, left=[c in left for c in columns]))


def listing(arguments: argparse.Namespace, library: Library) -> int:
    """Entries of a group."""
    group = LISTS[arguments.what]
    if len(arguments.names) > 1:
        raise BadInput(f"{' '.join(arguments.names)}: one FILTER; more conditions go into --where")
    own = {"formats": lambda _: catalog.formats(), "prices": catalog.prices}
    found = own[group](library) if group in own else catalog.rows(library, group)
    word = arguments.names[0] if arguments.names else None
    kept, unknown = catalog.select(found, word, arguments.status, arguments.where)
    asked, _ = catalog.select(found, word, arguments.status, None)
    columns = list(found[0]) if group in own else ["entry", *catalog.COLUMNS[group]]
    if arguments.format == "table":
        kept = [{**r, "entry": catalog.tag(r)} for r in kept]
        if "source" in columns:
            kept = [{**r, "source": shorten(text(r["source"]), 90, placeholder=" ...")} for r in kept]
        columns = [c for c in columns if c != "name"]
    elif group not in own and arguments.all:
        columns = list(dict.fromkeys(k for r in found for k in r))
    write(columns, kept, arguments.format, TEXT)
    for key, count in unknown.items():
        note(f"{key}: not published for {count} of {len(asked)} entries, which meet no condition on it")
    if not kept:
        note("no entry meets the conditions")
    return 0


def show(arguments: argparse.Namespace, library: Library) -> int:
    """One entry: every figure with its unit, what follows from them, and where it comes from."""
    if len(arguments.names) != 1:
        raise BadInput("show: say one entry, such as model/deepseek_v3")
    group, row = catalog.entry(library, arguments.names[0])
    units = catalog.units(group)
    fields = []
    for key, value in row.items():
        unit, doc = units.get(key, ("", ""))
        fields.append({"field": key, "value": value, "unit": unit, "meaning": doc})
    if arguments.format != "table":
        write(("field", "value", "unit", "meaning"), fields, arguments.format, ())
        return 0
    print(f"{group}/{catalog.tag(row)}: {row['name']}\n")
    figures = [f for f in fields if f["field"] in units and f["value"] is not None]
    write(("field", "value", "unit", "meaning"), figures, "table", ("field", "unit", "meaning"))
    absent = [f["field"] for f in fields if f["field"] in units and f["value"] is None]
    if absent:
        print(f"\nleft open, or follows from the others: {', '.join(absent)}")
    print()
    for f in fields:
        if f["field"] not in units and f["field"] not in ("entry", "name") and f["value"] is not None:
            print(f"{f['field']}: {text(f['value'])}")
    return 0


def compare(arguments: argparse.Namespace, library: Library) -> int:
    """Entries side by side, a field a row."""
    if len(arguments.names) < 2:
        raise BadInput("compare: say two entries or more, such as model/deepseek_v3 model/kimi_k2_instruct")
    found = [catalog.entry(library, name) for name in arguments.names]
    groups = {group for group, _ in found}
    if len(groups) > 1:
        raise BadInput(f"compare {' '.join(arguments.names)}: models compare with models, hardware with hardware")
    units = catalog.units(groups.pop())
    entries = [row for _, row in found]
    names = [catalog.tag(row) for row in entries]
    if len(set(names)) < len(names):
        raise BadInput(f"compare {' '.join(arguments.names)}: an entry is named twice")
    prose = ("source", "note", "published", "unverified", "prices", "powers")
    rows = []
    for key in dict.fromkeys(k for row in entries for k in row):
        values = [row.get(key) for row in entries]
        differs = any(v != values[0] for v in values)
        always = key in ("status", "price") and any(v is not None for v in values)
        if key in ("entry", "name") or not (arguments.all or always or (differs and key not in prose)):
            continue
        rows.append({"field": key, **dict(zip(names, values, strict=True)), "unit": units.get(key, ("", ""))[0]})
    write(("field", *names, "unit"), rows, arguments.format, ("field", "unit"))
    return 0


def task(arguments: argparse.Namespace) -> int:
    """Answer one question."""
    for directory in arguments.config_dir:
        if not directory.is_dir():
            raise BadInput(f"--config-dir={directory}: no such directory")
    library = Library([*arguments.config_dir, conf_dir()])
    if arguments.what in LISTS:
        return listing(arguments, library)
    for option in ("status", "where"):
        if getattr(arguments, option) is not None:
            raise BadInput(f"--{option}: filters lists, not {arguments.what}")
    return show(arguments, library) if arguments.what == "show" else compare(arguments, library)


def parser() -> Parser:
    """The command line."""
    line = Parser("catalog", __doc__ or "")
    line.add_argument("what", choices=(*LISTS, "show", "compare"), help="what to do")
    line.add_argument("names", nargs="*", metavar="NAME", help="a FILTER, or entries: model/NAME, hardware/NAME")
    line.add_argument("--format", choices=FORMATS, default="table", help="default: table")
    line.add_argument("--status", metavar="WORD", help="only entries of this status")
    line.add_argument("--where", metavar="EXPR", help="only entries that meet a condition on their fields")
    line.add_argument("--all", action="store_true", help="every field (compare, and lists as json or csv)")
    line.add_argument("--config-dir", type=Path, action="append", default=[], metavar="DIR", help="your own entries")
    return line


def main(argv: Sequence[str] | None = None) -> int:
    """Run from a command line."""
    return guarded(task, parser(), argv)


if __name__ == "__main__":
    sys.exit(main())
