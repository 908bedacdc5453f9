"""What one more of something is worth at one point: slopes by automatic differentiation, and whole steps.

Two questions, two answers:

* **Elasticities**, d ln(result) / d ln(lever): `jax` carries the derivative through the cost model of one point, in
  float64. Rates, latencies and bytes per element pass no rounding on their way to a time: the derivative is that of
  the model as it is. Model sizes and loads pass through roundings up (tiles, waves, shards of unequal size), whose
  derivative is zero almost everywhere and useless: the rounding keeps its value and passes the derivative of what it
  rounds, so that the slope is that along sizes that divide as well as the present ones.
* **Steps**: the point evaluated again with the next whole value (a layer per stage, twice the experts, half the tensor
  parallelism, the next narrower format), memory, validity and accuracy included.

Capacity has no slope in time per token: it is shown as the users that one more GB holds.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sweep.config import Record, Study
from sweep.cost.arith import namespace
from sweep.cost.result import BOUNDS, evaluate_point
from sweep.errors import BadInput
from sweep.explain import _numbers, _Point, _reasons, point_of
from sweep.machine import Link, Machine, OpRate
from sweep.point import Layout, Model, names

RESULTS = ("tok_s_user", "tok_s_gpu", "ttft_s", "request_s", "usd_per_mtok", "max_batch")
STEP_RESULTS = (*RESULTS, "accuracy", "loss", "tpot_s", "held_bytes", "params_total")
LAYER_COUNTS = tuple(name for name in names(Model) if name.endswith("_layers"))
LADDER = ("bf16", "fp8", "nvfp4")  # precision records from wide to narrow
KV_LADDER = ("bf16", "fp8", "nvfp4")
SLOTS = 32  # levers of one pass: every pass has as many, so that what was compiled for one serves the others


@dataclass(frozen=True, kw_only=True)
class Lever:
    """One quantity and what a relative change of it does, as exponents: +0.5 means 1 % more gives 0.5 % more."""

    key: str  # as on a command line, or the constants of the efficiency preset
    label: str
    kind: str  # machine | format | model | load
    now: float | None  # what it is; None where it stands for several figures
    unit: str
    elasticity: dict[str, float | None]  # per result; None where the result has no figure


@dataclass(frozen=True, kw_only=True)
class Step:
    """One whole change and the point after it."""

    key: str
    before: Any
    after: Any
    refused: str | None  # why the point after it cannot be; None if it can
    feasible: bool
    reasons: tuple[str, ...]
    result: dict[str, float | None]  # columns after the step
    ratio: dict[str, float | None]  # over what they were


@dataclass(frozen=True, kw_only=True)
class Worth:
    """What a round amount more of one resource of the machine gives, all else equal."""

    key: str
    more: str  # "1 TB/s"
    now: float
    unit: str
    gained: dict[str, float | None]  # per result: after minus before
    relative: dict[str, float | None]


@dataclass(frozen=True, kw_only=True)
class Sensitivity:
    """All of it, for one point."""

    names: dict[str, str]
    point: dict[str, float | None]  # the columns as they are
    bound: str
    feasible: bool
    reasons: tuple[str, ...]
    levers: tuple[Lever, ...]
    worth: tuple[Worth, ...]
    steps: tuple[Step, ...]
    users_per_gb: float | None  # requests per replica that one more GB on each GPU holds

    def as_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return dataclasses.asdict(self)

    def lever(self, key: str) -> Lever:
        """The lever of a key."""
        return next(lever for lever in self.levers if lever.key == key)


def sensitivity(study: Study) -> Sensitivity:
    """Elasticities, worth and steps of the point that the base records of a study describe.

    Raises: `BadInput` as `sweep.explain.explain`; a point that does not fit is answered, with its reasons.
    """
    space, point = point_of(study)
    reasons = _reasons(space)
    now, against, bound = _columns(point)
    if now["tpot_s"] is None:
        raise BadInput(f"this point has no time per token ({', '.join(sorted(reasons)) or 'a figure is missing'})")
    reasons |= against
    base = study.base
    levers = tuple(elasticities(point))
    capacity = next(lever for lever in levers if lever.key == "hardware.hbm_bytes")
    return Sensitivity(
        names={g: base[g].id for g in ("model", "hardware", "precision", "layout", "workload")}
        | {"efficiency": study.efficiency_id},
        point=now,
        bound=bound,
        feasible=not reasons,
        reasons=tuple(sorted(reasons)),
        levers=levers,
        worth=tuple(worths(study, point, now)),
        steps=tuple(steps(study, point, now)),
        users_per_gb=users_per_gb(capacity, now["max_batch"]),
    )


def _columns(point: _Point) -> tuple[dict[str, float | None], set[str], str]:
    """Results of a point in plain float64, what its memory and its limits have against it, and what binds it."""
    with _numbers():
        at_row, at_context, cost = evaluate_point(point.row, point.batch, point.context, point.kinds)
    found: dict[str, float | None] = {}
    for name in STEP_RESULTS:
        source = next(s for s in (cost, at_context, at_row) if hasattr(s, name))
        value = float(getattr(source, name))
        found[name] = value if math.isfinite(value) else None
    bound = BOUNDS[int(cost.bound)] if found["tpot_s"] is not None else ""
    holds = {"capacity": cost.fits, "ttft_cut": cost.in_time, "tpot_cut": cost.in_pace}
    return found, {reason for reason, kept in holds.items() if not kept > 0}, bound


# --- slopes --------------------------------------------------------------------------------------------------------


class _Relaxed:
    """The arrays of jax with roundings that pass the derivative of what they round."""

    def __getattr__(self, name: str) -> Any:
        return getattr(jnp, name)

    @staticmethod
    def ceil(x: Any) -> Any:
        return x + jax.lax.stop_gradient(jnp.ceil(x) - x)

    @staticmethod
    def floor(x: Any) -> Any:
        return x + jax.lax.stop_gradient(jnp.floor(x) - x)


Change = Callable[[_Point, Any], _Point]


def _times(value: Any, factor: Any) -> Any:
    """A figure times a factor; infinite and unknown figures stay (their tangent would be NaN)."""
    return value * factor if np.isfinite(value) else value


def _machine(point: _Point, machine: Machine) -> _Point:
    return dataclasses.replace(point, row=dataclasses.replace(point.row, machine=machine))


def _rates(fields: Sequence[str], alone: Sequence[str] = ()) -> Change:
    """A change of some fields of every kernel's rate, and of some fields of the machine itself."""

    def change(point: _Point, factor: Any) -> _Point:
        machine = point.row.machine
        changed: dict[str, Any] = {name: _times(getattr(machine, name), factor) for name in alone}
        for f in dataclasses.fields(Machine):
            value = getattr(machine, f.name)
            if fields and isinstance(value, OpRate):
                changed[f.name] = dataclasses.replace(value, **{k: _times(getattr(value, k), factor) for k in fields})
        return _machine(point, dataclasses.replace(machine, **changed))

    return change


def _links(fields: Sequence[str]) -> Change:
    def change(point: _Point, factor: Any) -> _Point:
        machine = point.row.machine
        changed: dict[str, Any] = {}
        for f in dataclasses.fields(Machine):
            value = getattr(machine, f.name)
            if isinstance(value, Link):
                changed[f.name] = dataclasses.replace(value, **{k: _times(getattr(value, k), factor) for k in fields})
        return _machine(point, dataclasses.replace(machine, **changed))

    return change


def _model(fields: Sequence[str]) -> Change:
    def change(point: _Point, factor: Any) -> _Point:
        model = point.row.model
        scaled = {k: _times(getattr(model, k), factor) for k in fields}
        return dataclasses.replace(
            point, row=dataclasses.replace(point.row, model=dataclasses.replace(model, **scaled))
        )

    return change


def _batch(point: _Point, factor: Any) -> _Point:
    return dataclasses.replace(point, batch=point.batch * factor)


def _lengths(point: _Point, factor: Any) -> _Point:
    c = point.context
    return dataclasses.replace(
        point,
        context=dataclasses.replace(c, decode=c.decode * factor, longest=c.longest * factor, prompt=c.prompt * factor),
    )


_LINK_BANDWIDTH, _SCALEOUT = ("bytes_per_s",), ("scaleout_bytes_per_s",)
_LINK_LATENCY = ("t0_s", "t0_rank_s", "one_shot_s", "one_shot_rank_s", "scaleout_t0_s")
# key, label, kind, unit, change; rates and bytes are exact, sizes pass through roundings
_EXACT: tuple[tuple[str, str, str, str, Change], ...] = (
    ("hardware.flops", "FLOP/s, all formats", "machine", "flop/s", _rates(("flops_per_s",), ("peak_flops",))),
    (
        "hardware.hbm_bytes_per_s",
        "memory bandwidth",
        "machine",
        "B/s",
        _rates(("read_bytes_per_s", "input_bytes_per_s", "write_bytes_per_s"), ("peak_bytes_per_s",)),
    ),
    ("hardware.link_bytes_per_s", "link bandwidth", "machine", "B/s", _links(_LINK_BANDWIDTH)),
    ("hardware.scaleout_bytes_per_s", "scale-out bandwidth", "machine", "B/s", _links(_SCALEOUT)),
    ("efficiency.kernel_floor", "kernel floors", "machine", "s", _rates(("t0_s", "chain_s"))),
    ("efficiency.link_latency", "link latency", "machine", "s", _links(_LINK_LATENCY)),
    (
        "efficiency.host",
        "host and gaps between kernels",
        "machine",
        "s",
        _rates((), ("layer_s", "host_s", "request_s")),
    ),
    ("hardware.hbm_bytes", "capacity", "machine", "B", _rates((), ("hbm_bytes", "reserve_bytes"))),
    ("hardware.usd_per_hour", "price per GPU-hour", "machine", "USD/h", _rates((), ("usd_per_hour",))),
    ("precision.weights", "bytes per weight", "format", "B", _rates((), ("attn_weight", "ffn_weight"))),
    ("precision.head", "bytes per weight of the LM head", "format", "B", _rates((), ("head_weight",))),
    ("precision.kv", "bytes per cache element", "format", "B", _rates((), ("kv",))),
    (
        "precision.activations",
        "bytes per activation, sent and read",
        "format",
        "B",
        _rates((), ("act", "out", "dispatch", "combine")),
    ),
)
_SIZES: tuple[tuple[str, str, str, str, Change], ...] = (
    ("model.n_layers", "layers, all kinds alike", "model", "1", _model(LAYER_COUNTS)),
    *(
        (f"model.{key}", label, "model", "1", _model((key,)))
        for key, label in (
            ("d_model", "width of the residual stream"),
            ("n_heads", "query heads"),
            ("n_kv_heads", "key/value heads"),
            ("head_dim", "head width"),
            ("kv_lora_rank", "rank of the key/value latent"),
            ("q_lora_rank", "rank of the query projection"),
            ("d_ff", "width of the dense FFN"),
            ("n_experts", "experts"),
            ("top_k", "experts per token"),
            ("d_expert", "width of an expert"),
            ("d_shared", "width of shared experts"),
            ("window", "window of window layers"),
            ("vocab", "vocabulary"),
        )
    ),
    ("workload.batch", "requests in flight", "load", "request", _batch),
    ("workload.context", "context and prompt", "load", "tok", _lengths),
)


def elasticities(point: _Point, *, sizes: bool = True) -> list[Lever]:
    """d ln(result) / d ln(lever) of every lever that the point has, by forward-mode differentiation in float64.

    The largest batch is rounded down to whole requests; its slope is that of the number before.

    Args:
        sizes: model sizes and loads too, not only the machine and the formats.
    Returns: levers in a fixed order; a result without a figure (a price that nobody published) has None.
    """
    asked = (*_EXACT, *(_SIZES if sizes else ()))
    levers = [lever for lever in asked if lever[2] != "model" or (_now(lever[0], point) or 0) > 0]
    slope = _slopes(point, levers, relaxed=True)
    if point.kinds.chunked:  # how many chunks hide behind what depends on rates, and is rounded
        exact = _slopes(point, levers[: len(_EXACT)], relaxed=False)
        timed = [j for j, name in enumerate(RESULTS) if name != "max_batch"]
        slope[np.ix_(timed, range(len(_EXACT)))] = exact[np.ix_(timed, range(len(_EXACT)))]
    out = []
    for i, (key, label, kind, unit, _) in enumerate(levers):
        given = {
            name: float(e) + 0.0 if math.isfinite(e := slope[j, i]) else None  # no negative zero
            for j, name in enumerate(RESULTS)
        }
        if kind != "model" or any(given.values()):  # a size that this kind of model does not use
            out.append(Lever(key=key, label=label, kind=kind, now=_now(key, point), unit=unit, elasticity=given))
    return out


def users_per_gb(capacity: Lever, batch: float | None) -> float | None:
    """Requests in flight per replica that one more GB on each GPU holds, from the lever of the capacity.

        dpa (1 - reserved share) 1e9 / bytes of a request on its GPU

    None where a request holds nothing.
    """
    slope = capacity.elasticity["max_batch"]
    return None if slope is None or not batch or not capacity.now else slope * batch / capacity.now * 1e9


def _now(key: str, point: _Point) -> float | None:
    group, _, name = key.partition(".")
    machine, model = point.row.machine, point.row.model
    held: Any = None
    if group == "model":
        held = getattr(model, name)
    elif key == "workload.batch":
        held = point.batch
    elif key == "workload.context":
        held = point.context.decode
    else:
        held = {
            "hardware.flops": machine.peak_flops,
            "hardware.hbm_bytes_per_s": machine.peak_bytes_per_s,
            "hardware.hbm_bytes": machine.hbm_bytes,
            "hardware.usd_per_hour": machine.usd_per_hour,
            "precision.weights": machine.ffn_weight if machine.ffn_weight == machine.attn_weight else None,
            "precision.head": machine.head_weight,
            "precision.kv": machine.kv,
        }.get(key)
    return float(held) if held is not None and math.isfinite(float(held)) else None


def _slopes(point: _Point, levers: Sequence[tuple[str, str, str, str, Change]], *, relaxed: bool) -> Any:
    """d ln(result) / d ln(lever) as [result, lever]: one pass of forward-mode differentiation over all levers."""

    def results(theta: Any) -> tuple[Any, Any]:
        changed = point
        for i, (*_, change) in enumerate(levers):
            changed = change(changed, jnp.exp(theta[i]))
        at_row, at_context, cost = evaluate_point(changed.row, changed.batch, changed.context, changed.kinds)
        found = [
            jnp.asarray(getattr(next(s for s in (cost, at_context, at_row) if hasattr(s, name)), name))
            for name in RESULTS
        ]
        return (both := jnp.stack(found)), both

    with _float64(), namespace(_Relaxed() if relaxed else jnp):
        slope, value = map(np.asarray, jax.jacfwd(results, has_aux=True)(jnp.zeros(SLOTS, dtype=jnp.float64)))
    with np.errstate(all="ignore"):
        return slope[:, : len(levers)] / np.where(value == 0, np.nan, value)[:, None]


@contextmanager
def _float64() -> Iterator[None]:
    with jax.enable_x64(True), jax.numpy_rank_promotion("allow"):
        yield


# --- worth ---------------------------------------------------------------------------------------------------------

_MORE: tuple[tuple[str, str, float], ...] = (
    ("hardware.hbm_bytes_per_s", "1 TB/s", 1e12),
    ("hardware.flops", "1 PFLOP/s", 1e15),
    ("hardware.link_bytes_per_s", "100 GB/s", 1e11),
    ("hardware.scaleout_bytes_per_s", "100 GB/s", 1e11),
    ("hardware.hbm_bytes", "16 GB", 16e9),
)


def worths(study: Study, point: _Point, now: Mapping[str, float | None]) -> list[Worth]:
    """What round amounts more of the machine's resources give: the point evaluated again, not a slope."""
    held = study.base["hardware"].values
    found = []
    for key, more, amount in _MORE:
        name = key.partition(".")[2]
        value = float(point.row.machine.peak_flops) if name == "flops" else held.get(name)
        if value is None or not math.isfinite(float(value)):
            continue
        factor = (float(value) + amount) / float(value)
        figures = [k for k in held if k.endswith("_flops")] if name == "flops" else [name]
        changed = _with(study, "hardware", {k: held[k] * factor for k in figures if held[k] is not None})
        after = _columns(point_of(changed)[1])[0]
        found.append(
            Worth(
                key=key,
                more=more,
                now=float(value),
                unit={"hbm_bytes": "B", "flops": "flop/s"}.get(name, "B/s"),
                gained={k: _minus(after[k], now[k]) for k in RESULTS},
                relative={k: _over(after[k], now[k], less=1.0) for k in RESULTS},
            )
        )
    return found


def _minus(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b


def _over(a: float | None, b: float | None, *, less: float = 0.0) -> float | None:
    return None if a is None or not b else a / b - less


# --- steps ---------------------------------------------------------------------------------------------------------


def _with(study: Study, group: str, values: Mapping[str, Any]) -> Study:
    record = study.base[group]
    changed = dataclasses.replace(record, values={**record.values, **values})
    return dataclasses.replace(study, base={**study.base, group: changed})


def steps(study: Study, point: _Point, now: Mapping[str, float | None]) -> list[Step]:
    """The point after each whole change that a designer could make next.

    Layers: one per pipeline stage, of the commonest kind of attention and FFN. Widths and heads: about a sixteenth, in
    multiples of 128 and of what cuts them. Key/value heads, experts, parallelism, batch and context: doubled and
    halved. Experts per token: one. Formats: the next record and the next cache format.
    """
    found = []
    for key, before, after, changed in _changes(study, point):
        refused: str | None = None
        reasons: tuple[str, ...] = ()
        result: dict[str, float | None] = dict.fromkeys(STEP_RESULTS)
        try:
            space, moved = point_of(changed)
            result, against, _ = _columns(moved)
            reasons = tuple(sorted(_reasons(space) | against))
        except BadInput as error:
            refused = str(error)
        found.append(
            Step(
                key=key,
                before=before,
                after=after,
                refused=refused,
                feasible=refused is None and not reasons,
                reasons=reasons,
                result=result,
                ratio={name: _over(result[name], now.get(name)) for name in STEP_RESULTS},
            )
        )
    return found


def _changes(study: Study, point: _Point) -> Iterator[tuple[str, Any, Any, Study]]:
    model, layout = point.row.model, point.row.layout
    whole = {k: round(float(getattr(model, k))) for k in names(Model) if math.isfinite(float(getattr(model, k)))}
    values = study.base["model"].values
    held = {k: v for k, v in _resolved(model).items() if not isinstance(values.get(k), bool)}

    def models(key: str, changes: Sequence[Mapping[str, int]]) -> Iterator[tuple[str, Any, Any, Study]]:
        for change in changes:
            name = key.partition(".")[2]
            yield key, whole[name], change[name], _with(study, "model", {**held, **change})

    pp = round(float(layout.pp))
    attention = max(("n_full_layers", "n_window_layers", "n_linear_layers"), key=lambda k: whole[k])
    ffn = "n_moe_layers" if whole["n_moe_layers"] > whole["n_dense_layers"] else "n_dense_layers"
    kinds = ["n_layers", attention, ffn]
    if attention == "n_full_layers" and whole["n_index_layers"] == whole["n_full_layers"]:
        kinds.append("n_index_layers")
    yield from models("model.n_layers", [{k: whole[k] + sign * pp for k in kinds} for sign in (-1, 1)])
    tpf = round(float(layout.tpf))
    for name, cut in (("d_model", 1), ("d_ff", tpf), ("d_expert", tpf)):
        size, unit = whole[name], math.lcm(128, max(cut, 1))
        used = name == "d_model" or whole["n_moe_layers" if name == "d_expert" else "n_dense_layers"] > 0
        if size > 0 and used:
            by = max(round(size / 16 / unit), 1) * unit
            yield from models(f"model.{name}", [{name: size + sign * by} for sign in (-1, 1) if size > by])
    unit = math.lcm(round(float(layout.tpa)), 1 if whole["kv_lora_rank"] > 0 else max(whole["n_kv_heads"], 1))
    by = max(round(whole["n_heads"] / 16 / unit), 1) * unit
    yield from models(
        "model.n_heads", [{"n_heads": whole["n_heads"] + s * by} for s in (-1, 1) if whole["n_heads"] > by]
    )
    if whole["kv_lora_rank"] <= 0 and whole["n_full_layers"] + whole["n_window_layers"] > 0:
        own = whole["n_kv_heads"]
        both = [n for n in (own // 2 if own % 2 == 0 else 0, own * 2) if n and whole["n_heads"] % n == 0]
        yield from models("model.n_kv_heads", [_kv_heads(whole, n) for n in both])
    if whole["n_experts"] > 0:
        top = whole["top_k"]
        fewer = [n for n in (whole["n_experts"] // 2, whole["n_experts"] * 2) if n >= top]
        yield from models("model.n_experts", [{"n_experts": n} for n in fewer])
        yield from models("model.top_k", [{"top_k": n} for n in (top - 1, top + 1) if 1 <= n <= whole["n_experts"]])
    yield from _formats(study)
    yield from _layouts(study, layout)
    batch = round(float(point.batch))
    for n in (batch // 2, batch * 2):
        if n >= 1:
            yield "workload.batch", batch, n, _with(study, "workload", {"batch": float(n)})
    load = study.base["workload"].values
    key = "context" if load["context"] is not None else "isl"
    length = round(float(load[key]))
    for n in (length // 2, length * 2):
        if n >= 1:
            yield f"workload.{key}", length, n, _with(study, "workload", {key: float(n)})


def _kv_heads(whole: Mapping[str, int], n: int) -> dict[str, int]:
    same = whole["window_kv_heads"] == whole["n_kv_heads"]
    return {"n_kv_heads": n, **({"window_kv_heads": n} if same else {})}


def _resolved(model: Model) -> dict[str, Any]:
    """What a model's open fields came out as, so that one can change without the others."""
    values = {k: float(getattr(model, k)) for k in names(Model)}
    return {k: v for k, v in values.items() if math.isfinite(v)}


def _neighbours(name: str, ladder: Sequence[str]) -> list[str]:
    if name not in ladder:
        return []
    at = ladder.index(name)
    return [ladder[i] for i in (at - 1, at + 1) if 0 <= i < len(ladder)]


def _formats(study: Study) -> Iterator[tuple[str, Any, Any, Study]]:
    own: Record = study.base["precision"]
    if own.id in LADDER and own.values == study.library.record("precision", own.id).values:
        for name in _neighbours(own.id, LADDER):
            record = study.library.record("precision", name)
            yield "precision", own.id, name, dataclasses.replace(study, base={**study.base, "precision": record})
    kv = str(own.values["kv"])
    for name in _neighbours(kv, KV_LADDER):
        yield "precision.kv", kv, name, _with(study, "precision", {"kv": name})


def _layouts(study: Study, layout: Layout) -> Iterator[tuple[str, Any, Any, Study]]:
    given = study.base["layout"].values
    size = {k: round(float(getattr(layout, k))) for k in ("tpa", "kvp", "dpa", "tpf", "ep", "pp")}

    def cut(key: str, factors: Mapping[str, float]) -> Iterator[tuple[str, Any, Any, Study]]:
        changed = {k: size[k] * f for k, f in factors.items()}
        if all(v >= 1 and float(v).is_integer() for v in changed.values()):
            full = {k: float(v) for k, v in {**size, **changed}.items()}
            name = key.partition(".")[2]
            yield key, size[name], round(changed[name]), _with(study, "layout", {**given, **full})

    for f in (0.5, 2.0):
        yield from cut("layout.tpa", {"tpa": f, "tpf": f})
    if size["ep"] > 1 or size["dpa"] > 1:
        for f in (0.5, 2.0):
            yield from cut("layout.dpa", {"dpa": f, "ep": f} if size["ep"] > 1 else {"dpa": f, "tpf": f})
    if size["kvp"] > 1:
        for f in (0.5, 2.0):
            yield from cut("layout.kvp", {"kvp": f, "ep": f} if size["ep"] > 1 else {"kvp": f, "tpf": f})
    for f in (0.5, 2.0):
        yield from cut("layout.pp", {"pp": f})
