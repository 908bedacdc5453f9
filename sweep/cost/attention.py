"""Attention: its projections, its cache, and the attention itself in decode and prefill.

Kinds: GQA (MHA and MQA are its ends), MLA (absorbed in decode, unabsorbed in prefill), sliding-window and
chunked-local layers, sparse attention with an indexer, linear and SSM layers with a state per sequence.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from sweep.cost.arith import ceil_div, minimum, where
from sweep.cost.collectives import exchange, gather
from sweep.cost.gemm import gemm
from sweep.cost.ops import Op, Phase, kernel
from sweep.machine import MESSAGE_BYTES, Machine
from sweep.point import Kinds, Layout, Model, Num, Tokens

STATISTICS_BYTES = 8.0  # maximum and sum of the softmax, fp32, per head and token (Helix, arXiv 2507.07120)


@dataclass(frozen=True, kw_only=True)
class Heads:
    """The heads of one kind of layer with keys and values, whole and on one GPU."""

    count: Num  # layers
    kv_heads: Num
    kv_heads_here: Num  # ceil(n_kv / tpa): past tpa = n_kv the cache is duplicated, not split
    width: Num  # of a query and key head
    v_width: Num
    kv_width: Num  # elements per token and KV head: key and value, or one tensor for both


def full_heads(model: Model, layout: Layout) -> Heads:
    """Heads of the full-attention layers that are not MLA."""
    mla = model.kv_lora_rank > 0
    return Heads(
        count=where(mla, 0.0, model.n_full_layers),
        kv_heads=model.n_kv_heads,
        kv_heads_here=ceil_div(model.n_kv_heads, layout.tpa),
        width=model.head_dim,
        v_width=model.v_head_dim,
        kv_width=model.head_dim + where(model.k_equals_v > 0, 0.0, model.v_head_dim),
    )


def window_heads(model: Model, layout: Layout) -> Heads:
    """Heads of the sliding-window and chunked-local layers."""
    return Heads(
        count=model.n_window_layers,
        kv_heads=model.window_kv_heads,
        kv_heads_here=ceil_div(model.window_kv_heads, layout.tpa),
        width=model.window_head_dim,
        v_width=model.window_v_head_dim,
        kv_width=model.window_head_dim + model.window_v_head_dim,
    )


def mla_layers(model: Model) -> Num:
    """Full layers with multi-head latent attention."""
    return where(model.kv_lora_rank > 0, model.n_full_layers, 0.0)


def query_heads(model: Model, layout: Layout) -> Num:
    """Query heads on one GPU."""
    return model.n_heads / layout.tpa


def output_split(layout: Layout) -> Num:
    """GPUs that the output projection is cut over: tpa x kvp, or tpa alone as in Helix's formula."""
    return layout.tpa * where(layout.wo_shard > 0, layout.kvp, 1.0)


def cache_token_bytes(model: Model, machine: Machine, layout: Layout) -> tuple[Num, Num]:
    """Cache of one token on one GPU over all layers: the part that grows with the context, and inside the window.

        GQA  2 n_kv head_dim kv;   MLA  (kv_lora + rope) kv, once;   K = V once;   indexer keys index_dim kv
    Heads held are ceil(n_kv / tpa); kvp cuts the sequence, which the caller does.
    Source: NVIDIA Helix for duplication past the KV heads; DeepSeek-V2/V3 for the latent cache.
    """
    full, window = full_heads(model, layout), window_heads(model, layout)
    growing = full.count * full.kv_heads_here * full.kv_width
    growing = growing + mla_layers(model) * (model.kv_lora_rank + model.qk_rope_dim)
    growing = growing + model.n_index_layers * model.index_dim
    bounded = window.count * window.kv_heads_here * window.kv_width
    return growing * machine.kv, bounded * machine.kv


# --- projections -------------------------------------------------------------------------------------------------


def projections(phase: Phase, model: Model, machine: Machine, layout: Layout, tokens: Tokens, kinds: Kinds) -> list[Op]:
    """All GEMMs around attention that do not depend on the context; output projections included.

    MLA decode is absorbed: queries go through W_k once per head, attention outputs through W_v. MLA prefill expands
    keys and values, which depends on the prefix and stands in `prefill_attention`.
    """
    rate, weight = machine.gemm_attn, machine.attn_weight
    heads = query_heads(model, layout)
    ops: list[Op] = []

    def add(name: str, count: Num, m: Num, n: Num, k: Num, groups: Num = 1.0) -> None:
        ops.append(gemm(name, phase, machine, rate, count=count, m=m, n=n, k=k, weight=weight, groups=groups))

    def with_heads(h: Heads, kv_width: Num) -> None:
        queries = heads * h.width * (1.0 + model.attn_gate)
        add("qkv_proj", h.count, tokens.project, queries + h.kv_heads_here * kv_width, model.d_model)
        add("o_proj", h.count, tokens.attend, model.d_model, model.n_heads * h.v_width / output_split(layout))

    if kinds.gqa:
        h = full_heads(model, layout)
        with_heads(h, h.kv_width)
    if kinds.window:
        h = window_heads(model, layout)
        with_heads(h, h.kv_width)
    if kinds.mla:
        count = mla_layers(model)
        direct = model.q_lora_rank <= 0
        q_width = heads * (model.qk_nope_dim + model.qk_rope_dim)
        add("q_down", where(direct, 0.0, count), tokens.project, model.q_lora_rank, model.d_model)
        add("q_up", count, tokens.project, q_width, where(direct, model.d_model, model.q_lora_rank))
        add("kv_down", count, tokens.project, model.kv_lora_rank + model.qk_rope_dim, model.d_model)
        if phase == "decode":
            add("k_up", count, tokens.project, model.kv_lora_rank, model.qk_nope_dim, heads)
            add("v_up", count, tokens.project, model.v_head_dim, model.kv_lora_rank, heads)
        add("o_proj", count, tokens.attend, model.d_model, model.n_heads * model.v_head_dim / output_split(layout))
    if kinds.sparse:
        index_in = where(model.q_lora_rank > 0, model.q_lora_rank, model.d_model)
        add("index_q", model.n_index_layers, tokens.project, model.index_heads * model.index_dim, index_in)
        add("index_k", model.n_index_layers, tokens.project, model.index_dim + model.index_heads, model.d_model)
    if kinds.linear:
        count = model.n_linear_layers
        add("linear_in", count, tokens.attend, model.linear_in_width / layout.tpa, model.d_model)
        add("linear_out", count, tokens.attend, model.d_model, model.linear_out_width / layout.tpa)
        state = model.state_bytes_per_layer / layout.tpa * tokens.requests
        ops.append(
            kernel(
                "linear_state", phase, machine.state, count=count, flops=0.0, kv_read_bytes=state, kv_write_bytes=state
            )
        )
    return ops


def helix_exchange(
    phase: Phase, model: Model, machine: Machine, layout: Layout, tokens: Tokens, kinds: Kinds
) -> list[Op]:
    """Helix's all-to-all over the KV-sequence ranks: partial outputs and softmax statistics; independent of S.

        m = tokens (n_heads / tpa) (v act + 8 bytes)
    In prefill the queries are gathered first: m = tokens (n_heads / tpa) head_dim act.
    Source: Helix (arXiv 2507.07120), section 2.
    """
    if not kinds.helix:
        return []
    heads = query_heads(model, layout)
    ops: list[Op] = []

    def add(count: Num, width: Num, v_width: Num) -> None:
        if phase == "prefill":
            queries = tokens.attend * (heads * width * MESSAGE_BYTES)
            ops.append(
                gather("all_gather", phase, machine, count=count, message=queries, group=layout.kvp, stride=layout.tpa)
            )
        partial = tokens.attend * (heads * (v_width * MESSAGE_BYTES + STATISTICS_BYTES))
        ops.append(
            exchange(
                "all_to_all",
                phase,
                machine,
                machine.exchange,
                count=count,
                message=partial,
                group=layout.kvp,
                stride=layout.tpa,
            )
        )

    if kinds.gqa:
        h = full_heads(model, layout)
        add(h.count, h.width, h.v_width)
    if kinds.window:
        h = window_heads(model, layout)
        add(h.count, h.width, h.v_width)
    if kinds.mla:
        add(mla_layers(model), model.qk_nope_dim + model.qk_rope_dim, model.v_head_dim)
    return ops


# --- decode ------------------------------------------------------------------------------------------------------


def decode_attention(
    model: Model, machine: Machine, layout: Layout, tokens: Tokens, context: Num, kinds: Kinds
) -> list[Op]:
    """Attention of one decode step: everything that depends on the context S.

        kv_read = requests (S / kvp) per-token bytes ceil(n_kv / tpa) / n_kv       drafted tokens share the read
        flops   = 2 tokens (S / kvp) (n_heads / tpa) (head_dim + v)                MLA absorbed: 2 kv_lora + rope
    Window layers see min(S, window), sparse layers min(S, sparse_top_k) plus the indexer, which reads all S keys.
    A processor walks its keys in order: the floor grows with them.
    Source: Helix (arXiv 2507.07120) appendix; DeepSeek-V3.2 for the indexer.
    """
    heads = query_heads(model, layout)
    seen = where(model.sparse_top_k > 0, minimum(context, model.sparse_top_k), context) if kinds.sparse else context
    ops: list[Op] = []

    def with_heads(h: Heads, keys: Num) -> None:
        token_bytes = h.kv_heads_here * h.kv_width * machine.kv
        ops.append(
            kernel(
                "attention",
                "decode",
                machine.attention,
                count=h.count,
                m=tokens.attend,
                n=keys,
                k=h.width,
                groups=heads,
                floor_s=machine.attention.t0_s + keys * machine.attention.chain_s,
                flops=keys * (tokens.attend * 2.0 * heads * (h.width + h.v_width)),
                kv_read_bytes=keys * (tokens.requests * token_bytes),
                kv_write_bytes=tokens.requests / layout.kvp * token_bytes,
                input_bytes=tokens.attend * (heads * h.width * machine.act),
                output_bytes=tokens.attend * (heads * h.v_width * machine.out),
            )
        )

    if kinds.gqa:
        with_heads(full_heads(model, layout), seen / layout.kvp)
    if kinds.window:
        with_heads(window_heads(model, layout), minimum(context, model.window) / layout.kvp)
    if kinds.mla:
        latent, token_bytes = model.kv_lora_rank, (model.kv_lora_rank + model.qk_rope_dim) * machine.kv
        keys = seen / layout.kvp
        ops.append(
            kernel(
                "attention",
                "decode",
                machine.mla,
                count=mla_layers(model),
                m=tokens.attend,
                n=keys,
                k=latent + model.qk_rope_dim,
                groups=heads,
                floor_s=machine.mla.t0_s + keys * machine.mla.chain_s,
                flops=keys * (tokens.attend * 2.0 * heads * (2.0 * latent + model.qk_rope_dim)),
                kv_read_bytes=keys * (tokens.requests * token_bytes),
                kv_write_bytes=tokens.requests / layout.kvp * token_bytes,
                input_bytes=tokens.attend * (heads * (latent + model.qk_rope_dim) * machine.act),
                output_bytes=tokens.attend * (heads * latent * machine.out),
            )
        )
    if kinds.sparse:
        keys = context / layout.kvp
        key_bytes = model.index_dim * machine.kv
        ops.append(
            kernel(
                "indexer",
                "decode",
                machine.attention,
                count=model.n_index_layers,
                m=tokens.attend,
                n=keys,
                k=model.index_dim,
                groups=model.index_heads,
                floor_s=machine.attention.t0_s + keys * machine.attention.chain_s,
                flops=keys * (tokens.attend * 2.0 * model.index_heads * model.index_dim),
                kv_read_bytes=keys * (tokens.requests * key_bytes),
                kv_write_bytes=tokens.requests / layout.kvp * key_bytes,
            )
        )
    return ops


# --- prefill -----------------------------------------------------------------------------------------------------


def prefill_attention(
    model: Model, machine: Machine, layout: Layout, tokens: Tokens, chunk: Num, prefix: Num, kinds: Kinds
) -> list[Op]:
    """Attention of one prefill chunk after a prefix, and MLA's expansion of keys and values over prefix and chunk.

        causal flops = 2 c (p + c / 2) n_heads (head_dim + v)        KV read (p + c) per chunk
    A window layer attends min(p + c / 2, window) keys per query and reads min(p, window) + c. The floor grows with the
    keys per query, which a processor walks in order.
    Under kvp each rank attends all queries over its share of the keys.
    Source: the causal half square of FlashAttention; DeepSeek-V3 for unabsorbed MLA prefill.
    """
    heads = query_heads(model, layout)
    far = float("inf")
    top_k = where(model.sparse_top_k > 0, model.sparse_top_k, far) if kinds.sparse else far
    mean_keys, all_keys = prefix + chunk / 2.0, prefix + chunk
    ops: list[Op] = []

    def attend(
        name: str,
        count: Num,
        groups: Num,
        keys: Num,
        read: Num,
        width: Num,
        v_width: Num,
        token_bytes: Num,
        new_bytes: Num,
    ) -> None:
        ops.append(
            kernel(
                name,
                "prefill",
                machine.prefill,
                count=count,
                m=chunk,
                n=keys / layout.kvp,
                k=width,
                groups=groups,
                floor_s=machine.prefill.t0_s + keys / layout.kvp * machine.prefill.chain_s,
                flops=keys / layout.kvp * (chunk * 2.0 * groups * (width + v_width)),
                kv_read_bytes=read / layout.kvp * token_bytes,
                kv_write_bytes=tokens.project * new_bytes,
                # an indexer keeps its queries and scores on chip, as in decode
                input_bytes=0.0 if name == "indexer" else chunk * (groups * width * machine.act),
                output_bytes=0.0 if name == "indexer" else chunk * (groups * v_width * machine.out),
            )
        )

    if kinds.gqa:
        h = full_heads(model, layout)
        token_bytes = h.kv_heads_here * h.kv_width * machine.kv
        attend(
            "attention",
            h.count,
            heads,
            minimum(mean_keys, top_k),
            all_keys,
            h.width,
            h.v_width,
            token_bytes,
            token_bytes,
        )
    if kinds.window:
        h = window_heads(model, layout)
        token_bytes = h.kv_heads_here * h.kv_width * machine.kv
        keys, read = minimum(mean_keys, model.window), minimum(prefix, model.window) + chunk
        attend("attention", h.count, heads, keys, read, h.width, h.v_width, token_bytes, token_bytes)
    if kinds.mla:
        count = mla_layers(model)
        width, v_width = model.qk_nope_dim + model.qk_rope_dim, model.v_head_dim
        token_bytes = (model.kv_lora_rank + model.qk_rope_dim) * machine.kv
        expand = gemm(
            "kv_up",
            "prefill",
            machine,
            machine.gemm_attn,
            count=count,
            m=all_keys / layout.kvp,
            n=heads * (model.qk_nope_dim + v_width),
            k=model.kv_lora_rank,
            weight=machine.attn_weight,
        )
        # all keys at once keep the processors busy far longer than one tile's chain, and chunks stay summable
        ops.append(dataclasses.replace(expand, chain_s=0.0))
        attend("attention", count, heads, minimum(mean_keys, top_k), all_keys, width, v_width, token_bytes, token_bytes)
    if kinds.sparse:
        key_bytes = model.index_dim * machine.kv
        attend(
            "indexer",
            model.n_index_layers,
            model.index_heads,
            mean_keys,
            all_keys,
            model.index_dim,
            0.0,
            key_bytes,
            key_bytes,
        )
    return ops
