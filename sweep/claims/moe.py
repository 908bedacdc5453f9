"""MoE moves the bottleneck: shares of a decode step against the number of experts, top-k and expert parallelism."""

from __future__ import annotations

import dataclasses
from typing import Any

import polars as pl

from sweep.claims.charts import stacked
from sweep.claims.study import PRESETS, Finding, Lab
from sweep.explain import Explanation, explain
from sweep.report.markdown import grid, integer, number, percent

BASE = "hardware=gb300_nvl72 precision=nvfp4 workload.context=8192"
KINDS = ("attention", "expert reads", "expert math and floors", "all-to-all", "imbalance", "other")
EXPERT_OPS = ("experts_up_gate", "experts_down")
EXCHANGE = ("dispatch", "combine")


def shares(lab: Lab, words: str) -> tuple[dict[str, float], Explanation]:
    """Seconds of a decode step by cause. Imbalance is what the step loses to unevenly loaded experts."""
    e = lab.point(words)
    even = lab.study(words)
    even = dataclasses.replace(even, efficiency={**even.efficiency, "imbalance": 0.0, "imbalance_off": 0.0})
    balanced = explain(even)
    total, without = float(e.columns["tpot_s"]), float(balanced.columns["tpot_s"])
    found = dict.fromkeys(KINDS, 0.0)
    rate = float(balanced._point.row.machine.experts.read_bytes_per_s)
    for row in balanced.ops:
        if row["phase"] != "decode" or not row["time_s"]:
            continue
        seconds = row["count"] * row["time_s"]
        if row["op"] in EXPERT_OPS:
            reads = min(row["count"] * row["weight_bytes"] / rate, seconds)
            found["expert reads"] += reads
            found["expert math and floors"] += seconds - reads
        elif row["op"] in EXCHANGE:
            found["all-to-all"] += seconds
        elif row["op"] in ("attention", "qkv_proj", "o_proj", "q_down", "q_up", "kv_down", "k_up", "v_up"):
            found["attention"] += seconds
    found["imbalance"] = total - without
    found["other"] = max(total - sum(found.values()), 0.0)
    return found, e


def measure(lab: Lab) -> Finding:
    """Where a decode step's time goes in a dense model, and in MoE models of growing expert count, top-k and EP."""
    finding = Finding()
    bars: list[dict[str, Any]] = []
    rows: list[list[str]] = []
    seen: dict[tuple[str, str], dict[str, float]] = {}
    cases = [("dense 70B TP8", "model=llama_3_1_70b layout=tp8 workload.batch=64", "expert count")]
    for n_experts, top_k in ((16, 1), (64, 4), (256, 8), (512, 16)):
        # the same active width: d_expert falls as top_k rises
        d_expert = 16384 // top_k
        cases.append(
            (f"E{n_experts} k{top_k}", f"model=deepseek_r1 model.n_experts={n_experts} model.top_k={top_k} "
             f"model.d_expert={d_expert} layout=dp8_ep8 workload.batch=64", "expert count")
        )  # fmt: skip
    for ep in (8, 16, 32, 64):
        cases.append(
            (
                f"EP{ep}",
                f"model=deepseek_r1 layout.dpa={ep} layout.ep={ep} workload.batch={8 * ep}",
                "EP, 8 requests per GPU",
            )
        )
    for batch in (8, 64, 512, 4096):
        cases.append((f"batch {batch}", f"model=deepseek_r1 layout=dp8_ep8 workload.batch={batch}", "batch at EP8"))
    for name, words, panel in cases:
        for preset in PRESETS:
            seconds, e = shares(lab, f"{BASE} efficiency={preset} {words}")
            total = sum(seconds.values())
            seen[name, preset] = {k: v / total for k, v in seconds.items()}
            if preset == "measured":
                for kind in KINDS:
                    bars.append({"case": name, "cause": kind, "share": seconds[kind] / total, "panel": panel})
                rows.append(
                    [panel, name, integer(e.inputs["layout"]["gpus"]), number(1e3 * total)]
                    + [percent(seconds[k] / total) for k in KINDS]
                )
    for preset in PRESETS:
        for name, key in (("E256 k8", "e256"), ("EP8", "ep8"), ("EP64", "ep64"), ("batch 8", "batch8")):
            s = seen[name, preset]
            experts = s["expert reads"] + s["expert math and floors"] + s["all-to-all"] + s["imbalance"]
            finding.add(
                f"{preset}.{key}.moved", experts, f"share of the step in experts, all-to-all, imbalance; {name}"
            )
            finding.add(f"{preset}.{key}.all_to_all", s["all-to-all"], f"share in the all-to-all; {name}")
            finding.add(f"{preset}.{key}.reads", s["expert reads"], f"share in reading experts; {name}")
    finding.charts.append(
        (
            "moe",
            "Share of a decode step by cause; DeepSeek-R1 and variants of it; GB300 NVL72, NVFP4, 8k context, `measured`.",
            stacked(
                pl.DataFrame(bars), bar="case", part="cause", value="share", panel="panel",
                title="Where a MoE model's decode step goes",
                subtitle=["GB300 NVL72, NVFP4, 8k context, measured; E, k: experts, top-k at constant k x d_expert"],
                y_title="share of the step", x_title="",
            ),
        )
    )  # fmt: skip
    finding.tables.append(
        ("The same as numbers (`measured`).",
         grid(["variation", "case", "GPUs", "step [ms]", *(f"{k} [%]" for k in KINDS)], rows,
              left=[True, True] + [False] * (2 + len(KINDS))))
    )  # fmt: skip
    return finding
