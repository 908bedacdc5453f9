"""How unevenly experts load the GPUs that hold them when nothing balances them: a Monte Carlo on the host.

It is run once per (experts, top k, groups, skew), never per design point: what comes out is one number,
`(max - mean) / mean`, which the machine record carries as `imbalance_off`.
"""

from __future__ import annotations

import numpy as np


def zipf_shares(n_experts: int, skew: float) -> np.ndarray:
    """Share of the routed tokens that the i-th most popular expert gets: i^-s / sum of j^-s."""
    weight = np.arange(1, n_experts + 1, dtype=np.float64) ** -skew
    return np.asarray(weight / weight.sum())


def load_imbalance(
    n_experts: int,
    top_k: int,
    ep: int,
    skew: float,
    *,
    tokens: int | None = None,
    placements: int = 2000,
    seed: int = 0,
) -> float:
    """Slowest group over mean group in expert tokens, less 1, averaged over random placements of the experts.

        (max over groups - mean) / mean,   an expert's tokens ~ Binomial(T, min(1, k i^-s / sum j^-s))

    Args:
        n_experts: routed experts of a layer.
        top_k: experts per token.
        ep: groups that the experts are dealt to at random, n_experts / ep each; ep = n_experts gives the excess of
            the busiest expert slot.
        skew: Zipf exponent s of expert popularity; 0: uniform.

        tokens: tokens T of the replica's step, whose routing is drawn; None: infinitely many, the expected loads.
        placements: how many placements are averaged.
        seed: of the random numbers; the same arguments always give the same number.
    Returns: the excess [-]; 0 when ep = 1.
    Raises: ValueError where ep does not divide n_experts.
    Source: TensorRT-LLM wide-EP blogs (4, 8, 14), DeepSeek-R1 without balancing at EP32 and 128 tokens per rank: 1.2
        to 1.9 per rank and 10 to 14 per slot, which s = 0.60 to 0.65 gives back. Popularity is taken as independent of
        the domain of the text; real skew drifts with it.
    """
    if n_experts % ep:
        raise ValueError(f"ep={ep}: must divide n_experts={n_experts}")
    rng = np.random.default_rng(seed)
    chance = np.minimum(top_k * zipf_shares(n_experts, skew), 1.0)
    load = np.broadcast_to(chance, (placements, n_experts))
    if tokens is not None:
        load = rng.binomial(tokens, load).astype(np.float64)
    groups = rng.permuted(load, axis=1).reshape(placements, ep, n_experts // ep).sum(axis=2)
    mean = groups.mean(axis=1)
    excess = np.divide(groups.max(axis=1) - mean, mean, out=np.zeros(placements), where=mean > 0)
    return float(excess.mean())
