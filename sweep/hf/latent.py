"""Architectures of DeepSeek's lineage: latent, sparse and compressed attention."""

from __future__ import annotations

from collections.abc import Callable

from sweep.hf.keys import Keys, Shape
from sweep.hf.parts import add_params, dense_layers, dimensions, mlp_kinds, routed_experts


def latent_heads(k: Keys, shape: Shape) -> None:
    """Multi-head latent attention: one latent for keys and values of all heads."""
    shape["n_heads"] = k.whole("num_attention_heads")
    k.ignore("num_key_value_heads")  # one latent serves all heads, whatever it says
    shape["n_kv_heads"] = 1
    shape["q_lora_rank"] = k.optional("q_lora_rank") or 0
    shape["kv_lora_rank"] = k.whole("kv_lora_rank")
    shape["qk_nope_dim"] = k.whole("qk_nope_head_dim")
    shape["qk_rope_dim"] = k.whole("qk_rope_head_dim")
    shape["v_head_dim"] = k.whole("v_head_dim")
    shape["head_dim"] = shape["qk_nope_dim"] + shape["qk_rope_dim"]
    k.only("qk_head_dim", shape["head_dim"])
    k.only("attention_bias", False)


def _latent(k: Keys) -> Shape:
    """Latent attention and DeepSeek's mixture."""
    shape = dimensions(k, tied=False)
    latent_heads(k, shape)
    # newer files repeat the rotary part, the other part or the sum under this name
    k.only("head_dim", shape["qk_rope_dim"], shape["qk_nope_dim"], shape["head_dim"])
    k.only("moe_layer_freq", 1)
    routed_experts(k, shape, ("n_routed_experts", "num_local_experts"), "moe_intermediate_size")
    shared = k.raw("n_shared_experts")
    shape["n_shared_experts"] = 0 if shared is None else k.whole("n_shared_experts", least=0)
    shape["d_shared"] = shape["n_shared_experts"] * shape["d_expert"]
    dense = mlp_kinds(k, shape)
    first = k.whole("first_k_dense_replace", default=dense, least=0)
    if dense not in (None, first):
        raise k.bad("first_k_dense_replace", f"={first}: mlp_layer_types has {dense} dense layers")
    dense_layers(k, shape, first, "intermediate_size")
    return shape


def _indexed(k: Keys, shape: Shape, layers: int) -> None:
    """An indexer in so many layers, whose keys are normed with a bias."""
    shape["sparse_top_k"] = k.whole("index_topk")
    shape["index_heads"] = k.whole("index_n_heads")
    shape["index_dim"] = k.whole("index_head_dim")
    add_params(shape, layers * 2 * shape["index_dim"])


def _deepseek_v32(k: Keys) -> Shape:
    """With an indexer in every layer."""
    shape = _latent(k)
    _indexed(k, shape, shape["n_layers"])
    return shape


def _glm_moe_dsa(k: Keys) -> Shape:
    """As DeepSeek-V3.2; layers may use the indexer of a layer before them."""
    shape = _latent(k)
    kinds = k.items("indexer_types")
    if kinds is None and k.raw("index_topk_freq") not in (None, 1):
        raise k.bad("indexer_types", ": missing, and index_topk_freq says that layers share an indexer")
    if kinds is not None and (len(kinds) != shape["n_layers"] or not set(kinds) <= {"full", "shared"}):
        raise k.bad("indexer_types", f": must be {shape['n_layers']} times full or shared")
    k.ignore("index_topk_freq", "index_topk_pattern", "index_skip_topk_offset", "index_share_for_mtp_iteration")
    k.ignore("indexer_rope_interleave")
    k.only("mlp_bias", False)
    sparse = k.items("layer_types")
    if sparse is not None and set(sparse) != {"deepseek_sparse_attention"}:
        raise k.bad("layer_types", ": must say deepseek_sparse_attention for every layer")
    layers = shape["n_layers"] if kinds is None else kinds.count("full")
    if kinds is not None:
        shape["n_index_layers"] = layers
    _indexed(k, shape, layers)
    return shape


def _deepseek_v4(k: Keys) -> Shape:
    """Compressed attention, written per token of the context before compression.

    Every layer has a window over one tensor for keys and values of one head. Layers at 4:1 add an entry of that width
    for four tokens, chosen by an indexer over compressed keys: a quarter of each width per token, four times the
    entries. Layers at 128:1 add an entry for 128 tokens, read in full: as bytes, a share of an index layer. The window
    tensor stands as two heads of a quarter width for keys and values each, which has its bytes. What the low-rank and
    grouped projections, compressors and hyper-connections hold beyond that is in `extra_params`.
    Source: the model's report and its own code, in the shapes of section 1.2 of the catalogue's derivation.
    """
    shape: Shape = {
        "n_layers": k.whole("num_hidden_layers"),
        "d_model": k.whole("hidden_size"),
        "vocab": k.whole("vocab_size"),
        "tied_embeddings": k.flag("tie_word_embeddings", default=False),
        "max_context": k.whole("max_position_embeddings"),
        "n_heads": k.whole("num_attention_heads"),
        "n_kv_heads": 1,
    }
    k.only("num_key_value_heads", 1)
    k.only("attention_bias", False)
    n, d, heads = shape["n_layers"], shape["d_model"], shape["n_heads"]
    rank, wide, rope = k.whole("q_lora_rank"), k.whole("head_dim"), k.whole("qk_rope_head_dim")
    groups, group_rank = k.whole("o_groups"), k.whole("o_lora_rank")
    copies = k.whole("hc_mult")
    k.ignore("hc_eps", "hc_sinkhorn_iters", "num_hash_layers", "compress_rope_theta", "expert_dtype")
    ratios = k.items("compress_ratios")
    if ratios is None:
        raise k.bad("compress_ratios", ": missing, and nothing is guessed")
    beyond = k.raw("num_nextn_predict_layers") or 0  # drafting modules are in the list too
    if len(ratios) not in (n, n + beyond) or not set(ratios) <= {0, 4, 128}:
        raise k.bad("compress_ratios", f": must be {n} times 0, 4 or 128")
    four, many = (ratios[:n].count(r) for r in (4, 128))
    if wide % 4 or rope % 4 or heads % groups:
        raise k.bad("head_dim", f"={wide}: head_dim and qk_rope_head_dim must be multiples of 4, o_groups of the heads")
    index_heads, index_dim = k.whole("index_n_heads"), k.whole("index_head_dim")
    quarter, index = wide // 4, index_dim // 4
    shape.update(
        q_lora_rank=rank, kv_lora_rank=quarter - rope // 4, qk_nope_dim=quarter - rope // 4, qk_rope_dim=rope // 4,
        head_dim=quarter, v_head_dim=quarter, n_full_layers=four, n_window_layers=n, window=k.whole("sliding_window"),
        window_kv_heads=2, window_head_dim=quarter, window_v_head_dim=quarter, sparse_top_k=4 * k.whole("index_topk"),
        index_heads=index_heads, index_dim=index, n_index_layers=four + many * (wide / 128) / index,
    )  # fmt: skip
    # what the model has
    has = n * (d * rank + rank * heads * wide + d * wide + group_rank * heads * wide + groups * group_rank * d)
    has += four * (2 * d * 2 * wide + 2 * d * 2 * index_dim + rank * index_heads * index_dim + d * index_heads)
    has += many * 2 * d * wide
    has += 2 * n * copies * (2 + copies) * copies * d
    # norms, sinks, positions within a compressed entry, scales
    mixes = (2 + copies) * copies
    has += n * (rank + wide + heads + 2 * (mixes + 3)) + copies * copies * d + copies + 1
    has += four * (4 * 2 * wide + wide + 4 * 2 * index_dim + index_dim) + many * (128 * wide + wide)
    # what the stand-in counts
    nope, r = shape["qk_nope_dim"], shape["qk_rope_dim"]
    stands = four * (d * rank + rank * heads * quarter + d * (nope + r) + nope * heads * 2 * quarter - nope * heads * r)
    stands += four * (heads * quarter * d + rank + nope) + n * (2 * heads * quarter * d + 2 * 2 * quarter * d)
    stands += shape["n_index_layers"] * (rank * index_heads * index + d * (index + index_heads))
    routed_experts(k, shape, ("n_routed_experts",), "moe_intermediate_size")
    shape["n_shared_experts"] = k.whole("n_shared_experts", least=0)
    shape["d_shared"] = shape["n_shared_experts"] * shape["d_expert"]
    add_params(shape, int(has - stands))
    return shape


def _longcat(k: Keys) -> Shape:
    """Each layer is two of latent attention, two dense FFNs and one mixture, some of whose slots are free.

    `top_k` is the average of experts that do work: the slots times the share of real experts.
    """
    layers = k.whole("num_layers")
    k.only("num_hidden_layers", layers, 2 * layers)
    shape: Shape = {
        "n_layers": layers,
        "d_model": k.whole("hidden_size"),
        "vocab": k.whole("vocab_size"),
        "tied_embeddings": k.flag("tie_word_embeddings", default=False),
        "max_context": k.whole("max_position_embeddings"),
    }
    latent_heads(k, shape)
    k.only("head_dim", shape["qk_rope_dim"], shape["qk_nope_dim"], shape["head_dim"])
    k.ignore("mla_scale_q_lora", "mla_scale_kv_lora", "router_bias", "attention_method")
    k.only("zero_expert_type", "identity")
    real, free = k.whole("n_routed_experts"), k.whole("zero_expert_num", least=0)
    share = k.whole("moe_topk") * real / (real + free)
    shape["n_full_layers"] = shape["n_dense_layers"] = 2 * layers
    shape["n_moe_layers"], shape["n_experts"] = layers, real
    shape["top_k"] = int(share) if share.is_integer() else share
    shape["d_expert"] = k.whole("expert_ffn_hidden_size", "moe_intermediate_size")
    shape["d_ff"] = k.whole("ffn_hidden_size", "intermediate_size")
    add_params(shape, layers * shape["d_model"] * (free + 2))  # router columns of free slots, two more norms
    return shape


def _step3(k: Keys) -> Shape:
    """Multi-matrix factorization attention, written as latent attention.

    The stand-in has the model's query shapes, its cache (one key and one value) and its output projection; the split
    into parts with and without rotary position is arbitrary, and the up-projections that the model lacks are taken out
    in `extra_params`.
    """
    shape: Shape = {
        "n_layers": k.whole("num_hidden_layers"),
        "d_model": k.whole("hidden_size"),
        "vocab": k.whole("vocab_size"),
        "tied_embeddings": k.flag("tie_word_embeddings", default=False),
        "max_context": k.whole("max_position_embedding", "max_position_embeddings", "max_seq_len"),
        "n_heads": k.whole("num_attention_heads"),
        "n_kv_heads": 1,
    }
    k.only("num_attention_groups", 1)
    wide = k.whole("head_dim")
    shape["q_lora_rank"] = k.whole("share_q_dim")
    shape["qk_nope_dim"], shape["qk_rope_dim"] = wide // 8, wide - wide // 8
    shape["kv_lora_rank"] = 2 * wide - shape["qk_rope_dim"]
    shape["head_dim"] = shape["v_head_dim"] = wide
    up = shape["kv_lora_rank"] * shape["n_heads"] * (shape["qk_nope_dim"] + wide)
    add_params(shape, -shape["n_layers"] * up)
    routed_experts(k, shape, ("moe_num_experts",), "moe_intermediate_size", ("moe_top_k",))
    shape["n_shared_experts"] = 1
    shape["d_shared"] = k.whole("share_expert_dim")
    k.ignore("norm_expert_weight")
    listed = k.raw("moe_layers_enum")
    if isinstance(listed, str):
        listed = [part for part in listed.split(",") if part.strip()]
    if not isinstance(listed, list) or not listed:
        raise k.bad("moe_layers_enum", ": missing, and nothing is guessed")
    dense_layers(k, shape, shape["n_layers"] - len(set(map(int, listed))), "intermediate_size")
    return shape


def mistral_params(k: Keys) -> Shape:
    """Mistral's own format, `params.json`: latent attention and experts where the file has them."""
    shape: Shape = {
        "n_layers": k.whole("n_layers"),
        "d_model": k.whole("dim"),
        "vocab": k.whole("vocab_size"),
        "tied_embeddings": k.flag("tied_embeddings", default=False),
        "max_context": k.whole("max_position_embeddings", "max_seq_len", "model_max_length"),
        "n_heads": k.whole("n_heads"),
    }
    width = k.whole("hidden_dim")
    k.ignore("yarn", "llama_4_scaling", "q_lora_scale", "norm_type", "causal", "quantization", "vision_encoder")
    if k.raw("kv_lora_rank") is None:
        shape["n_kv_heads"], shape["head_dim"] = k.whole("n_kv_heads"), k.whole("head_dim")
    else:
        k.ignore("n_kv_heads", "head_dim")
        shape["n_kv_heads"] = 1
        shape["q_lora_rank"] = k.optional("q_lora_rank") or 0
        shape["kv_lora_rank"] = k.whole("kv_lora_rank")
        shape["qk_nope_dim"], shape["qk_rope_dim"] = k.whole("qk_nope_head_dim"), k.whole("qk_rope_head_dim")
        shape["v_head_dim"] = k.whole("v_head_dim")
        shape["head_dim"] = shape["qk_nope_dim"] + shape["qk_rope_dim"]
    if k.raw("moe") is None:
        shape["d_ff"] = width
        return shape
    moe = k.section("moe")
    shape["n_experts"] = moe.whole("num_experts")
    shape["top_k"] = moe.whole("num_experts_per_tok")
    shape["d_expert"] = moe.whole("expert_hidden_dim", default=width)
    shape["n_shared_experts"] = moe.whole("num_shared_experts", default=0, least=0)
    shape["d_shared"] = shape["n_shared_experts"] * shape["d_expert"]
    moe.only("route_every_n", 1)
    moe.ignore("expert_parallel", "expert_model_parallel", "routed_scale", "num_expert_groups")
    moe.ignore("num_expert_groups_per_tok")
    dense = moe.whole("first_k_dense_replace", default=0, least=0)
    if dense:
        shape["d_ff"] = width
    shape["n_dense_layers"], shape["n_moe_layers"] = dense, shape["n_layers"] - dense
    return shape


READERS: dict[str, Callable[[Keys], Shape]] = {
    "deepseek_ref": _deepseek_v4,
    "deepseek_v2": _latent,
    "deepseek_v3": _latent,
    "deepseek_v32": _deepseek_v32,
    "deepseek_v4": _deepseek_v4,
    "glm_moe_dsa": _glm_moe_dsa,
    "kimi_k2": _latent,
    "longcat_flash": _longcat,
    "mistral4": _latent,
    "step3_text": _step3,
}
