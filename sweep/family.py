"""Invented models and machines by scaling rules, and which of several dated prices and powers counts.

`model.scale.d_model=1.5 model.scale.solve=n_layers` makes a wider model of the same size,
`hardware.scale.link_bytes_per_s=2` a machine that does not exist; `hardware.price=neocloud` picks a published price.
A rule applied with factor 1 changes nothing. What a rule made is hypothetical and says so.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from sweep.complete import complete_model
from sweep.config import Record, Study, check_hardware
from sweep.cost.arith import namespace
from sweep.cost.memory import count_params
from sweep.errors import BadInput, closest
from sweep.point import Hardware, Model, names

Values = dict[str, Any]

# What goes along with the width, in proportion, unless it has a factor of its own.
WIDTHS = ("d_ff", "d_expert", "d_shared", "q_lora_rank", "linear_in_width", "linear_out_width")
# Counts of layers by mixer and by FFN: they go along with the depth.
MIXERS = ("n_full_layers", "n_window_layers", "n_linear_layers")
FFNS = ("n_dense_layers", "n_moe_layers")
HELD = ("params_total", "params_active")
SOLVED = ("n_layers", "d_model", "d_ff", "d_expert", "n_experts")
WHOLE = ("n_layers", "n_heads", "n_kv_heads", "n_experts", "top_k", "n_shared_experts", "head_dim", "vocab")
FACTORS = (*(n for n in names(Model) if n not in ("tied_embeddings", "attn_gate", "k_equals_v")), "aspect")
RULES = ("hold", "solve", "round")
ROUND = 128  # widths become multiples of this
FIGURES = names(Hardware)
LEAST, MOST = 1 / 64, 64  # how far a dimension may be moved to hold a quantity
# figures of which an entry may hold several, by label and date: setting, list in the file, figure, label of a lone one
VINTAGES = {"price": ("prices", "usd_per_hour", "list"), "power": ("powers", "watts", "board")}


def held(values: Mapping[str, Any], quantity: str) -> float:
    """Parameters of a shape: all of them, or those that a token multiplies."""
    model = complete_model({k: np.nan if v is None else float(v) for k, v in values.items()})
    with namespace(np):
        params = count_params(model)
    return float((params.total if quantity == "params_total" else params.active)[0])


def _to(value: float, multiple: float) -> float:
    return max(math.floor(value / multiple + 0.5), 1) * multiple


def _layers(values: Values, old: float, new: float, exact: bool) -> None:
    """Counts of layers by kind in proportion to the depth; where they add up to it, they still do."""
    for kinds in (MIXERS, FFNS):
        given = {k: float(values[k]) for k in kinds if values.get(k)}
        adds_up = abs(sum(given.values()) - old) < 1e-9
        for key, count in given.items():
            values[key] = count * new / old if exact else _to(count * new / old, 1)
        if given and adds_up and not exact:
            largest = max(given, key=lambda k: given[k])
            values[largest] += new - sum(values[k] for k in given)
    if values.get("n_index_layers"):
        count = values["n_index_layers"] * new / old
        values["n_index_layers"] = count if exact or values["n_index_layers"] % 1 else _to(count, 1)


def _shape(
    base: Mapping[str, Any], factors: Mapping[str, float], multiple: float, exact: bool, fixed: Sequence[str] = ()
) -> Values:
    """A shape with factors applied.

    Args:
        exact: leave out the rounding, for the solver.
        fixed: fields that do not go along, because they had a factor of their own before.
    """
    values = dict(base)
    width = factors.get("d_model", 1.0)
    depth = factors.get("n_layers", 1.0)
    own = dict(factors)
    if width != 1.0:
        for key in (*WIDTHS, "n_heads", "state_bytes_per_layer"):
            if key not in fixed:
                own.setdefault(key, width)
        if base.get("head_dim") is None and not base.get("kv_lora_rank"):
            values["head_dim"] = base["d_model"] / base["n_heads"]
    own.setdefault("extra_params", width * depth)
    for key, factor in own.items():
        if factor == 1.0 or values.get(key) is None or key in (*MIXERS, *FFNS, "n_index_layers"):
            continue
        value = values[key] * factor
        if exact:
            values[key] = value
        elif key in ("d_model", "d_ff", "d_expert", "d_shared", "q_lora_rank"):
            values[key] = _to(value, multiple) if values[key] else 0.0
        elif key == "n_heads":
            values[key] = _to(value, _head_step(base))
        elif key in WHOLE:
            values[key] = _to(value, 1)
        elif key in ("linear_in_width", "linear_out_width", "state_bytes_per_layer", "extra_params", "window"):
            values[key] = float(round(value))
        else:
            values[key] = value
    if depth != 1.0:
        _layers(values, float(base["n_layers"]), float(values["n_layers"]), exact)
    for key in (*MIXERS, *FFNS, "n_index_layers"):  # factors of their own, if a person says so
        if factors.get(key, 1.0) != 1.0 and base.get(key) is not None:
            values[key] = base[key] * factors[key] if exact else _to(base[key] * factors[key], 1)
    return values


def _head_step(base: Mapping[str, Any]) -> float:
    """Heads stay a multiple of the key/value heads, and of 8 where they were."""
    kv = float(base.get("n_kv_heads") or 1)
    step = math.lcm(int(kv), 8)
    return float(step) if base["n_heads"] % step == 0 else kv


def scale_model(base: Mapping[str, Any], rules: Mapping[str, Any]) -> Values:
    """A shape scaled by rules.

    Args:
        base: fields of `Model`.
        rules: factors of fields and of `aspect` (d_model / n_layers); `hold`, a count of parameters to keep; `solve`,
            the dimension to move for it; `round`, what widths become multiples of.

    The width takes FFN and expert widths, query heads (of unchanged width) and low-rank queries along, the depth its
    kinds of layers; a field with a factor of its own follows that. Key/value heads, head widths, the vocabulary, expert
    counts and windows stay. The solved dimension is the multiple nearest to what holds the count.
    Raises: `BadInput` where no value of the solved dimension holds it.
    """
    factors = {k: float(v) for k, v in rules.items() if k not in RULES}
    hold, solve = rules.get("hold"), rules.get("solve")
    multiple = float(rules.get("round") or ROUND)
    if all(f == 1.0 for f in factors.values()):
        return dict(base)
    aspect = factors.pop("aspect", None)
    if aspect is not None:
        for key in ("d_model", "n_layers"):
            if key in factors:
                raise BadInput(f"model.scale.aspect={aspect:g}: goes with the width and the depth; drop scale.{key}")
        if solve not in (None, "d_model"):
            raise BadInput(f"model.scale.solve={solve}: an aspect moves width and depth; drop model.scale.solve")
        goal = held(base, hold or "params_total")

        def both(x: float) -> Values:
            return _shape(base, {**factors, "d_model": x, "n_layers": x / aspect}, multiple, exact=True)

        x = _root(lambda x: held(both(x), hold or "params_total"), goal, "model.scale.aspect", aspect)
        depth = _to(base["n_layers"] * x / aspect, 1) / base["n_layers"]
        return _solved(base, {**factors, "n_layers": depth}, "d_model", hold or "params_total", multiple)
    if solve is None and hold is not None:
        raise BadInput(f"model.scale.hold={hold}: say which dimension to solve for; {closest('', SOLVED)}")
    if solve is None:
        return _shape(base, factors, multiple, exact=False)
    if solve in factors:
        raise BadInput(f"model.scale.solve={solve}: has a factor already; drop model.scale.{solve} or solve another")
    return _solved(base, factors, solve, hold or "params_total", multiple)


def _root(count: Callable[[float], float], goal: float, key: str, value: Any) -> float:
    """The factor at which a count meets its goal, by bisection on a logarithm. Counts rise with every dimension."""
    low, high = math.log(LEAST), math.log(MOST)
    if not count(LEAST) <= goal <= count(MOST):
        raise BadInput(
            f"{key}={value}: no factor between 1/64 and 64 keeps {goal:.4g} parameters "
            f"(they run from {count(LEAST):.4g} to {count(MOST):.4g})"
        )
    if count(LEAST) == count(MOST):
        raise BadInput(f"{key}={value}: the parameters that are held do not depend on it")
    for _ in range(60):
        middle = (low + high) / 2
        if count(math.exp(middle)) < goal:
            low = middle
        else:
            high = middle
    return math.exp((low + high) / 2)


def _solved(base: Mapping[str, Any], factors: Mapping[str, float], solve: str, hold: str, multiple: float) -> Values:
    """The shape whose solved dimension is the multiple that holds the count best."""
    if not base.get(solve):
        raise BadInput(f"model.scale.solve={solve}: this model has none; {closest('', _present(base))}")
    goal = held(base, hold)
    start = _shape(base, factors, multiple, exact=False)  # all but the solved dimension, as they will be
    fixed = [k for k in factors if k != solve]

    def shape(factor: float, *, exact: bool) -> Values:
        return _shape(start, {solve: factor}, multiple, exact=exact, fixed=fixed)

    factor = _root(lambda x: held(shape(x, exact=True), hold), goal, "model.scale.solve", solve)
    step = 1.0 if solve in WHOLE else multiple
    least = float(base["top_k"]) if solve == "n_experts" else step
    below = math.floor(factor * start[solve] / step) * step
    sizes = dict.fromkeys(max(below + i * step, least) for i in (-1, 0, 1, 2))
    found = [shape(size / start[solve], exact=False) for size in sizes]
    return min(found, key=lambda values: abs(held(values, hold) - goal))


def _present(base: Mapping[str, Any]) -> list[str]:
    return [k for k in SOLVED if base.get(k)]


# --- settings of a record ----------------------------------------------------------------------------------------


def check_settings(group: str, settings: Mapping[str, Any]) -> None:
    """Refuse unknown rules, fields and values. Raises: `BadInput` with the nearest names."""
    for key, value in settings.items():
        word, _, name = key.partition(".")
        where = f"{group}.{key}={value}"
        if group == "hardware" and word in VINTAGES and not name:
            continue
        known = (*FACTORS, *RULES) if group == "model" else FIGURES
        if word != "scale" or not name:
            raise BadInput(f"{group}.{key}: no such key; {closest(key, [f'scale.{k}' for k in known])}")
        if name not in known:
            raise BadInput(f"{group}.{key}: no such key; {closest(name, known)}")
        if group == "model" and name == "hold":
            if value is not None and value not in HELD:
                raise BadInput(f"{where}: allowed are {', '.join(HELD)}")
        elif group == "model" and name == "solve":
            if value is not None and value not in SOLVED:
                raise BadInput(f"{where}: allowed are {', '.join(SOLVED)}")
        elif isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise BadInput(f"{where}: must be a number greater than 0")


def transformed(
    record: Record, settings: Mapping[str, Any], swept: Sequence[str] = (), *, lenient: bool = False
) -> Record:
    """A record with its settings applied: scaled, and with the price and power that were asked for.

    `swept`: settings of which a grid holds several, which a machine's name then tells apart.
    """
    check_settings(record.group, settings)
    rules = {k.partition(".")[2]: v for k, v in settings.items() if k.startswith("scale.") and v is not None}
    if record.group == "model":
        values = scale_model(record.values, rules)
        if values == record.values:
            return record
        asked = [k for k in ("d_model", "n_layers", *rules, rules.get("solve")) if k in values]
        shown = [f"{k} {values[k]:g}" for k in dict.fromkeys(asked) if values[k] != record.values[k]]
        about = {**record.about, "status": "hypothetical"}
        about["overridden"] = sorted(
            {*(about.get("overridden") or []), *(k for k in values if values[k] != record.values[k])}
        )
        return dataclasses.replace(record, id=f"{record.id}[{', '.join(shown)}]", values=values, about=about)
    values, about, label = dict(record.values), dict(record.about), []
    for key, (entries, figure, _) in VINTAGES.items():
        if settings.get(key) is not None:
            if figure in (about.get("overridden") or []):
                raise BadInput(f"hardware.{key}={settings[key]}: hardware.{figure} is given as well; choose one")
            try:
                chosen = vintage(record, key, str(settings[key]))
            except BadInput:
                if not lenient:
                    raise
                chosen = None
            values[figure], about[key] = (chosen or {}).get(figure), name_of(chosen)
            if key in swept:
                label.append(f"{key} {settings[key]}")
        elif about.get(entries) or values.get(figure) is not None:
            about[key] = default_name(record, key)
    for name, factor in rules.items():
        if factor == 1:
            continue
        if values.get(name) is None:
            raise BadInput(f"hardware.scale.{name}={factor:g}: {record.id} has no such figure published")
        values[name] *= factor
        about["overridden"] = sorted({*(about.get("overridden") or []), name})
        about["status"] = "hypothetical"
        label.append(f"{name} x{factor:g}")
    check_hardware(values, record.id)
    name = f"{record.id}[{', '.join(label)}]" if label else record.id
    return dataclasses.replace(record, id=name, values=values, about=about)


def vintages(record: Record, key: str) -> list[dict[str, Any]]:
    """The dated prices or powers of a machine, the default first; a lone figure stands for itself."""
    entries, figure, lone = VINTAGES[key]
    listed = [dict(e) for e in record.about.get(entries) or []]
    if not listed and record.values.get(figure) is not None:
        date = record.about.get("price_date") if key == "price" else record.about.get("year")
        listed = [{"date": str(date or "undated"), "label": lone, figure: record.values[figure]}]
    return listed


def name_of(entry: Mapping[str, Any] | None) -> str:
    """Date and label of a price or power: `2026 retail`."""
    return "none" if entry is None else f"{entry['date']} {entry['label']}"


def default_name(record: Record, key: str) -> str:
    """What a machine's own figure is, of those that are published; `overridden` where a person gave it."""
    figure = VINTAGES[key][1]
    if figure in (record.about.get("overridden") or []):
        return "overridden"
    for entry in vintages(record, key):
        if entry[figure] == record.values.get(figure):
            return name_of(entry)
    return "unknown"


def vintage(record: Record, key: str, wanted: str) -> dict[str, Any] | None:
    """The price or power of a label, a date (the highest of it), `high` or `low`; `None` where a machine has none.

    Raises: `BadInput` with what there is, where the machine has some but not this one.
    """
    figure = VINTAGES[key][1]
    listed = vintages(record, key)
    if not listed:
        return None
    if wanted in ("high", "low"):
        latest = [e for e in listed if e["date"] == listed[0]["date"]]
        return (max if wanted == "high" else min)(latest, key=lambda e: float(e[figure]))
    found = [e for e in listed if wanted in (str(e["label"]), str(e["date"]), name_of(e))]
    if not found:
        choices = list(
            dict.fromkeys([*(name_of(e) for e in listed), *(str(e["label"]) for e in listed), "high", "low"])
        )
        raise BadInput(f"hardware.{key}={wanted}: {record.id} has no such {key}; {closest(wanted, choices)}")
    return max(found, key=lambda e: float(e[figure]))


@dataclass(frozen=True, kw_only=True)
class Made:
    """A record with settings applied, those of them that are axes, and the fields that they moved."""

    record: Record
    axes: dict[str, Any]
    moved: tuple[str, ...]
    settings: dict[str, Any]


def expand(
    records: Sequence[Record], settings: Mapping[str, Any], axes: Mapping[str, Sequence[Any]], *, lenient: bool = False
) -> list[Made]:
    """Every record with every combination of settings of an axis.

    `lenient`: a machine without a price that others have has none, instead of an error.
    """
    swept = [k for k, values in axes.items() if len(values) > 1]
    made = []
    for record in records:
        for combo in product(*axes.values()):
            own = dict(zip(axes, combo, strict=True))
            asked = {**settings, **own}
            result = transformed(record, asked, swept, lenient=lenient) if asked else transformed(record, {})
            moved = tuple(k for k, v in result.values.items() if v != record.values.get(k))
            made.append(Made(record=result, axes=own, moved=moved, settings=asked))
    return made


def check_vintages(made: Sequence[Made]) -> None:
    """Refuse a price or power that no machine of an axis has. Raises: `BadInput`."""
    for key in VINTAGES:
        for wanted in dict.fromkeys(str(m.settings[key]) for m in made if m.settings.get(key) is not None):
            own = [m for m in made if str(m.settings.get(key)) == wanted]
            if all(m.record.about.get(key) == "none" for m in own):
                known = [name_of(e) for m in own for e in vintages(m.record, key)]
                raise BadInput(f"hardware.{key}={wanted}: no machine has such a {key}; {closest(wanted, known)}")


def prepared(study: Study) -> Study:
    """A study whose base records are scaled and priced as asked; applied once, however often it is called."""
    if study.unscaled:
        return study
    base = {
        group: transformed(record, study.settings.get(group, {})) if group in ("model", "hardware") else record
        for group, record in study.base.items()
    }
    return dataclasses.replace(study, base=base, unscaled=study.base)


def source(study: Study, group: str) -> Record:
    """The base record of a group before its settings, to which a grid applies them."""
    asked = study.settings.get(group) or study.on_top.get(group)
    return study.unscaled.get(group, study.base[group]) if asked else study.base[group]
