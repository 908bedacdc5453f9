"""Tables of points on disk: Parquet parts that are complete or not there, a manifest, and reading them back.

A part is written under a temporary name and renamed, so a killed run leaves complete parts and nothing else. Every
file carries units, the resolved configuration and its hash, so that it can be read without this program and is never
mixed with points of another configuration.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from sweep import remote
from sweep.columns import ALL_COLUMNS, BANDS, BY_NAME, NEEDS, SCHEMA_VERSION, axis_metadata, ends
from sweep.cost.result import BOUNDS, REASONS
from sweep.economics import with_derived
from sweep.errors import BadInput, closest
from sweep.space import Axis, Space

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

PREFIX = "codesign."
File = Path | str  # a file of this machine, or an address
OLDEST_SCHEMA = 1  # columns that an older file lacks are not there; what it has means the same


def code_version() -> str:
    """Version of this program."""
    try:
        return version("codesign-sweep")
    except PackageNotFoundError:
        return "0+unknown"


def config_hash(resolved: Mapping[str, Any]) -> str:
    """Hash of a configuration: what decides the points, not where they go or how the run looks."""
    decides = {k: v for k, v in resolved.items() if k not in ("store", "title")}
    if (decides.get("shard") or {}).get("count", 1) == 1:  # the whole grid
        decides.pop("shard", None)
    store = dict(resolved.get("store") or {})
    decides["store"] = {k: store.get(k) for k in ("rows", "auto_rows", "axes", "part_rows")}
    text = json.dumps({"schema": SCHEMA_VERSION, "config": decides}, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def write_atomic(path: Path, data: bytes | str) -> None:
    """Write a file under a temporary name and rename it.

    Raises: `BadInput` when it cannot be written, such as on a full disk; the temporary file is removed.
    """
    content = data.encode() if isinstance(data, str) else data
    _write(path, lambda sink: sink.write(content))


def _write(path: Path, fill: Callable[[BinaryIO], object]) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as sink:
            fill(sink)
            sink.flush()
            os.fsync(sink.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise BadInput(
            f"{path}: cannot be written ({error.strerror or error}); what is complete is kept, a rerun goes on from it"
        ) from error


@contextlib.contextmanager
def claimed(directory: Path) -> Iterator[None]:
    """Keep other runs out of a directory, and clear what a killed one left half-written.

    The claim ends with the process, however it ends. Raises: `BadInput` if another run has it.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        handle = os.open(directory, os.O_RDONLY)
    except OSError as error:
        raise BadInput(f"{directory}: cannot be written ({error.strerror or error})") from error
    try:
        if fcntl is not None:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BadInput(f"{directory}: another run is writing here; wait for it, or name another one") from None
            except OSError:
                pass  # a file system without locks
        for place in (directory, directory / "points"):
            for left in place.glob(".*.tmp"):
                left.unlink(missing_ok=True)
        yield
    except BadInput:
        with contextlib.suppress(OSError):  # nothing was written
            directory.rmdir()
        raise
    finally:
        os.close(handle)


def axes_json(axes: Sequence[Axis]) -> str:
    """The axes of a grid, to decode `point_id` without the configuration."""
    return json.dumps(
        [{"name": a.name, "size": a.size, "columns": {k: v.tolist() for k, v in a.columns.items()}} for a in axes]
    )


def axes_from_json(text: str) -> tuple[Axis, ...]:
    """The axes as they were written."""
    found = []
    for a in json.loads(text):
        columns = {
            k: np.array(v, dtype=object if v and isinstance(v[0], str) else np.float64) for k, v in a["columns"].items()
        }
        found.append(Axis(name=a["name"], size=a["size"], columns=columns))
    return tuple(found)


class Writer:
    """Writes tables of points with one schema and one set of metadata."""

    def __init__(
        self,
        space: Space,
        *,
        config_yaml: str,
        sha256: str,
        accuracy_label: str,
        axes: bool,
        compression: str,
        float64: bool = False,
    ):
        """`float64`: numbers are stored as they were computed, not as float32."""
        self.space = space
        self.axes = axes
        self.compression = compression
        self.sha256 = sha256
        self.number = np.float64 if float64 else np.float32
        self.axis_keys = [k for axis in space.axes for k in axis.columns] if axes else []
        self.metadata = {
            f"{PREFIX}schema_version": str(SCHEMA_VERSION),
            f"{PREFIX}version": code_version(),
            f"{PREFIX}config": config_yaml,
            f"{PREFIX}config_sha256": sha256,
            f"{PREFIX}axes": axes_json(space.axes),
            f"{PREFIX}reasons": ",".join(REASONS),
            f"{PREFIX}bounds": ",".join(BOUNDS),
            f"{PREFIX}accuracy_label": accuracy_label,
            f"{PREFIX}provenance": json.dumps(provenance(space)),
        }
        for key in dict.fromkeys([*self.axis_keys, "workload.batch", *(c.name for c in ALL_COLUMNS)]):
            about = axis_metadata(key) if key not in BY_NAME else {"unit": BY_NAME[key].unit, "doc": BY_NAME[key].doc}
            self.metadata[f"unit.{key}"] = about["unit"]
            self.metadata[f"doc.{key}"] = about["doc"]

    def _axis_array(self, axis: Axis, key: str, digit: np.ndarray) -> pa.Array:
        values = axis.columns[key]
        if values.dtype == object:
            unique = list(dict.fromkeys(str(v) for v in values))
            index = np.array([unique.index(str(v)) for v in values], dtype=np.int16)
            return pa.DictionaryArray.from_arrays(pa.array(index[digit]), pa.array(unique))
        whole = (
            bool(np.all(np.isnan(values) | (values == np.floor(values))))
            and float(np.nanmax(np.abs(values), initial=0)) < 2**31
        )
        if whole and not np.isnan(values).any():
            return pa.array(values.astype(np.int32)[digit])
        return pa.array(values.astype(np.float64)[digit], from_pandas=True)

    def table(self, point_id: np.ndarray, columns: Mapping[str, np.ndarray]) -> pa.Table:
        """An Arrow table of points: axis columns decoded from the index, then the columns given."""
        arrays: list[pa.Array] = [pa.array(point_id.astype(np.int64))]
        names = ["point_id"]
        if self.axes:
            rest = point_id.astype(np.int64)
            digits: list[np.ndarray] = []
            for axis in reversed(self.space.axes):
                rest, digit = np.divmod(rest, axis.size)
                digits.append(digit)
            for axis, digit in zip(self.space.axes, reversed(digits), strict=True):
                for key in axis.columns:
                    if key not in columns:  # a batch as large as possible has a figure per point
                        arrays.append(self._axis_array(axis, key, digit))
                        names.append(key)
        if "workload.batch" in columns:
            batch = np.asarray(columns["workload.batch"], dtype=np.float64)
            missing = np.isnan(batch)  # of an impossible configuration
            arrays.append(pa.array(np.where(missing, 0, batch).astype(np.int32), mask=missing))
            names.append("workload.batch")
        bounds = pa.array(BOUNDS)
        for column in ALL_COLUMNS:
            if column.name not in columns:
                continue
            value = columns[column.name]
            if column.dtype == "bound":
                missing = ~np.isfinite(value)
                index = pa.array(np.where(missing, 0, value).astype(np.int8), mask=missing)
                arrays.append(pa.DictionaryArray.from_arrays(index, bounds))
            elif column.dtype == "float32":
                number = value.astype(self.number, copy=False)
                arrays.append(
                    pa.array(number, from_pandas=bool(np.isnan(number).any()))
                )  # null only where there is none
            else:
                arrays.append(pa.array(value.astype(column.dtype, copy=False)))
            names.append(column.name)
        fields = []
        for name, array in zip(names, arrays, strict=True):
            unit = (
                {"unit": self.metadata[f"unit.{name}"], "doc": self.metadata[f"doc.{name}"]}
                if f"unit.{name}" in self.metadata
                else {}
            )
            fields.append(pa.field(name, array.type, metadata=unit or None))
        schema = pa.schema(fields, metadata=self.metadata)
        return pa.Table.from_arrays(arrays, schema=schema)

    def write(self, path: Path, table: pa.Table, extra: Mapping[str, Any] | None = None) -> int:
        """Write a table atomically; floats are split by byte, ids are deltas, nothing is dictionary-coded twice.

        Returns: bytes written. Raises: `BadInput` when the disk is full; the temporary file is removed.
        """
        if extra:
            table = table.replace_schema_metadata(
                {**(table.schema.metadata or {}), **{f"{PREFIX}{k}": json.dumps(v) for k, v in extra.items()}}
            )
        floats = [f.name for f in table.schema if pa.types.is_floating(f.type)]
        encoding = {name: "BYTE_STREAM_SPLIT" for name in floats} | {"point_id": "DELTA_BINARY_PACKED"}
        labels = [f.name for f in table.schema if pa.types.is_dictionary(f.type)]
        _write(
            path,
            lambda sink: pq.write_table(
                table,
                sink,
                compression=self.compression,
                compression_level=1 if self.compression == "zstd" else None,
                use_dictionary=labels,
                write_statistics=[name for name in table.column_names if name not in floats],
                column_encoding=encoding,
                row_group_size=1 << 20,
            ),
        )
        return path.stat().st_size


def provenance(space: Space) -> dict[str, Any]:
    """Which figures of which machine are not confirmed, and where they come from."""
    out: dict[str, Any] = {}
    for record in space.hardware:
        figures: dict[str, Any] = {"status": record.status}
        for key in record.about.get("unverified") or []:
            figures[str(key)] = "unverified"
        for key in record.about.get("overridden") or []:
            figures[str(key)] = "overridden"
        for key, figure in (("price", "usd_per_hour"), ("power", "watts")):
            chosen = record.about.get(key)
            figures[key] = {"value": record.values.get(figure), "vintage": chosen or "unknown"}
            if figure not in figures and record.values.get(figure) is not None and chosen not in (None, "unknown"):
                figures[figure] = f"published {chosen}"
        out[record.id] = figures
    return out


def part_metadata(path: File) -> dict[str, str] | None:
    """Metadata of a complete part, `None` if the file does not open."""
    try:
        if isinstance(path, str):
            with remote.opened(path) as file:
                raw = pq.read_metadata(file).metadata or {}
        else:
            raw = pq.read_metadata(path).metadata or {}
    except (OSError, pa.ArrowException):
        return None
    return {k.decode(): v.decode() for k, v in raw.items() if not k.startswith(b"ARROW")}


def free_bytes(path: Path) -> int:
    """Free space of the file system that a path will lie on."""
    at = path
    while not at.exists():
        at = at.parent
    return shutil.disk_usage(at).free


# --- reading -----------------------------------------------------------------------------------------------------


def is_sweep(path: Path) -> bool:
    """Whether a directory is the output of one sweep, finished or not."""
    return any((path / name).exists() for name in ("manifest.json", "points", "config.sha256"))


def sweeps(path: Path | str) -> list[Path]:
    """The sweeps under a path: itself, or the jobs of a multirun.

    Raises: `BadInput` if there is none.
    """
    path = here(path)
    if not path.exists():
        parent = path.parent
        near = closest(path.name, [p.name for p in parent.iterdir()] if parent.is_dir() else [])
        raise BadInput(f"{path}: no such sweep; {near}")
    if is_sweep(path):
        return [path]
    found = sorted((p for p in path.iterdir() if p.is_dir() and is_sweep(p)), key=lambda p: (len(p.name), p.name))
    if not found and (path / "frontier.parquet").is_file():
        return [path]
    if not found:
        raise BadInput(f"{path}: holds no sweep (no manifest.json, frontier.parquet or points/)")
    return found


def here(path: Path | str) -> Path:
    """A path as one of this machine: what lies at an address is mirrored, see `sweep.remote`."""
    return remote.mirror(str(path)) if remote.is_remote(path) else Path(path)


def files(path: Path | str, table: str = "points") -> list[File]:
    """The Parquet files of a table, `points` or `frontier`, in a sweep, a multirun, or the file itself.

    A sweep that kept only its frontier has no points: its frontier stands in for them.
    """
    path = here(path)
    if path.is_file():
        return [path]
    found: list[File] = []
    for directory in sweeps(path):
        if table == "points" and (own := part_files(directory)):
            found += own
        elif (directory / "frontier.parquet").is_file():
            found.append(directory / "frontier.parquet")
    if not found:
        raise BadInput(f"{path}: no complete part yet")
    return found


def part_files(directory: Path) -> list[File]:
    """The parts of a sweep's points: files of `points/`, or of `key=value` directories in it (hive partitions).

    Of a sweep that is mirrored from an address: the addresses.
    """
    points = directory / "points"
    elsewhere = remote.parts(points)
    if elsewhere is not None:
        return list(elsewhere)
    return sorted([*points.glob("[!.]*.parquet"), *points.glob("*=*/**/[!.]*.parquet")])


def check_schema(path: File, metadata: Mapping[str, str]) -> None:
    """Refuse files that this version cannot read. Files without a schema version are taken as they are.

    Raises: `BadInput`.
    """
    found = metadata.get(f"{PREFIX}schema_version")
    if found is None:
        return
    if not found.isdigit():
        raise BadInput(f"{path}: schema version {found!r} is no number; the file is not one of codesign-sweep")
    if int(found) > SCHEMA_VERSION:
        raise BadInput(f"{path}: schema version {found} is newer than {SCHEMA_VERSION}; update codesign-sweep")
    if int(found) < OLDEST_SCHEMA:
        raise BadInput(
            f"{path}: schema version {found} is older than {OLDEST_SCHEMA}, the oldest that can be read; sweep again"
        )


def scan(path: Path | str, table: str = "points") -> pl.LazyFrame:
    """Points of a sweep or a multirun as a lazy frame, axis columns included.

    Args:
        path: a sweep's directory, a multirun's, or one Parquet file; or the address of one, `s3://bucket/sweep`.
        table: `points`, or `frontier`.
    The columns that follow from others (`sweep.economics`) are there too, computed when they are asked for.
    Columns that only some jobs swept are null in the others. Axis columns that were left out of the files are put
    back from `point_id`. Raises: `BadInput` for a path without points or of another schema version.
    """
    return scan_files(_by_axes(files(path, table)))


def scan_files(groups: Sequence[Sequence[File]]) -> pl.LazyFrame:
    """Parquet files as one lazy frame, axis columns included; those of a group have the same axes."""
    frames: list[pl.LazyFrame] = []
    for group in groups:
        metadata = part_metadata(group[0]) or {}
        check_schema(group[0], metadata)
        hive = any("=" in part for part in str(group[0]).split("/")[-5:-1])
        options: dict[str, str] = {}
        sources: list[Any] = []
        for file in group:
            if isinstance(file, str):
                opened, options = remote.source(file)
                sources.append(opened)
            else:
                sources.append(file)
        frame = pl.scan_parquet(
            sources,
            missing_columns="insert",
            extra_columns="ignore",
            hive_partitioning=hive,
            try_parse_hive_dates=False,
            storage_options=options or None,
        )
        axes = metadata.get(f"{PREFIX}axes")
        if axes is not None:
            have = set(frame.collect_schema().names())
            missing = [a for a in axes_from_json(axes) if set(a.columns) - have]
            if missing:
                frame = with_axes(frame, axes_from_json(axes))
        labels = [n for n, t in frame.collect_schema().items() if t == pl.Categorical or isinstance(t, pl.Enum)]
        frame = frame.with_columns(pl.col(labels).cast(pl.String)) if labels else frame
        frames.append(with_bands(with_derived(frame)))
    return frames[0] if len(frames) == 1 else pl.concat(frames, how="diagonal_relaxed")


def _by_axes(paths: Sequence[File]) -> list[list[File]]:
    """Files grouped by the sweep they belong to."""
    groups: dict[str, list[File]] = {}
    for path in paths:
        home = str(path).rpartition("/")[0]
        while "=" in home.rpartition("/")[2]:  # partitions of one table
            home = home.rpartition("/")[0]
        groups.setdefault(home, []).append(path)
    return list(groups.values())


def with_axes(frame: pl.LazyFrame, axes: Sequence[Axis]) -> pl.LazyFrame:
    """Axis columns put back from `point_id`: its digits, looked up."""
    stride = 1
    expressions: list[pl.Expr] = []
    for axis in reversed(axes):
        digit = (pl.col("point_id") // stride) % axis.size
        for key, values in axis.columns.items():
            column = pl.Series(key, values.tolist(), strict=False)
            expressions.append(pl.lit(column).gather(digit).alias(key))
        stride *= axis.size
    return frame.with_columns(list(reversed(expressions)))


def is_complete(path: Path, sha256: str) -> bool:
    """Whether a run of this configuration has ended here, and all of its files open still."""
    try:
        found = manifest(path)
    except ValueError:
        return False
    if found.get("config_sha256") != sha256:
        return False
    own = {str(file).rpartition("/")[2]: file for file in part_files(path)}
    wanted = [f"part-{i:05d}.parquet" for i in range(found.get("parts", 0))]
    if not set(wanted) <= set(own):
        return False
    return all(part_metadata(file) is not None for file in (path / "frontier.parquet", *(own[n] for n in wanted)))


def shard_of(path: Path) -> dict[str, Any] | None:
    """Which shard of which study a directory holds, begun or finished: index, count, study_sha256; else `None`."""
    file = path / "shard.json"
    if not file.is_file():
        return None
    try:
        found = json.loads(file.read_text())
    except ValueError:
        return None
    return found if isinstance(found, dict) and {"index", "count", "study_sha256"} <= set(found) else None


def completed(frame: pl.DataFrame) -> pl.DataFrame:
    """A table in memory with the columns that follow from its own, as `scan` has them."""
    return with_bands(with_derived(frame.lazy())).collect()


def with_bands(frame: pl.LazyFrame) -> pl.LazyFrame:
    """Columns of the 80 % band beside their best values, from the factors of the row (`sweep.columns.ends`).

    Tables of schema 1 have factors of the time per token alone: throughput has the inverse there, the first token none.
    """
    have = set(frame.collect_schema().names())

    def get(name: str) -> pl.Expr:
        if name.startswith("rate_") and name not in have:
            return 1.0 / pl.col("band_high" if name.endswith("low") else "band_low")
        return pl.col(name)

    found: dict[str, pl.Expr] = {}
    for best, band in BANDS.items():
        needs = NEEDS["speed" if band.by in ("rate", "cost") and "rate_band_low" not in have else band.by]
        if best in have and have.issuperset(needs):
            low, high = ends(band.by, pl.col(best), get, lambda d: d.clip(upper_bound=0.0))
            found |= {band.low: low, band.high: high}
    return frame.with_columns(e.alias(n) for n, e in found.items() if n not in have)


def manifest(path: Path) -> dict[str, Any]:
    """The manifest of a sweep, empty if the run has not ended."""
    file = path / "manifest.json"
    return read_manifest(file.read_text() if file.is_file() else None)


def read_manifest(text: str | None) -> dict[str, Any]:
    """A manifest from its text, empty if there is none."""
    loaded = json.loads(text) if text else {}
    return loaded if isinstance(loaded, dict) else {}
