r"""Write the report of a sweep anew from what it stored, and keep a planning document up to date with it.

  python -m pipelines.report outputs/sweep/2026-01-31_12-00-00
  python -m pipelines.report SWEEP --doc planning.md
  python -m pipelines.report SWEEP --doc new.md --template planning
  python -m pipelines.report MULTIRUN

Written beside the sweep: report.md, frontier.csv, the charts as SVG and PNG, and frontier.html, one interactive page
that opens offline. Of a multirun, each job has its own.

A planning document says where it wants what by lines of their own:

  <!-- codesign:begin frontier-chart -->
  <!-- codesign:end frontier-chart -->

--doc fills what stands between such a pair with that section of the report (summary, counts, frontier-chart, best,
time, binds, frontier, notes, asked, provenance), links made relative to the document; all other text stays as it is,
and a second run changes nothing. Markers inside code fences are left alone. A document that does not exist yet starts
as a copy of --template: a file of your own with such markers, or `planning`, the one that comes along.

Exit codes: 0; 1 for bad input; 2 for bad usage.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from urllib.parse import quote

from pipelines.query import Parser, Stored, guarded, place, stored
from sweep import store
from sweep.errors import BadInput, closest
from sweep.report import write_report

_MARK = re.compile(r"\s*<!--\s*codesign:(begin|end)\s+(\S+)\s*-->\s*")
_BROKEN = re.compile(r"\s*<!--\s*codesign:")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_LINK = re.compile(r"(!?\[[^\]\n]*\]\()(?![a-z][a-z0-9+.-]*:|[/#<])([^)\s]+)", re.IGNORECASE)


# --- sections ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Section:
    """A marked section of a document: its name and the lines between its markers, `start` to before `stop`."""

    name: str
    start: int
    stop: int


def outside_fences(lines: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Numbers and text of the lines that are not in a code fence."""
    fence = ""
    for i, line in enumerate(lines):
        mark = _FENCE.match(line)
        if fence:
            if mark and mark[1].startswith(fence) and not line.strip().strip(fence[0]):
                fence = ""
            continue
        if mark:
            fence = mark[1]
            continue
        yield i, line


def sections(lines: Sequence[str], file: Path) -> list[Section]:
    """The marked sections of a document.

    Raises: `BadInput` with the line for markers that do not stand alone or do not pair up.
    """
    found: list[Section] = []
    at: tuple[str, int] | None = None  # what has begun, and on which line
    for i, line in outside_fences(lines):
        mark = _MARK.fullmatch(line)
        if not mark:
            if _BROKEN.match(line):
                raise BadInput(f"{file}:{i + 1}: a marker must stand alone on its line: <!-- codesign:begin NAME -->")
            continue
        kind, name = mark[1], mark[2]
        if kind == "begin":
            if at:
                raise BadInput(f"{file}:{i + 1}: {name} begins before {at[0]} (line {at[1] + 1}) has ended")
            at = (name, i)
        else:
            if not at:
                raise BadInput(f"{file}:{i + 1}: {name} ends and has not begun")
            if at[0] != name:
                raise BadInput(f"{file}:{i + 1}: {name} ends where {at[0]} (line {at[1] + 1}) has begun")
            found.append(Section(name, at[1] + 1, i))
            at = None
    if at:
        raise BadInput(f"{file}:{at[1] + 1}: {at[0]} begins and has no line <!-- codesign:end {at[0]} -->")
    return found


def split(text: str) -> list[str]:
    """Lines with their ends; only line feeds and carriage returns end one."""
    return re.findall(r"[^\r\n]*(?:\r\n|\n|\r)|[^\r\n]+\Z", text)


def relinked(lines: Sequence[str], source: Path, document: Path) -> list[str]:
    """Lines of a report in `source` with relative links as seen from the directory of a document."""
    way = Path(os.path.relpath(source.resolve(), document.resolve().parent)).as_posix()
    prefix = "" if way == "." else f"{quote(way)}/"
    fixed = list(lines)
    for i, line in outside_fences(lines):
        fixed[i] = _LINK.sub(lambda m: f"{m[1]}{prefix}{m[2]}", line)
    return fixed


def refreshed(text: str, document: Path, report: Mapping[str, Sequence[str]], source: Path) -> str:
    """A document with its marked sections taken from a report; everything else stays byte by byte.

    Raises: `BadInput` for a section that the report does not have.
    """
    lines = split(text)
    out: list[str] = []
    last = 0
    for section in sections(lines, document):
        if section.name not in report:
            raise BadInput(f"{document}:{section.start}: no section {section.name}; {closest(section.name, report)}")
        begin = lines[section.start - 1]
        end_of_line = begin[len(begin.rstrip("\r\n")) :]
        out += lines[last : section.start]
        fresh = relinked(report[section.name], source, document)
        out += [line.rstrip("\r\n") + end_of_line for line in fresh]
        last = section.stop
    return "".join([*out, *lines[last:]])


def template_file(name: str) -> Path:
    """The file of a template: a path, or `planning` for the one that comes along."""
    shipped = Path(str(resources.files("sweep.report").joinpath("planning.md")))
    return shipped if name == shipped.stem and not Path(name).is_file() else Path(name)


def read_document(file: Path, flag: str = "--doc") -> str:
    """The text of a planning document or a template.

    Raises: `BadInput` if it cannot be read or has no marked section.
    """
    if not file.is_file():
        near = closest(file.name, [p.name for p in file.parent.glob("*.md")]) if file.parent.is_dir() else ""
        raise BadInput(f"{flag}={file}: no such file; {near}".rstrip("; "))
    try:
        text = file.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        raise BadInput(f"{flag}={file}: not UTF-8 text") from None
    if not sections(split(text), file):
        raise BadInput(
            f"{flag}={file}: has no marked section; add the lines <!-- codesign:begin summary --> and "
            "<!-- codesign:end summary -->"
        )
    return text


# --- the command -------------------------------------------------------------------------------------------------


def rewrite(job: Stored) -> Path:
    """Write the report of one sweep from its frontier and manifest, as the sweep itself does."""
    from pipelines.sweep import with_status

    if not job.path.is_dir():
        raise BadInput(f"{job.path}: is a file; name the directory of a sweep")
    manifest = job.manifest
    if not manifest or not job.files("frontier"):
        raise BadInput(f"{job.path}: the sweep has not finished; go on with resume={job.path}")
    config = job.path / "config.yaml"
    text = config.read_text() if config.is_file() else job.metadata.get(f"{store.PREFIX}config", "")
    return write_report(
        job.path,
        with_status(job.scan("frontier").collect(), manifest),
        manifest,
        config_yaml=text,
        by=list(manifest.get("by") or ()),
        objectives=[str(o).split(":")[0] for o in manifest.get("objectives") or ()],
        accuracy_label=str(manifest.get("accuracy_label") or ""),
        version=str(manifest.get("version") or ""),
    )


def task(arguments: argparse.Namespace) -> int:
    """Write reports, and refresh a document."""
    if isinstance(arguments.path, str):
        raise BadInput(f"{arguments.path}: a report is written beside a sweep on this machine; copy it here first")
    document: Path | None = arguments.doc
    started = False
    text = ""
    if arguments.template and not document:
        raise BadInput(f"--template={arguments.template}: say with --doc which document to start from it")
    if document and arguments.template and not document.exists():
        if not document.absolute().parent.is_dir():
            raise BadInput(f"--doc={document}: no such directory {document.parent}")
        text, started = read_document(template_file(arguments.template), "--template"), True
    elif document:
        text = read_document(document)
    jobs = stored([arguments.path], "frontier")
    if document and len(jobs) > 1:
        raise BadInput(f"{arguments.path}: holds {len(jobs)} sweeps; --doc takes one, such as {jobs[0].path}")
    if len(jobs) > 1 and any(job.shards for job in jobs):
        raise BadInput(f"{arguments.path}: holds shards beside other sweeps; a report takes the shards of one study")
    for job in jobs:
        report = rewrite(job)
        if document is None:
            print(report)
            continue
        lines = split(report.read_text(encoding="utf-8"))
        known = {s.name: lines[s.start : s.stop] for s in sections(lines, report)}
        fresh = refreshed(text, document, known, job.path)
        print(report)
        if fresh == text and not started:
            print(f"{document}: up to date")
            continue
        target = document.resolve()
        mode = None if started else target.stat().st_mode
        store.write_atomic(target, fresh)
        if mode is not None:
            target.chmod(mode & 0o7777)
        names = ", ".join(dict.fromkeys(section.name for section in sections(split(text), document)))
        print(f"{document}: {'written with' if started else 'refreshed'} {names}")
    return 0


def parser() -> Parser:
    """The command line."""
    line = Parser("report", __doc__ or "")
    line.add_argument("path", type=place, metavar="PATH", help="a sweep, or a multirun")
    line.add_argument("--doc", type=Path, metavar="FILE", help="a planning document to refresh in place")
    line.add_argument("--template", metavar="FILE|planning", help="what --doc starts from if it does not exist")
    return line


def main(argv: Sequence[str] | None = None) -> int:
    """Run from a command line."""
    return guarded(task, parser(), argv)


if __name__ == "__main__":
    sys.exit(main())
