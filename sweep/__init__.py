"""codesign-sweep: which model shape, machine and layout trade accuracy, throughput and interactivity best.

One direction of data: configuration -> grid -> points -> costs -> table -> frontier -> report. No module imports one
further down that line. `scan` opens what a sweep has written, for notebooks:

    import sweep
    sweep.scan("outputs/sweep/2026-11-30_12-00-00").filter(pl.col("tok_s_user") > 100).collect()
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl


def scan(path: Path | str, table: str = "points") -> pl.LazyFrame:
    """Points of a sweep or a multirun as a lazy frame; see `sweep.store.scan`."""
    from sweep.store import scan as scan_store

    return scan_store(path, table)
