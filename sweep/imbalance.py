"""How unevenly experts load the GPUs that hold them when nothing balances them: a Monte Carlo on the host.

It is run once per (experts, top k, groups, skew) that occurs in a grid, never per design point: what comes out is one
number, `(max - mean) / mean`, by which the slowest GPU of an unbalanced layout has more than its share.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

# Zipf exponent of expert popularity that gives back the published imbalance, where a workload names none
UNBALANCED_SKEW = 0.62


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
    Source: TensorRT-LLM wide-EP blogs (4, 8, 14), DeepSeek-R1 without balancing at EP32 and 128 tokens per rank: 1.2
        to 1.9 per rank and 10 to 14 per slot, which s = 0.60 to 0.65 gives back. Popularity is taken as independent of
        the domain of the text; real skew drifts with it.
    """
    rng = np.random.default_rng(seed)
    chance = np.minimum(top_k * zipf_shares(n_experts, skew), 1.0)
    slots = -(-n_experts // ep) * ep  # where ep does not divide them, some groups hold one expert fewer
    chance = np.concatenate([chance, np.zeros(slots - n_experts)])
    load = np.broadcast_to(chance, (placements, slots))
    if tokens is not None:
        load = rng.binomial(tokens, load).astype(np.float64)
    groups = rng.permuted(load, axis=1).reshape(placements, ep, slots // ep).sum(axis=2)
    mean = groups.mean(axis=1)
    excess = np.divide(groups.max(axis=1) - mean, mean, out=np.zeros(placements), where=mean > 0)
    return float(excess.mean())


@functools.lru_cache(maxsize=4096)
def expected_imbalance(n_experts: int, top_k: int, ep: int, skew: float) -> float:
    """`load_imbalance` of many tokens, remembered."""
    return load_imbalance(n_experts, top_k, ep, skew, placements=400) if ep > 1 and n_experts > 0 else 0.0


@dataclass(frozen=True, kw_only=True)
class Unbalanced:
    """Excess of the slowest group for every model and layout of a grid: excess[of_model[i], of_layout[j]]."""

    of_model: np.ndarray  # [models] which (experts, top k)
    of_layout: np.ndarray  # [layouts] which (groups, skew)
    excess: np.ndarray


def unbalanced(
    n_experts: np.ndarray, top_k: np.ndarray, ep: np.ndarray, skew: np.ndarray, balanced: np.ndarray
) -> Unbalanced:
    """The excess that each model and layout would have without balancing; 0 for layouts that balance.

    Args: experts and top k of each model; groups, Zipf exponent (0: the default one) and balancing of each layout.
    """
    skews = np.where(skew > 0, skew, UNBALANCED_SKEW)
    groups = np.where(balanced > 0, 1.0, ep)
    of_models = list(zip(n_experts.tolist(), top_k.tolist(), strict=True))
    of_layouts = list(zip(groups.tolist(), skews.tolist(), strict=True))
    models, layouts = (list(dict.fromkeys(pairs)) for pairs in (of_models, of_layouts))
    excess = [[expected_imbalance(int(e), int(k), int(g), float(s)) for g, s in layouts] for e, k in models]
    return Unbalanced(
        of_model=np.array([models.index(pair) for pair in of_models], dtype=np.int32),
        of_layout=np.array([layouts.index(pair) for pair in of_layouts], dtype=np.int32),
        excess=np.array(excess, dtype=np.float64),
    )
