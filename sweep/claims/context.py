"""When reading the cache overtakes reading the weights: per model and format, up to 10 million tokens."""

from __future__ import annotations

from typing import Any

import polars as pl

from sweep.claims.charts import lines
from sweep.claims.study import Finding, Lab
from sweep.report.markdown import grid, integer, tokens

MODELS = {
    "llama_3_1_8b": "layout=single",
    "llama_3_1_70b": "layout=tp8",
    "llama_3_1_405b": "layout=tp8",
    "qwen3_235b_a22b": "layout=dp8_ep8",
    "deepseek_r1": "layout=dp8_ep8",
    "gpt_oss_120b": "layout=dp8_ep8",
    "minimax_m1_80k": "layout=dp8_ep8",
}
BATCHES = (8, 64, 512)
LONGEST = 10_000_000
FORMATS = {"bf16": "precision=bf16", "nvfp4, fp8 cache": "precision=nvfp4"}


def reads(lab: Lab, words: str, context: int) -> tuple[float, float]:
    """Bytes that the busiest GPU reads in one decode step: cache and state, weights."""
    ops = [o for o in lab.point(words, f"workload.context={context}").ops if o["phase"] == "decode"]
    return (
        sum(o["count"] * o["kv_bytes"] for o in ops),
        sum(o["count"] * o["weight_bytes"] for o in ops),
    )


def crossover(lab: Lab, words: str) -> float:
    """The context from which on the cache is the larger read; infinite where it is not up to 10M tokens."""
    low, high = 1, LONGEST
    kv, weights = reads(lab, words, high)
    if kv <= weights:
        return float("inf")
    while high - low > max(low // 200, 1):
        middle = int((low * high) ** 0.5) if high > 4 * low else (low + high) // 2
        middle = min(max(middle, low + 1), high - 1)
        kv, weights = reads(lab, words, middle)
        low, high = (low, middle) if kv > weights else (middle, high)
    return float(high)


def measure(lab: Lab) -> Finding:
    """The context at which the two reads are equal, for real models at several batches and formats."""
    finding = Finding()
    rows: list[list[str]] = []
    points: list[dict[str, Any]] = []
    found: dict[tuple[str, str, int], float] = {}
    for model, layout in MODELS.items():
        for label, words in FORMATS.items():
            row = [model, label]
            for batch in BATCHES:
                at = crossover(lab, f"efficiency=ideal model={model} {layout} {words} workload.batch={batch}")
                found[model, label, batch] = at
                row.append("never" if at == float("inf") else tokens(at) if at >= 1024 else integer(at))
            rows.append(row)
        for batch in (64,):
            for power in range(10, 24):
                base = f"efficiency=measured model={model} {layout} precision=nvfp4 workload.batch={batch}"
                kv, weights = reads(lab, base, 2**power)
                points.append({"context": 2**power, "share": kv / (kv + weights), "model": model})
    at64 = {m: found[m, "nvfp4, fp8 cache", 64] for m in MODELS}
    finding.add("batch64.earliest", min(at64.values()), "shortest crossover over the models, batch 64, nvfp4", "tok")
    finding.add("batch64.latest", max(at64.values()), "longest, likewise", "tok")
    for model in ("llama_3_1_70b", "deepseek_r1", "llama_3_1_405b"):
        for batch in (8, 512):
            finding.add(f"{model}.batch{batch}", found[model, "nvfp4, fp8 cache", batch], f"crossover of {model}, batch "
                        f"{batch}, nvfp4 weights, fp8 cache", "tok")  # fmt: skip
    finding.add(
        "within_1m", sum(v <= 1e6 for v in at64.values()), "models whose cache overtakes by 1M tokens, batch 64"
    )
    finding.add("models", len(MODELS), "models tried")
    narrow, wide = (
        [found[m, f, 64] for m in MODELS if found[m, f, 64] < float("inf")] for f in ("nvfp4, fp8 cache", "bf16")
    )
    finding.add("format_shift", (sum(narrow) / len(narrow)) / (sum(wide) / len(wide)), "mean crossover in nvfp4 with an fp8 "
                "cache over that in bf16, batch 64")  # fmt: skip
    finding.charts.append(
        (
            "context",
            "Share of the cache in the bytes a GPU reads per step; batch 64, NVFP4 weights, fp8 cache.",
            lines(
                pl.DataFrame(points), x="context", y="share", line="model", log_y=False,
                title="When the cache overtakes the weights",
                subtitle=["GB300 NVL72, 8 GPUs (8B: one), batch 64, NVFP4 weights, fp8 cache; capacity not asked"],
                x_title="context [tok]", y_title="cache / (cache + weights)",
            ),
        )
    )  # fmt: skip
    finding.tables.append(
        ("Context from which a GPU reads more cache than weights per step (bytes, the same under both presets; whether it "
         "fits is not asked).",
         grid(["model", "format", *(f"batch {b}" for b in BATCHES)], rows, left=[True, True] + [False] * len(BATCHES)))
    )  # fmt: skip
    return finding
