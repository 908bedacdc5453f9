"""How good an accuracy proxy is: its losses against the published scores of models that have been trained.

A table holds one model per row: what the proxy needs to know of it, its family (the models of one training recipe),
its harness (who scored it), and its scores in percent. Everything here works on the losses that a proxy gives those
models, so any source of losses can be scored. Ranks and pairs need no score map; errors do. Where a map is refitted,
only the offset and the scale of its logit are, on models other than the ones it is then asked about.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import polars as pl
from scipy.optimize import least_squares

from sweep.accuracy import SCORE_NAMES, AccuracyConfig, Law, Shape, law_of, loss
from sweep.errors import BadInput, closest
from sweep.measured import read_csv

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

REQUIRED = ("model", "family", "n_tot", "n_act", "tokens")  # and the score
OPTIONAL = ("n_layers", "d_model", "n_heads", "n_kv_heads", "n_experts", "top_k", "n_shared", "d_expert")
TEXT = ("model", "family", "harness", "source", "set")
FEWEST_RECIPE = 4  # models of a family that are a line of their own
FEWEST_SET = 5  # models of a harness that are a line of their own
FEWEST_SLOPE = 3  # models that fix the scale of a map; with fewer its offset alone is fitted

# --- The table -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Table:
    """Models with a published score, one row each."""

    frame: pl.DataFrame
    score: str  # entry of SCORES
    name: str

    @property
    def published(self) -> Floats:
        """Scores as fractions."""
        return self.frame[self.score].to_numpy().astype(np.float64) / 100.0

    @property
    def families(self) -> list[str]:
        """Family of each model."""
        return [str(v) for v in self.frame["family"]]

    @property
    def harnesses(self) -> list[str]:
        """Harness of each model."""
        return [str(v) for v in self.frame["harness"]]

    @property
    def sets(self) -> list[str | None]:
        """Label of each model by which the report has a line of its own; None without one."""
        found: list[str | None] = self.frame["set"].to_list() if "set" in self.frame.columns else [None] * len(self)
        return found

    @property
    def is_moe(self) -> Mask:
        """Whether some parameters of the model sleep: more in all than active."""
        return (self.frame["n_tot"] > 1.05 * self.frame["n_act"]).to_numpy().astype(np.bool_)

    def __len__(self) -> int:
        return self.frame.height


def read_table(path: Path, score: str) -> Table:
    """The models of a CSV file that have the score. Lines that begin with # are remarks.

    Raises:
        BadInput: in one line, for a file that cannot be read, a missing column, a value that cannot be.
    """
    frame = read_csv(path, "against")
    for column in (*REQUIRED, score):
        if column not in frame.columns:
            raise BadInput(f"{path}: no column {column}; {closest(column, frame.columns)}")
    if "harness" not in frame.columns:
        frame = frame.with_columns(harness=pl.lit("one"))
    numbers = [*REQUIRED[2:], *OPTIONAL, score]
    frame = frame.with_columns(pl.lit(None, dtype=pl.String).alias(c) for c in numbers if c not in frame.columns)
    for column in numbers:
        values = frame[column].cast(pl.Float64, strict=False)
        wrong = frame.filter((values.is_null() | ~values.is_finite()) & frame[column].is_not_null())
        if wrong.height:
            raise BadInput(f"{path}: {wrong['model'][0]}: {column}={wrong[column][0]}: must be a number")
        frame = frame.with_columns(values.alias(column))
    frame = frame.filter(pl.col(score).is_not_null()).select(
        *TEXT[:3], *numbers, *(c for c in TEXT[3:] if c in frame.columns)
    )
    _check(frame, score, path)
    return Table(frame=frame, score=score, name=path.name)


def _check(frame: pl.DataFrame, score: str, path: Path) -> None:
    if frame.height < 2:
        raise BadInput(f"{path}: {frame.height} models with {score}; two at least")
    moe = pl.col("n_experts").fill_null(0) > 0
    rules = [(pl.col(c).is_null(), c, "is missing") for c in (*REQUIRED, "harness")]
    rules += [(pl.col(c) <= 0, c, "must be above 0") for c in ("n_tot", "n_act", "tokens", "n_layers", "d_model")]
    rules += [(pl.col(c) < 0, c, "must not be negative") for c in OPTIONAL[2:]]
    rules += [(pl.col("n_act") > pl.col("n_tot"), "n_act", "is more than n_tot")]
    rules += [(moe & ~(pl.col(c) > 0).fill_null(False), c, "must be above 0, as there are experts") for c in
              ("top_k", "d_expert", "d_model")]  # fmt: skip
    rules += [((pl.col(score) < 0) | (pl.col(score) > 100), score, "must lie between 0 and 100 percent")]
    for condition, column, what in rules:
        wrong = frame.filter(condition)
        if wrong.height:
            value = wrong[column][0]
            shown = "" if value is None else f"={value:g}" if isinstance(value, float) else f"={value}"
            raise BadInput(f"{path}: {wrong['model'][0]}: {column}{shown} {what}")
    most = float(np.max(frame[score].to_numpy()))
    if most <= 1.0:
        raise BadInput(f"{path}: {score} is {most:g} at most; scores are percent, as 56.7")


# --- What a proxy says of it -----------------------------------------------------------------------------------------


def _loss_at(shape: Shape, tokens: jax.Array, law: Law) -> Any:
    return loss(shape, dataclasses.replace(law, data="iso_token", tokens=tokens)).loss


_losses = jax.jit(jax.vmap(_loss_at, in_axes=(0, 0, None)))


def losses_of(table: Table, law: Law) -> Floats:
    """Loss of each model in nats per token, from its own training tokens whatever the law holds constant.

    A model without a published width and depth gets the factor 1 for its shape, one without head counts for its heads.
    """
    frame = table.frame
    no_shape = frame["n_layers"].is_null() | frame["d_model"].is_null()
    filled = frame.with_columns(pl.col(OPTIONAL).fill_null(0.0)).with_columns(
        # where only the depth is missing, the width is kept: the granularity of the experts needs it
        d_model=pl.when(pl.col("d_model") > 0).then("d_model").otherwise(float(law.width.best)),
    )
    filled = filled.with_columns(
        n_layers=pl.when(no_shape).then(pl.col("d_model") / float(law.width.best)).otherwise("n_layers")
    )
    names = ("n_act", "n_tot", *OPTIONAL)
    columns = {name: jnp.asarray(filled[name].to_numpy(), jnp.float32) for name in names}
    zeros = jnp.zeros(len(table))
    shape = Shape(**columns, kv_lora_rank=zeros, d8=zeros, dkv=zeros)
    tokens = filled["tokens"].to_numpy().astype(np.float64)

    found = np.asarray(_losses(shape, jnp.asarray(tokens, jnp.float32), law), dtype=np.float64)
    if not np.isfinite(found).all():
        at = int(np.argmin(np.isfinite(found)))
        raise BadInput(f"accuracy.law={law.name}: loss of {frame['model'][at]} is {found[at]}; must be finite")
    return found


# --- Ranks and pairs -------------------------------------------------------------------------------------------------


def spearman(a: Floats, b: Floats) -> float | None:
    """Rank correlation; None where one side is constant or there are fewer than three values."""
    if len(a) < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    return float(pl.DataFrame({"a": a, "b": b}).select(pl.corr("a", "b", method="spearman")).item())


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """Pairs of one family and one harness with different scores, and how many the losses put in that order."""

    right: int
    tied: int  # equal losses: not counted as right
    total: int

    def __str__(self) -> str:
        return f"{self.right} of {self.total}" + (f" ({self.tied} tied)" if self.tied else "")


def pairs(table: Table, losses: Floats, among: Mask | None = None) -> Pairs:
    """Same-family ordering: equal published scores are no pair, equal losses are a pair that is not right."""
    kin = _same(table.families) & _same(table.harnesses)
    if among is not None:
        kin = kin & among[:, None] & among[None, :]
    better = table.published[:, None] - table.published[None, :]
    lower = losses[None, :] - losses[:, None]  # above 0: the first has the lower loss
    counted = kin & (better > 0)  # each pair once
    return Pairs(
        right=int((counted & (lower > 0)).sum()), tied=int((counted & (lower == 0)).sum()), total=int(counted.sum())
    )


def _same(labels: Sequence[str]) -> Mask:
    column = np.asarray(labels, dtype=np.str_)
    found: Mask = column[:, None] == column[None, :]
    return found


# --- Errors ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Errors:
    """Errors of predicted scores, in points (percent of the benchmark)."""

    models: int
    rmse: float
    mean_abs: float
    bias: float  # mean of predicted less published

    @classmethod
    def of(cls, predicted: Floats, published: Floats) -> Errors | None:
        """Errors of two arrays of fractions; None where there are none."""
        if not len(predicted):
            return None
        off = 100.0 * (predicted - published)
        return cls(
            models=len(off),
            rmse=float(np.sqrt((off * off).mean())),
            mean_abs=float(np.abs(off).mean()),
            bias=float(off.mean()),
        )


@dataclass(frozen=True, kw_only=True)
class Map:
    """From losses to scores: floor + (1 - floor) sigmoid(offset + scale z), z = slope (midpoint - L) of the law."""

    floor: float
    slope: float
    midpoint: float
    offset: float = 0.0
    scale: float = 1.0

    @classmethod
    def of(cls, law: Law) -> Map:
        """The score map of a law as it stands."""
        return cls(floor=float(law.score.floor), slope=float(law.score.slope), midpoint=float(law.score.midpoint))

    def logits(self, losses: Floats) -> Floats:
        """The law's own logits, before offset and scale."""
        return self.slope * (self.midpoint - losses)

    def __call__(self, losses: Floats) -> Floats:
        """Scores as fractions."""
        return self.floor + (1.0 - self.floor) * _sigmoid(self.offset + self.scale * self.logits(losses))

    def refitted(self, losses: Floats, published: Floats) -> Map:
        """The same law with the offset and scale that fit these models best (least squares of the score).

        With fewer than `FEWEST_SLOPE` models, or equal losses, the offset alone is fitted. A scale below 0 would turn
        the law round: it is held at 0.
        """
        z = self.logits(losses)
        alone = len(z) < FEWEST_SLOPE or float(np.ptp(z)) < 1e-9
        # centred, so that offset and scale do not fight
        middle = float(z.mean())
        centred = z - middle
        offset, scale = self._fit(centred, published, middle, both=not alone)
        if scale < 0:
            offset, _ = self._fit(0.0 * centred, published, 0.0, both=False)
            return dataclasses.replace(self, offset=offset, scale=0.0)
        return dataclasses.replace(self, offset=offset - scale * middle, scale=scale)

    def _fit(self, z: Floats, published: Floats, offset: float, *, both: bool) -> tuple[float, float]:
        """Least squares of one or two parameters from where the law stands."""

        def residual(p: Floats) -> Floats:
            return self.floor + (1.0 - self.floor) * _sigmoid(p[0] + (p[1] if both else 1.0) * z) - published

        found = least_squares(residual, [offset, 1.0] if both else [offset], xtol=1e-12, ftol=1e-12, gtol=1e-12)
        return float(found.x[0]), float(found.x[1]) if both else 1.0


def _sigmoid(x: Floats) -> Floats:
    found: Floats = 0.5 * (1.0 + np.tanh(0.5 * x))
    return found


def held_out(losses: Floats, published: Floats, groups: Sequence[str], score_map: Map) -> Floats:
    """Score of each model from a map refitted on the models of all other groups; NaN where none is left."""
    labels = np.asarray(groups, dtype=np.str_)
    out = np.full(len(losses), np.nan)
    for group in np.unique(labels):
        inside = labels == group
        if (~inside).any():
            out[inside] = score_map.refitted(losses[~inside], published[~inside])(losses[inside])
    return out


# --- The whole report ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Group:
    """One line of the report: some models of the table."""

    name: str
    models: int
    families: int
    spearman: float | None
    pairs: Pairs
    fixed: Errors  # with the law's own score map
    held_out: Errors | None  # map refitted without the model (one recipe) or without its family
    slope: float | None  # [1/nat] of the map refitted on all of the group,
    midpoint: float | None  # [nat/tok] its loss half way up: what `accuracy.slope` and `accuracy.midpoint` take


@dataclass(frozen=True, kw_only=True)
class Sibling:
    """A mixture of experts whose score is predicted by a map fitted on the dense models of its family and harness."""

    model: str
    dense: int
    published: float
    predicted: float


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a proxy is worth on a table."""

    recipes: list[Group]  # one family, one harness
    harnesses: list[Group]  # many families, one harness or one set
    everything: Group
    siblings: list[Sibling]
    moe: Errors | None


def _group(table: Table, losses: Floats, among: Mask, name: str, score_map: Map, by: str) -> Group:
    mine, published = losses[among], table.published[among]
    families = [f for f, inside in zip(table.families, among, strict=True) if inside]
    labels = [str(i) for i in range(len(mine))] if by == "model" else families
    guesses = held_out(mine, published, labels, score_map)
    known = np.isfinite(guesses)
    fixed = Errors.of(score_map(mine), published)
    assert fixed is not None
    refitted = score_map.refitted(mine, published)
    slope = refitted.scale * refitted.slope
    return Group(
        name=name,
        models=len(mine),
        families=len(set(families)),
        spearman=spearman(-mine, published),
        pairs=pairs(table, losses, among),
        fixed=fixed,
        held_out=Errors.of(guesses[known], published[known]),
        slope=slope if slope > 0 else None,
        midpoint=refitted.midpoint + refitted.offset / slope if slope > 0 else None,
    )


def _siblings(table: Table, losses: Floats, score_map: Map) -> Iterator[Sibling]:
    families, harnesses = np.asarray(table.families), np.asarray(table.harnesses)
    for at in np.flatnonzero(table.is_moe):
        dense = (families == families[at]) & (harnesses == harnesses[at]) & ~table.is_moe
        if not dense.any():
            continue
        fitted = score_map.refitted(losses[dense], table.published[dense])
        yield Sibling(
            model=str(table.frame["model"][int(at)]),
            dense=int(dense.sum()),
            published=float(table.published[at]),
            predicted=float(fitted(losses[at : at + 1])[0]),
        )


def report(table: Table, losses: Floats, score_map: Map) -> Report:
    """Score losses against a table: within recipes, within harnesses, over all, mixtures of experts from dense models.

    Args:
        losses: nats per token, one per row: from `losses_of`, or measured.
        score_map: from loss to score; refitted where the report says "held out".
    """
    families, harnesses = np.asarray(table.families), np.asarray(table.harnesses)
    recipes: list[Group] = []
    sets: list[Group] = []
    for harness in dict.fromkeys(table.harnesses):
        here = harnesses == harness
        if here.sum() >= FEWEST_SET:
            sets.append(_group(table, losses, here, harness, score_map, "family"))
        for family in dict.fromkeys(families[here].tolist()):
            inside = here & (families == family)
            if inside.sum() >= FEWEST_RECIPE:
                recipes.append(_group(table, losses, inside, f"{family}, {harness}", score_map, "model"))
    labels = np.asarray([str(v) for v in table.sets])
    for name in dict.fromkeys(v for v in table.sets if v is not None):
        inside = labels == name
        if FEWEST_SET <= inside.sum() < len(table):
            sets.append(_group(table, losses, inside, name, score_map, "family"))
    siblings = list(_siblings(table, losses, score_map))
    return Report(
        recipes=recipes,
        harnesses=sets,
        everything=_group(table, losses, np.ones(len(table), dtype=np.bool_), "all", score_map, "family"),
        siblings=siblings,
        moe=Errors.of(np.array([s.predicted for s in siblings]), np.array([s.published for s in siblings])),
    )


# Laws to stand beside any other: what the parameters alone would say.
BESIDE: dict[str, float] = {"active parameters alone": 0.0, "total parameters alone": 1.0, "their geometric mean": 0.5}


def beside(table: Table, law: Law) -> dict[str, Report]:
    """The same report for laws that see nothing but parameters, N_eff = N_act^(1-w) N_tot^w."""
    found = {}
    for name, w in BESIDE.items():
        other = dataclasses.replace(law, name="geo_mean", w=w)
        found[name] = report(table, losses_of(table, other), Map.of(other))
    return found


DEFAULT = "the default law"


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One figure by which laws compare."""

    name: str
    higher: bool
    digits: int


MEASURES = (
    Measure(name="pairs right [%]", higher=True, digits=1),
    Measure(name="Spearman", higher=True, digits=3),
    Measure(name="one model left out: RMSE", higher=False, digits=1),
    Measure(name="family left out: RMSE", higher=False, digits=1),
    Measure(name="experts from dense: RMSE", higher=False, digits=1),
    Measure(name="mean abs.", higher=False, digits=1),
)


def measures(found: Report) -> list[float | None]:
    """The figures of `MEASURES`: orders over all models, errors within recipes, across them, and of the experts."""
    everything = found.everything
    within = [(g.held_out.models, g.held_out.rmse) for g in found.recipes if g.held_out is not None]
    count = sum(n for n, _ in within)
    return [
        100.0 * everything.pairs.right / everything.pairs.total if everything.pairs.total else None,
        everything.spearman,
        float(np.sqrt(sum(n * e * e for n, e in within) / count)) if count else None,
        everything.held_out.rmse if everything.held_out else None,
        found.moe.rmse if found.moe else None,
        found.moe.mean_abs if found.moe else None,
    ]


def verdict(found: Report, other: Report) -> tuple[int, int]:
    """In how many measures another law is better and worse than this one, by more than the last digit shown."""
    better = worse = 0
    for measure, a, b in zip(MEASURES, measures(found), measures(other), strict=True):
        if a is None or b is None or round(a, measure.digits) == round(b, measure.digits):
            continue
        better += (b > a) == measure.higher
        worse += (b > a) != measure.higher
    return better, worse


def compared(table: Table, settings: AccuracyConfig) -> tuple[Law, Report, dict[str, Report]]:
    """The law of a configuration with its report, and the reports of the laws beside it."""
    law = law_of(settings)
    found = report(table, losses_of(table, law), Map.of(law))
    default = law_of(AccuracyConfig(score=settings.score))
    others = {}
    if law != default:
        others[f"{DEFAULT}, {default.name}"] = report(table, losses_of(table, default), Map.of(default))
    return law, found, others | beside(table, law)


# --- As numbers and as a page ----------------------------------------------------------------------------------------


def _flat_errors(prefix: str, errors: Errors | None) -> dict[str, Any]:
    if errors is None:
        return {f"{prefix}.models": 0, **{f"{prefix}.{k}": None for k in ("rmse", "mean_abs", "bias")}}
    return {f"{prefix}.{k}": v for k, v in dataclasses.asdict(errors).items()}


def flat(found: Report, others: Mapping[str, Report] | None = None) -> dict[str, Any]:
    """A report as one flat object: errors in points, None where nothing can be said."""
    out: dict[str, Any] = {}
    named = [(f"recipe.{g.name.replace(', ', '@')}", g) for g in found.recipes]
    named += [(f"harness.{g.name}", g) for g in found.harnesses]
    for name, group in [*named, ("all", found.everything)]:
        out |= {f"{name}.models": group.models, f"{name}.families": group.families}
        out |= {f"{name}.spearman": group.spearman, f"{name}.slope": group.slope, f"{name}.midpoint": group.midpoint}
        out |= {f"{name}.pairs_{k}": v for k, v in dataclasses.asdict(group.pairs).items()}
        out |= {k: v for k, v in _flat_errors(name, group.fixed).items() if not k.endswith(".models")}
        out |= _flat_errors(f"{name}.held_out", group.held_out)
    out |= _flat_errors("moe_from_dense", found.moe)
    for name, other in (others or {}).items():
        key = f"beside.{name.split(', ')[0].replace(' ', '_')}"
        better, worse = verdict(found, other)
        out |= {f"{key}.better": better, f"{key}.worse": worse}
        out |= {f"{key}.pairs_right": other.everything.pairs.right, f"{key}.spearman": other.everything.spearman}
        out |= _flat_errors(f"{key}.held_out", other.everything.held_out)
        out |= _flat_errors(f"{key}.moe_from_dense", other.moe)
    return out


def _number(value: float | None, digits: int = 1, *, signed: bool = False) -> str:
    """One value; an en dash where there is none."""
    if value is None:
        return "–"
    text = f"{value:{'+' if signed else ''}.{digits}f}"
    return text.replace("-", "−") if float(text) else f"{0:.{digits}f}"


def _errors(errors: Errors | None) -> list[str]:
    if errors is None:
        return ["–", "–", "–"]
    return [_number(errors.rmse), _number(errors.mean_abs), _number(errors.bias, signed=True)]


def _lines(groups: Sequence[Group], first: str) -> str:
    from sweep.report.markdown import grid

    held = "left out"
    heads = [first, "models", "families", "Spearman", "pairs right"]
    heads += ["RMSE", "mean abs.", "bias", f"{held}: RMSE", "mean abs.", "bias"]
    rows = [
        [
            g.name,
            str(g.models),
            str(g.families),
            _number(g.spearman, 3),
            str(g.pairs),
            *_errors(g.fixed),
            *_errors(g.held_out),
        ]
        for g in groups
    ]
    return grid(heads, rows, left=[True, *[False] * (len(heads) - 1)])


def page(table: Table, law: Law, found: Report, others: Mapping[str, Report] | None = None) -> str:
    """The report as one Markdown page, with how many models each figure rests on."""
    from sweep.report.markdown import grid

    score = SCORE_NAMES[table.score]
    frame = table.frame
    terms = [t for t, on in (("shape", law.shape_term), ("KV heads", law.kv_term)) if on]
    no_shape = frame.filter(pl.col("n_layers").is_null() | pl.col("d_model").is_null()).height
    grouped = (pl.col("n_kv_heads") > 0) & (pl.col("n_heads").fill_null(0) <= 0)
    no_heads = frame.filter(grouped).height
    gaps = []
    if law.shape_term and no_shape:
        gaps.append(f"{no_shape} models without width and depth get no shape term")
    if law.kv_term and no_heads:
        gaps.append(f"{no_heads} with KV heads but no query heads on record get no KV term")
    weight = f" (w = {float(law.w):g})" if law.name == "geo_mean" else ""
    parts = [
        f"# The proxy {law.name.split('#')[0]}{weight} against {len(table)} models with a published {score}",
        f"Table: {table.name}, {len(set(table.families))} families, {int(table.is_moe.sum())} mixtures of experts. "
        f"Each model with its own training tokens; terms: {', '.join(terms) or 'none'}."
        + (f" {'; '.join(gaps)}." if gaps else ""),
        f"Errors are in points of {score}, bias is predicted less published. A pair is two models of one family, "
        "scored by one harness. Pairs share models, so they are fewer witnesses than they look.",
    ]
    if found.recipes:
        parts += [
            "## Within one recipe",
            f"Families of {FEWEST_RECIPE} models or more, one harness. Left out: one model at a time, the offset and "
            "scale of the score map refitted on the others. Without refitting, the errors are those of the score map "
            "in use, in-sample for the family it was fitted on.",
            _lines(found.recipes, "family, harness"),
        ]
    parts += [
        "## Across recipes",
        "Left out: one family at a time, the offset and scale of the score map refitted on the other families. Without "
        "refitting, the errors are those of a map of another recipe: what reading the axis as anybody's score costs.",
        _lines([*found.harnesses, found.everything], "harness or set"),
        "## Mixtures of experts from their dense siblings",
    ]
    if found.siblings and found.moe is not None:
        rows = [
            [
                s.model,
                str(s.dense),
                _number(100 * s.published),
                _number(100 * s.predicted),
                _number(100 * (s.predicted - s.published), signed=True),
            ]
            for s in found.siblings
        ]
        moe = found.moe
        parts += [
            "The score map is refitted on the dense models of the same family and harness: offset and scale where "
            f"there are {FEWEST_SLOPE} or more, else the offset alone. Over {moe.models} models: RMSE "
            f"{_number(moe.rmse)}, mean abs. {_number(moe.mean_abs)}, bias {_number(moe.bias, signed=True)}.",
            grid(["model", "dense siblings", "published", "predicted", "error"], rows, left=[True, *[False] * 4]),
        ]
    else:
        parts += ["None in this table: no family has both, scored by one harness."]
    if others:
        name_of_law = f"**{law.name.split('#')[0]}**{weight}"
        rows = []
        for name, r in [(name_of_law, found), *others.items()]:
            text = [_number(v, m.digits) for m, v in zip(MEASURES, measures(r), strict=True)]
            better, worse = verdict(found, r)
            rows.append([name, *text, "–" if r is found else f"{better} better, {worse} worse"])
        count = found.moe.models if found.moe else 0
        parts += [
            "## Beside other laws",
            f"Over all {len(table)} models, the two columns of experts over {count}. The laws of the parameters alone "
            "have the same base law and terms with N_eff = N_act^(1-w) N_tot^w. One model left out: within recipes, as "
            "above. The last column counts the figures in which a law is better or worse than the first.",
            grid(
                ["law", *(m.name for m in MEASURES), "against the first"], rows,
                left=[True, *[False] * len(MEASURES), True],
            ),
        ]  # fmt: skip
    return "\n\n".join(parts) + "\n"
