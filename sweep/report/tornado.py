"""What one more of something is worth, as text, as rows and as a tornado chart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from sweep.report.charts import Rows, dressed
from sweep.report.markdown import BOUND_LABELS, grid, number
from sweep.sensitivity import Lever, Sensitivity, Step

KIND_COLOURS = {"machine": "#0072B2", "format": "#E69F00", "model": "#009E73", "load": "#CC79A7"}
KIND_LABELS = {"machine": "machine", "format": "number format", "model": "model shape", "load": "load"}
_INK = "#222222"
LEAST = 0.005  # elasticities below this are left out of charts and of the text
_WORDS = {
    "tok_s_user": "tok/s/user", "tok_s_gpu": "tok/s/GPU", "ttft_s": "TTFT", "request_s": "request", "usd_per_mtok":
    "USD/Mtok", "max_batch": "largest batch",
}  # fmt: skip


def title_of(s: Sensitivity) -> str:
    """The point in one line."""
    n = s.names
    return f"{n['model']} on {n['hardware']}, {n['precision']}, {n['efficiency']}"


def sensitivity_text(s: Sensitivity) -> str:
    """What a terminal shows: the point, slopes, what round amounts buy, and the next whole steps."""
    p = s.point
    state = "feasible" if s.feasible else f"infeasible: {', '.join(s.reasons)}"
    text = [
        f"{title_of(s)}: {number(p['tok_s_user'], 4)} tok/s/user, {number(p['tok_s_gpu'], 4)} tok/s/GPU, TTFT "
        f"{number(p['ttft_s'])} s, bound by {BOUND_LABELS[s.bound]}, {state}",
        "",
        "1 % more of it changes the result by so many per cent (of sizes: along values that divide as well as these):",
        "",
        _levers(s.levers),
        "",
        "A round amount more, evaluated again:",
        "",
        grid(
            ["more", "of", "tok/s/user", "tok/s/GPU", "TTFT [ms]", "largest batch"],
            [
                [
                    f"+{w.more}",
                    w.key,
                    _gain(w.gained["tok_s_user"], w.relative["tok_s_user"]),
                    _gain(w.gained["tok_s_gpu"], w.relative["tok_s_gpu"]),
                    _gain(None if w.gained["ttft_s"] is None else 1e3 * w.gained["ttft_s"], w.relative["ttft_s"]),
                    _gain(w.gained["max_batch"], w.relative["max_batch"]),
                ]
                for w in s.worth
            ],
            left=[True, True, False, False, False, False],
        ),
    ]
    if s.users_per_gb is not None:
        text.append(f"Capacity does not change the time of a token: 1 GB more per GPU holds {number(s.users_per_gb)} "
                    "more users per replica.")  # fmt: skip
    text += ["", "The next whole step, evaluated again (times the present result):", "", _steps(s.steps)]
    return "\n".join(text) + "\n"


def _gain(gained: float | None, relative: float | None) -> str:
    if gained is None:
        return "–"
    share = "" if relative is None else f" ({100 * relative:+.1f} %)"
    return f"{'+' if gained > 0 else ''}{number(gained)}{share}" if gained else "0"


def _levers(levers: Sequence[Lever]) -> str:
    shown = [lever for lever in levers if _largest(lever) >= LEAST]
    shown.sort(key=lambda lever: -abs(lever.elasticity["tok_s_user"] or 0.0))
    columns = ("tok_s_user", "tok_s_gpu", "ttft_s", "usd_per_mtok", "max_batch")
    rows = [
        [
            lever.key,
            lever.label,
            "–" if lever.now is None else f"{lever.now:.6g} {lever.unit}".removesuffix(" 1"),
            *("–" if (e := lever.elasticity[c]) is None else f"{e:+.3f}" if abs(e) >= 5e-4 else "0" for c in columns),
        ]
        for lever in shown
    ]
    return grid(["lever", "what", "now", *(_WORDS[c] for c in columns)], rows, left=[True, True, *([False] * 6)])


def _largest(lever: Lever) -> float:
    return max((abs(e) for e in lever.elasticity.values() if e is not None), default=0.0)


def _steps(steps: Sequence[Step]) -> str:
    rows = []
    for step in steps:
        note = step.refused or ("" if step.feasible else ", ".join(step.reasons))
        accuracy = step.result["accuracy"]
        rows.append(
            [
                step.key,
                f"{step.before} -> {step.after}",
                *("–" if (r := step.ratio[c]) is None else f"{r:.3f}" for c in ("tok_s_user", "tok_s_gpu", "ttft_s")),
                "–" if accuracy is None else f"{100 * accuracy:.2f}",
                "–" if (b := step.ratio["max_batch"]) is None else f"{b:.3f}",
                note or "–",
            ]
        )
    heads = ["step", "from -> to", "tok/s/user", "tok/s/GPU", "TTFT", "accuracy [%]", "largest batch", "against it"]
    return grid(heads, rows, left=[True, True, False, False, False, False, False, True])


def comparison_text(points: Sequence[Sensitivity]) -> str:
    """Several points side by side: what one more TB/s and the other levers are worth to each."""
    rows = []
    for s in points:
        more = {w.key: w for w in s.worth}

        def worth(key: str, of: dict[str, Any] = more) -> str:
            w = of.get(key)
            return "–" if w is None else _gain(w.gained["tok_s_user"], w.relative["tok_s_user"])

        rows.append(
            [
                s.names["model"],
                s.names["hardware"],
                s.names["precision"],
                BOUND_LABELS[s.bound],
                number(s.point["tok_s_user"]),
                worth("hardware.hbm_bytes_per_s"),
                worth("hardware.flops"),
                worth("hardware.link_bytes_per_s"),
                number(s.users_per_gb),
                "yes" if s.feasible else ", ".join(s.reasons),
            ]
        )
    heads = ["model", "hardware", "format", "bound by", "tok/s/user", "+1 TB/s", "+1 PFLOP/s", "+100 GB/s link",
             "users per GB", "feasible"]  # fmt: skip
    text = grid(heads, rows, left=[True, True, True, True, False, False, False, False, False, True])
    return f"{text}\n\nThe columns after tok/s/user say how many more of them that much more of the machine gives.\n"


def tornado_chart(s: Sensitivity, *, result: str = "tok_s_user", most: int = 16) -> alt.VConcatChart:
    """Elasticities of one result, the strongest on top, and the next whole steps below, as changes in per cent.

    A bar to the right: more of the lever gives more of the result. Colour: what kind of lever it is.
    """
    levers: list[dict[str, Any]] = [
        {"name": lever.label, "value": e, "kind": KIND_LABELS[lever.kind], "text": f"{e:+.2f}"}
        for lever in s.levers
        if (e := lever.elasticity[result]) is not None and abs(e) >= LEAST
    ]
    levers.sort(key=lambda r: -abs(r["value"]))
    kinds = {"model": "model", "precision": "format", "layout": "machine", "workload": "load"}
    steps: list[dict[str, Any]] = []
    for step in s.steps:
        ratio = step.ratio[result]
        if ratio is None or abs(ratio - 1) < LEAST / 5:
            continue
        against = "" if step.feasible else " (does not fit)" if "capacity" in step.reasons else " (infeasible)"
        kind = kinds[step.key.partition(".")[0]]
        name = f"{step.key.partition('.')[2] or step.key} {step.before} \u2192 {step.after}{against}"
        label = "layout" if step.key.startswith("layout") else KIND_LABELS[kind]
        steps.append({"name": name, "value": 100 * (ratio - 1), "kind": label, "text": f"{100 * (ratio - 1):+.1f} %"})
    steps.sort(key=lambda r: -abs(r["value"]))
    word = _WORDS[result]
    panels = [
        _bars(levers[:most], f"change of {word} per 1 % more [%]", "Slopes"),
        _bars(steps[:most], f"change of {word} [%]", "Next whole steps"),
    ]
    chart = alt.vconcat(*[p for p in panels if p is not None], spacing=18).resolve_scale(
        x="independent", y="independent"
    )
    p = s.point
    caption = [
        f"{number(p['tok_s_user'])} tok/s/user, {number(p['tok_s_gpu'])} tok/s/GPU, bound by {BOUND_LABELS[s.bound]}",
        f"slopes by automatic differentiation; the {most} strongest of each are shown",
    ]
    return dressed(chart, f"What moves {word}: {title_of(s)}", caption)


def _bars(rows: Sequence[dict[str, Any]], x_title: str, heading: str) -> Any:
    if not rows:
        return None
    order = [r["name"] for r in rows]
    reach = max(abs(r["value"]) for r in rows)
    low, high = min(0.0, *(r["value"] for r in rows)), max(0.0, *(r["value"] for r in rows))
    room = 0.16 * (high - low or reach)
    colours = {**{KIND_LABELS[k]: v for k, v in KIND_COLOURS.items()}, "layout": "#D55E00"}
    scale = alt.Scale(domain=list(colours), range=list(colours.values()))
    x = alt.X(
        "value:Q",
        title=x_title,
        scale=alt.Scale(domain=[low - (room if low < 0 else 0), high + (room if high > 0 else 0)], nice=False),
        axis=alt.Axis(tickCount=8, labelExpr="datum.value == 0 ? '0' : format(datum.value, '+~g')"),
    )
    y = alt.Y("name:N", sort=order, title=None, axis=alt.Axis(labelLimit=330, grid=False, ticks=False))
    data = Rows(values=list(rows))
    bars = (
        alt.Chart(data)
        .mark_bar(stroke=_INK, strokeWidth=0.4)
        .encode(x=x, y=y, fill=alt.Fill("kind:N", scale=scale, legend=alt.Legend(title="kind of lever")))
    )
    zero = alt.Chart(Rows(values=[{"value": 0}])).mark_rule(stroke=_INK, strokeWidth=1).encode(x=alt.X("value:Q"))
    layers = [bars, zero]
    sides: tuple[tuple[Any, int, list[dict[str, Any]]], ...] = (
        ("left", 4, [r for r in rows if r["value"] >= 0]),
        ("right", -4, [r for r in rows if r["value"] < 0]),
    )
    for align, dx, some in sides:
        if some:
            layers.append(
                alt.Chart(Rows(values=list(some)))
                .mark_text(align=align, dx=dx, fontSize=10.5, fill=_INK)
                .encode(x=alt.X("value:Q"), y=y, text="text:N")
            )
    return alt.layer(*layers).properties(
        width=460,
        height=19 * len(rows),
        title=alt.TitleParams(heading, anchor="start", fontSize=12, fontWeight="normal", offset=4),
    )
