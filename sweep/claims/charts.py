"""The two kinds of picture that the studies draw: lines over a log axis, and stacked shares."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import altair as alt
import polars as pl

from sweep.report.charts import LINE_COLOURS, SHAPES, dressed

_DASHES = {"measured": [1, 0], "ideal": [5, 3]}


def ticks(values: Sequence[float]) -> list[float]:
    """Ticks of a log axis: powers of ten, and 2 and 5 times them where there are few."""
    low, high = min(values), max(values)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if math.log10(high / low) < 3 else (1,)
    return [m * 10.0**e for e in decades for m in steps if low / 1.3 <= m * 10.0**e <= high * 1.3]


def lines(
    frame: pl.DataFrame,
    *,
    x: str,
    y: str,
    line: str,
    title: str,
    x_title: str,
    y_title: str,
    subtitle: Sequence[str] = (),
    dash: str | None = None,
    panel: str | None = None,
    log_y: bool = True,
    log_x: bool | None = True,
) -> alt.VConcatChart:
    """One line per value of `line`, dashed by `dash` (a preset), one panel per value of `panel`.

    `log_x` null: x is a label.
    """
    names = frame[line].unique(maintain_order=True).to_list()
    panels = [None] if panel is None else frame[panel].unique(maintain_order=True).to_list()
    width, height = (520, 320) if len(panels) == 1 else (330, 250)

    def axis(column: str, heading: str, log: bool) -> dict[str, Any]:
        at = ticks(frame[column].to_list()) if log else alt.Undefined
        scale = alt.Scale(type="log", nice=False) if log else alt.Scale(zero=False)
        labels = "datum.value < 1 ? format(datum.value, '~g') : format(datum.value, '~s')"
        return {
            "field": column,
            "type": "quantitative",
            "scale": scale,
            "axis": alt.Axis(title=heading, labelExpr=labels, values=at, labelOverlap=True),
        }

    drawn = []
    for name in panels:
        part = frame if panel is None else frame.filter(pl.col(panel) == name)
        encoding: dict[str, Any] = {
            "x": alt.X(x, type="nominal", sort=None, title=x_title, axis=alt.Axis(labelAngle=-35))
            if log_x is None
            else alt.X(**axis(x, x_title, log_x)),
            "y": alt.Y(**axis(y, y_title, log_y)),
            "color": _colour(line, names),
        }  # fmt: skip
        if dash is not None:
            presets = frame[dash].unique(maintain_order=True).to_list()
            encoding["strokeDash"] = alt.StrokeDash(
                dash, type="nominal", title=None, legend=alt.Legend(symbolType="stroke", symbolSize=300),
                scale=alt.Scale(domain=presets, range=[_DASHES.get(p, [2, 2]) for p in presets]),
            )  # fmt: skip
        chart = alt.Chart(part).encode(**encoding)
        marks = chart.mark_line(strokeWidth=1.8) + chart.mark_point(filled=True, size=26, opacity=1).encode(
            shape=alt.Shape(
                line, type="nominal", title=None, sort=names,
                scale=alt.Scale(domain=names, range=list(SHAPES[: len(names)])),
            )
        )  # fmt: skip
        drawn.append(marks.properties(width=width, height=height, title="" if name is None else str(name)))
    return _in_pairs(drawn, title, subtitle)


def _colour(column: str, names: Sequence[str]) -> alt.Color:
    """A colour per name, in their order."""
    scale = alt.Scale(domain=list(names), range=list(LINE_COLOURS[: len(names)]))
    return alt.Color(column, type="nominal", title=None, sort=list(names), scale=scale)


def _in_pairs(panels: Sequence[alt.Chart | alt.LayerChart], title: str, subtitle: Sequence[str]) -> alt.VConcatChart:
    """Panels two by two under a title."""
    rows = [alt.hconcat(*panels[i : i + 2], spacing=18) for i in range(0, len(panels), 2)]
    return dressed(alt.vconcat(*rows, spacing=16), title, subtitle)


def stacked(
    frame: pl.DataFrame,
    *,
    bar: str,
    part: str,
    value: str,
    title: str,
    y_title: str,
    x_title: str,
    subtitle: Sequence[str] = (),
    panel: str | None = None,
) -> alt.VConcatChart:
    """Stacked bars: one per value of `bar`, cut into the values of `part`, one panel per value of `panel`."""
    names = frame[part].unique(maintain_order=True).to_list()
    bars = [str(b) for b in frame[bar].unique(maintain_order=True).to_list()]
    frame = frame.with_columns(pl.col(bar).cast(pl.String), pl.Series("_order", [names.index(p) for p in frame[part]]))
    panels = [None] if panel is None else frame[panel].unique(maintain_order=True).to_list()
    drawn = []
    for name in panels:
        rows = frame if panel is None else frame.filter(pl.col(panel) == name)
        drawn.append(
            alt.Chart(rows)
            .mark_bar(stroke="white", strokeWidth=0.6)
            .encode(
                x=alt.X(bar, type="nominal", sort=bars, title=x_title, axis=alt.Axis(labelAngle=-35, labelLimit=130)),
                y=alt.Y(value, type="quantitative", title=y_title),
                color=_colour(part, names),
                order=alt.Order("_order", type="quantitative"),
            )
            .properties(width=alt.Step(44), height=240, title="" if name is None else str(name))
        )  # fmt: skip
    return _in_pairs(drawn, title, subtitle)


def bars(
    frame: pl.DataFrame,
    *,
    y: str,
    x: str,
    colour: str,
    title: str,
    x_title: str,
    subtitle: Sequence[str] = (),
) -> alt.VConcatChart:
    """Bars side by side: one group per value of `y`, one bar per value of `colour`."""
    names = frame[colour].unique(maintain_order=True).to_list()
    chart = (
        alt.Chart(frame)
        .mark_bar()
        .encode(
            y=alt.Y(y, type="nominal", sort=None, title=None, axis=alt.Axis(labelLimit=300)),
            yOffset=alt.YOffset(colour, sort=names),
            x=alt.X(x, type="quantitative", title=x_title),
            color=_colour(colour, names),
        )
        .properties(width=430, height=alt.Step(16))
    )  # fmt: skip
    return dressed(alt.vconcat(chart), title, subtitle)
