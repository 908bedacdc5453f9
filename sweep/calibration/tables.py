"""Measured kernels as one table, whatever file they come from.

A table has one row per timing: the columns of `COLUMNS`, empty where a kind of kernel has no such size. A file
`kernels*.csv` holds them as they are; the tables of aiconfigurator-core (Apache-2.0) are translated.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import polars as pl

from sweep.errors import BadInput, closest
from sweep.point import FORMAT_BITS

KINDS = ("gemm", "attention", "mla", "prefill", "experts", "reduce", "gather", "exchange", "dispatch", "combine")
COLUMNS: dict[str, tuple[type[pl.DataType] | pl.DataType, str]] = {
    "kind": (pl.String(), "gemm, attention (decode), mla (decode), prefill, experts, reduce, gather, exchange, ..."),
    "hardware": (pl.String(), "name of the machine's entry"),
    "library": (pl.String(), "what ran the kernel"),
    "weights": (pl.String(), "format of the weights; of the cache for attention; of the message for dispatch"),
    "activations": (pl.String(), "format of the inputs"),
    "m": (pl.Float64(), "gemm: tokens; attention, mla: requests; prefill: prompts; experts: tokens of the step"),
    "n": (pl.Float64(), "gemm: outputs; attention, mla, prefill: keys; experts: inner width of an expert"),
    "k": (pl.Float64(), "gemm: inputs; attention: head width; experts: width of the residual stream"),
    "heads": (pl.Float64(), "attention: query heads; experts: experts"),
    "kv_heads": (pl.Float64(), "attention: key/value heads; experts, dispatch: experts per token"),
    "tp": (pl.Float64(), "experts: GPUs that share the inner width"),
    "ep": (pl.Float64(), "experts: GPUs that share the experts; collectives: members of the group"),
    "matrices": (pl.Float64(), "experts: 3 gated, 2 not"),
    "seconds": (pl.Float64(), "measured time"),
}
NEEDS = {
    "gemm": ("m", "n", "k"),
    "attention": ("m", "n", "k", "heads", "kv_heads"),
    "mla": ("m", "n", "heads"),
    "prefill": ("m", "n", "k", "heads", "kv_heads"),
    "experts": ("m", "n", "k", "heads", "kv_heads", "tp", "ep", "matrices"),
    "reduce": ("m", "ep"),
    "gather": ("m", "ep"),
    "exchange": ("m", "ep"),
    "dispatch": ("m", "k", "kv_heads", "ep"),
    "combine": ("m", "k", "kv_heads", "ep"),
}

# Machines, formats and libraries of aiconfigurator-core's tables under the catalogue's names.
SYSTEMS = {
    "a100_sxm": "a100_sxm_80gb",
    "h100_sxm": "h100_sxm_80gb",
    "h200_sxm": "h200_sxm_141gb",
    "b200_sxm": "b200_sxm_180gb",
    "b300_sxm": "b300_sxm_288gb",
    "gb200": "gb200_nvl72",
    "gb300": "gb300_nvl72",
    "l40s": "l40s",
    "rtx_pro_6000_server": "rtx_pro_6000_blackwell_server",
    "b60": "arc_pro_b60",
}
FORMATS = {  # as written: (weights, activations)
    "bfloat16": ("bf16", "bf16"),
    "fp8": ("fp8", "fp8"),
    "fp8_block": ("fp8_block", "fp8_block"),
    "nvfp4": ("nvfp4", "nvfp4"),
    "sq": ("int8", "int8"),
    "int8_wo": ("int8", "bf16"),
    "int4_wo": ("int4", "bf16"),
    "w4a16_mxfp4": ("mxfp4", "bf16"),
    "w4a8_mxfp4_mxfp8": ("mxfp4", "mxfp8"),
}
MLA_LATENT, MLA_ROPE = 512.0, 64.0  # of the tables: DeepSeek's


def read(folder: Path) -> pl.DataFrame:
    """All timings of a folder: `kernels*.csv`, and aiconfigurator's tables in it or in `measured_ops/`.

    Raises: `BadInput` where the folder holds none, or a file lacks a column.
    """
    if not folder.is_dir():
        raise BadInput(f"data={folder}: no such folder")
    found = [own(path) for path in sorted(folder.glob("kernels*.csv"))]
    for pattern, translate in TABLES:
        for where in (folder, folder / "measured_ops"):
            found += [translate(_csv(path)) for path in sorted(where.glob(pattern))]
    if not found:
        raise BadInput(
            f"data={folder}: holds neither kernels*.csv nor operator tables (measured_ops/gemm_sample_*.csv)"
        )
    return pl.concat([_shaped(f) for f in found])


def own(path: Path) -> pl.DataFrame:
    """A file in the table's own columns, checked."""
    frame = _csv(path)
    for name in ("kind", "hardware", "seconds"):
        if name not in frame.columns:
            raise BadInput(f"{path}: no column {name}; columns are {', '.join(COLUMNS)}")
    for name in frame.columns:
        if name not in COLUMNS:
            raise BadInput(f"{path}: no such column {name}; {closest(name, COLUMNS)}")
    for kind in frame["kind"].unique().to_list():
        if kind not in KINDS:
            raise BadInput(f"{path}: kind={kind}: {closest(str(kind), KINDS)}")
        for name in NEEDS[kind]:
            rows = frame.filter(pl.col("kind") == kind)
            if name not in frame.columns or rows[name].null_count():
                raise BadInput(f"{path}: kind={kind} needs {name}: {COLUMNS[name][1]}")
    frame = frame.with_columns(
        pl.lit(path.stem).alias("library") if "library" not in frame.columns else pl.col("library"),
        *(pl.lit("bf16").alias(c) for c in ("weights", "activations") if c not in frame.columns),
    ).with_columns(pl.col("weights", "activations").fill_null("bf16"))
    for name in ("weights", "activations"):
        for value in frame[name].unique().to_list():
            if value not in FORMAT_BITS:
                raise BadInput(f"{path}: {name}={value}: no such format; {closest(str(value), FORMAT_BITS)}")
    bad = frame.filter(~(pl.col("seconds").cast(pl.Float64, strict=False).fill_null(0.0) > 0))
    if bad.height:
        raise BadInput(f"{path}: {bad.height} rows without a positive time in seconds")
    return frame


def _csv(path: Path) -> pl.DataFrame:
    return pl.read_csv(path, infer_schema_length=None)


def _shaped(frame: pl.DataFrame) -> pl.DataFrame:
    """Exactly the table's columns, in order."""
    return frame.select(
        (pl.col(name) if name in frame.columns else pl.lit(None)).cast(dtype).alias(name)
        for name, (dtype, _) in COLUMNS.items()
    )


def _machine() -> pl.Expr:
    return pl.col("system").replace_strict(SYSTEMS).alias("hardware")


def _formats(column: str) -> tuple[pl.Expr, pl.Expr]:
    weights = {k: w for k, (w, _) in FORMATS.items()}
    inputs = {k: a for k, (_, a) in FORMATS.items()}
    return (
        pl.col(column).replace_strict(weights).alias("weights"),
        pl.col(column).replace_strict(inputs).alias("activations"),
    )


def gemms(t: pl.DataFrame) -> pl.DataFrame:
    """`gemm_sample_*.csv`: CUDA-graph timed; narrow formats include the quantization of their inputs."""
    return t.select(
        pl.lit("gemm").alias("kind"),
        _machine(),
        (pl.col("framework") + "/" + pl.col("kernel_source")).alias("library"),
        *_formats("gemm_dtype"),
        "m",
        "n",
        "k",
        seconds=pl.col("latency_ms") * 1e-3,
    )


def decode_attention(t: pl.DataFrame) -> pl.DataFrame:
    """`gen_attention_sample_*.csv`."""
    return _attention(t, "attention", "kv_cache_dtype", "kv_len")


def prefill_attention(t: pl.DataFrame) -> pl.DataFrame:
    """`context_attention_sample_*.csv`; the format is that of the math, which is the cache's where both are narrow."""
    return _attention(t.filter(pl.col("attn_dtype") == pl.col("kv_cache_dtype")), "prefill", "attn_dtype", "isl")


def _attention(t: pl.DataFrame, kind: str, narrow: str, length: str) -> pl.DataFrame:
    """Attention of heads, its format and length from the columns named."""
    return t.select(
        pl.lit(kind).alias("kind"),
        _machine(),
        (pl.col("framework") + "/" + pl.col("kernel_source")).alias("library"),
        _formats(narrow)[0],
        m=pl.col("batch_size"),
        n=pl.col(length),
        k=pl.col("head_dim"),
        heads=pl.col("num_heads"),
        kv_heads=pl.col("num_key_value_heads"),
        seconds=pl.col("latency_ms") * 1e-3,
    )


def mla(t: pl.DataFrame) -> pl.DataFrame:
    """`gen_mla_sample_*.csv`: absorbed decode."""
    return t.select(
        pl.lit("mla").alias("kind"),
        _machine(),
        pl.col("framework").alias("library"),
        _formats("kv_cache_dtype")[0],
        m=pl.col("batch_size"),
        n=pl.col("kv_len"),
        heads=pl.col("num_heads"),
        seconds=pl.col("latency_ms") * 1e-3,
    )


def experts(t: pl.DataFrame) -> pl.DataFrame:
    """`moe_sample_*.csv`: the whole block of experts. Balanced rows only.

    In the skewed ones rank 0 holds the most popular experts, so that their load is one of the sampling. Per-tensor fp8
    on Hopper reaches 0.15 of the bandwidth in all libraries, a path that nobody serves with (block scales are), and
    DeepGEMM's experts on Blackwell have a floor of 106 us where other libraries need 22 to 33: both out.
    """
    hopper = pl.col("system").is_in(["h100_sxm", "h200_sxm"])
    broken = (hopper & (pl.col("moe_dtype") == "fp8")) | (~hopper & (pl.col("kernel_source") == "deepgemm"))
    usable = t.filter((pl.col("distribution") == "balanced") & ~broken)
    return usable.select(
        pl.lit("experts").alias("kind"),
        _machine(),
        (pl.col("framework") + "/" + pl.col("kernel_source")).alias("library"),
        *_formats("moe_dtype"),
        m=pl.col("num_tokens"),
        n=pl.col("inter_size"),
        k=pl.col("hidden_size"),
        heads=pl.col("num_experts"),
        kv_heads=pl.col("topk"),
        tp=pl.col("moe_tp_size"),
        ep=pl.col("moe_ep_size"),
        matrices=pl.when(pl.col("kernel_source").str.contains("nongated")).then(2).otherwise(3),
        seconds=pl.col("latency_ms") * 1e-3,
    )


def collectives(t: pl.DataFrame) -> pl.DataFrame:
    """`collectives_sample_*.csv`: kernels in a CUDA graph, on machines with a scale-up link.

    NCCL's all-reduce is left out: no library uses it in decode where a kernel of its own works.
    """
    kinds = {"all_reduce": "reduce", "all_gather": "gather", "reduce_scatter": "gather", "alltoall": "exchange"}
    usable = t.filter(
        ~pl.col("system").is_in(["l40s", "rtx_pro_6000_server", "b60"])
        & ~pl.col("kernel_source").str.contains("eager")
        & ((pl.col("op_name") != "all_reduce") | (pl.col("table") == "custom_allreduce"))
    )
    return usable.select(
        pl.col("op_name").replace_strict(kinds).alias("kind"),
        _machine(),
        (pl.col("framework") + "/" + pl.col("kernel_source")).alias("library"),
        weights=pl.lit("bf16"),
        m=pl.col("message_bytes"),
        ep=pl.col("num_gpus"),
        seconds=pl.col("latency_us") * 1e-6,
    )


def deepep(t: pl.DataFrame) -> pl.DataFrame:
    """`deepep_ll_all.csv`: low-latency dispatch (fp8) and combine (bf16), eight GPUs per node, four on GB200 and GB300.

    H200's table of the older version is a copy of H100's and is left out.
    """
    per_node = pl.when(pl.col("system").is_in(["gb200", "gb300"])).then(4).otherwise(8)
    usable = t.filter((pl.col("system") != "h200_sxm") & (pl.col("num_topk") >= 4))
    return pl.concat(
        usable.select(
            pl.lit(kind).alias("kind"),
            _machine(),
            pl.lit("deepep_ll").alias("library"),
            weights=pl.lit(fmt),
            m=pl.col("num_token"),
            k=pl.col("hidden_size"),
            kv_heads=pl.col("num_topk"),
            ep=pl.col("node_num") * per_node,
            seconds=pl.col(f"{kind}_avg_t_us") * 1e-6,
        )
        for kind, fmt in (("dispatch", "fp8"), ("combine", "bf16"))
    )


def alltoall(t: pl.DataFrame) -> pl.DataFrame:
    """`gb200_trtllm_alltoall_all.csv`: TensorRT-LLM's dispatch and combine inside one NVL72 domain."""
    ops = {"alltoall_dispatch": "dispatch", "alltoall_combine": "combine"}
    return t.filter(pl.col("op_name").is_in(list(ops))).select(
        pl.col("op_name").replace_strict(ops).alias("kind"),
        pl.lit("gb200_nvl72").alias("hardware"),
        ("trtllm/" + pl.col("kernel_source")).alias("library"),
        weights=pl.when(pl.col("op_name") == "alltoall_combine")
        .then(pl.lit("bf16"))
        .otherwise(pl.col("moe_dtype").replace_strict({k: w for k, (w, _) in FORMATS.items()})),
        m=pl.col("num_tokens"),
        k=pl.col("hidden_size"),
        kv_heads=pl.col("topk"),
        ep=pl.col("moe_ep_size"),
        seconds=pl.col("latency") * 1e-3,
    )


TABLES: Sequence[tuple[str, Callable[[pl.DataFrame], pl.DataFrame]]] = (
    ("gemm_sample_*.csv", gemms),
    ("gen_attention_sample_*.csv", decode_attention),
    ("context_attention_sample_*.csv", prefill_attention),
    ("gen_mla_sample_*.csv", mla),
    ("moe_sample_*.csv", experts),
    ("collectives_sample_*.csv", collectives),
    ("deepep_ll_all.csv", deepep),
    ("gb200_trtllm_alltoall_all.csv", alltoall),
)


def held_out(frame: pl.DataFrame, share: int = 4) -> np.ndarray:
    """One row in `share` kept aside, by a hash of its sizes: the same shape is on the same side on every machine."""
    names = [c for c in COLUMNS if c not in ("hardware", "library", "seconds")]
    out = np.empty(frame.height, dtype=bool)
    for i, values in enumerate(frame.select(names).iter_rows()):
        text = "|".join("" if v is None else f"{v:g}" if isinstance(v, float) else str(v) for v in values)
        out[i] = int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) % share == 0
    return out
