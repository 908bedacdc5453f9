"""How far predictions lie from measurements: scores, groups, doubts about rows.

An error is predicted over measured, less 1. Scores are median, mean and 90th percentile of its absolute value, and
the median of the error itself (bias): above 0 the model is too slow (TPOT) or too fast (throughput).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from sweep.calibration.rows import Measured, Row, number, text, whole

NUMBERS = (
    *("tpot_s", "tpot_low_s", "tpot_high_s", "ttft_s", "tok_s_gpu", "floor_tpot_s"),
    *("ttft_low_s", "ttft_high_s", "tok_s_gpu_low", "tok_s_gpu_high"),
)
YOUNG_SGLANG_MI355X = "2026-01-20"


@dataclass(frozen=True, kw_only=True)
class Score:
    """Errors of one set of rows."""

    n: int
    median: float
    mean: float
    p90: float
    bias: float
    within_25: float


def score(error: np.ndarray) -> Score:
    """Errors (predicted / measured - 1) in numbers; NaN where there are none."""
    e = error[np.isfinite(error)]
    if len(e) == 0:
        nan = float("nan")
        return Score(n=0, median=nan, mean=nan, p90=nan, bias=nan, within_25=nan)
    a = np.abs(e)
    return Score(
        n=len(e),
        median=float(np.median(a)),
        mean=float(a.mean()),
        p90=float(np.quantile(a, 0.9)),
        bias=float(np.median(e)),
        within_25=float((a <= 0.25).mean()),
    )


def ranks(x: np.ndarray) -> np.ndarray:
    """Ranks from 0, equal values sharing their mean rank."""
    _, inverse, count = np.unique(x, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    result: np.ndarray = ((last - count + last - 1) / 2.0)[inverse]
    return result


def rank_correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Spearman's rank correlation; NaN where one of both does not vary."""
    x, y = ranks(a), ranks(b)
    if len(x) < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return float("nan")
    return float(np.corrcoef(x, y)[0, 1])


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """Rank correlation of predicted and measured within groups."""

    groups: int
    median: float
    weighted: float  # mean over rows


def ranking(groups: Sequence[Any], measured: np.ndarray, predicted: np.ndarray, least: int = 5) -> Ranking:
    """Rank correlation within groups of at least `least` rows."""
    members: dict[Any, list[int]] = {}
    for i, g in enumerate(groups):
        if np.isfinite(measured[i]) and np.isfinite(predicted[i]):
            members.setdefault(g, []).append(i)
    found = [(len(m), rank_correlation(measured[m], predicted[m])) for m in members.values() if len(m) >= least]
    found = [(n, r) for n, r in found if np.isfinite(r)]
    if not found:
        return Ranking(groups=0, median=float("nan"), weighted=float("nan"))
    n, r = np.array(found).T
    return Ranking(groups=len(found), median=float(np.median(r)), weighted=float((n * r).sum() / n.sum()))


# --- what a row says of itself -----------------------------------------------------------------------------------


def tpot_of(row: Row) -> float:
    """Measured time per output token [s], NaN where there is none."""
    tpot = number(row, "tpot_ms")
    if tpot is None:
        speed = number(row, "interactivity_tok_s_user")
        tpot = 1e3 / speed if speed else None
    return tpot / 1e3 if tpot and tpot > 0 else float("nan")


def ttft_of(row: Row) -> float:
    """Measured time to the first token [s], NaN where there is none."""
    ttft = number(row, "ttft_ms")
    return ttft / 1e3 if ttft and ttft > 0 else float("nan")


def rate_of(row: Row) -> float:
    """Measured output tokens per second and GPU, all GPUs counted; NaN where the row counts something else."""
    kind = text(row, "tput_kind").lower()
    if kind and not kind.startswith("output"):
        return float("nan")
    rate = number(row, "throughput_tok_s_gpu")
    return rate if rate and rate > 0 else float("nan")


def complete(row: Row) -> bool:
    """Whether a row states all that a point needs: model, machine, GPUs, formats, lengths, load and layout."""
    named = all(text(row, key) for key in ("model", "hardware", "precision"))
    counted = all(number(row, key) for key in ("isl", "osl", "concurrency_or_batch"))
    gpus = whole(row, "n_gpus") is not None
    layout = any(whole(row, key) for key in ("tp", "ep", "dp")) or bool(text(row, "decode_layout"))
    return named and counted and gpus and (layout or whole(row, "n_gpus") == 1)


def doubt(row: Row, point: Measured) -> str | None:
    """Why a row is left out of the fit and scored apart: what its source got wrong or what was not mature.

    Rules about sources and their dates, none about a value that the model misses.
    """
    source, notes = text(row, "source_id"), text(row, "notes").lower()
    gpt_oss = point.model == "gpt_oss_120b"
    if gpt_oss and point.hardware.startswith("h100") and point.framework == "vllm" and point.concurrency >= 512:
        return "running requests capped below the concurrency stated"
    if gpt_oss and source == "inferencex_third_party" and point.decode.gpus >= 4:
        return "third-party run, 2 to 3 times the official time per token"
    if "nv:" in notes and "1.3.0rc" in notes and number(row, "isl") == 4000 and point.model.startswith("deepseek"):
        return "time per token does not depend on the load"
    if point.hardware == "mi355x" and point.framework == "sglang" and "" < point.date < YOUNG_SGLANG_MI355X:
        return "first software of the chip, twice the time per token of later releases"
    if "all requests issued at once" in notes or "burst" in notes:
        return "all requests at once: no steady state"
    return None


@dataclass(frozen=True, kw_only=True)
class Results:
    """Predictions of all rows of a file, in their order."""

    rows: list[Row]
    points: list[Measured | None]
    reasons: list[str]  # why a row has no point
    tpot_s: np.ndarray  # [rows], NaN where not answered; so are all of these
    tpot_low_s: np.ndarray
    tpot_high_s: np.ndarray
    ttft_s: np.ndarray
    tok_s_gpu: np.ndarray
    floor_s: np.ndarray
    batch: np.ndarray
    max_batch: np.ndarray
    ttft_low_s: np.ndarray
    ttft_high_s: np.ndarray
    tok_s_gpu_low: np.ndarray
    tok_s_gpu_high: np.ndarray

    @property
    def answered(self) -> np.ndarray:
        """Whether each row has a prediction."""
        return np.array([p is not None for p in self.points], dtype=bool)

    def measured(self, what: Callable[[Row], float]) -> np.ndarray:
        """A measured quantity of all rows."""
        return np.array([what(r) for r in self.rows], dtype=np.float64)

    def frame(self) -> pl.DataFrame:
        """`predictions.csv`: every input row, numbers empty where not answered."""
        ids = [text(r, "row_id") or str(i + 1) for i, r in enumerate(self.rows)]

        def values(x: np.ndarray) -> list[float | None]:
            return [None if not np.isfinite(v) else float(f"{v:.6g}") for v in x]

        return pl.DataFrame(
            {
                "row_id": ids,
                "answered": ["true" if a else "false" for a in self.answered],
                "reason": [r or None for r in self.reasons],
                "tpot_s": values(self.tpot_s),
                "tpot_low_s": values(self.tpot_low_s),
                "tpot_high_s": values(self.tpot_high_s),
                "ttft_s": values(self.ttft_s),
                "tok_s_gpu": values(self.tok_s_gpu),
                "floor_tpot_s": values(self.floor_s),
                "ttft_low_s": values(self.ttft_low_s),
                "ttft_high_s": values(self.ttft_high_s),
                "tok_s_gpu_low": values(self.tok_s_gpu_low),
                "tok_s_gpu_high": values(self.tok_s_gpu_high),
            },
            schema_overrides={"reason": pl.String, **dict.fromkeys(NUMBERS, pl.Float64)},
        )


def suspicion(row: Row, point: Measured, results: Results, i: int) -> str:
    """What is known to make a row hard to predict: a reason for its error, never for its prediction."""
    said = doubt(row, point)
    if said:
        return said
    ttft = ttft_of(row)
    if np.isfinite(ttft) and ttft > 10 and ttft > 3 * results.ttft_s[i]:
        return f"first token after {ttft:.0f} s: fewer requests run than the concurrency says"
    if point.drafted > 0:
        return f"drafts tokens; depth ({point.drafted:.0f} assumed) and acceptance are not published"
    if not point.labelled:
        return "does not say whether tokens are drafted"
    if results.max_batch[i] < 0.95 * point.concurrency / point.decode_workers:
        return "more requests than the cache holds"
    if point.disaggregated:
        return "disaggregated: the prefill pool's real rate is not known"
    if point.osl < 257 and point.concurrency > 16:
        return "short answers: prefill is most of the work"
    if point.decode.dpa > 1:
        return "DP attention: how long groups wait for each other is not known"
    return "no cause known: the software of this model on this chip"


def group_key(point: Measured) -> tuple[Any, ...]:
    """Model, machine and lengths: within them concurrency and layout vary."""
    return point.model, point.hardware, round(point.isl), round(point.osl)


def by(results: Results, key: Callable[[Row, Measured], str], error: np.ndarray, mask: np.ndarray) -> dict[str, Score]:
    """Scores per value of a key, most rows first."""
    members: dict[str, list[int]] = {}
    for i, (row, point) in enumerate(zip(results.rows, results.points, strict=True)):
        if point is not None and mask[i]:
            members.setdefault(key(row, point), []).append(i)
    found = {k: score(error[m]) for k, m in members.items()}
    return dict(sorted(((k, s) for k, s in found.items() if s.n), key=lambda item: -item[1].n))


def counts(values: Sequence[str]) -> dict[str, int]:
    """How often each value occurs, most often first."""
    found: dict[str, int] = {}
    for v in values:
        found[v] = found.get(v, 0) + 1
    return dict(sorted(found.items(), key=lambda item: -item[1]))
