"""Architectures whose layers are attention and an FFN or experts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sweep.hf.keys import Keys, Shape
from sweep.hf.parts import (
    CHUNKED,
    FULL,
    SLIDING,
    add_params,
    attention_heads,
    bias_params,
    dense_layers,
    dimensions,
    every_layer_window,
    layer_kinds,
    mlp_kinds,
    qwen_window,
    routed_experts,
    sparse_steps,
    window_layers,
    window_pattern,
)


def _llama(k: Keys) -> Shape:
    shape = dimensions(k, tied=False)
    attention_heads(k, shape)
    shape["d_ff"] = k.whole("intermediate_size")
    if k.flag("attention_bias", default=False):
        add_params(shape, shape["n_layers"] * bias_params(shape, output=True))
    if k.flag("mlp_bias", default=False):
        add_params(shape, shape["n_layers"] * (2 * shape["d_ff"] + shape["d_model"]))
    return shape


def _mistral(k: Keys) -> Shape:
    shape = dimensions(k, tied=False)
    attention_heads(k, shape)
    shape["d_ff"] = k.whole("intermediate_size")
    every_layer_window(k, shape)
    return shape


def _mixtral(k: Keys) -> Shape:
    shape = dimensions(k, tied=False)
    attention_heads(k, shape)
    routed_experts(k, shape, ("num_local_experts",), "intermediate_size")
    every_layer_window(k, shape)
    return shape


def _qwen2(k: Keys) -> Shape:
    """Biases on q, k, v and not on the output; MiMo has the same blocks."""
    shape = dimensions(k, tied=False)
    attention_heads(k, shape)
    shape["d_ff"] = k.whole("intermediate_size")
    k.only("attention_bias", True)
    add_params(shape, shape["n_layers"] * bias_params(shape, output=False))
    qwen_window(k, shape)
    return shape


def _qwen3_attention(k: Keys) -> Shape:
    shape = dimensions(k, tied=False)
    attention_heads(k, shape, own_width=True)
    add_params(shape, shape["n_layers"] * 2 * shape["head_dim"])  # norms of q and k, one head wide
    if k.flag("attention_bias", default=False):
        add_params(shape, shape["n_layers"] * bias_params(shape, output=True))
    return shape


def _qwen3(k: Keys) -> Shape:
    shape = _qwen3_attention(k)
    shape["d_ff"] = k.whole("intermediate_size")
    qwen_window(k, shape)
    return shape


def _qwen3_moe(k: Keys) -> Shape:
    shape = _qwen3_attention(k)
    routed_experts(k, shape, ("num_experts", "num_local_experts"), "moe_intermediate_size")
    k.only("shared_expert_intermediate_size", 0)
    k.only("qkv_bias", False)
    k.only("use_qk_norm", True)
    dense_layers(k, shape, sparse_steps(k, shape), "intermediate_size")
    qwen_window(k, shape)
    return shape


def _gpt_oss(k: Keys) -> Shape:
    shape = dimensions(k, tied=False)
    attention_heads(k, shape, own_width=True)
    window_pattern(k, shape, 2)  # class default: every second layer is full
    routed_experts(k, shape, ("num_local_experts",), "intermediate_size", ("experts_per_token",))
    n, d, experts = shape["n_layers"], shape["d_model"], shape["n_experts"]
    if k.flag("attention_bias", default=True):
        add_params(shape, n * bias_params(shape, output=True))
    add_params(shape, n * shape["n_heads"])  # sinks
    add_params(shape, n * (experts + experts * (2 * shape["d_expert"] + d)))  # biases of router and experts
    return shape


def _gemma2(k: Keys) -> Shape:
    """Two more norms per layer than others; layers alternate, the first has a window."""
    shape = dimensions(k, tied=True)
    attention_heads(k, shape, own_width=True)
    shape["d_ff"] = k.whole("intermediate_size")
    window_pattern(k, shape, 2)
    k.only("attention_bias", False)
    add_params(shape, shape["n_layers"] * 2 * shape["d_model"])
    return shape


# What Gemma3TextConfig makes of keys that a nested `text_config` leaves out: only differences from these are saved.
GEMMA3: dict[str, Any] = {
    "vocab_size": 262208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131072,
    "sliding_window": 4096,
}


def _gemma3(k: Keys) -> Shape:
    """Five window layers to a full one (class default); norms after attention and FFN, and of q and k."""
    k = _with_defaults(k, GEMMA3)
    shape = dimensions(k, tied=True)
    attention_heads(k, shape, own_width=True)
    shape["d_ff"] = k.whole("intermediate_size")
    window_pattern(k, shape, 6, own_key=("sliding_window_pattern", "_sliding_window_pattern"))
    k.only("attention_bias", False)
    k.only("use_bidirectional_attention", False)
    add_params(shape, shape["n_layers"] * (2 * shape["d_model"] + 2 * shape["head_dim"]))
    return shape


def _with_defaults(k: Keys, defaults: Mapping[str, Any]) -> Keys:
    """The same keys, with the class's values where a nested block leaves them out; a flat file must say them."""
    if not k.prefix:
        return k
    k.found = {**defaults, **k.found}
    return k


def _phi3(k: Keys) -> Shape:
    shape = dimensions(k, tied=False)
    attention_heads(k, shape)
    shape["d_ff"] = k.whole("intermediate_size")
    k.only("attention_bias", False)
    k.only("mlp_bias", False)
    k.only("full_attn_mod", 1)
    k.only("lm_head_bias", False)
    k.only("interpolate_factor", 1)
    every_layer_window(k, shape)
    return shape


def _phimoe(k: Keys) -> Shape:
    """Norms with biases."""
    shape = dimensions(k, tied=False)
    attention_heads(k, shape)
    routed_experts(k, shape, ("num_local_experts",), "intermediate_size")
    every_layer_window(k, shape)
    n, d = shape["n_layers"], shape["d_model"]
    if k.flag("attention_bias"):
        add_params(shape, n * bias_params(shape, output=True))
    add_params(shape, (2 * n + 1) * d)
    if k.flag("lm_head_bias"):
        add_params(shape, shape["vocab"])
    return shape


def _glm4_moe(k: Keys) -> Shape:
    """Biases on q, k, v and not on the output."""
    shape = dimensions(k, tied=False)
    attention_heads(k, shape, own_width=True)
    routed_experts(k, shape, ("n_routed_experts",), "moe_intermediate_size")
    shape["n_shared_experts"] = k.whole("n_shared_experts", least=0)
    shape["d_shared"] = shape["n_shared_experts"] * shape["d_expert"]
    dense_layers(k, shape, k.whole("first_k_dense_replace", least=0), "intermediate_size")
    if k.flag("attention_bias"):
        add_params(shape, shape["n_layers"] * bias_params(shape, output=False))
    if k.flag("use_qk_norm"):
        add_params(shape, shape["n_layers"] * 2 * shape["head_dim"])
    return shape


def _dbrx(k: Keys) -> Shape:
    """Spells its keys in blocks of its own."""
    attention, ffn = k.section("attn_config"), k.section("ffn_config")
    shape: Shape = {
        "n_layers": k.whole("n_layers"),
        "d_model": k.whole("d_model"),
        "vocab": k.whole("vocab_size"),
        "tied_embeddings": k.flag("tie_word_embeddings", default=False),
        "max_context": k.whole("max_seq_len"),
        "n_heads": k.whole("n_heads"),
        "n_kv_heads": attention.whole("kv_n_heads"),
        "n_experts": ffn.whole("moe_num_experts"),
        "top_k": ffn.whole("moe_top_k"),
        "d_expert": ffn.whole("ffn_hidden_size"),
    }
    ffn.only("hidden_size", shape["d_model"])
    ffn.only("uniform_expert_assignment", False)
    if shape["d_model"] % shape["n_heads"]:
        raise k.bad("d_model", f"={shape['d_model']}: not a multiple of n_heads={shape['n_heads']}")
    shape["head_dim"] = shape["d_model"] // shape["n_heads"]
    return shape


def _grok1(k: Keys) -> Shape:
    """Norms after attention and FFN as well."""
    shape = dimensions(k, tied=None)
    attention_heads(k, shape)
    routed_experts(k, shape, ("num_experts", "num_local_experts"), "intermediate_size")
    add_params(shape, shape["n_layers"] * 2 * shape["d_model"])
    return shape


def _grok2(k: Keys) -> Shape:
    """A dense FFN beside the experts in the same layer: each layer counts as both."""
    if not k.flag("residual_moe"):
        raise k.bad("residual_moe", "=False: not understood for this architecture")
    shape = dimensions(k, tied=False)
    attention_heads(k, shape)
    routed_experts(k, shape, ("num_local_experts", "num_experts"), "moe_intermediate_size")
    k.only("sliding_window_size", -1)
    k.only("global_attn_every_n", 1)
    shape["d_ff"] = k.whole("intermediate_size")
    shape["n_dense_layers"] = shape["n_moe_layers"] = shape["n_layers"]
    add_params(shape, shape["n_layers"] * 2 * shape["d_model"])
    return shape


def _olmo2(k: Keys) -> Shape:
    """Norms of q and k as wide as all heads together."""
    shape = dimensions(k, tied=False)
    attention_heads(k, shape)
    shape["d_ff"] = k.whole("intermediate_size")
    add_params(shape, shape["n_layers"] * (shape["n_heads"] + shape["n_kv_heads"]) * shape["head_dim"])
    if k.flag("attention_bias", default=False):
        add_params(shape, shape["n_layers"] * bias_params(shape, output=True))
    return shape


def _cohere_base(k: Keys) -> Shape:
    """Attention and FFN in parallel behind one norm; the formula counts two."""
    shape = dimensions(k, tied=True)
    attention_heads(k, shape)
    shape["d_ff"] = k.whole("intermediate_size")
    for key in ("use_embedding_sharing", "use_gated_activation", "use_parallel_block"):
        k.only(key, True)
    add_params(shape, -shape["n_layers"] * shape["d_model"])
    if k.flag("attention_bias", default=False):
        add_params(shape, shape["n_layers"] * bias_params(shape, output=True))
    return shape


def _cohere(k: Keys) -> Shape:
    shape = _cohere_base(k)
    if k.flag("use_qk_norm", default=False):  # one norm per head
        add_params(shape, shape["n_layers"] * (shape["n_heads"] + shape["n_kv_heads"]) * shape["head_dim"])
    return shape


def _cohere2(k: Keys) -> Shape:
    shape = _cohere_base(k)
    k.only("use_qk_norm", False)
    names = ("sliding_window_pattern", "_sliding_window_pattern", "layer_switch")
    if k.raw(*names) is None and k.raw("layer_types") is None:
        raise k.bad("layer_types or sliding_window_pattern", ": missing, and nothing is guessed")
    window_pattern(k, shape, 4, own_key=names)
    return shape


def _minimax_m2(k: Keys) -> Shape:
    shape = dimensions(k, tied=False)
    attention_heads(k, shape, own_width=True)
    routed_experts(k, shape, ("num_local_experts",), "intermediate_size")
    k.only("shared_intermediate_size", 0)
    k.ignore("mlp_intermediate_size")  # of a dense FFN that no layer has
    k.only("attention_bias", False)
    kinds = k.items("attn_type_list")
    if kinds is not None and (len(kinds) != shape["n_layers"] or set(kinds) != {1}):
        raise k.bad("attn_type_list", ": must say 1 (softmax attention) for every layer")
    every_layer_window(k, shape)
    if k.flag("use_qk_norm"):
        k.only("qk_norm_type", "per_layer")
        add_params(shape, shape["n_layers"] * (shape["n_heads"] + shape["n_kv_heads"]) * shape["head_dim"])
    return shape


def _llama4(k: Keys) -> Shape:
    """Chunked attention in layers with rotary positions, full attention in those without."""
    shape = dimensions(k, tied=False)
    attention_heads(k, shape)
    n = shape["n_layers"]
    kinds = layer_kinds(k, shape, FULL, CHUNKED)
    rotary = k.items("no_rope_layers")  # 1: the layer has rotary positions
    interval = k.whole("no_rope_layer_interval", default=4)  # class default
    if rotary and (len(rotary) != n or not set(rotary) <= {0, 1}):
        raise k.bad("no_rope_layers", f": must be {n} times 0 or 1")
    full = rotary.count(0) if rotary else n // interval
    if kinds is not None:
        full = kinds[FULL]
    chunk = k.optional("attention_chunk_size")
    if chunk is not None:
        window_layers(k, shape, n - full, chunk)
    k.flag("use_qk_norm", default=True)  # a norm without weights
    k.ignore("for_llm_compressor")  # how the experts are stored
    if k.flag("attention_bias", default=False):
        add_params(shape, n * bias_params(shape, output=True))
    routed_experts(k, shape, ("num_local_experts",), "intermediate_size")
    shape["n_shared_experts"] = 1
    shape["d_shared"] = shape["d_expert"]
    listed = k.items("moe_layers")
    k.ignore("interleave_moe_layer_step")
    moe = n // k.whole("interleave_moe_layer_step") if listed is None else len(set(listed))
    dense_layers(k, shape, n - moe, "intermediate_size_mlp")
    return shape


# --- the blocks of one model family each ------------------------------------------------------------------------


def _gemma(k: Keys) -> Shape:
    shape = dimensions(k, tied=True)
    attention_heads(k, shape, own_width=True)
    shape["d_ff"] = k.whole("intermediate_size")
    k.only("attention_bias", False)
    return shape


def _gemma4(k: Keys) -> Shape:
    """Full layers have heads of their own and may keep one tensor for keys and values; experts beside the FFN.

    The dense FFN beside the experts counts as a dense and a MoE layer each.
    """
    shape = dimensions(k, tied=True)
    attention_heads(k, shape, own_width=True)
    shape["d_ff"] = k.whole("intermediate_size")
    k.only("attention_bias", False)
    k.only("hidden_size_per_layer_input", 0)  # embeddings per layer: not in the record
    k.ignore("vocab_size_per_layer_input")
    k.only("num_kv_shared_layers", 0)
    k.only("use_double_wide_mlp", False)
    k.only("use_bidirectional_attention", "vision")
    n, d = shape["n_layers"], shape["d_model"]
    kinds = layer_kinds(k, shape, FULL, SLIDING)
    if kinds is None:
        raise k.bad("layer_types", ": missing, and nothing is guessed")
    narrow = {"head_dim": shape["head_dim"], "n_kv_heads": shape["n_kv_heads"]}
    shape["head_dim"] = k.whole("global_head_dim", default=narrow["head_dim"])
    shape["n_kv_heads"] = k.whole("num_global_key_value_heads", default=narrow["n_kv_heads"])
    if k.flag("attention_k_eq_v", default=False):
        shape["k_equals_v"] = True
    window_layers(k, shape, kinds[SLIDING], k.whole("sliding_window"))
    shape["window_kv_heads"], shape["window_head_dim"] = narrow["n_kv_heads"], narrow["head_dim"]
    add_params(shape, 2 * n * d)  # norms after attention and FFN
    add_params(shape, 2 * (kinds[FULL] * shape["head_dim"] + kinds[SLIDING] * narrow["head_dim"]))  # of q and k
    k.ignore("expert_intermediate_size")
    if k.flag("enable_moe_block", default=False):
        routed_experts(k, shape, ("num_experts",), "moe_intermediate_size", ("top_k_experts",))
        shape["n_dense_layers"] = shape["n_moe_layers"] = n
        add_params(shape, n * (4 * d + shape["n_experts"]))  # three more norms, scales of the router
    else:
        k.only("num_experts", 0)
        k.ignore("top_k_experts", "moe_intermediate_size")
    return shape


def _granite(k: Keys) -> Shape:
    shape = _llama(k)
    k.ignore("embedding_multiplier", "logits_scaling", "residual_multiplier", "attention_multiplier")
    return shape


def _granitemoe(k: Keys) -> Shape:
    shape = dimensions(k, tied=False)
    attention_heads(k, shape)
    routed_experts(k, shape, ("num_local_experts",), "intermediate_size")
    k.only("attention_bias", False)
    k.ignore("embedding_multiplier", "logits_scaling", "residual_multiplier", "attention_multiplier")
    return shape


def _olmo3(k: Keys) -> Shape:
    """As OLMo 2, with windows in all but every fourth layer (class default)."""
    shape = _olmo2(k)
    window_pattern(k, shape, 4)
    return shape


def _olmoe(k: Keys) -> Shape:
    """Norms of q and k as wide as all heads together."""
    shape = dimensions(k, tied=False)
    attention_heads(k, shape)
    routed_experts(k, shape, ("num_experts",), "intermediate_size")
    k.only("attention_bias", False)
    add_params(shape, shape["n_layers"] * (shape["n_heads"] + shape["n_kv_heads"]) * shape["head_dim"])
    return shape


def _qwen2_moe(k: Keys) -> Shape:
    """A shared expert behind a gate of its own; biases on q, k, v (class default)."""
    shape = dimensions(k, tied=False)
    attention_heads(k, shape)
    routed_experts(k, shape, ("num_experts",), "moe_intermediate_size")
    shape["n_shared_experts"] = 1
    shape["d_shared"] = k.whole("shared_expert_intermediate_size")
    dense_layers(k, shape, sparse_steps(k, shape), "intermediate_size")
    if k.flag("qkv_bias", default=True):
        add_params(shape, shape["n_layers"] * bias_params(shape, output=False))
    add_params(shape, shape["n_moe_layers"] * shape["d_model"])
    qwen_window(k, shape)
    return shape


def _smollm3(k: Keys) -> Shape:
    """Layers without rotary positions have the same shapes as those with."""
    shape = dimensions(k, tied=True)
    attention_heads(k, shape)
    shape["d_ff"] = k.whole("intermediate_size")
    k.ignore("no_rope_layers", "no_rope_layer_interval")
    k.only("attention_bias", False)
    k.only("mlp_bias", False)
    qwen_window(k, shape)
    return shape


def _seed_oss(k: Keys) -> Shape:
    shape = dimensions(k, tied=False)
    attention_heads(k, shape, own_width=True)
    shape["d_ff"] = k.whole("intermediate_size")
    k.only("attention_out_bias", False)
    k.only("mlp_bias", False)
    if k.flag("attention_bias"):
        add_params(shape, shape["n_layers"] * bias_params(shape, output=False))
    return shape


def _dots1(k: Keys) -> Shape:
    """DeepSeek's mixture behind grouped-query attention with norms of q and k."""
    shape = dimensions(k, tied=False)
    attention_heads(k, shape)
    routed_experts(k, shape, ("n_routed_experts",), "moe_intermediate_size")
    shape["n_shared_experts"] = k.whole("n_shared_experts", least=0)
    shape["d_shared"] = shape["n_shared_experts"] * shape["d_expert"]
    dense_layers(k, shape, k.whole("first_k_dense_replace", least=0), "intermediate_size")
    k.only("attention_bias", False)
    k.only("moe_layer_freq", 1)
    add_params(shape, shape["n_layers"] * 2 * shape["head_dim"])
    kinds = layer_kinds(k, shape, FULL, SLIDING)
    k.ignore("max_window_layers", "sliding_window")
    if kinds is not None:
        window_layers(k, shape, kinds[SLIDING], k.raw("sliding_window"))
    return shape


def _glm4(k: Keys) -> Shape:
    """Norms after attention and FFN as well; biases on q, k, v and not on the output."""
    shape = dimensions(k, tied=False)
    attention_heads(k, shape, own_width=True)
    shape["d_ff"] = k.whole("intermediate_size")
    if k.flag("attention_bias"):
        add_params(shape, shape["n_layers"] * bias_params(shape, output=False))
    add_params(shape, shape["n_layers"] * 2 * shape["d_model"])
    return shape


def _phi(k: Keys) -> Shape:
    """Attention and an FFN without gate in parallel behind one norm; biases everywhere, in the norms too."""
    shape = dimensions(k, tied=False)
    attention_heads(k, shape)
    shape["d_ff"] = k.whole("intermediate_size")
    shape["ffn_matrices"] = 2
    k.only("qk_layernorm", False)
    n, d = shape["n_layers"], shape["d_model"]
    add_params(shape, n * (bias_params(shape, output=True) + shape["d_ff"] + d))  # attention, FFN
    add_params(shape, d + shape["vocab"])  # bias of the last norm and the head; a layer's stands for its second norm
    return shape


def _ernie4_5(k: Keys) -> Shape:
    shape = dimensions(k, tied=True)
    attention_heads(k, shape)
    shape["d_ff"] = k.whole("intermediate_size")
    k.only("use_bias", False)
    return shape


def _ernie4_5_moe(k: Keys) -> Shape:
    """Experts from a first to a last layer, every so many."""
    shape = dimensions(k, tied=None)
    attention_heads(k, shape)
    k.only("use_bias", False)
    k.ignore("moe_norm_min", "moe_use_aux_free", "moe_gate", "moe_capacity")
    routed_experts(k, shape, ("moe_num_experts",), "moe_intermediate_size", ("moe_k",))
    shape["n_shared_experts"] = k.whole("moe_num_shared_experts", least=0)
    shape["d_shared"] = shape["n_shared_experts"] * shape["d_expert"]
    last = k.raw("moe_layer_end_index")
    end = shape["n_layers"] if last in (None, -1) else k.whole("moe_layer_end_index", least=0) + 1
    first, every = k.whole("moe_layer_start_index", least=0), k.whole("moe_layer_interval", default=1)
    moe = sum((i + 1) % every == 0 and first <= i < end for i in range(shape["n_layers"]))
    dense_layers(k, shape, shape["n_layers"] - moe, "intermediate_size")
    return shape


def _hunyuan_dense(k: Keys) -> Shape:
    shape = dimensions(k, tied=False)
    attention_heads(k, shape)
    shape["d_ff"] = k.whole("intermediate_size")
    k.only("attention_bias", False)
    k.only("mlp_bias", False)
    k.only("use_qk_norm", True)
    k.only("attention_head_dim", shape["head_dim"])
    k.only("use_cla", False)
    k.ignore("cla_share_factor", "norm_type")
    add_params(shape, shape["n_layers"] * 2 * shape["head_dim"])
    return shape


def _hunyuan_moe(k: Keys) -> Shape:
    """Widths and counts may be given per layer, and must be the same in all."""
    shape = dimensions(k, tied=False)
    attention_heads(k, shape)
    for key in ("moe_intermediate_size", "moe_topk", "num_shared_expert"):
        k.same(key)
    k.only("attention_bias", False)
    k.only("mlp_bias", False)
    k.only("use_mixed_mlp_moe", True)
    k.only("use_qk_norm", True)
    k.only("attention_head_dim", shape["head_dim"])
    k.only("use_cla", False)
    k.only("use_mla", False)
    k.only("moe_layer_num_skipped", 0)
    k.only("group_limited_greedy", False)
    k.ignore("cla_share_factor", "norm_type", "moe_drop_tokens", "moe_random_routing_dropped_token")
    width = k.whole("intermediate_size")
    shape["n_experts"] = k.whole("num_experts")
    shape["top_k"] = k.whole("moe_topk")
    shape["d_expert"] = k.whole("moe_intermediate_size", default=width)
    shape["n_shared_experts"] = k.whole("num_shared_expert", default=1)
    shape["d_shared"] = shape["n_shared_experts"] * shape["d_expert"]
    add_params(shape, shape["n_layers"] * 2 * shape["head_dim"])
    return shape


def _bailing(k: Keys) -> Shape:
    """Ling: DeepSeek's mixture behind grouped-query attention."""
    shape = dimensions(k, tied=False)
    attention_heads(k, shape)
    for key in ("use_bias", "use_qkv_bias"):
        k.only(key, False)
    k.ignore("max_window_layers", "norm_head", "norm_softmax", "use_rmsnorm", "embedding_dropout", "output_dropout")
    k.ignore("score_function", "moe_router_enable_expert_bias")
    k.ignore("multi_gate", "group_norm_size", "use_grouped_topk", "mtp_loss_scaling_factor")
    routed_experts(k, shape, ("num_experts",), "moe_intermediate_size")
    shape["n_shared_experts"] = k.whole("num_shared_experts", default=0, least=0)
    each = k.whole("moe_shared_expert_intermediate_size", default=shape["d_expert"])
    shape["d_shared"] = shape["n_shared_experts"] * each
    dense_layers(k, shape, k.whole("first_k_dense_replace", least=0), "intermediate_size")
    if k.flag("use_qk_norm", default=False):
        add_params(shape, shape["n_layers"] * 2 * shape["head_dim"])
    return shape


def _arctic(k: Keys) -> Shape:
    """A dense FFN as wide as the model beside the experts of the same layer, behind a norm of its own."""
    shape = dimensions(k, tied=False)
    attention_heads(k, shape)
    k.only("moe_layer_frequency", 1)
    k.only("parallel_attn_mlp_res", True)
    k.only("use_residual", True)
    k.ignore("enable_expert_tensor_parallelism", "moe_eval_capacity_factor", "moe_train_capacity_factor", "enc_index")
    k.ignore("moe_min_capacity", "moe_token_dropping", "quantization", "max_sequence_length")
    every_layer_window(k, shape)
    routed_experts(k, shape, ("num_local_experts",), "intermediate_size")
    shape["d_ff"] = shape["d_model"]
    shape["n_dense_layers"] = shape["n_moe_layers"] = shape["n_layers"]
    add_params(shape, shape["n_layers"] * shape["d_model"])
    return shape


def _mimo_v2(k: Keys) -> Shape:
    """Values narrower than keys; window layers with key/value heads of their own, and sinks."""
    shape = dimensions(k, tied=False)
    attention_heads(k, shape, own_width=True)
    shape["v_head_dim"] = k.whole("v_head_dim")
    pattern, experts = k.flags("hybrid_layer_pattern", shape["n_layers"]), k.flags("moe_layer_freq", shape["n_layers"])
    window = k.whole("sliding_window", "sliding_window_size")
    k.ignore("attention_chunk_size")
    k.only("swa_num_attention_heads", shape["n_heads"])
    k.only("swa_head_dim", shape["head_dim"])
    k.only("swa_v_head_dim", shape["v_head_dim"])
    k.only("attention_bias", False)
    k.ignore("swa_rope_theta", "attention_value_scale")
    window_layers(k, shape, sum(pattern), window)
    shape["window_kv_heads"] = k.whole("swa_num_key_value_heads")
    for key, count in (("add_swa_attention_sink_bias", sum(pattern)),
                       ("add_full_attention_sink_bias", len(pattern) - sum(pattern))):  # fmt: skip
        if k.flag(key, default=False):
            add_params(shape, count * shape["n_heads"])
    routed_experts(k, shape, ("n_routed_experts",), "moe_intermediate_size")
    k.only("n_shared_experts", 0)
    dense_layers(k, shape, len(experts) - sum(experts), "intermediate_size")
    return shape


def _step3p7(k: Keys) -> Shape:
    shape = dimensions(k, tied=False)
    attention_heads(k, shape, own_width=True)
    kinds = layer_kinds(k, shape, FULL, SLIDING)
    if kinds is None:
        raise k.bad("layer_types", ": missing, and nothing is guessed")
    k.only("num_sliding_attention_heads", shape["n_heads"])
    k.only("attention_bias", False)
    k.only("mlp_bias", False)
    window_layers(k, shape, kinds[SLIDING], k.raw("sliding_window"))
    k.ignore("use_moe_router_bias", "moe_router_scaling_factor", "swiglu_limits", "swiglu_limits_shared")
    k.ignore("mtp_layer_types", "mtp_mlp_layer_types")
    routed_experts(k, shape, ("n_routed_experts", "num_experts"), "moe_intermediate_size")
    shape["n_shared_experts"] = k.whole("n_shared_experts", default=1)
    shape["d_shared"] = k.whole("share_expert_dim")
    dense = mlp_kinds(k, shape)
    first = k.raw("first_k_dense_replace")
    if dense is None and first is None:
        raise k.bad("mlp_layer_types or first_k_dense_replace", ": missing, and nothing is guessed")
    dense_layers(k, shape, k.whole("first_k_dense_replace") if dense is None else dense, "intermediate_size")
    return shape


def _minimax_m3(k: Keys) -> Shape:
    """Blocks of the cache chosen by an indexer in most layers."""
    shape = dimensions(k, tied=False)
    attention_heads(k, shape, own_width=True)
    n = shape["n_layers"]
    k.only("attention_output_gate", False)
    k.ignore("use_gemma_norm")
    sparse = k.section("sparse_attention_config")
    sparse.only("use_sparse_attention", True)
    indexed = sum(sparse.flags("sparse_attention_freq", n))
    sparse.ignore("sparse_disable_index_value", "sparse_init_block", "sparse_local_block", "sparse_score_type")
    shape["sparse_top_k"] = sparse.whole("sparse_topk_blocks") * sparse.whole("sparse_block_size")
    shape["index_heads"] = sparse.whole("sparse_num_index_heads")
    shape["index_dim"] = sparse.whole("sparse_index_dim")
    shape["n_index_layers"] = indexed
    add_params(shape, indexed * 2 * shape["index_dim"])
    if k.flag("use_qk_norm"):
        k.only("qk_norm_type", "per_head")
        add_params(shape, n * 2 * shape["head_dim"])
    experts = k.flags("moe_layer_freq", n)
    k.ignore("first_k_dense_replace")
    width = k.whole("intermediate_size")
    k.only("moe_intermediate_size", width)
    routed_experts(k, shape, ("num_local_experts",), "intermediate_size")
    shape["n_shared_experts"] = k.whole("n_shared_experts", least=0)
    shape["d_shared"] = shape["n_shared_experts"] * k.whole("shared_intermediate_size")
    dense_layers(k, shape, n - sum(experts), "dense_intermediate_size")
    return shape


READERS: dict[str, Callable[[Keys], Shape]] = {
    "arctic": _arctic,
    "bailing_moe": _bailing,
    "bailing_moe_v2": _bailing,
    "cohere": _cohere,
    "cohere2": _cohere2,
    "dbrx": _dbrx,
    "dots1": _dots1,
    "ernie4_5": _ernie4_5,
    "ernie4_5_moe": _ernie4_5_moe,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "gemma4_text": _gemma4,
    "glm4": _glm4,
    "glm4_moe": _glm4_moe,
    "gpt_oss": _gpt_oss,
    "granite": _granite,
    "granitemoe": _granitemoe,
    "grok-1": _grok1,
    "grok-2": _grok2,
    "hunyuan_v1_dense": _hunyuan_dense,
    "hunyuan_v1_moe": _hunyuan_moe,
    "llama": _llama,
    "llama4_text": _llama4,
    "mimo": _qwen2,
    "mimo_v2_flash": _mimo_v2,
    "minimax_m2": _minimax_m2,
    "minimax_m3": _minimax_m3,
    "ministral3": _mistral,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "olmo2": _olmo2,
    "olmo3": _olmo3,
    "olmoe": _olmoe,
    "phi": _phi,
    "phi3": _phi3,
    "phimoe": _phimoe,
    "qwen2": _qwen2,
    "qwen2_moe": _qwen2_moe,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "qwen3_vl_moe_text": _qwen3_moe,
    "qwen3_vl_text": _qwen3,
    "seed_oss": _seed_oss,
    "smollm3": _smollm3,
    "step3p7": _step3p7,
    "step3p7_text": _step3p7,
}
