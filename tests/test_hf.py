"""A `config.json` becomes the shape that the catalogue holds, and what is not understood is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sweep.complete import complete_model
from sweep.config import Library, conf_dir, make_record
from sweep.errors import BadInput
from sweep.hf import model_from_hf, read_config
from sweep.point import Model, names

LIBRARY = Library([conf_dir()])


def config(kind: str, layers: int, width: int, vocab: int, context: int, **more: Any) -> dict[str, Any]:
    return {
        "model_type": kind,
        "num_hidden_layers": layers,
        "hidden_size": width,
        "vocab_size": vocab,
        "max_position_embeddings": context,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "rope_theta": 1e4,
        "rope_scaling": None,
        "bos_token_id": 0,
        "initializer_range": 0.02,
        "attention_dropout": 0.0,
        "rms_norm_eps": 1e-6,
        **more,
    }


def heads(query: int, kv: int, width: int | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {"num_attention_heads": query, "num_key_value_heads": kv}
    return found if width is None else {**found, "head_dim": width}


def latent(query: int, rank: int | None) -> dict[str, Any]:
    return {
        **heads(query, query),
        "q_lora_rank": rank,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "attention_bias": False,
        "moe_layer_freq": 1,
        "n_group": 8,
        "topk_method": "noaux_tc",
        "num_nextn_predict_layers": 1,
        "quantization_config": {"quant_method": "fp8"},
    }


def routed(count: int, chosen: int, width: int, shared: int, dense: int) -> dict[str, Any]:
    return {
        "n_routed_experts": count,
        "num_experts_per_tok": chosen,
        "moe_intermediate_size": width,
        "n_shared_experts": shared,
        "first_k_dense_replace": dense,
    }


V3 = config(
    "deepseek_v3", 61, 7168, 129280, 163840, intermediate_size=18432, **latent(128, 1536), **routed(256, 8, 2048, 1, 3)
)
K2 = config(
    "kimi_k2", 61, 7168, 163840, 131072, intermediate_size=18432, **latent(64, 1536), **routed(384, 8, 2048, 1, 1)
)
LLAMA = config(
    "llama", 32, 4096, 128256, 131072, intermediate_size=14336, attention_bias=False, mlp_bias=False, **heads(32, 8)
)
SCOUT = config(
    "llama4_text", 48, 5120, 202048, 10485760, intermediate_size=8192, intermediate_size_mlp=16384,
    num_local_experts=16, num_experts_per_tok=1, interleave_moe_layer_step=1, attention_chunk_size=8192,
    no_rope_layers=[], use_qk_norm=True, for_llm_compressor=False, attention_bias=False, **heads(40, 8, 128),
)  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "deepseek_v3": V3,
    "kimi_k2_instruct": K2,
    "kimi_k2_5": {
        "model_type": "kimi_k25",
        "vision_config": {"hidden_size": 1152},
        "text_config": {**K2, "max_position_embeddings": 262144, "pruned_heads": {}, "is_decoder": False},
    },
    "deepseek_v2_lite": config(
        "deepseek_v2", 27, 2048, 102400, 163840, intermediate_size=10944, **latent(16, None),
        **routed(64, 6, 1408, 2, 1),
    ),
    "deepseek_v3_2": {
        **V3, "model_type": "deepseek_v32", "index_topk": 2048, "index_n_heads": 64, "index_head_dim": 128,
    },
    "llama_3_1_8b": LLAMA,
    "mistral_7b_v0_3": config(
        "mistral", 32, 4096, 32768, 32768, intermediate_size=14336, sliding_window=None, **heads(32, 8)
    ),
    "mixtral_8x7b": config(
        "mixtral", 32, 4096, 32000, 32768, intermediate_size=14336, num_local_experts=8, num_experts_per_tok=2,
        sliding_window=None, **heads(32, 8),
    ),
    "qwen2_5_7b": config(
        "qwen2", 28, 3584, 152064, 131072, intermediate_size=18944, use_sliding_window=False, sliding_window=131072,
        max_window_layers=28, **heads(28, 4),
    ),
    "qwen3_0_6b": {
        **config("qwen3", 28, 1024, 151936, 40960, intermediate_size=3072, use_sliding_window=False,
                 sliding_window=None, max_window_layers=28, attention_bias=False, **heads(16, 8, 128)),
        "tie_word_embeddings": True,
    },
    "qwen3_30b_a3b": config(
        "qwen3_moe", 48, 2048, 151936, 40960, intermediate_size=6144, num_experts=128, num_experts_per_tok=8,
        moe_intermediate_size=768, mlp_only_layers=[], decoder_sparse_step=1, attention_bias=False,
        **heads(32, 4, 128),
    ),
    "qwen3_next_80b_a3b": config(
        "qwen3_next", 48, 2048, 151936, 262144, intermediate_size=5120, num_experts=512, num_experts_per_tok=10,
        moe_intermediate_size=512, shared_expert_intermediate_size=512, mlp_only_layers=[], decoder_sparse_step=1,
        full_attention_interval=4, linear_conv_kernel_dim=4, linear_key_head_dim=128, linear_value_head_dim=128,
        linear_num_key_heads=16, linear_num_value_heads=32, **heads(16, 2, 256),
    ),
    "gpt_oss_120b": config(
        "gpt_oss", 36, 2880, 201088, 131072, intermediate_size=2880, num_local_experts=128, num_experts_per_tok=4,
        experts_per_token=4, sliding_window=128, attention_bias=True,
        layer_types=["sliding_attention", "full_attention"] * 18, **heads(64, 8, 64),
    ),
    "gemma_2_9b": {
        **config("gemma2", 42, 3584, 256000, 8192, intermediate_size=14336, sliding_window=4096,
                 query_pre_attn_scalar=256, final_logit_softcapping=30.0, **heads(16, 8, 256)),
        "tie_word_embeddings": True,
    },
    "gemma_3_27b_it": {
        "model_type": "gemma3",
        "vision_config": {"hidden_size": 1152},
        "text_config": {
            "model_type": "gemma3_text", "hidden_size": 5376, "intermediate_size": 21504, "num_hidden_layers": 62,
            "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128, "sliding_window": 1024,
        },
    },
    "glm_4_5": config(
        "glm4_moe", 92, 5120, 151552, 131072, intermediate_size=12288, attention_bias=True, use_qk_norm=True,
        partial_rotary_factor=0.5, **heads(96, 8, 128), **routed(160, 8, 1536, 1, 3),
    ),
    "phi_3_mini_4k": config(
        "phi3", 32, 3072, 32064, 4096, intermediate_size=8192, sliding_window=2047, **heads(32, 32)
    ),
    "phi_4": config("phi3", 40, 5120, 100352, 16384, intermediate_size=17920, sliding_window=None, **heads(40, 10)),
    "phi_3_5_moe": config(
        "phimoe", 32, 4096, 32064, 131072, intermediate_size=6400, num_local_experts=16, num_experts_per_tok=2,
        attention_bias=True, lm_head_bias=True, sliding_window=131072, **heads(32, 8),
    ),
    "minimax_m2": config(
        "minimax_m2", 62, 3072, 200064, 196608, intermediate_size=1536, mlp_intermediate_size=8192,
        num_local_experts=256, num_experts_per_tok=8, use_qk_norm=True, qk_norm_type="per_layer",
        shared_intermediate_size=0, attn_type_list=[1] * 62, rotary_dim=64, use_mtp=True, **heads(48, 8, 128),
    ),
    "olmo_2_7b": config("olmo2", 32, 4096, 100352, 4096, intermediate_size=11008, **heads(32, 32)),
    "command_r": {
        **config("cohere", 64, 12288, 256000, 131072, intermediate_size=33792, use_qk_norm=True, **heads(96, 8)),
        "tie_word_embeddings": True,
    },
    "grok_1": {
        **config("grok-1", 64, 6144, 131072, 8192, intermediate_size=32768, num_experts=8, num_experts_per_tok=2,
                 **heads(48, 8)),
        "tie_word_embeddings": True,
    },
    "grok_2": config(
        "git", 64, 8192, 131072, 131072, architectures=["Grok1ForCausalLM"], intermediate_size=32768,
        moe_intermediate_size=16384, num_local_experts=8, num_experts_per_tok=2, residual_moe=True,
        sliding_window_size=-1, global_attn_every_n=1, **heads(64, 8, 128),
    ),
    "dbrx": {
        "model_type": "dbrx", "n_layers": 40, "d_model": 6144, "n_heads": 48, "vocab_size": 100352,
        "max_seq_len": 32768, "tie_word_embeddings": False, "resid_pdrop": 0.0,
        "attn_config": {"kv_n_heads": 8, "clip_qkv": 8, "rope_theta": 500000},
        "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4, "moe_loss_weight": 0.05},
    },
    "llama_4_scout_17b_16e": {"model_type": "llama4", "boi_token_index": 200080, "text_config": SCOUT},
    "llama_4_maverick_17b_128e": {
        **SCOUT, "num_local_experts": 128, "interleave_moe_layer_step": 2, "max_position_embeddings": 1048576,
    },
}  # fmt: skip


def completed(values: dict[str, Any]) -> dict[str, float]:
    record = make_record("model", "x", values)
    model = complete_model({k: np.nan if v is None else float(v) for k, v in record.values.items()})
    return {n: float(getattr(model, n)[0]) for n in names(Model)}


@pytest.mark.parametrize("name", CONFIGS)
def test_as_in_the_catalogue(name: str) -> None:
    assert completed(read_config(CONFIGS[name])) == completed(LIBRARY.record("model", name).values)


def test_cohere2_layers() -> None:
    found = read_config(
        config("cohere2", 64, 12288, 256000, 262144, intermediate_size=36864, sliding_window=4096,
               sliding_window_pattern=4, **heads(96, 8))
    )  # fmt: skip
    assert (found["n_full_layers"], found["n_window_layers"], found["window"]) == (16, 48, 4096)


@pytest.mark.parametrize("name", ["deepseek_v3", "llama_3_1_8b", "gpt_oss_120b", "qwen3_30b_a3b", "dbrx"])
def test_unknown_field_is_named(name: str) -> None:
    with pytest.raises(BadInput, match="n_extra_towers"):
        read_config({**CONFIGS[name], "n_extra_towers": 3})


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("llama_3_1_8b", "hidden_size"),
        ("llama_3_1_8b", "num_attention_heads"),
        ("llama_3_1_8b", "intermediate_size"),
        ("llama_3_1_8b", "max_position_embeddings"),
        ("deepseek_v3", "q_lora_rank"),
        ("deepseek_v3", "first_k_dense_replace"),
        ("qwen3_0_6b", "head_dim"),
        ("gpt_oss_120b", "sliding_window"),
        ("glm_4_5", "use_qk_norm"),
        ("minimax_m2", "num_local_experts"),
        ("grok_1", "tie_word_embeddings"),
    ],
)
def test_missing_field_is_named(name: str, key: str) -> None:
    with pytest.raises(BadInput, match=key):
        read_config({k: v for k, v in CONFIGS[name].items() if k != key})


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"num_hidden_layers": 3.5}, "num_hidden_layers=3.5"),
        ({"num_hidden_layers": "32"}, "num_hidden_layers=32"),
        ({"num_key_value_heads": 5}, "num_key_value_heads=5"),
        ({"attention_bias": 1}, "attention_bias=1"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder"),
        ({"model_type": "mamba"}, "model_type=mamba.*known:.*llama"),
        ({"model_type": None}, "model_type"),
    ],
)
def test_bad_values_are_named(change: dict[str, Any], word: str) -> None:
    with pytest.raises(BadInput, match=word):
        read_config({**LLAMA, **change})


def test_disagreeing_names() -> None:
    with pytest.raises(BadInput, match="experts_per_token=8"):
        read_config({**CONFIGS["gpt_oss_120b"], "experts_per_token": 8})


def test_biases_count() -> None:
    plain, biased = (read_config({**LLAMA, "attention_bias": b}) for b in (False, True))
    assert "extra_params" not in plain
    assert biased["extra_params"] == 32 * (4096 + 2 * 1024 + 4096)


def test_file_or_directory(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with pytest.raises(BadInput, match="no such file"):
        model_from_hf(path)
    path.write_text("{")
    with pytest.raises(BadInput, match="not JSON"):
        model_from_hf(path)
    path.write_text(json.dumps(LLAMA))
    assert model_from_hf(path) == model_from_hf(tmp_path) == read_config(LLAMA)
