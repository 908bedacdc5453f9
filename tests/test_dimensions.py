"""The cost model on numbers that carry units: what is called seconds is seconds, and a swapped division is caught.

Bytes, seconds, watts and dollars are units; tokens, widths, layers and FLOPs are counts, so a rate of FLOPs is 1/s. The
formulas run as they are: only the namespace that they take their functions from is exchanged, and the constants that
stand for bytes get their unit.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import textwrap
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import pint
import pytest

from sweep.cost import attention, collectives, gemm, memory, ops, step
from sweep.cost.arith import namespace
from sweep.cost.attention import decode_attention, prefill_attention
from sweep.cost.ops import Op, kernel_parts
from sweep.cost.result import evaluate_point
from sweep.cost.step import Row, layer_comm, layer_kernels
from sweep.cost.tokens import decode_tokens, prefill_tokens
from sweep.machine import Link, Machine, OpRate, Tile
from sweep.point import Context, Layout, Model
from tests.cost import points
from tests.cost.points import DENSE, MIXED, MLA, all_kinds

UNITS = pint.UnitRegistry(None)
for line in ("second = [time] = s", "byte = [memory] = B", "watt = [power] = W", "dollar = [money] = USD"):
    UNITS.define(line)


class Q(UNITS.Quantity):  # type: ignore[misc, name-defined]
    """A quantity to which nothing of any unit may be added: 0 bytes times seconds per byte are 0 seconds too."""

    def __add__(self, other: Any) -> Any:
        if _nothing(other):
            return self
        return other if _nothing(self) else super().__add__(other)

    def __sub__(self, other: Any) -> Any:
        return self if _nothing(other) else super().__sub__(other)

    def compare(self, other: Any, op: Callable[[Any, Any], Any]) -> Any:
        return op(_size(self), _size(other)) if _nothing(self) or _nothing(other) else super().compare(other, op)


def _nothing(x: Any) -> bool:
    return float(x.magnitude if isinstance(x, UNITS.Quantity) else x) == 0.0


def _is_number(x: Any) -> bool:
    return not isinstance(x, Q)


def _bare(x: Any) -> float:
    """The value of something that must not have a unit."""
    return float(x) if _is_number(x) else float(x.to("").magnitude)


def _size(x: Any) -> float:
    return float(x if _is_number(x) else x.to_base_units().magnitude)


def _alike(a: Any, b: Any) -> tuple[Any, Any]:
    """Two values of one dimension; a plain number beside a quantity stands for a guard and takes its unit."""
    if _is_number(a) and not _is_number(b):
        a = Q(float(a), b.units)
    if _is_number(b) and not _is_number(a):
        b = Q(float(b), a.units)
    if not _is_number(a) and not _nothing(a) and not _nothing(b):
        b.to(a.units)
    return a, b


class UnitNamespace:
    """The functions that the cost model takes from an array library, for single numbers with units."""

    @staticmethod
    def maximum(a: Any, b: Any) -> Any:
        a, b = _alike(a, b)
        return a if _size(a) >= _size(b) else b

    @staticmethod
    def minimum(a: Any, b: Any) -> Any:
        a, b = _alike(a, b)
        return a if _size(a) <= _size(b) else b

    @staticmethod
    def where(condition: Any, yes: Any, no: Any) -> Any:
        yes, no = _alike(yes, no)
        return yes if bool(condition) else no

    @staticmethod
    def ceil(x: Any) -> float:
        value = _bare(x)
        return float(math.ceil(value)) if math.isfinite(value) else value

    @staticmethod
    def floor(x: Any) -> float:
        value = _bare(x)
        return float(math.floor(value)) if math.isfinite(value) else value

    exp = staticmethod(lambda x: math.exp(_bare(x)))
    sqrt = staticmethod(lambda x: math.sqrt(_bare(x)))
    expm1 = staticmethod(lambda x: math.expm1(_bare(x)))
    log = staticmethod(lambda x: math.log(_bare(x)))
    log1p = staticmethod(lambda x: math.log1p(_bare(x)) if _bare(x) > -1 else -math.inf)


@pytest.fixture(autouse=True)
def with_units(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("attention", "ffn", "step"):
        module = import_module(f"sweep.cost.{name}")
        monkeypatch.setattr(module, "MESSAGE_BYTES", Q(module.MESSAGE_BYTES, "B"))
    monkeypatch.setattr(attention, "STATISTICS_BYTES", Q(attention.STATISTICS_BYTES, "B"))
    for name in ("ACTIVATION_BYTES", "EXTRA_BYTES"):
        monkeypatch.setattr(memory, name, Q(getattr(memory, name), "B"))
    with namespace(UnitNamespace):
        yield


def unit_of(field: str) -> str:
    """The unit that a field's name states."""
    if field.endswith("bytes_per_s"):
        return "B/s"
    if field.endswith(("flops_per_s", "req_per_s")) or field == "peak_flops":
        return "1/s"
    if field in ("attn_weight", "ffn_weight", "head_weight", "act", "kv", "out", "dispatch", "combine"):
        return "B"
    if field.endswith("bytes") or field.startswith("state_bytes"):
        return "B"
    if field == "usd_per_hour":
        return "USD/s"
    if field == "watts":
        return "W"
    return "s" if field.endswith("_s") else ""


def tagged(record: Any) -> Any:
    """A record whose numbers carry the units that their names state."""
    changed: dict[str, Any] = {}
    for f in dataclasses.fields(record):
        value = getattr(record, f.name)
        if isinstance(value, OpRate | Link | Tile):
            changed[f.name] = tagged(value)
        elif value is None:  # memory is one tier
            changed[f.name] = None
        elif isinstance(value, tuple):
            changed[f.name] = tuple(tagged(v) for v in value)
        else:
            unit = unit_of(f.name)
            changed[f.name] = Q(float(value), unit) if unit else float(value)
    return dataclasses.replace(record, **changed)


def machine(efficiency: str) -> Machine:
    found: Machine = tagged(points.machine(efficiency, precision={"weights": "fp8", "kv": "fp8"}))
    return found


def model(values: dict[str, Any]) -> Model:
    found: Model = tagged(points.model(values, n_draft=2, acceptance=0.7, draft_cost=0.1))
    return found


def layout(**values: Any) -> Layout:
    found: Layout = tagged(points.layout(**values))
    return found


def context() -> Context:
    return dataclasses.replace(tagged(points.context(isl=9000, osl=500)), ttft_max_s=Q(10.0, "s"))


def row(values: dict[str, Any], efficiency: str, **cut: Any) -> Row:
    return points.row(model(values), machine(efficiency), layout(**cut), skew=0.0)


OP_UNITS = {f.name: unit_of(f.name) for f in dataclasses.fields(Op) if f.name not in ("name", "phase")}


def has_unit(value: Any, unit: str) -> bool:
    """Whether a value has a unit; a plain zero has any."""
    if _is_number(value) or _nothing(value):
        return unit == "" or _nothing(value)
    return bool(value.check(Q(1.0, unit).dimensionality))


def check_op(op: Op) -> None:
    for name, unit in OP_UNITS.items():
        assert has_unit(getattr(op, name), unit), f"{op.name}.{name} [{unit}] = {getattr(op, name)}"


LAYOUTS: dict[str, dict[str, Any]] = {
    "tp": {"tpa": 4},
    "helix": {"tpa": 2, "kvp": 4, "ep": 1, "hop_b": 1.0, "pp": 2},
    "wide": {"dpa": 16, "ep": 16, "two_batch": 1.0, "overlap": 0.5, "prefill_chunk": 2000},
    "mixed": {"tpa": 2, "kvp": 2, "dpa": 4, "ep": 8, "pp": 4, "overlap": 0.5, "prefill_chunk": 2000},
}
CASES = [(m, cut) for m in ("dense", "mla", "mixed") for cut in LAYOUTS if m != "dense" or cut in ("tp", "helix")]
VALUES = {"dense": DENSE, "mla": MLA, "mixed": MIXED}


@pytest.mark.parametrize("efficiency", ["ideal", "measured"])
@pytest.mark.parametrize(("name", "cut"), CASES)
def test_every_operation(name: str, cut: str, efficiency: str) -> None:
    """Kernels, attention and collectives of both phases: FLOPs are a count, bytes are bytes, times are seconds."""
    r = row(VALUES[name], efficiency, **LAYOUTS[cut])
    kinds = all_kinds()
    found: list[Op] = []
    for tokens, phase in (
        (decode_tokens(r.layout, 64.0, 2.0), "decode"),
        (prefill_tokens(r.layout, 1000.0), "prefill"),
    ):
        found += layer_kernels(phase, r, tokens, kinds) + layer_comm(phase, r, tokens, kinds)  # type: ignore[arg-type]
    tokens = decode_tokens(r.layout, 64.0, 2.0)
    found += decode_attention(r.model, r.machine, r.layout, tokens, 9000.0, kinds)
    found += prefill_attention(r.model, r.machine, r.layout, prefill_tokens(r.layout, 1000.0), 1000.0, 4000.0, kinds)
    found.append(step.head_op("decode", r.model, r.machine, r.layout, tokens))
    found.append(step.hop_op("decode", r.model, r.machine, r.layout, tokens))
    assert len(found) > 20
    for op in found:
        check_op(op)


COLUMN_UNITS = {
    "tok_s_gpu": "1/s",
    "tok_s_user": "1/s",
    "total_tok_s_gpu": "1/s",
    "tok_s_mw": "1/s/W",
    "joule_per_tok": "W*s",
    "usd_per_mtok": "USD",
    "mfu": "",
    "mbu": "",
    "intensity": "1/B",
    "params_total": "",
    "params_active": "",
    "max_batch": "",
    "fits": "",
    "in_time": "",
    "kv_bytes_per_tok": "B",
}


@pytest.mark.parametrize("efficiency", ["ideal", "measured"])
@pytest.mark.parametrize(("name", "cut"), CASES)
def test_every_column(name: str, cut: str, efficiency: str) -> None:
    """A whole point, prefill and memory included."""
    kinds = all_kinds()
    for cost in evaluate_point(row(VALUES[name], efficiency, **LAYOUTS[cut]), 64.0, context(), kinds):
        for f in dataclasses.fields(cost):
            if f.name in ("bound", "loss", "loss_sigma", "accuracy", "accuracy_low", "accuracy_high", "extrapolation"):
                continue
            unit = COLUMN_UNITS.get(f.name, unit_of(f.name))
            assert has_unit(getattr(cost, f.name), unit), f"{f.name} [{unit}] = {getattr(cost, f.name)}"


def test_units_do_not_change_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    r, plain = row(MIXED, "ideal", **LAYOUTS["mixed"]), points.machine(precision={"weights": "fp8", "kv": "fp8"})
    _, at_context, cost = evaluate_point(r, 64.0, context(), all_kinds())
    monkeypatch.undo()  # plain constants again
    bare = points.row(
        points.model(MIXED, n_draft=2, acceptance=0.7, draft_cost=0.1), plain, points.layout(**LAYOUTS["mixed"])
    )
    expected = points.evaluate(bare, 64, points.context(isl=9000, osl=500))
    assert cost.tpot_s.magnitude == pytest.approx(expected.point.tpot_s, rel=1e-12)
    assert at_context.ttft_s.magnitude == pytest.approx(expected.context.ttft_s, rel=1e-12)


# --- planted errors ----------------------------------------------------------------------------------------------

PLANTED: list[tuple[Callable[..., Any], str, str]] = [
    (ops.kernel, "weight_bytes * per_read", "weight_bytes / per_read"),
    (ops.kernel, "flops * (1.0 / rate.flops_per_s)", "flops * rate.flops_per_s"),
    (ops.kernel, "floor_s=rate.t0_s if", "floor_s=rate.flops_per_s if"),
    (ops.kernel_parts, "computes = op.math_s >= memory_s", "computes = op.math_s >= op.weight_bytes"),
    (gemm.gemm, "weight_bytes=n * k * weight", "weight_bytes=n * k"),
    (gemm.gemm, "input_bytes=m * (k * machine.act * groups)", "input_bytes=m * (k * machine.act * weight * groups)"),
    (gemm.gemm, "chain_s=k * rate.chain_s", "chain_s=k * rate.flops_per_s"),
    (gemm.tiled_math_s, "/ (flops_per_s * tile.rate)", "* (flops_per_s * tile.rate)"),
    (collectives._two_levels, "inner_bytes * (1.0 / used)", "inner_bytes * used"),
    (collectives.exchange, "inner = message * ", "inner = link.t0_s * "),
    (attention.decode_attention, "kv_read_bytes=keys * (tokens.requests * token_bytes)", "kv_read_bytes=keys"),
    (attention.helix_exchange, "+ STATISTICS_BYTES", "+ 8.0"),
    (memory.request_bytes, "model.n_linear_layers * model.state_bytes_per_layer", "model.n_linear_layers"),
    (memory.weights_bytes, "machine.head_weight * model.n_moe_layers", "model.n_moe_layers"),
    (step.hop_b_exposed, "requests * attention_s", "requests"),
    (step.exposed, "seconds = comm.comm_s + comm.latency_s", "seconds = comm.comm_s * comm.latency_s"),
]


def everything(efficiency: str) -> bool:
    """Whether the whole model runs and every operation and column has its unit."""
    try:
        for name, cut in (("mla", "helix"), ("mixed", "wide")):
            test_every_operation(name, cut, efficiency)
            test_every_column(name, cut, efficiency)
    except (pint.DimensionalityError, AssertionError):
        return False
    return True


@pytest.mark.parametrize(
    ("function", "right", "wrong"), PLANTED, ids=lambda x: getattr(x, "__name__", "=" + str(x)[:24])
)
def test_a_planted_error_is_caught(
    monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any], right: str, wrong: str
) -> None:
    """The source of one function with one slip in it."""
    source = textwrap.dedent(inspect.getsource(function))
    assert right in source
    home = inspect.getmodule(function)
    assert home is not None
    scope: dict[str, Any] = home.__dict__.copy()
    code = "from __future__ import annotations\n" + source.replace(right, wrong, 1)
    exec(compile(code, f"<{function.__name__}>", "exec"), scope)
    slipped = scope[function.__name__]
    for name in ("ops", "gemm", "collectives", "attention", "ffn", "tokens", "memory", "step", "prefill", "result"):
        module = import_module(f"sweep.cost.{name}")
        if getattr(module, function.__name__, None) is function:
            monkeypatch.setattr(module, function.__name__, slipped)
    assert not (everything("ideal") and everything("measured"))


def test_the_unplanted_model_passes() -> None:
    assert everything("ideal") and everything("measured")
    with pytest.raises(pint.DimensionalityError):
        UnitNamespace.maximum(Q(1.0, "s"), Q(1.0, "B"))
    with pytest.raises(pint.DimensionalityError):
        UnitNamespace.exp(Q(1.0, "s"))
    assert not has_unit(Q(1.0, "B"), "s") and not has_unit(1.0, "s") and has_unit(0.0, "s")


def test_parts_of_a_kernel_are_seconds() -> None:
    hw = machine("ideal")
    op = gemm.gemm("g", "decode", hw, hw.gemm_ffn, count=1.0, m=8.0, n=64.0, k=32.0, weight=hw.ffn_weight)
    assert kernel_parts(op).total_s.check("[time]")
    crossover = gemm.crossover_m(4096.0, 4096.0, hw, hw.gemm_ffn, hw.ffn_weight)
    assert has_unit(crossover, "")
