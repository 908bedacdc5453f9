"""One FFN matrix multiplication: M shrinks with concurrency, N and K stay, and where memory stops being the longer."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from sweep.claims.charts import lines
from sweep.claims.study import PRESETS, Finding, Lab
from sweep.config import Study, as_record
from sweep.cost.arith import namespace
from sweep.cost.gemm import crossover_m, gemm
from sweep.machine import Machine, resolve
from sweep.report.markdown import grid, integer, number

SHAPES = {"article: N=8192, K=512": (8192, 512), "square: 8192": (8192, 8192), "Llama-70B up+gate, TP8": (7168, 8192)}
MACHINES = ("h100_sxm_80gb", "b200_sxm_180gb", "gb300_nvl72", "rubin_vr200_nvl72_ex_nvl144")
TOKENS = [2**i for i in range(18)]
ARTICLE = "precision=nvfp4 precision.output=fp8"  # FP4 in, FP8 out


def machine_of(study: Study) -> Machine:
    """The machine that a study's base records and preset make."""
    hardware, precision = as_record(study.base["hardware"]), as_record(study.base["precision"])
    generation = study.base["hardware"].about.get("generation")
    return resolve(hardware, precision, study.efficiency, generation=generation).machine


def first_compute_bound(machine: Machine, n: float, k: float) -> float:
    """The smallest M from which on math takes longer than memory, tiles included; infinite if there is none."""
    above = [m for m in TOKENS if _parts(machine, m, n, k)["memory"] < _parts(machine, m, n, k)["math"]]
    return min(above) if above else float("inf")


def _parts(machine: Machine, m: float, n: float, k: float) -> dict[str, float]:
    op = gemm("ffn", "decode", machine, machine.gemm_ffn, count=1.0, m=float(m), n=float(n), k=float(k),
              weight=machine.ffn_weight)  # fmt: skip
    rate = machine.gemm_ffn
    return {
        "math": float(op.math_s),
        "weights": n * k * machine.ffn_weight / rate.read_bytes_per_s,
        "inputs": m * k * machine.act / rate.read_bytes_per_s,
        "outputs": m * n * machine.out / rate.write_bytes_per_s,
        "memory": n * k * machine.ffn_weight / rate.read_bytes_per_s
        + m * k * machine.act / rate.read_bytes_per_s
        + m * n * machine.out / rate.write_bytes_per_s,
        "time": float(op.math_s),
    }


def measure(lab: Lab) -> Finding:
    """Math against memory over the tokens of a step, for the article's shape and for others."""
    finding = Finding()
    points: list[dict[str, Any]] = []
    rows: list[list[str]] = []
    with namespace(np), np.errstate(all="ignore"):
        article = machine_of(lab.study(f"hardware=gb300_nvl72 efficiency=ideal {ARTICLE}"))
        always = [t for t in TOKENS if _parts(article, t, 8192, 512)["memory"] > _parts(article, t, 8192, 512)["math"]]
        finding.add("article.memory_bound", len(always), "token counts, powers of two, at which memory takes longer than "
                    "math for N=8192, K=512 on GB300, FP4 in, FP8 out")  # fmt: skip
        finding.add("article.token_counts", len(TOKENS), f"token counts tried, 1 to {TOKENS[-1]:,}")
        square = float(crossover_m(8192.0, 8192.0, article, article.gemm_ffn, article.ffn_weight))
        finding.add(
            "square.crossover_m", square, "tokens from which a square 8192 GEMM computes longer, same formats", "tok"
        )
        # M* is finite where 2 / I > a / N + c / K
        rate = article.gemm_ffn
        slack = 2.0 * rate.read_bytes_per_s / rate.flops_per_s - article.act / 8192.0
        finding.add(
            "article.smallest_k", np.ceil(article.out / slack), "smallest K with N=8192 that can be compute-bound"
        )
        top = _parts(article, TOKENS[-1], 8192, 512)
        finding.add(
            "article.output_share", top["outputs"] / top["memory"], "share of output writes in memory time, many tokens"
        )
        flips = 0
        total = 0
        for name, (n, k) in SHAPES.items():
            for hardware in MACHINES:
                for precision in ("bf16", "fp8", "nvfp4"):
                    row = [name, hardware, precision]
                    for preset in PRESETS:
                        machine = machine_of(
                            lab.study(f"hardware={hardware} precision={precision} efficiency={preset}")
                        )
                        if not np.isfinite(machine.gemm_ffn.flops_per_s):
                            break
                        m = (
                            first_compute_bound(machine, n, k)
                            if preset == "measured"
                            else float(crossover_m(float(n), float(k), machine, machine.gemm_ffn, machine.ffn_weight))
                        )
                        big = _parts(machine, 256, n, k)
                        largest = max((big[key], key) for key in ("weights", "inputs", "outputs"))[1]
                        row += ["never" if m == float("inf") else integer(np.ceil(m)), largest]
                        if preset == "ideal" and k == n:
                            total += 1
                            flips += m < float("inf")
                    if len(row) == 7:
                        rows.append(row)
        finding.add(
            "square.flips", flips, "machine and format combinations in which the square shape turns compute-bound"
        )
        finding.add("square.combinations", total, "combinations tried")
        for name, (n, k) in SHAPES.items():
            for m in TOKENS:
                parts = _parts(article, m, n, k)
                for part in ("math", "memory"):
                    points.append({"tokens": m, "time": 1e6 * parts[part], "part": part, "shape": name})
    batches = []
    for batch in (1, 8, 64, 512):
        e = lab.point(f"model=llama_3_1_70b hardware=gb300_nvl72 precision=nvfp4 layout=tp8 workload.batch={batch}")
        op = next(o for o in e.ops if o["op"] == "ffn_up_gate" and o["phase"] == "decode")
        batches.append((batch, op, max(e.peaks.values())))
    small, large = batches[0][1], batches[-1][1]
    finding.add("shrink.m", large["m"] / small["m"], "M at 512 requests over M at one, Llama-3.1-70B, TP8")
    finding.add("shrink.nk", (large["n"] * large["k"]) / (small["n"] * small["k"]), "N x K, likewise")
    finding.charts.append(
        (
            "gemm",
            "Math and memory time of one GEMM against its tokens: GB300, FP4 weights and inputs, FP8 output, `ideal`.",
            lines(
                pl.DataFrame(points), x="tokens", y="time", line="part", panel="shape",
                title="When does a GEMM stop waiting for memory?", subtitle=["GB300, FP4 in, FP8 out, ideal"],
                x_title="tokens M", y_title="time [µs]",
            ),
        )
    )  # fmt: skip
    finding.tables.append(
        (
            "Tokens from which the GEMM computes longer than it moves bytes, and the largest byte term at 256 tokens "
            "(`ideal`: exact crossover; `measured`: first power of two, tiles included; outputs in the precision's own "
            "format).",
            grid(
                ["shape", "machine", "format", "M*, ideal", "largest bytes", "M*, measured", "largest bytes"], rows,
                left=[True, True, True, False, True, False, True],
            ),
        )
    )  # fmt: skip
    finding.tables.append(
        (
            "The same layer at falling concurrency: M shrinks, N and K stay (Llama-3.1-70B FFN up and gate, TP8, GB300, "
            "NVFP4, `measured`).",
            grid(
                ["batch", "M", "N", "K", "FLOP/byte", "time [µs]", "share of peak [%]"],
                [
                    [integer(b), integer(o["m"]), integer(o["n"]), integer(o["k"]), number(o["intensity"]),
                     number(1e6 * o["time_s"]), number(100 * o["flops"] / o["time_s"] / peak)]
                    for b, o, peak in batches
                ],
                left=[False] * 7,
            ),
        )
    )  # fmt: skip
    return finding
