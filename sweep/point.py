"""A design point as plain numbers: what a model, a machine, a layout and a load are.

Five records hold what a person writes: `Model`, `Hardware`, `Precision`, `Layout`, `Workload`. What silicon makes
of a roofline stands in `sweep.machine`. Their fields are the keys of the configuration:
`model.n_layers` is `Model.n_layers`. Every field carries its unit and a sentence in its metadata; the data
dictionary, the Parquet metadata and the axis titles read them from here.

A figure that nobody has published is `None` in a record and NaN in an array: never a guess.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import jax

# What a field holds: a number, `None` where nobody has published it, and an array of numbers once batched.
Num: TypeAlias = Any
Flag: TypeAlias = Any  # true or false; 1.0 or 0.0 once it is a number
Name: TypeAlias = Any  # a word: a format, an option

# Bits per element, block scales included. Sources: NVFP4 and MXFP formats of the OCP MX specification v1.0 and
# NVIDIA's NVFP4 note (16-element blocks with an fp8 scale: 4 + 8/16; MX: 32-element blocks with an 8-bit scale:
# + 8/32); fp8_block as in DeepSeek-V3 (arXiv 2412.19437): fp32 scale per 128 activations, per 128 x 128 weights;
# int4: groups of 128 with an fp16 scale. `fp4` has no scales: it exists to reproduce papers that count 0.5 bytes.
FORMAT_BITS: dict[str, tuple[float, float]] = {  # format: (as weights, as activations or cache)
    "fp32": (32.0, 32.0),
    "bf16": (16.0, 16.0),
    "fp8": (8.0, 8.0),
    "fp8_block": (8.0 + 32.0 / (128 * 128), 8.25),
    "mxfp8": (8.25, 8.25),
    "int8": (8.0, 8.0),
    "fp4": (4.0, 4.0),
    "nvfp4": (4.5, 4.5),
    "mxfp4": (4.25, 4.25),
    "int4": (4.125, 4.125),
}

# The unit of a tensor core that multiplies the format; None: no such unit, the operand is widened first.
FORMAT_MATH: dict[str, str | None] = {
    "fp32": "fp32",
    "bf16": "bf16",
    "fp8": "fp8",
    "fp8_block": "fp8",
    "mxfp8": "fp8",
    "int8": "int8",
    "fp4": "fp4",
    "nvfp4": "fp4",
    "mxfp4": "fp4",
    "int4": None,
}

# Of the prefill work that stands between decode steps, as a multiple of the prompts' own prefill time: mixed steps cost
# more than both parts alone, but hardly twice as much. A setting and the calibration keep to it alike.
PHI_MOST = 2.0


def figure(unit: str, doc: str, default: Any = None) -> Any:
    """A field with its unit and meaning, `None` where the record leaves it open."""
    return field(default=default, metadata={"unit": unit, "doc": doc})


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Model:
    """The shape of a decoder-only transformer. Source of the field list: the models' own `config.json` files."""

    n_layers: Num = figure("1", "layers")
    d_model: Num = figure("1", "width of the residual stream")
    n_heads: Num = figure("1", "query heads")
    n_kv_heads: Num = figure("1", "key/value heads (null: as n_heads); 1 for MLA")
    head_dim: Num = figure("1", "width of a query and key head (null: d_model / n_heads)")
    v_head_dim: Num = figure("1", "width of a value head (null: head_dim)")
    d_ff: Num = figure("1", "inner width of a dense FFN", 0)
    ffn_matrices: Num = figure("1", "3: gated (up, gate, down); 2: not gated", 3)
    vocab: Num = figure("1", "rows of the embedding table")
    tied_embeddings: Flag = figure("1", "input and output embeddings are one table", False)
    # mixture of experts
    n_experts: Num = figure("1", "routed experts per MoE layer; 0: dense", 0)
    top_k: Num = figure("1", "routed experts per token", 0)
    d_expert: Num = figure("1", "inner width of a routed expert", 0)
    n_shared_experts: Num = figure("1", "experts that every token passes", 0)
    d_shared: Num = figure("1", "inner width of all shared experts together (null: n_shared_experts d_expert)")
    n_dense_layers: Num = figure("1", "layers with a dense FFN (null: all without experts, none with)")
    n_moe_layers: Num = figure("1", "layers with experts (null: n_layers - n_dense_layers, 0 if dense)")
    latent_ratio: Num = figure("1", "LatentMoE: experts live at width d_model / latent_ratio", 1)
    # multi-head latent attention
    q_lora_rank: Num = figure("1", "MLA: rank of the query projection; 0: projected directly", 0)
    kv_lora_rank: Num = figure("1", "MLA: rank of the key/value latent; 0: not MLA", 0)
    qk_nope_dim: Num = figure("1", "MLA: head width without rotary position", 0)
    qk_rope_dim: Num = figure("1", "MLA: head width with rotary position, shared by all heads", 0)
    # attention mix
    n_full_layers: Num = figure("1", "layers with full attention (null: what the other kinds leave)")
    n_window_layers: Num = figure("1", "layers with sliding-window or chunked-local attention", 0)
    window: Num = figure("tok", "tokens a window layer sees", 0)
    window_kv_heads: Num = figure("1", "key/value heads of window layers (null: n_kv_heads)")
    window_head_dim: Num = figure("1", "head width of window layers (null: head_dim)")
    window_v_head_dim: Num = figure(
        "1", "value head width of window layers (null: v_head_dim, or window_head_dim where it differs)"
    )
    n_linear_layers: Num = figure("1", "linear-attention or SSM layers", 0)
    state_bytes_per_layer: Num = figure("B", "state of one sequence in one linear layer", 0)
    linear_in_width: Num = figure("1", "columns of a linear layer's input projections", 0)
    linear_out_width: Num = figure("1", "rows of a linear layer's output projection", 0)
    sparse_top_k: Num = figure("tok", "tokens a sparse-attention layer reads; 0: all", 0)
    index_heads: Num = figure("1", "heads of the sparse-attention indexer", 0)
    index_dim: Num = figure("1", "head width of the indexer, and its key per token", 0)
    n_index_layers: Num = figure("1", "layers with an indexer of their own (null: all full layers if any)")
    attn_gate: Flag = figure("1", "attention output gate: the query projection is twice as wide", False)
    k_equals_v: Flag = figure("1", "full layers keep one tensor for keys and values", False)
    extra_params: Num = figure(
        "1",
        "parameters that no formula covers: biases, small mixers; two norms per layer and a last one are counted",
        0,
    )
    max_context: Num = figure("tok", "longest context its makers publish")
    # drafting: speculative decoding, multi-token prediction
    n_draft: Num = figure("tok", "drafted tokens per step; 0: none", 0)
    acceptance: Num = figure("1", "probability that a drafted token is accepted", 0)
    draft_cost: Num = figure("1", "time of drafting one token, as a share of an undrafted step", 0)


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """One accelerator as its vendor sells it: dense rates, per package, one direction, SI units."""

    fp32_flops: Num = figure("flop/s", "dense fp32 rate")
    bf16_flops: Num = figure("flop/s", "dense bf16 (or fp16) tensor rate")
    fp8_flops: Num = figure("flop/s", "dense fp8 tensor rate")
    int8_flops: Num = figure("flop/s", "dense int8 tensor rate")
    fp4_flops: Num = figure("flop/s", "dense fp4 tensor rate")
    hbm_bytes: Num = figure("B", "capacity of the main memory: usable where known, else nominal")
    hbm_bytes_per_s: Num = figure("B/s", "bandwidth of the main memory")
    sram_bytes: Num = figure("B", "on-chip memory that weights can live in")
    sram_bytes_per_s: Num = figure("B/s", "its bandwidth")
    host_bytes: Num = figure("B", "host memory per GPU")
    host_bytes_per_s: Num = figure("B/s", "its bandwidth")
    nvme_bytes: Num = figure("B", "flash storage per GPU")
    nvme_bytes_per_s: Num = figure("B/s", "its read bandwidth")
    remote_bytes: Num = figure("B", "memory of a store behind the scale-out network, per GPU")
    remote_bytes_per_s: Num = figure("B/s", "its read bandwidth per GPU (null: that of the network)")
    n_sm: Num = figure("1", "processors that tiles are dealt to; null switches waves off")
    domain: Num = figure("1", "GPUs in the scale-up domain", 1)
    link_bytes_per_s: Num = figure("B/s", "scale-up link per GPU and direction; null: the host link")
    host_link_bytes_per_s: Num = figure("B/s", "link to the host per direction")
    scaleout_bytes_per_s: Num = figure("B/s", "scale-out network per GPU and direction")
    link_latency_s: Num = figure("s", "latency of one scale-up hop")
    scaleout_latency_s: Num = figure("s", "latency of one scale-out hop")
    in_network_reduce: Flag = figure("1", "the switches reduce (NVLS, SHARP)", False)
    watts: Num = figure("W", "power per GPU")
    usd_per_hour: Num = figure("USD/h", "price per GPU-hour, high published figure")


@dataclass(frozen=True, kw_only=True)
class Precision:
    """Which format holds what. Names are those of `FORMAT_BITS`."""

    weights: Name = figure("format", "weights of all GEMMs", "bf16")
    weights_attn: Name = figure("format", "weights of attention GEMMs (null: as weights)")
    weights_ffn: Name = figure("format", "weights of FFN and expert GEMMs (null: as weights)")
    activations: Name = figure("format", "inputs of GEMMs", "bf16")
    kv: Name = figure("format", "key/value cache", "bf16")
    output: Name = figure("format", "outputs of GEMMs", "bf16")
    dispatch: Name = figure("format", "tokens sent to experts (null: as activations)")
    combine: Name = figure("format", "expert outputs sent back", "bf16")
    head: Name = figure("format", "embedding, LM head and router", "bf16")
    quantized_fraction: Num = figure("1", "share of the weights that really is narrow; the rest is bf16", 1)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Layout:
    """How the work is cut: attention over tpa x kvp x dpa GPUs, the FFN over tpf x ep of the same, pp stages."""

    tpa: Num = figure("1", "attention: GPUs that share the heads", 1)
    kvp: Num = figure("1", "attention: GPUs that share the KV sequence (Helix)", 1)
    dpa: Num = figure("1", "attention: groups that share the requests", 1)
    tpf: Num = figure("1", "FFN: GPUs that share the inner width (null: tpa kvp dpa / ep)")
    ep: Num = figure("1", "FFN: groups that share the experts (null: 1)")
    pp: Num = figure("1", "pipeline stages", 1)
    wo_shard: Name = figure("n|tpa", "output projection cut over tpa x kvp (n) or tpa alone", "n")
    ffn_tied: Flag = figure("1", "Medha: the FFN is cut over tpa and repeated on the kvp ranks", False)
    overlap: Num = figure("1", "share of communication hidden behind the layer's work", 0)
    hop_b: Flag = figure("1", "Helix HOP-B: the all-to-all of one request hides behind the next", False)
    two_batch: Flag = figure("1", "two-batch overlap: dispatch and combine hide behind the other half", False)
    redundant_slots: Num = figure("1", "spare expert copies per GPU and layer", 0)
    balanced: Flag = figure("1", "expert load balancing is on", True)
    prefill_chunk: Num = figure("tok", "tokens of a prefill chunk (null: the whole prompt at once)")
    dynamic_chunks: Flag = figure("1", "chunks of equal time instead of equal length", False)
    microbatches: Num = figure("1", "microbatches in flight in the pipeline (null: min(pp, batch))")


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What is asked of the service."""

    isl: Num = figure("tok", "prompt tokens", 1024)
    osl: Num = figure("tok", "generated tokens", 1024)
    context: Num = figure("tok", "fixed context: of the decode step, the longest, and the prompt (null: isl, osl)")
    batch: Num = figure("1", "requests that decode at a time per replica; max: as many as fit and keep the limits", 64)
    prefix_hit: Num = figure("1", "share of the prompt found in the prefix cache", 0)
    routing_skew: Num = figure("1", "Zipf exponent of expert popularity; 0: uniform", 0)
    ttft_max_s: Num = figure("s", "longest time to the first token that still counts (null: any)")
    tpot_max_s: Num = figure("s", "longest time per output token that still counts (null: any)")


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Context:
    """The lengths of one load: what the context axis runs over."""

    decode: Num = figure("tok", "context of an average decode step: isl + osl / 2, or the fixed context")
    longest: Num = figure("tok", "longest context of a request: isl + osl, or the fixed context")
    prompt: Num = figure("tok", "prompt tokens: isl, or the fixed context")
    generated: Num = figure("tok", "generated tokens: osl")
    prefix_hit: Num = figure("1", "share of the prompt found in the prefix cache")
    ttft_max_s: Num = figure("s", "longest time to the first token that still counts; infinite: any")
    tpot_max_s: Num = figure("s", "longest time per output token that still counts; infinite: any")
    mixed: Num = figure(
        "1", "aggregated serving: share of the prefill work that stands between decode steps; 0: others prefill"
    )


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Tokens:
    """How many tokens the busiest GPU works on, per part of a layer, in one step of one microbatch."""

    total: Num  # of the replica: what the experts see
    requests: Num  # of the attention group
    project: Num  # QKV, MLA projections, indexer
    attend: Num  # attention, output projection: all tokens of the attention group
    ffn: Num  # dense FFN, shared experts
    owned: Num  # router, LatentMoE projections; what a GPU dispatches
    head: Num  # LM head


@dataclass(frozen=True, kw_only=True)
class Kinds:
    """What occurs in a set of points: the code for the rest is left out. All true is always right, only slower."""

    gqa: bool = True  # full attention with key and value heads
    mla: bool = True
    window: bool = True
    linear: bool = True
    sparse: bool = True
    dense: bool = True
    moe: bool = True
    shared: bool = True
    latent: bool = True
    grouped: bool = True  # dpa > 1 occurs: dispatch and combine, gathers and scatters
    helix: bool = True  # kvp > 1 occurs
    drafting: bool = True
    overlap: bool = True
    hop_b: bool = True
    two_batch: bool = True
    skewed: bool = True
    elementwise: bool = True  # traffic of norms, residuals and rotary is priced
    chunked: bool = True  # prefill in more than one chunk occurs
    # memory in several tiers: which class of bytes asks which tier, in order (`sweep.tiers`); empty: one tier
    tiers: tuple[tuple[int, int], ...] = ()
    reload: bool = True  # with tiers: prefixes come back from one of them
    aggregated: bool = True  # replicas that prefill between decode steps occur
    paced: bool = True  # a limit of the time per output token occurs
    causes: bool = True  # times are asked for by cause; otherwise all of a time counts as latency


def names(record: type) -> tuple[str, ...]:
    """Field names of a record, in order."""
    return tuple(f.name for f in dataclasses.fields(record))


RECORDS: dict[str, type] = {
    "model": Model,
    "hardware": Hardware,
    "precision": Precision,
    "layout": Layout,
    "workload": Workload,
}
