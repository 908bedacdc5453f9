"""Compute grows faster than models can use it: what one more of each resource is worth, A100 to Rubin."""

from __future__ import annotations

import math
from typing import Any

import polars as pl

from sweep.claims.charts import lines
from sweep.claims.study import PRESETS, Z80, Finding, Lab
from sweep.config import as_record
from sweep.explain import point_of
from sweep.report.markdown import grid, number
from sweep.sensitivity import elasticities

MACHINES = {
    "a100_sxm_80gb": ("A100", "bf16"),
    "h100_sxm_80gb": ("H100", "fp8"),
    "h200_sxm_141gb": ("H200", "fp8"),
    "b200_sxm_180gb": ("B200", "nvfp4"),
    "gb300_nvl72": ("GB300", "nvfp4"),
    "rubin_vr200_nvl72_ex_nvl144": ("Rubin (announced)", "nvfp4"),
}
MODELS = {"llama_3_1_70b": "layout=tp8", "deepseek_r1": "layout=dp8_ep8"}
BATCHES = (8, 256)
LEVERS = {
    "hardware.flops": "FLOP/s",
    "hardware.hbm_bytes_per_s": "memory bandwidth",
    "hardware.link_bytes_per_s": "link bandwidth",
}
LATENCIES = ("efficiency.kernel_floor", "efficiency.link_latency", "efficiency.host")


def slopes(lab: Lab, words: str) -> dict[str, dict[str, float]]:
    """Exponents of decode speed and of prefill speed in each resource; latencies as what their removal promises."""
    _, point = point_of(lab.study(words))
    found = {lever.key: lever.elasticity for lever in elasticities(point, sizes=False)}

    def at(key: str, result: str) -> float:
        return float(found.get(key, {}).get(result) or 0.0)

    out = {}
    for result, sign, name in (("tok_s_user", 1.0, "decode"), ("ttft_s", -1.0, "prefill")):
        out[name] = {label: sign * at(key, result) for key, label in LEVERS.items()}
        out[name]["latency"] = -sign * sum(at(key, result) for key in LATENCIES)
    return out


def measure(lab: Lab) -> Finding:
    """Elasticities of decode and prefill speed over six generations, two models, two batches, both presets."""
    finding = Finding()
    rows: list[list[str]] = []
    points: list[dict[str, Any]] = []
    worth: dict[tuple[str, str, int, str, str], dict[str, float]] = {}
    for machine, (label, precision) in MACHINES.items():
        for model, layout in MODELS.items():
            for batch in BATCHES:
                for preset in PRESETS:
                    found = slopes(
                        lab, f"model={model} hardware={machine} precision={precision} {layout} efficiency={preset} "
                        f"workload.batch={batch}"
                    )  # fmt: skip
                    for phase, values in found.items():
                        worth[machine, model, batch, preset, phase] = values
                        if phase == "prefill" and batch != BATCHES[0]:
                            continue
                        case = f"{model}, {phase}" + (f", batch {batch}" if phase == "decode" else " of 8k")
                        if preset == "measured":
                            rows.append([case, label, precision, *(number(v, 2) for v in values.values())])
                            for resource, value in values.items():
                                points.append({"machine": label, "resource": resource, "worth": value, "case": case})
    rows.sort(key=lambda row: row[0])  # stable: generations stay in order
    ratio = {}
    for machine, (label, precision) in MACHINES.items():
        h = as_record(lab.study(f"hardware={machine}").base["hardware"])
        rate = {"bf16": h.bf16_flops, "fp8": h.fp8_flops, "nvfp4": h.fp4_flops}[precision]
        ratio[label] = float(rate) / float(h.hbm_bytes_per_s)
    finding.add("ratio_growth", list(ratio.values())[-1] / ratio["A100"], "FLOP per byte of memory bandwidth, Rubin over "
                "A100, each in its narrowest format", digits=2)  # fmt: skip
    for preset in PRESETS:
        decode = {k: v for k, v in worth.items() if k[3] == preset and k[4] == "decode"}
        prefill = {k: v for k, v in worth.items() if k[3] == preset and k[4] == "prefill" and k[2] == BATCHES[0]}
        finding.add(
            f"{preset}.decode_flops_most",
            max(v["FLOP/s"] for v in decode.values()),
            "largest exponent of decode speed in FLOP/s, all generations",
        )
        finding.add(
            f"{preset}.decode_memory_least",
            min(v["memory bandwidth"] for v in decode.values()),
            "smallest exponent of decode speed in memory bandwidth",
        )
        finding.add(
            f"{preset}.decode_below",
            sum(v["FLOP/s"] < v["memory bandwidth"] for v in decode.values()),
            "decode points at which memory bandwidth is worth more than FLOP/s",
        )
        finding.add(f"{preset}.decode_points", len(decode), "decode points")
        for machine, name in (("a100_sxm_80gb", "a100"), ("rubin_vr200_nvl72_ex_nvl144", "rubin")):
            of = [v for k, v in prefill.items() if k[0] == machine]
            finding.add(
                f"{preset}.prefill_flops_{name}",
                sum(v["FLOP/s"] for v in of) / len(of),
                f"exponent of prefill speed in FLOP/s on {name}, mean of the models",
            )
            late = [v for k, v in decode.items() if k[0] == machine]
            finding.add(
                f"{preset}.decode_latency_{name}",
                sum(v["latency"] for v in late) / len(late),
                f"exponent of decode speed in shorter latencies on {name}, mean of models and batches",
            )
    finding.charts.append(
        ("generations", "What 1 % more of each resource is worth, in % of speed; `measured`.",
         lines(pl.DataFrame(points), x="machine", y="worth", line="resource", panel="case", log_y=False, log_x=None,
               title="What one more of each resource buys, A100 to Rubin",
               subtitle=["8 GPUs, each generation in its narrowest format, measured; latency: of kernels, links, host"],
               x_title="", y_title="d ln speed / d ln resource"))
    )  # fmt: skip
    finding.tables.append(
        ("Exponents of speed in each resource (`measured`): 0.5 means 1 % more gives 0.5 % more speed.",
         grid(["case", "machine", "format", *LEVERS.values(), "latency"], rows, left=[True, True, True] + [False] * 4))
    )  # fmt: skip
    finding.notes.append(
        "Exponents are exact derivatives of the model; how far its times are off (80 % band of one time on GB300: "
        f"{100 * (math.exp(Z80 * lab.sigma(1, 'hardware=gb300_nvl72')) - 1):.0f} %) says little about them."
    )
    return finding
