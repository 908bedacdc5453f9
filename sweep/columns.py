"""The columns of a table of points: names, units, meaning. The one place that says what is counted."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sweep.economics import ABOUT
from sweep.point import RECORDS

SCHEMA_VERSION = 2  # 2: factors of the bands of throughput and first token


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
    _c("rate_band_low", "1", "tok_s_gpu times this: 1 in 10 measured ones is below", "host"),
    _c("rate_band_high", "1", "tok_s_gpu times this: 1 in 10 measured ones is above", "host"),
    _c("ttft_band_low", "1", "(ttft_s + ttft_band_add_s) times this: 1 in 10 measured ones is below", "host"),
    _c("ttft_band_high", "1", "(ttft_s + ttft_band_add_s) times this: 1 in 10 measured ones is above", "host"),
    _c(
        "ttft_band_add_s",
        "s",
        "what frontend and launches add to a first token, from the fit; not in ttft_s",
        "host",
    ),
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


@dataclass(frozen=True)
class Banded:
    """A column with an 80 % band, and what carries it over from the factors of a row."""

    of: str
    low: str
    high: str
    by: str  # time, speed (its inverse), rate, cost (its inverse), first, request, prefill: see `ends`
    doc: str


_BY = {
    "time": "the error of tpot_s",
    "speed": "the error of tpot_s",
    "rate": "the error of tok_s_gpu",
    "cost": "the error of tok_s_gpu alone: not what the price per GPU-hour, the power or its draw are off by",
    "first": "the error of a first token that nobody queues before, its frontend included",
    "request": "the errors of ttft_s and tpot_s, taken as independent",
    "prefill": "the error of a prefill pool's rate, what batches of prompts gain included",
}
_WITH_BANDS = {
    "time": ("tpot_s",),
    "speed": ("tok_s_user", "mfu", "mbu"),
    "rate": ("tok_s_gpu", "total_tok_s_gpu", "requests_per_s", "tok_s_mw", "tok_s_mw_drawn", "tok_per_usd"),
    "cost": (
        *("usd_per_mtok", "usd_per_mtok_total", "usd_per_mtok_input", "usd_per_mtok_output", "usd_per_request"),
        *("joule_per_tok", "joule_per_tok_drawn"),
    ),
    "first": ("ttft_s",),
    "request": ("request_s",),
    "prefill": ("prefill_req_per_s",),
}


def _banded(name: str, by: str) -> Banded:
    """`tpot_s`: `tpot_low_s`, `tpot_high_s`; `tok_s_gpu`: `tok_s_gpu_low`, `tok_s_gpu_high`."""
    seconds = by in ("time", "first", "request")
    low, high = (f"{name[:-2]}_{end}_s" if seconds else f"{name}_{end}" for end in ("low", "high"))
    return Banded(of=name, low=low, high=high, by=by, doc=_BY[by])


CORE = ("accuracy", "tok_s_gpu", "tok_s_user", "ttft_s", "tpot_s", "held_bytes")  # of `store.columns=core`
ALWAYS = ("feasible", "reasons")  # stored whatever was asked for
CAUSES = {"math_s", "weight_read_s", "kv_read_s", "activation_s", "comm_s", "latency_s", "bound", "mfu", "mbu"} | {
    "intensity"
}  # need the time by cause

# what a scan adds beside a column: both ends of its 80 % band
BANDS: dict[str, Banded] = {n: _banded(n, by) for by, names in _WITH_BANDS.items() for n in names}
# stored, constant over a row of the grid
FACTORS = (
    *("band_low", "band_high", "rate_band_low", "rate_band_high"),
    *("ttft_band_low", "ttft_band_high", "ttft_band_add_s", "prefill_band_low", "prefill_band_high"),
)
NEEDS: dict[str, tuple[str, ...]] = {  # columns that both ends follow from, beside the value itself
    **{"time": FACTORS[:2], "speed": FACTORS[:2], "rate": FACTORS[2:4], "cost": FACTORS[2:4], "first": FACTORS[4:7]},
    **{"request": (*FACTORS[:2], *FACTORS[4:7], "ttft_s"), "prefill": FACTORS[7:]},
}


def _below(difference: float) -> float:
    return min(difference, 0.0)


def ends(by: str, value: Any, get: Callable[[str], Any], below: Callable[[Any], Any] = _below) -> tuple[Any, Any]:
    """Both ends of the 80 % band of a value, which lies between them.

        time, rate, prefill: x f    speed, cost: x / f    first: (x + a) f, but x itself is inside; a the frontend
        request: x - sqrt(d1^2 + d2^2), d1 what the first token falls short by at its end, d2 the others at theirs

    The two errors of a request are taken as independent: on held-out rows their correlation is -0.15 to 0.12, and the
    root holds 76 to 85 % of measured requests (curves, models, chips left out) where the plain sum holds 79 to 88 %.

    Args:
        by: how the band is carried over, see `BANDS`.
        value: the best value, a number or a column.
        get: the columns of `NEEDS`.
        below: the smaller of a difference and 0.
    """
    if by in ("first", "request"):
        first = value if by == "first" else get("ttft_s")
        added = first + get("ttft_band_add_s")
        low, high = below(added * get("ttft_band_low") - first), -below(first - added * get("ttft_band_high"))
        if by == "first":
            return first + low, first + high
        rest = value - first
        less, more = rest * (1.0 - get("band_low")), rest * (get("band_high") - 1.0)
        return value - (low**2 + less**2) ** 0.5, value + (high**2 + more**2) ** 0.5
    low, high = (get(name) for name in NEEDS[by])
    return (value / high, value / low) if by in ("speed", "cost") else (value * low, value * high)


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
    _c("prefill_band_low", "1", "prefill_req_per_s times this: 1 in 10 measured pools is below", "host"),
    _c("prefill_band_high", "1", "prefill_req_per_s times this: 1 in 10 measured pools is above", "host"),
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
_UNITS = {c.name: c.unit for c in (*DERIVED_COLUMNS, *ALL_COLUMNS, *MATCH_COLUMNS)}
DERIVED: tuple[Column, ...] = tuple(
    _c(name, _UNITS[b.of], f"{end} end of the 80 % band of {b.of}, by {b.doc}", "derived")
    for b in BANDS.values()
    for end, name in (("low", b.low), ("high", b.high))
)
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
