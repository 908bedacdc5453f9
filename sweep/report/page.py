"""One self-contained interactive page of a frontier: opens offline, from a disk or a mail, in any browser.

The page is `page.html` with the points written into it as JSON: no library, no font and no data is fetched. What it
draws (envelopes, steps, axes) is the same as in `charts`, for axes, lines and floors of accuracy that the reader picks.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

import numpy as np
import polars as pl

from sweep.columns import BANDS
from sweep.frontier import is_minimised, thin_to
from sweep.report.charts import BOUND_COLOURS, LINE_COLOURS, UNCONFIRMED
from sweep.report.markdown import (
    BOUND_LABELS,
    HEADERS,
    INTEGERS,
    header,
    integer,
    layout_label,
    model_label,
    told_apart,
)

POINTS = 6_000  # a page of about 2 MB; a larger frontier is thinned by equal boxes in its objectives
AXES = (
    "tok_s_user", "tok_s_gpu", "total_tok_s_gpu", "accuracy", "ttft_s", "tpot_s", "request_s", "usd_per_mtok",
    "tok_s_mw", "joule_per_tok", "params_total", "params_active", "layout.gpus", "workload.batch", "held_bytes",
)  # fmt: skip
LINES = ("hardware", "model", "precision", "efficiency", "job", "workload", "layout.gpus", "workload.context", "bound")
TABLE = (
    "hardware", "_model", "precision", "_layout", "layout.gpus", "workload.batch", "workload.context", "workload.isl",
    "workload.osl", "accuracy", "tok_s_user", "tok_s_gpu", "ttft_s", "usd_per_mtok", "bound", "robust",
    "stays", "loss_source",
)  # fmt: skip
_TITLES = {"_model": "model", "_layout": "layout", "layout.gpus": "GPUs", "efficiency": "efficiency"}
_GROUPS = ("model", "hardware", "precision", "layout", "workload")
_MOST_LINES = 40  # a column with more values makes no legend


def html_page(
    frontier: pl.DataFrame,
    *,
    title: str,
    subtitle: str,
    provenance: str,
    objectives: Sequence[str],
    by: Sequence[str] = (),
    line: str = "hardware",
    slice_column: str | None = None,
    slices: Sequence[str] = (),
    fixed: Mapping[str, str] | None = None,
    points: int = POINTS,
) -> str:
    """The text of the page.

    Args:
        frontier: frontier points, one row each; every column that a point has may be there.
        objectives, by: as the frontier was found, for thinning.
        slice_column: a column of text (`slices` its values in order) of which the page shows one value at a time.
        fixed: what all points share (`model`, `hardware`, ...), for the command that explains a point.
        points: how many points the page holds at most.
    """
    total = frontier.height
    frame = _thinned(frontier, objectives, [k for k in by if k in frontier.columns], points)
    extra = told_apart(frontier)
    labels = [(model_label(r, extra), layout_label(r)) for r in frame.iter_rows(named=True)]
    frame = frame.with_columns(
        pl.Series("_model", [m for m, _ in labels], dtype=pl.String),
        pl.Series("_layout", [x for _, x in labels], dtype=pl.String),
    )
    if slice_column is not None and slice_column in frame.columns:
        frame = frame.with_columns(pl.col(slice_column).cast(pl.String).alias("_slice"))
    if line not in frame.columns:
        frame = frame.with_columns(pl.lit("all").alias(line))
    numeric = [c for c in AXES if c in frame.columns and _finite(frame[c]).len() and frame.schema[c].is_numeric()]
    lines = [c for c in dict.fromkeys([line, *LINES]) if c in frame.columns and frame[c].n_unique() <= _MOST_LINES]
    lines = [c for c in lines if c == line or frame[c].n_unique() > 1]
    keys = [c for c in frame.columns if c.split(".")[0] in _GROUPS and c not in ("layout.gpus",)]
    wanted = dict.fromkeys([*numeric, *lines, *keys, *(c for c in TABLE if c in frame.columns)])
    if "_slice" in frame.columns:
        wanted["_slice"] = None
    wanted = {c: None for c in wanted if not frame.schema[c].is_nested()}
    ends = {c: [BANDS[c].low, BANDS[c].high] for c in TABLE if c in BANDS and c in wanted}
    ends = {c: both for c, both in ends.items() if set(both) <= set(frame.columns) and frame[both[0]].count()}
    dashed: dict[str, str] = {}
    if "hardware_status" in frame.columns and "hardware" in frame.columns:
        status = pl.col("hardware_status").cast(pl.String)
        pairs = frame.select(pl.col("hardware").cast(pl.String), status).unique().rows()
        dashed = {name: flag for name, flag in pairs if str(flag).lower() in UNCONFIRMED}
    note = "" if total == frame.height else f"; {integer(frame.height)} of {integer(total)} frontier points, thinned"
    data = {
        "n": frame.height,
        "columns": {name: _column(frame[name]) for name in [*wanted, *(e for both in ends.values() for e in both)]},
        "about": {name: {**_about(name), **({"ends": ends[name]} if name in ends else {})} for name in wanted},
        "axes": numeric,
        "lines": lines,
        "line": line,
        "x": "tok_s_user" if "tok_s_user" in numeric else numeric[0],
        "y": "tok_s_gpu" if "tok_s_gpu" in numeric else numeric[-1],
        "slices": list(slices) if "_slice" in frame.columns else [],
        "slice": slices[len(slices) // 2] if slices else None,
        "table": [c for c in TABLE if c in wanted],
        "keys": [c for c in keys if c in wanted],
        "fixed": [f"{k}={v}" for k, v in (fixed or {}).items() if k not in frame.columns],
        "dashed": dashed,
        "bounds": {k: {"label": BOUND_LABELS[k], "colour": v} for k, v in BOUND_COLOURS.items()},
        "colours": list(LINE_COLOURS),
        "subtitle": subtitle,
        "provenance": provenance + note,
    }
    text = resources.files("sweep.report").joinpath("page.html").read_text(encoding="utf-8")
    told = json.dumps(data, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    told = told.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e").replace("\u2028", "\\u2028")
    safe = title.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return text.replace("__TITLE__", safe).replace("__DATA__", told)


def _finite(column: pl.Series) -> pl.Series:
    values = column.cast(pl.Float64, strict=False).drop_nulls()
    return values.filter(values.is_finite())


def _thinned(frame: pl.DataFrame, objectives: Sequence[str], by: Sequence[str], points: int) -> pl.DataFrame:
    if frame.height <= points:
        return frame
    names = [c for c in objectives if c in frame.columns and frame.schema[c].is_numeric()]
    if not names:
        return frame.head(points)
    signs = [-1.0 if is_minimised(c) else 1.0 for c in names]
    values = np.stack([frame[c].cast(pl.Float64).to_numpy() * s for c, s in zip(names, signs, strict=True)], axis=1)
    groups = frame.select(pl.struct(by).rank("dense")).to_series().to_numpy().astype(np.int64) if by else None
    values = np.where(signs, np.sign(values) * np.log(np.maximum(np.abs(values), 1e-300)), values)
    return frame.filter(pl.Series(thin_to(values, points, groups=groups)))


def _column(column: pl.Series) -> dict[str, Any]:
    """Numbers to six digits, or words told by number; null where there is no figure."""
    if column.dtype in (pl.String, pl.Categorical) or isinstance(column.dtype, pl.Enum):
        texts = column.cast(pl.String)
        words = texts.drop_nulls().unique(maintain_order=True).to_list()
        at = {word: i for i, word in enumerate(words)}
        return {"words": [*words, None], "at": [len(words) if t is None else at[t] for t in texts.to_list()]}
    if column.dtype == pl.Boolean:
        return {"at": column.to_list()}
    if column.dtype.is_integer():
        return {"at": column.to_list()}
    return {"at": [_short(v) for v in column.to_list()]}


def _short(value: float | None) -> float | int | None:
    if value is None or not math.isfinite(value):
        return None
    short = float(f"{value:.6g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def _about(name: str) -> dict[str, Any]:
    title, factor = HEADERS.get(name, (_TITLES.get(name, header(name)), 1.0))
    better = -1 if is_minimised(name) or name in ("layout.gpus", "params_total", "params_active") else 1
    whole = name in INTEGERS or name.startswith(("layout.", "model.n_"))
    return {"title": title, "factor": factor, "better": better, **({"whole": 1} if whole else {})}
