r"""SQL over what sweeps stored: one sweep, or all jobs of a multirun together.

  python -m pipelines.query PATH "select hardware, max(tok_s_gpu) from points where tok_s_user >= 100 group by hardware"
  python -m pipelines.query PATH "select layout.tpa, layout.pp, tok_s_gpu from frontier order by tok_s_gpu desc limit 5"
  python -m pipelines.query PATH "select * from points where feasible" --out feasible.parquet
  python -m pipelines.query PATH "select job, points, feasible, seconds from jobs" --format json
  python -m pipelines.query PATH --name best_per_hardware
  python -m pipelines.query PATH --schema

PATH is a sweep (outputs/sweep/<time>), a multirun, or a Parquet file. Tables:
  points     every stored point; a sweep that stored its frontier alone has only that here
  frontier   the frontier of each sweep
  jobs       one row per sweep: counts (infeasible.REASON by reason), seconds, best figures, overrides
Of several jobs, the column `job` says which, and what they were given that differs (workload, ...) is a column too.
Columns with a dot (layout.tpa) need no quotes. Rows without a figure sort first in `order by ... desc`: say
`where feasible`. Named queries are files in conf/query. The dialect is that of polars; nothing is written to PATH.

Exit codes: 0, also where no row is found (said on standard error); 1 for bad input; 2 for bad usage.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import IO, Any, NoReturn

import polars as pl
from omegaconf import OmegaConf

from pipelines._app import said
from sweep import remote, store
from sweep.columns import BY_NAME, axis_metadata
from sweep.config import conf_dir, plain
from sweep.cost.result import REASONS
from sweep.errors import BadInput, closest
from sweep.frontier import frontier, parse_objectives
from sweep.report import tags
from sweep.report.markdown import grid

FORMATS = ("table", "csv", "json", "parquet")
SHOWN_ROWS = 100  # of a table in a terminal
# overrides that do not tell points apart, or that have columns of their own already
_NOT_A_LABEL = re.compile(
    r"(output|resume|progress|report|title|against|chart|store|shard|hydra|grid|zip|where|frontier|layout)\b"
)
_WORDS = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|--[^\n]*|[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+""")

Scalar = str | float | int | bool


# --- command lines -----------------------------------------------------------------------------------------------


class Parser(argparse.ArgumentParser):
    """A command line that says what is wrong in one line, and whose help is the module's own text."""

    def __init__(self, name: str, doc: str):
        super().__init__(
            prog=f"codesign {name}",
            description=doc.strip(),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        """One line, exit code 2."""
        self.exit(2, f"{self.prog}: {message}; --help shows examples\n")


def place(text: str) -> Path | str:
    """A path, or an address as it is."""
    return text if remote.is_remote(text) else Path(text)


def guarded(task: Callable[[argparse.Namespace], int], parser: Parser, argv: Sequence[str] | None) -> int:
    """Parse, run, and turn what went wrong into one line and an exit code: 0, 1 for bad input, 2 for bad usage."""
    try:
        arguments = parser.parse_args(sys.argv[1:] if argv is None else list(argv))
    except SystemExit as leave:
        return leave.code if isinstance(leave.code, int) else 2
    try:
        return task(arguments)
    except BadInput as error:
        print(error, file=sys.stderr)
    except BrokenPipeError:  # the reader has had enough
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        print(f"{error.filename or 'output'}: {error.strerror or error}", file=sys.stderr)
    return 1


def note(text: str) -> None:
    """A remark beside the answer, on standard error."""
    print(text, file=sys.stderr)


# --- what is stored ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stored:
    """One sweep on disk: a directory, the shards of a sweep, or a Parquet file by itself."""

    name: str  # relative to what was asked for
    path: Path
    extra: dict[str, Scalar | None] = field(default_factory=dict)  # constants of this job to add as columns
    shards: tuple[Stored, ...] = ()  # those that were found, in order
    missing: tuple[int, ...] = ()  # shards that were not, or that have not finished

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """Its manifest; empty if it has none. Of shards, counts and seconds add up."""
        if self.shards:
            return summed([shard.manifest for shard in self.shards], self._front)
        if not self.path.is_dir():
            return {}
        try:
            return store.manifest(self.path)
        except ValueError:
            raise BadInput(f"{self.path / 'manifest.json'}: not JSON; run the sweep again") from None

    @cached_property
    def _front(self) -> pl.DataFrame:
        """The frontier of shards: of what is left of each, for nothing that one drops is on that of all."""
        known: dict[str, Any] = next((s.manifest for s in self.shards if s.manifest), {})
        kept = [file for shard in self.shards for file in shard.files("frontier")]
        if not kept:
            return pl.DataFrame()
        try:
            points = store.scan_files([kept])
            goals = parse_objectives(known["objectives"])
            by = list(known["by"])
            descending = [*(False for _ in by), *(goal.maximise for goal in goals), False]
            found = frontier(points, goals, by)
            return found.sort([*by, *(goal.column for goal in goals), "point_id"], descending=descending)
        except (pl.exceptions.PolarsError, OSError) as error:
            raise BadInput(f"{self.path}: cannot be read as Parquet ({first_line(error)})") from None

    @cached_property
    def config(self) -> dict[str, Any]:
        """Its resolved configuration; empty if it has none."""
        if self.shards:
            return {k: v for k, v in self.shards[0].config.items() if k != "shard"}
        return dict(_yaml(self.path / "config.yaml"))

    @cached_property
    def overrides(self) -> dict[str, str]:
        """What was said on its command line."""
        if self.shards:
            return {k: v for k, v in self.shards[0].overrides.items() if not k.startswith("shard.")}
        words = said([str(word) for word in _yaml(self.path / ".hydra" / "overrides.yaml", list)])
        pairs = [word.lstrip("+~").partition("=") for word in words if word.strip()]
        return {key.partition("@")[0]: value for key, _, value in pairs}

    @cached_property
    def choices(self) -> dict[str, str]:
        """Which record was chosen in each group."""
        if self.shards:
            return self.shards[0].choices
        noted = self.manifest.get("choices")
        if isinstance(noted, dict):
            return {str(k): str(v) for k, v in noted.items()}
        at: Any = _yaml(self.path / ".hydra" / "hydra.yaml")
        for key in ("hydra", "runtime", "choices"):
            at = at.get(key) or {} if isinstance(at, dict) else {}
        return {str(k): str(v) for k, v in at.items() if v is not None} if isinstance(at, dict) else {}

    def files(self, table: str) -> list[store.File]:
        """The Parquet files of a table, without standing in for each other; empty if there are none."""
        if self.shards:
            return [file for shard in self.shards for file in shard.files(table)]
        if not self.path.is_dir():
            return [self.path]
        if table == "frontier":
            file = self.path / "frontier.parquet"
            return [file] if file.is_file() else []
        return store.part_files(self.path)

    @property
    def only_frontier(self) -> bool:
        """Whether its frontier stands in for its points."""
        return not self.files("points")

    def holds(self, table: str) -> bool:
        """Whether a table, or what stands in for it, can be read."""
        return bool(self.files(table) or (table == "points" and self.files("frontier")))

    def says_what_is_missing(self) -> str:
        """One line on the shards that are not there."""
        count = (store.shard_of(self.shards[0].path) or {})["count"]
        listed = ",".join(map(str, self.missing[:20])) + (",..." if len(self.missing) > 20 else "")
        return (
            f"{remote.address(self.path)}: {len(self.missing)} of {count} shards are missing or have not finished; "
            f"run them: shard.index={listed} shard.count={count}"
        )

    @cached_property
    def metadata(self) -> dict[str, str]:
        """Metadata of its files: units, meanings, axes. Of shards, that of the whole grid."""
        files = self.files("points") or self.files("frontier")
        found = (store.part_metadata(files[0]) or {}) if files else {}
        if self.shards:
            known = OmegaConf.to_container(OmegaConf.create(found.get(f"{store.PREFIX}config", "")))
            assert isinstance(known, dict)
            known["shard"] = {"index": 0, "count": 1}
            found |= {f"{store.PREFIX}config": OmegaConf.to_yaml(OmegaConf.create(known))}
            found |= {f"{store.PREFIX}config_sha256": str((store.shard_of(self.shards[0].path) or {})["study_sha256"])}
        return found

    def scan(self, table: str) -> pl.LazyFrame:
        """A table, without the columns that are added."""
        if self.shards and table == "frontier":
            return self._front.lazy()
        try:
            if self.shards:
                frame = store.scan_files([self.files(table) or self.files("frontier")])
            else:
                frame = store.scan(self.path, table)
            frame.collect_schema()
        except (pl.exceptions.PolarsError, OSError) as error:
            raise BadInput(f"{self.path}: cannot be read as Parquet ({first_line(error)})") from None
        return frame

    def constant(self, key: str) -> Scalar | None:
        """The value of a key that this job did not sweep, if it can be told."""
        if key in self.overrides:
            return self.overrides[key]
        if "." not in key:
            return self.choices.get(key) or (self.manifest.get(key) if key == "efficiency" else None)
        group, _, name = key.partition(".")
        swept = (self.config.get("grid") or {}).get(group)
        if isinstance(swept, str | list) or name in str(self.config.get("zip") or {}):
            return None  # whole records: the configuration holds another one's figure
        held = self.config.get(group)
        value = held.get(name) if isinstance(held, dict) else None
        return value if isinstance(value, str | float | int) else None

    @cached_property
    def load(self) -> str | None:
        """Its load in words, if it has one alone: for sweeps that do not say which record it was."""
        held, swept = self.config.get("workload"), (self.config.get("grid") or {}).get("workload")
        fixed = isinstance(held, dict) and (not swept or (isinstance(swept, dict) and set(swept) <= {"batch"}))
        if not isinstance(held, dict) or not fixed:
            return None
        keys = {"isl": "{:g} in", "osl": "{:g} out", "context": "context {:g}"}
        return ", ".join(text.format(held[k]) for k, text in keys.items() if isinstance(held.get(k), float | int))


def folded(jobs: Sequence[Stored]) -> list[Stored]:
    """Jobs with the shards of one study as one job; what is missing of it is noted there."""
    studies: dict[tuple[str, int], dict[int, Stored]] = {}
    others = []
    for job in jobs:
        about = store.shard_of(job.path) if job.path.is_dir() else None
        if about is None:
            others.append(job)
            continue
        held = studies.setdefault((str(about["study_sha256"]), int(about["count"])), {})
        index = int(about["index"])
        if index not in held or not held[index].manifest:  # of two runs of one shard, that which has finished
            held[index] = job
    found = []
    for (study, count), held in studies.items():
        shards = tuple(held[index] for index in sorted(held))
        missing = tuple(i for i in range(count) if i not in held or not held[i].manifest)
        path = Path(os.path.commonpath([shard.path.resolve().parent for shard in shards]))
        name = path.name if len(studies) == 1 and not others else study[:8]
        found.append(Stored(name, path, shards=shards, missing=missing))
    return [*found, *others]


def summed(manifests: Sequence[dict[str, Any]], front: pl.DataFrame) -> dict[str, Any]:
    """One manifest of the shards that have finished: counts and seconds added, the frontier that of all."""
    done = [m for m in manifests if m]
    if not done:
        return {}
    total: dict[str, Any] = {**done[0], "config_sha256": done[0]["study_sha256"]}
    for key in ("shard", "parts", "epsilon"):
        total.pop(key, None)
    for key in ("points", "feasible", "seconds"):
        total[key] = sum(m[key] for m in done)
    reasons = dict.fromkeys(name for m in done for name in m["infeasible"])
    total["infeasible"] = {name: sum(m["infeasible"].get(name, 0) for m in done) for name in reasons}
    total["points_per_s"] = total["points"] / total["seconds"] if total["seconds"] else None
    total["frontier"] = front.height
    return total


def _yaml(file: Path, kind: type = dict) -> Any:
    if not file.is_file():
        return kind()
    try:
        loaded = OmegaConf.to_container(OmegaConf.load(file), resolve=False)
    except Exception:
        return kind()
    return loaded if isinstance(loaded, kind) else kind()


def first_line(error: BaseException) -> str:
    """The first line of an error's text."""
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__


def sweep_directories(path: Path) -> list[Path]:
    """The sweeps under a path; a multirun's directory counts as one even after a frontier was written into it."""
    if path.is_file():
        if store.part_metadata(path) is None:
            raise BadInput(f"{path}: not a Parquet file")
        return [path]
    if path.is_dir() and not _has_points(path):
        found = [p for p in path.iterdir() if p.is_dir() and _has_points(p)]
        if found:
            return sorted(found, key=lambda p: (len(p.name), p.name))
    return store.sweeps(path)


def _has_points(path: Path) -> bool:
    return (path / "manifest.json").is_file() or (path / "points").is_dir()


def stored(paths: Sequence[Path | str], table: str = "points", *, whole: bool = False) -> list[Stored]:
    """All sweeps under the paths, named, with the columns that tell several apart; shards of a study are one sweep.

    Sweeps without a complete part are left out, with a remark. Raises: `BadInput` if nothing is left; with `whole` also
    if shards are missing, which is a remark otherwise.
    """
    directories: dict[Path, Path] = {}
    for path in map(store.here, paths):
        for directory in sweep_directories(path):
            directories.setdefault(directory.resolve(), directory)
    if len(directories) == 1:
        names = [resolved.name for resolved in directories]
    else:
        root = store.here(paths[0]).resolve() if len(paths) == 1 else Path(os.path.commonpath(list(directories)))
        names = [resolved.relative_to(root).as_posix() for resolved in directories]
    jobs = folded([Stored(name, path) for name, path in zip(names, directories.values(), strict=True)])
    for job in jobs:
        if job.missing and whole:
            raise BadInput(f"{job.says_what_is_missing()}; or say --partial")
    kept = [job for job in jobs if job.holds(table)]
    if not kept:
        raise BadInput(f"{', '.join(map(str, paths))}: no complete part yet")
    for job in jobs:
        if job not in kept:
            note(f"{job.name}: no complete part yet; left out")
        elif job.missing:
            note(f"warning: {job.says_what_is_missing()}")
        elif job.path.is_dir() and not job.manifest:
            note(f"{job.name}: has not finished; what it holds so far is used")
    return told_apart(kept) if len(kept) > 1 else kept


def told_apart(jobs: Sequence[Stored]) -> list[Stored]:
    """Jobs with what differs between them as constants: their name, overrides, and axes that only some swept."""
    schemas = [set(job.scan("points").collect_schema()) for job in jobs]
    given = dict.fromkeys(k for job in jobs for k in job.overrides if not _NOT_A_LABEL.match(k))
    swept = dict.fromkeys(k for schema in schemas for k in sorted(schema) if k not in BY_NAME and k != "point_id")
    extras: list[dict[str, Scalar | None]] = [{"job": job.name} for job in jobs]
    for key in {**given, **swept}:
        own = [key in schema and key not in BY_NAME for schema in schemas]
        if all(own):
            continue
        values_ = [None if has else job.constant(key) for job, has in zip(jobs, own, strict=True)]
        if key == "workload" and any(v is None and not has for v, has in zip(values_, own, strict=True)):
            values_ = [None if has else job.load for job, has in zip(jobs, own, strict=True)]
        values = typed(values_)
        if not any(own) and len(set(values)) < 2:
            continue
        name = f"config.{key}" if key in BY_NAME else key
        for extra, value, has in zip(extras, values, own, strict=True):
            if not has:
                extra[name] = value
    return [replace(job, extra=extra) for job, extra in zip(jobs, extras, strict=True)]


def typed(values: Sequence[Scalar | None]) -> list[Scalar | None]:
    """Values as numbers or truth values if all of them are, else as text."""
    texts = [None if v is None or str(v) in ("null", "None", "") else str(v).strip("'\"") for v in values]
    given = [text for text in texts if text is not None]
    if given and all(text.lower() in ("true", "false") for text in given):
        return [None if text is None else text.lower() == "true" for text in texts]
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return [None if text is None else kind(text) for text in texts]
    return list(texts)


def scan(jobs: Sequence[Stored], table: str = "points") -> pl.LazyFrame:
    """A table of all jobs, one below the other, constants as columns."""
    frames = []
    for job in jobs:
        if not job.holds(table):
            continue
        frame = job.scan(table)
        first = [pl.lit(v, dtype=None if v is not None else pl.Null).alias(k) for k, v in job.extra.items()]
        frames.append(frame.select(*first, pl.all()) if first else frame)
    if not frames:
        raise BadInput(f"no {table} is stored yet: the sweep has not finished")
    try:
        together = frames[0] if len(frames) == 1 else pl.concat(frames, how="diagonal_relaxed")
        together.collect_schema()
    except pl.exceptions.PolarsError as error:
        raise BadInput(f"these sweeps do not fit together: {first_line(error)}") from None
    return together


def jobs_table(jobs: Sequence[Stored]) -> pl.DataFrame:
    """One row per job, from manifests and frontiers."""
    schema: dict[str, Any] = {"job": pl.String}
    texts = ("title", "objectives", "by", "store_rows", "accuracy_label", "efficiency", "version", "config_sha256")
    counts = ("points", "points_before_where", "feasible", "frontier", "schema_version")
    rows: list[dict[str, Any]] = []
    for job in jobs:
        m = job.manifest
        listed = {k: ",".join(map(str, v)) if isinstance(v, list) else v for k, v in m.items()}
        against = m.get("infeasible") or {}
        row: dict[str, Any] = {**job.extra, "job": job.name}
        row |= {k: listed.get(k) for k in (*counts, "seconds", "points_per_s", *texts)}
        row |= {f"infeasible.{reason}": against.get(reason, 0) if m else None for reason in REASONS}
        row |= best_figures(job)
        row["overrides"] = " ".join(f"{k}={v}" for k, v in job.overrides.items())
        row["path"] = str(job.path)
        rows.append(row)
    order = [*counts[:4], *(f"infeasible.{reason}" for reason in REASONS), "seconds", "points_per_s"]
    order += ["best_tok_s_gpu", "best_tok_s_user", "overrides", *texts, "schema_version", "path"]
    for key in dict.fromkeys(k for job in jobs for k in job.extra if k != "job"):
        schema[key] = pl.DataFrame({key: [row.get(key) for row in rows]}, strict=False).schema[key]
    whole = {*counts, *(f"infeasible.{reason}" for reason in REASONS)}
    real = {"seconds", "points_per_s", "best_tok_s_gpu", "best_tok_s_user"}
    schema |= {k: pl.Int64 if k in whole else pl.Float64 if k in real else pl.String for k in order if k not in schema}
    return pl.DataFrame([{k: row.get(k) for k in schema} for row in rows], schema=schema, strict=False)


def best_figures(job: Stored) -> dict[str, float | None]:
    """The most tokens/s/GPU and tokens/s/user of a job's frontier."""
    found: dict[str, float | None] = {"best_tok_s_gpu": None, "best_tok_s_user": None}
    if not job.files("frontier"):
        return found
    frame = job.scan("frontier")
    names = [c for c in ("tok_s_gpu", "tok_s_user") if c in frame.collect_schema()]
    if names:
        top = frame.select(pl.col(c).max() for c in names).collect()
        found |= {f"best_{c}": top[c][0] for c in names}
    return found


def about(column: str, jobs: Iterable[Stored] = ()) -> dict[str, str]:
    """Unit and meaning of a column, from the files if they say."""
    for job in jobs:
        if f"unit.{column}" in job.metadata:
            return {"unit": job.metadata[f"unit.{column}"], "doc": job.metadata.get(f"doc.{column}", "")}
    if column in BY_NAME:
        return {"unit": BY_NAME[column].unit, "doc": BY_NAME[column].doc}
    known = {
        "point_id": ("1", "number of the point in the grid of its sweep"),
        "job": ("label", "which job of the multirun: its directory"),
        "rank": ("1", "1 for the point that the frontier of its group would miss most (hypervolume contribution)"),
    }
    if column in known:
        return dict(zip(("unit", "doc"), known[column], strict=True))
    if column.startswith("config."):
        column = column.removeprefix("config.")
    try:
        return axis_metadata(column)
    except KeyError:
        return {"unit": "label", "doc": f"which {column}"}


_TYPES = {pl.String: "text", pl.Boolean: "bool"}


def dictionary(jobs: Sequence[Stored]) -> pl.DataFrame:
    """The data dictionary of the points: column, type, unit, meaning."""
    rows = []
    for name, kind in scan(jobs).collect_schema().items():
        says = about(name, jobs)
        rows.append((name, _TYPES.get(type(kind), str(kind).lower()), says["unit"], says["doc"]))
    return pl.DataFrame(rows, schema=["column", "type", "unit", "meaning"], orient="row")


# --- SQL ---------------------------------------------------------------------------------------------------------


def quoted(sql: str, columns: Iterable[str]) -> str:
    """SQL with quotes around column names that have a dot, alone or behind the name of a table.

    Raises: `BadInput` for a dotted name that begins like a column and is none.
    """
    known = set(columns)
    prefixes = {name.split(".")[0] for name in known if "." in name}

    def word(match: re.Match[str]) -> str:
        text = match[0]
        if text[0] in "'\"-":
            return text
        if text in known:
            return f'"{text}"'
        table, _, name = text.partition(".")
        if "." in name and name in known:
            return f'{table}."{name}"'
        if table in prefixes or "." in name:
            raise BadInput(f"no column {text}; {closest(text, known)}")
        return text

    return _WORDS.sub(word, sql)


def answer(sql: str, tables: Mapping[str, pl.LazyFrame]) -> pl.LazyFrame:
    """The answer to a query, not yet computed.

    Raises: `BadInput` in one line for SQL that does not parse, unknown tables and columns.
    """
    with explained(sql, tables):
        text = quoted(sql, _columns(sql, tables))
        found = pl.SQLContext(dict(tables)).execute(text)
        found.collect_schema()
    return found


def _columns(sql: str, tables: Mapping[str, pl.LazyFrame]) -> set[str]:
    """Columns of the tables that a query names."""
    asked = [frame for name, frame in tables.items() if re.search(rf"\b{name}\b", sql)]
    return {name for frame in asked or tables.values() for name in frame.collect_schema()}


@contextlib.contextmanager
def explained(sql: str, tables: Mapping[str, pl.LazyFrame]) -> Iterator[None]:
    """Turn what polars says about a query into one line."""
    try:
        yield
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        line = first_line(error)
        columns = _columns(sql, tables)
        for pattern in (r'unable to find column "([^"]+)"', r"no column named '([^']+)'", r"'([^']+)' was not found"):
            found = re.search(pattern, line)
            if not found:
                continue
            if "relation" in line:
                raise BadInput(f"no table {found[1]}; {closest(found[1], tables)}") from None
            raise BadInput(f"no column {found[1]}; {closest(found[1], columns)}") from None
        raise BadInput(f"not a query that can be answered: {line.removeprefix('sql parser error: ')}") from None


def named(name: str) -> str:
    """The SQL of a named query.

    Raises: `BadInput` for a name that is no file of conf/query.
    """
    directory = conf_dir() / "query"
    names = [p.stem for p in directory.glob("*.yaml")]
    if name not in names:
        raise BadInput(f"--name={name}: no such query; {closest(name, names)}")
    held = plain(OmegaConf.load(directory / f"{name}.yaml"))
    if not isinstance(held, dict) or not isinstance(held.get("sql"), str):
        raise BadInput(f"{directory / f'{name}.yaml'}: needs a key sql")
    return str(held["sql"])


# --- rows as text or files ---------------------------------------------------------------------------------------


def value_text(value: Any) -> str:
    """One value of a table: six significant digits, an en dash where there is none."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def text_table(frame: pl.DataFrame) -> str:
    """A frame as a Markdown table, values as they are stored."""
    left = [not kind.is_numeric() for kind in frame.dtypes]
    return grid(frame.columns, [[value_text(v) for v in row] for row in frame.iter_rows()], left=left)


def _write_text(lazy: pl.LazyFrame, form: str, sink: IO[str]) -> int:
    """CSV or JSON, batch by batch. Returns the number of rows."""
    names = lazy.collect_schema().names()
    rows = 0
    empty = pl.DataFrame(schema=lazy.collect_schema())
    if form == "csv":
        sink.write(empty.write_csv())
    else:
        sink.write("[")
    for batch in lazy.collect_batches(maintain_order=True, engine="streaming"):
        if not batch.height:
            continue
        batch = batch.select(names)
        if form == "csv":
            sink.write(batch.write_csv(include_header=False))
        else:
            sink.write((",\n" if rows else "\n") + batch.write_ndjson().rstrip("\n").replace("\n", ",\n"))
        rows += batch.height
    if form == "json":
        sink.write("\n]\n" if rows else "]\n")
    return rows


def metadata_of(names: Iterable[str], jobs: Sequence[Stored], more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Units and meanings of columns, as sweeps write them into their files."""
    found = {f"{store.PREFIX}version": store.code_version(), **(more or {})}
    for name in names:
        says = about(name, jobs) if name in BY_NAME or any(f"unit.{name}" in j.metadata for j in jobs) else None
        if says:
            found |= {f"unit.{name}": says["unit"], f"doc.{name}": says["doc"]}
    return found


def check_target(file: Path) -> None:
    """Refuse a file that cannot be written, before anything is computed."""
    if file.is_dir():
        raise BadInput(f"--out={file}: is a directory; name a file")
    if not file.absolute().parent.is_dir():
        raise BadInput(f"--out={file}: no such directory {file.parent}")


def write(lazy: pl.LazyFrame, form: str, out: Path | None, jobs: Sequence[Stored] = ()) -> int:
    """Write rows to a file, complete or not at all, or to standard output. Returns their number.

    Args:
        form: csv, json or parquet.
        jobs: where units and meanings are taken from, for Parquet.
    """
    if out is None:
        if form != "parquet":
            return _write_text(lazy, form, sys.stdout)
        if sys.stdout.isatty():
            raise BadInput("--format=parquet: not for a terminal; name a file with --out")
        frame = lazy.collect(engine="streaming")
        sys.stdout.buffer.write(parquet_bytes(frame, metadata_of(frame.columns, jobs)))
        sys.stdout.flush()
        return frame.height
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        if form == "parquet":
            lazy.sink_parquet(temporary, metadata=metadata_of(lazy.collect_schema().names(), jobs), engine="streaming")
            rows = int(pl.scan_parquet(temporary).select(pl.len()).collect().item())
        else:
            with temporary.open("w", encoding="utf-8", newline="") as sink:
                rows = _write_text(lazy, form, sink)
        os.replace(temporary, out)
    except OSError as error:
        raise BadInput(f"--out={out}: cannot be written ({error.strerror or error})") from error
    finally:
        temporary.unlink(missing_ok=True)
    return rows


def parquet_bytes(frame: pl.DataFrame, metadata: Mapping[str, str]) -> bytes:
    """A frame as the bytes of a Parquet file."""
    buffer = io.BytesIO()
    frame.write_parquet(buffer, metadata=dict(metadata))
    return buffer.getvalue()


# --- the command -------------------------------------------------------------------------------------------------


def task(arguments: argparse.Namespace) -> int:
    """Answer one query."""
    out: Path | None = arguments.out
    form: str = arguments.format or (out.suffix.lstrip(".") if out and out.suffix.lstrip(".") in FORMATS else "table")
    if out is not None:
        check_target(out)
    sql = named(arguments.name) if arguments.name else arguments.sql
    jobs = stored([arguments.path])
    if arguments.schema:
        if form == "table":
            print(text_table(dictionary(jobs)))
            of_jobs = ", ".join(jobs_table(jobs).columns)
            print(f"\ntables: points, frontier (and robust, ranges_left, loss_source), jobs ({of_jobs})")
        else:
            write(dictionary(jobs).lazy(), form, out)
        return 0
    tables = {"points": scan(jobs), "jobs": jobs_table(jobs).lazy()}
    if any(job.files("frontier") for job in jobs):
        tables["frontier"] = scan(jobs, "frontier")
    alone = [job.name for job in jobs if job.path.is_dir() and job.only_frontier]
    if alone and re.search(r"\b(from|join)\s+points\b", sql, re.IGNORECASE):
        note(f"points: {'' if len(alone) == len(jobs) else ', '.join(alone) + ': '}only the frontier is stored")
    found = answer(sql, tables)
    with explained(sql, tables):
        if form != "table":
            rows = write(found, form, out, jobs)
        else:
            head = found.head(SHOWN_ROWS + 1).collect(engine="streaming") if out is None else found.collect()
            rows = head.height
            for column, kind in head.schema.items():  # a query may call its machines what it likes
                if kind in (pl.String, pl.Categorical):
                    head = tags.tagged(head, tags.statuses(job.manifest for job in jobs), column)
            text = text_table(head if out is not None else head.head(SHOWN_ROWS)) + "\n"
            if out is None:
                sys.stdout.write(text)
            else:
                store.write_atomic(out, text)
            if out is None and rows > SHOWN_ROWS:
                note(f"the first {SHOWN_ROWS} rows; all of them: --out FILE, or --format csv, json, parquet")
    meanings = dict.fromkeys(str(job.manifest["accuracy_label"]) for job in jobs if "accuracy_label" in job.manifest)
    if form == "table" and meanings and re.search(r"\b(accuracy\w*|loss)\b", sql):
        note(f"accuracy: {'; '.join(meanings)}")
    if not rows:
        note("no row: nothing stored meets the conditions")
    if out is not None:
        note(f"{out}: {rows:,} rows")
    return 0


def parser() -> Parser:
    """The command line."""
    line = Parser("query", __doc__ or "")
    line.add_argument("path", type=place, metavar="PATH", help="a sweep, a multirun, a Parquet file; s3://... too")
    line.add_argument("sql", nargs="?", metavar="SQL", help="a select over points, frontier, jobs")
    line.add_argument("--name", metavar="NAME", help="a query of conf/query, see below")
    line.epilog = "named queries:\n" + "\n".join(f"  {name:22} {_about(name)}" for name in _names())
    line.add_argument("--schema", action="store_true", help="print the columns, their units and meanings")
    line.add_argument("--format", choices=FORMATS, help="default: table, or by the suffix of --out")
    line.add_argument("--out", type=Path, metavar="FILE", help="write to a file")
    return line


def _about(name: str) -> str:
    return str(_yaml(conf_dir() / "query" / f"{name}.yaml").get("about") or "")


def _names() -> list[str]:
    return sorted(p.stem for p in (conf_dir() / "query").glob("*.yaml"))


def main(argv: Sequence[str] | None = None) -> int:
    """Run from a command line."""
    line = parser()

    def checked(arguments: argparse.Namespace) -> int:
        given = [arguments.sql is not None, arguments.name is not None, arguments.schema]
        if sum(given) != 1:
            print(f"{line.prog}: give one of SQL, --name and --schema; --help shows examples", file=sys.stderr)
            return 2
        return task(arguments)

    return guarded(checked, line, argv)


if __name__ == "__main__":
    sys.exit(main())
