"""How many experts and groups are hit, and what a GPU reads of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from sweep.cost.ffn import distinct_experts, distinct_experts_skewed, distinct_ranks, ffn_ops, held_experts
from sweep.cost.ops import Op
from sweep.cost.tokens import decode_tokens
from sweep.imbalance import load_imbalance, unbalanced, zipf_shares
from tests.cost import points
from tests.cost.points import MOE


@pytest.fixture(autouse=True)
def plain_numbers() -> Iterator[None]:
    with points.numbers():
        yield


@pytest.mark.parametrize(
    ("tokens", "n_experts", "top_k"), [(1, 256, 8), (2, 8, 2), (7, 64, 6), (512, 128, 8), (100_000, 256, 8)]
)
def test_distinct_experts(tokens: int, n_experts: int, top_k: int) -> None:
    exact = n_experts * (1 - (1 - top_k / n_experts) ** tokens)
    assert distinct_experts(np.float64(tokens), n_experts, top_k) == pytest.approx(exact, rel=1e-12)
    assert distinct_experts(np.float32(tokens), np.float32(n_experts), np.float32(top_k)) == pytest.approx(
        exact, rel=1e-5
    )


@pytest.mark.parametrize("n_experts", [8, 16, 60, 64, 128, 256, 384, 512])
@pytest.mark.parametrize("skew", [0.0, 0.3, 0.6, 0.65, 1.0])
def test_distinct_experts_with_skew(n_experts: int, skew: float) -> None:
    """16 terms and a quadrature against the exact sum over all experts."""
    share = np.arange(1, n_experts + 1) ** -skew
    for top_k in (1, 2, 8):
        chance = np.minimum(top_k * share / share.sum(), 1.0)
        for tokens in (1, 3, 16, 100, 4096):
            exact = (1 - (1 - chance) ** tokens).sum()
            found = distinct_experts_skewed(np.float64(tokens), float(n_experts), float(top_k), skew)
            assert found == pytest.approx(exact, rel=1e-3), (top_k, tokens)


def test_skew_hits_fewer() -> None:
    hit = [distinct_experts_skewed(np.float64(64), 256.0, 8.0, s) for s in (0.1, 0.4, 0.7, 1.0)]
    assert hit == sorted(hit, reverse=True)
    assert hit[0] < distinct_experts(np.float64(64), 256.0, 8.0)


@pytest.mark.parametrize(("ep", "top_k"), [(8, 8), (32, 8), (2, 4), (64, 1)])
def test_distinct_ranks(ep: int, top_k: int) -> None:
    """ep (1 - (1 - 1/ep)^k): groups drawn with replacement, the sender's own counted."""
    assert distinct_ranks(float(ep), float(top_k)) == pytest.approx(ep * (1 - (1 - 1 / ep) ** top_k), rel=1e-12)


def ops(batch: int, efficiency: str = "ideal", **layout: float) -> dict[str, Op]:
    m, hw, lay = points.model(MOE), points.machine(efficiency, precision={"weights": "fp8"}), points.layout(**layout)
    tokens = decode_tokens(lay, np.float64(batch), np.float64(0))
    found = ffn_ops("decode", m, hw, lay, tokens, np.float64(0), points.all_kinds())
    return {op.name: op for op in found}


def test_what_a_gpu_reads_and_computes() -> None:
    """64 experts, 4 per token, ep = 8, tpf = 2: distinct / 8 experts of half the width, T k / distinct tokens each."""
    found = ops(32, dpa=16, ep=8)
    distinct = 64 * (1 - (1 - 4 / 64) ** 32)
    up, down = found["experts_up_gate"], found["experts_down"]
    assert up.weight_bytes == pytest.approx(distinct / 8 * 2 * 1024 * 256, rel=1e-12)
    assert down.weight_bytes == pytest.approx(distinct / 8 * 1024 * 256, rel=1e-12)
    assert up.m == down.m == pytest.approx(32 * 4 / distinct, rel=1e-12)
    assert (up.n, up.k, down.n, down.k) == (512, 1024, 1024, 256)
    assert up.flops == pytest.approx(2 * 32 * 4 * 512 * 1024 / 8, rel=1e-12)  # whatever the number of distinct experts
    assert (up.count, found["ffn_up_gate"].count) == (12, 4)
    assert found["router"].weight_bytes == 64 * 1024 * 2
    assert (found["router"].m, found["shared_down"].m) == (2, 4)  # owned 32 / 16; 32 / ep


def test_the_slowest_gpu() -> None:
    """Imbalance multiplies tokens and FLOPs, not what is read; nothing is uneven where experts are not spread."""
    even, uneven = (ops(4096, name, dpa=8, ep=8)["experts_down"] for name in ("ideal", "measured"))
    slowest = 1.0 + points.machine("measured").imbalance
    assert slowest > 1.05
    assert uneven.m == pytest.approx(slowest * even.m)
    assert uneven.flops == pytest.approx(slowest * even.flops)
    assert uneven.weight_bytes == pytest.approx(even.weight_bytes)
    unbalanced = ops(4096, "measured", dpa=8, ep=8, balanced=0.0)["experts_down"]
    assert unbalanced.m == pytest.approx((1 + points.machine("measured").imbalance_off) * even.m)
    assert ops(4096, "measured", tpa=8)["experts_down"].m == pytest.approx(ops(4096, tpa=8)["experts_down"].m)


def test_held_experts() -> None:
    m = points.model(MOE)
    assert held_experts(m, points.layout(dpa=8, ep=8)) == 8
    assert held_experts(m, points.layout(dpa=8, ep=8, redundant_slots=2)) == 10
    assert held_experts(points.model(MOE, n_experts=60), points.layout(dpa=8, ep=8)) == 8
    assert held_experts(points.model(), points.layout()) == 0


def test_latent_experts_live_at_a_fraction_of_the_width() -> None:
    """LatentMoE: experts at d / 4, two projections d <-> d / 4 added."""
    lay, hw = points.layout(dpa=8, ep=8), points.machine()
    tokens = decode_tokens(lay, np.float64(64), np.float64(0))
    m = points.model(MOE, latent_ratio=4)
    found = {op.name: op for op in ffn_ops("decode", m, hw, lay, tokens, np.float64(0), points.all_kinds())}
    assert (found["experts_up_gate"].k, found["experts_down"].n) == (256, 256)
    assert (found["latent_down"].n, found["latent_down"].k) == (256, 1024)
    assert (found["latent_up"].n, found["latent_up"].k, found["latent_up"].count) == (1024, 256, 12)


# --- imbalance ---------------------------------------------------------------------------------------------------


def test_zipf_shares() -> None:
    assert zipf_shares(4, 0.0).tolist() == [0.25] * 4
    assert zipf_shares(3, 1.0) == pytest.approx([6 / 11, 3 / 11, 2 / 11])


def test_imbalance_by_hand() -> None:
    """One expert per group: the busiest has 6/11 of the tokens where the mean is 1/3, however they are placed."""
    assert load_imbalance(3, 1, 3, 1.0, placements=7) == pytest.approx(3 * 6 / 11 - 1)
    # four experts in two groups, all placements equally likely: the busiest is with the second, third or fourth
    share = zipf_shares(4, 1.0)
    groups = [max(share[0] + share[i], 1 - share[0] - share[i]) for i in (1, 2, 3)]
    assert load_imbalance(4, 1, 2, 1.0, placements=20_000) == pytest.approx(2 * np.mean(groups) - 1, rel=0.01)


def test_few_tokens_are_less_even() -> None:
    few, many = (load_imbalance(64, 4, 8, 0.0, tokens=t, placements=500) for t in (16, 16_384))
    assert many < 0.05 < few


def test_unbalanced_layouts_pay_the_simulated_excess() -> None:
    """Only layouts that do not balance, only with experts spread, each model by its own experts."""
    n_experts, top_k = np.array([0.0, 64.0, 256.0]), np.array([0.0, 4.0, 8.0])
    ep, skew, balanced = np.array([1.0, 8.0, 8.0, 32.0]), np.zeros(4), np.array([0.0, 1.0, 0.0, 0.0])
    found = unbalanced(n_experts, top_k, ep, skew, balanced)
    table = found.excess[found.of_model][:, found.of_layout]
    assert (table[0] == 0).all() and (table[:, 0] == 0).all() and (table[:, 1] == 0).all()
    assert 0 < table[2, 2] < table[2, 3] and 1.2 <= table[2, 3] <= 1.9  # TensorRT-LLM wide EP: 1.2 to 1.9 at EP32
    assert table[1, 3] > table[1, 2] > 0
