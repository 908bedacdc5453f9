"""One point as plain float64 numbers, without configurations: records in, a row of the cost model out."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from sweep.complete import complete_context, complete_layout, complete_model
from sweep.config import Library, conf_dir
from sweep.cost.arith import namespace
from sweep.cost.result import ContextCost, PointCost, RowCost, evaluate_point
from sweep.cost.step import Row
from sweep.machine import Machine, resolve
from sweep.point import Context, Hardware, Kinds, Layout, Model, Precision

# A small machine whose figures are powers of two or of ten, so that expected values can be worked out by hand.
HARDWARE: dict[str, Any] = {
    "fp32_flops": 1e14,
    "bf16_flops": 1e15,
    "fp8_flops": 2e15,
    "int8_flops": 2e15,
    "fp4_flops": 4e15,
    "hbm_bytes": 1e11,
    "hbm_bytes_per_s": 4e12,
    "n_sm": 100,
    "domain": 8,
    "link_bytes_per_s": 4e11,
    "scaleout_bytes_per_s": 5e10,
    "watts": 1000.0,
    "usd_per_hour": 3.6,
}

DENSE: dict[str, Any] = {
    "n_layers": 16,
    "d_model": 1024,
    "n_heads": 16,
    "n_kv_heads": 4,
    "head_dim": 64,
    "d_ff": 4096,
    "vocab": 32768,
}
MOE: dict[str, Any] = {
    **DENSE,
    "n_experts": 64,
    "top_k": 4,
    "d_expert": 512,
    "n_shared_experts": 1,
    "n_dense_layers": 4,
}
MLA: dict[str, Any] = {
    **MOE,
    "n_kv_heads": 1,
    "q_lora_rank": 512,
    "kv_lora_rank": 256,
    "qk_nope_dim": 64,
    "qk_rope_dim": 32,
    "v_head_dim": 64,
    "sparse_top_k": 512,
    "index_heads": 8,
    "index_dim": 64,
}
MIXED: dict[str, Any] = {
    **MOE,
    "n_window_layers": 8,
    "window": 1024,
    "n_linear_layers": 4,
    "state_bytes_per_layer": 65536,
    "linear_in_width": 4096,
    "linear_out_width": 2048,
    "attn_gate": 1.0,
    "latent_ratio": 2,
}
MODELS = {"dense": DENSE, "moe": MOE, "mla": MLA, "mixed": MIXED}


@functools.cache
def preset(name: str) -> Mapping[str, Any]:
    """An efficiency preset as it is shipped."""
    return Library([conf_dir()]).raw("efficiency", name)


def machine(efficiency: str = "ideal", *, precision: Mapping[str, Any] | None = None, **figures: Any) -> Machine:
    """The small machine, with some figures changed."""
    hardware = Hardware(**{**HARDWARE, **figures})
    return resolve(hardware, Precision(**(precision or {})), preset(efficiency)).machine


def scalars(record: Any) -> Any:
    """A table of one entry as float64 numbers."""
    return jax.tree.map(lambda x: np.float64(np.asarray(x, dtype=np.float64).reshape(-1)[0]), record)


def model(values: Mapping[str, Any] = DENSE, **changed: Any) -> Model:
    """A model from a few figures."""
    full: Model = scalars(complete_model({**values, **changed}))
    return full


def layout(**values: Any) -> Layout:
    """A layout; what is not given is 1 or off."""
    full: Layout = scalars(complete_layout(values))
    return full


def context(**values: Any) -> Context:
    """The lengths of a load."""
    full: Context = scalars(complete_context(values))
    return full


def row(m: Model, hw: Machine, lay: Layout, *, skew: float = 0.0) -> Row:
    """A configuration; accuracy plays no part here."""
    names = ("accuracy", "loss", "loss_sigma", "accuracy_low", "accuracy_high", "extrapolation")
    return Row(model=m, machine=hw, layout=lay, skew=np.float64(skew), **dict.fromkeys(names, np.float64(0.0)))


@contextlib.contextmanager
def numbers() -> Iterator[None]:
    """The cost model on plain numbers."""
    with namespace(np), np.errstate(all="ignore"):
        yield


def all_kinds() -> Kinds:
    """Every kind, none left out."""
    return Kinds()


@dataclasses.dataclass(frozen=True)
class Costs:
    """All columns of a point."""

    row: RowCost
    context: ContextCost
    point: PointCost


def evaluate(r: Row, batch: float, c: Context, kinds: Kinds | None = None) -> Costs:
    """One point with every kind switched on."""
    with numbers():
        return Costs(*evaluate_point(r, np.float64(batch), c, kinds or all_kinds()))
