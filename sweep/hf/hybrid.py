"""Architectures with linear attention or state spaces in some of their layers."""

from __future__ import annotations

from collections.abc import Callable

from sweep.hf.keys import Keys, Shape
from sweep.hf.latent import latent_heads
from sweep.hf.parts import (
    FULL,
    LINEAR,
    add_params,
    attention_heads,
    dense_layers,
    dimensions,
    layer_kinds,
    mamba2,
    routed_experts,
    sparse_steps,
)


def _qwen3_next(k: Keys) -> Shape:
    """Gated delta net in all but every fourth layer; the full layers gate their output. Qwen3.5 may be dense."""
    shape = dimensions(k, tied=False)
    attention_heads(k, shape, own_width=True)
    shape["attn_gate"] = True
    k.only("attention_bias", False)
    k.only("attn_output_gate", True)
    k.only("mamba_ssm_dtype", "float32")
    k.ignore("output_gate_type")
    kinds = layer_kinds(k, shape, FULL, LINEAR)
    k.ignore("full_attention_interval")
    full = shape["n_layers"] // k.whole("full_attention_interval") if kinds is None else kinds[FULL]
    linear = shape["n_layers"] - full
    key_heads, heads = k.whole("linear_num_key_heads"), k.whole("linear_num_value_heads")
    key_width, value_width = k.whole("linear_key_head_dim"), k.whole("linear_value_head_dim")
    kernel = k.whole("linear_conv_kernel_dim")
    keys, values = key_heads * key_width, heads * value_width
    mixed = 2 * keys + values  # what the convolution runs over
    shape["n_full_layers"], shape["n_linear_layers"] = full, linear
    # fp32 state, bf16 tail of the convolution
    shape["state_bytes_per_layer"] = 4 * heads * key_width * value_width + 2 * (kernel - 1) * mixed
    shape["linear_in_width"] = mixed + values + 2 * heads  # q, k, v, gate, two scalars per head
    shape["linear_out_width"] = values
    add_params(shape, linear * (kernel * mixed + 2 * heads + value_width))  # convolution, decays, norm
    add_params(shape, full * 2 * shape["head_dim"])
    if k.raw("num_experts") in (None, 0):
        k.only("mlp_only_layers", [])
        shape["d_ff"] = k.whole("intermediate_size")
        return shape
    routed_experts(k, shape, ("num_experts",), "moe_intermediate_size")
    shape["n_shared_experts"] = 1
    shape["d_shared"] = k.whole("shared_expert_intermediate_size")
    dense_layers(k, shape, sparse_steps(k, shape), "intermediate_size")
    add_params(shape, shape["n_moe_layers"] * shape["d_model"])  # gate of the shared expert
    return shape


def _kimi_linear(k: Keys) -> Shape:
    """Kimi delta attention beside latent attention; the decay is a low-rank pair, the gate one or a full matrix.

    Of a low-rank pair the first half stands among the input columns, the second in `extra_params`.
    """
    shape: Shape = {
        "n_layers": k.whole("num_hidden_layers"),
        "d_model": k.whole("hidden_size"),
        "vocab": k.whole("vocab_size"),
        "tied_embeddings": k.flag("tie_word_embeddings", default=False),
        "max_context": k.whole("max_position_embeddings", "model_max_length"),
    }
    latent_heads(k, shape)
    n, d = shape["n_layers"], shape["d_model"]
    k.ignore("head_dim", "mla_use_nope", "moe_renormalize", "moe_router_activation_func", "num_expert_group")
    k.ignore("activation_situ_beta", "activation_situ_linear_beta", "latent_moe_use_norm", "attn_res_block_size")
    mixer = k.section("linear_attn_config")
    full, linear = mixer.items("full_attn_layers"), mixer.items("kda_layers")
    if full is None or linear is None or sorted([*full, *linear]) != list(range(1, n + 1)):
        raise k.bad("linear_attn_config", f": full_attn_layers and kda_layers must be 1 to {n} together")
    heads, width, kernel = mixer.whole("num_heads"), mixer.whole("head_dim"), mixer.whole("short_conv_kernel_size")
    mixer.ignore("gate_lower_bound")
    whole_gate = mixer.flag("use_full_rank_gate", default=False)
    inner = heads * width
    shape["n_full_layers"], shape["n_linear_layers"] = len(full), len(linear)
    # fp32 state, bf16 tail of the convolutions of q, k and v
    shape["state_bytes_per_layer"] = 4 * inner * width + 2 * (kernel - 1) * 3 * inner
    shape["linear_in_width"] = 3 * inner + width + (inner if whole_gate else width) + heads
    shape["linear_out_width"] = inner
    pairs = (1 if whole_gate else 2) * width * inner
    add_params(shape, len(linear) * (pairs + 3 * inner * kernel + inner + heads + width))
    if k.flag("mla_use_output_gate", default=False):  # the record's latent attention has no gate
        add_params(shape, len(full) * d * shape["n_heads"] * shape["v_head_dim"])
    k.only("moe_layer_freq", 1)
    routed_experts(k, shape, ("num_experts", "num_local_experts"), "moe_intermediate_size", ("num_experts_per_token",))
    shape["n_shared_experts"] = k.whole("num_shared_experts", "n_shared_experts", least=0)
    shape["d_shared"] = shape["n_shared_experts"] * shape["d_expert"]
    narrow = k.raw("routed_expert_hidden_size")
    if narrow is not None:
        shape["latent_ratio"] = d / k.whole("routed_expert_hidden_size")
    dense_layers(k, shape, k.whole("first_k_dense_replace", least=0), "intermediate_size")
    return shape


NEMOTRON = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}


def _nemotron_h(k: Keys) -> Shape:
    """One mixer per layer: Mamba-2, attention, an FFN without gate, or experts; one norm per layer."""
    listed = k.items("layers_block_type")
    if listed is not None and "num_hidden_layers" not in k.found:  # the class counts them
        k.found = {**k.found, "num_hidden_layers": len(listed)}
    shape = dimensions(k, tied=False)
    n, d = shape["n_layers"], shape["d_model"]
    pattern = k.raw("hybrid_override_pattern")
    kinds = k.items("layers_block_type")
    if kinds is None and not isinstance(pattern, str):
        raise k.bad("layers_block_type or hybrid_override_pattern", ": missing, and nothing is guessed")
    layers = [NEMOTRON.get(c, c) for c in str(pattern)] if kinds is None else [str(kind) for kind in kinds]
    for kind in layers:
        if kind not in NEMOTRON.values():
            raise k.bad("layers_block_type", f": {kind} is not understood; known: {', '.join(NEMOTRON.values())}")
    if len(layers) != n:
        raise k.bad("layers_block_type", f": {len(layers)} entries for num_hidden_layers={n}")
    count = {kind: layers.count(kind) for kind in NEMOTRON.values()}
    for key in ("attention_bias", "mlp_bias", "use_bias", "mamba_proj_bias"):
        k.only(key, False)
    k.only("use_conv_bias", True)
    k.only("mlp_hidden_act", "relu2")
    k.only("sliding_window", None)
    k.ignore("expand", "time_step_rank", "mtp_hybrid_override_pattern", "mtp_layers_block_type")
    _state_space_words(k)
    heads = k.whole("num_attention_heads")
    shape["n_heads"], shape["n_kv_heads"] = heads, k.whole("num_key_value_heads")
    shape["head_dim"] = k.whole("head_dim", "attention_head_dim")
    shape["ffn_matrices"] = 2
    shape["n_full_layers"], shape["n_linear_layers"] = count["attention"], count["mamba"]
    inner_heads, width = k.whole("mamba_num_heads"), k.whole("mamba_head_dim")
    small = mamba2(k, shape, inner_heads, width, k.whole("n_groups"), k.whole("ssm_state_size"), k.whole("conv_kernel"))
    add_params(shape, count["mamba"] * (small + inner_heads * width))
    add_params(shape, -n * d)
    if count["moe"]:
        routed_experts(k, shape, ("n_routed_experts",), "moe_intermediate_size")
        shape["n_shared_experts"] = k.whole("n_shared_experts", least=0)
        shape["d_shared"] = k.whole("moe_shared_expert_intermediate_size", least=0)
        k.ignore("moe_shared_expert_overlap")
        narrow = k.raw("moe_latent_size")
        if narrow is not None:
            shape["latent_ratio"] = d / k.whole("moe_latent_size")
    shape["n_moe_layers"], shape["n_dense_layers"] = count["moe"], count["mlp"]
    k.ignore("intermediate_size")
    if count["mlp"]:
        shape["d_ff"] = k.whole("intermediate_size")
    return shape


def _state_space_words(k: Keys) -> None:
    """Keys of state-space layers that change no matrix."""
    k.ignore("chunk_size", "mamba_chunk_size", "mamba_hidden_act", "mamba_ssm_cache_dtype", "rescale_prenorm_residual")
    k.ignore("residual_in_fp32", "time_step_floor", "time_step_max", "time_step_min", "time_step_limit")
    k.ignore("use_mamba_kernels", "use_mambapy", "use_associative_scan", "calc_logits_for_entire_prompt")


def _mamba_keys(k: Keys, shape: Shape, inner: int) -> int:
    """Mamba-2 in the spelling of Granite and Falcon."""
    _state_space_words(k)
    k.only("mamba_conv_bias", True)
    k.only("mamba_proj_bias", False)
    heads = k.whole("mamba_n_heads")
    if inner % heads:
        raise k.bad("mamba_n_heads", f"={heads}: must divide {inner}")
    k.only("mamba_d_head", "auto", inner // heads)
    groups, state, kernel = k.whole("mamba_n_groups"), k.whole("mamba_d_state"), k.whole("mamba_d_conv")
    return mamba2(k, shape, heads, inner // heads, groups, state, kernel)


def _granite_hybrid(k: Keys) -> Shape:
    """Mamba-2 or attention in each layer; an FFN that every token passes, and experts where the file has them."""
    shape = dimensions(k, tied=False)
    attention_heads(k, shape)
    k.ignore("embedding_multiplier", "logits_scaling", "residual_multiplier", "attention_multiplier")
    k.only("attention_bias", False)
    k.ignore("normalization_function", "init_method")
    kinds = k.items("layer_types")
    if kinds is None or len(kinds) != shape["n_layers"] or not set(kinds) <= {"mamba", "attention", FULL, LINEAR}:
        raise k.bad("layer_types", f": must be {shape['n_layers']} times mamba or attention")
    linear = sum(kind in ("mamba", LINEAR) for kind in kinds)
    inner = k.whole("mamba_expand") * shape["d_model"]
    small = _mamba_keys(k, shape, inner)
    if linear:
        shape["n_full_layers"], shape["n_linear_layers"] = shape["n_layers"] - linear, linear
        add_params(shape, linear * (small + inner))
    else:
        for key in ("state_bytes_per_layer", "linear_in_width", "linear_out_width"):
            del shape[key]
    if k.whole("num_local_experts", default=0, least=0):
        routed_experts(k, shape, ("num_local_experts",), "intermediate_size")
        shape["n_shared_experts"], shape["d_shared"] = 1, k.whole("shared_intermediate_size")
    else:
        k.ignore("intermediate_size", "num_experts_per_tok")
        shape["d_ff"] = k.whole("shared_intermediate_size")
    return shape


def _falcon_h1(k: Keys) -> Shape:
    """Attention and Mamba-2 side by side in each layer: written as a full and a linear layer each."""
    shape = dimensions(k, tied=False)
    attention_heads(k, shape, own_width=k.raw("head_dim") is not None)
    shape["d_ff"] = k.whole("intermediate_size")
    for key in ("attention_bias", "mlp_bias", "projectors_bias"):
        k.only(key, False)
    k.only("mamba_use_mlp", True)
    k.ignore("lm_head_multiplier", "embedding_multiplier", "mlp_multipliers", "key_multiplier", "ssm_multipliers")
    k.ignore("attention_out_multiplier", "attention_in_multiplier", "ssm_in_multiplier", "ssm_out_multiplier")
    k.ignore("mamba_norm_before_gate", "attn_layer_indices", "mlp_expansion_factor", "mamba_expand")
    inner = k.raw("mamba_d_ssm")
    inner = k.whole("mamba_expand") * shape["d_model"] if inner is None else k.whole("mamba_d_ssm")
    small = _mamba_keys(k, shape, inner)
    n = shape["n_layers"]
    shape["n_full_layers"] = shape["n_linear_layers"] = n
    add_params(shape, n * (small + (inner if k.flag("mamba_rms_norm", default=False) else 0)))
    return shape


def _jamba(k: Keys) -> Shape:
    """Mamba-1 in all but one layer of a period; experts in every so-manieth layer.

    The projections of step, B and C start from the inner width: their columns count `mamba_expand` times.
    """
    shape = dimensions(k, tied=False)
    attention_heads(k, shape)
    n, d = shape["n_layers"], shape["d_model"]
    period, offset = k.whole("attn_layer_period"), k.whole("attn_layer_offset", least=0)
    full = sum(i % period == offset for i in range(n))
    expand, state, kernel = k.whole("mamba_expand"), k.whole("mamba_d_state"), k.whole("mamba_d_conv")
    rank = -(-d // 16) if k.raw("mamba_dt_rank") == "auto" else k.whole("mamba_dt_rank")
    k.only("mamba_conv_bias", True)
    k.only("mamba_proj_bias", False)
    k.only("mamba_inner_layernorms", True)
    k.only("sliding_window", None)
    _state_space_words(k)
    inner = expand * d
    shape["n_full_layers"], shape["n_linear_layers"] = full, n - full
    shape["state_bytes_per_layer"] = 4 * inner * state + 2 * (kernel - 1) * inner
    shape["linear_in_width"] = 2 * inner + expand * (rank + 2 * state) + expand * rank
    shape["linear_out_width"] = inner
    # convolution with bias, decay, skip, bias of the step, three norms
    add_params(shape, (n - full) * (inner * (kernel + 1) + inner * state + 2 * inner + rank + 2 * state))
    width = k.whole("intermediate_size")
    period, offset = k.whole("expert_layer_period"), k.whole("expert_layer_offset", least=0)
    moe = sum(i % period == offset for i in range(n)) if k.whole("num_experts") > 1 else 0
    if moe:
        routed_experts(k, shape, ("num_experts",), "intermediate_size")
        dense_layers(k, shape, n - moe, "intermediate_size")
    else:
        k.ignore("num_experts_per_tok")
        shape["d_ff"] = width
    return shape


def _minimax(k: Keys) -> Shape:
    """Lightning attention in all but every eighth layer (MiniMax-01, M1)."""
    shape = dimensions(k, tied=False)
    attention_heads(k, shape)
    kinds = layer_kinds(k, shape, FULL, LINEAR)
    listed = k.items("attn_type_list")
    if kinds is None and listed is None:
        raise k.bad("attn_type_list", ": missing, and nothing is guessed")
    linear = k.flags("attn_type_list", shape["n_layers"]).count(0) if kinds is None else kinds[LINEAR]
    inner = shape["n_heads"] * shape["head_dim"]
    shape["n_full_layers"], shape["n_linear_layers"] = shape["n_layers"] - linear, linear
    shape["state_bytes_per_layer"] = 4 * inner * shape["head_dim"]  # fp32
    shape["linear_in_width"], shape["linear_out_width"] = 4 * inner, inner
    add_params(shape, linear * inner)
    routed_experts(k, shape, ("num_local_experts",), "intermediate_size")
    k.only("shared_intermediate_size", 0)
    k.only("sliding_window", None)
    k.ignore("postnorm", "shared_moe_mode", "block_size")
    for part in ("full_attn", "linear_attn", "mlp"):
        k.ignore(f"{part}_alpha_factor", f"{part}_beta_factor")
    return shape


READERS: dict[str, Callable[[Keys], Shape]] = {
    "falcon_h1": _falcon_h1,
    "granitemoehybrid": _granite_hybrid,
    "jamba": _jamba,
    "kimi_linear": _kimi_linear,
    "minimax": _minimax,
    "minimax_m1": _minimax,
    "minimax_text_01": _minimax,
    "nemotron_h": _nemotron_h,
    "qwen3_5_moe_text": _qwen3_next,
    "qwen3_5_text": _qwen3_next,
    "qwen3_next": _qwen3_next,
}
