"""Charts of frontiers: throughput against interactivity, and where the time of a token goes.

Colours are those of Okabe and Ito (jfly.uni-koeln.de/color), which colour-blind readers can tell apart; every line has
a marker shape and a grey of its own too, so that a page printed without colour still tells the machines apart.
Charts show frontiers, never clouds: markers closer than a few points on paper are thinned, the lines are not.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import altair as alt
import polars as pl

from sweep.columns import unit_of
from sweep.report.markdown import BOUND_LABELS, header, integer, layout_label, model_label, number, percent, told_apart
from sweep.report.selection import LOWER_IS_BETTER, accuracy_floors, at_least, best_at, envelope, interactivity_floors

BOUND_COLOURS = {
    "math": "#E69F00",
    "weight_read": "#56B4E9",
    "kv_read": "#0072B2",
    "activation": "#009E73",
    "comm": "#D55E00",
    "latency": "#CC79A7",
}
PART_COLOURS = {**BOUND_COLOURS, "prefill": "#F0E442"}  # a replica may wait for prompts too
PARTS = {f"{name}_s": name for name in PART_COLOURS}
LINE_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "triangle-right", "triangle-left")
UNCONFIRMED = ("announced", "estimated", "hypothetical")  # values of `hardware_status` that are drawn dashed
FONT = "Arial, Helvetica, Liberation Sans, DejaVu Sans, sans-serif"
_INK, _GRID = "#222222", "#E4E4E4"
_MARKER_GAPS = (11.0, 18.0)  # pixels between markers of one line: the first, unless that leaves a string of beads
_BEADS = 14  # markers of one line that still read as points
_DECADES = {"x": 3.5, "y": 4.5}  # what an axis shows at most, counted from its largest value
_VERTEX_GAP = 1.0  # pixels between corners of one line: finer than the eye, coarse enough for a small file


class Rows(alt.InlineData):
    """Rows that a chart draws. Layering copies charts over and over; the rows, which nobody changes, stay."""

    def __deepcopy__(self, memo: Any = None) -> Rows:
        return self


AXIS_TITLES = {
    "tok_s_user": "interactivity [tok/s/user]",
    "tok_s_gpu": "output throughput [tok/s/GPU]",
    "total_tok_s_gpu": "input and output throughput [tok/s/GPU]",
    "ttft_s": "time to the first token [s]",
    "tpot_s": "time per output token [s]",
    "request_s": "end-to-end latency of a request [s]",
    "tok_s_mw": "output throughput [tok/s per MW of board power]",
    "tok_s_mw_drawn": "output throughput [tok/s per MW drawn]",
    "tok_per_usd": "output tokens per dollar",
    "usd_per_mtok": "price of a million output tokens [USD]",
    "usd_per_mtok_total": "price of a million input and output tokens [USD]",
    "usd_per_request": "price of a request [USD]",
    "joule_per_tok": "energy of an output token, board power [J]",
    "joule_per_tok_drawn": "energy of an output token, mean draw [J]",
    "gpus": "GPUs of the service",
}


def axis_title(column: str) -> str:
    """What an axis says: the quantity, what is counted, the unit."""
    return AXIS_TITLES.get(column, f"{header(column).split(' [')[0]} [{unit_of(column)}]")


def frontier_chart(
    frame: pl.DataFrame,
    *,
    x: str = "tok_s_user",
    y: str = "tok_s_gpu",
    line: str = "hardware",
    colour: str = "bound",
    title: str = "",
    subtitle: str | Sequence[str] = "",
    x_title: str | None = None,
    y_title: str | None = None,
    floors: Sequence[float | None] | None = None,
    row: str | None = None,
    apart: str | None = None,
) -> alt.VConcatChart:
    """Throughput per GPU against speed per user: one step line per machine through its own frontier points.

    A line is the upper-right envelope of what is passed, in these two columns. Between two points there is no
    configuration, hence steps: the height above a speed is the best that runs at that speed or faster.

    Args:
        frame: frontier points; rows without finite, positive `x` and `y` are left out.
        line: the column with one line per value. A value whose `hardware_status` is announced, estimated or
            hypothetical is drawn dashed.
        colour: `bound`, points coloured by what takes the largest part of the step; or the column of `line`.
        floors: one panel per accuracy floor (0 to 1; `None`: any accuracy). Chosen from the frame if not given.
        row: a column of text with one row of panels per value, in order of appearance.
        apart: a boolean column; points where it is true have a hollow marker.
    """
    if line not in frame.columns:
        frame = frame.with_columns(pl.lit("all").alias(line))
    if colour not in frame.columns:
        colour = line
    frame = frame.with_columns(pl.col(name).cast(pl.String) for name in {line: None, colour: None})
    rows: list[Any] = [None] if row is None else frame[row].unique(maintain_order=True).to_list()
    if floors is None:
        floors = accuracy_floors(frame, by=line, count=4 if row is None else 3)
    several = len(rows) > 1 or len(floors) > 1
    parts = [(name, frame if row is None else frame.filter(pl.col(row) == name)) for name in rows]
    cells = [(name, floor, envelope(at_least(part, floor), x, y, [line])) for name, part in parts for floor in floors]
    shown = pl.concat([points for _, _, points in cells]) if cells else frame.clear()
    tops = shown.group_by(line).agg(pl.col(y).max()).sort([y, line], descending=[True, False])
    lines = tops[line].to_list()
    columns = 1 if not several else (len(floors) if row is not None else 2)
    width = {1: 520, 2: 330}.get(columns, 250)
    height = 340 if not several else (250 if columns == 2 else 215)
    x_title, y_title = x_title or axis_title(x), y_title or axis_title(y)
    small = {name: name in LOWER_IS_BETTER for name in (x, y)}
    x_axis = _LogAxis(shown[x].to_list(), width, "x", x_title, small_first=small[x])
    shared_y = _LogAxis(shown[y].to_list(), height, "y", y_title, small_first=small[y])
    styles = _Styles(lines, frame, line, colour, shown)

    panels: list[Any] = []
    cut = x_axis.cut
    for index, (name, floor, points) in enumerate(cells):
        y_axis = shared_y
        if name is not None:  # one scale per row: a long context would lie at the bottom of a short one's
            own_y = [v for n, _, p in cells if n == name for v in p[y].to_list()]
            y_axis = _LogAxis(own_y, height, "y", y_title, small_first=small[y])
        cut = cut or y_axis.cut
        text = [] if name is None else [str(name)]
        if floor is not None or len(floors) > 1:
            text.append("any accuracy" if floor is None else f"accuracy ≥ {100 * floor:g} %")
        first = index % columns == 0
        last = index + columns >= len(cells)
        panels.append(
            _panel(
                points, x, y, line, colour, styles, x_axis, y_axis, ", ".join(text), first=first, last=last, apart=apart
            )
        )
    grid = [alt.hconcat(*panels[i : i + columns], spacing=16) for i in range(0, len(panels), columns)]
    chart = alt.vconcat(*grid, spacing=14).resolve_scale(fill="shared", shape="shared", stroke="shared")
    notes = [subtitle] if isinstance(subtitle, str) else list(subtitle)
    if cut:
        notes.append("axes show a few decades from their best value: points further out are not drawn")
    return dressed(chart, title, notes)


class _LogAxis:
    """A log axis with a fixed domain, so that pixels can be reckoned with before anything is drawn."""

    def __init__(
        self, values: Sequence[float], pixels: int, channel: str, title: str, *, small_first: bool = False
    ) -> None:
        low, high = (min(values), max(values)) if values else (1.0, 10.0)
        self.cut = low < high / 10 ** _DECADES[channel]
        if small_first:
            high = min(high, low * 10 ** _DECADES[channel])
        else:
            low = max(low, high / 10 ** _DECADES[channel])
        room = max((high / low) ** 0.05, 1.12)
        self.low, self.high, self.pixels, self.channel, self.title = low / room, high * room, pixels, channel, title
        decades = math.log10(self.high / self.low)
        least = 27 if channel == "x" else 20  # pixels from label to label
        steps: tuple[int, ...] = (1,)
        if pixels / decades / 3 >= least:
            steps = (1, 2, 5)
        elif pixels / decades / 2 >= least:
            steps = (1, 3)
        exponents = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        self.ticks = [m * 10.0**e for e in exponents for m in steps if self.low <= m * 10.0**e <= self.high]

    def pixel(self, value: float) -> float:
        return self.pixels * math.log(value / self.low) / math.log(self.high / self.low)

    def encoding(self, column: str, *, titled: bool = True, labelled: bool = True) -> Any:
        axis = alt.Axis(
            values=self.ticks,
            labelExpr="datum.value < 1 ? format(datum.value, '~g') : format(datum.value, '~s')",
            title=self.title if titled else None,
            labels=labelled,
            labelOverlap="greedy",
            minExtent=0 if self.channel == "x" else 34,  # the same for all rows of panels, so that they stand in line
        )
        scale = alt.Scale(type="log", domain=[self.low, self.high], nice=False)
        channel = alt.X if self.channel == "x" else alt.Y
        return channel(f"{_field(column)}:Q", axis=axis, scale=scale)


class _Styles:
    """What a line and a point look like, the same in every panel."""

    def __init__(self, lines: list[str], frame: pl.DataFrame, line: str, colour: str, shown: pl.DataFrame) -> None:
        self.lines = lines
        by_bound = colour != line
        n = len(lines)
        greys = [_grey(0.15 + 0.5 * i / max(n - 1, 1)) for i in range(n)]
        hues = [LINE_COLOURS[i % len(LINE_COLOURS)] for i in range(n)]
        self.strokes = greys if by_bound else hues
        self.shapes = [SHAPES[i % len(SHAPES)] for i in range(n)]
        self.dashed: dict[str, str] = {}
        if "hardware_status" in frame.columns:
            dashed = frame.filter(pl.col("hardware_status").cast(pl.String).str.to_lowercase().is_in(UNCONFIRMED))
            self.dashed = dict(dashed.select(line, pl.col("hardware_status").cast(pl.String)).rows())
        self.names = {
            name: f"{name} ({self.dashed[name]})" if name in self.dashed and not name.endswith(")") else name
            for name in lines
        }
        seen = shown[colour].unique().to_list() if by_bound else lines
        if by_bound and set(seen) <= set(PART_COLOURS):
            keys = [key for key in PART_COLOURS if key in seen]
            self.fill_names = {key: BOUND_LABELS[key] for key in keys}
            self.fills = [PART_COLOURS[key] for key in keys]
        elif by_bound:
            keys = sorted(key for key in seen if key is not None)
            self.fill_names = {key: key for key in keys}
            self.fills = [LINE_COLOURS[i % len(LINE_COLOURS)] for i in range(len(keys))]
        else:
            self.fill_names = dict(self.names)
            self.fills = hues
        self.fill_title = "what binds the step" if colour == "bound" else colour
        self.line_title = line
        self.by_bound = by_bound

    def fill_colour(self, key: Any) -> str:
        """The colour behind a value of the colour column."""
        return dict(zip(self.fill_names, self.fills, strict=True)).get(key, _INK)

    def fill(self) -> Any:
        legend: Any = (
            alt.Legend(
                title=self.fill_title, symbolType="circle", symbolStrokeColor=_INK, symbolSize=110, symbolOpacity=1
            )
            if self.by_bound
            else None
        )
        return alt.Fill(
            "fill:N", scale=alt.Scale(domain=list(self.fill_names.values()), range=self.fills), legend=legend
        )

    def shape(self) -> Any:
        domain = [self.names[name] for name in self.lines]
        return alt.Shape(
            "line:N", scale=alt.Scale(domain=domain, range=self.shapes), legend=self._legend(), sort=domain
        )

    def stroke(self) -> Any:
        domain = [self.names[name] for name in self.lines]
        return alt.Stroke(
            "line:N", scale=alt.Scale(domain=domain, range=self.strokes), legend=self._legend(), sort=domain
        )

    def _legend(self) -> Any:
        """One legend for the shape of markers and the shade of lines: alike, so that they are merged."""
        long = max((len(name) for name in self.names.values()), default=0) > 36  # three side by side would not fit
        columns: Any = 1 if long else alt.Undefined
        return alt.Legend(
            columns=columns, title=self.line_title, symbolSize=110, symbolStrokeWidth=1.8, symbolFillColor="#FFFFFF"
        )


def _grey(lightness: float) -> str:
    level = round(255 * lightness)
    return f"#{level:02X}{level:02X}{level:02X}"


def _panel(
    points: pl.DataFrame, x: str, y: str, line: str, colour: str, styles: _Styles, x_axis: _LogAxis, y_axis: _LogAxis,
    title: str, *, first: bool, last: bool, apart: str | None = None,
) -> Any:  # fmt: skip
    waits = x in LOWER_IS_BETTER
    steps: Any = "step-after" if waits else "step-before"
    solid: list[dict[str, Any]] = []
    dashed: list[dict[str, Any]] = []
    markers: list[dict[str, Any]] = []
    for name in styles.lines:
        own = points.filter(pl.col(line) == name)
        if own.is_empty():
            continue
        xs, ys, colours = own[x].to_list(), own[y].to_list(), own[colour].to_list()
        hollow = own[apart].to_list() if apart is not None and apart in own.columns else [False] * own.height
        at = [(x_axis.pixel(a), y_axis.pixel(b)) for a, b in zip(xs, ys, strict=True)]
        label = styles.names[name]
        # The best throughput of all holds for every slower speed too: the line starts at the left edge. Of a latency
        # it holds for every longer one: the line ends at the right edge.
        corners = [] if waits else [{"x": min(x_axis.low, xs[0]), "y": ys[0], "line": label}]
        corners += [{"x": xs[i], "y": ys[i], "line": label} for i in _apart(at, _VERTEX_GAP)]
        corners += [{"x": max(x_axis.high, xs[-1]), "y": ys[-1], "line": label}] if waits else []
        (dashed if name in styles.dashed else solid).extend(corners)
        markers += [
            {"x": xs[i], "y": ys[i], "line": label, "fill": styles.fill_names.get(colours[i], str(colours[i]))}
            | ({"hollow": styles.fill_colour(colours[i])} if hollow[i] else {})
            for i in _markers(at)
            if x_axis.low <= xs[i] <= x_axis.high and y_axis.low <= ys[i] <= y_axis.high
        ]
    x_encoding = x_axis.encoding("x", titled=last)
    y_encoding = y_axis.encoding("y", titled=first)
    layers = [
        alt.Chart(Rows(values=values))
        .mark_line(interpolate=steps, strokeWidth=1.5, strokeDash=dash, clip=True, fill=None)
        .encode(x=x_encoding, y=y_encoding, stroke=styles.stroke(), detail="line:N")
        for values, dash in ((solid, [1, 0]), (dashed, [5, 3]))
        if values or dash == [1, 0]
    ]
    full = [marker for marker in markers if "hollow" not in marker]
    layers.append(
        alt.Chart(Rows(values=full))
        .mark_point(size=44, strokeWidth=0.7, opacity=1, fillOpacity=1, stroke=_INK)
        .encode(x=x_encoding, y=y_encoding, shape=styles.shape(), fill=styles.fill())
    )
    if len(full) < len(markers):  # their fill is the colour of the ring
        layers.append(
            alt.Chart(Rows(values=[marker for marker in markers if "hollow" in marker]))
            .mark_point(size=40, strokeWidth=2.2, opacity=1, fill="#FFFFFF", fillOpacity=1)
            .encode(
                x=x_encoding,
                y=y_encoding,
                shape=styles.shape(),
                stroke=alt.Stroke("hollow:N", scale=None, legend=None),
            )
        )
    return alt.layer(*layers).properties(width=x_axis.pixels, height=y_axis.pixels, **_heading(title))


def _heading(text: str) -> dict[str, Any]:
    """The title of a panel, as a keyword; nothing where there is none."""
    return {"title": alt.TitleParams(text, anchor="start", fontSize=12, fontWeight="normal", offset=4)} if text else {}


def _apart(at: Sequence[tuple[float, float]], gap: float) -> list[int]:
    """Indices of points at least `gap` apart along the line; the first and the last are always among them."""
    kept = [0]
    for i in range(1, len(at)):
        if math.dist(at[i], at[kept[-1]]) >= gap:
            kept.append(i)
    end = len(at) - 1
    if kept[-1] != end:
        if len(kept) > 1 and math.dist(at[end], at[kept[-1]]) < gap:
            kept.pop()
        kept.append(end)
    return kept


def _markers(at: Sequence[tuple[float, float]]) -> list[int]:
    """Which points of a line get a marker."""
    close = _apart(at, _MARKER_GAPS[0])
    return close if len(close) <= _BEADS else _apart(at, _MARKER_GAPS[1])


def where_time_goes(
    frame: pl.DataFrame,
    *,
    line: str = "hardware",
    floors: Sequence[float] | None = None,
    accuracy_floor: float | None = None,
    title: str = "",
    subtitle: str | Sequence[str] = "",
    x_title: str = "time per output token [ms]",
) -> alt.VConcatChart:
    """Six stacked parts of the time per output token, for the best point of each machine at matched speed.

    One panel per speed in `floors` (tok/s/user; chosen from the frame if not given), one bar per value of `line`: the
    point with the most output per GPU among those at least this fast and this accurate. The parts add up to TPOT.
    """
    if line not in frame.columns:
        frame = frame.with_columns(pl.lit("all").alias(line))
    frame = frame.with_columns(pl.col(line).cast(pl.String))
    if floors is None:
        floors = interactivity_floors(at_least(frame, accuracy_floor), by=line, count=2)
    extra = told_apart(frame)
    parts = {column: part for column, part in PARTS.items() if column in frame.columns}
    panels = []
    for floor in floors:
        best = best_at(frame, floor, by=line, accuracy_floor=accuracy_floor)
        if best.is_empty():
            continue
        bars, notes = [], []
        order = best[line].to_list()
        for point in best.iter_rows(named=True):
            for position, (column, part) in enumerate(parts.items()):
                seconds = point.get(column)
                if seconds is not None and math.isfinite(seconds):
                    bars.append({"line": point[line], "part": BOUND_LABELS[part], "n": position, "ms": 1e3 * seconds})
            notes.append({"line": point[line], "ms": 0.0, "text": _describe(point, extra)})
        domain = [BOUND_LABELS[part] for part in parts.values()]
        y = alt.Y(
            "line:N",
            sort=order,
            title=None,
            axis=alt.Axis(domain=False, ticks=False, labelLimit=420, labelOffset=6, grid=False),
            scale=alt.Scale(paddingInner=0, paddingOuter=0),
        )
        bar = (
            alt.Chart(Rows(values=bars))
            .mark_bar(size=13, yOffset=5, stroke=_INK, strokeWidth=0.4)
            .encode(
                x=alt.X("ms:Q", title=x_title, axis=alt.Axis(tickCount=6, grid=False)),
                y=y,
                fill=alt.Fill(
                    "part:N",
                    scale=alt.Scale(domain=domain, range=[PART_COLOURS[part] for part in parts.values()]),
                    sort=domain,
                    legend=alt.Legend(title="part of the time"),
                ),
                order="n:Q",
            )
        )
        text = (
            alt.Chart(Rows(values=notes))
            .mark_text(align="left", dy=-9, dx=2, fontSize=10, limit=600, fill=_INK)
            .encode(x="ms:Q", y=y, text="text:N")
        )
        heading = f"at least {floor:,.6g} tok/s/user"
        if accuracy_floor is not None:
            heading += f", accuracy ≥ {100 * accuracy_floor:g} %"
        panels.append(alt.layer(bar, text).properties(width=600, height=38 * best.height, **_heading(heading)))
    chart = alt.vconcat(*panels, spacing=14).resolve_scale(fill="shared", x="independent", y="independent")
    return dressed(chart, title, subtitle)


def _describe(point: dict[str, Any], extra: Mapping[str, Sequence[str]]) -> str:
    words = [f"{number(point.get('tok_s_gpu'))} tok/s/GPU", model_label(point, extra)]
    if point.get("precision"):
        words.append(str(point["precision"]))
    words.append(layout_label(point))
    if point.get("workload.batch") is not None:
        words.append(f"batch {integer(point['workload.batch'])}")
    if point.get("accuracy") is not None:
        words.append(f"accuracy {percent(point['accuracy'])} %")
    return " · ".join(words)


def _field(column: str) -> str:
    return column.replace(".", "\\.").replace("[", "\\[").replace("]", "\\]")


def dressed(chart: alt.VConcatChart, title: str, subtitle: str | Sequence[str]) -> alt.VConcatChart:
    """The look that all charts share: title and notes above, fonts, grid, legend below."""
    lines = [subtitle] if isinstance(subtitle, str) else list(subtitle)
    lines = [text for text in lines if text]
    if title or lines:
        chart = chart.properties(
            title=alt.TitleParams(
                title, subtitle=lines or alt.Undefined, anchor="start", fontSize=15, subtitleFontSize=11,
                subtitleColor="#555555", offset=12, subtitlePadding=4,
            )
        )  # fmt: skip
    dressed: alt.VConcatChart = (
        chart.configure(font=FONT, background="white", padding=12, aria=False)
        .configure_axis(
            labelFontSize=10.5, titleFontSize=11.5, titleFontWeight="normal", labelColor=_INK, titleColor=_INK,
            gridColor=_GRID, domainColor="#888888", tickColor="#888888", titlePadding=6,
        )
        .configure_legend(
            labelFontSize=11, titleFontSize=11, titleFontWeight="bold", labelColor=_INK, titleColor=_INK,
            labelLimit=420, symbolStrokeWidth=1.2, orient="bottom", columns=3, columnPadding=14, titlePadding=4,
            offset=6, padding=6,
        )
        .configure_title(color=_INK)
        .configure_view(stroke="#BBBBBB")
    )  # fmt: skip
    return dressed


def _renumbered(svg: str) -> str:
    """Identifiers counted from 0 in order of appearance: the renderer goes on counting from one picture to the next."""
    seen: dict[str, str] = {}
    return re.sub(r"\b(clip|gradient_)\d+\b", lambda m: seen.setdefault(m[0], f"{m[1]}{len(seen)}"), svg)


def save(chart: Any, path_without_suffix: str | Path) -> list[Path]:
    """Write the chart as SVG and PNG (two pixels per point), each under its name only once it is complete."""
    base = Path(path_without_suffix)
    written = []
    for suffix in ("svg", "png"):
        final = base.with_name(f"{base.name}.{suffix}")
        draft = base.with_name(f".{base.name}.{os.getpid()}.{suffix}")
        try:
            chart.save(draft, format=suffix, scale_factor=2 if suffix == "png" else 1)
            if suffix == "svg":
                draft.write_text(_renumbered(draft.read_text(encoding="utf-8")), encoding="utf-8")
            os.replace(draft, final)
        finally:
            draft.unlink(missing_ok=True)
        written.append(final)
    return written
