"""Parameters, and what a GPU holds: weights, cache, state, activations."""

from __future__ import annotations

from dataclasses import dataclass

import jax

from sweep.cost.arith import ceil_div, floor, maximum, minimum, where
from sweep.cost.attention import cache_token_bytes, full_heads, mla_layers, output_split, query_heads, window_heads
from sweep.cost.ffn import dense_width, held_experts
from sweep.cost.tokens import stage_gpus
from sweep.machine import Machine
from sweep.point import Layout, Model, Num, Tokens

ACTIVATION_BYTES = 4.0 * 2.0  # bytes per element of the residual stream that are alive: four tensors of bf16
EXTRA_BYTES = 2.0  # biases, norms and small mixers stay bf16


@dataclass(frozen=True, kw_only=True)
class AttentionParams:
    """Attention parameters on one GPU over all layers: what tpa cuts, output projections, what every GPU has."""

    heads: Num
    output: Num
    everywhere: Num


def _attention_params(model: Model, layout: Layout) -> AttentionParams:
    """Attention parameters that one GPU holds.

    Source: the GEMM shapes of `attention.projections`; they are the shapes of the models' own code.
    """
    here = query_heads(model, layout)
    d = model.d_model
    heads: Num = 0.0
    output: Num = 0.0
    for h in (full_heads(model, layout), window_heads(model, layout)):
        heads = heads + h.count * d * (here * h.width * (1.0 + model.attn_gate) + h.kv_heads_here * h.kv_width)
        output = output + h.count * d * model.n_heads * h.v_width / output_split(layout)
    mla = mla_layers(model)
    direct = model.q_lora_rank <= 0
    q_width = model.qk_nope_dim + model.qk_rope_dim
    q_in = where(direct, d, model.q_lora_rank)
    heads = heads + mla * here * (q_in * q_width + model.kv_lora_rank * (model.qk_nope_dim + model.v_head_dim))
    output = output + mla * d * model.n_heads * model.v_head_dim / output_split(layout)
    down = where(direct, 0.0, d * model.q_lora_rank) + d * (model.kv_lora_rank + model.qk_rope_dim)
    index_in = where(direct, d, model.q_lora_rank)
    index = index_in * model.index_heads * model.index_dim + d * (model.index_dim + model.index_heads)
    everywhere = mla * down + model.n_index_layers * index
    linear = model.n_linear_layers * d * (model.linear_in_width + model.linear_out_width) / layout.tpa
    return AttentionParams(heads=heads + linear, output=output, everywhere=everywhere)


def _norm_params(model: Model) -> Num:
    mla = mla_layers(model)
    return model.d_model * (2.0 * model.n_layers + 1.0) + mla * (model.q_lora_rank + model.kv_lora_rank)


def _expert_params(model: Model) -> Num:
    """One routed expert of one layer."""
    return model.ffn_matrices * model.d_model / model.latent_ratio * model.d_expert


def _moe_fixed_params(model: Model) -> tuple[Num, Num]:
    """Per MoE layer what every token passes but the shared experts: router, LatentMoE projections."""
    latent = where(model.latent_ratio > 1.0, 2.0 * model.d_model * model.d_model / model.latent_ratio, 0.0)
    return model.d_model * model.n_experts, latent


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Params:
    """Parameter counts of the whole model."""

    total: Num  # everything, tied embeddings once, MTP modules not
    active: Num  # what a token multiplies: no input embedding
    touched: Num  # active and the input embedding where it is a table of its own: the accuracy proxy's count


def count_params(model: Model) -> Params:
    """Total and active parameters.

    `active` counts top_k experts, shared experts, router and LM head, and not the input embedding, which is a
    lookup. Source: published totals of the catalogue agree within 0.15 %; "active" has no standard meaning, see there.
    """
    one = Layout(tpa=1.0, kvp=1.0, dpa=1.0, tpf=1.0, ep=1.0, pp=1.0, wo_shard=1.0, ffn_tied=0.0)
    attention = _attention_params(model, one)
    router, latent = _moe_fixed_params(model)
    m, d = model.ffn_matrices, model.d_model
    common = attention.heads + attention.output + attention.everywhere + _norm_params(model) + model.extra_params
    common = common + model.n_dense_layers * m * d * model.d_ff
    common = common + model.n_moe_layers * (router + latent + m * d * model.d_shared)
    table = model.vocab * d
    routed = model.n_moe_layers * _expert_params(model)
    untied = where(model.tied_embeddings > 0, 0.0, table)
    active = common + routed * model.top_k + table
    return Params(total=common + routed * model.n_experts + table + untied, active=active, touched=active + untied)


def stage_share(model: Model, layout: Layout) -> Num:
    """Layers of the fullest pipeline stage over all layers: ceil(L / P) / L."""
    return ceil_div(model.n_layers, layout.pp) / model.n_layers


def expert_bytes(model: Model, machine: Machine, layout: Layout) -> Num:
    """Routed experts of the fullest stage on one GPU."""
    experts = held_experts(model, layout) * _expert_params(model) / layout.tpf
    return machine.ffn_weight * (model.n_moe_layers * experts) * stage_share(model, layout)


def weights_bytes(model: Model, machine: Machine, layout: Layout, *, experts: bool = True) -> Num:
    """Weights of the fullest stage on one GPU; each part is divided by its own split only.

    Embeddings: vocab d / (tpa kvp) each; with pp = 1 both (one if tied), with pp > 1 each end stage holds one.

    Args:
        experts: count the routed experts; false leaves them out.
    """
    attention = _attention_params(model, layout)
    router, latent = _moe_fixed_params(model)
    m, d = model.ffn_matrices, model.d_model
    routed: Num = held_experts(model, layout) * _expert_params(model) / layout.tpf if experts else 0.0
    shared = m * d * dense_width(model.d_shared, layout)
    dense = model.n_dense_layers * m * d * dense_width(model.d_ff, layout)
    layers = machine.attn_weight * (attention.heads + attention.output + attention.everywhere)
    layers = layers + machine.ffn_weight * (dense + model.n_moe_layers * (routed + shared + latent))
    layers = layers + machine.head_weight * model.n_moe_layers * router
    layers = layers + EXTRA_BYTES * (_norm_params(model) + model.extra_params / layout.tpa)
    tables = where(layout.pp > 1.0, 1.0, where(model.tied_embeddings > 0, 1.0, 2.0))
    table = model.vocab * d * machine.head_weight / (layout.tpa * layout.kvp)
    return layers * stage_share(model, layout) + tables * table


def kv_bytes_per_token(model: Model, machine: Machine) -> Num:
    """Cache of one token over the whole model, the part that grows with the context, at the cache's format."""
    one = Layout(tpa=1.0, kvp=1.0)
    growing, _ = cache_token_bytes(model, machine, one)
    return growing


def request_bytes(model: Model, machine: Machine, layout: Layout, longest: Num) -> Num:
    """Cache and state of one request on one GPU of the fullest stage at its longest context."""
    growing, bounded = cache_token_bytes(model, machine, layout)
    cache = (longest * growing + minimum(longest, model.window) * bounded) / layout.kvp
    state = model.n_linear_layers * model.state_bytes_per_layer / layout.tpa
    return (cache + state) * stage_share(model, layout)


def cached_bytes(model: Model, machine: Machine, prompt: Num) -> Num:
    """Cache and state that the prefill of one prompt leaves behind, over the whole model, nothing duplicated."""
    growing, bounded = cache_token_bytes(model, machine, Layout(tpa=1.0, kvp=1.0))
    state = model.n_linear_layers * model.state_bytes_per_layer
    return prompt * growing + minimum(prompt, model.window) * bounded + state


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Held:
    """What one GPU holds [B]."""

    weights: Num
    kv: Num  # cache and state
    activations: Num
    total: Num  # with the reserve


def held_bytes(
    weights: Num, per_request: Num, model: Model, machine: Machine, layout: Layout, tokens: Tokens, batch: Num
) -> Held:
    """Memory of one GPU: weights, cache of ceil(B / dpa) requests, activations of one microbatch, reserve."""
    kv = ceil_div(batch, layout.dpa) * per_request
    activations = ACTIVATION_BYTES * model.d_model * tokens.attend
    return Held(
        weights=weights, kv=kv, activations=activations, total=weights + kv + activations + machine.reserve_bytes
    )


def max_batch(weights: Num, per_request: Num, model: Model, machine: Machine, layout: Layout) -> Num:
    """The largest number of requests that fits: dpa floor((capacity - weights - reserve) / bytes per request)."""
    room = machine.hbm_bytes - weights - machine.reserve_bytes
    each = per_request + ACTIVATION_BYTES * model.d_model * (1.0 + model.n_draft)
    return layout.dpa * maximum(floor(room / each), 0.0)


def gpus(layout: Layout) -> Num:
    """GPUs of one replica."""
    return stage_gpus(layout) * layout.pp
