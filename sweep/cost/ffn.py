"""The FFN: dense, shared experts, routed experts, LatentMoE; and how tokens find their experts."""

from __future__ import annotations

from collections.abc import Callable

from sweep.cost.arith import ceil_div, exp, expm1, log, log1p, maximum, minimum, safe, where
from sweep.cost.collectives import all_reduce, exchange, gather
from sweep.cost.gemm import gemm
from sweep.cost.ops import Op, Phase
from sweep.cost.tokens import ffn_gpus
from sweep.machine import MESSAGE_BYTES, Machine
from sweep.point import Kinds, Layout, Model, Num, Tokens

_HEAD_RANKS = 16  # popular experts summed one by one; the rest by quadrature
# Gauss-Legendre nodes and weights on [-1, 1], 12 points (Abramowitz and Stegun, table 25.4)
_NODES = (
    0.1252334085114689,
    0.3678314989981802,
    0.5873179542866175,
    0.7699026741943047,
    0.9041172563704749,
    0.9815606342467192,
)
_WEIGHTS = (
    0.2491470458134028,
    0.2334925365383548,
    0.2031674267230659,
    0.1600783285433462,
    0.1069393259953184,
    0.0471753363865118,
)


def _sum_over_ranks(n_experts: Num, f: Callable[[Num], Num]) -> Num:
    """Sum of a smooth falling function over popularity ranks 1..E: 16 terms, then an integral over log rank."""
    total: Num = 0.0
    for i in range(1, _HEAD_RANKS + 1):
        total = total + where(i <= n_experts, f(float(i)), 0.0)
    lo, hi = log(_HEAD_RANKS + 0.5), log(maximum(n_experts, _HEAD_RANKS) + 0.5)
    half, mid = (hi - lo) / 2.0, (hi + lo) / 2.0
    for x, w in zip(_NODES, _WEIGHTS, strict=True):
        for sign in (-1.0, 1.0):
            rank = exp(mid + sign * x * half)
            total = total + half * w * rank * f(rank)
    return total


def distinct_experts(tokens: Num, n_experts: Num, top_k: Num) -> Num:
    """Experts that `tokens` tokens hit, each routed uniformly to k of E: E (1 - (1 - k/E)^T).

    Written -E expm1(T log1p(-k/E)), without cancellation. `tokens` are all tokens of the replica's step.
    """
    return -n_experts * expm1(tokens * log1p(-top_k / n_experts))


def distinct_experts_skewed(tokens: Num, n_experts: Num, top_k: Num, skew: Num) -> Num:
    """The same when expert popularity is Zipf: sum over i of 1 - (1 - p_i)^T, p_i = min(1, k i^-s / sum j^-s).

    The sum is exact for the 16 most popular experts and a quadrature over log rank beyond (error below 1e-4).
    """
    norm = _sum_over_ranks(n_experts, lambda i: i ** (-skew))
    return _sum_over_ranks(
        n_experts, lambda i: -expm1(tokens * log1p(-minimum(top_k * i ** (-skew) / norm, 1.0 - 1e-6)))
    )


def distinct_ranks(ep: Num, top_k: Num) -> Num:
    """Expert groups that a token is sent to, the sender's own counted: ep (1 - (1 - 1/ep)^k)."""
    return -ep * expm1(top_k * log1p(-1.0 / ep))


def imbalance(machine: Machine, layout: Layout) -> Num:
    """Slowest GPU over mean GPU in expert tokens; 1 when experts are not spread."""
    excess = where(layout.balanced > 0, machine.imbalance, machine.imbalance_off)
    return where(layout.ep > 1.0, 1.0 + excess, 1.0)


def dense_width(model_width: Num, layout: Layout) -> Num:
    """Inner width on one GPU of a dense FFN or the shared experts: over all GPUs (rounded up) or, dpa > 1, over tpf."""
    return where(layout.dpa <= 1.0, ceil_div(model_width, ffn_gpus(layout)), model_width / layout.tpf)


def up_width(model: Model) -> Num:
    """Up and gate projections side by side: 2 if gated, else 1."""
    return model.ffn_matrices - 1.0


def held_experts(model: Model, layout: Layout) -> Num:
    """Experts in the memory of one GPU, per MoE layer: ceil(E / ep) and the redundant slots."""
    return where(model.n_experts > 0, ceil_div(model.n_experts, layout.ep) + layout.redundant_slots, 0.0)


def ffn_ops(
    phase: Phase, model: Model, machine: Machine, layout: Layout, tokens: Tokens, skew: Num, kinds: Kinds
) -> list[Op]:
    """GEMMs of the FFN on one GPU.

    Experts: distinct / ep of them run, each on T k / distinct tokens, the slowest GPU on `imbalance` times as many.
    Source: section 4 of the cost model; DeepSeek-V3 (shared experts), LatentMoE (arXiv 2601.18089).
    """
    d, w = model.d_model, machine.ffn_weight
    ops: list[Op] = []

    def add(name: str, count: Num, m: Num, n: Num, k: Num, groups: Num = 1.0) -> None:
        rate = machine.experts if name.startswith("experts") else machine.gemm_ffn
        tiled = not name.startswith("experts")
        ops.append(gemm(name, phase, machine, rate, count=count, m=m, n=n, k=k, weight=w, groups=groups, tiled=tiled))

    if kinds.dense:
        width = dense_width(model.d_ff, layout)
        add("ffn_up_gate", model.n_dense_layers, tokens.ffn, up_width(model) * width, d)
        add("ffn_down", model.n_dense_layers, tokens.ffn, d, width)
    if kinds.moe:
        count = model.n_moe_layers
        n_experts, top_k = safe(model.n_experts), where(model.n_experts > 0, model.top_k, 1.0)
        hit = distinct_experts(tokens.total, n_experts, top_k)
        if kinds.skewed:
            hit = where(skew > 0, distinct_experts_skewed(tokens.total, n_experts, top_k, skew), hit)
        run = hit / layout.ep
        m = tokens.total * top_k / hit * imbalance(machine, layout)
        inner, outer = model.d_expert / layout.tpf, d / model.latent_ratio
        ops.append(
            gemm(
                "router",
                phase,
                machine,
                machine.gemm_head,
                count=count,
                m=tokens.owned,
                n=model.n_experts,
                k=d,
                weight=machine.head_weight,
            )
        )
        if kinds.latent:
            latent = where(model.latent_ratio > 1.0, count, 0.0)
            add("latent_down", latent, tokens.owned, outer, d)
            add("latent_up", latent, tokens.owned, d, outer)
        add("experts_up_gate", count, m, up_width(model) * inner, outer, run)
        add("experts_down", count, m, outer, inner, run)
        if kinds.shared:
            width = dense_width(model.d_shared, layout)
            shared = where(model.d_shared > 0, count, 0.0)
            add("shared_up_gate", shared, tokens.ffn, up_width(model) * width, d)
            add("shared_down", shared, tokens.ffn, d, width)
    return ops


def layer_collectives(
    phase: Phase, model: Model, machine: Machine, layout: Layout, tokens: Tokens, kinds: Kinds
) -> list[Op]:
    """Collectives of a layer but Helix's own all-to-all.

    dpa = 1: all-reduce over tpa x kvp after attention and over all GPUs after the FFN: every GPU has every token.
    dpa > 1: reduce-scatter and all-gather over tpa x kvp around attention, all-gather and reduce-scatter over tpf
    around dense FFN and shared experts, dispatch and combine over ep for the experts, and where tpf > 1 a gather and
    a scatter of what arrived.
    Source: Megatron-LM tensor parallelism; DeepSeek-V3 (arXiv 2412.19437) dispatch and combine.
    """
    ops: list[Op] = []
    token_bytes = model.d_model * MESSAGE_BYTES
    attention_group = layout.tpa * layout.kvp
    kinds_of_mixer = (model.n_full_layers, model.n_window_layers, model.n_linear_layers)
    # mixers side by side in a layer share one collective; two attention blocks in a layer (LongCat) pay one each
    mixers = minimum(kinds_of_mixer[0] + kinds_of_mixer[1] + kinds_of_mixer[2], model.n_layers)
    for count in kinds_of_mixer:
        mixers = maximum(mixers, count)
    # where dense FFN and experts run side by side in a layer, one reduction serves both
    ffn_layers = maximum(minimum(model.n_dense_layers + model.n_moe_layers, model.n_layers), model.n_moe_layers)
    grouped = layout.dpa > 1.0
    together, apart = where(grouped, 0.0, 1.0), where(grouped, 1.0, 0.0)

    message = tokens.total * token_bytes
    ops.append(all_reduce(phase, machine, count=mixers * together, message=message, group=attention_group))
    ops.append(all_reduce(phase, machine, count=ffn_layers * together, message=message, group=ffn_gpus(layout)))
    if not kinds.grouped:
        return ops
    message = tokens.attend * token_bytes
    for name in ("reduce_scatter", "all_gather"):
        ops.append(gather(name, phase, machine, count=mixers * apart, message=message, group=attention_group))
    shared = where(model.d_shared > 0, model.n_moe_layers, 0.0) if kinds.shared else 0.0
    cut_layers = (model.n_dense_layers + shared) * apart
    message = tokens.ffn * token_bytes
    for name in ("all_gather", "reduce_scatter"):
        ops.append(gather(name, phase, machine, count=cut_layers, message=message, group=layout.tpf))
    if kinds.moe:
        count = model.n_moe_layers * apart
        width = model.d_model / model.latent_ratio
        top_k = where(model.n_experts > 0, model.top_k, 1.0)
        ranks = distinct_ranks(layout.ep, top_k)
        skewed = imbalance(machine, layout)
        for name, element in (("dispatch", machine.dispatch), ("combine", machine.combine)):
            message = tokens.owned * (ranks * width * element * skewed)
            ops.append(
                exchange(
                    name,
                    phase,
                    machine,
                    machine.experts_link,
                    count=count,
                    message=message,
                    group=layout.ep,
                    stride=layout.tpf,
                )
            )
        for name, element in (("all_gather", machine.dispatch), ("reduce_scatter", machine.combine)):
            message = tokens.total * (ranks / layout.ep * width * element * skewed)
            ops.append(gather(name, phase, machine, count=count, message=message, group=layout.tpf))
    return ops
