"""The seven co-design guidelines, each switched off alone at constant parameters, and which of them interact."""

from __future__ import annotations

import itertools
from typing import Any

import polars as pl

from sweep.claims.charts import bars
from sweep.claims.helix import frontier, throughput_at
from sweep.claims.study import PRESETS, Finding, Lab
from sweep.frontier import hypervolume
from sweep.report.markdown import grid, number

GUIDELINES = {
    "square": "near-square experts",
    "aligned": "dimensions in multiples of 256",
    "wide": "width over depth",
    "nvfp4": "quantizable layers, NVFP4",
    "wide_ep": "wide EP",
    "separate": "separate layouts for attention and FFN",
}
KEPT = {
    "square": pl.col("model.d_expert") > 1000,
    "aligned": pl.col("model.d_model") % 256 == 0,
    "wide": pl.col("model.n_layers") == 64,
    "nvfp4": pl.col("precision") == "nvfp4",
}
NARROW_EP = pl.col("layout.ep") <= 8
JOINED = (
    (pl.col("layout.kvp") == 1)
    & (pl.col("layout.tpf") == pl.col("layout.tpa"))
    & (pl.col("layout.ep") == pl.col("layout.dpa"))
)
SPEED = 50.0  # tok/s/user at which throughput is compared
CONTEXTS = {8192: "8k", 131072: "128k"}
STAGES = (1, 2, 4, 8, 16, 32)
PROMPT, CHUNK = 262_144, 4096


def subset(points: pl.DataFrame, broken: frozenset[str]) -> pl.DataFrame:
    """The points of a design that keeps all guidelines but those in `broken`."""
    keep = pl.lit(True)
    for name, expr in KEPT.items():
        keep &= ~expr if name in broken else expr
    if "wide_ep" in broken:
        keep &= NARROW_EP
    if "separate" in broken:
        keep &= JOINED
    return points.filter(keep)


def scores(points: pl.DataFrame) -> dict[str, float]:
    """Fastest speed, throughput at `SPEED`, hypervolume of (speed, throughput), proxy score."""
    if points.is_empty():
        return {"speed": 0.0, "throughput": 0.0, "volume": 0.0, "accuracy": float("nan")}
    front = frontier(points)
    return {
        "speed": float(front["tok_s_user"].max()),  # type: ignore[arg-type]
        "throughput": throughput_at(front, SPEED),
        "volume": hypervolume(front.select("tok_s_user", "tok_s_gpu").to_numpy(), [0.0, 0.0]),
        "accuracy": float(points["accuracy"][0]),
    }


def pipeline(lab: Lab, preset: str, n_layers: int, pp: int, *, chunked: bool = True) -> float:
    """Seconds to the first token of a long prompt on `pp` stages of one GPU."""
    chunk = f"layout.prefill_chunk={CHUNK} layout.dynamic_chunks=true" if chunked else ""
    words = f"model=deepseek_r1 model.n_layers={n_layers} model.n_dense_layers=3 model.n_moe_layers={n_layers - 3}"
    columns = lab.columns(
        f"{words} precision=nvfp4 efficiency={preset} layout.pp={pp} {chunk} workload.isl={PROMPT} workload.osl=1 "
        f"workload.batch=1"
    )
    return float(columns["ttft_s"])


def measure(lab: Lab) -> Finding:
    """All combinations of six guidelines from one sweep; the seventh, pipelines, in prefill."""
    finding = Finding()
    points = lab.sweep("points").select(
        "model.n_layers", "model.d_model", "model.d_expert", "precision", "efficiency", "layout.kvp", "layout.tpa",
        "layout.tpf", "layout.ep", "layout.dpa", "workload.context", "tok_s_user", "tok_s_gpu", "accuracy", "params_total",
    ).collect()  # fmt: skip
    rows: list[list[str]] = []
    drawn: list[dict[str, Any]] = []
    pairs: list[list[str]] = []
    for preset in PRESETS:
        worth: dict[str, float] = dict.fromkeys(GUIDELINES, 0.0)
        for context, name in CONTEXTS.items():
            mine = points.filter((pl.col("efficiency") == preset) & (pl.col("workload.context") == context))
            by = {
                frozenset(broken): scores(subset(mine, frozenset(broken)))
                for n in (0, 1, 2)
                for broken in itertools.combinations(GUIDELINES, n)
            }
            full = by[frozenset()]
            for key, label in GUIDELINES.items():
                off = by[frozenset([key])]
                gain = {k: full[k] / off[k] if off[k] else float("inf") for k in ("throughput", "speed", "volume")}
                price = 100 * (full["accuracy"] - off["accuracy"])
                worth[key] = max(worth[key], gain["volume"])
                rows.append([label, preset, name, *(number(g) for g in gain.values()), f"{price:+.2f}"])
                finding.add(
                    f"{preset}.{key}.volume_{name}",
                    gain["volume"],
                    f"hypervolume with over without {label}, {name} of context",
                )
                if context == 8192:
                    finding.add(f"{preset}.{key}.accuracy", price, f"proxy score with less without {label}", "points")
                if preset == "measured":
                    drawn.append({"guideline": label, "worth": 100 * (gain["volume"] - 1), "context": name})
            if preset == "measured":
                for a, b in itertools.combinations(GUIDELINES, 2):
                    both = by[frozenset([a, b])]["volume"]
                    alone = by[frozenset([a])]["volume"] * by[frozenset([b])]["volume"] / full["volume"]
                    if both and abs(both / alone - 1) >= 0.02:
                        pairs.append([GUIDELINES[a], GUIDELINES[b], name, number(both / alone)])
        gains = {layers: pipeline(lab, preset, layers, 1) / pipeline(lab, preset, layers, 32) for layers in (61, 64)}
        finding.add(
            f"{preset}.pipeline.gain",
            gains[64],
            f"time to the first token of a {PROMPT:,} token prompt, one stage over 32, chunks of equal time, 64 layers",
        )
        finding.add(f"{preset}.pipeline.gain_61", gains[61], "the same with 61 layers, which 32 stages do not divide")
        finding.add(
            f"{preset}.worth_something", sum(w >= 1.02 for w in worth.values()) + (gains[64] / gains[61] >= 1.02),
            "guidelines that cost at least 2 % of the hypervolume when broken alone (pipelines: of the first-token gain)",
        )  # fmt: skip
    totals = points.group_by("model.n_layers", "model.d_model", "model.d_expert").agg(pl.col("params_total").first())
    sizes = totals["params_total"].to_list()
    spread = max(sizes) / min(sizes)
    finding.add("spread", spread, "largest over smallest parameter count of the variants", digits=4)
    finding.charts.append(
        ("guidelines", "What each guideline is worth when broken alone, in % of hypervolume; GB300 NVL72, `measured`.",
         bars(pl.DataFrame(drawn), y="guideline", x="worth", colour="context", title="What each guideline is worth",
              subtitle=["MoE of 316B parameters, GB300 NVL72, up to 64 GPUs, measured; (speed x throughput), kept over broken"],
              x_title="hypervolume gained by keeping it [%]"))
    )  # fmt: skip
    finding.tables.append(
        (f"Each guideline kept over broken alone: throughput at {SPEED:g} tok/s/user, fastest speed, hypervolume of both; and "
         "the price or gain in proxy score. Parameters are constant within "
         f"{100 * (spread - 1):.1f} %.",
         grid(["guideline", "preset", "context", "tok/s/GPU", "speed", "hypervolume", "score [points]"], rows,
              left=[True, True, True] + [False] * 4))
    )  # fmt: skip
    finding.tables.append(
        ("Pairs that interact (`measured`): hypervolume with both broken over what the two alone would make; above 1, the "
         "second hurts less once the first is broken.",
         grid(["guideline", "with", "context", "both over product"], pairs, left=[True, True, True, False]))
    )  # fmt: skip
    stages = [
        [str(pp)] + [number(pipeline(lab, preset, layers, 1) / pipeline(lab, preset, layers, pp, chunked=chunked))
                     for preset in PRESETS for layers, chunked in ((64, True), (61, True), (64, False))]
        for pp in STAGES
    ]  # fmt: skip
    finding.tables.append(
        (f"First token of a {PROMPT:,} token prompt, DeepSeek-R1 shape, one GPU per stage: one stage over PP stages "
         f"(chunks of {CHUNK:,} tokens, equal time; or the whole prompt at once).",
         grid(["PP", *(f"{case}, {p}" for p in PRESETS for case in ("64 layers", "61 layers", "64, no chunks"))], stages,
              left=[False] * 7))
    )  # fmt: skip
    finding.notes.append(
        "Alignment counts tiles and shards alone: kernels that fall off a fast path for odd widths are not in the model."
    )
    finding.widen(lab.sigma(2), "measured.*.volume_*", "measured.pipeline.*")
    return finding
