"""The catalogue as tables: models with their counts, machines with their dated prices, formats."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from sweep.complete import complete_model
from sweep.config import Library, Record
from sweep.cost.arith import namespace
from sweep.cost.memory import count_params, kv_bytes_per_token
from sweep.errors import BadInput, closest
from sweep.expr import evaluate, names_in
from sweep.family import VINTAGES, default_name, name_of, vintages
from sweep.machine import Machine
from sweep.point import FORMAT_BITS, FORMAT_MATH, RECORDS

Row = dict[str, Any]
GROUPS = ("model", "hardware")
TAGGED = ("announced", "estimated", "hypothetical")
DERIVED: dict[str, tuple[str, str]] = {
    "params_total": ("1", "all parameters, tied embeddings once, drafting modules not"),
    "params_active": ("1", "parameters that a token multiplies; no input embedding"),
    "kv_bytes_per_token": ("B/tok", "cache that grows with the context, two bytes per element, one GPU"),
}
COLUMNS: dict[str, tuple[str, ...]] = {
    "model": (
        "name",
        "status",
        "params_total",
        "params_active",
        "kv_bytes_per_token",
        "n_layers",
        "d_model",
        "n_experts",
        "top_k",
        "max_context",
        "release",
    ),
    "hardware": (
        "name",
        "vendor",
        "year",
        "status",
        "bf16_flops",
        "fp8_flops",
        "fp4_flops",
        "hbm_bytes",
        "hbm_bytes_per_s",
        "domain",
        "link_bytes_per_s",
        "watts",
        "usd_per_hour",
        "price",
    ),
}


def derived(records: Sequence[Record]) -> list[Row]:
    """Parameter counts and cache bytes of models, from the cost model's own formulas."""
    if not records:
        return []
    fields = records[0].values
    values = {k: np.array([_number(r.values[k]) for r in records]) for k in fields}
    model = complete_model(values)
    with namespace(np):
        params = count_params(model)
        cache = kv_bytes_per_token(model, cast(Machine, SimpleNamespace(kv=2.0)))
    columns = {"params_total": params.total, "params_active": params.active, "kv_bytes_per_token": cache}
    return [{k: float(v[i]) for k, v in columns.items()} for i in range(len(records))]


def _number(value: Any) -> float:
    return float("nan") if value is None else float(value)


def rows(library: Library, group: str) -> list[Row]:
    """Every entry of a group: its file's name, its figures, what its file says, and what follows."""
    records = [library.record(group, name) for name in library.entries(group)]
    more = derived(records) if group == "model" else [{} for _ in records]
    return [entry_row(record, extra) for record, extra in zip(records, more, strict=True)]


def entry_row(record: Record, extra: Mapping[str, Any]) -> Row:
    """One entry as one row."""
    about = {k: v for k, v in record.about.items() if k != "name"}
    if record.group == "hardware":
        known = {k: default_name(record, k) for k in VINTAGES if vintages(record, k)}
        about = {**{k: known.get(k) for k in VINTAGES}, **about}
    return {
        "entry": record.id,
        "name": record.about.get("name") or record.id,
        **record.values,
        **extra,
        **about,
        "status": record.status,
    }


def prices(library: Library) -> list[Row]:
    """Every published price and power of every machine: date, label, figure, source, and whether it counts."""
    out: list[Row] = []
    for name in library.choices("hardware"):
        record = library.record("hardware", name)
        for key, (_, figure, _) in VINTAGES.items():
            for entry in vintages(record, key):
                used = name_of(entry) == default_name(record, key)
                row = {"entry": name, "name": record.about.get("name") or name, "status": record.status, "what": key}
                row |= {"date": entry["date"], "label": entry["label"], "usd_per_hour": None, "watts": None}
                row |= {
                    figure: entry[figure],
                    "used": used,
                    "source": entry.get("source") or record.about.get("source"),
                }
                out.append(row)
    return out


def formats() -> list[Row]:
    """Formats: bits per element with block scales, and the tensor unit that multiplies them."""
    return [
        {"entry": name, "bits_weights": weights, "bits_activations": other, "math": FORMAT_MATH[name] or "widened"}
        for name, (weights, other) in FORMAT_BITS.items()
    ]


def select(
    found: Sequence[Row], word: str | None, status: str | None, where: str | None
) -> tuple[list[Row], dict[str, int]]:
    """Rows whose names hold a word, of a status, that meet a condition; and what kept the condition from being asked.

    A figure that nobody has published meets no condition: how many rows lack each of those that are asked for is the
    second answer.
    """
    unknown: dict[str, int] = {}
    kept = list(found)
    if word:
        lower = word.lower()
        kept = [r for r in kept if lower in f"{r['entry']} {r.get('name', '')} {r.get('vendor', '')}".lower()]
    if status:
        known = {str(r.get("status")) for r in found}
        if status not in known:
            raise BadInput(f"--status={status}: no entry has it; {closest(status, known)}")
        kept = [r for r in kept if r.get("status") == status]
    if where:
        asked = names_in(where, "--where")
        known = {k for r in found for k in r}
        for name in sorted(asked - known):
            raise BadInput(f"--where={where}: no field {name}; {closest(name, known)}")
        unknown = {k: n for k in sorted(asked) if (n := sum(r.get(k) is None for r in kept))}
        kept = [r for r in kept if _meets(r, where, asked)]
    return kept, unknown


def _meets(row: Row, where: str, asked: set[str]) -> bool:
    values = {k: row.get(k) for k in asked}
    if any(v is None for v in values.values()):
        return False
    try:
        return bool(evaluate(where, values, "--where"))
    except (TypeError, ValueError):
        raise BadInput(f"--where={where}: cannot be evaluated; words compare with words in quotes") from None


def split_name(text: str) -> tuple[str, str]:
    """Group and name of `model/deepseek_v3`."""
    group, slash, name = text.partition("/")
    if not slash or group not in GROUPS:
        raise BadInput(f"{text}: say model/NAME or hardware/NAME; {closest(group, GROUPS)}")
    return group, name


def entry(library: Library, text: str) -> tuple[str, Row]:
    """Group and row of one entry by name. Raises: `BadInput` with the closest names."""
    group, name = split_name(text)
    record = library.record(group, name)
    return group, entry_row(record, derived([record])[0] if group == "model" else {})


def units(group: str) -> dict[str, tuple[str, str]]:
    """Unit and meaning of each figure of a group."""
    own = {f.name: (f.metadata["unit"], f.metadata["doc"]) for f in dataclasses.fields(RECORDS[group])}
    return {**own, **DERIVED} if group == "model" else own


def tag(row: Row) -> str:
    """A name, with the status behind it where the figures are not a shipping product's."""
    status = row.get("status")
    return f"{row['entry']} [{status}]" if status in TAGGED else str(row["entry"])
