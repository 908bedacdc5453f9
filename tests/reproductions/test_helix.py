"""Helix parallelism (arXiv 2507.07120): figure 1 and the HOP-B example.

Inputs: a dense layer, B = 8, 128 query heads and 8 KV heads of width 128 (d_model 16384), F = 65536, three matrices,
0.5 bytes per element (`fp4`, no block scales), 8 TB/s, 1M tokens of context. KVP rows have TPF = TPA x KVP and the
output projection over TPA alone as in the paper's formula. Weights are QKV, output projection and FFN, not the LM
head. `ideal`. Tolerance: 1e-3, except where the last printed digit is coarser.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from sweep.cost.arith import namespace
from sweep.cost.step import hop_b_exposed
from sweep.explain import Explanation
from tests.reproductions._points import EXACT, about, decode_ops, point

HBM = 8e12
FIGURE_1 = (
    "model=dense model.n_layers=1 model.d_model=16384 model.n_heads=128 model.n_kv_heads=8 model.head_dim=128 "
    "model.d_ff=65536 precision.weights=fp4 precision.activations=fp4 precision.kv=fp4 hardware=gb200_nvl72 "
    "efficiency=ideal workload.batch=8"
)


def layer(tpa: int, kvp: int, wo_shard: str = "tpa", *, context: int = 1_000_000) -> Explanation:
    return point(FIGURE_1, f"workload.context={context} layout.tpa={tpa} layout.kvp={kvp} layout.wo_shard={wo_shard}")


def reads_us(e: Explanation) -> tuple[float, float]:
    """Microseconds of cache and of weights."""
    assert e.hbm_bytes_per_s == HBM
    ops = decode_ops(e)
    weights = sum(row["weight_bytes"] for name, row in ops.items() if name != "lm_head")
    return ops["attention"]["kv_bytes"] / HBM * 1e6, weights / HBM * 1e6


@pytest.mark.parametrize(
    ("tpa", "kvp", "kv_us", "weight_us"),
    [
        (1, 1, 1024.0, 236.98),
        (8, 1, 128.0, 29.62),
        (16, 1, 128.0, 14.94),
        (64, 1, 128.0, 3.93),
        (8, 2, 64.0, 17.04),
        (8, 8, 16.0, 7.60),
    ],
)
def test_figure_1(tpa: int, kvp: int, kv_us: float, weight_us: float) -> None:
    kv, weights = reads_us(layer(tpa, kvp))
    assert kv == about(kv_us, EXACT)
    assert weights == about(weight_us, EXACT)


def formula_us(tpa: int, kvp: int, *, output_split: int) -> tuple[float, float]:
    """The paper's read times: B 2 ceil(K/TPA) Hsz S/KVP and (Q/TPA + 2 ceil(K/TPA)) Hsz H + output + 3 H F / TPF."""
    h, heads, kv_heads, width, f, element = 16384, 128, 8, 128, 65536, 0.5
    here = math.ceil(kv_heads / tpa)
    kv = 8 * 2 * here * width * 1_000_000 / kvp * element
    weights = h * (heads / tpa + 2 * here) * width + h * h / output_split + 3 * h * f / (tpa * kvp)
    return kv / HBM * 1e6, weights * element / HBM * 1e6


@pytest.mark.parametrize("wo_shard", ["tpa", "n"])
@pytest.mark.parametrize(("tpa", "kvp"), [(2, 1), (4, 1), (32, 1), (128, 1), (1, 8), (4, 4), (8, 4), (8, 16), (16, 4)])
def test_neighbours_of_figure_1(tpa: int, kvp: int, wo_shard: str) -> None:
    kv, weights = reads_us(layer(tpa, kvp, wo_shard))
    expected = formula_us(tpa, kvp, output_split=tpa if wo_shard == "tpa" else tpa * kvp)
    assert (kv, weights) == (about(expected[0], 1e-9), about(expected[1], 1e-9))


@pytest.mark.parametrize(("kvp", "weight_us"), [(2, 15.99), (8, 5.77)])
def test_output_projection_over_all_gpus(kvp: int, weight_us: float) -> None:
    """The text and the shipped kernels cut the output projection over TPA x KVP, our default."""
    assert reads_us(layer(8, kvp, "n"))[1] == about(weight_us, EXACT)


def test_exchange_does_not_grow_with_the_context() -> None:
    short, long = (decode_ops(layer(8, 8, context=s)) for s in (64 * 1024, 1_000_000))
    assert short["all_to_all"] == long["all_to_all"]
    # B (Q / TPA) (128 bf16 and two fp32 statistics), 7 of 8 shares leave
    assert long["all_to_all"]["comm_bytes"] == 8 * 16 * (128 * 2 + 8) * 7 / 8
    assert "all_to_all" not in decode_ops(layer(8, 1))


@pytest.mark.parametrize(
    ("requests", "attention", "comm", "plain", "pipelined"),
    [(8, 2.0, 1.2, 25.6, 17.2), (1, 2.0, 1.2, 3.2, 3.2), (8, 1.2, 2.0, 25.6, 17.2), (4, 3.0, 3.0, 24.0, 15.0)],
)
def test_hop_b(requests: int, attention: float, comm: float, plain: float, pipelined: float) -> None:
    """HOP-B: t_attn + (B - 1) max(t_attn, t_comm) + t_comm against B (t_attn + t_comm); the first row is printed."""
    assert requests * (attention + comm) == about(plain, 1e-12)
    with namespace(np):
        exposed = hop_b_exposed(float(requests), attention, comm)
    assert requests * attention + exposed == about(pipelined, 1e-12)


def test_hop_b_in_a_step() -> None:
    """The same through the whole model: the layer's attention and exchange, request by request."""
    shape = "layout.tpa=8 layout.kvp=8 workload.context=20000"
    off, on = (point(FIGURE_1, shape, f"layout.hop_b={flag}") for flag in ("false", "true"))
    ops = decode_ops(off)
    attention, comm = ops["attention"]["time_s"] / 8, ops["all_to_all"]["time_s"] / 8
    saved = 8 * (attention + comm) - (attention + 7 * max(attention, comm) + comm)
    assert saved > 0
    assert off.columns["tpot_s"] - on.columns["tpot_s"] == about(saved, 1e-9)
