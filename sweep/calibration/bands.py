"""The 80 % bands of a preset: made from residuals of rows that a fit did not see, and tested on such rows.

Three levels of what is known of a machine. `measured`: its chip generation was fitted; residuals of rows left out
with their model and with their chip, pooled, since what is asked for is a new model or a new chip more often than a
new curve of known ones. `inherited`: its generation was not fitted, others of its maker were; residuals of whole
generations left out, which took the constants of a relative. `unrelated`: nothing of its maker was fitted; residuals
of whole makers left out, which took the constants common to all chips.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from sweep.columns import ends

Bands = dict[str, dict[str, dict[str, tuple[float, float]]]]  # level, metric, kind: factors

SHARE = 0.8
LEAST_ROWS = 20  # of a kind with a band of its own
LEVELS = {"measured": ("model", "chip"), "inherited": ("generation",), "unrelated": ("vendor",)}
LEVEL_OF = {"curve": "measured", **{way: level for level, ways in LEVELS.items() for way in ways}}  # that a way tests
# A group of n rows counts n ** this: models and chips by the root of their rows (one model is half of all rows),
# generations and makers alike, since the next one is a draw of generations, not of rows.
COUNTS = {"measured": 0.5, "inherited": 0.0, "unrelated": 0.0}
# What has residuals of its own, split where they differ; behind each kind the one that stands in where it has few rows.
# Of an unmeasured machine no kind is narrower than that one, which more generations have rows of.
KINDS: dict[str, dict[str, str | None]] = {
    "tpot": {"undrafted": None, "drafted": "undrafted"},
    "tok_s_gpu": {"aggregated": None, "drafted": "aggregated", "disaggregated": "aggregated"},
    "ttft": {  # of a service, waiting included
        "light": None,
        "queued": None,
        "disaggregated_light": "light",
        "disaggregated_queued": "queued",
    },
    "first": {"aggregated": None, "disaggregated": "aggregated"},  # of `ttft_s` of a sweep and a frontend: nobody waits
    "prefill": {"disaggregated": None},  # prompts per second of a pool over those of one prompt at a time
}
METRICS = (*KINDS, "request")  # a request has no band of its own: it follows from those of ttft and tpot


def kind_of(metric: str, *, drafted: bool = False, disaggregated: bool = False, light: bool = True) -> str:
    """Which of a metric's kinds a point is of.

    Args:
        drafted: tokens are drafted.
        disaggregated: other GPUs prefill.
        light: so few requests in flight that none waits.
    """
    if metric == "tpot":
        return "drafted" if drafted else "undrafted"
    if metric == "tok_s_gpu":
        return "disaggregated" if disaggregated else "drafted" if drafted else "aggregated"
    if metric == "ttft":
        return ("disaggregated_" if disaggregated else "") + ("light" if light else "queued")
    return "disaggregated" if disaggregated else "aggregated"


@dataclass(frozen=True, kw_only=True)
class Residuals:
    """Logarithms of measured over predicted, of rows left out of the fit in several ways; NaN where not measured."""

    log: dict[str, dict[str, np.ndarray]]  # way, metric: [rows]
    first: dict[str, np.ndarray]  # way: share of the first token in a predicted request
    group: dict[str, np.ndarray]  # way: the group that each row was left out with
    row_id: np.ndarray
    drafted: np.ndarray
    disaggregated: np.ndarray
    light: np.ndarray

    def __len__(self) -> int:
        return len(self.drafted)

    @functools.cached_property
    def kinds(self) -> dict[str, np.ndarray]:
        """The kind of each row, by metric."""
        flags = [*zip(self.drafted, self.disaggregated, self.light, strict=True)]
        return {m: np.array([kind_of(m, drafted=d, disaggregated=p, light=w) for d, p, w in flags]) for m in KINDS}

    def frame(self) -> pl.DataFrame:
        """As a table: one line per row, residuals and shares in thousandths."""
        columns: dict[str, Any] = {"row_id": self.row_id.astype(str)}
        columns |= {f"left_out_{way}": self.group[way].astype(str) for way in self.log}
        for name in ("drafted", "disaggregated", "light"):
            columns[name] = getattr(self, name).astype(np.int8)
        for way, metrics in self.log.items():
            for metric, values in metrics.items():
                some = np.isfinite(values)
                columns[f"{way}_{metric}"] = [
                    round(1e3 * v) if ok else None for v, ok in zip(values, some, strict=True)
                ]
            columns[f"{way}_first_share"] = [round(1e3 * v) if np.isfinite(v) else None for v in self.first[way]]
        schema = {k: pl.Int32 for k in columns if k.partition("_")[0] in self.log}
        return pl.DataFrame(columns, schema_overrides=schema)

    @staticmethod
    def of(frame: pl.DataFrame) -> Residuals:
        """From the table that `frame` makes."""
        ways = [c.removeprefix("left_out_") for c in frame.columns if c.startswith("left_out_")]

        def column(name: str) -> np.ndarray:
            return frame[name].cast(pl.Float64).fill_null(float("nan")).to_numpy() / 1e3

        return Residuals(
            log={way: {m: column(f"{way}_{m}") for m in METRICS if f"{way}_{m}" in frame.columns} for way in ways},
            first={way: column(f"{way}_first_share") for way in ways},
            group={way: frame[f"left_out_{way}"].cast(pl.String).to_numpy().astype(str) for way in ways},
            row_id=frame["row_id"].cast(pl.String).to_numpy().astype(str),
            **{k: frame[k].to_numpy().astype(bool) for k in ("drafted", "disaggregated", "light")},
        )


def quantile_band(ratio: np.ndarray, weight: np.ndarray) -> tuple[float, float]:
    """Factors between which 80 % of the weight of logarithms of measured over predicted lies; 1 is always inside."""
    edges = [(1.0 - SHARE) / 2.0, (1.0 + SHARE) / 2.0]
    low, high = np.quantile(ratio, edges, weights=weight, method="inverted_cdf")
    return min(float(np.exp(low)), 1.0), max(float(np.exp(high)), 1.0)


def _wider(a: tuple[float, float], b: tuple[float, float]) -> tuple[float, float]:
    return min(a[0], b[0]), max(a[1], b[1])


def bands(r: Residuals, keep: np.ndarray | None = None) -> Bands:
    """The bands that residuals give.

    Args:
        r: residuals of rows left out; levels whose ways are not there are left out too.
        keep: which rows count; all if not given.
    """
    kept = np.ones(len(r), dtype=bool) if keep is None else keep
    kinds = r.kinds
    out: Bands = {}
    for level, ways in LEVELS.items():
        have = [way for way in ways if way in r.log]
        if level == "measured" and not have:  # rows of one model on one chip
            have = [way for way in r.log if LEVEL_OF[way] == level]
        for metric, names in KINDS.items():
            known = [way for way in have if metric in r.log[way]]
            if not known:
                continue
            values = np.concatenate([r.log[way][metric] for way in known])
            seen = np.isfinite(values) & np.tile(kept, len(known))
            kind = np.tile(kinds[metric], len(known))
            group = np.concatenate([np.char.add(f"{way}:", r.group[way]) for way in known])
            found: dict[str, tuple[float, float]] = {}
            for name, stand_in in names.items():
                own = seen & (kind == name)
                if own.sum() < LEAST_ROWS * len(known):
                    if stand_in in found:
                        found[name] = found[stand_in]
                        continue
                    own = seen
                if own.sum() >= LEAST_ROWS * len(known):
                    found[name] = quantile_band(values[own], _weight(group[own], level))
            if found:
                out.setdefault(level, {})[metric] = found
    return _stepped(out)


def _weight(group: np.ndarray, level: str) -> np.ndarray:
    """Weights of rows, by the size of their group."""
    _, index, count = np.unique(group, return_inverse=True, return_counts=True)
    weight: np.ndarray = count[index] ** (COUNTS[level] - 1.0)
    return weight


def _stepped(found: Bands) -> Bands:
    """Each level at least as wide as the one before, and of unmeasured machines each kind as the one it leans on."""
    before: dict[str, dict[str, tuple[float, float]]] = {}
    for level in LEVELS:
        if level not in found:
            continue
        here = {metric: dict(kinds) for metric, kinds in before.items()}
        for metric, kinds in found[level].items():
            for kind, edge in kinds.items():
                own = here.setdefault(metric, {})
                own[kind] = _wider(edge, own.get(kind, edge))
                stand_in = KINDS[metric][kind]
                if level != "measured" and stand_in in own:
                    own[kind] = _wider(own[kind], own[stand_in])
        found[level] = before = here
    return found


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """How often a band held on rows that it was not made from."""

    left_out: str  # the way
    level: str
    metric: str
    rows: int
    inside: float  # share of the rows
    inside_alike: float  # mean over groups


def coverage(r: Residuals) -> list[Coverage]:
    """Share of the held-out rows inside their band, the band of each group made from the other groups' residuals.

    So both halves are held out: the prediction, whose fit did not see the group, and the band. Of `curve` a group is a
    fifth of all curves, of the other ways one model, chip, generation or maker.
    """
    out = []
    kinds = r.kinds
    for way, metrics in r.log.items():
        group = r.group[way]
        low, high = ({metric: np.full(len(r), np.nan) for metric in METRICS} for _ in range(2))
        for name in np.unique(group):
            mine = group == name
            for metric, edges in bands(r, ~mine).get(LEVEL_OF[way], {}).items():
                for kind, (a, b) in edges.items():
                    at = mine & (kinds[metric] == kind)
                    low[metric][at], high[metric][at] = a, b
        low["request"], high["request"] = _requests(low, high, r.first[way])
        for metric, values in metrics.items():
            known = np.isfinite(values) & np.isfinite(low[metric])
            if not known.any():
                continue
            hit = (values >= np.log(low[metric])) & (values <= np.log(high[metric]))
            alike = [hit[known & (group == name)].mean() for name in np.unique(group[known])]
            out.append(
                Coverage(
                    left_out=way,
                    level=LEVEL_OF[way],
                    metric=metric,
                    rows=int(known.sum()),
                    inside=float(hit[known].mean()),
                    inside_alike=float(np.mean(alike)),
                )
            )
    return out


def _requests(
    low: Mapping[str, np.ndarray], high: Mapping[str, np.ndarray], share: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Factors of whole requests from those of their first token, of a share of the time, and of the rest."""
    factors = {
        "ttft_s": share,
        "ttft_band_add_s": 0.0,
        **{"ttft_band_low": low["ttft"], "ttft_band_high": high["ttft"]},
        **{"band_low": low["tpot"], "band_high": high["tpot"]},
    }
    found: tuple[np.ndarray, np.ndarray] = ends("request", 1.0, factors.__getitem__, lambda d: np.minimum(d, 0.0))
    return found


def summary(r: Residuals) -> pl.DataFrame:
    """The bands with what they rest on: level, metric, kind, ends, rows; then the held-out coverage by way."""
    made, lines = bands(r), []
    for level, metrics in made.items():
        way = next(w for w in (*LEVELS[level], *r.log) if w in r.log)
        for metric, kinds in metrics.items():
            own = np.isfinite(r.log[way][metric])
            for kind, (low, high) in kinds.items():
                rows = int((own & (r.kinds[metric] == kind)).sum())
                lines.append({"what": "band", "level": level, "metric": metric, "kind": kind, "rows": rows,
                              "low": low, "high": high})  # fmt: skip
    for c in coverage(r):
        lines.append({"what": "coverage", "level": c.level, "metric": c.metric, "left_out": c.left_out, "rows": c.rows,
                      "inside": c.inside, "inside_alike": c.inside_alike})  # fmt: skip
    names = ("what", "level", "metric", "kind", "left_out", "rows", "low", "high", "inside", "inside_alike")
    frame = pl.DataFrame(lines, infer_schema_length=None)
    return frame.select([c for c in names if c in frame.columns]).with_columns(pl.col(pl.Float64).round(4))


def text(r: Residuals) -> str:
    """Bands and their held-out coverage as text."""
    lines = ["80 % bands, measured over predicted:"]
    for level, metrics in bands(r).items():
        for metric, kinds in metrics.items():
            ends = "  ".join(f"{kind} {low:.2f} to {high:.2f}" for kind, (low, high) in kinds.items())
            lines.append(f"  {level:10s} {metric:10s} {ends}")
    found = {(c.left_out, c.metric): c for c in coverage(r)}
    lines.append("held-out rows inside, the band made without them [% of rows; groups counted alike]:")
    lines.append(f"  {'left out':12s}" + "".join(f"{metric:>16s}" for metric in METRICS))
    for way in r.log:
        cells = []
        for metric in METRICS:
            c = found.get((way, metric))
            cells.append(f"{'–':>16s}" if c is None else f"{100 * c.inside:9.1f}; {100 * c.inside_alike:5.1f}")
        lines.append(f"  {way:12s}" + "".join(cells))
    return "\n".join(lines)


def structured(found: Mapping[str, Any]) -> dict[str, Any]:
    """Bands as a preset holds them: lists of two numbers."""
    return {
        level: {metric: {kind: [float(a), float(b)] for kind, (a, b) in kinds.items()} for metric, kinds in m.items()}
        for level, m in found.items()
    }
