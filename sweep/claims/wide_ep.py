"""Wide EP is a bandwidth extension: weights read per GPU, and tokens/s/GPU at a fixed speed per user, EP 4 to 72."""

from __future__ import annotations

from typing import Any

import polars as pl

from sweep.claims.charts import lines
from sweep.claims.study import PRESETS, Finding, Lab
from sweep.errors import BadInput
from sweep.report.markdown import grid, integer, number, percent

EP = (4, 8, 16, 32, 64, 72)
CASES = ((1536, 0), (1536, 1), (8192, 0), (8192, 1))  # context, drafted tokens
SPEEDS = (20.0, 50.0, 70.0, 100.0)
MOST = 2048  # requests per GPU


def best_at(lab: Lab, words: str, ep: int, speed: float) -> dict[str, Any] | None:
    """The point of most tokens/s/GPU that gives every user `speed` tokens/s and fits; `None` where no batch does.

    Speed falls with the batch: bisection over requests per GPU, then over memory.
    """

    def at(per_gpu: int) -> dict[str, Any]:
        return lab.columns(words, f"layout.dpa={ep} layout.ep={ep} workload.batch={per_gpu * ep}")

    def good(per_gpu: int) -> bool:
        columns = at(per_gpu)
        return bool(columns["feasible"]) and columns["tok_s_user"] >= speed

    if not good(1):
        return None
    low, high = 1, MOST
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if good(middle) else (low, middle)
    return {**at(low), "per_gpu": low}


def measure(lab: Lab) -> Finding:
    """DeepSeek-R1 in NVFP4 on GB200 NVL72, data-parallel attention, experts over 4 to 72 GPUs."""
    finding = Finding()
    points: list[dict[str, Any]] = []
    rows: list[list[str]] = []
    found: dict[tuple[str, int, int, float, int], float] = {}
    for preset in PRESETS:
        for context, n_draft in CASES:
            words = f"efficiency={preset} workload.context={context} model.n_draft={n_draft} model.acceptance=0.85"
            for ep in EP:
                for speed in SPEEDS:
                    try:
                        best = best_at(lab, words, ep, speed)
                    except BadInput:
                        best = None
                    found[preset, context, n_draft, speed, ep] = 0.0 if best is None else best["tok_s_gpu"]
                    if best is None:
                        continue
                    points.append(
                        {"ep": ep, "tok_s_gpu": best["tok_s_gpu"], "speed": f"{speed:g} tok/s/user", "preset": preset,
                         "case": f"{context / 1024:g}k context, {n_draft} drafted"}
                    )  # fmt: skip
    for preset in PRESETS:
        for context, n_draft in CASES:
            for speed in (70.0, 100.0):
                narrow = found[preset, context, n_draft, speed, 8]
                wide = found[preset, context, n_draft, speed, 32]
                key = f"{preset}.ratio_{context // 1024}k_draft{n_draft}_{speed:g}"
                finding.add(
                    key, wide / narrow if narrow else float("inf"),
                    f"tok/s/GPU at EP32 over EP8, {speed:g} tok/s/user, context {context:,}, {n_draft} drafted tokens",
                )  # fmt: skip
        gains = [found[preset, 8192, 1, 50.0, ep] for ep in EP]
        finding.add(
            f"{preset}.best_ep", EP[gains.index(max(gains))], "EP of most tok/s/GPU at 50 tok/s/user, 8k, drafted"
        )
    for ep in EP:
        for per_gpu in (4, 64):
            words = f"workload.context=8192 layout.dpa={ep} layout.ep={ep} workload.batch={per_gpu * ep}"
            try:
                e = lab.point(f"efficiency=measured {words}")
            except BadInput:
                continue
            decode = [o for o in e.ops if o["phase"] == "decode"]
            reads = sum(o["count"] * o["weight_bytes"] for o in decode if o["op"].startswith("experts_"))
            exchange = sum(o["count"] * o["time_s"] for o in decode if o["op"] in ("dispatch", "combine"))
            share = exchange / e.columns["tpot_s"]
            rows.append(
                [integer(ep), integer(per_gpu), number(reads / 1e9), number(reads / 1e9 / per_gpu), percent(share),
                 number(e.columns["tok_s_gpu"]), number(e.columns["tok_s_user"])]
            )  # fmt: skip
            if per_gpu == 64 and ep in (4, 64):
                finding.add(f"reads_gb_ep{ep}", reads / 1e9, f"expert bytes that one GPU reads per step, EP{ep}, 64 requests "
                            "per GPU", "GB")  # fmt: skip
                finding.add(f"measured.exchange_ep{ep}", share, f"share of the step in dispatch and combine, EP{ep}")
    finding.charts.append(
        (
            "wide_ep",
            "Most tokens/s/GPU at a fixed speed per user against EP; DeepSeek-R1, NVFP4, GB200 NVL72.",
            lines(
                pl.DataFrame(points), x="ep", y="tok_s_gpu", line="speed", dash="preset", panel="case",
                title="What wider expert parallelism buys",
                subtitle=["DeepSeek-R1, NVFP4, GB200 NVL72, attention by request; no point: no batch is that fast"],
                x_title="EP = GPUs", y_title="output tok/s/GPU",
            ),
        )
    )  # fmt: skip
    finding.tables.append(
        ("Bytes and messages per GPU and step (`measured`, 8k context, no drafting).",
         grid(["EP", "requests per GPU", "expert bytes read [GB]", "per request [GB]", "dispatch and combine [%]",
               "tok/s/GPU", "tok/s/user"], rows, left=[False] * 7))
    )  # fmt: skip
    finding.widen(lab.sigma(2), "measured.ratio_*")
    return finding
