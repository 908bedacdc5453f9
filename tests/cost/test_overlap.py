"""What communication hides behind: a share behind kernels, HOP-B behind attention, two batches behind each other."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from sweep.cost.attention import decode_attention
from sweep.cost.ops import Op, Parts, op_parts
from sweep.cost.step import exposed, layer_comm, layer_kernels, load_step, one_pass, step_tokens
from tests.cost import points
from tests.cost.points import DENSE, MOE, all_kinds

S, BATCH = np.float64(20_000), np.float64(64)


def times(values: dict[str, Any], batch: float = 64.0, **layout: Any) -> tuple[float, dict[str, float]]:
    """Seconds of one pass over all layers, and of its operations by name."""
    row, kinds = points.row(points.model(values), points.machine(), points.layout(**layout)), all_kinds()
    with points.numbers():
        tokens = step_tokens(row.layout, np.float64(batch), 0.0, kinds)
        ops: list[Op] = layer_kernels("decode", row, tokens, kinds) + layer_comm("decode", row, tokens, kinds)
        ops += decode_attention(row.model, row.machine, row.layout, tokens, S, kinds)
        found: dict[str, float] = {"work": 0.0}
        for op in ops:
            seconds = float(op_parts(op).total_s * op.count)
            name = op.name if op.comm_bytes > 0 else "work"
            found[name] = found.get(name, 0.0) + seconds
            if op.name == "attention":
                found["attention"] = found.get("attention", 0.0) + seconds
        load = load_step(row, np.float64(batch), 0.0, kinds)
        whole = one_pass(row, load, np.float64(batch), 0.0, S, kinds)
    return float(whole.total_s), found


def test_a_share_hides_behind_the_work() -> None:
    """comm - overlap min(comm, work), by causes."""
    comm = Parts(comm_s=6.0, latency_s=2.0)
    assert exposed(comm, 100.0, 0.5).total_s == 4.0
    assert exposed(comm, 4.0, 0.5).total_s == 6.0
    left = exposed(comm, 4.0, 1.0)
    assert (left.comm_s, left.latency_s) == (3.0, 1.0)


@pytest.mark.parametrize("overlap", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("hop_b", [0.0, 1.0])
def test_helix(overlap: float, hop_b: float) -> None:
    """HOP-B hides the all-to-all request by request; all other messages hide by the share, and it too without HOP-B."""
    whole, t = times(DENSE, tpa=2, kvp=4, overlap=overlap, hop_b=hop_b)
    reduce, exchange, attention = t["all_reduce"], t["all_to_all"], t["attention"]
    if hop_b:
        left = (attention + 63 * max(attention, exchange) + exchange) / 64 - attention
        expected = t["work"] + left + reduce - overlap * min(reduce, t["work"])
    else:
        expected = t["work"] + reduce + exchange - overlap * min(reduce + exchange, t["work"])
    assert whole == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("overlap", [0.0, 0.3, 1.0])
def test_two_batches(overlap: float) -> None:
    """Two passes with half the requests: dispatch and combine hide behind the work of the other half.

    What is left of the work hides a share of the other messages.
    """
    whole, t = times(MOE, tpa=2, dpa=4, ep=8, overlap=overlap, two_batch=1.0)
    exchange = t["dispatch"] + t["combine"]
    other = sum(v for k, v in t.items() if k not in ("work", "attention", "dispatch", "combine"))
    spare = max(t["work"] - exchange, 0.0)
    one = max(t["work"], exchange) + other - overlap * min(other, spare)
    assert other > 0
    assert whole == pytest.approx(2 * one, rel=1e-12)
    _, half = times(MOE, 32.0, tpa=2, dpa=4, ep=8)
    assert {k: pytest.approx(v) for k, v in half.items()} == t


def test_one_request_has_no_other_half() -> None:
    layout = {"dpa": 4, "ep": 4}
    alone, _ = times(MOE, 1.0, **layout, two_batch=1.0)
    plain, t = times(MOE, 1.0, **layout)
    assert alone == pytest.approx(plain, rel=1e-12)
    assert plain == pytest.approx(t["work"] + t["dispatch"] + t["combine"], rel=1e-12)


def test_a_step_is_the_same_with_and_without_the_code_for_other_layouts() -> None:
    """Layouts with HOP-B on and off in one grid do not change each other."""
    lean = dataclasses.replace(all_kinds(), hop_b=False, two_batch=False)
    row = points.row(points.model(DENSE), points.machine(), points.layout(tpa=2, kvp=4, overlap=0.5))
    first, second = (points.evaluate(row, 64, points.context(), kinds).point.tpot_s for kinds in (lean, all_kinds()))
    assert first == pytest.approx(second, rel=1e-12)
