"""Predictions of a file of measured rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from sweep.calibration.bands import kind_of
from sweep.calibration.endtoend import LIGHT
from sweep.calibration.predict import floor_tpot, make_knobs, make_table, predict
from sweep.calibration.rows import MTP_DEPTH, Catalogue, Measured, Row, Unanswered, to_point
from sweep.calibration.score import Results
from sweep.config import Library
from sweep.errors import BadInput, closest
from sweep.machine import Band, band_of

NEEDED = ("model", "hardware", "isl", "osl", "concurrency_or_batch")


def read_rows(path: Path) -> list[Row]:
    """Rows of a CSV as text.

    Raises: `BadInput` where there is no such file, or its columns are none of a measured row.
    """
    if not path.is_file():
        raise BadInput(f"data={path}: no such file")
    try:
        frame = pl.read_csv(path, infer_schema=False)
    except (pl.exceptions.PolarsError, UnicodeDecodeError) as error:
        raise BadInput(f"data={path}: not a CSV: {str(error).splitlines()[0]}") from None
    missing = [name for name in NEEDED if name not in frame.columns]
    if missing:
        raise BadInput(f"data={path}: no column {missing[0]}; {closest(missing[0], frame.columns)}")
    return list(frame.iter_rows(named=True))


def predict_rows(rows: Sequence[Row], library: Library, efficiency: Mapping[str, Any]) -> Results:
    """Predictions of measured rows, in their order; rows that are no point say why.

    Args:
        rows: columns as text.
        library: where models and machines are looked up.
        efficiency: the preset; the floor is that of `ideal` whatever it is.
    """
    catalogue = Catalogue(library)
    points: list[Measured | None] = []
    reasons: list[str] = []
    for row in rows:
        try:
            points.append(to_point(row, catalogue))
            reasons.append("")
        except Unanswered as why:
            points.append(None)
            reasons.append(str(why))
    some = [p for p in points if p is not None]
    table = make_table(some, catalogue, efficiency) if some else None
    at = np.array([i for i, p in enumerate(points) if p is not None], dtype=np.int64)

    def spread(values: np.ndarray) -> np.ndarray:
        full = np.full(len(rows), np.nan)
        full[at] = values
        return full

    if table is None:
        nothing = np.full(len(rows), np.nan)
        return Results(rows=list(rows), points=points, reasons=reasons, tpot_s=nothing, tpot_low_s=nothing,
                       tpot_high_s=nothing, ttft_s=nothing, tok_s_gpu=nothing, floor_s=nothing, batch=nothing,
                       max_batch=nothing, ttft_low_s=nothing, ttft_high_s=nothing, tok_s_gpu_low=nothing,
                       tok_s_gpu_high=nothing)  # fmt: skip
    out = predict(table, make_knobs(some, efficiency))
    # a floor must hold whatever a row did: one that does not say whether it drafts may have
    most = [p if p.labelled else dataclasses.replace(p, drafted=max(p.drafted, *MTP_DEPTH.values())) for p in some]
    floor = floor_tpot(make_table(most, catalogue, library.raw("efficiency", "ideal")), out.batch)
    bands = band(some, catalogue, efficiency)
    # a figure that a machine lacks makes a point NaN: not answered
    good = np.isfinite(out.tpot_s)
    for i, ok in zip(at, good, strict=True):
        if not ok:
            points[i], reasons[i] = None, "a figure that the point needs is not published"
    blank = np.where(good, 1.0, np.nan)
    rate = np.where([p.rate_known for p in some], out.tok_s_gpu, np.nan)
    return Results(
        rows=list(rows),
        points=points,
        reasons=reasons,
        tpot_s=spread(out.tpot_s * blank),
        tpot_low_s=spread(out.tpot_s * bands["tpot"][0] * blank),
        tpot_high_s=spread(out.tpot_s * bands["tpot"][1] * blank),
        ttft_s=spread(out.ttft_s * blank),
        tok_s_gpu=spread(rate * blank),
        floor_s=spread(floor * blank),
        batch=spread(out.batch * blank),
        max_batch=spread(out.max_batch * blank),
        ttft_low_s=spread(out.ttft_s * bands["ttft"][0] * blank),
        ttft_high_s=spread(out.ttft_s * bands["ttft"][1] * blank),
        tok_s_gpu_low=spread(rate * bands["tok_s_gpu"][0] * blank),
        tok_s_gpu_high=spread(rate * bands["tok_s_gpu"][1] * blank),
    )


def band(
    points: Sequence[Measured], catalogue: Catalogue, efficiency: Mapping[str, Any]
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Factors on predictions that hold 80 of 100 measurements, low and high, by metric: tpot, tok_s_gpu, ttft.

    From held-out residuals of the calibration, by how a point is served; those of an unmeasured generation where a row
    does not say whether tokens are drafted. NaN for a preset without bands.
    """
    known: dict[tuple[str, bool], Band] = {}
    found = {metric: (np.empty(len(points)), np.empty(len(points))) for metric in ("tpot", "tok_s_gpu", "ttft")}
    for i, p in enumerate(points):
        if (p.hardware, p.labelled) not in known:
            kin = catalogue.record("hardware", p.hardware).lineage
            known[p.hardware, p.labelled] = band_of(efficiency, **(kin if p.labelled else {**kin, "generation": None}))
        for metric, (low, high) in found.items():
            kind = kind_of(metric, drafted=p.drafted > 0, disaggregated=p.disaggregated, light=p.concurrency <= LIGHT)
            low[i], high[i] = known[p.hardware, p.labelled].of(metric, kind)
    return found
