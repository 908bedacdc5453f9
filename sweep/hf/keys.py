"""The keys of one `config.json`: read, known to be irrelevant, or refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sweep.errors import BadInput

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
    use_mrope top_k logits_to_keep num_logits_to_keep mtp_num_hidden_layers mtp_use_dedicated_embeddings num_mtp_layers
    mtp_loss_scaling_factor for_llm_compressor moe_layer_use_scale
    """.split()  # noqa: SIM905
)
# Keys of a file that holds a vision tower beside the text model: the tower is not part of the shape.
BESIDE_TEXT = frozenset(
    """
    audio_config audio_token_id boa_token_id boi_token_id boi_token_index eoa_token_id eoa_token_index eoi_token_id
    eoi_token_index ignore_index im_end_token im_patch_token im_start_token image_grid_pinpoints image_placeholder
    image_seq_length image_token_id image_token_index image_token_len img_token_compression_config
    language_model_only media_placeholder_token_id mm_tokens_per_image multimodal_projector_bias num_reward_heads
    patch_token_len process_image_mode projector_bias projector_hidden_act projector_hidden_size spatial_merge_size
    understand_projector_stride use_unified_vision_chunk video_placeholder video_token_id video_token_index
    vision_config vision_end_token_id vision_feature_layer vision_feature_select_strategy
    vision_soft_tokens_per_image vision_start_token_id
    """.split()  # noqa: SIM905
)
# The irrelevant by their names: positions and training losses in the spellings of many authors.
PREFIXES = ("rope_", "torch_", "_")
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

    def ignore(self, *names: str) -> None:
        """Keys that leave every matrix of this architecture as it is."""
        self.read.update(names)

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

    def flags(self, name: str, length: int) -> list[int]:
        """A list with a 0 or 1 for every layer."""
        value = self.items(name)
        if value is None:
            raise self.bad(name, ": missing, and nothing is guessed")
        if len(value) != length or not set(value) <= {0, 1}:
            raise self.bad(name, f": must be {length} times 0 or 1")
        return [int(v) for v in value]

    def same(self, name: str) -> None:
        """A figure that may be given once per layer: the layers must agree, and then it is one number."""
        value = self.raw(name)
        if isinstance(value, list):
            if len(set(value)) != 1:
                raise self.bad(name, ": differs between layers, which the record cannot hold")
            self.found = {**self.found, name: value[0]}

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
