"""Prefill is compute-bound, decode is memory-bound: every operation of real models, and where each of the two flips."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import polars as pl

from sweep.claims.charts import stacked
from sweep.claims.study import PRESETS, Finding, Lab
from sweep.errors import BadInput
from sweep.explain import Explanation
from sweep.report.markdown import grid, integer, number

MODELS = {
    "llama_3_1_8b": "layout=single",
    "llama_3_1_70b": "layout=tp8",
    "qwen3_235b_a22b": "layout=dp8_ep8",
    "deepseek_r1": "layout=dp8_ep8",
}
MACHINES = {
    "h100_sxm_80gb": ("bf16", "fp8"),
    "b200_sxm_180gb": ("bf16", "fp8", "nvfp4"),
    "gb300_nvl72": ("fp8", "nvfp4"),
}
LONGEST, LARGEST = 1 << 17, 1 << 13


def shares(rows: Iterable[dict[str, Any]], phase: str) -> dict[str, float]:
    """Share of a phase's time spent in operations bound by compute, memory, network, latency."""
    found = dict.fromkeys(("compute", "memory", "network", "latency"), 0.0)
    for row in rows:
        if row["phase"] == phase and row["time_s"]:
            found[bound(row)] += row["count"] * row["time_s"]
    total = sum(found.values())
    return {key: value / total for key, value in found.items()} if total else found


def bound(row: dict[str, Any]) -> str:
    """What an operation spends most of its time on."""
    parts = {
        "compute": row["math_s"] or 0.0,
        "memory": row["memory_s"] or 0.0,
        "network": row["comm_s"] or 0.0,
        "latency": row["floor_s"] or 0.0,
    }
    return max(parts, key=lambda key: parts[key])


def first(low: int, high: int, holds: Callable[[int], bool]) -> float:
    """The smallest whole number in [low, high] at which something that then stays true is true; infinite if none."""
    if not holds(high):
        return float("inf")
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return float(high)


def roofline_share(e: Explanation, phase: str, classes: tuple[str, str]) -> bool:
    """Whether the operations of a phase spend more time on the first of two causes than on the second."""
    sums = [0.0, 0.0]
    key = {"compute": "math_s", "memory": "memory_s"}
    for row in e.ops:
        if row["phase"] == phase:
            for i, name in enumerate(classes):
                sums[i] += row["count"] * (row[key[name]] or 0.0)
    return sums[0] > sums[1]


def measure(lab: Lab) -> Finding:
    """From which prompt length prefill computes longer than it moves bytes, up to which batch decode does not."""
    finding = Finding()
    rows: list[list[str]] = []
    from_length: dict[str, list[float]] = {p: [] for p in PRESETS}
    up_to_batch: dict[str, list[float]] = {p: [] for p in PRESETS}
    for model, layout in MODELS.items():
        for machine, formats in MACHINES.items():
            for precision in formats:
                row = [model, machine, precision]
                for preset in PRESETS:
                    base = f"model={model} hardware={machine} precision={precision} efficiency={preset} {layout}"

                    def prefill(isl: int, base: str = base) -> bool:
                        e = lab.point(base, f"workload.isl={isl} workload.batch=1")
                        return roofline_share(e, "prefill", ("compute", "memory"))

                    def decode(batch: int, base: str = base) -> bool:
                        return roofline_share(
                            lab.point(base, f"workload.batch={batch}"), "decode", ("compute", "memory")
                        )

                    try:
                        length, batch = first(1, LONGEST, prefill), first(1, LARGEST, decode)
                    except BadInput:
                        continue
                    from_length[preset].append(length)
                    up_to_batch[preset].append(batch)
                    row += [integer(length), "never" if batch == float("inf") else integer(batch)]
                if len(row) == 7:
                    rows.append(row)
    for preset in PRESETS:
        finding.add(
            f"{preset}.prefill_from_max", max(from_length[preset]), "longest prompt that a combination needs to be "
            "compute-bound in prefill, one request", "tok",
        )  # fmt: skip
        finding.add(
            f"{preset}.decode_flips", sum(b < float("inf") for b in up_to_batch[preset]),
            f"combinations in which decode computes longer than it moves bytes at some batch up to {LARGEST:,}",
        )  # fmt: skip
        finding.add(
            f"{preset}.decode_from_min", min(up_to_batch[preset]), "smallest batch at which that happens", "requests"
        )
    finding.add("combinations", len(rows), "combinations of model, machine and format")
    finding.tables.append(
        (
            "Prompt length from which prefill spends longer on math than on memory (one request), and batch from which "
            "decode at 8k context does (whether or not it fits); layouts: "
            + ", ".join(f"{m} {w.partition('=')[2]}" for m, w in MODELS.items())
            + ".",
            grid(
                ["model", "machine", "format", "prefill from, ideal [tok]", "decode from, ideal [req]",
                 "prefill from, measured [tok]", "decode from, measured [req]"],
                rows, left=[True, True, True, False, False, False, False],
            ),
        )
    )  # fmt: skip
    bars: list[dict[str, Any]] = []
    op_rows: list[list[str]] = []
    for model in ("llama_3_1_70b", "deepseek_r1"):
        for phase, batches in (("prefill", (1,)), ("decode", (1, 16, 128, 1024))):
            for batch in batches:
                e = lab.point(
                    f"model={model} hardware=gb300_nvl72 precision=nvfp4 {MODELS[model]} workload.batch={batch}"
                )
                label = "prefill 8k" if phase == "prefill" else f"decode {batch}"
                for cause, share in shares(e.ops, phase).items():
                    bars.append({"case": label, "bound": cause, "share": share, "model": model})
                if batch in (1, 128) and (phase == "prefill" or batch == 128):
                    for op in e.ops:
                        if op["phase"] == phase and op["time_s"]:
                            op_rows.append(
                                [model, label, op["op"], f"{op['count']:g}", number(op["m"]), number(op["n"]),
                                 number(op["k"]), number(op["intensity"] or 0.0), number(1e6 * op["time_s"]), bound(op)]
                            )  # fmt: skip
    finding.charts.append(
        (
            "roofline",
            "Share of the time in operations bound by each cause; GB300 NVL72, NVFP4, `measured`, 8 GPUs.",
            stacked(
                pl.DataFrame(bars), bar="case", part="bound", value="share", panel="model",
                title="What binds the operations of prefill and decode",
                subtitle=["GB300 NVL72, NVFP4, measured preset, 8k context; decode N: batch N on 8 GPUs"],
                y_title="share of time", x_title="",
            ),
        )
    )  # fmt: skip
    finding.tables.append(
        (
            "Every operation, GB300 NVL72, NVFP4, `measured`, 8 GPUs, 8k context (one GPU, one layer, one step).",
            grid(
                ["model", "phase", "operation", "layers", "M", "N", "K", "FLOP/byte", "time [µs]", "bound"], op_rows,
                left=[True, True, True, False, False, False, False, False, False, True],
            ),
        )
    )  # fmt: skip
    return finding
