"""LMSYS, chunked pipeline parallelism (2026-01-15).

Inputs: efficiency M / (P - 1 + M) of P stages and M chunks; times to the first token of Qwen3-235B FP8 at PP8 x TP4 on
H20. Tolerance: 1e-3 for the efficiencies; 1.5 % for the two middle times, which the curve through the outer two must
give. Llama-3.1-8B and Qwen3-235B under `ideal` stand in where the same is asked of the whole model.
"""

from __future__ import annotations

import numpy as np
import pytest

from sweep.cost.published import pipeline_efficiency, prefill_curve
from tests.reproductions._points import EXACT, about, point

K = 1024


@pytest.mark.parametrize(
    ("stages", "chunks", "efficiency"),
    [(4, 32, 0.9143), (8, 22, 0.7586), (1, 5, 1.0), (4, 1, 0.25), (8, 64, 64 / 71), (16, 32, 32 / 47)],
)
def test_efficiency_of_equal_chunks(stages: int, chunks: int, efficiency: float) -> None:
    assert pipeline_efficiency(chunks, stages) == about(efficiency, EXACT)


@pytest.mark.parametrize(("stages", "chunks", "measured"), [(4, 32, 0.828), (8, 22, 0.696)])
def test_measured_efficiency_lies_below(stages: int, chunks: int, measured: float) -> None:
    assert 0.9 * pipeline_efficiency(chunks, stages) < measured < pipeline_efficiency(chunks, stages)


def prefill(stages: int, chunks: int, dynamic: bool, *, layers: int = 32) -> float:
    """Seconds of a prompt in chunks of 4096; LM head and hops, which the formula lacks, are next to nothing."""
    e = point(
        "model=llama_3_1_8b hardware=h100_sxm_80gb efficiency=ideal workload.batch=1 model.vocab=1",
        "hardware.link_bytes_per_s=1e30 hardware.scaleout_bytes_per_s=1e30 layout.prefill_chunk=4096",
        f"workload.context={4096 * chunks} layout.pp={stages} layout.dynamic_chunks={str(dynamic).lower()}",
        f"model.n_layers={layers}",
    )
    return float(e.columns["ttft_s"])


@pytest.mark.parametrize(("stages", "chunks"), [(4, 32), (8, 22), (2, 3), (16, 64)])
def test_efficiency_through_the_whole_model(stages: int, chunks: int) -> None:
    """(sum t_i / P) / TTFT: the formula for chunks of equal time, less for chunks of equal length."""
    work = prefill(1, chunks, False) / stages
    dynamic, static = (work / prefill(stages, chunks, flag) for flag in (True, False))
    assert dynamic == about(pipeline_efficiency(chunks, stages), 1e-6)
    assert static < dynamic


@pytest.mark.parametrize(("stages", "fullest"), [(16, 4), (8, 8), (32, 2)])
def test_stage_imbalance(stages: int, fullest: int) -> None:
    """61 layers over 16 stages: the fullest has 4, 5 % more than the mean, and takes as long as with 64 layers."""
    uneven, even = (prefill(stages, 16, True, layers=layers) for layers in (61, fullest * stages))
    assert uneven == about(even, 1e-6)
    assert uneven / prefill(1, 16, True, layers=61) == about(fullest / 61 / pipeline_efficiency(16, stages), 1e-6)


LENGTHS = [128 * K, 256 * K, 512 * K, 1024 * K]


def test_times_to_the_first_token() -> None:
    """10.54 / 32.68 / 114.33 / 420.91 s have the shape a L + b L^2."""
    times = [10.54, 32.68, 114.33, 420.91]
    a, b = prefill_curve((LENGTHS[0], times[0]), (LENGTHS[3], times[3]))
    assert a > 0 and b > 0
    for length, seconds in zip(LENGTHS, times, strict=True):
        assert a * length + b * length**2 == about(seconds, 0.015)
    assert a * LENGTHS[0] + b * LENGTHS[0] ** 2 == about(times[0], 1e-12)
    assert a * LENGTHS[3] + b * LENGTHS[3] ** 2 == about(times[3], 1e-12)


@pytest.mark.parametrize(("efficiency", "rtol"), [("ideal", 0.015), ("measured", 0.02)])
def test_shape_of_the_whole_model(efficiency: str, rtol: float) -> None:
    """The cost model's own times to the first token of the same deployment lie on such a curve, to the same 1.5 %.

    Under `measured` to 1.65 %: what fills the pipeline, a chunk's time in seven stages, is a constant that a curve
    through the origin has no room for, and projections take a larger share of a chunk there.
    """
    times = [
        point(
            f"model=qwen3_235b_a22b precision=fp8 hardware=h20_96gb efficiency={efficiency} workload.batch=1",
            f"layout.tpa=4 layout.pp=8 layout.prefill_chunk=4096 workload.context={length}",
        ).columns["ttft_s"]
        for length in LENGTHS
    ]
    a, b = prefill_curve((LENGTHS[0], times[0]), (LENGTHS[3], times[3]))
    assert np.allclose([a * s + b * s**2 for s in LENGTHS], times, rtol=rtol, atol=0)
