"""Two pools that serve together: prefill replicas and decode replicas in whole numbers, matched in rate.

Each pool is a sweep of its own; of each only what can be part of a best match is kept: per machine, number of GPUs and
attention group the frontier in rate and latency (replicas of one size can replace each other). The match then pairs
them and finds the numbers of replicas. Nothing multiplies the two grids.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from sweep.columns import NEEDS
from sweep.errors import BadInput

PAIRS = 1 << 20  # of a prefill and a decode layout held at a time
FIRST_FACTORS = NEEDS["first"]
LAYOUT_KEYS = ("gpus", "tpa", "kvp", "dpa", "tpf", "ep", "pp", "prefill_chunk")


@dataclass(frozen=True)
class Counts:
    """Replicas of each pool, and what they give; arrays of one shape. No match: 0 replicas, 0 requests."""

    prefill: np.ndarray
    decode: np.ndarray
    requests_per_s: np.ndarray
    value: np.ndarray  # requests/s per unit of cost


def best_counts(
    prefill_per_s: Any,
    prefill_gpus: Any,
    decode_per_s: Any,
    decode_gpus: Any,
    *,
    gpus: int,
    prefill_cost: Any | None = None,
    decode_cost: Any | None = None,
) -> Counts:
    """Whole numbers of replicas that serve most requests per GPU, or per unit of another cost.

        maximise  min(n_p r_p, n_d r_d) / (n_p c_p + n_d c_d)    over n_p g_p + n_d g_d <= gpus,  n_p, n_d >= 1

    For a number of decode replicas the value rises with n_p until the pools match and falls after that: only the
    numbers next to n_d r_d / r_p are tried. Of equal values the smaller fleet is taken.

    Args:
        prefill_per_s, decode_per_s: requests/s of one replica.
        prefill_gpus, decode_gpus: GPUs of one replica.
        gpus: that both pools may have together.
        prefill_cost, decode_cost: of one replica, in dollars per hour or watts; as GPUs where not given.
    Source: Beyond the Buzz (arXiv 2506.05508), algorithm 2, which tries ratios of GPUs; exact here.
    """
    r_p, g_p, r_d, g_d = (
        np.asarray(x, dtype=np.float64) for x in (prefill_per_s, prefill_gpus, decode_per_s, decode_gpus)
    )
    c_p = g_p if prefill_cost is None else np.asarray(prefill_cost, dtype=np.float64)
    c_d = g_d if decode_cost is None else np.asarray(decode_cost, dtype=np.float64)
    shape = np.broadcast_shapes(r_p.shape, g_p.shape, r_d.shape, g_d.shape, c_p.shape, c_d.shape)
    n_p, n_d, rate, value, size = (np.zeros(shape) for _ in range(5))
    possible = (r_p > 0) & (r_d > 0) & np.isfinite(r_p) & np.isfinite(r_d) & np.isfinite(c_p + c_d)
    most = int(np.max((gpus - g_p) // g_d, initial=0, where=possible & (g_p + g_d <= gpus)))
    with np.errstate(all="ignore"):
        for d in range(1, most + 1):
            room = np.floor((gpus - d * g_d) / g_p)
            wanted = d * r_d / r_p
            for p in (np.floor(wanted), np.ceil(wanted)):
                p = np.clip(p, 1.0, np.maximum(room, 1.0))
                served = np.minimum(p * r_p, d * r_d)
                found = np.where(possible & (room >= 1.0), served / (p * c_p + d * c_d), 0.0)
                fleet = p * g_p + d * g_d
                better = found > value * (1.0 + 1e-12)
                better |= (found > 0) & (found >= value * (1.0 - 1e-12)) & (fleet < size)
                n_p, n_d, rate = np.where(better, p, n_p), np.where(better, d, n_d), np.where(better, served, rate)
                value, size = np.where(better, found, value), np.where(better, fleet, size)
    return Counts(prefill=n_p, decode=n_d, requests_per_s=rate, value=value)


# --- tables of pools ---------------------------------------------------------------------------------------------


def pairing_keys(prefill: pl.DataFrame, decode: pl.DataFrame, axes: Sequence[str]) -> list[str]:
    """Columns in which both pools must agree: model, formats, lengths; not machine, layout and batch."""
    groups = ("model", "precision", "efficiency", "workload", "serving")
    own = [k for k in axes if k.split(".")[0] in groups and k not in ("workload.batch", "workload.tpot_max_s")]
    return [k for k in own if k in prefill.columns and k in decode.columns]


def _per_gpu(frame: pl.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Dollars per hour and watts of a GPU, which the columns imply; NaN where nobody has published them."""
    at = {k: frame[k].cast(pl.Float64).fill_null(float("nan")).to_numpy() for k in _PRICED}
    usd = at["usd_per_mtok"] * at["tok_s_gpu"] * (3600.0 / 1e6)
    return usd, at["joule_per_tok"] * at["tok_s_gpu"]


_PRICED = ("usd_per_mtok", "tok_s_gpu", "joule_per_tok")


def output_tokens(frame: pl.DataFrame) -> np.ndarray:
    """Tokens per answer of each row: request_s = ttft_s + (osl - 1) tpot_s, solved for osl."""
    request, ttft, tpot = (frame[k].cast(pl.Float64).to_numpy() for k in ("request_s", "ttft_s", "tpot_s"))
    with np.errstate(all="ignore"):
        return np.asarray(np.round((request - ttft) / tpot + 1.0))


@dataclass(frozen=True)
class _Pool:
    """What the match needs of a pool's rows."""

    per_s: np.ndarray  # requests/s of a replica, no more than the link takes
    link_per_s: np.ndarray  # requests/s whose caches the replica's links move
    gpus: np.ndarray
    first_s: np.ndarray
    transfer_s: np.ndarray
    usd: np.ndarray  # per replica and hour
    watts: np.ndarray  # per replica

    @staticmethod
    def of(frame: pl.DataFrame, per_s: np.ndarray) -> _Pool:
        gpus = frame["layout.gpus"].cast(pl.Float64).to_numpy()
        transfer_s = frame["kv_transfer_s"].cast(pl.Float64).fill_null(float("nan")).to_numpy()
        usd, watts = _per_gpu(frame)
        with np.errstate(all="ignore"):
            link = frame["layout.dpa"].cast(pl.Float64).to_numpy() / transfer_s
        return _Pool(
            per_s=np.minimum(per_s, link),
            link_per_s=link,
            gpus=gpus,
            first_s=frame["ttft_s"].cast(pl.Float64).fill_null(float("nan")).to_numpy(),
            transfer_s=transfer_s,
            usd=usd * gpus,
            watts=watts * gpus,
        )

    def cost(self, per: str) -> np.ndarray:
        return {"gpu": self.gpus, "usd": self.usd, "watt": self.watts}[per]


def match(
    prefill: pl.DataFrame,
    decode: pl.DataFrame,
    *,
    gpus: int,
    keys: Sequence[str],
    per: str = "gpu",
    ttft_max_s: float = float("inf"),
) -> pl.DataFrame:
    """Every decode row with the prefill rows that are worth having, and the numbers of replicas of both.

    For each decode row the prefill pools are kept that no other beats in both first-token latency and output per cost
    (algorithm 1 keeps, for one cut of the latency, the one with the highest rate; this is that for all cuts at once).

    Args:
        prefill: rows of the prefill pool, with `prefill_req_per_s` and `kv_transfer_s`.
        decode: rows of the decode pool, with `kv_transfer_s`.
        gpus: that both pools may have together.
        keys: columns in which the two rows must agree.
        per: what the number of replicas gets most requests from: gpu, usd, watt.
        ttft_max_s: longest time to the first token, transfer of the cache included.
    Returns: the columns of the decode rows, rates and costs counted over all GPUs of both pools, and those of
        `sweep.columns.MATCH_COLUMNS`; ordered as the decode rows. Empty if nothing fits together.
    """
    if per not in ("gpu", "usd", "watt"):
        raise BadInput(f"serving.per={per}: allowed are gpu, usd, watt")
    taken: list[pl.DataFrame] = []
    for p_rows, d_rows in _groups(prefill, decode, keys):
        p, d = prefill[p_rows], decode[d_rows]
        osl = output_tokens(d)
        p_pool = _Pool.of(p, p["prefill_req_per_s"].cast(pl.Float64).fill_null(float("nan")).to_numpy())
        d_pool = _Pool.of(d, _decode_rate(d, osl))
        step = max(PAIRS // max(p.height, 1), 1)
        for start in range(0, d.height, step):
            at = slice(start, min(start + step, d.height))
            taken += _matched(p, p_pool, d[at], _cut(d_pool, at), osl[at], gpus, per, ttft_max_s)
    if not taken:
        return _matched_frame(prefill.clear(), decode.clear(), {k: np.zeros(0) for k in _COUNTED})
    return pl.concat(taken)


def _decode_rate(decode: pl.DataFrame, osl: np.ndarray) -> np.ndarray:
    """Requests/s of a decode replica: B / (osl TPOT)."""
    per_gpu = decode["tok_s_gpu"].cast(pl.Float64).to_numpy()
    with np.errstate(all="ignore"):
        return np.asarray(per_gpu * decode["layout.gpus"].cast(pl.Float64).to_numpy() / osl)


def _cut(pool: _Pool, at: slice) -> _Pool:
    return _Pool(**{k: v[at] for k, v in vars(pool).items()})


def _groups(prefill: pl.DataFrame, decode: pl.DataFrame, keys: Sequence[str]) -> Iterator[tuple[list[int], list[int]]]:
    """Row numbers of both pools that agree in the keys."""
    if not keys:
        yield list(range(prefill.height)), list(range(decode.height))
        return

    def rows(frame: pl.DataFrame) -> dict[tuple[Any, ...], list[int]]:
        found = frame.select(keys).with_row_index("|row").group_by(keys, maintain_order=True).agg("|row")
        return {tuple(r[:-1]): r[-1] for r in found.iter_rows()}

    by_key = rows(prefill)
    for key, d_rows in rows(decode).items():
        if key in by_key:
            yield by_key[key], d_rows


_COUNTED = (
    "n_prefill",
    "n_decode",
    "requests_per_s",
    "kv_transfer_s",
    "kv_link_share",
    "prefill_busy",
    "decode_busy",
    "osl",
    "usd",
    "watts",
)


def _matched(
    p: pl.DataFrame, pp: _Pool, d: pl.DataFrame, dp: _Pool, osl: np.ndarray, gpus: int, per: str, ttft_max_s: float
) -> list[pl.DataFrame]:
    """Rows of one block of pairs: prefill rows down, decode rows across."""
    columns = [x[:, None] for x in (pp.per_s, pp.gpus, pp.cost(per))]
    found = best_counts(
        columns[0], columns[1], dp.per_s[None], dp.gpus[None], gpus=gpus, prefill_cost=columns[2],
        decode_cost=dp.cost(per)[None],
    )  # fmt: skip
    transfer = np.maximum(pp.transfer_s[:, None], dp.transfer_s[None])
    ttft = pp.first_s[:, None] + transfer
    value = np.where((found.value > 0) & (ttft <= ttft_max_s), found.value, -np.inf)
    # per decode row: quickest first, of equally quick ones the best; then whatever beats all that are quicker
    order = np.lexsort((-value, ttft), axis=0)
    ranked = np.take_along_axis(value, order, axis=0)
    best = np.maximum.accumulate(ranked, axis=0)
    before = np.vstack([np.full((1, ranked.shape[1]), -np.inf), best[:-1]])
    keep = ranked > before
    j, i = np.nonzero(keep.T)  # by decode row
    i = order[i, j]
    if not len(i):
        return []
    rate = found.requests_per_s[i, j]
    n_p, n_d = found.prefill[i, j], found.decode[i, j]
    counted = {
        "n_prefill": n_p,
        "n_decode": n_d,
        "requests_per_s": rate,
        "kv_transfer_s": transfer[i, j],
        "kv_link_share": rate / np.minimum(n_p * pp.link_per_s[i], n_d * dp.link_per_s[j]),
        "prefill_busy": rate / (n_p * pp.per_s[i]),
        "decode_busy": rate / (n_d * dp.per_s[j]),
        "osl": osl[j],
        "usd": n_p * pp.usd[i] + n_d * dp.usd[j],
        "watts": n_p * pp.watts[i] + n_d * dp.watts[j],
    }
    return [_matched_frame(p[i.tolist()], d[j.tolist()], counted)]


def _factors(p: pl.DataFrame, d: pl.DataFrame) -> list[pl.Series]:
    """Factors of the bands of a service: its first token is the prefill pool's, its rate as doubtful as either pool's.

    The time per token stays the decode pool's.
    """
    own = [p[name] for name in FIRST_FACTORS if name in p.columns and name in d.columns]
    for name, of in (("rate_band_low", pl.min_horizontal), ("rate_band_high", pl.max_horizontal)):
        if name in p.columns and name in d.columns:
            own.append(pl.select(of(p[name], d[name]).alias(name)).to_series())
    return own


def _matched_frame(p: pl.DataFrame, d: pl.DataFrame, counted: dict[str, np.ndarray]) -> pl.DataFrame:
    """Decode rows with rates, latencies and costs of the whole service."""
    c = {k: pl.Series(k, v, dtype=pl.Float64) for k, v in counted.items()}
    g_p, g_d = c["n_prefill"] * p["layout.gpus"].cast(pl.Float64), c["n_decode"] * d["layout.gpus"].cast(pl.Float64)
    fleet = g_p + g_d
    out_s = c["requests_per_s"] * c["osl"]  # output tokens per second of the service
    both = d["total_tok_s_gpu"].cast(pl.Float64) / d["tok_s_gpu"].cast(pl.Float64)  # (isl + osl) / osl
    ttft = p["ttft_s"].cast(pl.Float64) + c["kv_transfer_s"]
    tpot = d["tpot_s"].cast(pl.Float64)
    new = {
        "tok_s_gpu": out_s / fleet,
        "total_tok_s_gpu": out_s / fleet * both,
        "ttft_s": ttft,
        "request_s": ttft + (c["osl"] - 1.0) * tpot,
        "tok_s_mw": 1e6 * out_s / c["watts"],
        "joule_per_tok": c["watts"] / out_s,
        "usd_per_mtok": c["usd"] * (1e6 / 3600.0) / out_s,
        "kv_transfer_s": c["kv_transfer_s"],
    }
    replaced = [
        pl.Series(name, values).fill_nan(None).cast(d.schema.get(name, pl.Float32)) for name, values in new.items()
    ]
    frame = d.with_columns([*replaced, *_factors(p, d)])
    layouts = [k for k in (f"layout.{key}" for key in LAYOUT_KEYS) if k in p.columns]
    own = [p[k].alias(f"prefill.{k}") for k in ("hardware", *layouts) if k in p.columns]
    counts = {
        "n_prefill": c["n_prefill"],
        "n_decode": c["n_decode"],
        "gpus_prefill": g_p,
        "gpus_decode": g_d,
        "gpus": fleet,
    }
    shares = {
        "prefill_per_decode": g_p / g_d,
        "requests_per_s": c["requests_per_s"],
        "kv_link_share": c["kv_link_share"],
        "prefill_busy": c["prefill_busy"],
        "decode_busy": c["decode_busy"],
    }
    return frame.with_columns(
        *own,
        *(pl.Series(k, v).cast(pl.Int32) for k, v in counts.items()),
        *(pl.Series(k, v).cast(pl.Float32) for k, v in shares.items()),
        p["point_id"].alias("prefill.point_id"),
        d["point_id"].alias("decode.point_id"),
    )
