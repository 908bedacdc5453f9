"""Parts that architectures share: dimensions, heads, windows, experts, biases."""

from __future__ import annotations

from sweep.hf.keys import Keys, Shape


def dimensions(k: Keys, *, tied: bool | None) -> Shape:
    """Layers, width, vocabulary, context. `tied`: what the class makes of an absent key."""
    return {
        "n_layers": k.whole("num_hidden_layers"),
        "d_model": k.whole("hidden_size"),
        "vocab": k.whole("vocab_size"),
        "tied_embeddings": k.flag("tie_word_embeddings", default=tied),
        "max_context": k.whole("max_position_embeddings"),
    }


def attention_heads(k: Keys, shape: Shape, *, own_width: bool = False) -> None:
    """Heads of grouped-query attention.

    Absent `num_key_value_heads` is as many as query heads and absent `head_dim` is width over heads, as the classes
    define; `own_width`: the class has another rule, so the key is needed.
    """
    heads = k.whole("num_attention_heads")
    shape["n_heads"] = heads
    shape["n_kv_heads"] = k.whole("num_key_value_heads", default=heads)
    if heads % shape["n_kv_heads"]:
        raise k.bad("num_key_value_heads", f"={shape['n_kv_heads']}: does not divide num_attention_heads={heads}")
    if k.raw("head_dim") is None and not own_width and shape["d_model"] % heads:
        raise k.bad("head_dim", f": missing, and hidden_size={shape['d_model']} is not a multiple of the heads")
    shape["head_dim"] = k.whole("head_dim", default=None if own_width else shape["d_model"] // heads)


def add_params(shape: Shape, count: int) -> None:
    """Parameters that no formula covers."""
    if count:
        shape["extra_params"] = shape.get("extra_params", 0) + count


def bias_params(shape: Shape, *, output: bool) -> int:
    """Biases of q, k, v and, if so, of the output projection, in one layer."""
    width = (shape["n_heads"] + 2 * shape["n_kv_heads"]) * shape["head_dim"]
    return int(width + (shape["d_model"] if output else 0))


def window_layers(k: Keys, shape: Shape, windowed: int, window: int | None) -> None:
    """So many layers with a window; one that covers the whole context is none."""
    if not windowed:
        return
    if window is None:
        raise k.bad("sliding_window", ": missing, and nothing is guessed")
    if window >= shape["max_context"]:
        return
    shape["n_full_layers"] = shape["n_layers"] - windowed
    shape["n_window_layers"] = windowed
    shape["window"] = window


def layer_kinds(k: Keys, shape: Shape, *allowed: str) -> dict[str, int] | None:
    """Layers of each kind by `layer_types`, if the file has them."""
    kinds = k.items("layer_types")
    if kinds is None:
        return None
    if len(kinds) != shape["n_layers"]:
        raise k.bad("layer_types", f": {len(kinds)} entries for num_hidden_layers={shape['n_layers']}")
    for kind in kinds:
        if kind not in allowed:
            raise k.bad("layer_types", f": {kind} is not understood; known: {', '.join(allowed)}")
    return {kind: kinds.count(kind) for kind in allowed}


FULL, SLIDING, CHUNKED, LINEAR = "full_attention", "sliding_attention", "chunked_attention", "linear_attention"


def every_layer_window(k: Keys, shape: Shape) -> None:
    """A window, where one is given, holds in every layer (Mistral, Phi-3)."""
    window = None if k.raw("sliding_window") is None else k.whole("sliding_window")
    if window is not None:
        window_layers(k, shape, shape["n_layers"], window)


def qwen_window(k: Keys, shape: Shape) -> None:
    """Layers from `max_window_layers` on have a window if `use_sliding_window` says so (class default: false)."""
    use = k.flag("use_sliding_window", default=False)
    k.ignore("max_window_layers")
    window = k.raw("sliding_window")
    kinds = layer_kinds(k, shape, FULL, SLIDING)
    if not use:
        if kinds and kinds[SLIDING]:
            raise k.bad("layer_types", ": sliding layers, but use_sliding_window is false")
        return
    if window is not None:
        k.whole("sliding_window")
    windowed = kinds[SLIDING] if kinds else max(shape["n_layers"] - k.whole("max_window_layers", least=0), 0)
    window_layers(k, shape, windowed, window)


def window_pattern(k: Keys, shape: Shape, every: int, *, own_key: tuple[str, ...] = ()) -> None:
    """Every so-manieth layer is full, the rest have a window. `own_key`: keys that say how many."""
    kinds = layer_kinds(k, shape, FULL, SLIDING)
    if own_key:
        every = k.whole(*own_key, default=every)
    full = shape["n_layers"] // every if kinds is None else kinds[FULL]
    window_layers(k, shape, shape["n_layers"] - full, k.whole("sliding_window"))


def routed_experts(k: Keys, shape: Shape, count: tuple[str, ...], width: str, top_k: tuple[str, ...] = ()) -> None:
    """Routed experts: how many, how many per token, how wide."""
    shape["n_experts"] = k.whole(*count)
    shape["top_k"] = k.whole("num_experts_per_tok", *top_k)
    shape["d_expert"] = k.whole(width)
    if shape["top_k"] > shape["n_experts"]:
        raise k.bad("num_experts_per_tok", f"={shape['top_k']}: more than {count[0]}={shape['n_experts']}")


def dense_layers(k: Keys, shape: Shape, dense: int, width: str) -> None:
    """So many layers with a dense FFN of that width among layers with experts."""
    if not 0 <= dense <= shape["n_layers"]:
        raise k.bad("num_hidden_layers", f"={shape['n_layers']}: fewer than {dense} dense layers")
    k.ignore(width)  # unused where every layer has experts
    if dense:
        shape["d_ff"] = k.whole(width)
    shape["n_dense_layers"] = dense
    shape["n_moe_layers"] = shape["n_layers"] - dense


def sparse_steps(k: Keys, shape: Shape) -> int:
    """Dense layers of Qwen's mixtures: `mlp_only_layers`, and all but every `decoder_sparse_step`-th."""
    only = set(k.items("mlp_only_layers") or [])
    step = k.whole("decoder_sparse_step", default=1)
    return sum(i in only or (i + 1) % step != 0 for i in range(shape["n_layers"]))


def mlp_kinds(k: Keys, shape: Shape) -> int | None:
    """Dense layers by `mlp_layer_types`, if the file has them."""
    kinds = k.items("mlp_layer_types")
    if kinds is None:
        return None
    if len(kinds) != shape["n_layers"] or not set(kinds) <= {"dense", "sparse"}:
        raise k.bad("mlp_layer_types", f": must be {shape['n_layers']} times dense or sparse")
    return kinds.count("dense")


def mamba2(k: Keys, shape: Shape, heads: int, width: int, groups: int, state: int, kernel: int) -> int:
    """Fields of Mamba-2 layers; returns their small parameters: convolution with bias, step bias, decay, skip.

    Input columns: x and gate, B and C per group, one step per head. State: fp32, and the bf16 tail of the
    convolution. Source: Mamba2Mixer of the models' own code.
    """
    inner = heads * width
    mixed = inner + 2 * groups * state
    shape["state_bytes_per_layer"] = 4 * inner * state + 2 * (kernel - 1) * mixed
    shape["linear_in_width"] = inner + mixed + heads
    shape["linear_out_width"] = inner
    return mixed * (kernel + 1) + 3 * heads
