"""The error page: predictions beside measurements, as Markdown and charts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
import numpy as np
import polars as pl

from sweep.calibration.rows import Measured, Row, text
from sweep.calibration.score import (
    Results,
    Score,
    by,
    complete,
    counts,
    doubt,
    group_key,
    ranking,
    rate_of,
    score,
    suspicion,
    tpot_of,
    ttft_of,
)
from sweep.report.charts import LINE_COLOURS, SHAPES, dressed
from sweep.report.markdown import escape, grid, number, percent

SCORE_HEADINGS = ("rows", "median [%]", "mean [%]", "p90 [%]", "bias [%]", "within 25 % [%]")
TTFT_LOAD = 4  # requests in flight up to which the time to the first token is not queueing
WORST = 20


@dataclass(frozen=True, kw_only=True)
class Findings:
    """Errors and masks that several sections use; all [rows]."""

    trust: np.ndarray
    tpot: np.ndarray
    tpot_error: np.ndarray
    rate_error: np.ndarray
    ttft_error: np.ndarray
    doubtful: np.ndarray
    scored: np.ndarray  # answered, with a measured TPOT, trust A (or unstated) and no doubt
    below: np.ndarray  # measured faster than the floor


def find(results: Results) -> Findings:
    """Errors of all rows."""
    tpot, ttft, rate = (results.measured(f) for f in (tpot_of, ttft_of, rate_of))
    trust = np.array([text(r, "trust").upper() or "-" for r in results.rows])
    doubts = [p is not None and doubt(r, p) is not None for r, p in zip(results.rows, results.points, strict=True)]
    with np.errstate(invalid="ignore", divide="ignore"):
        error = results.tpot_s / tpot - 1.0
        return Findings(
            trust=trust,
            tpot=tpot,
            tpot_error=error,
            rate_error=results.tok_s_gpu / rate - 1.0,
            ttft_error=results.ttft_s / ttft - 1.0,
            doubtful=np.array(doubts, dtype=bool),
            scored=np.isfinite(error) & np.isin(trust, ("A", "-")) & ~np.array(doubts, dtype=bool),
            below=np.isfinite(error) & (tpot < results.floor_s),
        )


def _cells(s: Score) -> list[str]:
    shares = (s.median, s.mean, s.p90, s.bias, s.within_25)
    return [str(s.n), *(percent(v) if np.isfinite(v) else "–" for v in shares)]


def _scores(first: str, rows: Mapping[str, Score]) -> str:
    body = [[escape(name), *_cells(s)] for name, s in rows.items()]
    return grid([first, *SCORE_HEADINGS], body, left=[True, *[False] * len(SCORE_HEADINGS)])


def _masked(f: Findings, results: Results, keep: Callable[[Row, Measured], bool]) -> np.ndarray:
    pairs = zip(results.rows, results.points, strict=True)
    return np.array([p is not None and keep(r, p) for r, p in pairs], dtype=bool)


def headline(results: Results, f: Findings) -> dict[str, Any]:
    """The numbers of the first table: one flat mapping, for people and for tests."""
    is_complete = np.array([complete(r) for r in results.rows], dtype=bool)
    trusted = np.isin(f.trust, ("A", "-"))
    asked = is_complete & trusted & np.isfinite(f.tpot)
    split = _masked(f, results, lambda _, p: p.disaggregated)
    light = _masked(f, results, lambda _, p: p.concurrency <= TTFT_LOAD) & ~split
    drafted = _masked(f, results, lambda _, p: p.drafted > 0)
    unlabelled = _masked(f, results, lambda _, p: not p.labelled)
    good = f.scored
    groups = [None if p is None else group_key(p) for p in results.points]
    at = np.flatnonzero(good)
    order = ranking([groups[i] for i in at], f.tpot[at], results.tpot_s[at])
    curves = [text(r, "curve_id") for r in results.rows]
    along = ranking([curves[i] for i in at], f.tpot[at], results.tpot_s[at])
    rate, ttft = results.measured(rate_of), results.measured(ttft_of)

    def inside(measured: np.ndarray, low: np.ndarray, high: np.ndarray) -> float:
        """Share of measured rows in their band, NaN where no row has both."""
        at = good & np.isfinite(measured) & np.isfinite(low)
        return float(((measured >= low) & (measured <= high))[at].mean()) if at.any() else float("nan")

    answered = results.answered
    every = np.isfinite(f.tpot_error) & trusted
    return {
        "rows": len(results.rows),
        "answered": int(answered.sum()),
        "complete_trusted": int(asked.sum()),
        "complete_trusted_answered": float((answered & asked).sum() / asked.sum()) if asked.any() else float("nan"),
        "tpot": score(f.tpot_error[good]),
        "tpot_all_trusted": score(f.tpot_error[every]),
        "tpot_undrafted": score(f.tpot_error[good & ~drafted & ~unlabelled]),
        "tpot_drafted": score(f.tpot_error[good & drafted]),
        "tpot_unlabelled": score(f.tpot_error[np.isfinite(f.tpot_error) & unlabelled & (f.trust == "B")]),
        "rate_aggregated": score(f.rate_error[good & ~split]),
        "rate_disaggregated": score(f.rate_error[good & split]),
        "ttft_light": score(f.ttft_error[good & light]),
        "in_band": inside(f.tpot, results.tpot_low_s, results.tpot_high_s),
        "in_band_tok_s_gpu": inside(rate, results.tok_s_gpu_low, results.tok_s_gpu_high),
        "in_band_ttft": inside(ttft, results.ttft_low_s, results.ttft_high_s),
        "rank_groups": order,
        "rank_curves": along,
        "below_floor": float(f.below[every].mean()) if every.any() else float("nan"),
    }


def page(results: Results, f: Findings, *, source: str, preset: str, charts: Sequence[str]) -> str:
    """The whole page as Markdown."""
    h = headline(results, f)
    parts = [
        "# Predicted against measured serving",
        f"Rows: `{source}`. Constants: `efficiency={preset}`. Error = predicted / measured - 1; bias is its median. "
        "Scores are of trust class A (or rows that name none), without rows whose source explains why they cannot fit "
        "(listed below). A preset fitted on these very rows scores better here than on others: held-out scores are "
        "printed by `calibrate`.",
        "## Result",
        _result(h),
        *(f"![{name}]({name})" for name in charts),
        "## Time per output token",
        _scores(
            "rows",
            {
                "all trusted": h["tpot_all_trusted"],
                "without doubtful": h["tpot"],
                "no drafting": h["tpot_undrafted"],
                "drafting": h["tpot_drafted"],
                "drafting not stated (trust B, taken as `sweep.calibration.rows` says)": h["tpot_unlabelled"],
            },
        ),
    ]
    for title, key in (
        ("machine", lambda r, p: p.hardware),
        ("model", lambda r, p: p.model),
        ("framework", lambda r, p: p.framework),
        ("way of serving", _way),
    ):
        parts += [f"### By {title}", _scores(title, by(results, key, f.tpot_error, f.scored))]
    answered = np.isfinite(f.tpot_error)
    parts += [
        "### By trust class",
        _scores("trust", by(results, lambda r, p: text(r, "trust") or "-", f.tpot_error, answered)),
        "## Throughput per GPU (output tokens, all GPUs counted)",
        _scores("way of serving", by(results, _way, f.rate_error, f.scored)),
        f"## Time to the first token, {TTFT_LOAD} requests in flight or fewer",
        _scores("framework", by(results, lambda r, p: p.framework, f.ttft_error, f.scored & _light(results))),
        "## Left out of the scores",
        _doubts(results, f),
        "## Not answered",
        _unanswered(results),
        "## Faster than the roofline",
        _below(results, f),
        f"## The {WORST} worst",
        _worst(results, f),
    ]
    return "\n\n".join(parts) + "\n"


def _light(results: Results) -> np.ndarray:
    return np.array([p is not None and p.concurrency <= TTFT_LOAD and not p.disaggregated for p in results.points])


def _way(row: Row, p: Measured) -> str:
    del row
    way = "disaggregated" if p.disaggregated else "aggregated"
    kind = {"none": "no drafting", "mtp": "MTP", "eagle3": "EAGLE3"}[p.draft_kind] if p.labelled else "drafting?"
    return f"{way}, {kind}" + (", DP attention" if p.decode.dpa > 1 else "")


def _result(h: Mapping[str, Any]) -> str:
    def of(s: Score) -> str:
        return f"median {percent(s.median)} %, p90 {percent(s.p90)} %, bias {percent(s.bias)} % ({s.n} rows)"

    rows = [
        ["rows answered", f"{h['answered']} of {h['rows']}"],
        [
            "complete rows of trust A answered",
            f"{percent(h['complete_trusted_answered'])} % of {h['complete_trusted']}",
        ],
        ["TPOT", of(h["tpot"])],
        ["tok/s/GPU, aggregated", of(h["rate_aggregated"])],
        ["tok/s/GPU, disaggregated", of(h["rate_disaggregated"])],
        [f"TTFT, up to {TTFT_LOAD} requests in flight", of(h["ttft_light"])],
        *(
            [f"measured {name} inside the 80 % band", f"{percent(h[key])} %"]
            for name, key in (("TPOT", "in_band"), ("tok/s/GPU", "in_band_tok_s_gpu"), ("TTFT", "in_band_ttft"))
        ),
        [
            "rank correlation within model, machine, lengths",
            f"median {h['rank_groups'].median:.3f}, mean over rows {h['rank_groups'].weighted:.3f} "
            f"({h['rank_groups'].groups} groups)",
        ],
        [
            "rank correlation within measured curves",
            f"median {h['rank_curves'].median:.3f}, mean over rows {h['rank_curves'].weighted:.3f} "
            f"({h['rank_curves'].groups} curves)",
        ],
        ["trusted rows faster than the roofline", f"{percent(h['below_floor'], 2)} %"],
    ]
    return grid(["", "result"], rows, left=[True, True])


def _doubts(results: Results, f: Findings) -> str:
    found: dict[str, list[int]] = {}
    for i, (r, p) in enumerate(zip(results.rows, results.points, strict=True)):
        why = None if p is None else doubt(r, p)
        if why and np.isfinite(f.tpot_error[i]):
            found.setdefault(why, []).append(i)
    if not found:
        return "None."
    return _scores("reason", {k: score(f.tpot_error[m]) for k, m in found.items()})


def _unanswered(results: Results) -> str:
    why = counts([r for r in results.reasons if r])
    if not why:
        return "Every row was answered."
    wanted = counts(
        [r for row, r in zip(results.rows, results.reasons, strict=True) if r and text(row, "trust").upper() == "A"]
    )
    body = [[escape(k), str(n), str(wanted.get(k, 0))] for k, n in why.items()]
    return grid(["reason", "rows", "of trust A"], body, left=[True, False, False])


def _label(row: Row, p: Measured) -> list[str]:
    cut = p.decode
    layout = f"{p.decode_workers:.0f} x " if p.decode_workers > 1 else ""
    layout += f"TP{cut.tpa}" + (f" DP{cut.dpa}" if cut.dpa > 1 else "") + (f" EP{cut.ep}" if cut.ep > 1 else "")
    lengths = f"{p.isl:.0f}/{p.osl:.0f}"
    return [p.model, p.hardware, p.framework, text(row, "precision"), layout, lengths, number(p.concurrency)]


_LABELS = ("model", "machine", "framework", "format", "layout", "in/out", "concurrency")


def _below(results: Results, f: Findings) -> str:
    at = [i for i in np.flatnonzero(f.below) if f.trust[i] in ("A", "B", "-")]
    if not at:
        return "No row is faster than the ideal step at its running batch."
    at.sort(key=lambda i: f.tpot[i] / results.floor_s[i])
    body = []
    for i in at[:30]:
        row, p = results.rows[i], results.points[i]
        assert p is not None
        body.append(
            [
                text(row, "row_id") or str(i + 1),
                f.trust[i],
                *map(escape, _label(row, p)),
                number(1e3 * f.tpot[i]),
                number(1e3 * results.floor_s[i]),
                escape(suspicion(row, p, results, int(i))),
            ]
        )
    note = f"{len(at)} rows are faster than physics allows at the running batch they state: findings about the data."
    headings = ["row", "trust", *_LABELS, "measured [ms]", "floor [ms]", "what may be wrong"]
    return note + "\n\n" + grid(headings, body, left=[True] * 7 + [False] * 4 + [True])


def _worst(results: Results, f: Findings) -> str:
    at = np.flatnonzero(f.scored)
    distance = np.abs(np.log1p(f.tpot_error[at]))
    body = []
    for i in at[np.argsort(-distance)][:WORST]:
        row, p = results.rows[i], results.points[i]
        assert p is not None
        body.append(
            [
                text(row, "row_id") or str(i + 1),
                *map(escape, _label(row, p)),
                number(1e3 * f.tpot[i]),
                number(1e3 * results.tpot_s[i]),
                percent(f.tpot_error[i], 0),
                escape(suspicion(row, p, results, int(i))),
            ]
        )
    headings = ["row", *_LABELS, "measured [ms]", "predicted [ms]", "error [%]", "what makes it hard"]
    return grid(headings, body, left=[True] * 6 + [False] * 5 + [True])


# --- charts ------------------------------------------------------------------------------------------------------


def scatter(
    frame: pl.DataFrame, *, measured: str, predicted: str, colour: str, title: str, subtitle: str, unit: str
) -> alt.VConcatChart:
    """Predicted against measured on equal log axes, with the diagonal and lines at 25 % either side.

    Args:
        frame: one row per point.
        measured, predicted: columns of positive numbers.
        colour: a column of a few names; those beyond the eighth are drawn as `other`.
    """
    names = frame[colour].value_counts(sort=True)[colour].to_list()
    kept = names if len(names) <= len(LINE_COLOURS) else names[: len(LINE_COLOURS) - 1]
    frame = frame.with_columns(
        pl.when(pl.col(colour).is_in(kept)).then(pl.col(colour)).otherwise(pl.lit("other")).alias(colour)
    )
    shown = kept if len(kept) == len(names) else [*kept, "other"]
    values = pl.concat([frame[measured], frame[predicted]])
    low, high = float(values.min()) * 0.9, float(values.max()) * 1.1  # type: ignore[arg-type]
    scale = alt.Scale(type="log", domain=[low, high], nice=False)
    edges = pl.DataFrame(
        {
            "x": [low, high] * 3,
            "y": [low, high, low * 1.25, high * 1.25, low / 1.25, high / 1.25],
            "line": ["equal"] * 2 + ["25 % more"] * 2 + ["25 % less"] * 2,
        }
    )
    lines = (
        alt.Chart(edges)
        .mark_line(color="#555555", clip=True, strokeWidth=1)
        .encode(
            x=alt.X("x:Q", scale=scale),
            y=alt.Y("y:Q", scale=scale),
            detail="line:N",
            strokeDash=alt.condition("datum.line == 'equal'", alt.value([1, 0]), alt.value([4, 3])),
        )
    )
    points = (
        alt.Chart(frame)
        .mark_point(size=16, filled=True, opacity=0.55, clip=True)
        .encode(
            x=alt.X(f"{measured}:Q", scale=scale, title=f"measured [{unit}]"),
            y=alt.Y(f"{predicted}:Q", scale=scale, title=f"predicted [{unit}]"),
            color=alt.Color(
                f"{colour}:N",
                scale=alt.Scale(domain=shown, range=list(LINE_COLOURS[: len(shown)])),
                title=colour.replace("_", " "),
            ),
            shape=alt.Shape(f"{colour}:N", scale=alt.Scale(domain=shown, range=list(SHAPES[: len(shown)]))),
        )
    )
    chart = alt.vconcat((points + lines).properties(width=460, height=460))
    return dressed(chart, title, subtitle)


def charts(results: Results, f: Findings) -> dict[str, alt.VConcatChart]:
    """The charts of the page by file name; none for what the rows do not measure."""
    at = np.flatnonzero(f.scored)
    rows = [(results.rows[i], results.points[i]) for i in at]
    frame = pl.DataFrame(
        {
            "machine": [p.hardware for _, p in rows if p],
            "model": [p.model for _, p in rows if p],
            "serving": [("disaggregated" if p.disaggregated else "aggregated") for _, p in rows if p],
            "framework": [p.framework for _, p in rows if p],
            "tpot": 1e3 * f.tpot[at],
            "tpot_predicted": 1e3 * results.tpot_s[at],
            "rate": results.measured(rate_of)[at],
            "rate_predicted": results.tok_s_gpu[at],
            "ttft": 1e3 * results.measured(ttft_of)[at],
            "ttft_predicted": 1e3 * results.ttft_s[at],
            "light": _light(results)[at],
        }
    )
    out: dict[str, alt.VConcatChart] = {}
    wanted = (
        ("tpot_by_machine", "tpot", "machine", "ms", "Time per output token", pl.lit(True)),
        ("tpot_by_model", "tpot", "model", "ms", "Time per output token", pl.lit(True)),
        ("rate_by_serving", "rate", "serving", "tok/s/GPU", "Output throughput per GPU", pl.lit(True)),
        ("ttft_by_framework", "ttft", "framework", "ms", f"First token, up to {TTFT_LOAD} in flight", pl.col("light")),
    )
    for name, what, colour, unit, title, mask in wanted:
        some = frame.filter(
            mask
            & pl.col(what).is_finite()
            & pl.col(f"{what}_predicted").is_finite()
            & (pl.col(f"{what}_predicted") > 0)
        )
        if len(some) < 3:
            continue
        s = score((some[f"{what}_predicted"] / some[what] - 1.0).to_numpy())
        note = f"{s.n} rows of trust A; median error {percent(s.median)} %, p90 {percent(s.p90)} %; dashed: 25 % off"
        out[name] = scatter(
            some, measured=what, predicted=f"{what}_predicted", colour=colour, title=title, subtitle=note, unit=unit
        )
    return out
