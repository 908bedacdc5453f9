"""Markdown tables of design points: units in the headers, three honest digits, layouts and models in a few words."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import polars as pl

from sweep.columns import BANDS

# column: (header, factor from the stored unit to the one shown)
HEADERS: dict[str, tuple[str, float]] = {
    "point_id": ("point", 1.0),
    "model": ("model", 1.0),
    "hardware": ("hardware", 1.0),
    "precision": ("format", 1.0),
    "precision.weights": ("weights", 1.0),
    "precision.kv": ("KV cache", 1.0),
    "layout": ("layout", 1.0),
    "prefill.layout": ("prefill layout", 1.0),
    "prefill.hardware": ("prefill hardware", 1.0),
    "serving": ("serving", 1.0),
    "n_prefill": ("prefill replicas", 1.0),
    "n_decode": ("decode replicas", 1.0),
    "gpus": ("GPUs", 1.0),
    "gpus_prefill": ("prefill GPUs", 1.0),
    "gpus_decode": ("decode GPUs", 1.0),
    "prefill_per_decode": ("prefill : decode GPUs", 1.0),
    "requests_per_s": ("requests/s", 1.0),
    "kv_transfer_s": ("KV transfer [s]", 1.0),
    "kv_link_share": ("KV link [%]", 100.0),
    "prefill_s": ("prefill part [ms]", 1e3),
    "concurrency": ("requests in flight", 1.0),
    "layout.gpus": ("GPUs", 1.0),
    "workload.batch": ("batch", 1.0),
    "workload.context": ("context [tok]", 1.0),
    "workload.isl": ("in [tok]", 1.0),
    "workload.osl": ("out [tok]", 1.0),
    "accuracy": ("accuracy [%]", 100.0),
    "loss": ("loss [nats/tok]", 1.0),
    "loss_sigma": ("loss sigma [nats/tok]", 1.0),
    "tok_s_gpu": ("output tok/s/GPU", 1.0),
    "tok_s_user": ("tok/s/user", 1.0),
    "total_tok_s_gpu": ("in + out tok/s/GPU", 1.0),
    "tpot_s": ("TPOT [ms]", 1e3),
    "ttft_s": ("TTFT [s]", 1.0),
    "request_s": ("request [s]", 1.0),
    "bound": ("bound by", 1.0),
    "mfu": ("MFU [%]", 100.0),
    "mbu": ("MBU [%]", 100.0),
    "held_bytes": ("held [GB/GPU]", 1e-9),
    "weights_bytes": ("weights [GB/GPU]", 1e-9),
    "kv_bytes": ("KV [GB/GPU]", 1e-9),
    "max_batch": ("largest batch", 1.0),
    "params_total": ("parameters [B]", 1e-9),
    "params_active": ("active [B]", 1e-9),
    "usd_per_mtok": ("USD/M output tok", 1.0),
    "tok_s_mw": ("output tok/s/MW", 1.0),
    "joule_per_tok": ("J/output tok", 1.0),
    "tok_per_usd": ("output tok/USD", 1.0),
    "usd_per_mtok_total": ("USD/M tok (in + out)", 1.0),
    "usd_per_mtok_input": ("USD/M input tok (input share)", 1.0),
    "usd_per_mtok_output": ("USD/M output tok (output share)", 1.0),
    "usd_per_request": ("USD/request", 1.0),
    "input_share": ("input share [%]", 100.0),
    "power_share": ("draw of board power [%]", 100.0),
    "watts_drawn": ("drawn [W/GPU]", 1.0),
    "joule_per_tok_drawn": ("J/output tok drawn", 1.0),
    "tok_s_mw_drawn": ("output tok/s/MW drawn", 1.0),
    "replicas": ("replicas", 1.0),
    "fleet_gpus": ("fleet GPUs", 1.0),
    "fleet_usd_per_hour": ("fleet USD/h", 1.0),
    "fleet_kw": ("fleet [kW]", 1.0),
    "fleet_busy": ("fleet busy [%]", 100.0),
    "extrapolation": ("ranges left", 1.0),
}
INTEGERS = frozenset(
    {"point_id", "layout.gpus", "workload.batch", "workload.context", "workload.isl", "workload.osl", "max_batch"}
    | {"extrapolation", "gpus", "gpus_prefill", "gpus_decode", "n_prefill", "n_decode", "replicas", "fleet_gpus"}
)
BOUND_LABELS = {
    "math": "math",
    "weight_read": "weight reads",
    "kv_read": "KV reads",
    "activation": "activations",
    "comm": "communication",
    "latency": "latency",
    "prefill": "prefill",
}
FAMILIES = ("dense", "moe")  # labels of invented models: their shape is their name
_SHORT = {"n_heads": "h", "n_kv_heads": "kv", "d_ff": "ff", "head_dim": "hd", "d_shared": "shared", "window": "win"}
_IN_LABEL = ("n_layers", "d_model", "n_experts", "top_k", "d_expert")
_SHORT_ORDER = ("model.n_kv_heads", "model.d_ff", *(f"model.{key}" for key in _IN_LABEL))


def number(value: Any, digits: int = 3) -> str:
    """A number with `digits` significant digits, thousands separated, never in exponent notation if avoidable.

    Null, NaN and infinity become an en dash: unknown is not zero.
    """
    if value is None or not math.isfinite(float(value)):
        return "–"
    real = float(value)
    if real == 0:
        return "0"
    exponent = math.floor(math.log10(abs(real)))
    decimals = digits - 1 - exponent
    rounded = round(real, decimals)
    if rounded != 0:  # 9.996 becomes 10.0: one decimal less
        decimals = digits - 1 - math.floor(math.log10(abs(rounded)) + 1e-12)
    if abs(real) < 1e-4 or abs(real) >= 1e9:
        return f"{real:.{digits - 1}e}"
    return f"{rounded:,.{max(decimals, 0)}f}"


def integer(value: Any) -> str:
    """A whole number, thousands separated; an en dash where there is none."""
    if value is None or not math.isfinite(float(value)):
        return "–"
    return f"{round(float(value)):,}"


def percent(share: Any, digits: int = 1) -> str:
    """A share as a percentage with a fixed number of decimals, without the sign."""
    return "–" if share is None or not math.isfinite(float(share)) else f"{100 * float(share):.{digits}f}"


def tokens(value: Any) -> str:
    """A token count as people say it: 8k, 128k, 1M for powers of two (of 1024 tokens), plain otherwise."""
    if value is None or not math.isfinite(float(value)):
        return "–"
    whole = round(float(value))
    for size, sign in ((1024 * 1024, "M"), (1024, "k")):
        if whole >= size and whole & (whole - 1) == 0:
            return f"{whole // size:,}{sign}"
    return f"{whole:,}"


def layout_label(row: Mapping[str, Any]) -> str:
    """A layout in a few words, from the columns `layout.tpa kvp dpa tpf ep pp` (absent or null: 1, tpf derived).

    `TP8`; `DP32 EP32` (attention | experts, both over all GPUs); in general attention | FFN as in
    `TPA8 KVP4 | TPF8 EP4`; pipeline stages at the end, `TP8 PP4`; one GPU is `1 GPU`.
    """
    part = {key: _whole(row.get(f"layout.{key}")) for key in ("tpa", "kvp", "dpa", "tpf", "ep", "pp")}
    tpa, kvp, dpa, ep, pp = (part[key] or 1 for key in ("tpa", "kvp", "dpa", "ep", "pp"))
    group = tpa * kvp * dpa
    tpf = part["tpf"] or max(group // ep, 1)
    if group == 1 and tpf * ep == 1:
        words = []
    elif kvp == dpa == ep == 1 and tpf == tpa:
        words = [f"TP{tpa}"]
    elif tpa == kvp == tpf == 1 and dpa == ep:
        words = [f"DP{dpa}", f"EP{ep}"]
    else:
        attention = [f"{name}{n}" for name, n in (("TPA", tpa), ("KVP", kvp), ("DP", dpa)) if n > 1]
        ffn = [f"{name}{n}" for name, n in (("TPF", tpf), ("EP", ep)) if n > 1]
        words = [*(attention or ["TPA1"]), "|", *(ffn or ["TPF1"])]
    if pp > 1:
        words.append(f"PP{pp}")
    return " ".join(words) or "1 GPU"


def _whole(value: Any) -> int | None:
    return None if value is None or not math.isfinite(float(value)) else round(float(value))


def model_label(row: Mapping[str, Any], told_apart_by: Mapping[str, Sequence[str]] | None = None) -> str:
    """A model in a few words: its name, or the shape of an invented one: `moe 48L x 4096, 128e top8 x 1536`.

    `told_apart_by` names further `model.*` columns to add, as found by `told_apart`.
    """
    name = str(row.get("model") or "model")
    get = {key: row.get(f"model.{key}") for key in _IN_LABEL}
    words = [name]
    if name in FAMILIES:
        if get["n_layers"] is not None:
            words.append(f"{_plain(get['n_layers'])}L")
        if get["d_model"] is not None:
            words.append(f"x {_plain(get['d_model'])}" if len(words) > 1 else _plain(get["d_model"]))
        if name == "moe" and get["n_experts"]:
            words[-1] += ","
            words.append(f"{_plain(get['n_experts'])}e")
            if get["top_k"]:
                words.append(f"top{_plain(get['top_k'])}")
            if get["d_expert"]:
                words.append(f"x {_plain(get['d_expert'])}")
    label = " ".join(words)
    for column in (told_apart_by or {}).get(name, ()):
        key, value = column.removeprefix("model."), row.get(column)
        if value not in (None, 0):
            label += f", {_SHORT.get(key, key + ' ')}{_plain(value)}"
    return label


def told_apart(frame: pl.DataFrame) -> dict[str, list[str]]:
    """For each model name, the `model.*` columns without which two different models would have one label.

    Columns are taken up one by one, and only where models that look alike so far differ: what is tied to another
    column (`n_heads = d_model / 128`) adds nothing to a label.
    """
    columns = [c for c in frame.columns if c.startswith("model.")]
    if not columns or "model" not in frame.columns:
        return {}
    columns.sort(key=lambda c: [*_SHORT_ORDER, c].index(c))
    models = frame.select(pl.col("model").cast(pl.String), *columns).unique()
    found: dict[str, list[str]] = {}
    for (name,), part in models.group_by("model", maintain_order=True):
        seen = ["model"]
        if name in FAMILIES:
            seen += [c for c in columns if c.removeprefix("model.") in _IN_LABEL]
        for column in columns:
            if column not in seen and (part.group_by(seen).agg(pl.col(column).n_unique())[column] > 1).any():
                seen.append(column)
                found.setdefault(str(name), []).append(column)
    return found


def _plain(value: Any) -> str:
    if isinstance(value, bool | str):
        return str(value)
    return f"{float(value):g}" if float(value) != round(float(value)) else str(round(float(value)))


def cell(
    row: Mapping[str, Any],
    column: str,
    *,
    digits: int = 3,
    told_apart_by: Mapping[str, Sequence[str]] | None = None,
    mark_extrapolated: bool = False,
) -> str:
    """One value of one point as text, its 80 % band behind it where the row has one.

    `layout` and `model` are put together from several columns.
    """
    if column == "layout":
        return layout_label(row)
    if column == "prefill.layout":
        own = {k.removeprefix("prefill."): v for k, v in row.items() if k.startswith("prefill.")}
        return layout_label(own)
    if column == "model":
        return model_label(row, told_apart_by)
    value = row.get(column)
    if column == "accuracy":
        left = mark_extrapolated and bool(row.get("_apart", row.get("extrapolation")))
        return percent(value) + ("†" if left else "")
    if column == "bound":
        return BOUND_LABELS.get(str(value), str(value)) if value is not None else "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or isinstance(value, str):
        return value or "–"
    if column in ("workload.context", "workload.isl", "workload.osl"):
        return tokens(value)
    factor = HEADERS.get(column, ("", 1.0))[1]
    if column in INTEGERS or isinstance(value, int):
        return integer(value) + _between(row, column, integer)
    return number(float(value) * factor, digits) + _between(row, column, lambda end: number(end * factor))


def _between(row: Mapping[str, Any], column: str, text: Callable[[float], str]) -> str:
    """Both ends of a column's 80 % band behind its value: ` (740 to 1,180)`; nothing where the row has none."""
    band = BANDS.get(column)
    names = (f"{column}_low", f"{column}_high") if band is None else (band.low, band.high)
    low, high = (row.get(name) for name in names)
    return "" if low is None or high is None else f" ({text(low)} to {text(high)})"


def header(column: str) -> str:
    """The heading of a column, with its unit where it has one."""
    return HEADERS.get(column, (column, 1.0))[0]


def table(
    frame: pl.DataFrame,
    columns: Sequence[str],
    digits: int | Mapping[str, int] = 3,
    *,
    mark_extrapolated: bool = False,
    told_apart_by: Mapping[str, Sequence[str]] | None = None,
) -> str:
    """A Markdown table of `frame`.

    Args:
        columns: which, in order; `layout` and `model` are condensed into one readable word each. Columns that the frame
            does not have are left out.
        digits: significant digits, for all or per column (three where nothing is said); accuracy has one decimal.
        mark_extrapolated: put a dagger behind the accuracy of points outside the proxy's calibrated ranges.
        told_apart_by: `model.*` columns to show in model labels; found in the frame if not given.
    """
    known = set(frame.columns)
    layouts = any(c.startswith("layout.") and c != "layout.gpus" for c in known)
    pools = "prefill.layout.tpa" in known
    made = {"layout": layouts, "prefill.layout": pools}
    shown = [c for c in columns if c in known or made.get(c, False)]
    extra = told_apart(frame) if told_apart_by is None else told_apart_by
    precision = digits if isinstance(digits, Mapping) else dict.fromkeys(shown, digits)
    text = [
        [
            cell(row, c, digits=precision.get(c, 3), told_apart_by=extra, mark_extrapolated=mark_extrapolated)
            for c in shown
        ]
        for row in frame.iter_rows(named=True)
    ]
    left = {c for c in shown if c in ("model", "layout", "prefill.layout", "bound") or frame.schema.get(c) in _TEXT}
    return grid([header(c) for c in shown], text, left=[c in left for c in shown])


_TEXT = (pl.String, pl.Categorical, pl.Enum, pl.Boolean)


def grid(headings: Sequence[str], rows: Sequence[Sequence[str]], *, left: Sequence[bool]) -> str:
    """A Markdown table from text: columns padded so that the source reads as well as the page."""
    if not headings:
        return ""
    cells = [[escape(text) for text in row] for row in (headings, *rows)]
    widths = [max(3, *(len(row[i]) for row in cells)) for i in range(len(headings))]

    def line(row: Sequence[str]) -> str:
        parts = [t.ljust(w) if is_left else t.rjust(w) for t, w, is_left in zip(row, widths, left, strict=True)]
        return "| " + " | ".join(parts) + " |"

    rule = ["-" * (w + 2) if is_left else "-" * (w + 1) + ":" for w, is_left in zip(widths, left, strict=True)]
    return "\n".join([line(cells[0]), "|" + "|".join(rule) + "|", *(line(row) for row in cells[1:])])


def escape(text: str) -> str:
    """Text that stays inside one cell."""
    return text.replace("|", "\\|").replace("\n", " ")
