"""One point as a page of text and as a roofline chart: intensity against FLOP/s, one mark per operation."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Any

import altair as alt

from sweep.columns import BANDS
from sweep.explain import Explanation, compare, moves
from sweep.report.charts import BOUND_COLOURS, PART_COLOURS, Rows, dressed
from sweep.report.markdown import BOUND_LABELS, layout_label, number
from sweep.report.tags import tag

WIDTH = 120  # characters of a line at most
_PARTS = {name: f"{name}_s" for name in PART_COLOURS}


def _parts_of(e: Explanation) -> dict[str, str]:
    """The parts that the time of a token has: a replica that does not prefill has one less."""
    return {name: column for name, column in _PARTS.items() if column in e.columns}


_INK, _LINE = "#222222", "#555555"

# --- text --------------------------------------------------------------------------------------------------------


def roofline_text(explanation: Explanation, *, against: Explanation | None = None) -> str:
    """The whole explanation as aligned text, at most 120 characters wide.

    Args:
        explanation: the point.
        against: a second point, shown beside the first, operation by operation.
    """
    blocks = [_header(explanation, "point" if against is None else "point A")]
    if against is None:
        blocks += _point_blocks(explanation)
    else:
        blocks += [_header(against, "point B"), _differences(explanation, against)]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _point_blocks(e: Explanation) -> list[str]:
    blocks = [_totals(e), _parts(e)]
    blocks += [_ops(e, "decode"), _ops(e, "prefill"), _memory(e), _crossover(e), _moves(e)]
    return blocks


def _prices(e: Explanation) -> str:
    """What an hour and a GPU's power are reckoned at, and which published figure that is."""
    figures = e.inputs["inputs"]["hardware"]
    price, power = figures.get("usd_per_hour"), figures.get("watts")
    parts = []
    if price is not None:
        parts.append(f"{price:g} $/GPU-hour ({e.inputs.get('hardware_price') or 'unknown'})")
    if power is not None:
        parts.append(f"{power:,g} W ({e.inputs.get('hardware_power') or 'unknown'})")
    return ", ".join(parts)


def _header(e: Explanation, title: str) -> str:
    lay, load, figures = e.inputs["layout"], e.inputs["workload"], e.inputs["inputs"]["precision"]
    shaped = e.inputs.get("model_overridden") or []
    model_changed = f": {', '.join(shaped)}" if shaped else ""
    changed = e.inputs["hardware_overridden"]
    machine = f"{e.inputs['hardware']} ({e.inputs['hardware_status']}{': ' if changed else ''}{', '.join(changed)})"
    label = layout_label({f"layout.{key}": value for key, value in lay.items()})
    fixed = load["context"] is not None
    lengths = f"context {load['context']:,}" if fixed else f"{load['isl']:,} in + {load['osl']:,} out"
    formats = ", ".join(f"{key} {figures[key]}" for key in ("weights", "activations", "kv", "output"))
    verdict = "feasible" if e.columns["feasible"] else f"INFEASIBLE: {', '.join(e.columns['reasons'])}"
    c = e.columns
    score = "unknown"
    if c["accuracy"] is not None:
        low, high = 100 * c["accuracy_low"], 100 * c["accuracy_high"]
        score = f"{100 * c['accuracy']:.1f} % ({low:.1f} to {high:.1f}), {e.accuracy_label}"
        if e.ranges_left:
            score += f"; extrapolates {', '.join(e.ranges_left)}"
    options = [f"{key}={lay[key]}" for key in ("wo_shard",) if lay[key] not in (None, "n")]
    flags = (
        "ffn_tied",
        "overlap",
        "hop_b",
        "two_batch",
        "redundant_slots",
        "dynamic_chunks",
        "prefill_chunk",
        "microbatches",
    )
    options += [f"{key}={lay[key]}".lower() for key in flags if lay[key]]
    attention = f"attention tpa {lay['tpa']} x kvp {lay['kvp']} x dpa {lay['dpa']}"
    ffn = f"FFN tpf {lay['tpf']} x ep {lay['ep']}"
    lines = [
        (
            title,
            f"{e.inputs['model']} ({e.inputs['model_status']}{model_changed}) on {machine}, "
            f"{e.inputs['efficiency']} efficiency",
        ),
        (
            "layout",
            f"{label}: {attention}, {ffn}, pp {lay['pp']}, {_count(lay['gpus'], 'GPU')}",
        ),
        ("", ", ".join(options)),
        ("load", f"{_count(load['batch'], 'request')} in flight, {lengths} tokens"),
        ("prices", _prices(e)),
        ("formats", f"{e.inputs['precision']}: {formats}"),
        ("constants", _constants(e)),
        ("accuracy", score),
        ("verdict", verdict),
    ]
    return "\n".join(
        textwrap.fill(text, WIDTH, initial_indent=f"{name:<10}", subsequent_indent=" " * 10)
        for name, text in lines
        if text
    )


def _constants(e: Explanation) -> str:
    """Whose efficiencies were used, where a preset tells chip generations apart."""
    said = e.inputs["constants"]
    if said["from"] is None:
        return "common to all chips: no chip of this maker was measured" if said["inherited"] else ""
    if said["inherited"]:
        return f"of {said['from']}, the newest measured generation of this maker; {said['generation']} was not measured"
    return f"measured on {said['from']}"


def _between(e: Explanation, column: str, factor: float) -> str:
    """Both ends of a column's 80 % band, as its value is shown; nothing where it has none."""
    band = BANDS.get(column)
    low, high = (None, None) if band is None else (e.columns.get(band.low), e.columns.get(band.high))
    if low is None or high is None:
        return ""
    return f"{number(low * factor)} to {number(high * factor)}"


def _count(number: float, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


_LEFT = (
    ("time per output token", "tpot_s", 1e3, "ms"),
    ("speed of a request", "tok_s_user", 1.0, "tok/s/user"),
    ("output throughput", "tok_s_gpu", 1.0, "tok/s/GPU"),
    ("input and output", "total_tok_s_gpu", 1.0, "tok/s/GPU"),
    ("time to first token", "ttft_s", 1e3, "ms"),
    ("whole request", "request_s", 1.0, "s"),
)
_RIGHT = (
    ("of peak FLOP/s (MFU)", "mfu", 100.0, "%"),
    ("of bandwidth (MBU)", "mbu", 100.0, "%"),
    ("intensity of a step", "intensity", 1.0, "flop/B"),
    ("per megawatt", "tok_s_mw", 1.0, "tok/s/MW"),
    ("energy", "joule_per_tok", 1.0, "J/tok"),
    ("price", "usd_per_mtok", 1.0, "USD/Mtok"),
)


def _totals(e: Explanation) -> str:
    """The metrics of the point, and where there are bands what 8 of 10 measurements lie between."""
    banded = e.columns["tpot_low_s"] is not None

    def row(name: str, column: str, factor: float, unit: str) -> list[str]:
        ends = [_between(e, column, factor)] if banded else []
        return [name, _figure(e.columns[column], factor), unit, *ends]

    left, right = ([row(*item) for item in half] for half in (_LEFT, _RIGHT))
    n = len(left[0])
    beside = [[*a, f" {b[0]}", *b[1:]] for a, b in zip(left, right, strict=True)]
    lines = _aligned(beside, left=(0, 2, 3, n, n + 2, n + 3))
    if max(map(len, lines)) > WIDTH - 2:
        lines = _aligned([*left, *right], left=(0, 2, 3))
    head = "Totals, and between what 8 of 10 measurements lie" if banded else "Totals"
    return "\n".join([head, *(f"  {line}" for line in lines)])


def _parts(e: Explanation) -> str:
    total = e.columns["tpot_s"]
    if total is None:
        return ""
    lines = ["Where the time of an output token goes"]
    for name, column in _parts_of(e).items():
        seconds = e.columns[column] or 0.0
        share = seconds / total if total else 0.0
        bar = "#" * round(50 * share)
        mark = "  <- bound" if name == e.columns["bound"] else ""
        lines.append(
            f"  {BOUND_LABELS[name]:<16} {_figure(seconds, 1e3):>10} ms {100 * share:6.1f} %  {bar}{mark}".rstrip()
        )
    return "\n".join(lines)


def _ops(e: Explanation, phase: str) -> str:
    rows = [r for r in e.ops if r["phase"] == phase]
    known = all(r["time_s"] is not None for r in rows)
    step_s = e.step["step_s"] if phase == "decode" else (sum(r["count"] * r["time_s"] for r in rows) if known else None)
    heads = [
        "op",
        "layers",
        "M x N x K",
        "GFLOP",
        "MB in",
        "MB out",
        "MB sent",
        "flop/B",
        "math",
        "memory",
        "comm",
        "floor",
    ]
    table = [[*heads, "bound", "share"], ["", "", "", "", "", "", "", "", "us", "us", "us", "us", "", "%"]]
    for r in rows:
        share = r["count"] * r["time_s"] / step_s if step_s and r["time_s"] is not None else None
        table.append(
            [
                r["op"],
                str(r["count"]),
                _shape(r),
                *(
                    _short(r[key], factor)
                    for key, factor in (("flops", 1e-9), ("read_bytes", 1e-6), ("write_bytes", 1e-6))
                ),
                _short(r["comm_bytes"], 1e-6),
                _short(r["intensity"]),
                *(_short(r[key], 1e6) for key in ("math_s", "memory_s", "comm_s", "floor_s")),
                r["bound"] or "-",
                "-" if share is None else f"{100 * share:.1f}",
            ]
        )
    beside: list[tuple[str, float | None]] = []
    if phase == "decode":
        names = {
            "between_kernels_s": "between kernels",
            "host_s": "host",
            "hidden_s": "hidden",
            "waiting_s": "waiting",
            "drafting_s": "drafting",
        }
        beside = [(text, e.step[key]) for key, text in names.items() if e.step[key]]
    for name, seconds in beside:
        share_text = f"{100 * (seconds or 0.0) / step_s:.1f}" if step_s else "-"
        table.append([name, "", "", "", "", "", "", "", "", "", "", "", "", share_text])
    if phase == "decode":
        title = f"Decode, one GPU: each row is one layer of one step ({_step_words(e)})"
    else:
        title = "Prefill, one GPU: each row is one layer of the slowest chunk; shares are of this chunk"
    return "\n".join([title, *_aligned(table, left=(0, 2, 12))])


def _step_words(e: Explanation) -> str:
    words = [f"{_figure(e.step['step_s'], 1e3)} ms"]
    if (e.step["microbatches"] or 1) > 1:
        words.append(f"one of {e.step['microbatches']} microbatches")
    if (e.step["expected_tokens"] or 1.0) > 1.0:
        words.append(f"{_figure(e.step['expected_tokens'], 1.0)} tokens expected")
    return ", ".join(words)


def _memory(e: Explanation) -> str:
    capacity = e.memory["capacity_bytes"]
    lines = ["Memory of one GPU"]
    names = ("weights", "kv", "activation", "reserve", "held", "capacity")
    words = ("weights", "cache and state", "activations", "reserve", "held", "capacity")
    for name, text in zip(names, words, strict=True):
        size = e.memory[f"{name}_bytes"]
        share = f"{100 * size / capacity:6.1f} %" if size is not None and capacity else ""
        bar = "#" * min(round(50 * size / capacity), 60) if size is not None and capacity and name != "capacity" else ""
        lines.append(f"  {text:<16} {_figure(size, 1e-9):>10} GB {share}  {bar}".rstrip())
    most = e.memory["max_batch"]
    asked = e.inputs["workload"]["batch"]
    if most is not None:
        verdict = "fits" if most >= asked else "does not fit"
        lines.append(f"  largest batch that fits: {most:,.0f} requests; asked for: {asked:,} ({verdict})")
    return "\n".join([*lines, *_tiers(e)])


def _tiers(e: Explanation) -> list[str]:
    """What lies in which tier, and what a prefix in one of them costs; nothing where memory is one tier."""
    if "tiers" not in e.memory:
        return []
    classes = ("weights", "experts", "kv", "activations", "prefix")
    lines = [f"  placement {e.memory['placement']}, GB:"]
    lines.append("    " + f"{'tier':<8}" + "".join(f"{word:>12}" for word in ("room", "TB/s", *classes)))
    for t in e.memory["tiers"]:
        cells = [_figure(t["room_bytes"], 1e-9), _figure(t["bytes_per_s"], 1e-12)]
        cells += [_figure(t[f"{c}_bytes"], 1e-9) for c in classes]
        lines.append("    " + f"{t['tier']:<8}" + "".join(f"{cell:>12}" for cell in cells))
    if e.memory["unplaced_bytes"]:
        lines.append(f"    {_figure(e.memory['unplaced_bytes'], 1e-9)} GB find no room")
    back = e.memory.get("reload")
    if back:
        ms = {k: _figure(back[f"{k}_s"], 1e3) for k in ("reload", "rest", "with_reload", "recompute")}
        lines.append(
            f"  prefix of {_figure(back['bytes'], 1e-9)} GB from another tier: reload {ms['reload']} ms, the rest of "
            f"the prompt {ms['rest']} ms, both {ms['with_reload']} ms; computing all of it {ms['recompute']} ms: "
            f"{back['faster']} is faster"
        )
        lines.append(f"    break-even bandwidth {_figure(back['break_even_bytes_per_s'], 1e-9)} GB/s")
    return lines


def _crossover(e: Explanation) -> str:
    """Each GEMM with its M and the M from which on it computes longer than it waits for memory."""
    cells: dict[str, list[str]] = {}
    for r in e.ops:
        if (
            r["phase"] == "decode"
            and r["n"] is not None
            and r["k"] is not None
            and r["op"] not in ("attention", "indexer")
        ):
            star = r["crossover_m"]
            here = "never" if star is None else f"{star:,.0f}"
            mark = "memory" if star is None or (r["m"] or 0) < star else "math"
            cells.setdefault(f"{r['op']} {r['n']} {r['k']}", [r["op"], _whole(r["m"]), here, mark])
    rows = list(cells.values())
    if not rows:
        return ""
    half = -(-len(rows) // 2)
    head = ["GEMM", "M now", "M*", "waits for"]
    table = [head + (["   ", *head] if len(rows) > 1 else [])]
    for i in range(half):
        second = rows[half + i] if half + i < len(rows) else ["", "", "", ""]
        table.append(rows[i] + (["   ", *second] if len(rows) > 1 else []))
    title = (
        "Decode: tokens M* from which on a GEMM is bound by math (never: inputs and outputs take longer than the math)"
    )
    return "\n".join([title, *_aligned(table, left=(0, 3, 5, 8))])


def _moves(e: Explanation) -> str:
    bound = e.columns["bound"]
    if bound is None:
        return ""
    largest = sorted(_parts_of(e), key=lambda name: -(e.columns[_PARTS[name]] or 0.0))
    lines = [f"What would have to change for the bound to move from {BOUND_LABELS[bound]}, all else equal"]
    for move in moves(e):
        value = ""
        if move.value is not None:
            value = f"to {_with_prefix(move.value, move.unit)}"
        most = e.columns["max_batch"]
        beyond = move.lever == "batch" and move.value is not None and most is not None and move.value > most
        note = "  (more than fits)" if beyond else ""
        direction = f"x {_figure(move.factor)}"
        lines.append(f"  {move.lever:<22} {direction:<11} {value:<20} -> {BOUND_LABELS[move.bound]}{note}")
    if len(lines) == 1:
        lines.append("  nothing within a factor of 64 moves it")
    second = largest[1] if largest[0] == bound else largest[0]
    a, b = e.columns[_PARTS[bound]], e.columns[_PARTS[second]]
    if b:
        lines.append(f"  next largest part: {BOUND_LABELS[second]}, {a / b:.3g} times smaller")
    return "\n".join(lines)


def _differences(a: Explanation, b: Explanation) -> str:
    """Totals, parts and operations of two points side by side."""
    totals: list[tuple[str, str, float, str]] = [
        ("time per output token", "tpot_s", 1e3, "ms"),
        ("speed of a request", "tok_s_user", 1.0, "tok/s/user"),
        ("output throughput", "tok_s_gpu", 1.0, "tok/s/GPU"),
        ("time to first token", "ttft_s", 1e3, "ms"),
        ("price", "usd_per_mtok", 1.0, "USD/Mtok"),
        ("held per GPU", "held_bytes", 1e-9, "GB"),
        ("largest batch", "max_batch", 1.0, "requests"),
        ("accuracy", "accuracy", 100.0, "%"),
        *((BOUND_LABELS[name], column, 1e3, "ms") for name, column in {**_parts_of(a), **_parts_of(b)}.items()),
    ]
    table = [["", "A", "B", "", "B / A"]]
    for name, column, factor, unit in totals:
        x, y = a.columns.get(column), b.columns.get(column)
        table.append([name, _figure(x, factor), _figure(y, factor), unit, _ratio(x, y)])
    table.append(["bound", a.columns["bound"] or "-", b.columns["bound"] or "-", "", ""])
    blocks = ["\n".join(["Totals", *_aligned(table, left=(0, 3))])]
    for phase in ("decode", "prefill"):
        head = ["op", "layers A", "B", "M x N x K  A", "M x N x K  B", "us A", "us B", "B / A", "bound A", "bound B"]
        table = [head]
        for row in compare(a, b):
            if row["phase"] != phase:
                continue
            shapes = [_shape({k: row[k][side] for k in ("m", "n", "k")}) for side in (0, 1)]
            table.append(
                [
                    row["op"],
                    *("-" if x is None else str(x) for x in row["count"]),
                    *shapes,
                    *(_short(x, 1e6) for x in row["time_s"]),
                    _ratio(*row["time_s"]),
                    *(x or "-" for x in row["bound"]),
                ]
            )
        title = f"{phase.capitalize()}: time of one layer on one GPU; an op that one of the points lacks is a dash"
        blocks.append("\n".join([title, *_aligned(table, left=(0, 3, 4, 8, 9))]))
    return "\n\n".join(blocks)


def _aligned(table: Sequence[Sequence[str]], *, left: Sequence[int]) -> list[str]:
    """Rows with their columns at equal width, text to the left, numbers to the right."""
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    gap = "  " if sum(widths) + 2 * len(widths) <= WIDTH else " "
    return [
        gap.join(
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]


def _shape(row: dict[str, Any]) -> str:
    """M x N x K as far as the operation has them."""
    sides = [row[key] for key in ("m", "n", "k")]
    return "" if all(side is None for side in sides) else " x ".join(_whole(side) for side in sides if side is not None)


def _whole(value: Any) -> str:
    """A count without separators, a fraction with up to three digits."""
    if value is None:
        return "-"
    return str(round(value)) if value >= 100 or float(value).is_integer() else f"{value:.3g}"


def _short(value: float | None, factor: float = 1.0) -> str:
    """A number in at most seven characters, three digits of it."""
    if value is None:
        return "-"
    x = value * factor
    if x == 0:
        return "0"
    if abs(x) >= 1e6 or abs(x) < 5e-4:
        return f"{x:.0e}".replace("e-0", "e-").replace("e+0", "e")
    return f"{x:.{0 if abs(x) >= 99.95 else 1 if abs(x) >= 9.995 else 2 if abs(x) >= 0.9995 else 3}f}"


def _figure(value: float | None, factor: float = 1.0) -> str:
    """A number with four digits, thousands separated; unknown is a dash."""
    if value is None:
        return "-"
    x = value * factor
    if x == 0:
        return "0"
    if abs(x) >= 1e12 or abs(x) < 1e-3:
        return f"{x:.3e}"
    return f"{x:,.{max(3 - math.floor(math.log10(abs(x))), 0)}f}"


def _ratio(a: float | None, b: float | None) -> str:
    if not a or b is None:
        return "-" if a != b else ("1" if a == 0 else "-")
    return f"{b / a:.3g}"


def _with_prefix(value: float, unit: str) -> str:
    """A figure with a decimal prefix: 8 TB/s, 4,161 requests."""
    if unit in ("requests", "tok"):
        return f"{value:,.0f} {unit}"
    for size, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G")):
        if value >= size:
            return f"{value / size:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"


# --- chart -------------------------------------------------------------------------------------------------------

_PIXELS = (620, 400)
_SHAPES = {"decode": "circle", "prefill": "square"}
_LETTER, _LINE_HEIGHT = 5.6, 12.0  # pixels of a label's letter and line


def roofline_chart(
    explanation: Explanation, *, title: str = "", subtitle: str | Sequence[str] = ""
) -> alt.VConcatChart:
    """Intensity against FLOP/s, both logarithmic: roofs of the machine, one mark per operation.

    A mark's height is what the operation reaches: its FLOPs over its time. On the sloped roof memory bandwidth is the
    limit, on a flat one the dense peak of a math format. Decode and prefill differ by shape, the colour says what
    binds the operation. Collectives compute nothing and are not drawn.
    """
    marks = [
        {
            "x": r["intensity"],
            "y": r["flops"] / r["time_s"],
            "op": r["op"],
            "phase": r["phase"],
            "bound": BOUND_LABELS[r["bound"]],
        }
        for r in explanation.ops
        if r["flops"] and r["intensity"] and r["time_s"]
    ]
    slope, peaks = explanation.hbm_bytes_per_s, explanation.peaks
    top = max([*peaks.values(), *(m["y"] for m in marks)], default=1e15)
    knees = [peak / slope for peak in peaks.values()] if slope else []
    x_axis = _Axis([*(m["x"] for m in marks), *knees], _PIXELS[0], 1.6, 2.5)
    floor = min((m["y"] for m in marks), default=top / 1e3)
    if slope:
        floor = min(floor, slope * x_axis.low * 2)
    y_axis = _Axis([max(floor, top / 1e6), top], _PIXELS[1], 1.2, 5.0)

    def x_encoding(column: str) -> Any:
        axis = alt.Axis(values=x_axis.ticks, labelExpr="format(datum.value, '~g')", title="intensity [FLOP/byte]")
        return alt.X(
            f"{column}:Q", axis=axis, scale=alt.Scale(type="log", domain=[x_axis.low, x_axis.high], nice=False)
        )

    def y_encoding(column: str) -> Any:
        axis = alt.Axis(
            values=y_axis.ticks,
            labelExpr="replace(format(datum.value, '~s'), /([kMGTP])/, ' $1') + 'FLOP/s'",
            title=None,
        )
        return alt.Y(
            f"{column}:Q", axis=axis, scale=alt.Scale(type="log", domain=[y_axis.low, y_axis.high], nice=False)
        )

    layers: list[Any] = []
    roofs, names = _roofs(slope, peaks, x_axis, y_axis)
    if roofs:
        layers.append(
            alt.Chart(Rows(values=roofs))
            .mark_line(stroke=_LINE, strokeWidth=1.4, clip=True)
            .encode(x=x_encoding("x"), y=y_encoding("y"), detail="roof:N")
        )
    layers += [
        alt.Chart(Rows(values=[name]))
        .mark_text(align="left", dy=name["dy"], dx=name["dx"], angle=name["angle"], fontSize=11, fill=_LINE)
        .encode(x=x_encoding("x"), y=y_encoding("y"), text="text:N")
        for name in names
    ]
    taken = _along(roofs, x_axis, y_axis)
    leaders, labels = _labels(_merged(marks, x_axis, y_axis), x_axis, y_axis, taken)
    if leaders:
        layers.append(
            alt.Chart(Rows(values=leaders))
            .mark_line(stroke="#999999", strokeWidth=0.7)
            .encode(x=x_encoding("x"), y=y_encoding("y"), detail="n:N")
        )
    seen = [BOUND_LABELS[name] for name in BOUND_COLOURS if any(m["bound"] == BOUND_LABELS[name] for m in marks)]
    colours = [BOUND_COLOURS[name] for name in BOUND_COLOURS if BOUND_LABELS[name] in seen]
    layers.append(
        alt.Chart(Rows(values=marks))
        .mark_point(size=62, strokeWidth=0.7, opacity=1, fillOpacity=1, stroke=_INK)
        .encode(
            x=x_encoding("x"),
            y=y_encoding("y"),
            shape=alt.Shape(
                "phase:N",
                scale=alt.Scale(domain=list(_SHAPES), range=list(_SHAPES.values())),
                legend=alt.Legend(title="phase", symbolFillColor="#FFFFFF", symbolStrokeColor=_INK),
            ),
            fill=alt.Fill(
                "bound:N",
                scale=alt.Scale(domain=seen, range=colours),
                legend=alt.Legend(title="what binds the op", symbolType="circle", symbolStrokeColor=_INK, columns=6),
            ),
        )
    )
    for align in ("left", "right"):
        own = [label for label in labels if label["align"] == align]
        if own:
            layers.append(
                alt.Chart(Rows(values=own))
                .mark_text(
                    align=align, baseline="middle", fontSize=10, lineHeight=_LINE_HEIGHT, lineBreak="\n", fill=_INK
                )
                .encode(x=x_encoding("x"), y=y_encoding("y"), text="text:N")
            )
    panel = alt.layer(*layers).properties(width=_PIXELS[0], height=_PIXELS[1])
    e = explanation
    status = {e.inputs["hardware"]: e.inputs["hardware_status"]}
    heading = title or f"Roofline of {e.inputs['model']} on {tag(e.inputs['hardware'], status)}"
    return dressed(alt.vconcat(panel), heading, subtitle or _caption(e))


def _caption(e: Explanation) -> list[str]:
    load, lay = e.inputs["workload"], e.inputs["layout"]
    label = layout_label({f"layout.{key}": value for key, value in lay.items()})
    lengths = (
        f"context {load['context']:,}" if load["context"] is not None else f"{load['isl']:,} in, {load['osl']:,} out"
    )
    first = f"{e.inputs['precision']}, {label}, batch {load['batch']:,}, {lengths}, {e.inputs['efficiency']} efficiency"
    return [first, "height: FLOP/s that one GPU reaches in the op; collectives compute nothing and are not drawn"]


class _Axis:
    """A log axis with a fixed domain, so that labels can be placed before anything is drawn."""

    def __init__(self, values: Sequence[float], pixels: int, below: float, above: float) -> None:
        low, high = (min(values), max(values)) if values else (1.0, 10.0)
        self.low, self.high, self.pixels = low / below, high * above, pixels
        exponents = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        steps = (1,) if math.log10(self.high / self.low) > 2.5 else (1, 2, 5)
        self.ticks = [m * 10.0**e for e in exponents for m in steps if self.low <= m * 10.0**e <= self.high]

    def pixel(self, value: float) -> float:
        """Pixels from the low end."""
        return float(self.pixels * math.log(value / self.low) / math.log(self.high / self.low))

    def value(self, pixel: float) -> float:
        """The value at a pixel."""
        return float(self.low * math.exp(pixel / self.pixels * math.log(self.high / self.low)))


def _roofs(
    slope: float | None, peaks: dict[str, float], x_axis: _Axis, y_axis: _Axis
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Lines of the roof and their names: flat ones from where memory bandwidth no longer limits, the slope up to it."""
    lines: list[dict[str, Any]] = []
    names: list[dict[str, Any]] = []
    for unit, peak in peaks.items():
        knee = max(peak / slope, x_axis.low) if slope else x_axis.low
        lines += [{"x": x, "y": peak, "roof": unit} for x in (knee, x_axis.high)]
    for peak in sorted(set(peaks.values())):
        text = f"{', '.join(u for u, p in peaks.items() if p == peak)} {_with_prefix(peak, 'FLOP/s')}"
        names.append({"x": x_axis.high, "y": peak, "text": text, "dx": 5, "dy": 0, "angle": 0})
    if slope:
        top = max(peaks.values(), default=y_axis.high)
        ends = [max(x_axis.low, y_axis.low / slope), min(top / slope, x_axis.high)]
        lines += [{"x": x, "y": slope * x, "roof": "memory"} for x in ends]
        across = x_axis.pixel(ends[1]) - x_axis.pixel(ends[0])
        up = y_axis.pixel(slope * ends[1]) - y_axis.pixel(slope * ends[0])
        angle = -math.degrees(math.atan2(up, across)) % 360.0
        middle = x_axis.value(x_axis.pixel(ends[0]) + 0.12 * across)
        text = f"memory {_with_prefix(slope, 'B/s')}"
        names.append({"x": middle, "y": slope * middle, "text": text, "dx": 0, "dy": -7, "angle": angle})
    return lines, names


def _merged(marks: list[dict[str, Any]], x_axis: _Axis, y_axis: _Axis) -> list[dict[str, Any]]:
    """Marks that lie on each other share one label."""
    groups: list[dict[str, Any]] = []
    for mark in marks:
        at = (x_axis.pixel(mark["x"]), y_axis.pixel(mark["y"]))
        near = next((g for g in groups if math.dist(at, g["at"]) < 4.0), None)
        if near is None:
            groups.append({"at": at, "texts": [mark["op"]]})
        elif mark["op"] not in near["texts"]:
            near["texts"].append(mark["op"])
    return [{"at": g["at"], "text": "\n".join(textwrap.wrap(", ".join(g["texts"]), 26))} for g in groups]


def _along(roofs: list[dict[str, Any]], x_axis: _Axis, y_axis: _Axis) -> list[tuple[float, float, float, float]]:
    """Small boxes along the roof lines, so that labels keep clear of them."""
    boxes = []
    for a, b in zip(roofs[::2], roofs[1::2], strict=True):  # two ends each
        from_x, to_x = x_axis.pixel(a["x"]), x_axis.pixel(b["x"])
        from_y, to_y = y_axis.pixel(a["y"]), y_axis.pixel(b["y"])
        steps = max(int(abs(to_x - from_x) / 5), 1)
        for i in range(steps + 1):
            x, y = from_x + (to_x - from_x) * i / steps, from_y + (to_y - from_y) * i / steps
            boxes.append((x - 2.5, x + 2.5, y - 2.0, y + 2.0))
    return boxes


def _box(x: float, y: float, text: str, align: str) -> tuple[float, float, float, float]:
    """Left, right, bottom and top of a label of one or more lines, in pixels."""
    lines = text.split("\n")
    width, half = max(map(len, lines)) * _LETTER, len(lines) * _LINE_HEIGHT / 2
    left = x if align == "left" else x - width
    return left, left + width, y - half, y + half


def _labels(
    groups: list[dict[str, Any]], x_axis: _Axis, y_axis: _Axis, taken: list[tuple[float, float, float, float]]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A place for each label beside its mark where nothing else is, further out with a leader line if need be."""
    boxes = [*taken, *((x - 5, x + 5, y - 5, y + 5) for x, y in (g["at"] for g in groups))]
    leaders: list[dict[str, Any]] = []
    labels: list[dict[str, Any]] = []

    def overlap(box: tuple[float, float, float, float]) -> float:
        left, right, low, high = box
        outside = max(0.0, -left, right - x_axis.pixels) + max(0.0, -low, high - y_axis.pixels)
        covered = sum(
            max(0.0, min(right, r) - max(left, a)) * max(0.0, min(high, t) - max(low, b)) for a, r, b, t in boxes
        )
        return float(covered + 1e3 * outside)

    for n, group in enumerate(sorted(groups, key=lambda g: (-g["at"][1], -g["at"][0]))):
        x, y = group["at"]
        best: tuple[float, float, float, str] | None = None
        for reach in (9.0, 20.0, 34.0, 50.0, 70.0, 95.0, 125.0):
            for degrees in (0, 20, -20, 45, -45, 70, -70, 85):
                for align, side in (("left", 1.0), ("right", -1.0)):
                    at = (
                        x + side * reach * math.cos(math.radians(degrees)),
                        y + reach * math.sin(math.radians(degrees)),
                    )
                    cost = overlap(_box(*at, group["text"], align))
                    if best is None or cost < best[0] - 1e-9:
                        best = (cost, *at, align)
            if best is not None and best[0] == 0:
                break
        assert best is not None
        _, to_x, to_y, align = best
        boxes.append(_box(to_x, to_y, group["text"], align))
        place = {"x": x_axis.value(to_x), "y": y_axis.value(to_y)}
        first = to_y + group["text"].count("\n") * _LINE_HEIGHT / 2  # a text is placed by its first line
        labels.append({"x": place["x"], "y": y_axis.value(first), "text": group["text"], "align": align})
        if math.dist((x, y), (to_x, to_y)) > 12:
            back = -2.0 if align == "left" else 2.0
            leaders.append({"x": x_axis.value(x), "y": y_axis.value(y), "n": n})
            leaders.append({"x": x_axis.value(to_x + back), "y": place["y"], "n": n})
    return leaders, labels
