"""What follows from stored columns: money, energy and power in other units, and what is counted in each.

These columns are computed when a table is read (`store.scan`), never stored: a sweep pays nothing for them, and SQL,
frontiers, the SLA command and charts find them like any other.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import polars as pl

# Draw of a GPU as shares of its board power. Measured on an H200 (700 W) at 137 to 300 W in decode, lowest at small
# batches, highest with the memory saturated (arXiv 2605.11999, abstract); what computes at its peak draws its board
# power, which is what board power says. Other machines: the same shares, which nobody has measured for most of them.
AWAKE = 137.0 / 700.0
MEMORY_BOUND = 300.0 / 700.0


def power_share(mfu: float, mbu: float) -> float:
    """Mean draw over board power: awake + (memory bound - awake) MBU + (1 - awake) MFU, at most 1.

    Linear between three published points: idle math and memory, saturated memory, saturated math.
    """
    return min(AWAKE + (MEMORY_BOUND - AWAKE) * mbu + (1.0 - AWAKE) * mfu, 1.0)


@dataclass(frozen=True)
class Derived:
    """A column that others imply."""

    name: str
    unit: str
    doc: str
    needs: tuple[str, ...]
    value: pl.Expr


def _c(name: str) -> pl.Expr:
    return pl.col(name).cast(pl.Float64)


_OUT = ((_c("request_s") - _c("ttft_s")) / _c("tpot_s") + 1.0).round()  # request = ttft + (osl - 1) tpot
_IN = _OUT * (_c("total_tok_s_gpu") / _c("tok_s_gpu") - 1.0)  # total = output (isl + osl) / osl
_LOAD = ("request_s", "ttft_s", "tpot_s", "total_tok_s_gpu", "tok_s_gpu")


def derived(have: Collection[str]) -> list[Derived]:
    """The columns that those of a table imply."""

    def get(name: str) -> pl.Expr:
        return _c(name).fill_null(0.0) if name in have else pl.lit(0.0)

    # of an aggregated replica the time, of two pools the GPUs; decode alone does not prefill
    own = pl.min_horizontal(get("prefill_s") / _c("tpot_s"), 1.0)
    share = pl.when(get("gpus") > 0).then(get("gpus_prefill") / get("gpus")).otherwise(own) if "gpus" in have else own
    decoding = AWAKE + (MEMORY_BOUND - AWAKE) * _c("mbu") + (1.0 - AWAKE) * _c("mfu")
    decoding = pl.min_horizontal(decoding, 1.0)
    mixed = own + (1.0 - own) * decoding  # prefill is bound by math
    if "gpus" in have:
        p = AWAKE + (1.0 - AWAKE) * get("prefill_busy")
        d = AWAKE + (decoding - AWAKE) * get("decode_busy")
        of_pools = (get("gpus_prefill") * p + get("gpus_decode") * d) / get("gpus")
        mixed = pl.when(get("gpus") > 0).then(of_pools).otherwise(mixed)
    usd_request = _c("usd_per_mtok") * _OUT / 1e6
    all_ = [
        Derived("gpus", "1", "GPUs of a replica, or of both pools", ("layout.gpus",), _c("layout.gpus")),
        Derived(
            "requests_per_s",
            "request/s",
            "requests that the service completes (decode alone: whose answers it generates)",
            (*_LOAD, "layout.gpus"),
            _c("tok_s_gpu") * _c("layout.gpus") / _OUT,
        ),
        Derived("tok_per_usd", "tok/USD", "output tokens per dollar", ("usd_per_mtok",), 1e6 / _c("usd_per_mtok")),
        Derived(
            "usd_per_mtok_total",
            "USD/Mtok",
            "price of a million tokens, input and output counted alike",
            ("usd_per_mtok", "tok_s_gpu", "total_tok_s_gpu"),
            _c("usd_per_mtok") * _c("tok_s_gpu") / _c("total_tok_s_gpu"),
        ),
        Derived(
            "usd_per_request",
            "USD/request",
            "price of a request, its prompt and its answer",
            ("usd_per_mtok", *_LOAD),
            usd_request,
        ),
        Derived(
            "input_share",
            "1",
            "share of the cost that prompts cause: of an aggregated replica's time, of two pools' GPUs; "
            "decode alone: 0",
            ("tpot_s",),
            share,
        ),
        Derived(
            "usd_per_mtok_input",
            "USD/Mtok",
            "input share of the cost, per million prompt tokens (cached ones counted); decode alone: none",
            ("usd_per_mtok", *_LOAD),
            pl.when(share > 0).then(usd_request * share / _IN * 1e6),
        ),
        Derived(
            "usd_per_mtok_output",
            "USD/Mtok",
            "output share of the cost, per million output tokens; decode alone: all of it",
            ("usd_per_mtok", "tpot_s"),
            _c("usd_per_mtok") * (1.0 - share),
        ),
        Derived(
            "power_share",
            "1",
            "mean draw of a GPU over its board power: 0.20 awake, 0.43 memory bound, 1 math bound (arXiv 2605.11999)",
            ("mfu", "mbu", "tpot_s"),
            mixed,
        ),
        Derived(
            "watts_drawn",
            "W",
            "mean draw of a GPU at that share of its board power",
            ("mfu", "mbu", "tpot_s", "joule_per_tok", "tok_s_gpu"),
            mixed * _c("joule_per_tok") * _c("tok_s_gpu"),
        ),
        Derived(
            "joule_per_tok_drawn",
            "J/tok",
            "energy of an output token at the mean draw (joule_per_tok: at board power)",
            ("mfu", "mbu", "tpot_s", "joule_per_tok"),
            mixed * _c("joule_per_tok"),
        ),
        Derived(
            "tok_s_mw_drawn",
            "tok/s/MW",
            "output tokens per second per megawatt drawn (tok_s_mw: per megawatt of board power)",
            ("mfu", "mbu", "tpot_s", "tok_s_mw"),
            _c("tok_s_mw") / mixed,
        ),
    ]
    return [d for d in all_ if d.name not in have and set(d.needs) <= set(have)]


ABOUT = {d.name: d for d in derived({"layout.gpus", "usd_per_mtok", "tok_s_mw", "joule_per_tok", "mfu", "mbu", *_LOAD})}


def with_derived(frame: pl.LazyFrame) -> pl.LazyFrame:
    """A table with the columns that its own imply; nothing is computed that is not asked for."""
    return frame.with_columns(
        d.value.fill_nan(None).alias(d.name) for d in derived(set(frame.collect_schema().names()))
    )
