"""Measured losses in place of the proxy's, for models that have been trained: a table of one's own.

A CSV file with the columns `model` and `loss` [nats/token]. A row speaks of the models of a grid with that name;
columns such as `model.n_layers` narrow it down where a family has many shapes; `precision` narrows it to one format, in
which the loss was then measured (blank: in bf16, so that what narrow formats cost is added as everywhere); `loss_sigma`
is a standard deviation. Other columns are the reader's. Lines that begin with # are remarks.

Measured losses of one table compare with each other. They do not compare with a proxy's: the test set and the tokenizer
differ. So a grid that the table covers in part is refused, unless `accuracy.mix=true` asks for both; every file then
says which is which.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from sweep.accuracy import AccuracyConfig
from sweep.errors import BadInput, closest
from sweep.point import Model, names
from sweep.space import Space, decode

Floats = npt.NDArray[np.float64]
SOURCES = ("proxy", "measured")


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a table says of a grid: all arrays [models, precisions]."""

    loss: Floats  # NaN where the table says nothing
    sigma: Floats
    in_format: npt.NDArray[np.bool_]  # measured in the precision itself: nothing to add for formats

    @property
    def known(self) -> npt.NDArray[np.bool_]:
        """Which losses are measured."""
        return np.isfinite(self.loss)


def read_csv(path: Path | str, key: str) -> pl.DataFrame:
    """A CSV file as text columns, stripped, blanks null.

    Raises: `BadInput` in one line, for a file that cannot be read.
    """
    try:
        frame = pl.read_csv(path, comment_prefix="#", infer_schema=False)
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{key}={path}: cannot be read ({getattr(error, 'strerror', None) or 'not text'})") from None
    except pl.exceptions.PolarsError as error:
        raise BadInput(f"{key}={path}: no comma-separated values ({str(error).splitlines()[0]})") from None
    text = pl.col(pl.String).str.strip_chars()
    return frame.rename(str.strip).with_columns(pl.when(text != "").then(text))


def number(text: str, where: str) -> float:
    """A finite number; `where` names the cell in the message otherwise."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise BadInput(f"{where}={text}: must be a number")
    return value


def measured(space: Space, settings: AccuracyConfig) -> Measured | None:
    """The table of a configuration on the models and formats of a grid; None where it names no table.

    Raises: `BadInput` for a table that is none, a row of no use to the grid's models under a name that they have, two
    rows for one model, and, unless `accuracy.mix`, for models without a row.
    """
    if settings.table is None:
        return None
    path = settings.table
    frame = read_csv(path, "accuracy.table")
    for column in ("model", "loss"):
        if column not in frame.columns:
            raise BadInput(f"accuracy.table={path}: no column {column}; {closest(column, frame.columns)}")
    keys = [c for c in frame.columns if c.startswith("model.")]
    for key in keys:
        if key.removeprefix("model.") not in names(Model):
            raise BadInput(
                f"accuracy.table={path}: {key}: no such key; {closest(key, [f'model.{n}' for n in names(Model)])}"
            )
    labels = model_names(space)
    formats = [p.id for p in space.precision]
    shape = (len(labels), len(formats))
    loss, sigma = np.full(shape, np.nan), np.zeros(shape)
    in_format, rank = np.zeros(shape, dtype=np.bool_), np.full(shape, -1)
    for row in frame.iter_rows(named=True):
        if row["model"] is None:
            raise BadInput(f"accuracy.table={path}: a row without a model")
        at = f"accuracy.table={path}: {row['model']}"
        if row["loss"] is None:
            raise BadInput(f"{at}: no loss")
        nats = number(row["loss"], f"{at}: loss")
        if not 0 < nats < 20:
            raise BadInput(f"{at}: loss={nats:g}: must lie between 0 and 20 nats/token")
        spread = number(row["loss_sigma"], f"{at}: loss_sigma") if row.get("loss_sigma") else 0.0
        if spread < 0:
            raise BadInput(f"{at}: loss_sigma={spread:g}: must not be negative")
        models = labels == row["model"]
        for key in keys:
            if row[key] is not None:
                field = np.asarray(getattr(space.model, key.removeprefix("model.")), dtype=np.float64)
                models = models & np.isclose(field, number(row[key], f"{at}: {key}"), rtol=1e-9)
        own = row.get("precision")
        chosen = np.array([own in (None, name) for name in formats])
        here = models[:, None] & chosen[None, :]
        level = int(own is not None)  # a loss in the format itself goes before one in bf16
        if (here & (rank == level)).any():
            raise BadInput(f"{at}: two rows for one model; tell them apart by columns such as model.n_layers")
        here &= rank < level
        loss[here], sigma[here], in_format[here], rank[here] = nats, spread, level == 1, level
    found = Measured(loss=loss, sigma=sigma, in_format=in_format)
    missing = [str(name) for name in dict.fromkeys(labels[~found.known.all(axis=1)])]
    if not found.known.any():
        raise BadInput(
            f"accuracy.table={path}: no row for any model of the grid; {closest(str(labels[0]), _texts(frame))}"
        )
    if missing and not settings.mix:
        some = ", ".join(missing[:4]) + (f" and {len(missing) - 4} more" if len(missing) > 4 else "")
        raise BadInput(
            f"accuracy.table={path}: no measured loss for {some}; measured and predicted losses are not mixed unless "
            "accuracy.mix=true"
        )
    return found


def _texts(frame: pl.DataFrame) -> list[str]:
    return [str(name) for name in frame["model"].unique(maintain_order=True) if name is not None]


def model_names(space: Space) -> npt.NDArray[np.str_]:
    """Name of each model of a grid: its file's, or its family's."""
    first = np.arange(space.n_models, dtype=np.int64) * len(space.machines) * space.n_layouts * space.per_row
    return np.asarray(decode(space.axes, first)["model"], dtype=np.str_)


def loss_source(known: npt.NDArray[np.bool_] | None) -> str:
    """`proxy`, `measured` or `mixed`: where the losses of a grid come from."""
    if known is None or not known.any():
        return "proxy"
    return "measured" if known.all() else "mixed"
