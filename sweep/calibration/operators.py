"""Constants of kernels and links from measured ones: what the `measured` preset says before end-to-end rows are seen.

The prediction is the sweep's own cost model, on a table of kernels instead of a grid. Each kind of kernel is fitted
alone: constants that all chips share, and those factors per chip generation without which the fit would be clearly
worse (`paying`). Three quarters of the shapes are fitted (`tables.held_out`), the rest
is only scored.

A table holds several libraries per kernel, some of them broken or not what a serving stack would choose. A first fit
sees all of them; of the libraries that ran a format on a chip generation, those whose typical time is more than
`SLOWER` above the fastest one's are then left out of fit and score. The scores say how many rows remain.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import polars as pl
from scipy.optimize import least_squares

from sweep.calibration.tables import held_out
from sweep.complete import complete_layout, complete_model
from sweep.config import Library, as_record
from sweep.cost.arith import minimum, namespace
from sweep.cost.attention import decode_attention, prefill_attention
from sweep.cost.collectives import all_reduce, exchange, gather
from sweep.cost.ffn import distinct_ranks
from sweep.cost.gemm import gemm
from sweep.cost.ops import Op, op_parts
from sweep.errors import BadInput
from sweep.machine import Machine, attention_unit, efficiency_for, math_unit, relative_of, resolve
from sweep.point import FORMAT_MATH, Kinds, Precision, Tokens

Preset = dict[str, Any]
Path = tuple[str, ...]

SCALE = 0.15  # residual of the log from which on a row counts less than its square
SLOWER = 0.04  # log: a library this much slower than the fastest is not the one that a tuned serving stack runs
WORTH = 0.1  # a factor of a generation stays where the loss of its kind of kernel would grow by this share without it
FACTOR_SIGMA = 0.2  # prior of the log of a factor
LEAST_ROWS = 16  # of a library on a generation, to be compared

_FLAGS: dict[str, Any] = {f.name: False for f in dataclasses.fields(Kinds) if isinstance(f.default, bool)}
NO_KINDS = dataclasses.replace(Kinds(), **_FLAGS)


@dataclass(frozen=True, kw_only=True)
class Param:
    """One constant to fit, under one or more paths of the preset."""

    paths: tuple[Path, ...]
    low: float
    high: float
    start: float
    sigma: float  # prior of the log (of the value itself for an overlap)
    log: bool = True

    def encode(self, value: float) -> float:
        """The number that the fit moves."""
        inside = min(max(value, self.low * 1.001), self.high * 0.999)
        return float(np.log(inside)) if self.log else inside

    def decode(self, x: float) -> float:
        """The constant."""
        return float(np.exp(x)) if self.log else float(x)


@dataclass(frozen=True, kw_only=True)
class Constant:
    """A fitted constant with its uncertainty."""

    name: str
    value: float
    sigma: float | None  # of the log; of the value for an overlap
    rows: int
    kind: str


@dataclass(frozen=True, kw_only=True)
class Score:
    """Errors of one kind of kernel on rows that were not fitted: one format and machine, or `all` of them.

    `served`: the machines that the constants of all chips come from (see `_linked`).
    """

    kind: str
    weights: str
    hardware: str
    fitted: int
    held: int
    median: float  # |predicted / measured - 1|
    p90: float
    bias: float  # median log(predicted / measured)
    sigma: float  # robust standard deviation of the log, 1.4826 MAD about 0
    all_libraries: float  # the median error over all libraries of the table, held-out rows


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """A preset with fitted constants, and how well they do."""

    preset: Preset
    constants: list[Constant]
    scores: list[Score]
    generations: list[str]  # that the rows come from


# --- what the cost model says of a table -------------------------------------------------------------------------


def machines(frame: pl.DataFrame, preset: Mapping[str, Any], library: Library) -> Machine:
    """Rates of each row's machine at each row's formats, arrays over rows."""
    keys = list(zip(*(frame[c].to_list() for c in ("kind", "hardware", "weights", "activations")), strict=True))
    known: dict[Any, int] = {}
    found: list[Machine] = []
    index = np.empty(len(keys), dtype=np.int64)
    merged: dict[Any, Preset] = {}  # per generation, once
    for i, key in enumerate(keys):
        if key not in known:
            record = _hardware(library, key[1])
            kin = tuple(record.lineage.values())
            if kin not in merged:
                merged[kin] = efficiency_for(preset, **record.lineage)
            made = resolve(as_record(record), _precision(*key), merged[kin]).machine
            known[key] = len(found)
            found.append(made)
        index[i] = known[key]
    stacked: Machine = jax.tree.map(lambda *leaves: np.array(leaves, dtype=np.float64)[index], *found)
    return stacked


@functools.cache
def _records(directories: tuple[Any, ...]) -> dict[str, Any]:
    return {}


def _hardware(library: Library, name: str) -> Any:
    cache = _records(tuple(library.directories))
    if name not in cache:
        cache[name] = library.record("hardware", name)
    return cache[name]


def _precision(kind: str, hardware: str, weights: str, activations: str) -> Precision:
    if kind in ("gemm", "experts"):
        return Precision(weights=weights, activations=activations)
    if kind in ("attention", "mla", "prefill"):
        return Precision(kv=weights)
    return Precision(dispatch=weights, combine=weights)


def predicted_s(frame: pl.DataFrame, preset: Mapping[str, Any], library: Library) -> np.ndarray:
    """Seconds that the cost model gives each row; rows of one kind.

    Args:
        frame: rows of `tables.COLUMNS`.
        preset: an efficiency preset. Its end-to-end multipliers count; see `bare` for one without.
    Source: the functions of `sweep.cost` themselves.
    """
    (kind,) = frame["kind"].unique().to_list()
    hw = machines(frame, preset, library)
    c = {name: frame[name].to_numpy() for name in ("m", "n", "k", "heads", "kv_heads", "tp", "ep", "matrices")}
    with namespace(np), np.errstate(all="ignore"):
        ops = _OPS[kind](hw, c)
        total: np.ndarray = sum((np.asarray(op_parts(op).total_s) for op in ops), np.zeros(frame.height))
    return total


def _gemm(hw: Machine, c: Mapping[str, np.ndarray]) -> list[Op]:
    return [gemm("gemm", "decode", hw, hw.gemm_ffn, count=1.0, m=c["m"], n=c["n"], k=c["k"], weight=hw.ffn_weight)]


def _experts(hw: Machine, c: Mapping[str, np.ndarray]) -> list[Op]:
    """Both GEMMs of the experts; balanced routing hits min(E, T k) of them."""
    routed = c["m"] * c["kv_heads"]
    hit = minimum(c["heads"], routed)
    inner = c["n"] / c["tp"]
    common: dict[str, Any] = {"count": 1.0, "m": routed / hit, "weight": hw.ffn_weight, "groups": hit / c["ep"]} | {
        "tiled": False
    }
    return [
        gemm("experts_up_gate", "decode", hw, hw.experts, n=(c["matrices"] - 1.0) * inner, k=c["k"], **common),
        gemm("experts_down", "decode", hw, hw.experts, n=c["k"], k=inner, **common),
    ]


def _tokens(requests: np.ndarray) -> Tokens:
    return Tokens(
        total=requests,
        requests=requests,
        project=requests,
        attend=requests,
        ffn=requests,
        owned=requests,
        head=requests,
    )


def _heads(c: Mapping[str, np.ndarray], times: np.ndarray | float) -> Any:
    return complete_model(
        {
            "n_layers": 1.0,
            "d_model": c["heads"] * c["k"],
            "n_heads": c["heads"] * times,
            "n_kv_heads": c["kv_heads"] * times,
            "head_dim": c["k"],
            "vocab": 1.0,
        }
    )


def _attention(hw: Machine, c: Mapping[str, np.ndarray]) -> list[Op]:
    kinds = dataclasses.replace(NO_KINDS, gqa=True)
    return decode_attention(_heads(c, 1.0), hw, complete_layout({}), _tokens(c["m"]), c["n"], kinds)


def _mla(hw: Machine, c: Mapping[str, np.ndarray]) -> list[Op]:
    model = complete_model(
        {
            "n_layers": 1.0,
            "d_model": 7168.0,
            "n_heads": c["heads"],
            "vocab": 1.0,
            "kv_lora_rank": 512.0,
            "qk_nope_dim": 128.0,
            "qk_rope_dim": 64.0,
        }
    )
    kinds = dataclasses.replace(NO_KINDS, mla=True)
    return decode_attention(model, hw, complete_layout({}), _tokens(c["m"]), c["n"], kinds)


def _prefill(hw: Machine, c: Mapping[str, np.ndarray]) -> list[Op]:
    """Several prompts at once do what one prompt with as many times the heads does."""
    kinds = dataclasses.replace(NO_KINDS, gqa=True)
    model, zero = _heads(c, c["m"]), np.zeros_like(c["m"])
    return prefill_attention(model, hw, complete_layout({}), _tokens(c["n"]), c["n"], zero, kinds)


def _reduce(hw: Machine, c: Mapping[str, np.ndarray]) -> list[Op]:
    return [all_reduce("decode", hw, count=1.0, message=c["m"], group=c["ep"])]


def _gather(hw: Machine, c: Mapping[str, np.ndarray]) -> list[Op]:
    return [gather("all_gather", "decode", hw, count=1.0, message=c["m"], group=c["ep"])]


def _exchange(hw: Machine, c: Mapping[str, np.ndarray]) -> list[Op]:
    return [exchange("all_to_all", "decode", hw, hw.exchange, count=1.0, message=c["m"], group=c["ep"])]


def _dispatch(hw: Machine, c: Mapping[str, np.ndarray]) -> list[Op]:
    message = c["m"] * distinct_ranks(c["ep"], c["kv_heads"]) * c["k"] * hw.dispatch
    return [exchange("dispatch", "decode", hw, hw.experts_link, count=1.0, message=message, group=c["ep"])]


_OPS = {
    "gemm": _gemm,
    "experts": _experts,
    "attention": _attention,
    "mla": _mla,
    "prefill": _prefill,
    "reduce": _reduce,
    "gather": _gather,
    "exchange": _exchange,
    "dispatch": _dispatch,
    "combine": _dispatch,
}


# --- what is fitted ----------------------------------------------------------------------------------------------


def _at(preset: Mapping[str, Any], path: Path) -> Any:
    node: Any = preset
    for name in path:
        node = node[name]
    return node


def _put(preset: Preset, path: Path, value: Any) -> None:
    node = preset
    for name in path[:-1]:
        node = node.setdefault(name, {})
    node[path[-1]] = value


def _share(*paths: Path, start: float, low: float = 0.02, high: float = 0.95) -> Param:
    return Param(paths=paths, start=start, low=low, high=high, sigma=0.5)


def _time(*paths: Path, start: float) -> Param:
    return Param(paths=paths, start=start, low=start / 30.0, high=start * 30.0, sigma=0.5)


def _overlap(*paths: Path, start: float = 0.7) -> Param:
    return Param(paths=paths, start=start, low=0.0, high=1.0, sigma=0.3, log=False)


def _factor(preset: Mapping[str, Any], generation: str, *names: str) -> Param:
    """A factor, held near what the preset says of it: 1 where it says nothing."""
    path = ("generations", generation, "factors", *names)
    start: Any = preset
    for name in path:
        start = start.get(name, {}) if isinstance(start, Mapping) else {}
    start = float(start) if isinstance(start, float) else 1.0
    return Param(paths=(path,), start=start, low=0.1, high=10.0, sigma=FACTOR_SIGMA)


def _k(*names: str) -> Path:
    return ("kernels", *names)


def _l(*names: str) -> Path:
    return ("links", *names)


def common_params(group: str, formats: Iterable[str]) -> list[Param]:
    """Constants that all chips share: one set per kind of kernel, and per format what timings need beside it.

    What is not here is tied: inputs and outputs move at the rate of weights where nothing else is said (`resolve`; the
    outputs of a GEMM do not, and show where the inner dimension is short), formats take what they lack from the kind,
    an int8 unit from the fp8 one, links from the all-reduce's. Sets with every constant of their own per format were
    tried: 1.4 points better on GEMMs of fp4, nothing on the others.
    """
    formats = set(formats)
    if group == "gemm":
        out = [
            _share(_k("gemm", "math"), start=0.8),
            _share(_k("gemm", "read"), start=0.85, high=0.98),
            _share(_k("gemm", "write"), start=0.85),
            _time(_k("gemm", "t0_s"), start=3e-6),
            _time(_k("gemm", "chain_s"), start=0.65e-9),
            _overlap(_k("gemm", "overlap")),
        ]
        # rate of the narrow unit, the pass that quantizes inputs, its start
        starts = {"fp8": (0.7, 0.06, 5.4e-6), "fp4": (0.4, 0.1, 4.5e-6)}
        for unit, (math, inputs, floor) in starts.items():
            if unit in formats:
                out += [
                    _share(_k("gemm", unit, "math"), start=math),
                    _share(_k("gemm", unit, "input"), start=inputs, low=0.01),
                    _time(_k("gemm", unit, "t0_s"), start=floor),
                ]
        for name, inputs in {"fp8_block": 0.16, "weight_only": 0.11}.items():
            if name in formats:
                out.append(_share(_k("gemm", name, "input"), start=inputs, low=0.01))
        return out
    if group == "experts":
        out = [
            _share(_k("experts", "math"), start=0.5),
            _share(_k("experts", "read"), start=0.85),
            _share(_k("experts", "input"), start=0.075, low=0.005),
            _time(_k("experts", "t0_s"), start=11e-6),
        ]
        pairs = sorted(f for f in formats if f.endswith(("_bf16", "_fp8")))
        for name in ("fp8", "fp8_block", "fp4", *pairs):
            if name in formats:
                out.append(_share(_k("experts", name, "math"), start=0.25))
                if name.endswith("_bf16"):  # the widening of weights shows in their rate
                    out.append(_share(_k("experts", name, "read"), start=0.6))
        return out
    if group == "attention":
        return [
            _share(_k("attention", "read"), start=0.85),
            _share(_k("attention", "math"), start=0.3),
            _time(_k("attention", "t0_s"), start=11e-6),
        ]
    if group == "mla":
        at = _k("mla")
        out = [
            _share((*at, "read"), start=0.72),
            _share((*at, "math"), start=0.55),
            _time((*at, "t0_s"), start=12.5e-6),
            _time((*at, "chain_s"), start=0.16e-9),
            _overlap((*at, "overlap")),
        ]
        if "fp8" in formats:
            out.append(_share((*at, "fp8", "math"), start=0.45))
        return out
    if group == "prefill":
        at = _k("prefill")
        out = [
            _share((*at, "math"), start=0.55),
            _time((*at, "t0_s"), start=15e-6),
            _time((*at, "chain_s"), start=15e-9),
        ]
        if "fp8" in formats:
            out += [_share((*at, "fp8", "math"), start=0.3), _time((*at, "fp8", "t0_s"), start=15e-6)]
        return out
    if group == "reduce":
        return [
            _share(_l("reduce", "share"), start=0.7),
            _time(_l("reduce", "t0_s"), start=4e-6),
            _time(_l("reduce", "t0_rank_s"), start=0.25e-6),
            _time(_l("reduce", "one_shot_s"), start=2.5e-6),
            _time(_l("reduce", "one_shot_rank_s"), start=0.15e-6),
        ]
    if group == "gather":
        return [
            _share(_l("gather", "share"), start=0.5),
            _time(_l("gather", "t0_s"), start=6e-6),
            _time(_l("gather", "t0_rank_s"), start=1e-6),
        ]
    if group == "exchange":
        return [_share(_l("exchange", "share"), start=0.5), _time(_l("exchange", "t0_s"), start=10e-6)]
    return [
        _share(_l("experts", "share"), start=0.5),
        _time(_l("experts", "t0_s"), start=15e-6),
        _share(_l("experts", "scaleout_share"), start=0.8),
        _time(_l("experts", "scaleout_t0_s"), start=9e-6),
    ]


# factors of a generation that a kind of kernel or link may have
FACTORS_OF: dict[str, tuple[tuple[str, ...], ...]] = {
    "gemm": (("math",), ("floor",), ("fp4", "math")),
    "experts": (("math",), ("memory",), ("floor",)),
    "attention": (("memory",), ("floor",), ("fp8", "memory")),
    "mla": (("math",), ("memory",), ("floor",)),
    "prefill": (("math",), ("floor",)),
    "reduce": (("share",), ("floor",)),
    "gather": (("share",), ("floor",)),
    # generations differ by less than libraries do: without factors both score better or the same
    "exchange": (),
    "dispatch": (),
}
GROUPS: dict[str, tuple[str, ...]] = {k: (k,) for k in FACTORS_OF} | {"dispatch": ("dispatch", "combine")}
_LINKS = {"reduce": "reduce_link", "gather": "gather_link", "exchange": "exchange_link", "dispatch": "experts_link"}


def formats_of(frame: pl.DataFrame, library: Library, group: str) -> dict[str, int]:
    """Which sets of constants the rows speak of, and how many rows each has."""
    counts: dict[str, int] = {}
    for hardware, weights, activations, n in frame.group_by("hardware", "weights", "activations").len().iter_rows():
        record = as_record(_hardware(library, hardware))
        if group in ("gemm", "experts"):
            unit = math_unit(weights, activations, record)
            names = [unit] if FORMAT_MATH[weights] == unit else ["weight_only", f"{weights}_{unit}"]
            if weights == "fp8_block" and unit == "fp8":
                names.append("fp8_block")
            if group == "experts" and len(names) > 1:
                names = names[1:]  # kernels of their own; those of the unit need rows of the unit
        else:
            names = [attention_unit(weights, record)]
        for name in names:
            counts[name] = counts.get(name, 0) + n
    return counts


def generation_params(group: str, frame: pl.DataFrame, library: Library, preset: Mapping[str, Any]) -> list[Param]:
    """Factors of the generations that the rows come from."""
    generations = frame["generation"].unique().sort().to_list()
    name = _LINKS.get(group, group)
    out = []
    for generation in generations:
        rows = frame.filter(pl.col("generation") == generation)
        units = formats_of(rows, library, group)
        for factor in FACTORS_OF[group]:
            if len(factor) == 1 or factor[0] in units:
                out.append(_factor(preset, generation, name, *factor))
    return out


def bare(preset: Mapping[str, Any]) -> Preset:
    """A preset without what end-to-end rows say: kernels as they are timed alone."""
    out: Preset = copy.deepcopy(dict(preset))
    for key in ("math", "memory", "floor", "floor_link"):
        out.pop(key, None)
    out["generations"] = {
        name: {k: v for k, v in (own or {}).items() if k in ("vendor", "year", "factors")}
        for name, own in (preset.get("generations") or {}).items()
    }
    return out


def alone(preset: Mapping[str, Any], library: Library, name: str) -> Preset:
    """A shipped preset as the operator fit left it: its table of constants undoes what end-to-end points changed."""
    out = bare(preset)
    table = table_of(library, name)
    if table is not None:
        mine = table.filter(pl.col("kind").is_in(list(GROUPS)))
        for constant, value in mine.select("name", "value").iter_rows():
            _put(out, tuple(constant.split(".")), value)
    return out


def table_of(library: Library, name: str) -> pl.DataFrame | None:
    """The constants that were written beside a preset."""
    for directory in library.directories:
        if (directory / "efficiency" / f"{name}.yaml").is_file():
            path = directory / "efficiency" / f"{name}.csv"
            return pl.read_csv(path) if path.is_file() else None
    return None


# --- the fit -----------------------------------------------------------------------------------------------------


def _robust(z: np.ndarray) -> np.ndarray:
    """Residuals whose squares are the soft-L1 loss 2 (sqrt(1 + z^2) - 1)."""
    out: np.ndarray = np.sign(z) * np.sqrt(2.0 * (np.sqrt(1.0 + z * z) - 1.0))
    return out


def _with(preset: Preset, params: Sequence[Param], x: np.ndarray) -> Preset:
    out = copy.deepcopy(preset)
    for param, value in zip(params, x, strict=True):
        for path in param.paths:
            _put(out, path, param.decode(float(value)))
    return out


def log_ratio(parts: Sequence[pl.DataFrame], preset: Mapping[str, Any], library: Library) -> np.ndarray:
    """log(predicted / measured) of the rows of all parts, each of one kind."""
    return np.concatenate([np.log(predicted_s(p, preset, library) / p["seconds"].to_numpy()) for p in parts])


def solve(
    parts: Sequence[pl.DataFrame],
    params: Sequence[Param],
    preset: Preset,
    library: Library,
    *,
    begin: np.ndarray | None = None,
    steps: int = 30,
) -> tuple[Preset, np.ndarray, np.ndarray, np.ndarray]:
    """Least squares of the robust residuals and the priors.

    Returns: the preset, the numbers, the derivatives of residuals and priors by them [rows + params, params], and
        these themselves [rows + params].

    Args:
        begin: numbers to begin with instead of the priors' centres.
        steps: evaluations of the whole table at most, those of derivatives aside.
    """
    if not params:
        return copy.deepcopy(preset), np.empty(0), np.empty((0, 0)), np.empty(0)
    start = np.array([p.encode(p.start) for p in params])
    low = np.array([p.encode(p.low) for p in params]) - 1e-9
    high = np.array([p.encode(p.high) for p in params]) + 1e-9
    sigma = np.array([p.sigma for p in params])

    def data(x: np.ndarray) -> np.ndarray:
        return _robust(log_ratio(parts, _with(preset, params, x), library) / SCALE)

    def residuals(x: np.ndarray) -> np.ndarray:
        return np.concatenate([data(x), (x - start) / sigma])

    first = start if begin is None else np.clip(begin, low + 1e-9, high - 1e-9)
    found = least_squares(
        residuals, first, bounds=(low, high), diff_step=1e-4, x_scale="jac", max_nfev=steps, ftol=1e-6, xtol=1e-6
    )
    return _with(preset, params, found.x), found.x, found.jac, found.fun


def paying(
    x: np.ndarray, neutral: Sequence[float], jac: np.ndarray, fun: np.ndarray, free: Sequence[bool], worth: float
) -> np.ndarray:
    """Which numbers stay: all that are free, and of the others those without which the loss would grow by `worth`.

    The one that costs least goes back to its neutral value first, all others giving way; then the next one, until one
    costs more than `worth` of the whole loss.

    Args:
        x: the fitted numbers.
        neutral: what each is without a measurement of its own.
        jac, fun: derivatives and residuals of `solve` at `x`; the loss is quadratic around it.
        free: numbers that are not in question.
    """
    inverse = np.linalg.pinv(jac.T @ jac)
    away = np.asarray(neutral) - x
    gone: list[int] = []
    paid, most = 0.0, worth * 0.5 * float(fun @ fun)
    while True:
        left = [i for i in range(len(x)) if not free[i] and i not in gone]
        costs = {}
        for i in left:
            at = [*gone, i]
            d = away[at]
            costs[i] = 0.5 * float(d @ np.linalg.pinv(inverse[np.ix_(at, at)]) @ d)
        cheapest = min(costs, key=lambda i: (costs[i], i), default=None)
        if cheapest is None or costs[cheapest] - paid > most:
            break
        gone.append(cheapest)
        paid = costs[cheapest]
    return np.array([i not in gone for i in range(len(x))], dtype=bool)


def _sigmas(jac: np.ndarray, fun: np.ndarray, parts: Sequence[pl.DataFrame], n_params: int) -> np.ndarray:
    """Standard errors that hold although rows of one library on one machine err together (clustered sandwich)."""
    if not n_params:
        return np.empty(0)
    rows = jac.shape[0] - n_params
    keys = pl.concat([p.select("hardware", "library") for p in parts])
    cluster = keys.with_columns(pl.struct("hardware", "library").rank("dense").alias("i"))["i"].to_numpy()
    bread = np.linalg.pinv(jac.T @ jac)
    meat = np.zeros((n_params, n_params))
    scores = jac[:rows] * fun[:rows, None]
    for i in np.unique(cluster):
        g = scores[cluster == i].sum(axis=0)
        meat += np.outer(g, g)
    found: np.ndarray = np.sqrt(np.clip(np.diag(bread @ meat @ bread), 0.0, None))
    return found


def rounded(value: float, digits: int = 3) -> float:
    """A constant as it is shipped: a rerun on another machine differs far beyond the last digit only."""
    return float(f"{value:.{digits}g}")


def usual_libraries(frame: pl.DataFrame, ratio: np.ndarray) -> np.ndarray:
    """Rows of libraries that are not much slower than the fastest on the same generation and format.

    Args:
        frame: rows with their `generation`.
        ratio: log(predicted / measured) of a fit to all of them: what differs between libraries remains in it.
    """
    keys = ["kind", "generation", "weights", "activations"]
    table = frame.with_columns(pl.Series("slow", -ratio))
    each = table.group_by([*keys, "library"]).agg(pl.col("slow").median(), pl.len().alias("n"))
    enough = each.filter(pl.col("n") >= LEAST_ROWS).group_by(keys).agg(pl.col("slow").min().alias("best"))
    joined = table.select(*keys, "library").join(each, on=[*keys, "library"], how="left", nulls_equal=True)
    joined = joined.join(enough, on=keys, how="left", nulls_equal=True)
    keep = (joined["slow"] <= joined["best"].fill_null(np.inf) + SLOWER).to_numpy()
    return np.asarray(keep)


def with_generation(frame: pl.DataFrame, library: Library) -> pl.DataFrame:
    """The table with the chip generation of every row."""
    names = {h: _hardware(library, h).lineage["generation"] for h in frame["hardware"].unique().to_list()}
    return frame.with_columns(pl.col("hardware").replace_strict(names, return_dtype=pl.String).alias("generation"))


def _split(frame: pl.DataFrame, keep: np.ndarray) -> list[pl.DataFrame]:
    chosen = frame.filter(pl.Series(keep))
    return [part for kind in chosen["kind"].unique().sort().to_list() for part in [chosen.filter(kind=kind)]]


def fit_group(
    frame: pl.DataFrame, group: str, preset: Preset, library: Library, *, common: bool = True
) -> tuple[Preset, list[Constant], list[Score]]:
    """Fit one kind of kernel; returns the preset with its constants, them with their errors, and the scores.

    Args:
        frame: rows of the group, with their `generation`.
        group: a key of `GROUPS`.
        preset: what is not fitted, bare of end-to-end multipliers.
        common: fit the constants that chips share too; otherwise the factors of generations alone.
    """
    frame = frame.sort("kind", maintain_order=True)  # as `_split` orders them
    held = held_out(frame)
    everyone = np.ones(frame.height, dtype=bool)
    linked = frame["hardware"].is_in([h for h in frame["hardware"].unique() if _linked(library, h)]).to_numpy()
    usual, final, constants = everyone, copy.deepcopy(preset), []
    seen: set[str] = set()
    for served in (True, False):
        here = linked == served
        if not here.any():
            continue
        rows = frame.filter(pl.Series(here))
        formats = set(formats_of(rows, library, group))
        known = {p.paths for p in common_params(group, seen)} if seen else set()
        shared = [p for p in common_params(group, formats | seen) if p.paths not in known] if common else []
        seen |= formats
        params = [*shared, *generation_params(group, rows, library, final)]
        first, x, _, _ = solve(_split(frame, here & ~held), params, final, library, steps=10)
        usual = usual & (usual_libraries(frame, log_ratio(_split(frame, everyone), first, library)) | ~here)
        parts = _split(frame, here & usual & ~held)
        _, x, jac, fun = solve(parts, params, final, library, begin=x, steps=12)
        free = [p in shared for p in params]
        stays = paying(x, [p.encode(p.start) for p in params], jac, fun, free, WORTH)
        kept = [p for p, stay in zip(params, stays, strict=True) if stay]
        _, x, jac, fun = solve(parts, kept, final, library, begin=x[stays] if kept else None)
        sigmas = _sigmas(jac, fun, parts, len(kept))
        for param, value, sigma in zip(kept, x, sigmas, strict=True):
            number = rounded(param.decode(float(value)))
            for path in param.paths:
                _put(final, path, number)
            constants.append(
                Constant(
                    name=".".join(param.paths[0]),
                    value=number,
                    sigma=rounded(float(sigma), 2),
                    rows=sum(p.height for p in parts),
                    kind=group,
                )
            )
    return final, constants, scores_of(frame, held, usual, final, library, group)


def _linked(library: Library, hardware: str) -> bool:
    """Whether constants of all chips may come from a machine: it has a scale-up link and computes in fp8.

    Older chips and workstation cards run other kernels; they take these constants with factors of their own.
    """
    figures = _hardware(library, hardware).values
    return float(figures["domain"] or 1) > 1 and figures["fp8_flops"] is not None


def scores_of(
    frame: pl.DataFrame, held: np.ndarray, usual: np.ndarray, preset: Preset, library: Library, group: str
) -> list[Score]:
    """Errors on held-out rows: over all, per format, and per format and machine."""
    ratio = log_ratio(_split(frame, np.ones(frame.height, dtype=bool)), preset, library)
    error = np.abs(np.expm1(ratio))
    out = []
    label = (
        frame.select(
            pl.when(pl.col("activations") == "bf16")
            .then(pl.when(pl.col("weights") == "bf16").then(pl.lit("bf16")).otherwise(pl.col("weights") + "_" + "bf16"))
            .otherwise(pl.col("weights"))
        )[:, 0]
        if group in ("gemm", "experts")
        else frame["weights"]
    )
    hardware = frame["hardware"]
    served = np.array([_linked(library, h) for h in hardware])
    formats, names = label.unique().sort().to_list(), hardware.unique().sort().to_list()
    cells = [(w, h) for w in ("all", *formats) for h in ("served", "all")]
    cells += [("all", h) for h in names] + [(w, h) for w in formats for h in names]
    for w, h in cells:
        at = np.ones(frame.height, dtype=bool)
        if w != "all":
            at &= (label == w).to_numpy()
        if h == "served":
            at &= served
        elif h != "all":
            at &= (hardware == h).to_numpy()
        test = at & held & usual
        if not test.any():
            continue
        out.append(
            Score(
                kind=group,
                weights=w,
                hardware=h,
                fitted=int((at & usual & ~held).sum()),
                held=int(test.sum()),
                median=float(np.median(error[test])),
                p90=float(np.quantile(error[test], 0.9)),
                bias=float(np.median(ratio[test])),
                sigma=float(1.4826 * np.median(np.abs(ratio[test]))),
                all_libraries=float(np.median(error[at & held])),
            )
        )
    return out


def fit(
    frame: pl.DataFrame, preset: Mapping[str, Any], library: Library, *, common: bool = True, only: Sequence[str] = ()
) -> Fitted:
    """Fit all kinds of kernels and links that a table holds.

    Args:
        frame: rows of `tables.COLUMNS`.
        preset: an efficiency preset: keys, and the constants that no row speaks of.
        library: where machines come from.
        common: fit the constants that all chips share; otherwise only factors of the generations in the table.
        only: kinds to fit; none: all.
    """
    frame = with_generation(frame, library)
    now = bare(preset)
    if common:
        now["generations"] = {}
    for generation, vendor, year in lineage(frame, library):
        if generation not in now["generations"]:  # a newcomer starts where its relative is
            relative = None if common else relative_of(now, generation, vendor)
            factors = now["generations"][relative].get("factors") if relative else None
            now["generations"][generation] = {"factors": copy.deepcopy(factors)} if factors else {}
        now["generations"][generation] |= {"vendor": vendor, "year": year}
    constants: list[Constant] = []
    scores: list[Score] = []
    for group, kinds in GROUPS.items():
        rows = frame.filter(pl.col("kind").is_in(kinds))
        if not rows.height or (only and group not in only):
            continue
        now, some, errors = fit_group(rows, group, now, library, common=common)
        constants += some
        scores += errors
    generations = frame["generation"].unique().sort().to_list()
    return Fitted(preset=now, constants=constants, scores=scores, generations=generations)


def lineage(frame: pl.DataFrame, library: Library) -> list[tuple[str, str, int]]:
    """Generation, vendor and year of the table's machines: oldest first, of one year the one with fewer rows first."""
    counts = dict(frame.group_by("generation").len().iter_rows())
    return sorted(of_generations(library, counts), key=lambda g: (g[2], counts[g[0]], g[0]))


def of_generations(library: Library, wanted: Iterable[str]) -> list[tuple[str, str, int]]:
    """Generations with their vendor and the year of their first machine in the catalogue."""
    found: dict[str, tuple[str, int]] = {}
    for name in library.choices("hardware"):
        record = _hardware(library, name)
        generation, year = record.lineage["generation"], record.about.get("year")
        if generation in wanted and year is not None:
            first = min(int(year), found.get(generation, ("", int(year)))[1])
            found[generation] = (str(record.lineage["vendor"]), first)
    return [(g, *found[g]) for g in found]


def in_order(generations: Mapping[str, Any], library: Library) -> dict[str, Any]:
    """Generations with vendor and year, oldest first; of one year those with a scale-up link last.

    The last one of a vendor is what its unmeasured chips take their constants from (`sweep.machine.relative_of`).
    """
    about = {g: (vendor, year) for g, vendor, year in of_generations(library, generations)}
    linked = {_hardware(library, h).lineage["generation"] for h in library.choices("hardware") if _linked(library, h)}
    order = sorted(generations, key=lambda g: (about[g][1], g in linked, g))
    return {g: {"vendor": about[g][0], "year": about[g][1], **_without(generations[g])} for g in order}


def _without(own: Mapping[str, Any] | None) -> dict[str, Any]:
    return {k: v for k, v in (own or {}).items() if k not in ("vendor", "year")}


def check_machines(frame: pl.DataFrame, library: Library) -> None:
    """Refuse rows of machines that the catalogue does not know, or whose generation, maker or year it does not say."""
    for name in frame["hardware"].unique().sort().to_list():
        record = library.record("hardware", name)
        for key in ("generation", "vendor", "year"):
            if record.about.get(key) is None:
                raise BadInput(f"hardware={name}: its entry says no {key}, which constants are looked up by")
