"""Ten to twenty per cent of the resources, five to ten times more: achieved over possible, decomposed by cause."""

from __future__ import annotations

from statistics import median
from typing import Any

import polars as pl

from sweep.claims.charts import stacked
from sweep.claims.study import Finding, Lab
from sweep.gap import CAUSES, REMAINDER, SOFTWARE, Answer, Gap, answer
from sweep.report.markdown import grid, integer, number, percent

GPUS = {"h100_sxm_80gb": "H100", "b200_sxm_180gb": "B200", "gb300_nvl72": "GB300"}
# causes that one colour stands for; the rest is "other"
GROUPS = {
    "host": "host",
    "floors": "kernel floors",
    "sync": "synchronisation",
    "comm": "bytes between GPUs",
    "math": "math rate, tiles, waves",
    "tiles": "math rate, tiles, waves",
    "bandwidth": "bandwidth reached",
}
SHOWN = (*dict.fromkeys(GROUPS.values()), "other")


def measure(lab: Lab) -> Finding:
    """Achieved against possible at low and high load, four models, GPUs and SRAM-first machines (`measured`)."""
    finding = Finding()
    found = answer(lab.study())
    shares(finding, found)
    tiers(finding, found)
    finding.widen(lab.sigma(1, "hardware=gb300_nvl72"), "low.share_*", "high.share_*")
    finding.widen(lab.sigma(2, "hardware=gb300_nvl72"), "tiers.*", "sram.*")
    return finding


def shares(finding: Finding, found: Answer) -> None:
    """Achieved over possible and its causes, on GPUs."""
    rows: list[list[str]] = []
    drawn: list[dict[str, Any]] = []
    for load, asked in zip(("low", "high"), found.settings.loads, strict=True):
        mine: list[Gap] = [g for g in found.gaps if g.labels["hardware"] in GPUS and g.labels["load"] == asked]
        share = [g.share for g in mine]
        for word, value in (("median", median(share)), ("least", min(share)), ("most", max(share))):
            finding.add(f"{load}.share_{word}", value, f"{word} of achieved over possible speed on GPUs, {load} load")
        lost = [sum(g.causes[k] for k in SOFTWARE) / (g.achieved_s - g.possible_s) for g in mine]
        finding.add(
            f"{load}.software",
            median(lost),
            "median share of the gap that is host, floors, start-up, tiles, elementwise",
        )
        finding.add(
            f"{load}.software_gain",
            median([g.achieved_s / g.software_s for g in mine]),
            "median gain of removing all of it",
        )
        for g in mine:
            name = f"{g.labels['model']} {GPUS[g.labels['hardware']]}"
            parts = {"possible": g.possible_s, **dict.fromkeys(SHOWN, 0.0)}
            for cause, seconds in g.causes.items():
                parts[GROUPS.get(cause, "other")] += seconds
            if g.labels["hardware"] == "gb300_nvl72" or g.labels["model"] == "deepseek_r1":
                for part, seconds in parts.items():
                    drawn.append({"case": name, "part": part, "share": seconds / g.achieved_s, "panel": f"{load} load"})
            rows.append(
                [load, g.labels["model"], GPUS[g.labels["hardware"]], integer(g.gpus), integer(g.batch), number(1e3 * g.achieved_s),
                 percent(g.share), *(percent(parts[p] / g.achieved_s) for p in SHOWN),
                 number(g.achieved_s / g.software_s)]
            )  # fmt: skip
    finding.charts.append(
        ("gap", "Where a decode step goes: what is possible, and the causes of the rest; `measured`, 8k context.",
         stacked(pl.DataFrame(drawn), bar="case", part="part", value="share", panel="panel",
                 title="Achieved against possible", subtitle=["possible: weights and cache moved once at full bandwidth over all GPUs; measured, 8k context",
                                                              "low: one request on its fastest layout; high: most tok/s/GPU above 20 tok/s/user"],
                 y_title="share of the step", x_title=""))
    )  # fmt: skip
    finding.tables.append(
        ("Achieved over possible and causes in % of the step (`measured`; causes averaged over the orders of switching them off, "
         "they add up to the step). Causes: " + "; ".join(f"{k}: {v}" for k, v in {**CAUSES, **REMAINDER}.items()) + ".",
         grid(["load", "model", "machine", "GPUs", "batch", "step [ms]", "possible [%]", *SHOWN, "gain without software's share"],
              rows, left=[True, True, True] + [False] * (len(rows[0]) - 3)))
    )  # fmt: skip


def tiers(finding: Finding, found: Answer) -> None:
    """What placing bytes in other tiers gains, and what SRAM-first machines do."""
    best: dict[tuple[str, str], dict[str, float]] = {}
    for b in found.by_placement:
        best.setdefault((b.labels["model"], b.labels["hardware"]), {})[b.labels["placement"]] = b.tok_s_gpu
    rows = []
    gains = []
    for (model, hardware), rates in best.items():
        if hardware not in GPUS or "hbm" not in rates:
            continue
        other = {k: v for k, v in rates.items() if k != "hbm"}
        if other:
            name = max(other, key=lambda k: other[k])
            gains.append(max(other[name] / rates["hbm"], 1.0))
            rows.append([model, GPUS[hardware], number(rates["hbm"]), name, number(other[name]), number(gains[-1])])
    finding.add(
        "tiers.gain_median",
        median(gains),
        "median gain in tok/s/GPU of the best placement over main memory alone, GPUs",
    )
    finding.add("tiers.gain_most", max(gains), "largest such gain")
    finding.tables.append(
        ("Tokens/s/GPU with everything in main memory and with the best other placement, above "
         f"{found.settings.min_tok_s_user[0]:g} tok/s/user.",
         grid(["model", "machine", "main memory", "best other placement", "its tok/s/GPU", "gain"], rows,
              left=[True, True, False, True, False, False]))
    )  # fmt: skip
    speed: dict[str, dict[str, Gap]] = {}
    for g in found.gaps:
        if g.labels["load"] == found.settings.low:
            speed.setdefault(g.labels["model"], {})[g.labels["hardware"]] = g
    ratios, sram_rows = [], []
    for model, machines in speed.items():
        gpu = max((g for h, g in machines.items() if h in GPUS), key=lambda g: g.tok_s_user)
        others = [g for h, g in machines.items() if h not in GPUS]
        for g in others:
            sram_rows.append([model, g.labels["hardware"], str(g.labels["placement"]), integer(g.gpus), number(g.tok_s_user),
                              number(gpu.tok_s_user), number(g.tok_s_user / gpu.tok_s_user), percent(g.share)])  # fmt: skip
        if others:
            ratios.append(max(g.tok_s_user for g in others) / gpu.tok_s_user)
    finding.add(
        "sram.speed", median(ratios), "fastest SRAM-first machine over the fastest GPU, one request, median over models"
    )
    finding.tables.append(
        ("One request on SRAM-first machines against the fastest GPU (machines without measurements: constants of the preset, "
         "inherited).",
         grid(["model", "machine", "placement", "chips", "tok/s/user", "fastest GPU", "ratio", "possible [%]"], sram_rows,
              left=[True, True, True] + [False] * 5))
    )  # fmt: skip
