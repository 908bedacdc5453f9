"""Disaggregated serving as a sweep: the prefill pool, the decode pool, and their match; written like any other sweep.

A directory of such a sweep holds `decode/` and `prefill/`, each a sweep of its own, `points/` with every match worth
having, and the frontier of those. `sweep.match` does the pairing and can be asked again for another fleet.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import polars as pl

from sweep import store
from sweep.columns import BY_NAME, DERIVED, DERIVED_COLUMNS, MATCH_COLUMNS, SCHEMA_VERSION, axis_metadata
from sweep.config import FrontierConfig, StoreConfig, Study
from sweep.economics import with_derived
from sweep.errors import BadInput, closest
from sweep.frontier import frontier, parse_objectives
from sweep.match import match, pairing_keys
from sweep.run import Plan, Progress, Result, Run, plan
from sweep.space import Space

# columns that follow from others: of a match they follow from its own
FOLLOWING = [c.name for c in (*DERIVED, *DERIVED_COLUMNS)]
MOST_GROUPS = 200_000  # frontiers of a pool kept at a time


@dataclasses.dataclass(frozen=True)
class Pools:
    """Two sweeps before they start."""

    study: Study
    prefill: Plan
    decode: Plan
    sha256: str


def pools(study: Study) -> Pools:
    """The sweeps that disaggregated serving is made of.

    Raises: `BadInput` as for any sweep, and for a grid with more sizes of pools than frontiers can be kept.
    """
    for objective in parse_objectives(study.frontier.objectives):
        if objective.column not in BY_NAME:
            known = [*BY_NAME]
            raise BadInput(
                f"frontier.objectives={objective.column}: no such column; {closest(objective.column, known)}"
            )
    own = study.serving.prefill or {}
    grid = {**study.grid, **{k: v for k, v in own.items() if k != "layout"}}
    if "layout" in own:
        both = isinstance(own["layout"], Mapping) and isinstance(grid.get("layout"), Mapping)
        grid["layout"] = {**grid["layout"], **own["layout"]} if both else own["layout"]
    load = grid.get("workload")
    if isinstance(load, Mapping):
        grid["workload"] = {**load, "batch": [1]}
    prefill = _pool(
        dataclasses.replace(study, grid=grid, base={**study.base, "workload": _with(study, batch=1.0)}),
        "prefill",
        ["ttft_s:min", "prefill_req_per_s:max"],
        "max_batch >= layout.dpa * layout.pp",
    )
    # a decode pool has no first token of its own: its limit is the prefill pool's
    decode = _pool(
        dataclasses.replace(study, base={**study.base, "workload": _with(study, ttft_max_s=None)}),
        "decode",
        ["tok_s_gpu:max", "tok_s_user:max"],
        None,
    )
    return Pools(study=study, prefill=prefill, decode=decode, sha256=store.config_hash(study.resolved))


def _with(study: Study, **values: Any) -> Any:
    record = study.base["workload"]
    return dataclasses.replace(record, values={**record.values, **values})


def _pool(study: Study, name: str, objectives: list[str], where: str | None) -> Plan:
    """One pool's sweep: per machine, model and load, and per size of replica, the frontier of rate and latency."""
    quiet = dataclasses.replace(
        study,
        frontier=FrontierConfig(objectives=objectives, by=[], where=where),
        store=StoreConfig(rows="frontier", compression=study.store.compression),
        title=f"{study.title}: {name} pool",
        resolved={**study.resolved, "pool": name},
    )
    space = plan(quiet).space
    by = [k for axis in space.axes if axis.name not in ("layout", "batch") for k in axis.columns]
    by += ["layout.gpus", "layout.dpa"]
    count = _sizes(space) * space.n_models * len(space.machines) * space.n_contexts
    if count > MOST_GROUPS:
        raise BadInput(
            f"serving=disaggregated: {count:,} pools of different model, machine, load and size; allowed are "
            f"{MOST_GROUPS:,}: fewer models or layout.gpus"
        )
    return plan(dataclasses.replace(quiet, frontier=FrontierConfig(objectives=objectives, by=by, where=where)))


def _sizes(space: Space) -> int:
    layout = space.layout
    gpus = layout.tpa * layout.kvp * layout.dpa * layout.pp
    return len(set(zip(gpus.tolist(), layout.dpa.tolist(), strict=True)))


def execute(
    both: Pools, directory: Path, *, config_yaml: str, report: Callable[[Progress], None] | None = None
) -> Result:
    """Run both pools, match them, write points, frontier and manifest; a complete pool is taken over."""
    started = time.perf_counter()
    directory.mkdir(parents=True, exist_ok=True)
    store.write_atomic(directory / "config.yaml", config_yaml)
    store.write_atomic(directory / "config.sha256", both.sha256 + "\n")
    manifests: dict[str, dict[str, Any]] = {}
    for name, planned in (("prefill", both.prefill), ("decode", both.decode)):
        where = directory / name
        done = store.manifest(where)
        if done.get("config_sha256") != planned.sha256 or not (where / "frontier.parquet").is_file():
            done = Run(planned, where, config_yaml=config_yaml, report=report).execute().manifest
        manifests[name] = done
    study = both.study
    limit = study.base["workload"].values["ttft_max_s"]
    points = paired(
        directory / "prefill",
        directory / "decode",
        gpus=study.serving.gpus,
        per=study.serving.per,
        ttft_max_s=float("inf") if limit is None else float(limit),
        same_hardware="hardware" not in (study.serving.prefill or {}),
    )
    by = [study.frontier.by] if isinstance(study.frontier.by, str) else list(study.frontier.by or [])
    return write(
        points,
        found(points, study.frontier.objectives, by, study.frontier.where),
        directory,
        decode=directory / "decode",
        seconds=time.perf_counter() - started,
        manifests=manifests,
        more={
            "title": study.title,
            "config_sha256": both.sha256,
            "efficiency": study.efficiency_id,
            "choices": {k: v for k, v in study.choices.items() if "/" not in k},
            "gpus_at_most": study.serving.gpus,
        },
    )


@dataclasses.dataclass(frozen=True)
class Found:
    """A frontier of matches, and of what."""

    frame: pl.DataFrame
    objectives: list[str]
    by: list[str]


def found(points: pl.DataFrame, objectives: Any, by: list[str], where: str | None = None) -> Found:
    """The frontier of matches. Columns of `by` that the matches do not have are constant and left out."""
    goals = [str(o) for o in parse_objectives(objectives)]
    groups = [k for k in by if k in points.columns]
    frame = frontier(with_derived(points.lazy()).collect(), goals, groups, where, columns=points.columns)
    return Found(frame=frame, objectives=goals, by=groups)


def paired(
    prefill: Path,
    decode: Path,
    *,
    gpus: int,
    per: str = "gpu",
    ttft_max_s: float = float("inf"),
    same_hardware: bool = True,
) -> pl.DataFrame:
    """The matches of two stored pools, numbered.

    Raises: `BadInput` where a table is not one of pools, or the two are of different models or loads.
    """
    tables, axes = {}, {}
    for name, path in (("prefill", prefill), ("decode", decode)):
        table = store.scan(path, "frontier").drop(FOLLOWING, strict=False).collect()
        for column in ("kv_transfer_s", "prefill_req_per_s", "layout.gpus", "layout.dpa"):
            if column not in table.columns:
                raise BadInput(f"{path}: no column {column}; sweep with serving=disaggregated")
        tables[name] = table
        metadata = store.part_metadata(store.files(path, "frontier")[0]) or {}
        axes[name] = [k for a in json.loads(metadata.get(f"{store.PREFIX}axes", "[]")) for k in a["columns"]]
    same_constants(prefill, decode)
    keys = pairing_keys(tables["prefill"], tables["decode"], axes["decode"])
    if same_hardware:
        keys += [k for k in axes["decode"] if k.split(".")[0] == "hardware" and k in tables["prefill"].columns]
    matched = match(tables["prefill"], tables["decode"], gpus=gpus, keys=keys, per=per, ttft_max_s=ttft_max_s)
    numbered: pl.DataFrame = matched.with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias("point_id"))
    return numbered.with_columns(pl.lit("disaggregated").alias("serving"))


def same_constants(prefill: Path, decode: Path) -> None:
    """Refuse pools of different models, formats or loads that neither table has as a column."""
    a, b = (store.manifest(path).get("choices") or {} for path in (prefill, decode))
    for key in ("model", "precision", "workload", "efficiency"):
        if key in a and key in b and a[key] != b[key]:
            raise BadInput(
                f"{prefill}: {key}={a[key]}, but {decode} has {key}={b[key]}; two pools serve one model and load"
            )


def write(
    points: pl.DataFrame,
    front: Found,
    directory: Path,
    *,
    decode: Path,
    seconds: float,
    manifests: Mapping[str, Mapping[str, Any]],
    more: Mapping[str, Any],
) -> Result:
    """Write matches as `points/`, their frontier, and a manifest, each complete or not at all.

    Args:
        points: the matches.
        front: their frontier.
        directory: where to.
        decode: the sweep of the decode pool, whose units and configuration the files take over.
        seconds: that it took.
        manifests: of both pools.
        more: what the manifest says besides.
    """
    files = store.files(decode, "frontier")
    inherited = store.part_metadata(files[0]) or {}
    drop = (f"{store.PREFIX}axes", f"{store.PREFIX}counts", f"{store.PREFIX}part")
    metadata = {k: v for k, v in inherited.items() if k not in drop}
    for column in MATCH_COLUMNS:
        metadata |= {f"unit.{column.name}": column.unit, f"doc.{column.name}": column.doc}
    for name in points.columns:
        if name.startswith("prefill."):
            about = axis_metadata(name)
            metadata |= {f"unit.{name}": about["unit"], f"doc.{name}": about["doc"]}
    (directory / "points").mkdir(parents=True, exist_ok=True)
    for path, frame in (
        (directory / "points" / "part-00000.parquet", points),
        (directory / "frontier.parquet", front.frame),
    ):
        temporary = path.with_name(f".{path.name}.tmp")
        try:
            frame.write_parquet(temporary, metadata=metadata)
            temporary.replace(path)
        except OSError as error:
            raise BadInput(f"{path}: cannot be written ({error.strerror or error})") from error
        finally:
            temporary.unlink(missing_ok=True)
    of_decode = manifests["decode"]
    evaluated = sum(int(m.get("points") or 0) for m in manifests.values())
    reasons: dict[str, int] = {}
    for m in manifests.values():
        for name, count in (m.get("infeasible") or {}).items():
            reasons[name] = reasons.get(name, 0) + int(count)
    manifest = {
        **{k: of_decode.get(k) for k in ("accuracy_label", "token_policy", "provenance", "jax")},
        **more,
        "serving": "disaggregated",
        "points": evaluated,
        "points_before_where": sum(int(m.get("points_before_where") or 0) for m in manifests.values()),
        "feasible": sum(int(m.get("feasible") or 0) for m in manifests.values()),
        "matches": points.height,
        "infeasible": reasons,
        "frontier": front.frame.height,
        "objectives": front.objectives,
        "by": front.by,
        "seconds": seconds,
        "points_per_s": evaluated / max(seconds, 1e-9),
        "store_rows": "feasible",
        "version": store.code_version(),
        "schema_version": SCHEMA_VERSION,
        "axes": of_decode.get("axes"),
    }
    provenance = {**(manifests["prefill"].get("provenance") or {}), **(of_decode.get("provenance") or {})}
    manifest["provenance"] = provenance
    store.write_atomic(directory / "manifest.json", json.dumps(manifest, indent=1) + "\n")
    return Result(manifest=manifest, frontier=front.frame)
