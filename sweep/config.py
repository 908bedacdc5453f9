"""The boundary: configuration becomes records, and bad input stops here, in one line.

A `Library` finds records by name (`model/deepseek_v3`) in a list of configuration directories; a `Study` is a whole
configuration, checked: base records, grid, filters, what the frontier is and what is stored. Nothing beyond this module
sees YAML.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import Any, Optional

from omegaconf import OmegaConf

from sweep.accuracy import AccuracyConfig
from sweep.accuracy import check as check_accuracy
from sweep.errors import BadInput, closest
from sweep.machine import check_format
from sweep.point import RECORDS, names

GROUPS = tuple(RECORDS)
# what a record's file says besides its figures
ABOUT: dict[str, tuple[str, ...]] = {
    "model": ("name", "published", "release", "hf_id", "status", "source", "note"),
    "hardware": (
        "name",
        "vendor",
        "year",
        "unit",
        "generation",
        "status",
        "unverified",
        "price_date",
        "source",
        "note",
    ),
    "precision": (),
    "layout": (),
    "workload": (),
}
POSITIVE = {
    "model": ("n_layers", "d_model", "n_heads", "vocab", "ffn_matrices", "latent_ratio"),
    "hardware": ("hbm_bytes", "hbm_bytes_per_s", "bf16_flops", "fp8_flops", "fp4_flops", "domain", "link_bytes_per_s"),
    "precision": (),
    "layout": ("tpa", "kvp", "dpa", "tpf", "ep", "pp"),
    "workload": ("isl", "osl", "context", "batch"),
}
SHARES = ("overlap", "prefix_hit", "acceptance", "quantized_fraction")
SIGNED = ("extra_params",)
WHOLE = {
    "layout": ("tpa", "kvp", "dpa", "tpf", "ep", "pp", "redundant_slots", "microbatches", "prefill_chunk"),
    "workload": ("isl", "osl", "context", "batch"),
}
REQUIRED = {"model": ("n_layers", "d_model", "n_heads", "vocab")}


def conf_dir() -> Path:
    """Where the shipped configuration lies: inside an installed package, else beside it in a checkout."""
    inside = Path(__file__).resolve().parent / "conf"
    return inside if inside.is_dir() else Path(__file__).resolve().parent.parent / "conf"


def kind_of(record: type, name: str) -> str:
    """`Num`, `Flag` or `Name`: what a field holds."""
    return str(next(f.type for f in dataclasses.fields(record) if f.name == name))


_TYPES: dict[str, Any] = {"Num": Optional[float], "Flag": Optional[bool], "Name": Optional[str]}  # noqa: UP045


@functools.cache
def schema(group: str) -> type:
    """A record as a structured configuration: typed fields that may be null, and what its file says about it."""
    record = RECORDS[group]
    fields: list[tuple[str, Any, Any]] = [
        (f.name, _TYPES[str(f.type)], field(default=f.default)) for f in dataclasses.fields(record)
    ]
    fields += [(name, Any, field(default=None)) for name in ABOUT[group]]
    return make_dataclass(f"{group.capitalize()}Config", fields)


@dataclass
class StoreConfig:
    """What is written, and where."""

    rows: str = "auto"  # all | feasible | frontier | auto (all up to `auto_rows` points, else frontier)
    auto_rows: int = 20_000_000
    axes: bool = True  # a column per swept key; false: only point_id, half the size
    compression: str = "zstd"
    part_rows: int = 4_000_000


@dataclass
class FrontierConfig:
    """Which points are on the frontier."""

    objectives: Any = field(default_factory=lambda: ["accuracy", "tok_s_gpu", "tok_s_user"])
    by: Any = field(default_factory=lambda: ["hardware"])
    where: Optional[str] = None  # noqa: UP045
    epsilon: float = 0.02  # relative: points of a report closer than this in every objective are thinned


@functools.cache
def root_schema() -> type:
    """The whole configuration as a structured configuration."""
    fields: list[tuple[str, Any, Any]] = [(g, schema(g), field(default_factory=schema(g))) for g in GROUPS]
    fields += [
        ("accuracy", AccuracyConfig, field(default_factory=AccuracyConfig)),
        ("efficiency", Any, field(default=None)),
        ("grid", Any, field(default_factory=dict)),
        ("zip", Any, field(default_factory=dict)),
        ("where", Any, field(default_factory=list)),
        ("frontier", FrontierConfig, field(default_factory=FrontierConfig)),
        ("store", StoreConfig, field(default_factory=StoreConfig)),
        ("title", Optional[str], field(default=None)),  # noqa: UP045
        ("resume", Optional[str], field(default=None)),  # noqa: UP045
        ("output", Optional[str], field(default=None)),  # noqa: UP045
        ("against", Any, field(default=None)),
        ("overlay", Any, field(default_factory=dict)),
        ("chart", Optional[str], field(default=None)),  # noqa: UP045
        ("data", Optional[str], field(default=None)),  # noqa: UP045
        ("fit", Optional[str], field(default=None)),  # noqa: UP045
        ("out", Optional[str], field(default=None)),  # noqa: UP045
        ("progress", Optional[bool], field(default=None)),  # noqa: UP045
        ("report", bool, field(default=True)),
    ]
    return make_dataclass("SweepConfig", fields)


@dataclass(frozen=True, kw_only=True)
class Record:
    """One record with a name: figures as plain values, and what its file says about them."""

    group: str
    id: str
    values: dict[str, Any]
    about: dict[str, Any]

    @property
    def status(self) -> str:
        """How well the record is known: confirmed, announced, estimated, hypothetical ..."""
        return str(self.about.get("status") or "unknown")

    @property
    def lineage(self) -> dict[str, str | None]:
        """What a machine's constants are looked up by: its chip generation and its maker."""
        return {k: None if self.about.get(k) is None else str(self.about[k]) for k in ("generation", "vendor")}


class Library:
    """Records by group and name, from configuration directories in order."""

    def __init__(self, directories: Sequence[Path]):
        self.directories = [Path(d) for d in directories]

    def choices(self, group: str) -> list[str]:
        """Names of all records of a group."""
        found = {p.stem for d in self.directories for p in (d / group).glob("*.yaml")}
        return sorted(found)

    def raw(self, group: str, name: str) -> dict[str, Any]:
        """The content of a record's file."""
        for directory in self.directories:
            path = directory / group / f"{name}.yaml"
            if path.is_file():
                loaded = OmegaConf.to_container(OmegaConf.load(path))
                assert isinstance(loaded, dict)
                return {str(k): v for k, v in loaded.items() if k != "defaults"}
        raise BadInput(f"{group}={name}: no such {group}; {closest(name, self.choices(group))}")

    def record(self, group: str, name: str) -> Record:
        """A record by name, checked."""
        return make_record(group, name, self.raw(group, name))


def make_record(group: str, name: str, raw: Mapping[str, Any]) -> Record:
    """A record from a mapping: unknown keys, wrong types and impossible numbers are refused."""
    record = RECORDS[group]
    known = names(record)
    values: dict[str, Any] = {f.name: f.default for f in dataclasses.fields(record)}
    about: dict[str, Any] = {}
    for key, value in raw.items():
        if key in known:
            values[key] = check_value(group, key, value)
        elif key in ABOUT[group]:
            about[key] = value
        else:
            raise BadInput(f"{group}.{key}: no such key; {closest(key, known)}")
    return Record(group=group, id=name, values=values, about=about)


def check_value(group: str, key: str, value: Any) -> Any:
    """A value of a field if it can be one."""
    where = f"{group}.{key}={value}"
    if value is None:
        if key in REQUIRED.get(group, ()):
            raise BadInput(f"{where}: must be given")
        return None
    kind = kind_of(RECORDS[group], key)
    if kind == "Name":
        if key == "wo_shard":
            if value not in ("n", "tpa"):
                raise BadInput(f"{where}: allowed are n, tpa")
            return value
        return check_format(str(value), f"{group}.{key}")
    if kind == "Flag":
        if not isinstance(value, bool):
            raise BadInput(f"{where}: allowed are true, false")
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadInput(f"{where}: must be a number")
    number = float(value)
    if not math.isfinite(number):
        raise BadInput(f"{where}: must be a finite number")
    if key in POSITIVE[group] and number <= 0:
        raise BadInput(f"{where}: must be greater than 0")
    if number < 0 and key not in SIGNED:
        raise BadInput(f"{where}: must not be negative")
    if key in SHARES and number > 1:
        raise BadInput(f"{where}: must lie between 0 and 1")
    if key in WHOLE.get(group, ()) and number != math.floor(number):
        raise BadInput(f"{where}: must be a whole number; nearest: {math.floor(number)}, {math.ceil(number)}")
    return number


def check_hardware(values: Mapping[str, Any], name: str) -> None:
    """Refuse a sparse peak given as a dense one where it shows: wider math is never faster than narrower."""
    order = ("fp32_flops", "bf16_flops", "fp8_flops", "fp4_flops")
    given = [(k, values[k]) for k in order if values.get(k) is not None]
    for (wide, slow), (narrow, fast) in itertools.pairwise(given):
        if fast < slow * 0.999:
            raise BadInput(
                f"hardware.{wide}={slow:g}: more than hardware.{narrow}={fast:g} ({name}); rates are dense, "
                "a sparse peak is twice the dense one"
            )


# how a pipeline runs, not what it computes
OPTIONS = ("resume", "output", "progress", "report", "against", "chart", "data", "out", "fit")


@dataclass(frozen=True, kw_only=True)
class Study:
    """A whole configuration, checked."""

    base: dict[str, Record]
    efficiency: dict[str, Any]
    efficiency_id: str
    accuracy: AccuracyConfig
    choices: dict[str, str]  # which file was chosen in each group
    grid: dict[str, Any]
    zip: dict[str, Any]
    where: list[str]
    frontier: FrontierConfig
    store: StoreConfig
    title: str
    library: Library
    resolved: dict[str, Any]  # the configuration as plain data, for the record


def plain(node: Any) -> Any:
    """Configuration nodes as plain lists, dicts and values."""
    return OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node


def study(config: Mapping[str, Any], choices: Mapping[str, str], directories: Sequence[Path]) -> Study:
    """A configuration as composed, checked.

    Args:
        config: the composed configuration as plain data (see `plain`).
        choices: which file was chosen in each group.
        directories: configuration directories, the user's own first.
    Raises: `BadInput`.
    """
    library = Library(directories)
    base: dict[str, Record] = {}
    for group in GROUPS:
        name = choices.get(group) or "custom"
        record = make_record(group, name, config[group])
        if group == "hardware":
            record = mark_overrides(record, library)
            check_hardware(record.values, name)
        base[group] = record
    efficiency = config.get("efficiency")
    if not isinstance(efficiency, dict) or "kernels" not in efficiency:
        raise BadInput(f"efficiency={efficiency}: choose a preset; {closest('', library.choices('efficiency'))}")
    settings = AccuracyConfig(**config["accuracy"])
    check_accuracy(settings)
    where = config.get("where") or []
    where = [where] if isinstance(where, str) else list(where)
    return Study(
        base=base,
        efficiency=dict(efficiency),
        efficiency_id=choices.get("efficiency") or str(efficiency.get("name")),
        accuracy=settings,
        choices=dict(choices),
        grid=dict(config.get("grid") or {}),
        zip=dict(config.get("zip") or {}),
        where=[str(w) for w in where],
        frontier=FrontierConfig(**config["frontier"]),
        store=StoreConfig(**config["store"]),
        title=str(config.get("title") or "sweep"),
        library=library,
        resolved={k: v for k, v in config.items() if k not in OPTIONS},
    )


def mark_overrides(record: Record, library: Library) -> Record:
    """A machine with a changed figure is hypothetical, and says which figures are not its maker's."""
    if record.id not in library.choices(record.group):
        return record
    own = library.record(record.group, record.id).values
    changed = sorted(k for k, v in record.values.items() if v != own.get(k))
    if not changed:
        return record
    return dataclasses.replace(record, about={**record.about, "status": "hypothetical", "overridden": changed})


def as_record(record: Record) -> Any:
    """The typed record of a group, for code that wants attributes."""
    return RECORDS[record.group](**record.values)
