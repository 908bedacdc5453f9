"""The columns of a table of points: names, units, meaning. The one place that says what is counted."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from sweep.economics import ABOUT
from sweep.point import RECORDS

SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column: what level of a point decides it, and how it is stored."""

    name: str
    unit: str
    doc: str
    level: str  # row | context | point | host
    dtype: str = "float32"


def _c(name: str, unit: str, doc: str, level: str, dtype: str = "float32") -> Column:
    return Column(name=name, unit=unit, doc=doc, level=level, dtype=dtype)


COLUMNS: tuple[Column, ...] = (
    _c("accuracy", "1", "proxy score of the accuracy axis; see the file's accuracy label", "row"),
    _c("accuracy_low", "1", "one sigma below", "row"),
    _c("accuracy_high", "1", "one sigma above", "row"),
    _c("loss", "nat/tok", "loss that the accuracy proxy predicts, formats included", "row"),
    _c("loss_sigma", "nat/tok", "its standard deviation within one training recipe", "row"),
    _c("tok_s_gpu", "tok/s/GPU", "output tokens per second over all GPUs of the replica", "point"),
    _c("tok_s_user", "tok/s/user", "output tokens per second of one request: 1 / tpot_s", "point"),
    _c("tpot_s", "s", "time per output token", "point"),
    _c(
        "ttft_s",
        "s",
        "time to the first token: prefill of one request per attention group, no queue; aggregated: with the decode "
        "steps between its chunks",
        "context",
    ),
    _c("request_s", "s", "time of a request: ttft_s + (osl - 1) tpot_s", "point"),
    _c(
        "total_tok_s_gpu",
        "tok/s/GPU",
        "input and output tokens per second per GPU: tok_s_gpu (isl + osl) / osl",
        "point",
    ),
    _c("tok_s_mw", "tok/s/MW", "output tokens per second per megawatt", "point"),
    _c("usd_per_mtok", "USD/Mtok", "price of a million output tokens at the machine's price per GPU-hour", "point"),
    _c("joule_per_tok", "J/tok", "energy of an output token at the machine's full power", "point"),
    _c("math_s", "s", "part of tpot_s that is arithmetic", "point"),
    _c("weight_read_s", "s", "part of tpot_s that reads weights, LM head and router included", "point"),
    _c("kv_read_s", "s", "part of tpot_s that reads the cache and state", "point"),
    _c("activation_s", "s", "part of tpot_s that reads and writes activations", "point"),
    _c("comm_s", "s", "part of tpot_s that moves bytes between GPUs, exposed", "point"),
    _c("latency_s", "s", "part of tpot_s that is floors, start-up, hops, host, waiting for microbatches", "point"),
    _c("bound", "label", "the largest of the parts of tpot_s", "point", "bound"),
    _c("mfu", "1", "FLOPs over peak of the weights' math format, mean GPU", "point"),
    _c("mbu", "1", "bytes over memory bandwidth, mean GPU", "point"),
    _c("intensity", "flop/B", "FLOPs over bytes of a step", "point"),
    _c("weights_bytes", "B", "weights on the fullest GPU", "row"),
    _c("kv_bytes", "B", "cache and state on the fullest GPU at the longest context", "point"),
    _c("activation_bytes", "B", "activations on the fullest GPU (a floor)", "point"),
    _c("held_bytes", "B", "weights, cache, activations and reserve on the fullest GPU", "point"),
    _c("max_batch", "request", "largest batch whose memory fits", "context"),
    _c("params_total", "1", "parameters, tied embeddings once, multi-token-prediction modules not", "row"),
    _c("params_active", "1", "parameters that a token multiplies, input embedding not", "row"),
    _c("kv_bytes_per_tok", "B/tok", "cache of one token over the whole model, the part that grows", "row"),
    _c("band_low", "1", "tpot_s times this: 1 in 10 measured ones is below (see `tpot_low_s` of a scan)", "host"),
    _c("band_high", "1", "tpot_s times this: 1 in 10 measured ones is above", "host"),
    _c("feasible", "bool", "nothing stands against the point", "host", "bool"),
    _c(
        "reasons",
        "bits",
        "what stands against it: capacity 1, not_divisible 2, over_domain 4, ttft_cut 8, "
        "unknown_figure 16, no_format 32, tpot_cut 64",
        "host",
        "int32",
    ),
    _c(
        "extrapolation",
        "1",
        "validity ranges left: of the accuracy proxy, and the model's published context",
        "host",
        "int32",
    ),
)
# what a scan adds: low and high end of the 80 % band of a column, from `band_low` and `band_high`
_BANDED = (
    ("tpot_s", "tpot_{}_s", "s"),
    ("tok_s_user", "tok_s_user_{}", "tok/s/user"),
    ("tok_s_gpu", "tok_s_gpu_{}", "tok/s/GPU"),
)
BANDS = {of: (stem.format("low"), stem.format("high")) for of, stem, _ in _BANDED}
DERIVED: tuple[Column, ...] = tuple(
    _c(stem.format(end), unit, f"{end} end of the 80 % band of {of}", "derived")
    for of, stem, unit in _BANDED
    for end in ("low", "high")
)


def band_of(value: Any, low: Any, high: Any, *, rate: bool) -> tuple[Any, Any]:
    """Both ends of the 80 % band of a time, or of a rate that goes with its inverse.

    Args:
        value: the best value, a number or a column.
        low, high: factors on the time per output token.
    """
    return (value / high, value / low) if rate else (value * low, value * high)


# of replicas that prefill and decode
AGGREGATED_COLUMNS: tuple[Column, ...] = (
    _c("prefill_s", "s", "part of tpot_s in which the replica prefills the prompts of other requests", "point"),
    _c(
        "concurrency",
        "request",
        "requests at the replica, decoding (the batch) and waiting for their first token",
        "point",
    ),
)
# of pools that prefill for each other
POOL_COLUMNS: tuple[Column, ...] = (
    _c("prefill_req_per_s", "request/s", "prompts that a replica prefills back to back", "context"),
    _c("kv_transfer_s", "s", "time in which an attention group moves the cache of one prompt", "context"),
)
ALL_COLUMNS = (*COLUMNS, *AGGREGATED_COLUMNS, *POOL_COLUMNS)
# of a service of two pools; the other columns of such a row count all GPUs of both, layout.* is the decode layout
MATCH_COLUMNS: tuple[Column, ...] = (
    _c("n_prefill", "1", "prefill replicas", "match", "int32"),
    _c("n_decode", "1", "decode replicas", "match", "int32"),
    _c("gpus_prefill", "1", "GPUs of the prefill pool", "match", "int32"),
    _c("gpus_decode", "1", "GPUs of the decode pool", "match", "int32"),
    _c("gpus", "1", "GPUs of both pools", "match", "int32"),
    _c("prefill_per_decode", "1", "GPUs of the prefill pool per GPU of the decode pool", "match"),
    _c("requests_per_s", "request/s", "requests that the slower pool completes", "match"),
    _c("kv_link_share", "1", "share of the links' bandwidth that moving caches takes, the busier pool", "match"),
    _c("prefill_busy", "1", "share of the prefill pool's rate that is asked for", "match"),
    _c("decode_busy", "1", "share of the decode pool's rate that is asked for", "match"),
)
# computed when a table is read
DERIVED_COLUMNS = tuple(_c(d.name, d.unit, d.doc, "derived", "float64") for d in ABOUT.values())
BY_NAME = {c.name: c for c in (*DERIVED_COLUMNS, *DERIVED, *ALL_COLUMNS, *MATCH_COLUMNS)}
# what is not there when a configuration itself is impossible
NUMBERS = tuple(c.name for c in ALL_COLUMNS if c.level in ("point", "context"))


def axis_metadata(key: str) -> dict[str, str]:
    """Unit and meaning of an axis column."""
    if key.startswith("prefill."):
        inner = axis_metadata(key.removeprefix("prefill."))
        return {"unit": inner["unit"], "doc": f"prefill pool: {inner['doc']}"}
    group, _, name = key.partition(".")
    if group in RECORDS and name:
        if key == "layout.gpus":
            return {"unit": "1", "doc": "GPUs of one replica: tpa kvp dpa pp"}
        for f in dataclasses.fields(RECORDS[group]):
            if f.name == name:
                return {"unit": f.metadata["unit"], "doc": f.metadata["doc"]}
    return {"unit": "label", "doc": f"which {key}"}


def unit_of(name: str) -> str:
    """Unit of any column."""
    return BY_NAME[name].unit if name in BY_NAME else axis_metadata(name)["unit"]
