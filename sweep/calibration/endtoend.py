"""Constants that only whole services show: overheads, multipliers of chip generations, what serving adds.

The kernel constants of a preset stay as they are; what is fitted multiplies them (`Knobs`). Everything is fitted at
once on the logarithm of the time per output token, with a loss that forgives outliers and a prior on every constant
that is strong enough to keep it from learning which model it sees. Held-out scores: the same code, rows left out.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sweep.calibration import bands
from sweep.calibration.operators import in_order, paying
from sweep.calibration.predict import (
    Knobs,
    Predicted,
    Presets,
    Table,
    make_knobs,
    make_table,
    pool_kind,
    pool_name,
    predict,
    presets,
)
from sweep.calibration.rows import Catalogue, Measured, Row, Unanswered, to_point
from sweep.calibration.score import doubt, ranking, rate_of, score, tpot_of, ttft_of
from sweep.config import Library, as_record
from sweep.cost.serving import decode_steps
from sweep.machine import kernel_constants, math_unit, relative_of
from sweep.point import FORMAT_MATH, PHI_MOST

SCALE = 0.15  # log error beyond which a row counts by its size instead of its square
PRIOR = 0.25  # weight of a prior against rows; chosen between 1 and 0.1 on held-out models and chips
STEPS = 8
NUDGE = 0.02  # of a knob, for its finite difference
WORTH = 0.02  # a deviation of an architecture or a format stays where the loss would grow by this share without it


@dataclass(frozen=True, kw_only=True)
class Constant:
    """One fitted constant: a knob on the rows of one group, on a log scale (0: as the preset has it)."""

    knob: str
    group: str  # all, an architecture, a format of experts; in the serving stage a framework, a pool, a way of serving
    sigma: float  # of its prior
    mean: float = 0.0  # around which the prior lies

    @property
    def name(self) -> str:
        """`layer`, `floor/blackwell`."""
        return self.knob if self.group == "all" else f"{self.knob}/{self.group}"


# Standard deviations of priors, log scale. Common to all rows is what no kernel accounts for. Common multipliers of
# kernels and links were tried and dropped (operator timings say enough: held-out errors were 0.1 to 0.7 points higher
# with them), and so were deviations by framework, chip and date.
COMMON = {"layer": 0.6, "host": 0.6, "request": 0.6, "exchange": 0.6, "phi": 0.2, "acceptance": 0.4}
# Of an architecture (Blackwell and Blackwell Ultra are one), and of the experts in one format: candidates, see `WORTH`.
ARCHITECTURE = {"memory": 0.15, "floor": 0.8}
EXPERTS = 0.3
# Frameworks start dispatch and combine 3 to 8 times slower than the kernels that the link's constants are fitted to
# (aiconfigurator-core 0.12.0, tables of all-to-all inside TensorRT-LLM, SGLang and vLLM beside DeepEP's own).
MEANS = {"exchange": 0.7}
ADDED = ("acceptance",)  # knobs that add instead of multiplying: log odds
MOST = {"phi": PHI_MOST}  # of a knob


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Rows to fit and to score: points, their table, what was measured, how much each counts."""

    rows: list[Row]
    points: list[Measured]
    table: Table
    knobs: Knobs  # the preset's own
    generation: list[str]
    experts: list[str]  # which constants of grouped GEMMs a row uses: a format, or a pair of them; "" without experts
    log_tpot: np.ndarray
    log_rate: np.ndarray  # NaN where not measured
    log_ttft: np.ndarray
    weight: np.ndarray

    def __len__(self) -> int:
        return len(self.points)


def sample(
    rows: Sequence[Row], points: Sequence[Measured | None], catalogue: Catalogue, efficiency: Mapping[str, Any]
) -> Sample:
    """Rows of trust A with a measured time per token, a point, a known way of drafting and nothing against them.

    A row counts by (rows of its model, chip and framework)^-1/4, so that one model does not drown the others.
    """
    kept = [
        (r, p)
        for r, p in zip(rows, points, strict=True)
        if p is not None and r.get("trust") == "A" and np.isfinite(tpot_of(r)) and p.labelled and doubt(r, p) is None
    ]
    own_rows, own = [r for r, _ in kept], [p for _, p in kept]
    cells: dict[Any, int] = {}
    for p in own:
        cells[p.model, p.hardware, p.framework] = cells.get((p.model, p.hardware, p.framework), 0) + 1
    return Sample(
        rows=own_rows,
        points=own,
        table=make_table(own, catalogue, efficiency),
        knobs=make_knobs(own, efficiency),
        generation=[str(catalogue.record("hardware", p.hardware).about.get("generation")) for p in own],
        experts=[expert_format(p, catalogue) for p in own],
        log_tpot=np.log([tpot_of(r) for r in own_rows]),
        log_rate=np.log([rate_of(r) if p.rate_known else np.nan for r, p in kept]),
        log_ttft=np.log([ttft_of(r) for r in own_rows]),
        weight=np.array([cells[p.model, p.hardware, p.framework] ** -0.25 for p in own]),
    )


def expert_format(point: Measured, catalogue: Catalogue) -> str:
    """The entry of the preset's `experts` that a point's grouped GEMMs take, "" for models without experts."""
    if not catalogue.record("model", point.model).values.get("n_experts"):
        return ""
    weights = point.precision.weights_ffn or point.precision.weights
    unit = math_unit(weights, point.precision.activations, as_record(catalogue.record("hardware", point.hardware)))
    if FORMAT_MATH[weights] == unit:
        return "fp4" if unit == "fp4" else weights
    return f"{weights}_{unit}"


def architecture(generation: str) -> str:
    """`blackwell` of Blackwell and Blackwell Ultra."""
    return generation.partition("_")[0]


def constants(s: Sample) -> list[Constant]:
    """What may be fitted on a sample: common knobs, and deviations of the architectures and formats that occur."""
    out = [Constant(knob=knob, group="all", sigma=sigma, mean=MEANS.get(knob, 0.0)) for knob, sigma in COMMON.items()]
    for knob, sigma in ARCHITECTURE.items():
        out += [Constant(knob=knob, group=a, sigma=sigma) for a in sorted({architecture(g) for g in s.generation})]
    return out + [Constant(knob="experts", group=f, sigma=EXPERTS) for f in sorted(set(s.experts) - {""})]


def design(s: Sample, fitted: Sequence[Constant]) -> np.ndarray:
    """Which rows each constant acts on [rows, constants]."""
    architectures, experts = np.array([architecture(g) for g in s.generation]), np.array(s.experts)
    columns = []
    for c in fitted:
        own = experts == c.group if c.knob == "experts" else architectures == c.group
        columns.append(np.ones(len(s), dtype=bool) if c.group == "all" else own)
    return np.array(columns, dtype=np.float64).T.reshape(len(s), len(fitted))


def knobs_of(s: Sample, fitted: Sequence[Constant], acts: np.ndarray, theta: np.ndarray) -> Knobs:
    """Each row's knobs at given constants."""
    values = {f.name: np.asarray(getattr(s.knobs, f.name), dtype=np.float64) for f in dataclasses.fields(Knobs)}
    for knob in {c.knob for c in fitted}:
        at = [j for j, c in enumerate(fitted) if c.knob == knob]
        shift = acts[:, at] @ theta[at]
        moved = values[knob] + shift if knob in ADDED else values[knob] * np.exp(shift)
        values[knob] = np.minimum(moved, MOST.get(knob, np.inf))
    return Knobs(**values)


def slopes(
    s: Sample, fitted: Sequence[Constant], acts: np.ndarray, theta: np.ndarray
) -> tuple[np.ndarray, np.ndarray, Predicted]:
    """Log time per token [rows], its derivative by each constant [rows, constants], and the prediction itself.

    Derivatives are finite differences by the knobs of each row, the running batch held: a constant moves a row's time
    only through its knob.
    """
    knobs = knobs_of(s, fitted, acts, theta)
    now = predict(s.table, knobs)
    log_now = np.log(now.tpot_s)
    held = np.log(predict(s.table, knobs, batch=now.batch).tpot_s)
    jacobian = np.zeros((len(s), len(fitted)))
    for knob in dict.fromkeys(c.knob for c in fitted):
        value = getattr(knobs, knob)
        moved = value + NUDGE if knob in ADDED else value * np.exp(NUDGE)
        there = predict(s.table, dataclasses.replace(knobs, **{knob: moved}), batch=now.batch).tpot_s
        slope = (np.log(there) - held) / NUDGE
        for j, c in enumerate(fitted):
            if c.knob == knob:
                jacobian[:, j] = slope * acts[:, j]
    return log_now, jacobian, now


# What serving adds: fitted on throughput and the time to the first token, the step itself held. Standard deviations of
# the priors, log scale.
SERVING = {"pool": 0.5, "bunching": 0.7, "first": 0.5, "first_s": 1.0, "launch": 1.0}
LAUNCH_EXPERTS = 0.5  # of a layer with experts over one without
SERVING_PRIOR = 0.01  # weight of these priors: light rows, which alone tell most of them, are few
POOL_OWN = 0.4  # of a framework's prefill pools around those of all
FRAMEWORK_OWN = 0.1  # of its frontend and launches: more learns which models it was measured with
RATE_WEIGHT, RATE_SCALE = 1.0, 0.15
TTFT_WEIGHT, TTFT_SCALE = 0.05, 0.4
LIGHT_WEIGHT, LIGHT_SCALE = 1.0, 0.2  # of rows with few requests in flight, whose first token is not queueing
LIGHT = 4
STARVED = 0.9  # of the requests that could run: decode workers with fewer wait for the prefill pool


def serving_constants(s: Sample) -> tuple[list[Constant], np.ndarray]:
    """Constants of the serving stage and the rows that each acts on [rows, constants]."""
    split = np.array([p.disaggregated for p in s.points])
    own = np.array([p.framework for p in s.points])
    kinds, pools = np.array([pool_kind(p) for p in s.points]), np.array([pool_name(p) for p in s.points])
    out: list[tuple[Constant, np.ndarray]] = []
    for kind in ("tensor", "grouped"):
        out.append((Constant(knob="pool", group=kind, sigma=SERVING["pool"]), split & (kinds == kind)))
    for name in sorted(set(pools[split])):
        out.append((Constant(knob="pool", group=str(name), sigma=POOL_OWN), split & (pools == name)))
    out.append((Constant(knob="first_s", group="disaggregated", sigma=SERVING["first_s"]), split))
    everybody = np.ones(len(s), dtype=bool)
    for knob in ("bunching", "first", "first_s", "launch"):
        out.append((Constant(knob=knob, group="all", sigma=SERVING[knob]), everybody))
    out.append(
        (Constant(knob="launch", group="experts", sigma=LAUNCH_EXPERTS), np.array([p.experts for p in s.points]))
    )
    heard = own[np.isfinite(s.log_ttft)]
    for knob in ("first_s", "launch"):  # what differs between frameworks
        out += [(Constant(knob=knob, group=str(f), sigma=FRAMEWORK_OWN), own == f) for f in sorted(set(heard))]
    return [c for c, _ in out], np.array([m for _, m in out], dtype=np.float64).T


def solve_serving(
    s: Sample,
    base: Knobs,
    keep: np.ndarray,
    *,
    start: np.ndarray | None = None,
    steps: int = 5,
    prior: float = SERVING_PRIOR,
) -> tuple[list[Constant], np.ndarray, Knobs]:
    """What serving adds, fitted on throughput and first token: constants, their values, each row's knobs."""
    fitted, acts = serving_constants(s)
    theta = np.zeros(len(fitted)) if start is None else start.copy()
    pull = prior / np.array([c.sigma for c in fitted]) ** 2

    def knobs_at(values: np.ndarray, nudged: str = "") -> Knobs:
        new: dict[str, np.ndarray] = {}
        for knob in SERVING:
            at = [j for j, c in enumerate(fitted) if c.knob == knob]
            new[knob] = getattr(base, knob) * np.exp(acts[:, at] @ values[at] + (NUDGE if knob == nudged else 0.0))
        return dataclasses.replace(base, **new)

    def answers(knobs: Knobs) -> np.ndarray:
        p = predict(s.table, knobs)
        return np.concatenate([np.log(p.tok_s_gpu) - s.log_rate, np.log(p.ttft_s) - s.log_ttft])

    n = len(s)
    light = np.array([p.concurrency <= LIGHT and not p.disaggregated for p in s.points])
    scale = np.concatenate([np.full(n, RATE_SCALE), np.where(light, LIGHT_SCALE, TTFT_SCALE)])
    ttft_weight = np.where(light, LIGHT_WEIGHT, TTFT_WEIGHT)
    weight = np.concatenate([s.weight * RATE_WEIGHT, s.weight * ttft_weight]) * np.tile(keep, 2)
    for _ in range(steps):
        residual = answers(knobs_at(theta))
        known = np.isfinite(residual)
        jacobian = np.zeros((2 * n, len(fitted)))
        # a frontend's own time shows in rows with nobody else there, and queueing in all the others
        alone = dict.fromkeys(("first", "first_s", "launch"), np.tile(light, 2))
        for knob in SERVING:
            slope = (answers(knobs_at(theta, knob)) - residual) / NUDGE
            for j, c in enumerate(fitted):
                if c.knob == knob:
                    seen = known & (alone.get(knob, True) if c.group != "disaggregated" else True)
                    jacobian[:, j] = np.where(seen, slope, 0.0) * np.tile(acts[:, j], 2)
        r = np.where(known, residual, 0.0)
        w = np.where(known, weight, 0.0) / np.sqrt(1.0 + (r / scale) ** 2)
        hessian = jacobian.T @ (w[:, None] * jacobian) + np.diag(pull)
        step = np.linalg.solve(hessian, -(jacobian.T @ (w * r) + pull * theta))
        theta = theta + np.clip(step, -0.5, 0.5)
        if np.abs(step).max() < 5e-3:
            break
    return fitted, theta, knobs_at(theta)


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Fitted constants, and what they say of the rows they came from."""

    constants: tuple[Constant, ...]
    theta: np.ndarray
    sigma: np.ndarray  # one standard deviation of each, from the curvature at the end
    predicted: Predicted
    log_error: np.ndarray  # predicted over measured, of all rows of the sample
    jacobian: np.ndarray  # of residuals and priors by the constants at the end [rows + constants, constants]
    residual: np.ndarray  # these themselves: the loss is half the sum of their squares

    def value(self, name: str) -> float:
        """A constant by name, 0 where it is not among those fitted."""
        return next((float(t) for c, t in zip(self.constants, self.theta, strict=True) if c.name == name), 0.0)


def solve(
    s: Sample,
    fitted: Sequence[Constant],
    keep: np.ndarray,
    *,
    start: np.ndarray | None = None,
    steps: int = STEPS,
    prior: float = PRIOR,
) -> Fit:
    """Constants that fit the rows kept: Gauss-Newton on a soft-L1 loss with Gaussian priors.

    Args:
        s: rows, fitted and held out alike.
        fitted: the constants.
        keep: which rows are fitted [rows, bool].
        start: where to begin; at the preset if not given.
    Returns: the fit, with errors of all rows.
    """
    acts = design(s, fitted)
    mean = np.array([c.mean for c in fitted])
    theta = mean if start is None else start.copy()
    pull = prior / np.array([c.sigma for c in fitted]) ** 2
    for _ in range(steps):
        log_now, jacobian, _now = slopes(s, fitted, acts, theta)
        residual = log_now - s.log_tpot
        # soft L1: 2 (sqrt(1 + z) - 1), z = (r / scale)^2, as a weight on the square
        w = np.where(keep, s.weight, 0.0) / np.sqrt(1.0 + (residual / SCALE) ** 2)
        hessian = jacobian.T @ (w[:, None] * jacobian) + np.diag(pull)
        step = np.linalg.solve(hessian, -(jacobian.T @ (w * residual) + pull * (theta - mean)))
        theta = theta + np.clip(step, -0.5, 0.5)
        if np.abs(step).max() < 2e-3:
            break
    predicted = predict(s.table, knobs_of(s, fitted, acts, theta))
    error = np.log(predicted.tpot_s) - s.log_tpot
    spread = np.median(np.abs(error[keep])) * 1.4826
    sigma = spread * np.sqrt(np.diag(np.linalg.inv(hessian)))
    z, root = residual / SCALE, np.where(keep, np.sqrt(s.weight), 0.0)
    size = np.sqrt(2.0 * (np.sqrt(1.0 + z * z) - 1.0))
    per = np.where(size > 1e-9, np.abs(z) / np.sqrt(1.0 + z * z) / np.where(size > 1e-9, size, 1.0), 1.0)
    return Fit(
        constants=tuple(fitted),
        theta=theta,
        sigma=sigma,
        predicted=predicted,
        log_error=error,
        jacobian=np.concatenate([(root * per)[:, None] * jacobian, np.diag(np.sqrt(pull))]),
        residual=np.concatenate([root * SCALE * np.sign(z) * size, np.sqrt(pull) * (theta - mean)]),
    )


# --- both stages -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Calibrated:
    """A whole fit: the constants of the step and of serving, each row's knobs, predictions of all rows."""

    step: tuple[Constant, ...]
    step_theta: np.ndarray
    step_sigma: np.ndarray
    serving: tuple[Constant, ...]
    serving_theta: np.ndarray
    knobs: Knobs
    predicted: Predicted
    generations: tuple[str, ...]  # that the rows come from

    def log_error(self, s: Sample) -> np.ndarray:
        """Predicted over measured time per token, log, of all rows."""
        error: np.ndarray = np.log(self.predicted.tpot_s) - s.log_tpot
        return error


def calibrate_rows(
    s: Sample, keep: np.ndarray, *, start: Calibrated | None = None, rounds: int = 2, prior: float = PRIOR
) -> Calibrated:
    """Both stages in turn, a few rounds: the step decides the running batch, and the batch the step.

    Args:
        s: rows, fitted and held out alike.
        keep: which rows are fitted [rows, bool].
        start: a fit to start from; one round of fewer steps is enough then.
    """
    fitted = constants(s) if start is None else list(start.step)
    theta = np.array([c.mean for c in fitted]) if start is None else start.step_theta
    serving_theta = None if start is None else start.serving_theta
    current = s.knobs if start is None else start.knobs
    for turn_of in range(rounds):
        base = knobs_of(s, fitted, design(s, fitted), theta)
        if start is None or turn_of > 0 or rounds == 1:
            serving, serving_theta, current = solve_serving(
                s, base, keep, start=serving_theta, steps=6 if start is None else 3
            )
        own = {k: getattr(current, k) for k in SERVING}
        settled = dataclasses.replace(s, knobs=dataclasses.replace(s.knobs, **own))
        fit = solve(settled, fitted, keep, start=theta, steps=5 if start is None else 3, prior=prior)
        if start is None and turn_of == 0:
            free, means = [c.group == "all" for c in fitted], [c.mean for c in fitted]
            stays = paying(fit.theta, means, fit.jacobian, fit.residual, free, WORTH)
            fitted = [c for c, stay in zip(fitted, stays, strict=True) if stay]
            fit = solve(settled, fitted, keep, start=fit.theta[stays], steps=5, prior=prior)
        theta = fit.theta
    knobs = dataclasses.replace(knobs_of(s, fitted, design(s, fitted), theta), **own)
    assert serving_theta is not None
    return Calibrated(
        step=tuple(fitted),
        step_theta=theta,
        step_sigma=fit.sigma,
        serving=tuple(serving),
        serving_theta=serving_theta,
        knobs=knobs,
        predicted=fit.predicted,
        generations=tuple(sorted(set(s.generation))),
    )


# --- held out ----------------------------------------------------------------------------------------------------


def fold_of(name: str, folds: int) -> int:
    """Which fold a curve belongs to: the same in every run and on every machine."""
    return int(hashlib.sha256(name.encode()).hexdigest(), 16) % folds


def held_out(
    s: Sample,
    full: Calibrated,
    groups: Sequence[str],
    *,
    relatives: Mapping[str, str | None] | None = None,
    tables: Mapping[str, Table] | None = None,
    report: Callable[[str], None] = lambda _: None,
) -> Predicted:
    """Predictions of each row by a fit that never saw its group.

    Constants of a generation or framework that only the group has fall back to their prior: the common ones. A chip
    generation left out takes the constants of its relative, as a machine does that nobody has measured.

    Args:
        s: rows.
        full: a fit of all of them, to start from.
        groups: which group each row belongs to.
        relatives: the measured generation that each generation would take, were it not measured itself.
        tables: the rows with what kernels say of a group left out too, where a preset says so; by group.
    """
    names = np.array(groups)
    parts = {f.name: np.full(len(s), np.nan) for f in dataclasses.fields(Predicted)}
    for name in sorted(set(groups)):
        out = names == name
        kin = (relatives or {}).get(name)
        own = s if kin is None else dataclasses.replace(s, generation=[kin if g == name else g for g in s.generation])
        own = own if tables is None else dataclasses.replace(own, table=tables[name])
        fit = calibrate_rows(own, ~out, start=full, rounds=1)
        for key, values in parts.items():
            values[out] = getattr(fit.predicted, key)[out]
        error = np.expm1(fit.log_error(s)[out])
        report(f"without {name}: {int(out.sum())} rows, median {np.median(np.abs(error)):.3f}")
    return Predicted(**parts)


def family(model: str) -> str:
    """Models of one shape count as one: a row of one would give the other away."""
    same = {"deepseek_r1": "deepseek_v3", "llama_3_3_70b_instruct": "llama_3_1_70b", "llama_3_70b": "llama_3_1_70b"}
    return same.get(model, model)


def split_groups(s: Sample) -> dict[str, list[str]]:
    """The ways of leaving rows out: five folds of curves, each model, chip, chip generation."""
    curves = [str(r.get("curve_id") or p.row_id) for r, p in zip(s.rows, s.points, strict=True)]
    return {
        "curve": [str(fold_of(c, 5)) for c in curves],
        "model": [family(p.model) for p in s.points],
        "chip": [p.hardware for p in s.points],
        "generation": list(s.generation),
    }


# --- into a preset -----------------------------------------------------------------------------------------------


def turn(efficiency: Mapping[str, Any], fit: Calibrated, band: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A preset with the fitted constants in it: it predicts what the knobs did.

    Args:
        efficiency: the preset that was fitted.
        fit: its constants.
        band: factors that hold 80 % of held-out rows (`sweep.calibration.bands`); none: the preset carries no band.
    """
    e = copy.deepcopy(dict(efficiency))
    theta = {(c.knob, c.group): float(t) for c, t in zip(fit.step, fit.step_theta, strict=True)}

    def grown(knob: str, group: str = "all") -> float:
        return math.exp(theta.get((knob, group), 0.0))

    known = e.setdefault("generations", {})
    for g in fit.generations:
        known[g] = known.get(g) or {}
    for g, own in known.items():
        if ("memory", architecture(g)) in theta:
            own["memory"] = own.get("memory", e.get("memory", 1.0)) / grown("memory", architecture(g))
        if ("floor", architecture(g)) in theta:
            own["floor"] = own.get("floor", e.get("floor", 1.0)) * grown("floor", architecture(g))
    experts = e["kernels"]["experts"]
    slower = sorted(g for k, g in theta if k == "experts")
    named = dict.fromkeys([*_formats(experts), *slower])
    before = {f: kernel_constants(experts, *_unit(f)).get("served", 1.0) for f in named}
    for f in slower:  # the constants of a unit reach all formats that it multiplies
        experts.setdefault(f, {})["served"] = before[f] * grown("experts", f)
        for other in _formats(experts):
            if other not in slower and _unit(other)[0] == f:
                experts[other]["served"] = before[other]
    link = e["links"]["experts"]
    e["links"]["experts"] = {**link, "t0_s": link["t0_s"] * grown("exchange")}
    e["layer_s"], e["host_s"] = e["layer_s"] * grown("layer"), e["host_s"] * grown("host")
    e["request_s"] = e["request_s"] * grown("request")
    e["serving"] = _serving(efficiency, fit, grown("phi"), theta.get(("acceptance", "all"), 0.0), band)
    return e


def _formats(experts: Mapping[str, Any]) -> list[str]:
    """Formats that have constants of their own."""
    return [f for f, own in experts.items() if isinstance(own, Mapping) and f != "weight_only"]


def _unit(name: str) -> tuple[str, str]:
    """Math unit and weight format of an entry of the experts: `fp4`, `fp8_block`, `mxfp4_fp8`."""
    if name in FORMAT_MATH:
        return str(FORMAT_MATH[name]), name
    weights, _, unit = name.rpartition("_")
    return (unit, weights) if weights else (name, name)


def _serving(
    efficiency: Mapping[str, Any], fit: Calibrated, phi: float, odds: float, band: Mapping[str, Any] | None
) -> dict[str, Any]:
    before = presets(efficiency)
    theta = {(c.knob, c.group): float(t) for c, t in zip(fit.serving, fit.serving_theta, strict=True)}

    def accepted(share: float) -> float:
        ratio = share / (1.0 - share) * math.exp(odds)
        return ratio / (1.0 + ratio)

    out: dict[str, Any] = {
        "phi": min(before.phi * phi, PHI_MOST),
        "acceptance": accepted(before.acceptance),
        "pool": {},
        "handoff": before.handoff * math.exp(theta.get(("first_s", "disaggregated"), 0.0)),
        "bunching": before.bunching * math.exp(theta.get(("bunching", "all"), 0.0)),
        "first": before.first * math.exp(theta.get(("first", "all"), 0.0)),
        "first_s": {},
        "launch_s": {},
    }
    for kind in ("tensor", "grouped"):
        out["pool"][kind] = before.pool[kind] * math.exp(theta.get(("pool", kind), 0.0))
    for (knob, name), value in theta.items():
        if knob == "pool" and "_" in name:
            kind = name.rpartition("_")[2]
            own = before.pool.get(name, before.pool[kind])
            out["pool"][name] = own * math.exp(theta.get(("pool", kind), 0.0) + value)
    for knob, key, at in (("first_s", "first_s", before.first_s), ("launch", "launch_s", before.launch_s)):
        common = theta.get((knob, "all"), 0.0)
        out[key]["default"] = at["default"] * math.exp(common)
        for (k, name), value in theta.items():
            if k == knob and name == "experts":
                out[key][name] = at[name] * math.exp(value)
            elif k == knob and name not in ("all", "disaggregated"):
                out[key][name] = at.get(name, at["default"]) * math.exp(common + value)
    return out if band is None else {**out, "band": bands.structured(band)}


def without(efficiency: Mapping[str, Any], generations: Mapping[str, Any], left_out: set[str]) -> dict[str, Any]:
    """A preset as it would be, had nobody measured some chip generations: what kernels say of them is gone too.

    Args:
        efficiency: the preset.
        generations: those that whole services were measured on, with vendor and year.
        left_out: names of generations.
    """
    known = {g: {**own, **(efficiency.get("generations") or {}).get(g, {})} for g, own in generations.items()}
    return {**efficiency, "generations": {g: own for g, own in known.items() if g not in left_out}}


def residuals(
    s: Sample, out: Mapping[str, Predicted], groups: Mapping[str, Sequence[str]], serving: Presets
) -> bands.Residuals:
    """How far held-out predictions lie from what was measured, for each metric with a band of its own.

    `first` is what a sweep can say of a first token: its prefill, and a frontend and launches common to all
    frameworks, of rows that nobody queues in. `prefill` compares the prompts that a pool takes in, where it is the
    bottleneck, with one prompt at a time.
    """
    split = np.array([p.disaggregated for p in s.points])
    load = np.array([p.concurrency for p in s.points])
    each = load / np.array([p.decode_workers for p in s.points])
    prompts = np.array([p.prefill_workers * p.prefill.dpa for p in s.points])
    per_gpu = np.array([p.gpus / p.osl for p in s.points])
    steps = decode_steps(np.array([p.osl for p in s.points]))
    frontend = serving.first_s["default"] * np.where(split, serving.handoff, 1.0)
    experts = np.where([p.experts for p in s.points], serving.launch_s["experts"], 1.0)
    frontend = frontend + serving.launch_s["default"] * experts * np.asarray(s.table.row.model.n_layers)

    def logs(p: Predicted) -> dict[str, np.ndarray]:
        with np.errstate(divide="ignore", invalid="ignore"):
            first = s.log_ttft - np.log(serving.first * p.prefill_s + frontend)
            pool = s.log_rate + np.log(per_gpu * p.prefill_s / prompts)
            starved = split & (p.batch < STARVED * np.minimum(each, p.max_batch))
            return {
                "tpot": s.log_tpot - np.log(p.tpot_s),
                "tok_s_gpu": s.log_rate - np.log(p.tok_s_gpu),
                "ttft": s.log_ttft - np.log(p.ttft_s),
                "first": np.where(load <= LIGHT, first, np.nan),
                "prefill": np.where(starved, pool, np.nan),
                "request": np.log(np.exp(s.log_ttft) + steps * np.exp(s.log_tpot))
                - np.log(p.ttft_s + steps * p.tpot_s),
            }

    return bands.Residuals(
        log={way: logs(p) for way, p in out.items()},
        first={way: p.ttft_s / (p.ttft_s + steps * p.tpot_s) for way, p in out.items()},
        group={way: np.array(groups[way]) for way in out},
        row_id=np.array([p.row_id for p in s.points]),
        drafted=np.array([p.drafted > 0 for p in s.points]),
        disaggregated=split,
        light=load <= LIGHT,
    )


@dataclass(frozen=True, kw_only=True)
class Report:
    """A calibration and what it is worth on rows that it did not see."""

    efficiency: dict[str, Any]  # the preset, turned
    sample: Sample
    full: Calibrated
    held_out: dict[str, Predicted]  # by way of leaving out
    residuals: bands.Residuals


def fit(
    rows: Sequence[Row],
    efficiency: Mapping[str, Any],
    library: Library,
    *,
    report: Callable[[str], None] = lambda _: None,
    leave_out: Sequence[str] = ("curve", "model", "chip", "generation", "vendor"),
) -> Report:
    """Overheads, multipliers and serving constants for a preset, from measured rows.

    Args:
        rows: measured rows, columns as text.
        efficiency: the preset whose kernel constants stand.
        library: where models and machines are looked up.
        report: is told how it goes.
        leave_out: ways of leaving rows out that are scored (`split_groups`, and `vendor`: all chips of a maker); all
            but `curve` also give the bands.
    """
    catalogue = Catalogue(library)
    points: list[Measured | None] = []
    for row in rows:
        try:
            points.append(to_point(row, catalogue))
        except Unanswered:
            points.append(None)
    s = sample(rows, points, catalogue, efficiency)
    everything = np.ones(len(s), dtype=bool)
    full = calibrate_rows(s, everything)
    report(f"{len(s)} rows; in sample median {np.median(np.abs(np.expm1(full.log_error(s)))):.3f}")
    of_kernels = efficiency.get("generations") or {}
    generations = in_order({g: of_kernels.get(g) for g in dict.fromkeys(s.generation)}, library)
    maker = {g: str(own["vendor"]) for g, own in generations.items()}
    groups = {**split_groups(s), "vendor": [maker[g] for g in s.generation]}
    out: dict[str, Predicted] = {}
    for way in leave_out:
        if len(set(groups[way])) < 2:  # nothing would be left to fit
            continue
        more: dict[str, Any] = {}
        if way in ("generation", "vendor"):  # a machine that nobody has measured, not even its kernels
            gone = {n: {g for g in maker if n in (g, maker[g])} for n in set(groups[way])}
            left = {n: without(efficiency, generations, names) for n, names in gone.items()}
            more["tables"] = {n: make_table(s.points, catalogue, e) for n, e in left.items()}
            more["relatives"] = {n: relative_of(e, n, maker.get(n)) for n, e in left.items()}
        out[way] = held_out(s, full, groups[way], report=report, **more)
    plain = turn(efficiency, full)
    rest = residuals(s, out, groups, presets(plain))
    return Report(
        efficiency=turn(efficiency, full, bands.bands(rest)), sample=s, full=full, held_out=out, residuals=rest
    )


def scores(r: Report) -> dict[str, dict[str, Any]]:
    """Held-out scores by way of leaving out: time per token, throughput, first token, ranks, share inside the band."""
    s = r.sample
    split = np.array([p.disaggregated for p in s.points])
    light = np.array([p.concurrency <= LIGHT and not p.disaggregated for p in s.points])
    inside = {c.left_out: c.inside for c in bands.coverage(r.residuals) if c.metric == "tpot"}
    curves = [str(row.get("curve_id")) for row in s.rows]
    found = {}
    for way, p in {"in sample": r.full.predicted, **r.held_out}.items():
        with np.errstate(invalid="ignore"):
            tpot = p.tpot_s / np.exp(s.log_tpot) - 1.0
            rate, ttft = p.tok_s_gpu / np.exp(s.log_rate) - 1.0, p.ttft_s / np.exp(s.log_ttft) - 1.0
        found[way] = {
            "tpot": score(tpot),
            "rate_aggregated": score(rate[~split]),
            "rate_disaggregated": score(rate[split]),
            "ttft_light": score(ttft[light]),
            "ranks": ranking(curves, np.exp(s.log_tpot), p.tpot_s),
            "in_band": inside.get(way, float("nan")),
        }
    return found


def scores_table(r: Report) -> str:
    """The held-out scores as text."""
    head = f"{'left out':12s} {'TPOT median':>11s} {'mean':>6s} {'p90':>6s} {'bias':>6s} {'tok/s/GPU agg.':>15s}"
    lines = [f"{head} {'disagg.':>8s} {'TTFT light':>11s} {'ranks median':>13s} {'mean':>6s} {'in band':>8s}"]
    for way, x in scores(r).items():
        t = x["tpot"]
        lines.append(
            f"{way:12s} {100 * t.median:10.1f}% {100 * t.mean:5.1f}% {100 * t.p90:5.1f}% {100 * t.bias:+5.1f}%"
            f" {100 * x['rate_aggregated'].median:14.1f}% {100 * x['rate_disaggregated'].median:7.1f}%"
            f" {100 * x['ttft_light'].median:10.1f}% {x['ranks'].median:13.3f} {x['ranks'].weighted:6.3f}"
            + ("       –" if np.isnan(x["in_band"]) else f" {100 * x['in_band']:7.1f}%")
        )
    return "\n".join([*lines, bands.text(r.residuals)])
