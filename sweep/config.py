"""The boundary: configuration becomes records, and bad input stops here, in one line.

A `Library` finds records by name (`model/deepseek_v3`) in a list of configuration directories; a `Study` is a whole
configuration, checked: base records, grid, filters, what the frontier is and what is stored. Nothing beyond this module
sees YAML.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
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
from sweep.hf import hf_name, model_from_hf
from sweep.machine import check_format
from sweep.point import PHI_MOST, RECORDS, names
from sweep.shard import Shard
from sweep.shard import shard as make_shard
from sweep.tiers import Placement, check_memory, check_placement

GROUPS = tuple(RECORDS)
# what a record's file says besides its figures
ABOUT: dict[str, tuple[str, ...]] = {
    "model": ("name", "published", "release", "hf_id", "status", "source", "note", "path", "scale"),
    "hardware": (
        "name",
        "vendor",
        "year",
        "unit",
        "generation",
        "status",
        "unverified",
        "price_date",
        "prices",
        "powers",
        "source",
        "note",
        "memory",
        "scale",
        "price",
        "power",
    ),
    "precision": (),
    "layout": (),
    "workload": (),
}
# what a record's keys may say about how to make it, and what may be swept on top of any record; see `sweep.family`
SETTINGS: dict[str, tuple[str, ...]] = {"model": ("scale",), "hardware": ("scale", "price", "power")}
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


MAX = "max"  # of workload.batch: as many as fit and keep the limits; an infinite number beyond the boundary
_TYPES: dict[str, Any] = {"Num": Optional[float], "Flag": Optional[bool], "Name": Optional[str]}  # noqa: UP045


@functools.cache
def schema(group: str) -> type:
    """A record as a structured configuration: typed fields that may be null, and what its file says about it."""
    record = RECORDS[group]
    fields: list[tuple[str, Any, Any]] = [
        (f.name, Any if f.name == "batch" else _TYPES[str(f.type)], field(default=f.default))
        for f in dataclasses.fields(record)
    ]
    fields += [(name, Any, field(default=None)) for name in ABOUT[group]]
    return make_dataclass(f"{group.capitalize()}Config", fields)


@dataclass
class StoreConfig:
    """What is written, and where."""

    rows: str = "auto"  # all | feasible | frontier | auto (all up to `auto_rows` points, else frontier)
    auto_rows: int = 20_000_000
    axes: bool = True  # a column per swept key; false: only point_id, half the size
    columns: Any = None  # of stored points: all if not given, core, or a list of names; a frontier has all
    compression: str = "zstd"
    part_rows: int = 4_000_000


@dataclass
class FrontierConfig:
    """Which points are on the frontier."""

    objectives: Any = field(default_factory=lambda: ["accuracy", "tok_s_gpu", "tok_s_user"])
    by: Any = field(default_factory=lambda: ["hardware"])
    where: Optional[str] = None  # noqa: UP045
    epsilon: Any = None  # nats of loss within which designs tie, or `ties`; what ties is kept in epsilon.parquet
    robust: Any = (
        "auto"  # mark points that stay on it under other accuracy laws: auto (where it is cheap) | true | false
    )


@dataclass
class ShardConfig:
    """Which slice of the grid is evaluated: rows index, index + count, ...; see `sweep.shard`."""

    index: int = 0
    count: int = 1


SERVING_MODES = ("decode", "aggregated", "disaggregated")


@dataclass
class ServingConfig:
    """Who prefills: nobody (decode alone), the replica that decodes, or a pool of its own."""

    mode: str = "decode"
    # aggregated: share of the prefill work that stands between decode steps; null: that of the preset, else all of it
    phi: Optional[float] = None  # noqa: UP045
    gpus: int = 72  # disaggregated: GPUs that both pools may have together
    per: str = "gpu"  # disaggregated: what the match gets most output tokens from
    prefill: Any = field(default_factory=dict)  # disaggregated: groups of the grid that differ in the prefill pool


def check_serving(s: ServingConfig) -> ServingConfig:
    """The settings themselves if they can be.

    Raises: `BadInput`.
    """
    if s.mode not in SERVING_MODES:
        raise BadInput(f"serving.mode={s.mode}: allowed are {', '.join(SERVING_MODES)}")
    if s.phi is not None and not 0 < s.phi <= PHI_MOST:
        raise BadInput(f"serving.phi={s.phi:g}: must be greater than 0 and at most {PHI_MOST:g}")
    if s.gpus < 2:
        raise BadInput(f"serving.gpus={s.gpus}: two pools need at least 2 GPUs; nearest: 2")
    if s.per not in ("gpu", "usd", "watt"):
        raise BadInput(f"serving.per={s.per}: allowed are gpu, usd, watt")
    for key in s.prefill or {}:
        if key not in ("hardware", "layout"):
            raise BadInput(f"serving.prefill.{key}: the pools may differ in hardware and layout")
    return s


@functools.cache
def root_schema() -> type:
    """The whole configuration as a structured configuration."""
    fields: list[tuple[str, Any, Any]] = [(g, schema(g), field(default_factory=schema(g))) for g in GROUPS]
    fields += [
        ("accuracy", AccuracyConfig, field(default_factory=AccuracyConfig)),
        ("efficiency", Any, field(default=None)),
        ("placement", Any, field(default=None)),
        ("serving", ServingConfig, field(default_factory=ServingConfig)),
        ("grid", Any, field(default_factory=dict)),
        ("zip", Any, field(default_factory=dict)),
        ("where", Any, field(default_factory=list)),
        ("frontier", FrontierConfig, field(default_factory=FrontierConfig)),
        ("store", StoreConfig, field(default_factory=StoreConfig)),
        ("float64", bool, field(default=False)),  # compute and store in float64
        ("shard", ShardConfig, field(default_factory=ShardConfig)),
        ("title", Optional[str], field(default=None)),  # noqa: UP045
        ("resume", Optional[str], field(default=None)),  # noqa: UP045
        ("output", Optional[str], field(default=None)),  # noqa: UP045
        ("against", Any, field(default=None)),
        ("gap", Any, field(default_factory=dict)),
        ("overlay", Any, field(default_factory=dict)),
        ("chart", Optional[str], field(default=None)),  # noqa: UP045
        ("data", Optional[str], field(default=None)),  # noqa: UP045
        ("fit", Optional[str], field(default=None)),  # noqa: UP045
        ("out", Optional[str], field(default=None)),  # noqa: UP045
        ("progress", Optional[bool], field(default=None)),  # noqa: UP045
        ("report", bool, field(default=True)),
        ("claim", Any, field(default=None)),
        ("check", Any, field(default=None)),
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
    def lineage(self) -> dict[str, Any]:
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
        """A record by name, checked; a model's file may point to the `config.json` that has its shape."""
        raw = self.raw(group, name)
        if group == "model" and "path" in raw:
            if raw["path"] is None:
                raise BadInput(
                    f"model={name}: reads a file; say model={name} model.path=FILE, or {{hf: FILE}} in a grid"
                )
            return from_file(raw)[0]
        record = make_record(group, name, raw)
        if group == "hardware":
            check_hardware(record.values, name)
            check_as_sold(record)
        return record

    def entries(self, group: str) -> list[str]:
        """Names of the records that have figures of their own: all but what reads them from a file."""
        return [name for name in self.choices(group) if group != "model" or "path" not in self.raw(group, name)]


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
            if key == "memory":
                check_memory(value, group)
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
    if (group, key) == ("workload", "batch") and value in (MAX, math.inf):
        return math.inf
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadInput(f"{where}: must be a number" + (f" or {MAX}" if key == "batch" else ""))
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


# What a generation can do at most, dense and in one direction: bf16 flop per processor and cycle (NVIDIA's white
# papers of A100 and H100; B200: 2.25e15 / 148 / 1.85e9), and the scale-up link per GPU. What is beyond is a figure that
# vendors print with sparsity or for both directions.
FLOP_PER_CYCLE = {"ampere": 2048, "hopper": 4096, "blackwell": 8192}
CLOCK_HZ = 2.3e9
LINK_BYTES_PER_S = {
    "ampere": 3e11,
    "hopper": 4.5e11,
    "blackwell": 9e11,
    "rubin": 1.8e12,
    "cdna3": 4.48e11,
    "cdna4": 5.38e11,
}
TWICE = ("fp32_flops", "bf16_flops", "fp8_flops", "int8_flops", "fp4_flops", "link_bytes_per_s")


def check_as_sold(record: Record) -> None:
    """Refuse a machine's own file where it has a sparse peak or both directions of a link. Raises: `BadInput`."""
    generation = str(record.about.get("generation") or "")
    rate, n_sm, link = (record.values.get(k) for k in ("bf16_flops", "n_sm", "link_bytes_per_s"))
    per_cycle = FLOP_PER_CYCLE.get(generation)
    if rate and n_sm and per_cycle and rate > 1.01 * n_sm * per_cycle * CLOCK_HZ:
        raise BadInput(
            f"hardware.bf16_flops={rate:g}: {record.id} would run at {rate / n_sm / per_cycle / 1e9:.1f} GHz; rates "
            "are dense, a sparse peak is twice the dense one"
        )
    most = LINK_BYTES_PER_S.get(generation)
    if link and most and link > 1.01 * most:
        raise BadInput(
            f"hardware.link_bytes_per_s={link:g}: more than {most:g} of {generation} ({record.id}); bandwidths are "
            "of one direction, vendors print both"
        )


def check_override(record: Record, own: Mapping[str, Any]) -> None:
    """Refuse a figure that is twice the entry's: a sparse peak, or both directions of a link. Raises: `BadInput`."""
    for key in TWICE:
        value, sold = record.values.get(key), own.get(key)
        if value and sold and abs(value / sold - 2) < 0.01:
            what = "a sparse peak is twice the dense one" if "flops" in key else "both directions are twice the one"
            raise BadInput(
                f"hardware.{key}={value:g}: twice the {sold:g} of {record.id}; {what}. For a machine twice as fast say "
                f"hardware.scale.{key}=2"
            )


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
OPTIONS = ("resume", "output", "progress", "report", "against", "chart", "data", "out", "fit", "claim", "check")


@dataclass(frozen=True, kw_only=True)
class Study:
    """A whole configuration, checked."""

    base: dict[str, Record]
    efficiency: dict[str, Any]
    efficiency_id: str
    placement: Placement
    accuracy: AccuracyConfig
    serving: ServingConfig
    choices: dict[str, str]  # which file was chosen in each group
    grid: dict[str, Any]
    zip: dict[str, Any]
    where: list[str]
    frontier: FrontierConfig
    store: StoreConfig
    shard: Shard
    title: str
    library: Library
    resolved: dict[str, Any]  # the configuration as plain data, for the record
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)  # of the base records: `scale.d_model`, `price`
    on_top: dict[str, dict[str, Any]] = field(default_factory=dict)  # axes of settings, over every record of a group
    unscaled: dict[str, Record] = field(default_factory=dict)  # base records before their settings
    float64: bool = False  # points are computed and stored in float64


def plain(node: Any) -> Any:
    """Configuration nodes as plain lists, dicts and values."""
    return OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node


def study(
    config: Mapping[str, Any], choices: Mapping[str, str], directories: Sequence[Path], given: Sequence[str] = ()
) -> Study:
    """A configuration as composed, checked.

    Args:
        config: the composed configuration as plain data (see `plain`).
        choices: which file was chosen in each group.
        directories: configuration directories, the user's own first.
        given: keys that the command line names; they outrank what a model's own file says.
    Raises: `BadInput`.
    """
    library = Library(directories)
    base: dict[str, Record] = {}
    rules: dict[str, dict[str, Any]] = {}
    files: dict[str, Any] = {}  # what was read from elsewhere, for the record
    grid, on_top = split_grid(dict(config.get("grid") or {}))
    listed = grid.get("model")
    for entry in listed if isinstance(listed, list) else []:
        if isinstance(entry, Mapping) and entry.get("hf") is not None:
            files[str(entry["hf"])] = model_from_hf(Path(str(entry["hf"])).expanduser())
    for group in GROUPS:
        name = choices.get(group) or "custom"
        raw = dict(config[group])
        rules[group] = {}
        for key in SETTINGS.get(group, ()):
            rules[group] |= flat(key, raw.pop(key, None))
        if group == "model" and raw.get("path") is not None:
            if name in library.entries(group):
                raise BadInput(f"model.path={raw['path']}: {name} has a shape of its own; say model=hf")
            base[group], files[str(raw["path"])] = from_file(raw, given)
            continue
        if group == "model" and name == "hf":
            raise BadInput("model.path=null: name a config.json, or the directory that holds one")
        record = make_record(group, name, raw)
        if group in SETTINGS:
            record = mark_overrides(record, library)
        if group == "hardware":
            check_hardware(record.values, name)
        base[group] = record
    efficiency = config.get("efficiency")
    if not isinstance(efficiency, dict) or "kernels" not in efficiency:
        raise BadInput(f"efficiency={efficiency}: choose a preset; {closest('', library.choices('efficiency'))}")
    chosen = choices.get("placement") or "hbm"
    settings, contents = accuracy_settings(config["accuracy"], directories)
    check_accuracy(settings)
    where = config.get("where") or []
    where = [where] if isinstance(where, str) else list(where)
    return Study(
        base=base,
        efficiency=dict(efficiency),
        efficiency_id=choices.get("efficiency") or str(efficiency.get("name")),
        placement=check_placement(config.get("placement") or library.raw("placement", "hbm"), chosen),
        accuracy=settings,
        serving=check_serving(ServingConfig(**(config.get("serving") or {}))),
        choices=dict(choices),
        grid=grid,
        zip=dict(config.get("zip") or {}),
        where=[str(w) for w in where],
        frontier=FrontierConfig(**config["frontier"]),
        store=StoreConfig(**config["store"]),
        shard=make_shard(**(config.get("shard") or {"index": 0, "count": 1})),
        title=str(config.get("title") or "sweep"),
        library=library,
        resolved={k: v for k, v in config.items() if k not in OPTIONS} | contents | ({"files": files} if files else {}),
        settings=rules,
        on_top=on_top,
        float64=bool(config.get("float64")),
    )


def accuracy_settings(
    config: Mapping[str, Any], directories: Sequence[Path]
) -> tuple[AccuracyConfig, dict[str, dict[str, str]]]:
    """Settings of the accuracy axis with the paths of its files, and what the files hold, as hashes.

    A file is looked for as it is given, then in `accuracy/` of each configuration directory, then in the directory.
    Raises: `BadInput` for a file that is nowhere.
    """
    found: dict[str, str] = {}
    hashes: dict[str, str] = {}
    for key in ("file", "table"):
        if given := config.get(key):
            places = [Path(given).expanduser(), *(d / sub / given for d in directories for sub in ("accuracy", ""))]
            path = next((p for p in places if p.is_file()), None)
            if path is None:
                raise BadInput(f"accuracy.{key}={given}: no such file, nor in accuracy/ of a configuration directory")
            found[key] = str(path.resolve())
            hashes[key] = hashlib.sha256(path.read_bytes()).hexdigest()
    settings = AccuracyConfig(**{**config, **found})
    return settings, ({"accuracy_files": hashes} if hashes else {})


def flat(key: str, value: Any) -> dict[str, Any]:
    """A setting by its dotted name; a mapping is as many settings as it has entries, null none."""
    if isinstance(value, Mapping):
        return {f"{key}.{k}": v for k, v in value.items()}
    return {} if value is None else {key: value}


def split_grid(grid: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Axes of fields, nested by group, and axes of settings, which multiply every record of a group.

    `model.scale.d_model: [...]` may stand with its dots or nested, beside a list of models too.
    """
    fields: dict[str, Any] = {}
    on_top: dict[str, dict[str, Any]] = {group: {} for group in SETTINGS}
    for key in sorted(grid, key=lambda k: "." in str(k)):
        group, dot, name = str(key).partition(".")
        if dot:
            setting = group in SETTINGS and name.partition(".")[0] in SETTINGS[group]
            if not setting and not isinstance(fields.get(group, {}), dict):
                raise BadInput(f"grid.{key}: grid.{group} is a list of records; give an entry a grid of its own")
            spec: dict[str, Any] = {name.partition(".")[0]: grid[key]}
            if "." in name:
                spec = {name.partition(".")[0]: {name.partition(".")[2]: grid[key]}} if setting else {name: grid[key]}
        elif group in SETTINGS and isinstance(grid[key], Mapping):
            spec = dict(grid[key])
        else:
            fields[group] = grid[key]
            continue
        for setting_name in SETTINGS.get(group, ()):
            if setting_name in spec:
                value = spec.pop(setting_name)
                on_top[group] |= flat(setting_name, value) if setting_name == "scale" else {setting_name: value}
        if spec or group not in SETTINGS:
            fields[group] = {**fields.get(group, {}), **spec}
    return fields, {group: axes for group, axes in on_top.items() if axes}


def from_file(raw: Mapping[str, Any], given: Sequence[str] = ()) -> tuple[Record, dict[str, Any]]:
    """A model whose shape stands in a Hugging Face `config.json`, and what the file says.

    Args:
        raw: the model's keys, with `path`; fields that are not at their defaults outrank the file.
        given: keys that the command line names, `model.d_ff`: they outrank it even at their defaults.
    """
    path = Path(str(raw["path"])).expanduser()
    read = model_from_hf(path)
    usual = {f.name: f.default for f in dataclasses.fields(RECORDS["model"])}
    own = {k: v for k, v in raw.items() if k in usual and (v != usual[k] or f"model.{k}" in given)}
    changed = sorted(k for k, v in own.items() if v != read.get(k, usual[k]))
    about = {
        "name": hf_name(path),
        "status": "hypothetical" if changed else "read",
        "source": f"read from {path}",
        "path": str(path),
    }
    record = make_record("model", hf_name(path), {**read, **own, **about})
    return record, read


def mark_overrides(record: Record, library: Library) -> Record:
    """A model or machine with a changed figure is hypothetical, and says which figures are not its maker's."""
    if record.id not in library.choices(record.group):
        return record
    own = library.record(record.group, record.id).values
    changed = sorted(k for k, v in record.values.items() if v != own.get(k))
    if not changed:
        return record
    if record.group == "hardware":
        check_override(record, own)
    return dataclasses.replace(record, about={**record.about, "status": "hypothetical", "overridden": changed})


def as_record(record: Record) -> Any:
    """The typed record of a group, for code that wants attributes."""
    return RECORDS[record.group](**record.values)
