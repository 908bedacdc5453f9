"""NVIDIA, "AI Model Co-Design: Hardware-Friendly LLM Design" (technical blog, 2026-07-10).

Inputs: GB300 as the article has it, 15 PFLOPS dense FP4, 5 FP8, 2.5 BF16, 8 TB/s; a GEMM of N = 8192, K = 512 with
FP4 weights and activations (4.5 bits, block scales included) and FP8 output. The table's GEMM is an FFN's up and gate
projection of an invented dense model. `ideal`. Tolerance: 1e-3 for times and tokens per expert, 2e-3 for the reads
(printed with three digits), 10 % for the pipeline depth, which is read off a plot.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from sweep.cost.arith import namespace
from sweep.cost.gemm import gemm
from sweep.cost.ops import kernel_parts
from sweep.cost.published import pipeline_efficiency
from sweep.explain import Explanation
from tests.reproductions._points import EXACT, about, decode_ops, point

FP4_FLOPS, HBM = 15e15, 8e12
ARTICLE = "hardware=gb300_nvl72 precision=nvfp4 precision.output=fp8 model=dense efficiency=ideal"


def up_gate(m: int, n: int, k: int, *more: str) -> tuple[dict[str, Any], Explanation]:
    """The article's M x N x K GEMM: up and gate projection of an FFN of inner width N / 2."""
    e = point(ARTICLE, f"model.d_model={k} model.d_ff={n // 2} workload.batch={m}", *more)
    row = decode_ops(e)["ffn_up_gate"]
    assert (row["m"], row["n"], row["k"]) == (m, n, k)
    return row, e


@pytest.mark.parametrize(
    ("m", "math_us", "read_us", "write_us"),
    [(256, 0.1432, 0.304, 0.2621), (2048, 1.1453, 0.369, 2.0972), (16384, 9.1626, 0.885, 16.777)],
)
def test_printed_rows(m: int, math_us: float, read_us: float, write_us: float) -> None:
    row, _ = up_gate(m, 8192, 512)
    assert row["math_s"] * 1e6 == about(math_us, EXACT)
    assert row["read_bytes"] / HBM * 1e6 == about(read_us, 2e-3)
    assert row["write_bytes"] / HBM * 1e6 == about(write_us, EXACT)
    assert row["memory_s"] > row["math_s"]


@pytest.mark.parametrize("m", [64, 128, 512, 1024, 4096, 8192, 32768])
def test_rows_between(m: int) -> None:
    """The published formula at token counts that are not printed."""
    row, _ = up_gate(m, 8192, 512)
    assert row["math_s"] == about(2 * m * 8192 * 512 / FP4_FLOPS, 1e-9)
    assert row["read_bytes"] == about((m * 512 + 8192 * 512) * 4.5 / 8, 1e-9)
    assert row["write_bytes"] == about(m * 8192 * 1.0, 1e-9)
    assert row["memory_s"] > row["math_s"]
    assert row["crossover_m"] is None


def test_block_scales_count() -> None:
    row, _ = up_gate(256, 8192, 512, "precision.weights=fp4 precision.activations=fp4")
    assert row["read_bytes"] / HBM * 1e6 == about(0.270, 2e-3)


@pytest.mark.parametrize("m", [2048, 16384])
def test_the_output_write_dominates(m: int) -> None:
    """Memory exceeds math at every token count because K is small: the bytes are those of the output."""
    row, e = up_gate(m, 8192, 512)
    assert row["write_bytes"] > row["read_bytes"] > row["weight_bytes"]
    assert row["bound"] == "activation"
    assert e.peaks["fp4"] == FP4_FLOPS and e.hbm_bytes_per_s == HBM


@pytest.mark.parametrize(("k", "ever"), [(512, False), (1002, False), (1003, True), (8192, True)])
def test_smallest_k_that_is_ever_bound_by_math(k: int, ever: bool) -> None:
    row, _ = up_gate(256, 8192, k)
    assert (row["crossover_m"] is not None) == ever


@pytest.mark.parametrize(("n", "k"), [(8192, 4096), (16384, 2048), (57344, 8192), (4096, 14336)])
def test_crossover(n: int, k: int) -> None:
    """M* = b / (2/I - a/N - c/K): at M* both times are equal, just below memory binds, just above math does."""
    row, _ = up_gate(256, n, k)
    a = b = 4.5 / 8
    expected = b / (2 * HBM / FP4_FLOPS - a / n - 1.0 / k)
    assert row["crossover_m"] == about(expected, 1e-9)
    for m, bound_by_math in ((math.floor(expected), False), (math.ceil(expected), True)):
        row, _ = up_gate(m, n, k)
        assert (row["math_s"] > row["memory_s"]) == bound_by_math


@pytest.mark.parametrize(
    ("per_gpu", "gpus", "m"), [(12, 32, 12.0), (128, 32, 128.0), (64, 32, 64.0), (24, 64, 48.0), (256, 8, 64.0)]
)
def test_tokens_per_expert(per_gpu: int, gpus: int, m: float) -> None:
    """DeepSeek-R1: M of an expert is T k / distinct(T), T k / E once all 256 experts are hit."""
    e = point(f"model=deepseek_r1 layout.dpa={gpus} layout.ep={gpus} workload.batch={gpus * per_gpu} efficiency=ideal")
    for name in ("experts_up_gate", "experts_down"):
        assert decode_ops(e)[name]["m"] == about(m, EXACT)


def test_depth_that_a_gemm_needs() -> None:
    """80 % of sustained NVFP4 throughput needs K > about 3072 (M = 8192, N = 9728).

    Nothing in the model says so: it follows from the floor, the chain along K and the writing of outputs, which were
    fitted on other timings, and comes out as 87 % at that K.
    """
    machine = point("model=dense precision=nvfp4 hardware=gb300_nvl72 efficiency=measured")._point.row.machine
    with namespace(np):

        def flops_per_s(k: float) -> float:
            op = gemm(
                "g",
                "decode",
                machine,
                machine.gemm_ffn,
                count=1.0,
                m=8192.0,
                n=9728.0,
                k=k,
                weight=machine.ffn_weight,
            )
            return float(op.flops / kernel_parts(op).total_s)

        sustained = flops_per_s(65536.0)
        assert flops_per_s(3072.0) / sustained == about(0.8, 0.1)
        assert flops_per_s(1024.0) / sustained < 0.7 < 0.9 < flops_per_s(8192.0) / sustained


DEPTH = (
    "model=deepseek_r1 precision=nvfp4 hardware=gb300_nvl72 efficiency=ideal workload.context=262144 workload.batch=1"
)


def first_token_s(pp: int, *more: str) -> float:
    return float(point(DEPTH, f"layout.pp={pp} layout.prefill_chunk=4096", *more).columns["ttft_s"])


def test_pipeline_depth() -> None:
    """PP 1 -> 32 at 256K input: 22.6 times lower (read off the plot); 64 chunks of equal time give 32 x 64/95."""
    assert 32 * pipeline_efficiency(64, 32) == about(21.56, EXACT)
    assert 32 * pipeline_efficiency(64, 32) == about(22.6, 0.1)
    one = first_token_s(1)
    dynamic, static = one / first_token_s(32, "layout.dynamic_chunks=true"), one / first_token_s(32)
    assert dynamic == about(22.6, 0.1)
    # 61 layers over 32 stages: the fullest has 2 of a mean of 1.906; hops and the LM head cost the rest
    assert dynamic == about(32 * 64 / 95 * 61 / 64, 2e-3)
    assert static < 0.8 * dynamic  # attention grows with the prefix, and the last chunk sets the pace


def test_pipeline_depth_of_even_stages() -> None:
    even = "model.n_layers=64 model.n_moe_layers=61"
    ratio = first_token_s(1, even) / first_token_s(32, even, "layout.dynamic_chunks=true")
    assert ratio == about(32 * 64 / 95, 2e-3)
