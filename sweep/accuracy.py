"""The accuracy axis: a cited, elementwise proxy of the loss that a model nobody has trained would reach.

Everything that runs on arrays is written for ONE design point and is pure: use `jax.vmap` for many. `loss` gives nats
per token with its doubt; a benchmark score follows from it by a monotone map and is an axis label, never a reason to
prefer one design. What the proxy cannot see: router quality and expert imbalance, the share of attention, head size,
vocabulary, context length, hybrid layers, multi-token prediction, distillation, post-training, data quality,
reasoning length. Two designs that differ only there get the same loss.

Sources by arXiv number: 2404.10102 (base law, Besiroglu et al.), 2203.15556 (Hoffmann et al.), 2305.16264
(Muennighoff et al.), 2001.08361 (Kaplan et al.), 2507.17702 (efficiency leverage of mixtures of experts, Ling),
2501.18107 (shape, Bian et al.), 2405.04434 and 2305.13245 (key/value heads), 2505.09388 (Qwen3 tables, on which the
score map is fitted). "Own fit" marks a coefficient fitted for this tool on published scores.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from sweep.errors import BadInput, closest
from sweep.point import FORMAT_BITS, Model, Precision

Number = jax.Array | float
LN10, LN6 = math.log(10.0), math.log(6.0)

# --- Validity ranges -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Range:
    """An interval in which a law was fitted or checked; outside it, the proxy extrapolates."""

    low: float
    high: float
    unit: str
    doc: str


RANGES: dict[str, Range] = {
    "tokens": Range(0.25e9, 318e9, "tok", "training tokens D of the base law (2404.10102)"),
    "n_eff": Range(57e6, 16e9, "1", "effective parameters of the base law (2404.10102)"),
    "compute": Range(0.0, 1e22, "flop", "training compute 6 N_act D of the efficiency leverage (2507.17702); MoE only"),
    "activation_ratio": Range(0.01, 1.0, "1", "active share A of the experts (2507.17702); MoE only"),
    "granularity": Range(2.0, 16.0, "1", "2 d_model / d_expert (2507.17702); MoE only"),
    "moe_total": Range(
        0.0, 28e9, "1", "total parameters of the leverage fit (2507.17702; checked to 235e9 on one family)"
    ),
    "aspect_ratio": Range(32.0, 256.0, "1", "d_model / n_layers (2501.18107: 17 to 384, at most 1.5e9 parameters)"),
    "kv_ratio": Range(1.0, 32.0, "1", "query heads per key/value head (2405.04434, 2305.13245)"),
    "precision_size": Range(0.6e9, 235e9, "1", "total parameters of the models whose quantization loss is published"),
    "score_n_eff": Range(0.6e9, 110e9, "1", "effective parameters of the models that fix the score map (2505.09388)"),
    "score_tokens": Range(18e12, 36e12, "tok", "training tokens of the models that fix the score map (2505.09388)"),
    "effective_compute": Range(10**20.68, 10**25.57, "flop", "6 N_eff D over the 109 scored models (log_compute)"),
}
EXTRAPOLATION_RANGES: tuple[str, ...] = tuple(RANGES)  # bit i of `extrapolation_mask` is name i

# --- Coefficients ----------------------------------------------------------------------------------------------------


def _about(unit: str, doc: str, source: str = "", valid: tuple[str, ...] = ()) -> dict[str, Any]:
    """Metadata of a field: unit, meaning, source, the names in `RANGES` that bound its use."""
    return {"unit": unit, "doc": doc, "source": source, "valid": valid}


def _static(doc: str) -> dict[str, Any]:
    """Metadata of a field that selects code, hence is static under `jax.jit`."""
    return {"unit": "", "doc": doc, "source": "", "valid": (), "static": True}


_ND = ("n_eff", "tokens")


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Base:
    """L0 = e + a N^-alpha + b D^-beta in nats per token, N in parameters with embeddings, D in tokens."""

    e: Number = field(metadata=_about("nat/tok", "loss of an unlimited model on unlimited data", "see BASES", _ND))
    a: Number = field(metadata=_about("nat/tok", "prefactor of the parameters", "see BASES", _ND))
    alpha: Number = field(metadata=_about("1", "exponent of the parameters", "see BASES", _ND))
    b: Number = field(metadata=_about("nat/tok", "prefactor of the tokens", "see BASES", _ND))
    beta: Number = field(metadata=_about("1", "exponent of the tokens", "see BASES", _ND))


BASES: dict[str, Base] = {
    "besiroglu": Base(e=1.8172, a=482.01, alpha=0.3478, b=2085.43, beta=0.3658),  # 2404.10102: refit of Hoffmann's data
    "hoffmann_tex": Base(e=1.6934, a=406.4, alpha=0.3392, b=410.7, beta=0.2849),  # 2203.15556: unrounded, TeX source
    "muennighoff": Base(e=1.87, a=521.0, alpha=0.3526596, b=1488.0, beta=0.3526596),  # 2305.16264: single epoch, C4
}


@dataclass(frozen=True, kw_only=True)
class Kaplan:
    """L = ((n_c/N)^(alpha_n/alpha_d) + d_c/D)^alpha_d, N without embeddings. For comparison: no law here uses it."""

    alpha_n: float = field(default=0.076, metadata=_about("1", "exponent of the parameters", "2001.08361 table 2"))
    alpha_d: float = field(default=0.103, metadata=_about("1", "exponent of the tokens", "2001.08361 table 2"))
    n_c: float = field(default=6.4e13, metadata=_about("1", "parameters at one nat", "2001.08361 table 2"))
    d_c: float = field(default=1.8e13, metadata=_about("tok", "tokens at one nat", "2001.08361 table 2"))


_MOE = ("compute", "activation_ratio", "granularity", "moe_total")
_LING = "2507.17702 section 4.2"


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Leverage:
    """Efficiency leverage of a mixture of experts, EL = h(A)^(a + d log10 C + gamma (log2 G)^2 + beta log2 G)."""

    a: Number = field(default=1.23, metadata=_about("1", "exponent at one FLOP and G = 1", _LING, _MOE))
    d: Number = field(
        default=-0.0761, metadata=_about("1", "change of the exponent per decade of compute", _LING, _MOE)
    )
    gamma: Number = field(default=0.0167, metadata=_about("1", "curvature in log2 G", _LING, _MOE))
    beta: Number = field(default=-0.117, metadata=_about("1", "slope in log2 G", _LING, _MOE))
    a_start: Number = field(
        default=1.63e-2, metadata=_about("1", "activation ratio that h gives at A = 0", _LING, _MOE)
    )
    a_max: Number = field(default=5.28e16, metadata=_about("1", "activation ratio at which h saturates", _LING, _MOE))
    compute_cap: Number = field(
        default=RANGES["compute"].high,
        metadata=_about("flop", "compute beyond which the exponent is held", "edge of the fit"),
    )


_BIAN = "2501.18107, authors' repository"


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Width:
    """Loss factor of the aspect ratio R = d_model/n_layers, one at its best value and never below."""

    eps: Number = field(default=1.14621e-3, metadata=_about("1", "size of the width penalty", _BIAN, ("aspect_ratio",)))
    gamma: Number = field(default=0.614574, metadata=_about("1", "power of R", _BIAN, ("aspect_ratio",)))
    best: Number = field(
        default=64.0, metadata=_about("1", "R up to which width costs nothing", _BIAN, ("aspect_ratio",))
    )
    depth: Number = field(
        default=0.009, metadata=_about("1", "penalty per ln(narrow/R)^2", "own fit, data of 2501.18107")
    )
    narrow: Number = field(
        default=32.0, metadata=_about("1", "R below which depth costs", "own fit, data of 2501.18107")
    )
    strength: Number = field(
        default=0.5,
        metadata=_about(
            "1", "share of the effect kept: all of it gives 5 % where 2001.08361 saw under 3 %", "own choice"
        ),
    )


_MAP = "own fit on the tables of 2505.09388"


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Score:
    """accuracy = floor + (1 - floor) sigmoid(slope (midpoint - L)), and the same of log10 of the compute."""

    floor: Number = field(metadata=_about("1", "score of guessing", "number of answers offered"))
    slope: Number = field(metadata=_about("1/nat", "steepness in the loss", _MAP, ("score_n_eff", "score_tokens")))
    midpoint: Number = field(metadata=_about("nat/tok", "loss half way up", _MAP, ("score_n_eff", "score_tokens")))
    compute_slope: Number = field(
        metadata=_about("1", "steepness per decade of effective compute", "own fit, 109 models", ("effective_compute",))
    )
    compute_midpoint: Number = field(
        metadata=_about(
            "1", "log10 of the effective compute half way up", "own fit, 109 models", ("effective_compute",)
        )
    )
    compute_rmse: Number = field(
        metadata=_about("1", "in-sample error of the compute fit over all laboratories", "own fit")
    )


SCORES: dict[str, Score] = {
    "mmlu_pro": Score(  # family-bootstrap standard errors of the compute fit: 0.09 and 0.09
        floor=0.10, slope=6.749, midpoint=2.0298, compute_slope=0.991, compute_midpoint=24.521, compute_rmse=0.056
    ),
    "mmlu": Score(  # family-bootstrap standard errors of the compute fit: 0.09 and 0.07
        floor=0.25, slope=6.250, midpoint=2.1671, compute_slope=1.043, compute_midpoint=23.498, compute_rmse=0.051
    ),
}
SCORE_NAMES = {"mmlu_pro": "MMLU-Pro", "mmlu": "MMLU"}
# The map refitted for geo_mean with w = 0.5 and neither shape nor KV term; own fit on the tables of 2505.09388.
GEO_MEAN_REFIT: dict[str, tuple[float, float]] = {"mmlu_pro": (6.688, 2.0223), "mmlu": (6.172, 2.1613)}


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Doubt:
    """One standard deviation of each part, added in quadrature."""

    fit: Number = field(default=0.010, metadata=_about("nat/tok", "of any design, same recipe", "own estimate"))
    moe: Number = field(default=0.020, metadata=_about("nat/tok", "added where experts sleep", "own estimate"))
    moe_from: Number = field(
        default=1.05, metadata=_about("1", "total per active parameters that count as such", "own choice")
    )
    heuristic: Number = field(
        default=0.5, metadata=_about("1", "of the loss that shape and KV terms add", "own choice")
    )
    precision: Number = field(default=0.5, metadata=_about("1", "of the loss that quantization adds", "own estimate"))
    recipe: Number = field(
        default=0.08, metadata=_about("1", "score error across unknown recipes", "held-out error, own fit")
    )
    base: Number = field(
        default=0.05,
        metadata=_about(
            "nat/tok",
            "level of a base law for which the score map was not fitted",
            "spread of BASES at 70e9 parameters and 1.4e12 tokens",
        ),
    )


LEVERAGE, WIDTH, DOUBT = Leverage(), Width(), Doubt()
TIE_DENSE_NATS = 0.010  # two designs closer than this are a tie (same recipe, both dense or both MoE)
TIE_MOE_NATS = 0.03  # the same for a dense design against a mixture of experts


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Law:
    """A proxy with all of its coefficients; the static fields select code. Made from a configuration by `law_of`."""

    name: str = field(default="ling_besiroglu", metadata=_static("entry of LAWS"))
    data: str = field(default="iso_token", metadata=_static("iso_token: D fixed; iso_compute: D = C / (6 N_act)"))
    shape_term: bool = field(default=True, metadata=_static("factor of the aspect ratio"))
    kv_term: bool = field(default=True, metadata=_static("factor of the query heads per key/value head"))
    sharpness: float = field(
        default=0.0, metadata=_static("0: hinges as they are; else softplus of this sharpness, in logarithms")
    )
    tokens: Number = field(
        default=36e12, metadata=_about("tok", "D of iso_token", "recipe", ("tokens", "score_tokens"))
    )
    compute: Number = field(
        default=7.2e23, metadata=_about("flop", "C of iso_compute", "8e9 parameters x 15e12 tokens")
    )
    w: Number = field(
        default=0.5, metadata=_about("1", "geo_mean: weight of the total parameters", "own fit, 0.5 to 0.65")
    )
    base: Base = field(default=BASES["besiroglu"], metadata=_about("", "dense loss of parameters and tokens"))
    leverage: Leverage = field(default=LEVERAGE, metadata=_about("", "worth of sleeping experts"))
    width: Width = field(default=WIDTH, metadata=_about("", "factor of the aspect ratio"))
    kv_exponent: Number = field(
        default=0.003,
        metadata=_about(
            "1", "power of the query heads per KV head", "2405.04434 appendix D, 2305.13245; halved", ("kv_ratio",)
        ),
    )
    precision_exponent: Number = field(
        default=-0.33,
        metadata=_about(
            "1", "power of N_tot in the loss of a narrow format", "own fit; 0.344 in 2411.04330", ("precision_size",)
        ),
    )
    precision_reference: Number = field(
        default=8e9, metadata=_about("1", "N_tot for which the penalties are given", "own fit")
    )
    score: Score = field(default=SCORES["mmlu_pro"], metadata=_about("", "from loss to score"))
    doubt: Doubt = field(default=DOUBT, metadata=_about("", "standard deviations"))
    score_sigma: Number = field(
        default=0.0, metadata=_about("1", "doubt of the score map itself, 0 for its own recipe", "Doubt")
    )
    level_sigma: Number = field(
        default=0.0, metadata=_about("nat/tok", "doubt of the level of L, 0 for the fitted base", "Doubt")
    )


# --- One design point in, one proxy out ------------------------------------------------------------------------------


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Shape:
    """What the proxy needs of one design point: scalars, or tracers under `jax.vmap`."""

    n_act: Number = field(
        metadata=_about("1", "active parameters, input embedding included even where it is a table of its own")
    )
    n_tot: Number = field(metadata=_about("1", "all parameters"))
    d_model: Number = field(metadata=_about("1", "width of the residual stream"))
    n_layers: Number = field(metadata=_about("1", "layers"))
    n_heads: Number = field(default=0.0, metadata=_about("1", "query heads; 0 where there is no attention"))
    n_kv_heads: Number = field(default=0.0, metadata=_about("1", "key/value heads"))
    kv_lora_rank: Number = field(default=0.0, metadata=_about("1", "above 0: MLA, whose KV ratio counts as 1"))
    n_experts: Number = field(default=0.0, metadata=_about("1", "routed experts per MoE layer; 0: dense"))
    top_k: Number = field(default=0.0, metadata=_about("1", "routed experts per token"))
    n_shared: Number = field(default=0.0, metadata=_about("1", "shared experts, each of width d_expert"))
    d_expert: Number = field(default=0.0, metadata=_about("1", "inner width of a routed expert"))
    d8: Number = field(
        default=0.0,
        metadata=_about("nat/tok", "loss of the weight and activation formats at 8e9 parameters: `format_penalty`"),
    )
    dkv: Number = field(default=0.0, metadata=_about("nat/tok", "loss of the cache format: `kv_penalty`"))


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Proxy:
    """The accuracy columns of one design point."""

    loss: Number = field(metadata=_about("nat/tok", "pretraining loss, quantization included: the objective"))
    loss_sigma: Number = field(metadata=_about("nat/tok", "one standard deviation within one recipe"))
    accuracy: Number = field(metadata=_about("1", "benchmark score as a fraction: an axis label, see `label`"))
    accuracy_low: Number = field(metadata=_about("1", "score one standard deviation down"))
    accuracy_high: Number = field(metadata=_about("1", "score one standard deviation up"))
    extrapolation: Number = field(
        metadata=_about("1", "how many validity ranges are left (int32), see EXTRAPOLATION_RANGES")
    )


@dataclass(frozen=True, kw_only=True)
class Terms:
    """Intermediate quantities of one design point, logarithms natural unless they say otherwise."""

    is_moe: jax.Array
    log_act: jax.Array
    log_tot: jax.Array
    log_tokens: jax.Array
    activation_ratio: jax.Array  # A, 1 for dense
    granularity: jax.Array  # G, 2 for dense
    log_aspect: jax.Array  # of R = d_model / n_layers
    log_kv_ratio: jax.Array  # 0 for MHA and MLA


def _cast(shape: Shape, law: Law) -> tuple[Shape, Law]:
    """Every leaf in the dtype of `shape.n_act` (the default float where that is no float), so that none promotes."""
    dtype = jnp.result_type(getattr(shape.n_act, "dtype", float))
    if not jnp.issubdtype(dtype, jnp.floating):
        dtype = jnp.result_type(float)
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), (shape, law))  # type: ignore[no-any-return]


def _above(x: Number, sharpness: float) -> jax.Array:
    """max(x, 0), or softplus(sharpness x)/sharpness, which exceeds it by at most ln 2/sharpness."""
    return jnp.maximum(x, 0.0) if sharpness == 0 else jax.nn.softplus(sharpness * x) / sharpness


def _terms(shape: Shape, law: Law) -> Terms:
    is_moe = jnp.asarray(shape.n_experts > 0)
    # A dense row divides 0 by 0: its operands are replaced before the division, so that its gradients stay finite too.
    active = jnp.where(is_moe, shape.top_k + shape.n_shared, 1.0)
    present = jnp.where(is_moe, shape.n_experts + shape.n_shared, 1.0)
    d_expert = jnp.where(is_moe, jnp.maximum(shape.d_expert, 1.0), shape.d_model)
    grouped = jnp.asarray((shape.n_heads > 0) & (shape.n_kv_heads > 0) & (shape.kv_lora_rank <= 0))
    heads, kv_heads = jnp.where(grouped, shape.n_heads, 1.0), jnp.where(grouped, shape.n_kv_heads, 1.0)
    log_act = jnp.log(shape.n_act)
    iso_token = law.data == "iso_token"
    return Terms(
        is_moe=is_moe,
        log_act=log_act,
        log_tot=jnp.log(shape.n_tot),
        log_tokens=jnp.log(law.tokens) if iso_token else jnp.log(law.compute) - LN6 - log_act,
        activation_ratio=active / present,
        granularity=2.0 * shape.d_model / d_expert,
        log_aspect=jnp.log(shape.d_model) - jnp.log(shape.n_layers),
        log_kv_ratio=jnp.maximum(jnp.log(heads) - jnp.log(kv_heads), 0.0),
    )


def log_leverage(
    activation_ratio: Number,
    granularity: Number,
    log10_compute: Number,
    coefficients: Leverage,
    *,
    normalised: bool = True,
) -> jax.Array:
    """Natural logarithm of the efficiency leverage: how many times its active parameters a mixture of experts is worth.

        ln EL = (a + d log10 C + gamma (log2 G)^2 + beta log2 G) (ln h(A) - ln h(1))
        h(x)  = 1/(1/(x + s) + 1/a_max),   s = 1/(1/a_start - 1/a_max)

    Args:
        activation_ratio: A = (top_k + n_shared)/(n_experts + n_shared) [-], 0.01 to 1.
        granularity: G = 2 d_model/d_expert [-], 2 to 16.
        log10_compute: of the training FLOPs, at most 22: hold it there beyond.
        normalised: the source has no ln h(1); with it a model that uses all its experts has no leverage.
    Source: 2507.17702 section 4.2. Fitted up to 1e22 FLOPs and 28e9 total parameters, experts of equal size in every
    layer; not clipped here. Interleaved or latent mixtures have no A and G of this kind: use the law geo_mean for them.
    """
    c = coefficients
    start = 1.0 / (1.0 / c.a_start - 1.0 / c.a_max)

    def log_h(x: Number) -> jax.Array:
        return -jnp.log(1.0 / (x + start) + 1.0 / c.a_max)

    g = jnp.log2(granularity)
    exponent = c.a + c.d * log10_compute + c.gamma * g * g + c.beta * g
    return exponent * (log_h(activation_ratio) - (log_h(1.0) if normalised else 0.0))


def base_loss(log_n: Number, log_tokens: Number, base: Base) -> jax.Array:
    """Loss of a dense model in nats per token, L0 = e + exp(ln a - alpha ln N) + exp(ln b - beta ln D).

    Args:
        log_n: natural logarithm of the (effective) parameters, embeddings included.
        log_tokens: natural logarithm of the training tokens.
    Source: see `BASES`. Fitted to N of 57e6 to 16e9 and D of 0.25e9 to 318e9, one epoch, compute-optimal schedules.
    """
    return base.e + jnp.exp(jnp.log(base.a) - base.alpha * log_n) + jnp.exp(jnp.log(base.b) - base.beta * log_tokens)


def kaplan_loss(n: Number, tokens: Number, law: Kaplan = Kaplan()) -> jax.Array:
    """Joint law of Kaplan et al. in nats per token, for comparison; see `Kaplan` for the formula.

    Args:
        n: parameters without embeddings.
        tokens: training tokens.
    Source: 2001.08361 table 2. WebText2, N up to 1.5e9, 2.3e10 tokens; under-values tokens beyond that.
    """
    size = jnp.exp(law.alpha_n / law.alpha_d * (math.log(law.n_c) - jnp.log(n)))
    return jnp.exp(law.alpha_d * jnp.log(size + law.d_c / tokens))


def log_shape_factor(log_aspect: Number, width: Width, sharpness: float = 0.0) -> jax.Array:
    """Natural logarithm of the loss factor of the aspect ratio R = d_model/n_layers, at least 0.

        m_sh = [(1 + eps max(R, 64)^gamma)/(1 + eps 64^gamma) exp(0.009 max(0, ln(32/R))^2)]^strength

    Args:
        log_aspect: ln R.
        sharpness: of the softplus in place of max(R, 64), in ln R; 0 keeps the maximum. The other hinge is smooth.
    Source: 2501.18107 (dense, at most 1.5e9 parameters, R of 17 to 384), at half strength; the narrow side is an own
    fit on the same data. Real effect in small controlled runs, invisible in public tables of models: a regulariser.
    """
    log_best = jnp.log(width.best)
    log_r = log_best + _above(log_aspect - log_best, sharpness)
    wide = jnp.log1p(width.eps * jnp.exp(width.gamma * log_r)) - jnp.log1p(width.eps * jnp.exp(width.gamma * log_best))
    narrow = jnp.maximum(jnp.log(width.narrow) - log_aspect, 0.0)
    return width.strength * (wide + width.depth * narrow * narrow)


def _log_n_ling(t: Terms, law: Law) -> jax.Array:
    """ln N_eff of N_eff = N_act EL, with EL clipped to 1 .. N_tot/N_act and equal to 1 for a dense model."""
    log10_cap = jnp.log(law.leverage.compute_cap) / LN10
    log10_compute = log10_cap - _above(log10_cap - (LN6 + t.log_act + t.log_tokens) / LN10, law.sharpness)
    raw = log_leverage(t.activation_ratio, t.granularity, log10_compute, law.leverage)
    most = jnp.maximum(t.log_tot - t.log_act, 0.0)
    clipped = most - _above(most - _above(raw, law.sharpness), law.sharpness)
    return t.log_act + jnp.where(t.is_moe, clipped, 0.0)


def _ling_besiroglu(t: Terms, law: Law) -> tuple[jax.Array, jax.Array]:
    """Chinchilla form in N_eff = N_act EL (2404.10102, 2507.17702)."""
    log_n = _log_n_ling(t, law)
    return log_n, base_loss(log_n, t.log_tokens, law.base)


def _geo_mean(t: Terms, law: Law) -> tuple[jax.Array, jax.Array]:
    """Chinchilla form in N_eff = N_act^(1-w) N_tot^w: blind to granularity and to top_k. Own fit."""
    log_n = (1.0 - law.w) * t.log_act + law.w * t.log_tot
    return log_n, base_loss(log_n, t.log_tokens, law.base)


def _log_compute(t: Terms, law: Law) -> tuple[jax.Array, jax.Array]:
    """The loss at which the score map gives floor + (1 - floor) sigmoid(s (log10(6 N_eff D) - x0)).

    The law speaks of a score, not of a loss: L0 = midpoint - s (x - x0)/slope is its equivalent, so that objective and
    label stay monotone in each other. It depends on the score chosen. Over-credits tokens: never for equal compute.
    """
    log_n = _log_n_ling(t, law)
    x = (LN6 + log_n + t.log_tokens) / LN10
    score = law.score
    return log_n, score.midpoint - score.compute_slope * (x - score.compute_midpoint) / score.slope


@dataclass(frozen=True)
class Rule:
    """A law: its function from terms to (ln N_eff, L0 in nats per token), and the names in `RANGES` that bound it."""

    predict: Callable[[Terms, Law], tuple[jax.Array, jax.Array]]
    ranges: tuple[str, ...]


_MAPPED = ("score_n_eff", "score_tokens")
LAWS: dict[str, Rule] = {
    "ling_besiroglu": Rule(_ling_besiroglu, _ND + _MOE + _MAPPED),
    "geo_mean": Rule(_geo_mean, _ND + _MAPPED),
    "log_compute": Rule(_log_compute, (*_MOE, "effective_compute")),
}


_OWN: dict[str, Rule] = {}  # laws from files, by name and hash


def _rule(name: str) -> Rule:
    return LAWS[name] if name in LAWS else _OWN[name]


def _outside(shape: Shape, law: Law, t: Terms, log_n: jax.Array) -> list[jax.Array]:
    """For each of `EXTRAPOLATION_RANGES`, whether the point has left it; ranges that the law does not use are kept."""
    used = set(_rule(law.name).ranges) | {"precision_size"}
    used |= {"aspect_ratio"} if law.shape_term else set()
    used |= {"kv_ratio"} if law.kv_term else set()
    log_compute = LN6 + t.log_act + t.log_tokens
    always = jnp.ones_like(t.is_moe)
    # name: (value, whether it is a natural logarithm, where the range applies)
    found: dict[str, tuple[Number, bool, jax.Array]] = {
        "tokens": (t.log_tokens, True, always),
        "n_eff": (log_n, True, always),
        "compute": (log_compute, True, t.is_moe),
        "activation_ratio": (t.activation_ratio, False, t.is_moe),
        "granularity": (t.granularity, False, t.is_moe),
        "moe_total": (shape.n_tot, False, t.is_moe),
        "aspect_ratio": (t.log_aspect, True, always),
        "kv_ratio": (t.log_kv_ratio, True, always),
        "precision_size": (shape.n_tot, False, jnp.asarray(shape.d8 + shape.dkv > 0)),
        "score_n_eff": (log_n, True, always),
        "score_tokens": (t.log_tokens, True, always),
        "effective_compute": (LN6 + log_n + t.log_tokens, True, always),
    }
    flags = []
    for name in EXTRAPOLATION_RANGES:
        value, in_logs, applies = found[name]
        low, high = RANGES[name].low, RANGES[name].high
        slack = 1e-5  # rounding of a float32 logarithm: a value on the edge is inside
        if in_logs:
            low, high = (math.log(low) if low > 0 else -math.inf), math.log(high)
            inside = (value >= low - slack) & (value <= high + slack)
        else:
            inside = (value >= low * (1 - slack)) & (value <= high * (1 + slack))
        flags.append(applies & ~jnp.asarray(inside) if name in used else jnp.zeros_like(t.is_moe))
    return flags


def extrapolation_mask(shape: Shape, law: Law) -> jax.Array:
    """Which validity ranges one design point has left, as an int32: bit i stands for EXTRAPOLATION_RANGES[i]."""
    shape, law = _cast(shape, law)
    t = _terms(shape, law)
    log_n, _ = _rule(law.name).predict(t, law)
    bits = [flag.astype(jnp.int32) * (1 << i) for i, flag in enumerate(_outside(shape, law, t, log_n))]
    return jnp.stack(bits).sum(axis=0, dtype=jnp.int32)


def extrapolation_names(mask: int) -> tuple[str, ...]:
    """The names behind an `extrapolation_mask`, in order."""
    return tuple(name for i, name in enumerate(EXTRAPOLATION_RANGES) if int(mask) >> i & 1)


def effective_parameters(shape: Shape, law: Law) -> jax.Array:
    """Parameters of the dense model that the law holds to be as good, N_eff [-]."""
    shape, law = _cast(shape, law)
    log_n, _ = _rule(law.name).predict(_terms(shape, law), law)
    return jnp.exp(log_n)


def loss(shape: Shape, law: Law) -> Proxy:
    """Pretraining loss that one design would reach, with its doubt and the benchmark score that goes with it.

        L     = L0(N_eff, D) m_sh m_kv + d8 (N_tot/8e9)^-0.33 + dkv,        m_kv = (n_heads/n_kv_heads)^0.003
        s^2   = 0.010^2 + [N_tot > 1.05 N_act] 0.020^2 + (0.5 L0 (m_sh m_kv - 1))^2 + (0.5 (L - L0 m_sh m_kv))^2

    The score and its sigma are those of `score_of`.

    Args:
        shape: one design point, see `Shape`; float32 is enough (1e-4 relative).
        law: from `law_of`; names, switches and the data policy are static, coefficients are leaves.
    Returns:
        Loss [nats/token], score [fraction], both with one standard deviation, and the count of left validity ranges.
        Where the score map is not of the recipe, its error across recipes joins the score's band, not `loss_sigma`.
    Source: this module's coefficients. Orders models of one recipe (leave-one-out error 1.6 points of MMLU-Pro, 2.8
    of MMLU in the Qwen3 family) and is 7 to 8 points off in level across unknown recipes. Losses of narrow formats
    grow with D/N, which is ignored: above 4000 tokens per parameter at 4 bits or fewer they are lower bounds.
    """
    shape, law = _cast(shape, law)
    t = _terms(shape, law)
    log_n, l0 = _rule(law.name).predict(t, law)

    log_m = jnp.zeros_like(l0)
    if law.shape_term:
        log_m += log_shape_factor(t.log_aspect, law.width, law.sharpness)
    if law.kv_term:
        log_m += law.kv_exponent * t.log_kv_ratio
    d_precision = precision_loss(shape, law)
    nats = l0 * jnp.exp(log_m) + d_precision

    doubt = law.doubt
    sleeping = jnp.where(t.log_tot > jnp.log(doubt.moe_from) + t.log_act, doubt.moe, 0.0)
    parts = (doubt.fit, sleeping, doubt.heuristic * l0 * jnp.expm1(log_m), doubt.precision * d_precision)
    variance = sum((part * part for part in parts[1:]), start=parts[0] * parts[0])

    accuracy, sigma = score_of(nats, variance, law)
    left = jnp.stack(_outside(shape, law, t, log_n)).sum(axis=0, dtype=jnp.int32)
    return Proxy(
        loss=nats,
        loss_sigma=jnp.sqrt(variance),
        accuracy=accuracy,
        accuracy_low=jnp.clip(accuracy - sigma, 0.0, 1.0),
        accuracy_high=jnp.clip(accuracy + sigma, 0.0, 1.0),
        extrapolation=left,
    )


def measured_loss(nats: Number, sigma: Number, shape: Shape, law: Law) -> Proxy:
    """The columns of a model that has been trained: its measured loss in place of the law's.

    Args:
        nats: measured loss [nats/token], of the weights as they were trained (bf16 where nothing else is known).
        sigma: its standard deviation [nats/token], 0 where the table gives none.
        shape: as for `loss`; d8 and dkv 0 where the loss was measured in the formats themselves.
    Returns:
        As `loss`. The losses of narrow formats are added as there; the only range that can be left is theirs.
    """
    shape, law = _cast(shape, law)
    nats, sigma = (jnp.asarray(x, shape.n_act.dtype) for x in (nats, sigma))  # type: ignore[union-attr]
    d_precision = precision_loss(shape, law)
    nats = nats + d_precision
    part = law.doubt.precision * d_precision
    variance = sigma * sigma + part * part
    accuracy, spread = score_of(nats, variance, law)
    t = _terms(shape, law)
    quantized = _outside(shape, law, t, t.log_act)[EXTRAPOLATION_RANGES.index("precision_size")]
    return Proxy(
        loss=nats,
        loss_sigma=jnp.sqrt(variance),
        accuracy=accuracy,
        accuracy_low=jnp.clip(accuracy - spread, 0.0, 1.0),
        accuracy_high=jnp.clip(accuracy + spread, 0.0, 1.0),
        extrapolation=jnp.asarray(quantized, jnp.int32),
    )


def precision_loss(shape: Shape, law: Law) -> jax.Array:
    """Loss that the number formats add, d8 (N_tot/8e9)^-0.33 + dkv [nats/token]."""
    size = jnp.log(shape.n_tot) - jnp.log(law.precision_reference)
    return jnp.asarray(shape.d8 * jnp.exp(law.precision_exponent * size) + shape.dkv)


def score_of(nats: Number, variance: Number, law: Law) -> tuple[jax.Array, jax.Array]:
    """Benchmark score of a loss and one standard deviation of it, both as fractions.

        score = f + (1 - f) p,   p = sigmoid(k (L_ref - L)),   sigma^2 = ((1 - f) k p (1 - p))^2 s^2 + that of the map

    Args:
        nats: loss [nats/token].
        variance: its variance within one recipe [nats^2/token^2].
    Source: see `Score`.
    """
    p = jax.nn.sigmoid(law.score.slope * (law.score.midpoint - nats))
    accuracy = law.score.floor + (1.0 - law.score.floor) * p
    per_nat = (1.0 - law.score.floor) * law.score.slope * p * (1.0 - p)
    spread = per_nat * per_nat * (variance + law.level_sigma * law.level_sigma) + law.score_sigma * law.score_sigma
    # at the floor the slope vanishes: keep the root's gradient finite
    return accuracy, jnp.sqrt(jnp.maximum(spread, 1e-12))


# --- On the host: formats, recipes, configuration --------------------------------------------------------------------


@dataclass(frozen=True)
class Penalty:
    """Loss that a number format adds, in nats per token, with its band and where it comes from."""

    nats: float
    source: str
    band: tuple[float, float] | None = None


# Weights and activations together, at 8e9 parameters, after quantization without training unless it says otherwise.
FORMAT_PENALTIES: dict[str, Penalty] = {
    "bf16": Penalty(0.0, "reference", (0.0, 0.0)),
    "fp8": Penalty(0.001, "mean of the AngelSlim benchmark deltas, divided by 6.03", (0.0, 0.002)),
    "int8": Penalty(0.002, "mean of the AngelSlim benchmark deltas, divided by 6.03", (0.0, 0.006)),
    "int4": Penalty(0.0142, "own fit on GPTQ and AWQ, weights only, groups of 128", (0.0102, 0.0182)),
    "nvfp4": Penalty(0.020, "Qwen3-8B (0.033), eight deltas of 26e9 to 35e9 (rescaled 0.014)", (0.008, 0.032)),
    "mxfp4": Penalty(0.033, "assumption: nvfp4 times 2.5/1.5, the ratio of the pretraining loss gaps"),
    "nvfp4_qat": Penalty(0.010, "one model, quantization-aware training or distillation"),
}
# The cache alone. Says nothing of long contexts.
KV_PENALTIES: dict[str, Penalty] = {
    "bf16": Penalty(0.0, "reference", (0.0, 0.0)),
    "fp8": Penalty(0.001, "upper end of the vendors' 'below 1 %'", (0.0, 0.003)),
    "int8": Penalty(0.001, "upper end of the vendors' 'below 1 %'", (0.0, 0.003)),
    "nvfp4": Penalty(0.005, "upper end of the vendors' 'below 1 %'", (0.0, 0.015)),
    "int4": Penalty(0.010, "assumption", (0.0, 0.030)),
}
SAME_LOSS = {"fp32": "bf16", "fp8_block": "fp8", "mxfp8": "fp8", "fp4": "nvfp4"}  # counted as


def _penalty(key: str, name: str, table: dict[str, Penalty], known: set[str]) -> float:
    entry = SAME_LOSS.get(name, name)
    if entry in known:
        return table[entry].nats
    choices = sorted(known | {alias for alias, of in SAME_LOSS.items() if of in known})
    why = "nobody has published its accuracy loss" if name in FORMAT_BITS else "unknown format"
    raise BadInput(f"{key}={name}: {why}; {closest(name, choices)}")


def format_penalty(weights: str, activations: str, *, qat: bool = False) -> float:
    """Loss of storing weights and multiplying activations in these formats, d8 in nats per token at 8e9 parameters.

    The larger of the two operands' entries in `FORMAT_PENALTIES`, each of which was measured with both operands
    narrow (int4: with bf16 activations). So the value is an upper bound for weight-only nvfp4 and mxfp4, and a lower
    bound where narrow activations meet int4 weights. Scaled with (N_tot/8e9)^-0.33 by `loss`.

    Args:
        weights: format of the weights; of the FFN where attention and FFN differ, as it holds the bulk of them.
        activations: format of the GEMM inputs. int4 is refused: nobody has published what it costs.
        qat: nvfp4 after quantization-aware training or distillation; changes no other format.
    Raises:
        BadInput: a format without a known loss.
    """
    known = set(FORMAT_PENALTIES) - {"nvfp4_qat"}
    of_weights = _penalty("precision.weights", weights, FORMAT_PENALTIES, known)
    of_activations = _penalty("precision.activations", activations, FORMAT_PENALTIES, known - {"int4"})
    worst = max(of_weights, of_activations)
    if qat and worst == FORMAT_PENALTIES["nvfp4"].nats:
        return FORMAT_PENALTIES["nvfp4_qat"].nats
    return worst


def kv_penalty(kv: str) -> float:
    """Loss of a key/value cache in this format, dkv in nats per token, at any size; see `KV_PENALTIES`.

    Raises:
        BadInput: a format without a known loss.
    """
    return _penalty("precision.kv", kv, KV_PENALTIES, set(KV_PENALTIES))


def penalties(precision: Precision, *, qat: bool = False) -> tuple[float, float]:
    """(d8, dkv) of a precision record, with the weights of the FFN standing for all weights (null: bf16).

    `quantized_fraction` changes nothing: published losses are of models whose sensitive layers stayed wide as well.
    """
    weights = precision.weights_ffn or precision.weights or "bf16"
    return format_penalty(weights, precision.activations or "bf16", qat=qat), kv_penalty(precision.kv or "bf16")


def shape_of(model: Model, n_act: Number, n_tot: Number, *, d8: Number = 0.0, dkv: Number = 0.0) -> Shape:
    """The proxy's inputs from a model record and its parameter counts.

    Args:
        model: record; n_kv_heads null stands for n_heads, n_layers and d_model must be set.
        n_act: active parameters, input embedding included even where untied.
        n_tot: all parameters.
        d8, dkv: from `penalties`.
    Shared experts count as experts of width d_expert: where theirs differs, make `Shape` with n_shared =
    d_shared/d_expert.
    """
    for key in ("n_layers", "d_model"):
        if getattr(model, key) is None:
            raise BadInput(f"model.{key}=null: the accuracy proxy needs it; give a number")
    n_heads = 0.0 if model.n_heads is None else model.n_heads
    return Shape(
        n_act=n_act,
        n_tot=n_tot,
        d_model=model.d_model,
        n_layers=model.n_layers,
        n_heads=n_heads,
        n_kv_heads=n_heads if model.n_kv_heads is None else model.n_kv_heads,
        kv_lora_rank=0.0 if model.kv_lora_rank is None else model.kv_lora_rank,
        n_experts=0.0 if model.n_experts is None else model.n_experts,
        top_k=0.0 if model.top_k is None else model.top_k,
        n_shared=0.0 if model.n_shared_experts is None else model.n_shared_experts,
        d_expert=0.0 if model.d_expert is None else model.d_expert,
        d8=d8,
        dkv=dkv,
    )


@dataclass(frozen=True)
class Recipe:
    """Whose data and training the score stands for. Only Qwen3 has a score map of its own; the others borrow it."""

    title: str
    tokens: float | None
    own_map: bool


RECIPES: dict[str, Recipe] = {
    "qwen3": Recipe("Qwen3", 36e12, True),  # 2505.09388
    "qwen2.5": Recipe("Qwen2.5", 18e12, False),  # 2412.15115
    "llama3": Recipe("Llama-3", 15e12, False),  # 2407.21783
    "unspecified": Recipe("an unspecified recipe", None, False),
}
DATA = ("iso_token", "iso_compute")


class Settings(Protocol):
    """What `law_of` and `label` read: `AccuracyConfig`, or a configuration node with the same keys."""

    law: str
    base: str
    score: str
    recipe: str
    tokens: float | None
    data: str
    compute: float
    w: float
    shape_term: bool
    kv_term: bool
    qat: bool
    sharpness: float
    slope: float | None
    midpoint: float | None
    file: str | None
    table: str | None
    mix: bool


@dataclass
class AccuracyConfig:
    """Keys of `conf/accuracy/*.yaml`."""

    law: str = "ling_besiroglu"
    base: str = "besiroglu"
    score: str = "mmlu_pro"
    recipe: str = "qwen3"
    tokens: float | None = None
    data: str = "iso_token"
    compute: float = 7.2e23
    w: float = 0.5
    shape_term: bool = True
    kv_term: bool = True
    qat: bool = False
    sharpness: float = 0.0
    slope: float | None = None
    midpoint: float | None = None
    file: str | None = None
    table: str | None = None
    mix: bool = False


# --- A law of one's own ----------------------------------------------------------------------------------------------


@functools.cache
def _own_rule(path: str, sha256: str) -> Rule:
    """The rule in a Python file; the hash makes an edited file another one."""
    specification = importlib.util.spec_from_file_location(f"accuracy_law_{sha256[:12]}", path)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    try:
        specification.loader.exec_module(module)
    except Exception as error:
        raise BadInput(f"accuracy.file={path}: cannot be run ({type(error).__name__}: {_one_line(error)})") from None
    predict = getattr(module, "predict", None)
    if not callable(predict):
        raise BadInput(f"accuracy.file={path}: must define predict(t, law), which returns ln N_eff and the loss")
    ranges = tuple(getattr(module, "RANGES", ()))
    for name in ranges:
        if name not in RANGES:
            raise BadInput(f"accuracy.file={path}: RANGES has {name}; {closest(str(name), RANGES)}")
    return Rule(predict, ranges)


def _one_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0]


def _entry(config: Settings) -> str:
    """The name of the rule that a configuration means; a law of one's own is kept under its name and its hash.

    The file defines `predict(t: Terms, law: Law)`, which returns (ln N_eff, loss in nats per token before the shape,
    KV and format terms), in jax.numpy, for one design point; and, if it likes, `RANGES`, the names of the validity
    ranges that bound it.
    """
    if config.file is None:
        if config.law not in LAWS:
            raise BadInput(f"accuracy.law={config.law}: no such choice; {closest(str(config.law), LAWS)}")
        return config.law
    if config.law in LAWS:
        raise BadInput(f"accuracy.law={config.law}: is taken; give the law in {config.file} a name of its own")
    path = Path(config.file)
    try:
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise BadInput(f"accuracy.file={config.file}: cannot be read ({error.strerror})") from None
    name = f"{config.law}#{sha256[:8]}"
    if name not in _OWN:
        _OWN[name] = _own_rule(str(path), sha256)
    return name


_TRIALS = (
    Shape(n_act=8.2e9, n_tot=8.2e9, d_model=4096.0, n_layers=36.0, n_heads=32.0, n_kv_heads=8.0),
    Shape(
        n_act=3.3e9, n_tot=30.5e9, d_model=2048.0, n_layers=48.0, n_heads=32.0, n_kv_heads=4.0, n_experts=128.0,
        top_k=8.0, d_expert=768.0,
    ),
)  # fmt: skip


def _try(law: Law, config: Settings) -> None:
    """A law of one's own on a dense model and a mixture of experts: it must give finite losses."""
    for shape in _TRIALS:
        try:
            found = float(loss(shape, law).loss)
        except BadInput:
            raise
        except Exception as error:
            why = f"{type(error).__name__}: {_one_line(error)}"
            raise BadInput(f"accuracy.file={config.file}: predict fails ({why})") from None
        if not math.isfinite(found) or found <= 0:
            raise BadInput(f"accuracy.file={config.file}: predict gives a loss of {found} nats/token; must be above 0")


def check(config: Settings) -> None:
    """Raise `BadInput` in one line for a configuration that no law can use."""
    _entry(config)
    for key, choices in (("base", BASES), ("score", SCORES), ("recipe", RECIPES), ("data", DATA)):
        name = getattr(config, key)
        if name not in choices:
            raise BadInput(f"accuracy.{key}={name}: no such choice; {closest(str(name), choices)}")
    if config.tokens is None and RECIPES[config.recipe].tokens is None and config.data == "iso_token":
        raise BadInput(
            f"accuracy.tokens=null: recipe {config.recipe} has no tokens of its own; give a number, as 36e12"
        )
    for key, low, high, unit in (
        ("tokens", 1e6, 1e18, "tokens"),
        ("compute", 1e15, 1e32, "FLOPs"),
        ("w", 0.0, 1.0, "weight"),
        ("slope", 1e-3, 1e3, "steepness of the score map per nat"),
        ("midpoint", 1e-3, 1e2, "loss half way up the score map"),
    ):
        value = getattr(config, key)
        if value is not None and not low <= value <= high:
            raise BadInput(f"accuracy.{key}={value}: {unit} must lie between {low:g} and {high:g}")
    if config.sharpness != 0 and not 20 <= config.sharpness <= 1e4:
        raise BadInput(f"accuracy.sharpness={config.sharpness}: must be 0 (exact hinges) or between 20 and 10000")
    if config.table == "":
        raise BadInput("accuracy.table: give the table of measured losses, a CSV file with the columns model and loss")
    if config.mix and config.table is None:
        raise BadInput("accuracy.mix=true: needs accuracy.table, whose measured losses are to stand beside the proxy's")
    if config.law == "log_compute" and config.data == "iso_compute":
        raise BadInput(
            "accuracy.data=iso_compute: law log_compute is all but constant at equal compute; "
            "set accuracy.data=iso_token, or accuracy.law to ling_besiroglu or geo_mean"
        )


def tokens_of(config: Settings) -> float | None:
    """Training tokens of `iso_token`: those of the configuration, else those of the recipe."""
    return RECIPES[config.recipe].tokens if config.tokens is None else float(config.tokens)


def law_of(config: Settings) -> Law:
    """The law of a configuration, every choice made and every number a plain float.

    geo_mean with w = 0.5, the Besiroglu base and neither shape nor KV term has a score map of its own; any other
    combination uses the map fitted with the default law. A recipe other than Qwen3 borrows that map, and the error
    across recipes (8 points) widens its band; so does the level (0.05 nats) of a base law other than Besiroglu's.
    log_compute is a fit over many laboratories and carries its own error (5 to 6 points) instead. slope and midpoint,
    both given, are the recipe's own map. Measured losses are of another test set than the map's: 8 points as well.
    """
    check(config)
    name = _entry(config)
    score = SCORES[config.score]
    terms_off = not (config.shape_term or config.kv_term)
    if config.law == "geo_mean" and config.base == "besiroglu" and config.w == 0.5 and terms_off:
        slope, midpoint = GEO_MEAN_REFIT[config.score]
        score = replace(score, slope=slope, midpoint=midpoint)
    given = {k: float(v) for k in ("slope", "midpoint") if (v := getattr(config, k)) is not None}
    score = replace(score, **given)
    by_compute = config.law == "log_compute"
    own_map = (RECIPES[config.recipe].own_map or len(given) == 2) and config.table is None
    law = Law(
        name=name,
        data=config.data,
        shape_term=bool(config.shape_term),
        kv_term=bool(config.kv_term),
        sharpness=float(config.sharpness),
        tokens=tokens_of(config) or 0.0,
        compute=float(config.compute),
        w=float(config.w),
        base=BASES[config.base],
        score=score,
        score_sigma=score.compute_rmse if by_compute else (0.0 if own_map else DOUBT.recipe),
        level_sigma=0.0 if by_compute or config.base == "besiroglu" else DOUBT.base,
    )
    if config.file is not None:
        _try(law, config)
    return law


def label(config: Settings) -> str:
    """Title of the accuracy axis: which score, whose recipe, and what is held constant.

    For instance "MMLU-Pro if trained like Qwen3 (36T tokens), iso-token". Belongs on every chart and table: the number
    is no prediction of another laboratory's measured score.
    """
    check(config)
    recipe = RECIPES[config.recipe]
    given = config.slope is not None or config.midpoint is not None
    if config.table is not None:
        whose = "a map of one's own" if given else "the score map of Qwen3"
        measured = f"{SCORE_NAMES[config.score]} of measured losses ({Path(config.table).name}) by {whose}"
        if not config.mix:
            return f"{measured}, tokens as trained"
        rest = replace_settings(config, table=None, mix=False)
        return f"{measured}; without a measurement {label(rest)}"
    if config.data == "iso_token":
        amount = f"{(tokens_of(config) or 0.0) / 1e12:.4g}T tokens"
    else:
        amount = f"{config.compute:.3g} FLOP each"
    if config.law == "log_compute":
        title, note = "the average laboratory", ""
    else:
        title, note = recipe.title, "" if recipe.own_map else "; score map of Qwen3"
    if given:
        note = "; score map given"
    if config.file is not None:
        note += f"; law {config.law}"
    return f"{SCORE_NAMES[config.score]} if trained like {title} ({amount}{note}), {config.data.replace('_', '-')}"


def replace_settings(config: Settings, **changes: Any) -> AccuracyConfig:
    """A configuration with some keys changed, as plain settings."""
    return AccuracyConfig(**({name: getattr(config, name) for name in AccuracyConfig.__dataclass_fields__} | changes))
