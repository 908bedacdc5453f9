"""Achieved against possible as Markdown and as a chart: how much, where the rest goes, what would give it back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import altair as alt
import polars as pl

from sweep.gap import CAUSES, REMAINDER, SOFTWARE, Answer, Best, Gap
from sweep.report.charts import dressed
from sweep.report.markdown import grid, layout_label, number, percent, tokens

SHORT = {
    "host": "host, between kernels",
    "floors": "kernel floors",
    "sync": "synchronisation",
    "comm": "bytes between GPUs",
    "imbalance": "load imbalance",
    "tiles": "tiles and waves",
    "math": "math below peak",
    "bandwidth": "memory below bandwidth",
    "elementwise": "elementwise",
    "slow_tiers": "slower tiers",
    "activations": "activations",
    "copies": "copies, uneven shares",
    "serial": "kernels in series",
}
CLAIMED_SHARE = (0.10, 0.20)  # "GPUs run at 10 to 20 % of what they could"
CLAIMED_GAIN = 5.0  # "orchestrate the hierarchy and gain 5 to 10 times"
_COLOURS = {
    "possible": "#1b7837",
    "host": "#4d4d4d",
    "floors": "#878787",
    "sync": "#b2182b",
    "comm": "#f4a582",
    "imbalance": "#8c510a",
    "tiles": "#dfc27d",
    "math": "#762a83",
    "bandwidth": "#4393c3",
    "slow_tiers": "#2166ac",
    "other": "#d9d9d9",
}
_OTHER = ("elementwise", "activations", "copies", "serial")


def is_timed(gap: Gap | Best, generations: Sequence[str]) -> bool:
    """Whether the preset's constants were fitted on chips of this generation."""
    return gap.labels["generation"] in generations


def _name(labels: Mapping[str, object]) -> list[str]:
    return [str(labels["model"]), str(labels["hardware"])]


def _layout(layout: Mapping[str, int]) -> str:
    return layout_label({f"layout.{k}": v for k, v in layout.items()})


def shares(gaps: Sequence[Gap]) -> str:
    """One row per point: what it is, what it achieves, which share of the possible that is."""
    rows = [
        [
            *_name(g.labels),
            str(g.labels["load"]),
            f"{g.labels['precision']}, {g.labels['placement']}",
            _layout(g.layout),
            f"{g.batch:,}",
            number(g.tok_s_user),
            number(g.tok_s_gpu),
            percent(g.share),
            percent(g.share_of_best),
        ]
        for g in gaps
    ]
    head = ["model", "machine", "load", "format, placement", "layout", "batch", "tok/s/user", "tok/s/GPU"]
    return grid([*head, "of the possible [%]", "of the best batch [%]"], rows, left=[True] * 5 + [False] * 5)


def parts(gaps: Sequence[Gap]) -> str:
    """One row per point: its causes as shares of the achieved step time."""
    used = [c for c in (*CAUSES, *REMAINDER) if any(abs(g.causes.get(c, 0.0)) > 5e-4 * g.achieved_s for g in gaps)]
    rows = [
        [
            *_name(g.labels),
            str(g.labels["load"]),
            percent(g.share),
            *(percent(g.causes.get(c, 0.0) / g.achieved_s) for c in used),
        ]
        for g in gaps
    ]
    head = ["model", "machine", "load", "possible", *(SHORT[c] for c in used)]
    return grid(head, rows, left=[True] * 3 + [False] * (1 + len(used)))


def gains(gaps: Sequence[Gap]) -> str:
    """One row per point: times faster with one cause gone, with all of software gone, with everything gone."""
    rows = []
    for g in gaps:
        each = {c: g.achieved_s / s for c, s in g.alone_s.items()}
        first = sorted(each, key=lambda c: -each[c])[:2]
        rows.append(
            [
                *_name(g.labels),
                str(g.labels["load"]),
                ", ".join(f"{SHORT[c]} {number(each[c])}" for c in first),
                number(g.achieved_s / g.software_s),
                number(1 / g.share),
            ]
        )
    head = ["model", "machine", "load", "largest two, each alone [x]", "all of software [x]", "everything [x]"]
    return grid(head, rows, left=[True] * 4 + [False] * 2)


def placements(bests: Sequence[Best]) -> tuple[str, list[tuple[float, str]]]:
    """Same machine, another placement: most tokens/s/GPU against all in HBM. Returns the table and the gains."""
    plain = {_key(b): b for b in bests if b.labels["placement"] == "hbm"}
    rows: list[list[str]] = []
    most: list[tuple[float, str]] = []
    for b in bests:
        if b.labels["placement"] == "hbm":
            continue
        base = plain.get(_key(b))
        gain = b.tok_s_gpu / base.tok_s_gpu if base is not None else math.nan
        if abs(gain - 1) < 5e-3:
            continue  # the other tiers stay empty
        if math.isfinite(gain):
            most.append((gain, _where(b)))
        rows.append(
            [
                *_name(b.labels),
                tokens(b.labels["context"]),
                str(b.labels["placement"]),
                "–" if base is None else f"{base.batch:,}",
                f"{b.batch:,}",
                "–" if base is None else number(base.tok_s_gpu),
                number(b.tok_s_gpu),
                number(gain),
            ]
        )
    head = [
        "model",
        "machine",
        "context",
        "placement",
        "batch, HBM",
        "batch",
        "tok/s/GPU, HBM",
        "tok/s/GPU",
        "gain [x]",
    ]
    if not rows:
        return "No placement differs from all in HBM by half a percent or more.", most
    return grid(head, rows, left=[True] * 4 + [False] * 5), most


def _key(b: Best) -> tuple[object, ...]:
    return (b.labels["model"], b.labels["hardware"], b.labels["precision"], b.labels["context"])


def fastest(answers: Sequence[Answer]) -> tuple[str, dict[str, list[tuple[float, str, int]]]]:
    """One request on every machine, under each preset, against the fastest machine that keeps all in HBM.

    Returns: the table, and under each preset the ratios of machines that use other tiers, with name and chips.
    """
    low = {a.efficiency: [g for g in a.gaps if g.labels["load"] == a.settings.low] for a in answers}
    first = answers[0].gaps[0].labels["context"] if answers[0].gaps else None
    keys: dict[tuple[str, str], dict[str, Gap]] = {}
    for name, gaps in low.items():
        for g in gaps:
            if g.labels["context"] == first:
                keys.setdefault((str(g.labels["model"]), str(g.labels["hardware"])), {})[name] = g
    best = {
        (model, name): max((g.tok_s_user for g in low[name] if _in_hbm(g, model, first)), default=math.nan)
        for model, _ in keys
        for name in low
    }
    most: dict[str, list[tuple[float, str, int]]] = {name: [] for name in low}
    rows = []
    for (model, machine), found in keys.items():
        row = [model, machine]
        for name in low:
            one = found.get(name)
            if one is None:
                row += ["–"] * 3
                continue
            ratio = one.tok_s_user / best[model, name]
            if one.labels["placement"] != "hbm" and math.isfinite(ratio):
                most[name].append((ratio, _where(one), one.gpus))
            row += [f"{one.gpus:,}", number(one.tok_s_user), number(ratio)]
        rows.append(row)
    head = ["model", "machine"]
    for name in low:
        head += [f"GPUs, {name}", f"tok/s/user, {name}", "against HBM [x]"]
    return grid(head, rows, left=[True, True] + [False] * 3 * len(low)), most


def _in_hbm(g: Gap, model: str, context: object) -> bool:
    return bool(g.labels["model"] == model and g.labels["placement"] == "hbm" and g.labels["context"] == context)


def hybrids(answer: Answer) -> str:
    """Prompts on one machine, answers on each: what feeds a decode replica."""
    rows = [
        [
            str(p.labels["model"]),
            tokens(p.labels["context"]),
            str(p.labels["decode"]),
            f"{p.decode_gpus:,}",
            number(p.tok_s_user),
            number(p.request_s),
            f"{p.prefill_gpus:,}",
            number(p.ttft_s),
            number(p.prefill_gpus_needed),
            number(p.kv_bytes / 1e9),
            number(p.transfer_s * 1e3),
        ]
        for p in answer.pairs
        if p.labels["context"] == answer.pairs[0].labels["context"]
    ]
    head = ["model", "prompt", "decode machine", "its GPUs", "tok/s/user", "requests/s", "prefill GPUs", "TTFT [s]"]
    head += ["prefill GPUs busy", "cache [GB]", "transfer [ms]"]
    return grid(head, rows, left=[True] * 3 + [False] * 8)


def verdict(answers: Sequence[Answer], generations: Sequence[str]) -> list[str]:
    """The two claims against the numbers, by rule: a claim holds where the number lies in what it claims."""
    main = answers[0]
    low, high = CLAIMED_SHARE
    lines = []
    timed = [g for g in main.gaps if is_timed(g, generations)]
    for load in main.settings.loads:
        values = sorted(g.share for g in timed if g.labels["load"] == load)
        if not values:
            continue
        inside = sum(low <= v <= high for v in values)
        below, above = sum(v < low for v in values), sum(v > high for v in values)
        middle = values[len(values) // 2]
        word = "holds" if low <= middle <= high else "less" if middle < low else "more"
        lines.append(
            f"* **{load}**: achieved is {percent(values[0])} to {percent(values[-1])} % of the possible, median "
            f"{percent(middle)} % (claim: {percent(low, 0)} to {percent(high, 0)} %: **{word}**); {inside} of "
            f"{len(values)} points inside, {below} below, {above} above."
        )
    best = sorted(g.share_of_best for g in timed if g.labels["load"] == main.settings.low)
    if best:
        lines.append(
            f"* Measured against the best batch that fits, one request reaches {percent(best[0], 2)} to "
            f"{percent(best[-1], 2)} %: most of that factor is batch, not orchestration."
        )
    ways: list[tuple[str, list[tuple[float, str]]]] = [
        ("another placement on the same machine", placements(main.by_placement)[1])
    ]
    for name, ratios in fastest(answers)[1].items():
        ways.append(
            (f"SRAM-first replicas of several chips for one request, `{name}`", [(x, t) for x, t, n in ratios if n > 1])
        )
        ways.append((f"a single SRAM-first chip for one request, `{name}`", [(x, t) for x, t, n in ratios if n == 1]))
    for load in dict.fromkeys((main.settings.low, list(main.settings.loads)[-1])):
        here = [g for g in timed if g.labels["load"] == load]
        text = f"{', '.join(SHORT[c] for c in SOFTWARE)} gone, {load}"
        ways.append((text, [(g.achieved_s / g.software_s, _where(g)) for g in here]))
        ways.append((f"everything gone, {load}", [(1 / g.share, _where(g)) for g in here]))
    for text, found in ways:
        if found:
            values = sorted(x for x, _ in found)
            most, where = max(found)
            middle = values[len(values) // 2]
            word = "yes" if middle >= CLAIMED_GAIN else "sometimes" if most >= CLAIMED_GAIN else "no"
            lines.append(
                f"* {CLAIMED_GAIN:g} times or more from {text}: **{word}**; median {number(middle)}, "
                f"most {number(most)} ({where}), {len(values)} points."
            )
    return lines


def _where(x: Gap | Best) -> str:
    return f"{x.labels['model']} on {x.labels['hardware']}"


def chart(gaps: Sequence[Gap], title: str) -> alt.VConcatChart:
    """A bar per point: the achieved step as 100 %, the possible in it, and the causes of the rest."""
    order = ["possible", *(c for c in CAUSES if c not in _OTHER), "other"]
    rows = []
    for g in gaps:
        values = {"possible": g.share, **{c: g.causes.get(c, 0.0) / g.achieved_s for c in CAUSES if c not in _OTHER}}
        values["other"] = sum(g.causes.get(c, 0.0) for c in _OTHER) / g.achieved_s
        for i, name in enumerate(order):
            text = {"possible": "possible", "other": "activations, copies, elementwise, series"}.get(name) or SHORT[
                name
            ]
            rows.append(
                {
                    "model": str(g.labels["model"]),
                    "machine": str(g.labels["hardware"]),
                    "load": str(g.labels["load"]),
                    "cause": text,
                    "order": i,
                    "share": max(values[name], 0.0),
                }
            )
    frame = pl.DataFrame(rows)
    names = {
        n: {"possible": "possible", "other": "activations, copies, elementwise, series"}.get(n) or SHORT[n]
        for n in order
    }
    colour = alt.Color(
        "cause:N",
        scale=alt.Scale(domain=[names[n] for n in order], range=[_COLOURS[n] for n in order]),
        legend=alt.Legend(title=None),
    )
    models, machines, loads = (frame[c].unique(maintain_order=True).to_list() for c in ("model", "machine", "load"))
    lines = []
    for i, model in enumerate(models):
        cells = []
        for j, load in enumerate(loads):
            part = frame.filter((pl.col("model") == model) & (pl.col("load") == load))
            here = [m for m in machines if m in set(part["machine"].to_list())]
            bars = (
                alt.Chart(part if len(part) else frame.head(0))
                .mark_bar(stroke="white", strokeWidth=0.4)
                .encode(
                    x=alt.X(
                        "share:Q",
                        stack="zero",
                        scale=alt.Scale(domain=[0, 1], nice=False),
                        axis=alt.Axis(format=".0%", tickCount=5),
                        title="of the step's time" if i == len(models) - 1 else None,
                    ),
                    y=alt.Y(
                        "machine:N",
                        sort=machines,
                        scale=alt.Scale(domain=[m for m in machines if m in _machines(frame, model)]),
                        title=model if j == 0 else None,
                        axis=alt.Axis(labels=j == 0, labelLimit=150, ticks=False, titlePadding=12),
                    ),
                    color=colour,
                    order=alt.Order("order:Q"),
                )
                .properties(width=230, height=17 * max(len(_machines(frame, model)), len(here), 1))
            )
            if i == 0:
                bars = bars.properties(title=alt.TitleParams(load, fontSize=12, anchor="middle"))
            cells.append(bars)
        lines.append(alt.hconcat(*cells, spacing=12))
    whole = alt.vconcat(*lines, spacing=8).resolve_scale(color="shared")
    return dressed(whole, title, "A bar is the achieved time of a decode step; the green part is what the bound needs")


def _machines(frame: pl.DataFrame, model: str) -> set[str]:
    return set(frame.filter(pl.col("model") == model)["machine"].to_list())


def document(answers: Sequence[Answer], generations: Sequence[str], *, title: str, command: str, image: str) -> str:
    """The whole report as Markdown."""
    main = answers[0]
    contexts = list(dict.fromkeys(g.labels["context"] for g in main.gaps))
    first = [g for g in main.gaps if g.labels["context"] == contexts[0]]
    names = ", ".join(SHORT[c] for c in SOFTWARE)
    blocks = [
        f"# {title}",
        f"`{command}`",
        "Achieved is the time of a decode step under the preset "
        f"`{main.efficiency}`. Possible is the bound of the same replica and batch: every weight that the step needs "
        "and the whole cache moved once at the full bandwidth of the fastest memory in use, spread over all its GPUs, "
        "or all FLOPs at peak, whichever takes longer. The causes between them are Shapley values: the saving of "
        "switching a cause off, averaged over all orders of switching; what is left then is divided in this order: "
        + ", ".join(SHORT[c] for c in REMAINDER)
        + ". They add up to the gap exactly.",
        "## Verdict",
        f"GPUs whose generation the preset was fitted on ({', '.join(generations)}), "
        f"contexts {', '.join(tokens(c) for c in contexts)}:",
        "\n".join(verdict(answers, generations)),
        f"## How much of the possible (context {tokens(contexts[0])})",
        "The fastest layout for one request, and most tokens/s/GPU at a speed. The last column compares with the bound "
        "of the best batch that fits the same layout.",
        shares(first),
        "## Where the rest goes [% of the step]",
        f"![One bar per machine, model and load]({image})",
        parts(first),
        "A negative share is a gain: tiers that deliver at the same time are faster together than the fastest alone.",
        "## What would give it back",
        f"Software is {names}. Each figure is the step's time over its time with only that gone.",
        gains(first),
        "## The hierarchy on the same machine",
        f"Most tokens/s/GPU at {min(main.settings.min_tok_s_user):g} tok/s/user or faster; placements whose other "
        "tiers stay empty are left out.",
        placements(main.by_placement)[0],
        "## One request: SRAM-first machines against HBM",
        "Under `synchronized` no kernel costs anything but the wait of its collective, on all machines alike: kernels "
        "of SRAM-first machines have not been timed by anybody, so `measured` charges them a GPU's floors. A single "
        "chip has no collective to wait for: its figure under `synchronized` is a bound of its memory, not a forecast.",
        fastest(answers)[0],
    ]
    if main.pairs:
        blocks += [
            f"## Prompts on {main.settings.prefill}, answers elsewhere",
            "Decode replicas at one request each, fed at a matched rate. The cache crosses all network links of the "
            "prefill replica; the decode side must take it as fast.",
            hybrids(answers[-1]),
        ]
    if main.missing:
        blocks += ["## Without a feasible point", _missing(main)]
    return "\n\n".join(blocks) + "\n"


def _missing(answer: Answer) -> str:
    rows = [
        [str(m["model"]), str(m["hardware"]), tokens(m["context"]), ", ".join(m["reasons"])] for m in answer.missing
    ]
    return grid(["model", "machine", "context", "reasons"], rows, left=[True] * 4)
