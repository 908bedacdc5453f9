"""A model's shape from a Hugging Face `config.json`.

Every key of the file is either read by the architecture's own function, or stands in `IRRELEVANT` because it cannot
change a shape, or is refused by name. A key that the architecture needs and the file lacks is refused by name too,
except where the model's configuration class defines what its absence means (`head_dim`: width over heads); those
definitions stand beside the reader that uses them. Nothing is guessed.

Source of the key names and their meaning: the configuration and modelling classes of transformers 5.24 and the
models' own remote code (grok, kimi).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sweep.errors import BadInput, closest

# Keys that leave every matrix as it is: tokens, positions, initialization, training, routing scores, formats.
IRRELEVANT = frozenset(  # words, not a list of quoted strings: easier to keep in order
    """
    _attn_implementation _attn_implementation_autoset _name_or_path architectures attn_implementation auto_map
    chat_template dtype finetuning_task model_type name_or_path torch_dtype torchscript transformers.js_config
    transformers_version use_bfloat16 use_cache quantization_config compression_config unsloth_fixed unsloth_version
    bos_token_id decoder_start_token_id eod_token_id eos_token_id forced_bos_token_id forced_eos_token_id mask_token_id
    pad_token_id prefix sep_token_id suppress_tokens tokenizer_class begin_suppress_tokens im_end_id im_start_id
    bad_words_ids chunk_size_feed_forward diversity_penalty do_sample early_stopping encoder_no_repeat_ngram_size
    exponential_decay_length_penalty length_penalty max_length min_length no_repeat_ngram_size num_beam_groups num_beams
    num_return_sequences output_attentions output_hidden_states output_scores remove_invalid_values repetition_penalty
    return_dict return_dict_in_generate task_specific_params temperature tf_legacy_loss top_p typical_p
    id2label label2id num_labels problem_type
    alibi initial_context_length max_window_position_embeddings mrope_interleaved mrope_section
    original_max_position_embeddings partial_rotary_factor position_embedding_type rotary_base rotary_dim
    rotary_emb_base
    rotary_pct rotary_scaling use_dynamic_ntk use_logn_attn
    attention_dropout attn_pdrop dropout embd_pdrop emb_pdrop ffn_dropout_prob hidden_dropout hidden_dropout_prob
    resid_pdrop residual_dropout router_jitter_noise input_jitter_noise
    emb_init_std init_method init_std initializer_factor initializer_range
    hidden_act hidden_activation hidden_clip swiglu_limit swiglu_alpha
    layer_norm_eps layer_norm_epsilon layernorm_epsilon norm_epsilon norm_eps rms_norm_eps
    attn_logit_softcapping final_logit_softcapping attn_logit_cap final_logit_cap query_pre_attn_scalar
    attn_output_multiplier attn_temperature_tuning attn_temperature_len attn_scale floor_scale logit_scale
    max_attn_value
    embedding_multiplier_scale output_multiplier_scale router_logit_softcapping router_logit_softcap
    attn_logit_softcap cache_implementation embedding_scale_sqrt
    aux_loss_alpha balance_loss_weight ep_size moe_router_dtype n_group norm_topk_prob output_router_logits
    pretraining_tp routed_scaling_factor router_aux_loss_coef router_bias_update_speed router_z_loss_coef scoring_func
    seq_aux topk_group topk_method use_routing_bias use_grouped_topk router_dtype moe_jitter_eps
    num_nextn_predict_layers num_mtp_modules mtp_transformer_layers use_mtp mtp_loss_factor
    layernorm_attention_alpha layernorm_attention_beta layernorm_full_attention_alpha layernorm_full_attention_beta
    layernorm_linear_attention_alpha layernorm_linear_attention_beta layernorm_mlp_alpha layernorm_mlp_beta
    order_of_interleaved_layers use_parallel_embedding clip_qkv attn_dropout gradient_checkpointing
    attn_factor beta_fast beta_slow extrapolation_factor scaling_factor model_max_length
    """.split()  # noqa: SIM905
)
# Keys of a file that holds a vision tower beside the text model: the tower is not part of the shape.
BESIDE_TEXT = frozenset(
    """
    audio_config audio_token_id boi_token_index eoi_token_index boi_token_id eoi_token_id image_token_id
    image_token_index ignore_index media_placeholder_token_id mm_tokens_per_image multimodal_projector_bias
    projector_hidden_act spatial_merge_size use_unified_vision_chunk video_placeholder video_token_id vision_config
    vision_end_token_id vision_feature_layer vision_start_token_id
    """.split()  # noqa: SIM905
)
# The irrelevant by their names: positions and training losses in the spellings of many authors.
PREFIXES = ("rope_", "torch_", "_")
WRAPPERS = ("gemma3", "kimi_k25", "llama4", "mistral3")

Shape = dict[str, Any]


class Keys:
    """The keys of one file: remembers which were read, and refuses what is missing or of the wrong kind."""

    def __init__(self, found: Mapping[str, Any], where: str, prefix: str = ""):
        self.found = found
        self.where = where
        self.prefix = prefix
        self.read: set[str] = set()
        self.inner: list[Keys] = []

    def bad(self, key: str, why: str) -> BadInput:
        """An error about a key of the file."""
        return BadInput(f"{self.where}: {self.prefix}{key}{why}")

    def raw(self, *names: str) -> Any:
        """The value of the first name that is given; other names for the same must agree. Missing or null: None."""
        self.read.update(names)
        given = {n: self.found[n] for n in names if self.found.get(n) is not None}
        if len({repr(v) for v in given.values()}) > 1:
            spelled = ", ".join(f"{n}={v}" for n, v in given.items())
            raise BadInput(f"{self.where}: {spelled}: names of the same figure disagree")
        return next(iter(given.values()), None)

    def whole(self, *names: str, default: int | None = None, least: int = 1) -> int:
        """A whole number; `default` is what the model's configuration class makes of an absent key."""
        value = self.raw(*names)
        if value is None:
            if default is None:
                raise self.bad(" or ".join(names), ": missing, and nothing is guessed")
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.bad(names[0], f"={value}: must be a whole number of at least {least}")
        return value

    def optional(self, name: str, least: int = 1) -> int | None:
        """A whole number that may be null, but must be mentioned."""
        if name not in self.found:
            raise self.bad(name, ": missing, and nothing is guessed")
        return None if self.raw(name) is None else self.whole(name, least=least)

    def flag(self, *names: str, default: bool | None = None) -> bool:
        """True or false."""
        value = self.raw(*names)
        if value is None:
            if default is None:
                raise self.bad(" or ".join(names), ": missing, and nothing is guessed")
            return default
        if not isinstance(value, bool):
            raise self.bad(names[0], f"={value}: must be true or false")
        return value

    def only(self, name: str, *allowed: Any) -> None:
        """A key that is understood in one meaning alone."""
        value = self.raw(name)
        if value is not None and value not in allowed:
            raise self.bad(name, f"={value}: not understood; known: {', '.join(map(str, allowed))}")

    def items(self, name: str) -> list[Any] | None:
        """A list, if one is given."""
        value = self.raw(name)
        if value is not None and not isinstance(value, list):
            raise self.bad(name, f"={value}: must be a list")
        return value

    def section(self, name: str) -> Keys:
        """A nested block, whose keys are accounted for as well."""
        value = self.raw(name)
        if not isinstance(value, dict):
            raise self.bad(name, ": missing, and nothing is guessed")
        inner = Keys(value, self.where, f"{self.prefix}{name}.")
        self.inner.append(inner)
        return inner

    def check_rest(self, architecture: str, known: frozenset[str] = IRRELEVANT) -> None:
        """Refuse a key that nobody read and that is not known to be irrelevant; null says nothing."""
        for key, value in self.found.items():
            if key in self.read or key in known or key.startswith(PREFIXES) or value is None:
                continue
            if key in INERT and value in (False, {}, []):
                continue
            raise self.bad(key, f": a field that {architecture} is not known to have; it could change the shape")
        for inner in self.inner:
            inner.check_rest(architecture, known | SECTION)


# Saved by every configuration class; at these values they change nothing.
INERT = frozenset({"add_cross_attention", "is_decoder", "is_encoder_decoder", "pruned_heads", "tie_encoder_decoder"})
# Irrelevant within DBRX's blocks.
SECTION = frozenset({"ffn_act_fn", "moe_jitter_eps", "moe_loss_weight", "moe_normalize_expert_weights"})


# --- parts that architectures share -----------------------------------------------------------------------------


def _base(k: Keys, *, tied: bool | None) -> Shape:
    """Layers, width, vocabulary, context. `tied`: what the class makes of an absent key."""
    return {
        "n_layers": k.whole("num_hidden_layers"),
        "d_model": k.whole("hidden_size"),
        "vocab": k.whole("vocab_size"),
        "tied_embeddings": k.flag("tie_word_embeddings", default=tied),
        "max_context": k.whole("max_position_embeddings"),
    }


def _heads(k: Keys, shape: Shape, *, own_width: bool = False) -> None:
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


def _extra(shape: Shape, count: int) -> None:
    """Parameters that no formula covers."""
    if count:
        shape["extra_params"] = shape.get("extra_params", 0) + count


def _biases(shape: Shape, *, output: bool) -> int:
    """Biases of q, k, v and, if so, of the output projection, in one layer."""
    width = (shape["n_heads"] + 2 * shape["n_kv_heads"]) * shape["head_dim"]
    return int(width + (shape["d_model"] if output else 0))


def _windows(k: Keys, shape: Shape, windowed: int, window: int | None) -> None:
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


def _kinds(k: Keys, shape: Shape, *allowed: str) -> dict[str, int] | None:
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


def _every_layer_window(k: Keys, shape: Shape) -> None:
    """A window, where one is given, holds in every layer (Mistral, Phi-3)."""
    window = None if k.raw("sliding_window") is None else k.whole("sliding_window")
    if window is not None:
        _windows(k, shape, shape["n_layers"], window)


def _qwen_window(k: Keys, shape: Shape) -> None:
    """Layers from `max_window_layers` on have a window if `use_sliding_window` says so (class default: false)."""
    use = k.flag("use_sliding_window", default=False)
    k.raw("max_window_layers")
    window = k.raw("sliding_window")
    kinds = _kinds(k, shape, FULL, SLIDING)
    if not use:
        if kinds and kinds[SLIDING]:
            raise k.bad("layer_types", ": sliding layers, but use_sliding_window is false")
        return
    if window is not None:
        k.whole("sliding_window")
    windowed = kinds[SLIDING] if kinds else max(shape["n_layers"] - k.whole("max_window_layers", least=0), 0)
    _windows(k, shape, windowed, window)


def _pattern(k: Keys, shape: Shape, every: int, *, own_key: tuple[str, ...] = ()) -> None:
    """Every so-manieth layer is full, the rest have a window. `own_key`: keys that say how many."""
    kinds = _kinds(k, shape, FULL, SLIDING)
    if own_key:
        every = k.whole(*own_key, default=every)
    full = shape["n_layers"] // every if kinds is None else kinds[FULL]
    _windows(k, shape, shape["n_layers"] - full, k.whole("sliding_window"))


def _experts(k: Keys, shape: Shape, count: tuple[str, ...], width: str, top_k: tuple[str, ...] = ()) -> None:
    shape["n_experts"] = k.whole(*count)
    shape["top_k"] = k.whole("num_experts_per_tok", *top_k)
    shape["d_expert"] = k.whole(width)
    if shape["top_k"] > shape["n_experts"]:
        raise k.bad("num_experts_per_tok", f"={shape['top_k']}: more than {count[0]}={shape['n_experts']}")


def _dense_layers(k: Keys, shape: Shape, dense: int, width: str) -> None:
    """So many layers with a dense FFN of that width among layers with experts."""
    if not 0 <= dense <= shape["n_layers"]:
        raise k.bad("num_hidden_layers", f"={shape['n_layers']}: fewer than {dense} dense layers")
    k.raw(width)  # unused where every layer has experts
    if dense:
        shape["d_ff"] = k.whole(width)
    shape["n_dense_layers"] = dense
    shape["n_moe_layers"] = shape["n_layers"] - dense


def _sparse_steps(k: Keys, shape: Shape) -> int:
    """Dense layers of Qwen's mixtures: `mlp_only_layers`, and all but every `decoder_sparse_step`-th."""
    only = set(k.items("mlp_only_layers") or [])
    step = k.whole("decoder_sparse_step", default=1)
    return sum(i in only or (i + 1) % step != 0 for i in range(shape["n_layers"]))


# --- architectures ----------------------------------------------------------------------------------------------


def _llama(k: Keys) -> Shape:
    shape = _base(k, tied=False)
    _heads(k, shape)
    shape["d_ff"] = k.whole("intermediate_size")
    if k.flag("attention_bias", default=False):
        _extra(shape, shape["n_layers"] * _biases(shape, output=True))
    if k.flag("mlp_bias", default=False):
        _extra(shape, shape["n_layers"] * (2 * shape["d_ff"] + shape["d_model"]))
    return shape


def _mistral(k: Keys) -> Shape:
    shape = _base(k, tied=False)
    _heads(k, shape)
    shape["d_ff"] = k.whole("intermediate_size")
    _every_layer_window(k, shape)
    return shape


def _mixtral(k: Keys) -> Shape:
    shape = _base(k, tied=False)
    _heads(k, shape)
    _experts(k, shape, ("num_local_experts",), "intermediate_size")
    _every_layer_window(k, shape)
    return shape


def _qwen2(k: Keys) -> Shape:
    shape = _base(k, tied=False)
    _heads(k, shape)
    shape["d_ff"] = k.whole("intermediate_size")
    _extra(shape, shape["n_layers"] * _biases(shape, output=False))
    _qwen_window(k, shape)
    return shape


def _qwen3_attention(k: Keys) -> Shape:
    shape = _base(k, tied=False)
    _heads(k, shape, own_width=True)
    _extra(shape, shape["n_layers"] * 2 * shape["head_dim"])  # norms of q and k, one head wide
    if k.flag("attention_bias", default=False):
        _extra(shape, shape["n_layers"] * _biases(shape, output=True))
    return shape


def _qwen3(k: Keys) -> Shape:
    shape = _qwen3_attention(k)
    shape["d_ff"] = k.whole("intermediate_size")
    _qwen_window(k, shape)
    return shape


def _qwen3_moe(k: Keys) -> Shape:
    shape = _qwen3_attention(k)
    _experts(k, shape, ("num_experts", "num_local_experts"), "moe_intermediate_size")
    k.only("shared_expert_intermediate_size", 0)
    _dense_layers(k, shape, _sparse_steps(k, shape), "intermediate_size")
    _qwen_window(k, shape)
    return shape


def _qwen3_next(k: Keys) -> Shape:
    """Gated delta net in all but every fourth layer; the full layers gate their output."""
    shape = _base(k, tied=False)
    _heads(k, shape, own_width=True)
    shape["attn_gate"] = True
    if k.flag("attention_bias", default=False):
        raise k.bad("attention_bias", "=True: not understood for qwen3_next")
    kinds = _kinds(k, shape, FULL, LINEAR)
    k.raw("full_attention_interval")
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
    _experts(k, shape, ("num_experts",), "moe_intermediate_size")
    shape["n_shared_experts"] = 1
    shape["d_shared"] = k.whole("shared_expert_intermediate_size")
    _dense_layers(k, shape, _sparse_steps(k, shape), "intermediate_size")
    _extra(shape, linear * (kernel * mixed + 2 * heads + value_width))  # convolution, decays, norm
    _extra(shape, full * 2 * shape["head_dim"])
    _extra(shape, shape["n_moe_layers"] * shape["d_model"])  # gate of the shared expert
    return shape


def _gpt_oss(k: Keys) -> Shape:
    shape = _base(k, tied=False)
    _heads(k, shape, own_width=True)
    _pattern(k, shape, 2)  # class default: every second layer is full
    _experts(k, shape, ("num_local_experts",), "intermediate_size", ("experts_per_token",))
    n, d, experts = shape["n_layers"], shape["d_model"], shape["n_experts"]
    if k.flag("attention_bias", default=True):
        _extra(shape, n * _biases(shape, output=True))
    _extra(shape, n * shape["n_heads"])  # sinks
    _extra(shape, n * (experts + experts * (2 * shape["d_expert"] + d)))  # biases of router and experts
    return shape


def _latent(k: Keys) -> Shape:
    """Multi-head latent attention of DeepSeek, and its mixture."""
    shape = _base(k, tied=False)
    shape["n_heads"] = k.whole("num_attention_heads")
    k.raw("num_key_value_heads")  # one latent serves all heads, whatever it says
    shape["n_kv_heads"] = 1
    shape["q_lora_rank"] = k.optional("q_lora_rank") or 0
    shape["kv_lora_rank"] = k.whole("kv_lora_rank")
    shape["qk_nope_dim"] = k.whole("qk_nope_head_dim")
    shape["qk_rope_dim"] = k.whole("qk_rope_head_dim")
    shape["v_head_dim"] = k.whole("v_head_dim")
    shape["head_dim"] = shape["qk_nope_dim"] + shape["qk_rope_dim"]
    k.only("qk_head_dim", shape["head_dim"])
    k.only("head_dim", shape["qk_rope_dim"])  # newer files repeat the rotary part under this name
    k.only("attention_bias", False)
    k.only("moe_layer_freq", 1)
    _experts(k, shape, ("n_routed_experts", "num_local_experts"), "moe_intermediate_size")
    shared = k.raw("n_shared_experts")
    shape["n_shared_experts"] = 0 if shared is None else k.whole("n_shared_experts", least=0)
    shape["d_shared"] = shape["n_shared_experts"] * shape["d_expert"]
    _dense_layers(k, shape, k.whole("first_k_dense_replace", least=0), "intermediate_size")
    return shape


def _deepseek_v32(k: Keys) -> Shape:
    """With an indexer in every layer, whose keys are normed with a bias."""
    shape = _latent(k)
    shape["sparse_top_k"] = k.whole("index_topk")
    shape["index_heads"] = k.whole("index_n_heads")
    shape["index_dim"] = k.whole("index_head_dim")
    _extra(shape, shape["n_layers"] * 2 * shape["index_dim"])
    return shape


def _gemma2(k: Keys) -> Shape:
    """Two more norms per layer than others; layers alternate, the first has a window."""
    shape = _base(k, tied=True)
    _heads(k, shape, own_width=True)
    shape["d_ff"] = k.whole("intermediate_size")
    _pattern(k, shape, 2)
    k.only("attention_bias", False)
    _extra(shape, shape["n_layers"] * 2 * shape["d_model"])
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
    shape = _base(k, tied=True)
    _heads(k, shape, own_width=True)
    shape["d_ff"] = k.whole("intermediate_size")
    _pattern(k, shape, 6, own_key=("sliding_window_pattern", "_sliding_window_pattern"))
    k.only("attention_bias", False)
    k.only("use_bidirectional_attention", False)
    _extra(shape, shape["n_layers"] * (2 * shape["d_model"] + 2 * shape["head_dim"]))
    return shape


def _with_defaults(k: Keys, defaults: Mapping[str, Any]) -> Keys:
    """The same keys, with the class's values where a nested block leaves them out; a flat file must say them."""
    if not k.prefix:
        return k
    k.found = {**defaults, **k.found}
    return k


def _phi3(k: Keys) -> Shape:
    shape = _base(k, tied=False)
    _heads(k, shape)
    shape["d_ff"] = k.whole("intermediate_size")
    k.only("attention_bias", False)
    k.only("mlp_bias", False)
    k.only("full_attn_mod", 1)
    k.only("lm_head_bias", False)
    k.only("interpolate_factor", 1)
    _every_layer_window(k, shape)
    return shape


def _phimoe(k: Keys) -> Shape:
    """Norms with biases."""
    shape = _base(k, tied=False)
    _heads(k, shape)
    _experts(k, shape, ("num_local_experts",), "intermediate_size")
    _every_layer_window(k, shape)
    n, d = shape["n_layers"], shape["d_model"]
    if k.flag("attention_bias"):
        _extra(shape, n * _biases(shape, output=True))
    _extra(shape, (2 * n + 1) * d)
    if k.flag("lm_head_bias"):
        _extra(shape, shape["vocab"])
    return shape


def _glm4_moe(k: Keys) -> Shape:
    """Biases on q, k, v and not on the output."""
    shape = _base(k, tied=False)
    _heads(k, shape, own_width=True)
    _experts(k, shape, ("n_routed_experts",), "moe_intermediate_size")
    shape["n_shared_experts"] = k.whole("n_shared_experts", least=0)
    shape["d_shared"] = shape["n_shared_experts"] * shape["d_expert"]
    _dense_layers(k, shape, k.whole("first_k_dense_replace", least=0), "intermediate_size")
    if k.flag("attention_bias"):
        _extra(shape, shape["n_layers"] * _biases(shape, output=False))
    if k.flag("use_qk_norm"):
        _extra(shape, shape["n_layers"] * 2 * shape["head_dim"])
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
    shape = _base(k, tied=None)
    _heads(k, shape)
    _experts(k, shape, ("num_experts", "num_local_experts"), "intermediate_size")
    _extra(shape, shape["n_layers"] * 2 * shape["d_model"])
    return shape


def _grok2(k: Keys) -> Shape:
    """A dense FFN beside the experts in the same layer: each layer counts as both."""
    if not k.flag("residual_moe"):
        raise k.bad("residual_moe", "=False: not understood for this architecture")
    shape = _base(k, tied=False)
    _heads(k, shape)
    _experts(k, shape, ("num_local_experts", "num_experts"), "moe_intermediate_size")
    k.only("sliding_window_size", -1)
    k.only("global_attn_every_n", 1)
    shape["d_ff"] = k.whole("intermediate_size")
    shape["n_dense_layers"] = shape["n_moe_layers"] = shape["n_layers"]
    _extra(shape, shape["n_layers"] * 2 * shape["d_model"])
    return shape


def _olmo2(k: Keys) -> Shape:
    """Norms of q and k as wide as all heads together."""
    shape = _base(k, tied=False)
    _heads(k, shape)
    shape["d_ff"] = k.whole("intermediate_size")
    _extra(shape, shape["n_layers"] * (shape["n_heads"] + shape["n_kv_heads"]) * shape["head_dim"])
    if k.flag("attention_bias", default=False):
        _extra(shape, shape["n_layers"] * _biases(shape, output=True))
    return shape


def _cohere_base(k: Keys) -> Shape:
    """Attention and FFN in parallel behind one norm; the formula counts two."""
    shape = _base(k, tied=True)
    _heads(k, shape)
    shape["d_ff"] = k.whole("intermediate_size")
    for key in ("use_embedding_sharing", "use_gated_activation", "use_parallel_block"):
        k.only(key, True)
    _extra(shape, -shape["n_layers"] * shape["d_model"])
    if k.flag("attention_bias", default=False):
        _extra(shape, shape["n_layers"] * _biases(shape, output=True))
    return shape


def _cohere(k: Keys) -> Shape:
    shape = _cohere_base(k)
    if k.flag("use_qk_norm", default=False):  # one norm per head
        _extra(shape, shape["n_layers"] * (shape["n_heads"] + shape["n_kv_heads"]) * shape["head_dim"])
    return shape


def _cohere2(k: Keys) -> Shape:
    shape = _cohere_base(k)
    k.only("use_qk_norm", False)
    names = ("sliding_window_pattern", "_sliding_window_pattern", "layer_switch")
    if k.raw(*names) is None and k.raw("layer_types") is None:
        raise k.bad("layer_types or sliding_window_pattern", ": missing, and nothing is guessed")
    _pattern(k, shape, 4, own_key=names)
    return shape


def _minimax_m2(k: Keys) -> Shape:
    shape = _base(k, tied=False)
    _heads(k, shape, own_width=True)
    _experts(k, shape, ("num_local_experts",), "intermediate_size")
    k.only("shared_intermediate_size", 0)
    k.raw("mlp_intermediate_size")  # of a dense FFN that no layer has
    k.only("attention_bias", False)
    kinds = k.items("attn_type_list")
    if kinds is not None and (len(kinds) != shape["n_layers"] or set(kinds) != {1}):
        raise k.bad("attn_type_list", ": must say 1 (softmax attention) for every layer")
    _every_layer_window(k, shape)
    if k.flag("use_qk_norm"):
        k.only("qk_norm_type", "per_layer")
        _extra(shape, shape["n_layers"] * (shape["n_heads"] + shape["n_kv_heads"]) * shape["head_dim"])
    return shape


def _llama4(k: Keys) -> Shape:
    """Chunked attention in layers with rotary positions, full attention in those without."""
    shape = _base(k, tied=False)
    _heads(k, shape)
    n = shape["n_layers"]
    kinds = _kinds(k, shape, FULL, CHUNKED)
    rotary = k.items("no_rope_layers")  # 1: the layer has rotary positions
    interval = k.whole("no_rope_layer_interval", default=4)  # class default
    if rotary and (len(rotary) != n or not set(rotary) <= {0, 1}):
        raise k.bad("no_rope_layers", f": must be {n} times 0 or 1")
    full = rotary.count(0) if rotary else n // interval
    if kinds is not None:
        full = kinds[FULL]
    chunk = k.optional("attention_chunk_size")
    if chunk is not None:
        _windows(k, shape, n - full, chunk)
    k.flag("use_qk_norm", default=True)  # a norm without weights
    k.raw("for_llm_compressor")  # how the experts are stored
    if k.flag("attention_bias", default=False):
        _extra(shape, n * _biases(shape, output=True))
    _experts(k, shape, ("num_local_experts",), "intermediate_size")
    shape["n_shared_experts"] = 1
    shape["d_shared"] = shape["d_expert"]
    listed = k.items("moe_layers")
    k.raw("interleave_moe_layer_step")
    moe = n // k.whole("interleave_moe_layer_step") if listed is None else len(set(listed))
    _dense_layers(k, shape, n - moe, "intermediate_size_mlp")
    return shape


ARCHITECTURES: dict[str, Callable[[Keys], Shape]] = {
    "cohere": _cohere,
    "cohere2": _cohere2,
    "dbrx": _dbrx,
    "deepseek_v2": _latent,
    "deepseek_v3": _latent,
    "deepseek_v32": _deepseek_v32,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "glm4_moe": _glm4_moe,
    "gpt_oss": _gpt_oss,
    "grok-1": _grok1,
    "grok-2": _grok2,
    "kimi_k2": _latent,
    "llama": _llama,
    "llama4_text": _llama4,
    "minimax_m2": _minimax_m2,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "olmo2": _olmo2,
    "phi3": _phi3,
    "phimoe": _phimoe,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "qwen3_next": _qwen3_next,
}
# Files whose `model_type` does not tell: what their `architectures` say.
BY_CLASS = {"Grok1ModelForCausalLM": "grok-1", "Grok1ForCausalLM": "grok-2", "MiniMaxM2ForCausalLM": "minimax_m2"}


def _architecture(found: Mapping[str, Any], where: str) -> str:
    """The name under which an architecture is known here."""
    classes = found.get("architectures")
    for name in classes if isinstance(classes, list) else []:
        if name in BY_CLASS:
            return BY_CLASS[name]
    kind = found.get("model_type")
    if not isinstance(kind, str):
        raise BadInput(f"{where}: model_type: missing; known: {', '.join(ARCHITECTURES)}")
    if kind in ARCHITECTURES:
        return kind
    raise BadInput(
        f"{where}: model_type={kind}: an architecture that cannot be read; {closest(kind, ARCHITECTURES)}; "
        f"known: {', '.join(ARCHITECTURES)}"
    )


def read_config(found: Mapping[str, Any], where: str = "config.json") -> dict[str, Any]:
    """The fields of `sweep.point.Model` that the content of a `config.json` gives. Raises: `BadInput`."""
    prefix = ""
    inner = found.get("text_config")
    if isinstance(inner, dict):
        outer = found.get("model_type")
        if outer not in WRAPPERS:
            raise BadInput(
                f"{where}: model_type={outer}: an architecture around a text model that cannot be read; "
                f"known: {', '.join(WRAPPERS)}"
            )
        around = Keys(found, where)
        around.read.update({"text_config", "tie_word_embeddings"})
        around.check_rest(str(outer), IRRELEVANT | BESIDE_TEXT)
        if "tie_word_embeddings" in found and "tie_word_embeddings" not in inner:
            inner = {**inner, "tie_word_embeddings": found["tie_word_embeddings"]}
        found, prefix = inner, "text_config."
    name = _architecture(found, where)
    keys = Keys(found, where, prefix)
    shape = ARCHITECTURES[name](keys)
    keys.check_rest(name)
    return shape


def model_from_hf(path: Path) -> dict[str, Any]:
    """The fields of `sweep.point.Model` that a `config.json` gives, or the directory that holds one.

    Raises: `BadInput`, in one line with the field that is missing or not understood.
    """
    path = Path(path)
    if path.is_dir():
        path = path / "config.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadInput(f"model.path={path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"model.path={path}: cannot be read ({error.__class__.__name__})") from None
    except json.JSONDecodeError as error:
        raise BadInput(f"model.path={path}: not JSON (line {error.lineno}: {error.msg})") from None
    if not isinstance(found, dict):
        raise BadInput(f"model.path={path}: must hold a JSON object")
    return read_config(found, f"model.path={path}")
