"""The word behind a machine that nobody can buy as it stands: `rubin_cpx (announced)`, in every table and chart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import polars as pl

UNCONFIRMED = ("announced", "estimated", "hypothetical")
PRICES = {"price": "usd_per_hour", "power": "watts"}


def statuses(manifests: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """How well each machine of some sweeps is known, by its name."""
    out: dict[str, str] = {}
    for manifest in manifests:
        for name, figures in dict(manifest.get("provenance") or {}).items():
            if isinstance(figures, Mapping):
                out[str(name)] = str(figures.get("status") or "").lower()
    return out


def tag(name: Any, status: Mapping[str, str]) -> str:
    """A machine's name, with its status behind it where it is not a shipping product as its maker sells it."""
    word = status.get(str(name), "")
    return f"{name} ({word})" if word in UNCONFIRMED else str(name)


def tagged(frame: pl.DataFrame, status: Mapping[str, str], column: str = "hardware") -> pl.DataFrame:
    """A table with tags behind the names of machines; what was asked of it, it must have been asked before."""
    flagged = {name: tag(name, status) for name, word in status.items() if word in UNCONFIRMED}
    if column not in frame.columns or not flagged or frame.schema[column].is_numeric():
        return frame
    return frame.with_columns(pl.col(column).cast(pl.String).replace(flagged))


def prices(manifest: Mapping[str, Any], used: Iterable[str] = ()) -> list[str]:
    """Which price and power of each machine a sweep reckoned with, one sentence per machine."""
    wanted = set(used)
    lines = []
    for name, figures in sorted(dict(manifest.get("provenance") or {}).items()):
        if not isinstance(figures, Mapping) or (wanted and name not in wanted):
            continue
        parts = []
        for key, unit in (("price", "$/GPU-hour"), ("power", "W per GPU")):
            said = figures.get(key)
            if isinstance(said, Mapping) and said.get("value") is not None:
                parts.append(f"{said['value']:g} {unit} ({said['vintage']})")
            elif isinstance(said, Mapping):
                parts.append(f"no {key} published")
        if parts:
            lines.append(f"{name}: {', '.join(parts)}")
    return lines
