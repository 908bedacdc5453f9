"""What a record leaves open: fields that follow from others, as the record's documentation says.

Works on arrays: a whole table of models is completed at once. NaN stands for a field that was left open.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sweep.point import Context, Layout, Model, names

Fields = dict[str, np.ndarray]


def _filled(values: Mapping[str, Any], record: type) -> Fields:
    size = max((np.size(v) for v in values.values()), default=1)
    out: Fields = {}
    for name in names(record):
        out[name] = np.broadcast_to(np.asarray(values.get(name, np.nan), dtype=np.float64), (size,)).copy()
    return out


def _default(f: Fields, name: str, value: Callable[[Fields], Any]) -> None:
    f[name] = np.where(np.isnan(f[name]), value(f), f[name])


def complete_model(values: Mapping[str, Any]) -> Model:
    """A model with every field a number.

    Args:
        values: field -> number or array; NaN or missing where the record says null.
    """
    f = _filled(values, Model)
    mla = np.nan_to_num(f["kv_lora_rank"]) > 0
    f["n_kv_heads"] = np.where(mla, 1.0, f["n_kv_heads"])
    f["head_dim"] = np.where(mla, f["qk_nope_dim"] + f["qk_rope_dim"], f["head_dim"])
    f["v_head_dim"] = np.where(mla & np.isnan(f["v_head_dim"]), f["qk_nope_dim"], f["v_head_dim"])
    # an MLA query is not gated, and its latent is one tensor already
    f["attn_gate"] = np.where(mla, 0.0, f["attn_gate"])
    _default(f, "n_kv_heads", lambda f: f["n_heads"])
    _default(f, "head_dim", lambda f: f["d_model"] / f["n_heads"])
    _default(f, "v_head_dim", lambda f: f["head_dim"])
    zero = [
        "d_ff",
        "tied_embeddings",
        "n_experts",
        "top_k",
        "d_expert",
        "n_shared_experts",
        "q_lora_rank",
        "kv_lora_rank",
        "qk_nope_dim",
        "qk_rope_dim",
        "n_window_layers",
        "window",
        "n_linear_layers",
        "state_bytes_per_layer",
        "linear_in_width",
        "linear_out_width",
        "sparse_top_k",
        "index_heads",
        "index_dim",
        "attn_gate",
        "k_equals_v",
        "extra_params",
        "n_draft",
        "acceptance",
        "draft_cost",
    ]
    for name in zero:
        _default(f, name, lambda f: 0.0)
    _default(f, "ffn_matrices", lambda f: 3.0)
    _default(f, "latent_ratio", lambda f: 1.0)
    moe = f["n_experts"] > 0
    _default(f, "d_shared", lambda f: f["n_shared_experts"] * f["d_expert"])
    _default(f, "n_dense_layers", lambda f: np.where(moe, 0.0, f["n_layers"]))
    _default(f, "n_moe_layers", lambda f: np.where(moe, f["n_layers"] - f["n_dense_layers"], 0.0))
    f["n_moe_layers"] = np.where(moe, f["n_moe_layers"], 0.0)
    _default(f, "n_full_layers", lambda f: f["n_layers"] - f["n_window_layers"] - f["n_linear_layers"])
    _default(f, "n_index_layers", lambda f: np.where(f["index_heads"] > 0, f["n_full_layers"], 0.0))
    _default(f, "window_kv_heads", lambda f: f["n_kv_heads"])
    _default(f, "window_head_dim", lambda f: f["head_dim"])
    _default(
        f,
        "window_v_head_dim",
        lambda f: np.where(f["window_head_dim"] == f["head_dim"], f["v_head_dim"], f["window_head_dim"]),
    )
    return Model(**f)


def complete_layout(values: Mapping[str, Any]) -> Layout:
    """A layout with every field a number: a null `ep` is 1, a null `tpf` is N / ep, Medha's tied FFN has tpf = tpa.

    `wo_shard` becomes 1 for n and 0 for tpa; a null chunk or number of microbatches becomes 0.
    """
    numeric = dict(values)
    shard = np.atleast_1d(np.asarray(numeric.get("wo_shard", "n"), dtype=object))
    numeric["wo_shard"] = np.array([0.0 if s in ("tpa", 0.0) else 1.0 for s in shard])
    f = _filled(numeric, Layout)
    for name in ("tpa", "kvp", "dpa", "pp"):
        _default(f, name, lambda f: 1.0)
    for name in ("ffn_tied", "overlap", "hop_b", "two_batch", "redundant_slots", "prefill_chunk", "dynamic_chunks"):
        _default(f, name, lambda f: 0.0)
    _default(f, "microbatches", lambda f: 0.0)
    _default(f, "balanced", lambda f: 1.0)
    _default(f, "ep", lambda f: 1.0)
    _default(
        f,
        "tpf",
        lambda f: np.where(f["ffn_tied"] > 0, f["tpa"], f["tpa"] * f["kvp"] * f["dpa"] / f["ep"]),
    )
    return Layout(**f)


def complete_context(values: Mapping[str, Any]) -> Context:
    """The lengths of a load: a fixed context is the decode context, the longest context and the prompt."""
    size = max((np.size(v) for v in values.values()), default=1)

    def get(name: str, default: float) -> np.ndarray:
        raw = np.broadcast_to(np.asarray(values.get(name, np.nan), dtype=np.float64), (size,))
        return np.where(np.isnan(raw), default, raw)

    isl, osl = get("isl", 1024.0), get("osl", 1024.0)
    fixed = get("context", np.nan)
    free = np.isnan(fixed)
    return Context(
        decode=np.where(free, isl + osl / 2.0, fixed),
        longest=np.where(free, isl + osl, fixed),
        prompt=np.where(free, isl, fixed),
        generated=osl,
        prefix_hit=get("prefix_hit", 0.0),
        ttft_max_s=get("ttft_max_s", np.inf),
        tpot_max_s=get("tpot_max_s", np.inf),
        mixed=get("mixed", 0.0),
    )
